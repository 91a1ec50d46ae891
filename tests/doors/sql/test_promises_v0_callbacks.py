"""Law: a callback of the older API is registered once under its id, resumes its awaiter at its receiver, or
is dropped when its own time is over; whoever subscribes is told."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.doors.protocol.v0_calls import callback, completion, creation, subscription
from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    acquire,
    ask,
    begin_run,
    claim,
    complete,
    create,
    park,
    promise,
    refusal,
    report,
    run,
    settle,
    suspend,
    take,
    take_turn,
    tick,
)

HTTP = {"type": "http", "data": {"url": "https://Hooks.example/x", "headers": {"X-Key": "k"}}}
POLL = {"type": "poll", "data": {"group": "g2", "id": "w"}}


@pytest.fixture
def scene(conn: Connection, clock: Clock) -> Connection:
    """A promise x, and a task t of queue g that somebody has acquired."""
    take(conn, "t")
    ask(conn, creation("x"))
    return conn


def rows(conn: Connection) -> list[tuple[Any, ...]]:
    """Callbacks as stored."""
    return conn.execute(
        "select awaited_id, awaiter_id, id, timeout_at, recv, recv_headers from durable._callbacks "
        "order by 1, 2, 3"
    ).fetchall()


def routed(conn: Connection, id_: str = "t") -> tuple[Any, ...]:
    """Where a task stands and where it is to be resumed."""
    return ask(
        conn,
        ("select state, queue, preference, recv, recv_headers from durable._tasks where id = %s", (id_,)),
    )


# -- registering


@pytest.mark.parametrize(
    ("recv", "address", "headers"),
    [
        (POLL, "poll://any@g2/w", None),
        ({"type": "poll", "data": {"group": "g2"}}, "poll://any@g2", None),
        (HTTP, "https://hooks.example/x", {"X-Key": "k"}),
        ("poll://g2:w", "poll://any@g2/w", None),
        ("poll://uni@g2/w", "poll://uni@g2/w", None),
        ("http://example.com", "http://example.com", None),
        ("g2", "poll://any@g2", None),
    ],
)
def test_a_new_callback(scene: Connection, recv: Any, address: str, headers: dict[str, str] | None) -> None:
    """A pending promise and an id that is new: registered, with the receiver's canonical address."""
    status, word, made, record = ask(scene, callback(timeout_at=5, recv=recv))
    assert (status, word, record["id"], record["state"]) == (201, "OK", "x", "PENDING")
    assert made.pop("createdOn") == record["createdOn"]
    assert made == {"id": "c", "promiseId": "x", "rootPromiseId": "t", "timeout": 5, "recv": address}
    assert rows(scene) == [("x", "t", "c", 5, address, headers)]


def test_an_id_that_is_known(scene: Connection) -> None:
    """The same id again changes nothing, whatever else differs, also for another promise; another id is
    another callback. The answer has a callback as long as this awaiter waits for this promise: a client
    that gets none takes the promise for completed."""
    ask(scene, callback())
    ask(scene, creation("y"))
    ask(scene, create("u", target="g"))
    before = rows(scene)
    for again in (callback(), callback(timeout_at=1, recv="h"), callback(awaited="y"), callback(root="u")):
        status, word, made, record = ask(scene, again)
        assert (status, word, record["state"]) == (200, "deduplicated", "PENDING")
        assert (made is not None) == (again[1][1:3] == ("x", "t"))
    assert rows(scene) == before
    assert ask(scene, callback("c2", recv="h"))[0] == 201
    assert len(rows(scene)) == 2


@pytest.mark.parametrize(
    ("verb", "word"),
    [("resolve", "already resolved"), ("reject", "already rejected"), ("cancel", "already canceled")],
)
def test_a_promise_that_is_completed(scene: Connection, verb: str, word: str) -> None:
    """Nothing is registered, and the answer carries the value: the awaiter goes on at once."""
    ask(scene, completion(verb, "x", data="7"))
    status, said, made, record = ask(scene, callback())
    assert (status, said, made, record["value"]) == (200, word, None, {"data": "7"})
    assert rows(scene) == []


def test_a_promise_past_its_deadline(scene: Connection, clock: Clock) -> None:
    """It is settled first, and then it is one that is completed."""
    ask(scene, creation("late", timeout_at=clock.now_ms + 5))
    ask(scene, callback("before", awaited="late"))
    clock.advance(5)
    status, word, made, record = ask(scene, callback(awaited="late"))
    assert (status, word, made, record["state"]) == (200, "already timedout", None, "REJECTED_TIMEDOUT")
    assert rows(scene) == []


def test_no_such_promise(scene: Connection) -> None:
    """A promise that is not there is an answer, also for an awaiter that is not there either."""
    assert ask(scene, callback(awaited="z")) == (404, "not found", None, None)
    assert ask(scene, callback(awaited="z", root="zz")) == (404, "not found", None, None)


def test_an_awaiter_without_a_task(scene: Connection) -> None:
    """Who has no target, or does not exist, cannot be resumed."""
    ask(scene, creation("bare"))
    assert refusal(scene, callback(root="bare")) == "WF010"
    assert refusal(scene, callback(root="nobody")) == "WF010"


def test_an_awaiter_that_is_completed(scene: Connection) -> None:
    """Nobody is left to be resumed: nothing is registered, and the answer says so."""
    ask(scene, settle("t"))
    status, word, made, record = ask(scene, callback())
    assert (status, word, made, record["state"]) == (200, "awaiter completed", None, "PENDING")
    assert rows(scene) == []


def test_a_promise_that_was_internal(scene: Connection, clock: Clock) -> None:
    """The older API knows no internal promises: one that is awaited gets its deadline enforced, unless the
    strict profile forbids to await it."""
    ask(scene, creation("inner", tags="{}", timeout_at=clock.now_ms + 10))
    ask(scene, ("select durable.set_setting('conformance', 'strict')", ()))
    assert refusal(scene, callback(awaited="inner")) == "WF005"
    ask(scene, ("select durable.set_setting('conformance', 'compatible')", ()))
    assert ask(scene, callback(awaited="inner"))[0] == 201
    ask(scene, park("t", "x"))
    clock.advance(10)
    scene.execute("select durable.tick_v1(10)")
    assert routed(scene)[0] == "pending"


def test_a_local_step(scene: Connection) -> None:
    """What a run does inside itself nobody else awaits."""
    held = begin_run(scene, "r")
    take_turn(
        scene,
        "W",
        report(held, outcomes=[{"child": 0, "name": "s", "hash": "a" * 16, "attempt": 1, "value": "1"}]),
    )
    assert refusal(scene, callback(awaited="r.0")) == "WF005"


MALFORMED = {
    "no id": callback(None),
    "empty id": callback(""),
    "long id": callback("c" * 513),
    "no promise": callback(awaited=None),
    "no awaiter": callback(root=None),
    "awaiter is awaited": callback(root="x"),
    "no timeout": callback(timeout_at=None),
    "negative timeout": callback(timeout_at=-1),
    "timeout beyond never": callback(timeout_at=NEVER + 1),
    "no receiver": callback(recv=None),
    "receiver cannot be routed": callback(recv="a b"),
    "receiver is of an unknown type": callback(recv={"type": "kafka", "data": {}}),
    "receiver has no group": callback(recv={"type": "poll", "data": {"id": "w"}}),
    "receiver has headers that break a request": callback(
        recv={"type": "http", "data": {"url": "http://h", "headers": {"a": "b\r\nc: d"}}}
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_errors(scene: Connection, name: str) -> None:
    """WF004, and nothing is registered."""
    assert refusal(scene, MALFORMED[name]) == "WF004"
    assert rows(scene) == []


# -- firing


@pytest.mark.parametrize(
    ("recv", "queue", "preference", "address", "headers"),
    [
        (POLL, "g2", "w", "poll://any@g2/w", None),
        ("g2", "g2", None, "poll://any@g2", None),
        ("poll://uni@g2/w", "poll://uni@g2/w", None, "poll://uni@g2/w", None),
        (HTTP, "https://hooks.example/x", None, "https://hooks.example/x", {"X-Key": "k"}),
    ],
)
def test_a_resume_goes_to_the_receiver(
    scene: Connection, recv: Any, queue: str, preference: str | None, address: str, headers: Any
) -> None:
    """A suspended awaiter becomes ready at the receiver of the callback that fired, and nowhere else; once it
    is acquired the receiver is spent, and the next time it is found at its target."""
    ask(scene, callback(recv=recv))
    ask(scene, park("t", "x"))
    ask(scene, completion("resolve", "x"))
    assert routed(scene) == ("pending", queue, preference or "P", address, headers)
    assert scene.execute("select id from durable.task_offer('g')").fetchall() == []
    assert scene.execute("select id from durable.task_offer(%s)", (queue,)).fetchall() == [("t",)]
    ask(scene, acquire("t", 1))
    assert routed(scene)[:2] == ("acquired", "g") and routed(scene)[3:] == (None, None)
    ask(scene, ("select durable.task_release('t', 2)", ()))
    assert routed(scene)[:2] == ("pending", "g")


def test_without_a_callback_the_target_is_resumed(scene: Connection) -> None:
    """A suspend of the newer API resumes at the target, also beside callbacks for other promises."""
    ask(scene, creation("y"))
    ask(scene, callback(awaited="y"))
    ask(scene, park("t", "x", "y"))
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[:2] == ("pending", "g")
    assert ask(scene, ("select array_agg(awaited_id) from durable._resumes", ())) == (["x"],)


def test_a_callback_alone_resumes(scene: Connection) -> None:
    """A callback registered before a suspend for something else resumes all the same."""
    ask(scene, creation("y"))
    ask(scene, callback(awaited="y"))
    ask(scene, park("t", "x"))
    ask(scene, completion("reject", "y"))
    assert routed(scene)[:2] == ("pending", "g2")
    assert ask(scene, ("select array_agg(awaited_id) from durable._resumes", ())) == (["y"],)


@pytest.mark.parametrize("early", [True, False])
def test_a_callback_past_its_timeout_is_dropped(scene: Connection, clock: Clock, early: bool) -> None:
    """From its own timeout on a callback does not fire: it is gone, and nobody is resumed by it."""
    ask(scene, creation("y"))
    ask(scene, callback(awaited="y", timeout_at=clock.now_ms + 10))
    ask(scene, park("t", "x"))
    clock.advance(9 if early else 10)
    ask(scene, completion("resolve", "y"))
    assert routed(scene)[:2] == (("pending", "g2") if early else ("suspended", "g"))
    assert [row[:3] for row in rows(scene)] == [("x", "t", "")]


def test_a_dropped_callback_leaves_the_suspend(scene: Connection, clock: Clock) -> None:
    """If a suspend awaits the same promise, it resumes at the target when the callback's time is over."""
    ask(scene, callback(timeout_at=clock.now_ms + 10))
    ask(scene, park("t", "x"))
    clock.advance(10)
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[:2] == ("pending", "g")
    assert rows(scene) == []


def test_a_callback_that_ran_out_strands_nobody(scene: Connection, clock: Clock) -> None:
    """The last callback of a suspended task runs out while its promise is pending: the task is offered again,
    as one without callbacks is."""
    ask(scene, callback(timeout_at=clock.now_ms + 10))
    ask(scene, ("select * from durable.task_complete_v0('t', 1)", ()))
    assert routed(scene)[0] == "suspended"
    clock.advance(9)
    tick(scene)
    assert routed(scene)[0] == "suspended"
    clock.advance(1)
    tick(scene)
    assert routed(scene)[:2] == ("pending", "g")
    assert rows(scene) == []
    assert ask(scene, ("select count(*) from durable.task_offer('g')", ())) == (1,)


@pytest.mark.parametrize("left", [False, True])
def test_a_sweep_rests_where_nothing_runs_out(scene: Connection, clock: Clock, left: bool) -> None:
    """It comes back within a minute where callbacks are left, and seldom where there are none."""
    ask(scene, callback(timeout_at=clock.now_ms + 10))
    if left:
        ask(scene, creation("y"))
        ask(scene, callback("c2", awaited="y"))
    clock.advance(10)
    tick(scene)
    due_in = "select due_at - durable._now_ms() from durable._retention where subject = 'callbacks'"
    assert ask(scene, (due_in, ())) == (60_000 if left else 3_600_000,)


@pytest.mark.parametrize("late", [0, 5])
def test_a_promise_that_settles_too_late_offers_the_task_again(
    scene: Connection, clock: Clock, late: int
) -> None:
    """The same if the promise settles at that instant or later, before a tick has looked."""
    ask(scene, callback(timeout_at=clock.now_ms + 10))
    ask(scene, ("select * from durable.task_complete_v0('t', 1)", ()))
    clock.advance(10 + late)
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[:2] == ("pending", "g")
    assert rows(scene) == []


def test_another_callback_keeps_the_task_suspended(scene: Connection, clock: Clock) -> None:
    """A task that has another callback waits for that one."""
    ask(scene, creation("y"))
    ask(scene, callback("c1", timeout_at=clock.now_ms + 10))
    ask(scene, callback("c2", awaited="y"))
    ask(scene, ("select * from durable.task_complete_v0('t', 1)", ()))
    clock.advance(10)
    tick(scene)
    assert routed(scene)[0] == "suspended"
    ask(scene, completion("resolve", "y"))
    assert routed(scene)[:2] == ("pending", "g2")


def test_the_instant_of_the_settlement_counts(scene: Connection, clock: Clock) -> None:
    """A promise whose deadline is before the timeout of the callback fires it, whenever the tick comes."""
    ask(scene, create("z", clock.now_ms + 9, external="true"))
    ask(scene, callback(awaited="z", timeout_at=clock.now_ms + 10))
    ask(scene, ("select * from durable.task_complete_v0('t', 1)", ()))
    clock.advance(50)
    ask(scene, ("select durable._settle_due(durable._now_ms(), 10)", ()))
    assert routed(scene)[:2] == ("pending", "g2")


def test_several_callbacks_resume_once(scene: Connection) -> None:
    """Two callbacks on one promise, and one on another, are one resume: at the first receiver, with all wake
    reasons kept for the worker."""
    ask(scene, creation("y"))
    ask(scene, callback("c1", recv="g9"))
    ask(scene, callback("c2", recv="g3"))
    ask(scene, callback("c3", awaited="y", recv="g4"))
    ask(scene, park("t", "x", "y"))
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[:2] == ("pending", "g3")
    ask(scene, completion("resolve", "y"))
    assert routed(scene)[:2] == ("pending", "g3")
    found = ask(scene, ("select array_agg(awaited_id order by 1) from durable._resumes", ()))
    assert found == (["x", "y"],)
    assert rows(scene) == []


@pytest.mark.parametrize("dropped", ["c1", "c3"])
def test_headers_of_the_callback_that_fires(scene: Connection, clock: Clock, dropped: str) -> None:
    """Of several callbacks with one receiver, the headers are those of the first that is still in time."""
    for id_ in ("c1", "c2", "c3"):
        recv = {"type": "http", "data": {"url": "http://h", "headers": {"id": id_}}}
        timeout_at = clock.now_ms + 10 if id_ == dropped else NEVER
        ask(scene, callback(id_, timeout_at=timeout_at, recv=recv))
    ask(scene, park("t", "x"))
    clock.advance(10)
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[3:] == ("http://h", {"id": "c2" if dropped == "c1" else "c1"})


def test_an_awaiter_that_runs_is_not_sent_away(scene: Connection) -> None:
    """A callback that fires while its awaiter is acquired is a wake reason; the task stays where it is."""
    ask(scene, callback())
    ask(scene, completion("resolve", "x"))
    assert routed(scene) == ("acquired", "g", None, None, None)
    assert ask(scene, ("select array_agg(awaited_id) from durable._resumes", ())) == (["x"],)


def test_a_halted_awaiter(scene: Connection) -> None:
    """A resume of a task that is set aside waits until it is continued."""
    ask(scene, callback())
    ask(scene, ("select durable.task_halt('t')", ()))
    ask(scene, completion("resolve", "x"))
    assert routed(scene)[0] == "halted"
    ask(scene, ("select durable.task_continue('t')", ()))
    assert routed(scene)[0] == "pending"


def test_a_run_that_waits_for_all(conn: Connection) -> None:
    """A callback on a child that its run awaits anyway does not count twice: the run wakes when both of its
    children have completed."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    ask(conn, callback(awaited="r.0", root="r"))
    end = report(held, end=suspend(0, 1, kind="all"), seen=answer.next_of(held))
    take_turn(conn, "W", end)
    ask(conn, completion("resolve", "r.0", data="1"))
    first = ask(conn, ("select status, wait_left from durable._executions where id = 'r'", ()))
    assert first == ("blocked", 1)
    assert routed(conn, "r")[0] == "suspended"
    ask(conn, completion("resolve", "r.1", data="2"))
    assert routed(conn, "r")[0] == "pending"


def test_a_run_that_is_awaited(scene: Connection) -> None:
    """A task may await a run through a callback, and is resumed at its receiver when the run ends."""
    held = begin_run(scene, "r")
    ask(scene, callback(awaited="r"))
    ask(scene, park("t", "x"))
    take_turn(scene, "W", report(held, end=complete('"done"')))
    assert routed(scene)[:2] == ("pending", "g2")


def test_a_child_run_that_is_awaited_from_outside(scene: Connection) -> None:
    """A callback on the child of a run leaves the run's own wait as it is."""
    held = begin_run(scene, "r")
    answer = take_turn(scene, "W", report(held, commands=[run(0, queue="kids")]))
    take_turn(scene, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(scene, callback(awaited="r.0"))
    ask(scene, park("t", "x"))
    kid = claim(scene, "K", "kids")
    take_turn(scene, "K", report(kid, end=complete()))
    assert routed(scene)[:2] == ("pending", "g2")
    assert routed(scene, "r")[0] == "pending"


# -- subscribing


@pytest.mark.parametrize(
    ("recv", "address"),
    [
        ("poll://g:w", "poll://uni@g/w"),
        (POLL, "poll://uni@g2/w"),
        ({"type": "http", "data": {"url": "http://h/x"}}, "http://h/x"),
        ("g", "poll://any@g"),
    ],
)
def test_a_subscription(scene: Connection, recv: Any, address: str) -> None:
    """Who subscribes is told once, at the address of its receiver; a second time changes nothing."""
    status, word, made, record = ask(scene, subscription(recv=recv))
    assert (status, word, record["state"]) == (201, "OK", "PENDING")
    assert (made["id"], made["promiseId"], made["timeout"], made["recv"]) == ("s", "x", NEVER, address)
    assert ask(scene, subscription(recv=recv)) == (200, "deduplicated", made, record)
    ask(scene, completion("resolve", "x"))
    assert scene.execute("select promise_id, address from durable._unblocks").fetchall() == [("x", address)]


def test_a_subscription_that_comes_too_late(scene: Connection, clock: Clock) -> None:
    """The answer is the notification, for a completed promise and for one past its deadline; no promise is an
    answer too."""
    ask(scene, completion("cancel", "x", data="7"))
    status, word, made, record = ask(scene, subscription())
    assert (status, word, made, record["value"]) == (200, "already canceled", None, {"data": "7"})
    ask(scene, creation("late", timeout_at=clock.now_ms + 1))
    clock.advance(1)
    assert ask(scene, subscription("late"))[:2] == (200, "already timedout")
    assert ask(scene, subscription("nothing")) == (404, "not found", None, None)
    assert scene.execute("select 1 from durable._unblocks").fetchall() == []


@pytest.mark.parametrize("recv", [None, "a b", HTTP, {"type": "poll", "data": {}}], ids=repr)
def test_a_subscription_without_an_address(scene: Connection, recv: Any) -> None:
    """A receiver that cannot be routed, or whose headers nobody would keep, is refused."""
    assert refusal(scene, subscription(recv=recv)) == "WF004"


def test_an_error_shows_no_secrets_of_a_receiver(scene: Connection) -> None:
    """A receiver that is refused is told by its kind: headers and URL do not reach an error or a log."""
    for url, headers in (("http://h", {"Authorization": "secret"}), ("ftp://user:secret@h", {})):
        recv = {"type": "http", "data": {"url": url, "headers": headers}}
        for call in (
            subscription("x", recv),
            callback(recv=recv) if "ftp" in url else subscription("x", recv),
        ):
            with pytest.raises(psycopg.Error) as caught, scene.transaction():
                ask(scene, call)
            assert caught.value.sqlstate == "WF004"
            assert "secret" not in f"{caught.value} {caught.value.diag.message_primary}"
