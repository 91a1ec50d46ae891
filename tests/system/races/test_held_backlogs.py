"""Law: whoever has locked the backlog of a run by hand stops nobody: the run receives from it, is sent
signals, begins other generations and attempts, and is forked. Only its own removal waits for the commit.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.features.sql.test_backlog import Consumer
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, complete, send

PURGE = ("select promises from durable.purge('0')", ())


@pytest.fixture
def conn(session: Connection) -> Connection:
    """A session that gives up what it would have to wait for."""
    session.execute("set lock_timeout = '400ms'")
    return session


def left_unread(conn: Connection, clock: Clock, name: str) -> Consumer:
    """A run in its second generation, with three signals that the first had not received."""
    run = Consumer(conn, clock, name)
    for number in range(3):
        ask(conn, send(name, "s", str(number), key=str(number)))
    run.renew()
    return run


def test_a_run_whose_backlog_is_locked(dsn: str, conn: Connection, clock: Clock) -> None:
    """It lives on, in one session with a timeout; what is left behind then goes with a later generation."""
    run = left_unread(conn, clock, "h")
    numbers = "select coalesce(array_agg(number order by number), '{}') from durable._backlog"
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._backlog for update").rowcount == 3
        run.receive("s")
        run.renew(error='{"type": "ValueError", "message": "no"}')
        assert ask(conn, send("h", "s", "3", key="3")) == (4, True, False)
        assert ask(conn, send("h", "s", "9", key="2")) == (3, False, False)
        for number in range(4):
            run.receive("s")
            assert run.received() == [*range(number + 1)]
        ask(conn, ("select durable.fork('h', seq => 1, new_id => 'f', queue => 'other')", ()))
        run.renew()
        assert ask(conn, (numbers, ())) == ([1, 2, 3],)
        ask(conn, send("h", "s", "4"))
        run.receive("s")
        assert run.received() == [4]
        user.commit()
    run.renew()
    assert ask(conn, (numbers, ())) == ([],)


def test_a_removal_waits_for_its_own_run_alone(dsn: str, conn: Connection, clock: Clock) -> None:
    """A purge removes the other run; after the commit it removes this one."""
    for name in "hf":
        left_unread(conn, clock, name).report(end=complete())
    clock.advance(1000)
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._backlog where id = 'h' for update").rowcount == 3
        ask(conn, PURGE)
        assert ask(conn, ("select array_agg(id) from durable._promises", ())) == (["h"],)
        user.commit()
    ask(conn, PURGE)
    assert ask(conn, ("select count(*) from durable._backlog", ())) == (0,)
