"""Law: a hint is sent by whoever made work, at most once a channel in 50 ms where plain SQL sends it, and
never holds anybody up."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    complete,
    create,
    done,
    report,
    settle,
    start,
    take,
    take_turn,
)


@pytest.fixture
def conn(session: Connection) -> Connection:
    """Notifications leave with a commit: a session that commits each statement, in a database of its own."""
    return session


@pytest.fixture
def heard(dsn: str, direct: str) -> Iterator[Connection]:
    """A session that listens on both channels."""
    with psycopg.connect(direct, autocommit=True) as listener:
        listener.execute("listen durable_ready")
        listener.execute("listen durable_settled")
        yield listener


def drain(listener: Connection) -> list[str]:
    """Channels of what has arrived; what was committed before is there after a round trip."""
    listener.execute("select 1")
    return sorted(message.channel for message in listener.notifies(timeout=0))


@pytest.mark.parametrize(
    ("ready", "settled", "channels"),
    [
        (True, False, ["durable_ready"]),
        (False, True, ["durable_settled"]),
        (True, True, ["durable_ready", "durable_settled"]),
    ],
)
def test_hint_v1(
    conn: Connection,
    heard: Connection,
    ready: bool,
    settled: bool,
    channels: list[str],
) -> None:
    """The hint of our processes goes to the channels that it names, without a payload."""
    ask(conn, ("select durable.hint_v1(%s, %s)", (ready, settled)))
    assert drain(heard) == channels


def test_a_turn_reports_that_it_settled_something(conn: Connection, heard: Connection) -> None:
    """If it is asked to, and only if it settles something; no hint of plain SQL is held back for it."""
    first, other = begin_run(conn, "r"), begin_run(conn, "s")
    drain(heard)
    take_turn(conn, "W", report(first, end=complete()))
    take_turn(conn, "W", report(other, outcomes=[done(0)]), tells=True)
    assert drain(heard) == []
    take_turn(conn, "W", report(other, end=complete(), seen=other.next + 3), tells=True)
    assert drain(heard) == ["durable_settled"]


@pytest.mark.parametrize(("mode", "expected"), [("off", 0), ("coalesce", 1), ("commit", 3)])
def test_modes(conn: Connection, clock: Clock, heard: Connection, mode: str, expected: int) -> None:
    """Off sends none, coalesce one for starts that follow each other closely, commit one for each."""
    ask(conn, ("select durable.set_setting('hints', %s)", (mode,)))
    for number in range(3):
        ask(conn, start(f"r{number}"))
    assert drain(heard).count("durable_ready") == expected
    clock.advance(50)
    ask(conn, start("later"))
    assert drain(heard).count("durable_ready") == (1 if expected else 0)


def test_a_session_knows_for_50_ms_that_a_hint_was_sent(
    conn: Connection, clock: Clock, heard: Connection
) -> None:
    """From the instant of the hint, not from that at which the session saw it; a value that is none, or is
    of another time, counts for nothing."""
    for wait_ms, expected in ((0, 1), (40, 0), (20, 1), (5, 0)):
        clock.advance(wait_ms)
        conn.execute("select durable.start('w')")
        assert drain(heard).count("durable_ready") == expected, wait_ms
    for value in ("x", "", "-5", "9" * 16, "9" * 40):
        clock.advance(60)
        conn.execute("select set_config('durable.durable_ready', %s, false)", (value,))
        conn.execute("select durable.start('w')")
        assert drain(heard) == ["durable_ready"], value


CALLS: dict[str, tuple[Call, list[str]]] = {
    "start": (start("n"), ["durable_ready"]),
    "start_again": (start("r"), []),
    "create": (create("e", external="true"), []),
    "create_task": (create("n", target="g"), ["durable_ready"]),
    "settle": (settle("x"), ["durable_settled"]),
    "settle_awaited": (settle("y"), ["durable_ready", "durable_settled"]),
    "release": (("select durable.task_release('t', 1)", ()), ["durable_ready"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations_that_hint(conn: Connection, clock: Clock, heard: Connection, name: str) -> None:
    """An operation hints when it made a task ready or settled something, and only then."""
    for promise in ("x", "y"):
        ask(conn, create(promise, external="true"))
    take(conn, "t")
    take(conn, "waiter")
    ask(conn, ("select durable.task_suspend('waiter', 1, '{y}')", ()))
    ask(conn, start("r"))
    clock.advance(1000)
    drain(heard)
    call, channels = CALLS[name]
    ask(conn, call)
    assert drain(heard) == channels


def test_a_rollback_sends_nothing(dsn: str, clock: Clock, heard: Connection) -> None:
    """A start that is rolled back leaves no hint and does not swallow the next one."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select durable.start('w', id => 'gone')")
        conn.execute("select durable.start('w')")
        conn.rollback()
        assert drain(heard) == []
        conn.execute("select durable.start('w', id => 'here')")
        conn.commit()
    assert drain(heard) == ["durable_ready"]


@pytest.mark.parametrize("first", [True, False])
def test_a_transaction_that_stays_open_keeps_back_no_hint(
    dsn: str, conn: Connection, clock: Clock, heard: Connection, first: bool
) -> None:
    """A user has started a run and not committed, and has locked the rows by which hints are kept apart. The
    starts of others hint 50 ms later, and wait for nothing.
    """
    if not first:
        ask(conn, start("before"))
        clock.advance(50)
    drain(heard)
    conn.execute("set lock_timeout = '400ms'")
    with psycopg.connect(dsn) as user:
        user.execute("select durable.start('w', id => 'open')")
        user.execute("select from durable._hints for update")
        for number in range(3):
            clock.advance(50)
            ask(conn, start(f"r{number}"))
            assert drain(heard) == ["durable_ready"]


def test_listeners_become_one_unblock_each(conn: Connection) -> None:
    """Settlement turns each listener into one row to deliver, kept until acknowledged."""
    ask(conn, create("x", external="true"))
    for address in ("g", "poll://uni@g/w", "g"):
        ask(conn, ("select durable.promise_register_listener('x', %s)", (address,)))
    ask(conn, settle("x"))
    ask(conn, settle("x"))
    rows = conn.execute("select promise_id, address, attempts from durable._unblocks order by 2").fetchall()
    assert rows == [("x", "poll://any@g", 0), ("x", "poll://uni@g/w", 0)]
    assert conn.execute("select from durable._listeners").fetchall() == []
