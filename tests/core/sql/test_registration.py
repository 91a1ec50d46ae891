"""Law: a callback or a listener is registered while both sides live and somebody outside ends the wait;
else the answer says why, or is itself the end of the wait."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    create,
    done,
    refusal,
    report,
    settle,
    take,
    take_turn,
)


def callback(awaited: str | None, awaiter: str | None) -> Call:
    """promise.register_callback."""
    return "select state from durable.promise_register_callback(%s, %s)", (awaited, awaiter)


@pytest.mark.parametrize(
    ("awaited", "awaiter", "code", "registered"),
    [
        ("t", "t", "WF004", 0),
        (None, "t", "WF004", 0),
        ("none", "t", "WF001", 0),
        ("none", "nobody", "WF001", 0),
        ("x", "nobody", "WF010", 0),
        ("x", "internal", "WF010", 0),
        ("internal", "t", "WF005", 0),
        ("x", "t", "", 1),
        ("timer", "t", "", 1),
        ("t2", "t", "", 1),
        ("x", "dead", "", 0),
        ("x", "over", "", 0),
        ("settled", "t", "", 0),
        ("due", "t", "", 0),
    ],
)
def test_register_callback(
    conn: Connection, clock: Clock, awaited: str | None, awaiter: str | None, code: str, registered: int
) -> None:
    """The table of protocol.md 2.5: malformed, missing, unsuitable; registered only where both live."""
    ask(conn, ("select durable.set_setting('conformance', 'strict')", ()))
    ask(conn, create("internal"))
    ask(conn, create("timer", clock.now_ms + 900, timer="true"))
    ask(conn, create("due", clock.now_ms + 10, external="true"))
    for name in ("x", "settled"):
        ask(conn, create(name, external="true"))
    ask(conn, settle("settled"))
    for name in ("t", "t2", "over"):
        take(conn, name)
    ask(conn, settle("over"))
    ask(conn, create("dead", clock.now_ms + 10, target="g"))
    clock.advance(10)
    assert refusal(conn, callback(awaited, awaiter)) == code
    if not code:
        state = {"settled": "resolved", "due": "rejected_timedout"}.get(str(awaited), "pending")
        assert ask(conn, callback(awaited, awaiter)) == (state,)
    assert len(conn.execute("select from durable._callbacks").fetchall()) == registered


@pytest.mark.parametrize(
    ("awaited", "address", "code", "registered"),
    [
        ("none", "nowhere://x", "WF004", 0),
        ("x", None, "WF004", 0),
        ("none", "poll://any@g", "WF001", 0),
        ("internal", "poll://any@g", "WF005", 0),
        ("x", "poll://any@g", "", 1),
        ("settled", "poll://any@g", "", 0),
        ("due", "poll://any@g", "", 0),
    ],
)
def test_register_listener(
    conn: Connection, clock: Clock, awaited: str, address: str | None, code: str, registered: int
) -> None:
    """The same for listeners; on a settled promise nothing is registered and no unblock is sent: the answer
    is the notification."""
    ask(conn, ("select durable.set_setting('conformance', 'strict')", ()))
    ask(conn, create("internal"))
    ask(conn, create("due", clock.now_ms + 10, external="true"))
    for name in ("x", "settled"):
        ask(conn, create(name, external="true"))
    ask(conn, settle("settled"))
    clock.advance(10)
    call = ("select state from durable.promise_register_listener(%s, %s)", (awaited, address))
    assert refusal(conn, call) == code
    assert len(conn.execute("select from durable._listeners").fetchall()) == registered
    assert conn.execute("select from durable._unblocks").fetchall() == []


def test_registering_twice_is_one_registration(conn: Connection) -> None:
    """Callbacks are a set, and so are listeners by canonical address."""
    take(conn, "t")
    ask(conn, create("x", external="true"))
    for address in ("g", "poll://g", "poll://any@g"):
        ask(conn, callback("x", "t"))
        ask(conn, ("select durable.promise_register_listener('x', %s)", (address,)))
    assert conn.execute("select awaited_id, awaiter_id from durable._callbacks").fetchall() == [("x", "t")]
    assert conn.execute("select address from durable._listeners").fetchall() == [("poll://any@g",)]


def test_in_the_compatible_profile_whoever_waits_arms_the_deadline(conn: Connection, clock: Clock) -> None:
    """A callback, a listener or a suspend makes an internal promise external, so that the sweep enforces its
    deadline and nobody waits for ever."""
    take(conn, "t")
    take(conn, "t2")
    for name in ("a", "b", "c"):
        ask(conn, create(name, clock.now_ms + 100))
    ask(conn, callback("a", "t"))
    ask(conn, ("select state from durable.promise_register_listener('b', 'poll://any@g')", ()))
    ask(conn, ("select durable.task_suspend('t2', 1, '{c}')", ()))
    clock.advance(100)
    assert ask(conn, ("select durable.tick_v1(10) -> 'promises'", ())) == (3,)
    states = conn.execute("select state from durable._promises where id in ('a', 'b', 'c')").fetchall()
    assert states == [("rejected_timedout",)] * 3
    assert ask(conn, ("select state from durable.task_get('t2')", ())) == ("pending",)


def test_a_local_step_cannot_be_awaited_from_outside(conn: Connection) -> None:
    """It is a promise without a row, its run's own affair: WF005 for callback and listener."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0)]))
    take(conn, "t")
    assert refusal(conn, callback("r.0", "t")) == "WF005"
    assert refusal(conn, ("select durable.promise_register_listener('r.0', 'g')", ())) == "WF005"
