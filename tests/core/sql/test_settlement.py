"""Law: a promise leaves pending once, by one road: its task ends, its listeners are told, its awaiters
resumed, its journals written."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    acquire,
    ask,
    begin_run,
    claim,
    complete,
    create,
    events_of,
    fail,
    journal,
    park,
    promise,
    promise_of,
    report,
    run,
    settle,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)


def test_settling_ends_the_task_and_keeps_its_version(conn: Connection) -> None:
    """The task row goes, its version stays on the promise, its wake reasons are deleted, and it reads as
    fulfilled."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    ask(conn, ("select durable.promise_register_callback('x', 't')", ()))
    ask(conn, settle("x"))
    ask(conn, settle("t"))
    assert task_of(conn, "t") is None
    assert conn.execute("select from durable._resumes").fetchall() == []
    assert ask(conn, ("select task_version from durable._promises where id = 't'", ())) == (1,)
    assert ask(conn, ("select * from durable.task_get('t')", ())) == ("t", "fulfilled", 1, 0, None, None)


def test_nothing_leaves_a_settled_state(conn: Connection, clock: Clock) -> None:
    """A second verdict, a later one and the deadline change neither state nor value nor instant."""
    ask(conn, create("x", clock.now_ms + 100, external="true"))
    clock.advance(10)
    ask(conn, settle("x", "1"))
    row = ask(conn, ("select * from durable._promises where id = 'x'", ()))
    ask(conn, settle("x", "2", state="rejected"))
    clock.advance(1000)
    tick(conn)
    ask(conn, settle("x", "3", state="rejected_canceled"))
    assert ask(conn, ("select * from durable._promises where id = 'x'", ())) == row


@pytest.mark.parametrize(("timer_tag", "state"), [("true", "resolved"), ("false", "rejected_timedout")])
@pytest.mark.parametrize("door", ["settle", "get", "tick", "results"])
def test_the_deadline_wins_at_its_instant(
    conn: Connection, clock: Clock, timer_tag: str, state: str, door: str
) -> None:
    """At its deadline a promise has the deadline verdict, without a value, stamped with the deadline,
    whoever looks first."""
    due = clock.now_ms + 100
    ask(conn, create("x", due, timer=timer_tag, external="true"))
    clock.advance(130)
    if door == "tick":
        tick(conn)
    else:
        calls = {
            "settle": settle("x", '"late"', state="rejected"),
            "get": ("select state from durable.promise_get('x')", ()),
            "results": ("select state from durable.results_v1('{x}')", ()),
        }
        assert ask(conn, calls[door])[0] == state
    stored = ask(conn, ("select state, value_data, settled_at from durable._promises", ()))
    assert stored == (state, None, due)


def test_one_millisecond_before_the_deadline(conn: Connection, clock: Clock) -> None:
    """A client's verdict is taken as long as the deadline lies ahead."""
    ask(conn, create("x", clock.now_ms + 100, external="true"))
    clock.advance(99)
    assert ask(conn, settle("x", '"in time"')) == ("resolved", '"in time"')
    assert ask(conn, ("select settled_at from durable._promises", ())) == (clock.now_ms,)


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("resolved", ["ExecutionCompleted"]),
        ("rejected", ["ExecutionFailed"]),
        ("rejected_canceled", ["CancelRequested", "ExecutionCancelled"]),
    ],
)
@pytest.mark.parametrize("asleep", [False, True], ids=["running", "blocked"])
def test_the_end_of_a_run_from_outside(conn: Connection, state: str, events: list[str], asleep: bool) -> None:
    """Whoever settles a run ends its journal, whether it runs or waits."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0)]))
    if asleep:
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(conn, settle("r", '"x"', state=state))
    assert events_of(conn, "r")[2 + asleep :] == events
    assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("lost", "lost")


def test_a_run_past_its_deadline_failed(conn: Connection, clock: Clock) -> None:
    """The deadline of a run ends its journal with ExecutionFailed and tells its owner."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[run(0, timeout=100)]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    clock.advance(100)
    assert tick(conn)["promises"] == 1
    assert types_of(conn, "r.0") == ["execution_started", "execution_failed"]
    woken = claim(conn, "V", "q-r")
    assert [row[1] for row in woken.rows] == [
        *("execution_started", "child_run_scheduled", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]
    assert woken.rows[3][6:] == (
        '{"type": "Timeout", "kind": "Timeout", "message": "the deadline passed"}',
        False,
    )


def test_the_owner_learns_of_its_children(conn: Connection, clock: Clock) -> None:
    """A child run that was started is completed, one that never was is started and completed, a timer
    fires."""
    held = begin_run(conn, "r")
    commands = [run(0, queue="kids"), run(1, queue="none"), timer(2, 50), promise(3)]
    take_turn(conn, "W", report(held, commands=commands))
    kid = claim(conn, "K", "kids")
    take_turn(conn, "K", report(kid, end=fail('{"type": "Boom"}')))
    ask(conn, settle("r.1", '"hand"'))
    clock.advance(50)
    tick(conn)
    ask(conn, settle("r.3", '"out"'))
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "timer_scheduled"),
        *("promise_registered", "child_run_started", "open_child_settled", "child_settled"),
        *("timer_fired", "child_settled"),
    ]
    rows = ask(conn, journal("W", held))[0]["rows"]
    assert [row[6:] for row in rows[6:]] == [
        ['{"type": "Boom"}', False],
        ['"hand"', True],
        [None, None],
        ['"out"', True],
    ]


def test_children_of_an_ended_run_settle_unrecorded(conn: Connection) -> None:
    """After the owner's end a child still settles, and the owner's journal stays as it is."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0), run(1, queue="kids")]))
    kid = claim(conn, "K", "kids")
    ask(conn, settle("r", state="rejected_canceled"))
    before = types_of(conn, "r")
    ask(conn, settle("r.0"))
    take_turn(conn, "K", report(kid, end=complete()))
    assert types_of(conn, "r") == before
    assert promise_of(conn, "r.1") == ("resolved", '"done"')


def test_a_tree_that_expires_at_once(conn: Connection, clock: Clock) -> None:
    """Parent and children due in one sweep are settled before anybody is judged: no dead run becomes
    ready."""
    held = begin_run(conn, "r", timeout="100 ms")
    answer = take_turn(conn, "W", report(held, commands=[run(0, timeout=100), timer(1, 100)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1), seen=answer.next_of(held)))
    clock.advance(100)
    found = tick(conn)
    assert (found["promises"], found["hints"]) == (3, [])
    assert conn.execute("select from durable._tasks").fetchall() == []
    assert types_of(conn, "r") in (
        [
            *("execution_started", "child_run_scheduled", "timer_scheduled", "execution_awaiting"),
            *("child_settled", "timer_fired", "execution_failed"),
        ],
        [
            *("execution_started", "child_run_scheduled", "timer_scheduled", "execution_awaiting"),
            *("timer_fired", "child_settled", "execution_failed"),
        ],
    )


def test_an_expired_awaiter_is_left_to_its_own_deadline(conn: Connection, clock: Clock) -> None:
    """A child that settles after its parent's unnoticed deadline is journalled and does not wake the
    parent."""
    held = begin_run(conn, "r", timeout="100 ms")
    answer = take_turn(conn, "W", report(held, commands=[promise(0)]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    clock.advance(100)
    ask(conn, settle("r.0"))
    assert task_of(conn, "r") == ("suspended", 1, None)
    assert conn.execute("select * from durable.check()").fetchall() == []
    tick(conn)
    assert promise_of(conn, "r") == ("rejected_timedout", None)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_failed"),
    ]


ROADS: dict[str, Call] = {
    "settle": settle("x"),
    "fulfill": ("select durable.task_fulfill('x', 1, 'resolved')", ()),
    "fence": ("select durable.task_fence_settle('f', 1, 'x', 'resolved')", ()),
    "deadline": ("select durable.tick_v1(10)", ()),
}


@pytest.mark.parametrize("road", ROADS)
def test_every_road_is_the_same_chain(conn: Connection, clock: Clock, road: str) -> None:
    """Settle, resume, execute: the task ends, the deadline is disarmed, each listener gets one message, the
    awaiter becomes pending and is offered at its target."""
    take(conn, "x", clock.now_ms + 100)
    take(conn, "f")
    ask(conn, create("t", target="poll://any@elsewhere"))
    ask(conn, acquire("t"))
    ask(conn, ("select durable.promise_register_listener('x', 'poll://any@told')", ()))
    ask(conn, park("t", "x"))
    clock.advance(100 if road == "deadline" else 99)
    ask(conn, ROADS[road])
    row = ask(
        conn, ("select state, settled_at, due_at, task_version from durable._promises where id = 'x'", ())
    )
    assert row == ("rejected_timedout" if road == "deadline" else "resolved", clock.now_ms, None, 1)
    assert task_of(conn, "x") is None
    assert ask(conn, ("select count(*) from durable._listeners", ())) == (0,)
    assert ask(conn, ("select count(*) from durable._callbacks", ())) == (0,)
    assert conn.execute("select promise_id, address from durable._unblocks").fetchall() == [
        ("x", "poll://any@told")
    ]
    assert task_of(conn, "t") == ("pending", 1, None)
    assert conn.execute("select task_id, awaited_id from durable._resumes").fetchall() == [("t", "x")]
    offered = conn.execute("select id, version from durable.task_offer('elsewhere')").fetchall()
    assert offered == [("t", 1)]


def test_a_settlement_settles_nothing_else(conn: Connection) -> None:
    """The chain is linear: awaiters become ready, none of them is settled."""
    ask(conn, create("x", external="true"))
    for name in ("t1", "t2"):
        take(conn, name)
        ask(conn, ("select durable.task_suspend(%s, 1, %s)", (name, ["x"] if name == "t1" else ["t1"])))
    ask(conn, settle("x"))
    assert task_of(conn, "t1") == ("pending", 1, None)
    assert task_of(conn, "t2") == ("suspended", 1, None)
    assert promise_of(conn, "t1") == ("pending", None)


FAILED = (
    "select id, failure, failed_at = to_timestamp(settled_at / 1000.0) from durable._promises order by id"
)


def test_a_run_that_failed_says_how_and_when(conn: Connection, clock: Clock) -> None:
    """By the single-row path, the general one, as a child and by its deadline; neither a run that completed
    nor a promise that was rejected says so.
    """
    held = begin_run(conn, "alone")
    take_turn(conn, "W", report(held, end=fail()))
    parent = begin_run(conn, "parent")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="c"), promise(1)]))
    take_turn(conn, "W", report(claim(conn, "W", "c"), end=fail()))
    ask(conn, settle("parent.1", state="rejected"))
    begin_run(conn, "late", timeout="50 ms")
    done = begin_run(conn, "well")
    take_turn(conn, "W", report(done, end=complete()))
    clock.advance(50)
    tick(conn)
    found = {id_: (failure, same) for id_, failure, same in conn.execute(FAILED).fetchall()}
    assert found == {
        "alone": ("failed", True),
        "late": ("timed_out", True),
        "parent": (None, None),
        "parent.0": ("failed", True),
        "parent.1": (None, None),
        "well": (None, None),
    }
