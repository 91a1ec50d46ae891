"""Law: a turn is one transaction for everything that moved: it suspends only who has seen everything, hands
out what is ready, and tells each coroutine exactly the rows that it does not know.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    Held,
    Turn,
    ask,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    create,
    done,
    fail,
    journal,
    promise,
    promise_of,
    release,
    release_unknown,
    report,
    run,
    settle,
    start,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)

WOKEN = [
    *("execution_started", "promise_registered", "execution_awaiting"),
    *("child_settled", "execution_resumed"),
]


def parent(conn: Connection, *commands: dict[str, Any], id_: str = "r", worker: str = "W") -> Held:
    """A run with children, held by worker, whose coroutine has seen its whole journal."""
    held = begin_run(conn, id_, worker)
    answer = take_turn(conn, worker, report(held, commands=commands))
    return Held(execution=held.execution, id=id_, version=1, next=answer.next_of(held))


def asleep(conn: Connection, *commands: dict[str, Any], kind: str | None = None, id_: str = "r") -> Held:
    """The same, suspended by W on all its children."""
    held = parent(conn, *commands, id_=id_)
    end = suspend(*range(len(commands)), kind=kind)
    assert take_turn(conn, "W", report(held, end=end)).of(held) == ("ok", "suspended")
    return held


def kinds(rows: list[tuple[Any, ...]] | tuple[tuple[Any, ...], ...]) -> list[str]:
    """Row types, in order."""
    return [row[1] for row in rows]


def test_a_claim_hands_out_input_and_journal(conn: Connection, clock: Clock) -> None:
    """A claimed run comes with its promise, version, whole journal and birth; its lease begins now."""
    ask(conn, start("r", '["x"]', queue="g"))
    clock.advance(5)
    answer = take_turn(conn, "W", want=1, queues=["g"], ttl_ms=700)
    (task,) = answer.handed
    assert {
        name: task[name]
        for name in ("id", "version", "workflow", "workflow_version", "param", "from", "next", "crashes")
    } == {
        "id": "r",
        "version": 1,
        "workflow": "w",
        "workflow_version": "1",
        "param": '["x"]',
        "from": 0,
        "next": 1,
        "crashes": 0,
    }
    assert task["started_at"] == clock.now_ms - 5
    assert task["rows"] == []
    assert ask(conn, ("select expires_at, pid from durable._tasks", ())) == (clock.now_ms + 700, "W")
    assert ask(conn, ("select encode(digest, 'hex') from durable._executions", ())) == ("ab",)


def test_a_claim_takes_what_it_can_run(conn: Connection, clock: Clock) -> None:
    """Queue, workflow, version, due instant, deadline, preference and want decide; priority, then age,
    orders."""
    starts: dict[str, dict[str, Any]] = {
        "other queue": {"queue": "h"},
        "other workflow": {"queue": "g", "workflow": "v"},
        "other version": {"queue": "g", "version": "2"},
        "later": {"queue": "g", "delay": "1 s"},
        "dead": {"queue": "g", "timeout": "5 ms"},
        "low": {"queue": "g", "priority": 5},
        "first": {"queue": "g"},
    }
    for name, more in starts.items():
        ask(conn, start(name, **more))
    ask(conn, create("protocol", target="g"))
    clock.advance(5)
    ask(conn, start("urgent", queue="g", priority=-1))
    taken = []
    for _ in range(4):
        taken += [task.id for task in take_turn(conn, "W", want=1, queues=["g"]).tasks]
    assert taken == ["urgent", "first", "low"]
    clock.advance(1000)
    assert [task.id for task in take_turn(conn, "W", want=9, queues=["g", "h"]).tasks] == [
        "other queue",
        "later",
    ]
    assert [task.id for task in take_turn(conn, "W", want=9, queues=["g"], workflows=["v"]).tasks] == [
        "other workflow"
    ]


@pytest.mark.parametrize(("want", "count"), [(-1, 0), (0, 0), (1, 1), (2, 2), (9, 3)])
def test_want_is_a_limit(conn: Connection, want: int, count: int) -> None:
    """A turn claims at most so many."""
    for number in range(3):
        ask(conn, start(f"r{number}"))
    assert len(take_turn(conn, "W", want=want).tasks) == count


@pytest.mark.parametrize("owned", [False, True])
def test_a_claim_of_what_is_not_to_be_had(conn: Connection, clock: Clock, owned: bool) -> None:
    """A task whose deadline comes between its lock and the clock of the turn is left and not handed out."""
    ask(conn, start("r", timeout="1 second"))
    late = "select c.tasks from durable._claim('{r}', %s, 'W', 1000, '{}', '{}', '{}', %s) c"
    assert ask(conn, (late, (owned, clock.now_ms + 1000))) == ([],)
    assert task_of(conn, "r") == ("pending", 0, None)


def test_an_empty_turn(conn: Connection) -> None:
    """A turn without reports answers null columns and nothing else."""
    raw = take_turn(conn, "W").raw
    assert raw["verdicts"] == dict.fromkeys(("execution", "verdict", "state", "seq", "next"))
    assert (raw["tasks"], raw["tails"], raw["hints"], raw["settled"], raw["due_in"]) == (
        [],
        [],
        [],
        False,
        None,
    )


def test_own_rows_and_tails(conn: Connection, clock: Clock) -> None:
    """seq and next frame what the report wrote; the tail is what came between the coroutine and that."""
    held = parent(conn, promise(0), promise(1))
    ask(conn, settle("r.0", '"a"'))
    answer = take_turn(conn, "W", report(held, outcomes=[done(2)], commands=[captured(3)]))
    place = answer.raw["verdicts"]
    assert (place["seq"], place["next"]) == ([5], [9])
    assert answer.tail(held) == [(3, "child_settled", 0, 1, None, None, '"a"', True)]
    again = take_turn(conn, "W", report(held, seen=9))
    assert again.raw["tails"] == []
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "child_settled"),
        *("random_generated", "step_completed"),
    ]


def test_a_suspend_with_unseen_resolver_rows_stays_awake(conn: Connection) -> None:
    """If a child resolved that the coroutine has not seen, the run is kept and its rows are the tail."""
    held = parent(conn, promise(0), promise(1))
    ask(conn, settle("r.1"))
    answer = take_turn(conn, "W", report(held, end=suspend(0, 1)))
    assert answer.of(held) == ("ok", "acquired")
    assert kinds(answer.tail(held)) == ["child_settled"]
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "child_settled"),
    ]
    assert (
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held))).of(held)[1]
        == "suspended"
    )


def test_a_suspend_with_outcomes_of_its_own_stays_awake(conn: Connection) -> None:
    """A report that brings a result has a coroutine that has not used it: it is not suspended."""
    held = parent(conn, promise(0))
    answer = take_turn(conn, "W", report(held, outcomes=[done(1)], end=suspend(0)))
    assert answer.of(held) == ("ok", "acquired")
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "step_completed"]


def test_rows_that_resolve_nothing_do_not_keep_a_run_awake(conn: Connection) -> None:
    """A child that was merely started is no reason to go on."""
    held = parent(conn, run(0, queue="kids"))
    claim(conn, "K", "kids")
    assert types_of(conn, "r") == ["execution_started", "child_run_scheduled", "child_run_started"]
    assert take_turn(conn, "W", report(held, end=suspend(0))).of(held)[1] == "suspended"


@pytest.mark.parametrize(
    "end",
    [
        suspend(7),
        suspend(0),
        suspend(1, 7),
        suspend(1, 1, kind="all"),
        suspend(kind="any"),
        suspend(1, kind="often"),
        suspend(1, 3, kind="single"),
        suspend(2),
        suspend(1, kind="signal"),
        suspend(4, kind="signal"),
        {"do": "suspend", "on": None, "kind": "any"},
        {"do": "suspend", "on": [1], "kind": None},
    ],
    ids=[
        "unknown",
        "seen",
        "half",
        "doubled",
        "nothing",
        "kind",
        "single of two",
        "detached",
        "signal of a promise",
        "signal of nothing",
        "null",
        "no kind",
    ],
)
def test_a_wait_that_nothing_would_end_is_halted(conn: Connection, end: dict[str, Any]) -> None:
    """A run that would sleep for ever is set aside with a problem, and the others of the turn are not
    disturbed."""
    held = parent(conn, promise(0), promise(1), run(2, detached=True), promise(3))
    other = parent(conn, promise(0), id_="s")
    ask(conn, settle("r.0"))
    answer = take_turn(conn, "W", report(held))
    answer = take_turn(
        conn, "W", report(held, end=end, seen=answer.next_of(held) + 2), report(other, end=suspend(0))
    )
    assert answer.of(held) == ("ok", "halted")
    assert answer.of(other) == ("ok", "suspended")
    assert ask(conn, ("select problem ->> 'type' from durable.runs where id = 'r'", ())) == (
        "Nondeterminism",
    )


def test_a_given_up_step_is_closed_by_the_suspend(conn: Connection) -> None:
    """A step that still ran when its coroutine went to sleep has no open attempt left, and the warm
    coroutine is told."""
    held = parent(conn, promise(1))
    answer = take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    assert (
        take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held))).of(held)[1]
        == "suspended"
    )
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "step_started"),
        *("open_attempt_failed", "execution_awaiting"),
    ]
    ask(conn, settle("r.1"))
    again = claim(conn, "W", "q-r")
    assert kinds(again.rows) == [
        *("open_attempt_failed", "execution_awaiting", "child_settled", "execution_resumed"),
    ]
    assert again.start == answer.next_of(held)


@pytest.mark.parametrize("again_by", ["W", "V"])
def test_warm_tail_against_whole_journal(conn: Connection, again_by: str) -> None:
    """Who suspended a run gets what came after; anybody else, or who comes after somebody else, the whole
    journal."""
    asleep(conn, promise(0))
    ask(conn, settle("r.0"))
    again = claim(conn, again_by, "q-r")
    assert (again.start, kinds(again.rows)) == (
        (3, ["child_settled", "execution_resumed"])
        if again_by == "W"
        else (
            0,
            WOKEN,
        )
    )
    ask(conn, ("select durable.task_release('r', 2)", ()))
    assert claim(conn, "W", "q-r").start == 0


def test_the_whole_journal_for_an_evicted_coroutine(conn: Connection) -> None:
    """worker_journal_v1 gives the holder every row with its value, and nobody else anything."""
    held = asleep(conn, promise(0))
    ask(conn, settle("r.0", '"v"'))
    again = claim(conn, "W", "q-r")
    (found,) = ask(conn, journal("W", again))
    assert found["next"] == 6
    assert kinds(found["rows"]) == WOKEN
    assert found["rows"][3][6:] == ['"v"', True]
    for worker, asked in (("V", again), ("W", held), ("W", replace(again, id="lost"))):
        text, values = journal(worker, asked)
        assert conn.execute(text.encode(), values).fetchone() in ((None,), None)


@pytest.mark.parametrize("kind", ["any", "all"])
def test_woken_and_claimed_in_the_turn_that_completes_the_child(conn: Connection, kind: str) -> None:
    """A parent that its own worker wakes in a turn is acquired in that turn, without want and before
    anybody else."""
    held = asleep(conn, run(0, queue="kids"), run(1, queue="none"), kind=kind)
    if kind == "all":
        ask(conn, settle("r.1"))
    kid = claim(conn, "W", "kids")
    answer = take_turn(conn, "W", report(kid, end=complete('"kid"')), want=0)
    (task,) = answer.tasks
    assert (task.id, task.version) == ("r", 2)
    assert task.rows[-2:] == (
        (task.next - 2, "open_child_settled", 0, 1, None, None, '"kid"', True),
        (task.next - 1, "execution_resumed", *[None] * 6),
    )
    assert answer.raw["settled"] is True
    assert promise_of(conn, "r.0") == ("resolved", '"kid"')
    assert held.version == 1


def test_a_worker_that_wants_nothing_wakes_but_does_not_claim(conn: Connection) -> None:
    """want below 0 leaves the woken run ready for anybody."""
    asleep(conn, run(0, queue="kids"))
    kid = claim(conn, "W", "kids")
    answer = take_turn(conn, "W", report(kid, end=complete()))
    assert (answer.tasks, answer.raw["hints"]) == ([], ["q-r"])
    assert task_of(conn, "r") == ("pending", 1, None)


def test_a_protocol_task_of_the_same_name_is_not_claimed(conn: Connection) -> None:
    """A woken protocol task whose holder had the worker's name is left to protocol clients."""
    kid = begin_run(conn, "r")
    ask(conn, create("t", target="g"))
    ask(conn, ("select from durable.task_acquire('t', 0, 'W', 5000)", ()))
    ask(conn, ("select durable.task_suspend('t', 1, '{r}')", ()))
    assert take_turn(conn, "W", report(kid, end=complete()), want=0).tasks == []
    assert task_of(conn, "t") == ("pending", 1, None)


def test_parent_suspends_and_child_completes_in_one_turn(conn: Connection) -> None:
    """One worker holds both: the parent falls asleep, is woken and handed out again within the turn."""
    held = parent(conn, run(0, queue="kids"))
    kid = claim(conn, "W", "kids")
    answer = take_turn(
        conn, "W", report(held, end=suspend(0), seen=held.next + 1), report(kid, end=complete()), want=0
    )
    assert answer.of(held) == ("ok", "released")
    assert answer.of(kid) == ("ok", "done")
    (task,) = answer.tasks
    assert (task.id, task.version, kinds(task.rows)) == ("r", 2, ["open_child_settled", "execution_resumed"])


def test_parent_and_child_complete_in_one_turn(conn: Connection) -> None:
    """A child that completes beside its completing parent is told to the parent's journal before its end,
    or not at all."""
    held = parent(conn, run(0, queue="kids"))
    kid = claim(conn, "W", "kids")
    answer = take_turn(conn, "W", report(kid, end=complete()), report(held, end=fail(), seen=held.next + 1))
    assert (answer.of(held), answer.of(kid)) == (("ok", "done"), ("ok", "done"))
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_started"),
        *("open_child_settled", "execution_failed"),
    ]


def test_a_leased_parent_gets_rows_that_the_turn_appended(conn: Connection) -> None:
    """Rows that the turn itself appends to a held run after its own come as the second half of its tail."""
    held = parent(conn, run(0, queue="kids"))
    kid = claim(conn, "W", "kids")
    ask(conn, ("select 1", ()))
    answer = take_turn(conn, "W", report(held, outcomes=[done(1)]), report(kid, end=complete()))
    ((execution, before, after),) = answer.raw["tails"]
    assert execution == held.execution
    assert (kinds(before), kinds(after)) == (["child_run_started"], ["open_child_settled"])


def test_release_with_a_delay(conn: Connection, clock: Clock) -> None:
    """A run given back until later is nobody's before; its worker has it warm; a child that settled unseen
    brings it back at once."""
    held = parent(conn, promise(0))
    answer = take_turn(conn, "W", report(held, outcomes=[broken(1, retry_in=500)]))
    seen = answer.next_of(held)
    assert take_turn(conn, "W", report(held, end=release(500), seen=seen)).of(held)[1] == "released"
    assert take_turn(conn, "W", want=1, queues=["q-r"]).tasks == []
    clock.advance(500)
    again = claim(conn, "W", "q-r")
    assert (again.start, again.rows, again.next) == (seen, (), seen)
    ask(conn, settle("r.0"))
    late = Held(execution=held.execution, id="r", version=2, next=seen)
    assert take_turn(conn, "W", report(late, end=release(500))).of(late) == ("ok", "released")
    third = claim(conn, "W", "q-r")
    assert (third.start, kinds(third.rows)) == (seen, ["child_settled"])


def test_release_with_rows_of_its_own_behind_unseen_ones(conn: Connection) -> None:
    """A coroutine whose last report was written behind rows that it has not seen is not warm: it gets the
    whole journal."""
    held = parent(conn, promise(0))
    ask(conn, settle("r.0"))
    assert (
        take_turn(conn, "W", report(held, outcomes=[broken(1, retry_in=5)], end=release(5))).of(held)[1]
        == "released"
    )
    again = claim(conn, "W", "q-r")
    assert (again.start, kinds(again.rows)) == (
        0,
        ["execution_started", "promise_registered", "child_settled", "first_attempt_failed"],
    )


def test_a_release_at_once_is_for_any_worker(conn: Connection) -> None:
    """A run given back without a delay has no preference left: the whole journal goes to whoever comes."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, outcomes=[begun(0)], end=release()))
    assert answer.raw["hints"] == ["q-r"]
    assert types_of(conn, "r") == ["execution_started", "step_started", "open_attempt_failed"]
    assert claim(conn, "W", "q-r").start == 0


def blocked_again(conn: Connection, worker: str = "W") -> Held:
    """Halt and resume a sleeping run and claim it: it is blocked in its journal and held."""
    ask(conn, ("select durable.task_halt('r')", ()))
    ask(conn, ("select durable.resume('r')", ()))
    return claim(conn, worker, "q-r")


@pytest.mark.parametrize(
    ("kind", "settled", "end", "state"),
    [
        ("any", [], suspend(0, 1), "suspended"),
        ("any", [], suspend(0, 1, kind="all"), "halted"),
        ("any", [], suspend(0), "halted"),
        ("all", [], suspend(0, 1, kind="all"), "suspended"),
        ("all", [], suspend(0, 1, kind="any"), "halted"),
        ("all", [], suspend(0, kind="all"), "halted"),
        ("all", [0], suspend(1), "suspended"),
        ("all", [0], suspend(0, 1, kind="all"), "suspended"),
        ("all", [0], suspend(0), "halted"),
        ("all", [], suspend(0, 1, 2, kind="all"), "halted"),
    ],
)
def test_a_blocked_run_waits_for_the_same_again(
    conn: Connection, kind: str, settled: list[int], end: dict[str, Any], state: str
) -> None:
    """R20: after halt and resume the same wait, or what is left of it, writes nothing; another one is
    nondeterminism."""
    asleep(conn, promise(0), promise(1), kind=kind)
    for child in settled:
        ask(conn, settle(f"r.{child}"))
    again = blocked_again(conn)
    journal = types_of(conn, "r")
    answer = take_turn(conn, "W", report(again, end=end))
    assert answer.of(again) == ("ok", state)
    assert types_of(conn, "r") == journal
    if state == "suspended":
        for child in {0, 1} - set(settled):
            ask(conn, settle(f"r.{child}"))
        assert types_of(conn, "r").count("execution_resumed") == 1
        assert (task_of(conn, "r") or ("",))[0] == "pending"


def test_the_tail_after_waiting_again(conn: Connection) -> None:
    """The warm tail of a run that suspended a second time on the same wait begins after what it had
    replayed."""
    asleep(conn, promise(0), promise(1), kind="all")
    ask(conn, settle("r.0"))
    again = blocked_again(conn)
    take_turn(conn, "W", report(again, end=suspend(1)))
    ask(conn, settle("r.1"))
    third = claim(conn, "W", "q-r")
    assert (third.start, kinds(third.rows)) == (again.next, ["child_settled", "execution_resumed"])


def test_a_blocked_run_with_unseen_rows_stays_awake(conn: Connection) -> None:
    """A child that resolves while a blocked run is held keeps it awake, whether it ends the wait or not."""
    asleep(conn, promise(0), promise(1), kind="all")
    again = blocked_again(conn)
    ask(conn, settle("r.0"))
    answer = take_turn(conn, "W", report(again, end=suspend(0, 1, kind="all")))
    assert (answer.of(again), kinds(answer.tail(again))) == (("ok", "acquired"), ["child_settled"])
    ask(conn, settle("r.1"))
    answer = take_turn(conn, "W", report(again, end=suspend(1), seen=again.next + 2))
    assert (answer.of(again), kinds(answer.tail(again))) == (
        ("ok", "acquired"),
        ["child_settled", "execution_resumed"],
    )


def test_the_worker_may_crash_while_the_run_is_blocked(conn: Connection, clock: Clock) -> None:
    """A blocked run whose worker dies before it suspended again is offered again and still blocked."""
    asleep(conn, promise(0))
    blocked_again(conn)
    clock.advance(TTL_MS)
    assert tick(conn)["leases"] == 1
    again = claim(conn, "V", "q-r")
    assert take_turn(conn, "V", report(again, end=suspend(0))).of(again)[1] == "suspended"


def test_leases_are_renewed_in_their_second_half(conn: Connection, clock: Clock) -> None:
    """A turn extends the lease of what it carries once less than half of it is left."""
    held = begin_run(conn, "r")
    expires = "select expires_at - durable._now_ms() from durable._tasks"
    clock.advance(TTL_MS // 2)
    take_turn(conn, "W", report(held))
    assert ask(conn, (expires, ())) == (TTL_MS // 2,)
    clock.advance(1)
    take_turn(conn, "W")
    assert ask(conn, (expires, ())) == (TTL_MS // 2 - 1,)
    take_turn(conn, "W", report(held))
    assert ask(conn, (expires, ())) == (TTL_MS,)


def test_hints_and_due(conn: Connection, clock: Clock) -> None:
    """The answer names queues that got ready tasks and when the next deadline is due."""
    held = begin_run(conn, "r")
    commands = [run(0, queue="b"), run(1, queue="a"), run(2, queue="b"), timer(3, 700)]
    answer = take_turn(conn, "W", report(held, commands=commands))
    assert sorted(answer.raw["hints"]) == ["a", "b"]
    assert (answer.raw["due_in"], answer.raw["now"], answer.raw["settled"]) == (700, clock.now_ms, False)


def test_bye_gives_everything_back(conn: Connection) -> None:
    """An orderly end releases what is held, closes open steps, and forgets the worker."""
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', '{\"pid\": 1}')", ()))
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    other = begin_run(conn, "s", "V")
    assert ask(conn, ("select durable.worker_bye_v1('W')", ())) == (1,)
    assert task_of(conn, "r") == ("pending", 1, None)
    assert task_of(conn, "s") == ("acquired", other.version, "V")
    assert types_of(conn, "r") == ["execution_started", "step_started", "open_attempt_failed"]
    assert conn.execute("select from durable._workers").fetchall() == []
    assert ask(conn, ("select durable.worker_bye_v1('W')", ())) == (0,)


def test_unknown_leases_are_released(conn: Connection) -> None:
    """After a lost answer a worker gives back what it holds and does not know of, and keeps what it knows."""
    known = begin_run(conn, "known")
    other = begin_run(conn, "unknown")
    assert ask(conn, release_unknown("W", known)) == ([other.id],)
    assert ask(conn, release_unknown("W", known)) == ([],)
    other = claim(conn, "W", "q-unknown")
    assert ask(conn, release_unknown("W", replace(known, id="lost"), other)) == ([known.id],)
    known = claim(conn, "W", "q-known")
    assert ask(conn, release_unknown("W", replace(known, execution=other.execution), other)) == ([known.id],)
    known = claim(conn, "W", "q-known")
    ask(conn, release_unknown("W", known))
    assert (task_of(conn, "known"), task_of(conn, "unknown")) == (("acquired", 3, "W"), ("pending", 2, None))


def test_a_long_run(conn: Connection) -> None:
    """A thousand outcomes in one turn are a thousand rows, dense."""
    held = begin_run(conn, "r")
    answer: Turn = take_turn(
        conn, "W", report(held, outcomes=[done(child, json.dumps(child)) for child in range(1000)])
    )
    assert answer.next_of(held) == 3001
    rows = ask(conn, journal("W", held))[0]["rows"]
    assert [row[6] for row in rows[1:]] == [str(child) for child in range(1000)]


def test_a_wait_that_is_refused_renews_the_lease(conn: Connection, clock: Clock) -> None:
    """A run that goes on because its wait is over was reported: its lease is as good as after any report."""
    held = parent(conn, promise(0))
    ask(conn, settle("r.0"))
    clock.advance(TTL_MS + 1)
    assert take_turn(conn, "W", report(held, end=suspend(0))).of(held) == ("ok", "acquired")
    tick(conn)
    assert task_of(conn, "r") == ("acquired", 1, "W")


def test_a_claim_of_a_child_is_in_the_parents_answer(conn: Connection) -> None:
    """What the turn's own claim writes into the journal of a run that it carries is in the answer."""
    held = parent(conn, run(0, queue="c"))
    answer = take_turn(conn, "W", report(held), want=1, queues=["c"])
    assert [task.id for task in answer.tasks] == ["r.0"]
    assert kinds(answer.tail(held)) == ["child_run_started"]


def test_a_woken_run_of_other_code_keeps_its_digest(conn: Connection) -> None:
    """Only code that the worker has now says what it is."""
    held = parent(conn, run(0, name="v", queue="c"))
    child = claim(conn, "W", "c", workflows=["v"])
    (seen,) = ask(conn, ("select next_seq from durable._executions where id = 'r'", ()))
    assert take_turn(conn, "W", report(held, end=suspend(0), seen=seen)).of(held) == ("ok", "suspended")
    answer = take_turn(conn, "W", report(child, end=complete()), want=0, workflows=["v"])
    assert [task.id for task in answer.tasks] == ["r"]
    assert ask(conn, ("select encode(digest, 'hex') from durable._executions where id = 'r'", ())) == ("ab",)
