"""Law: what watches the tests can see: the check after each test, the count of deadlocks, the frozen clock,
the stage."""

from __future__ import annotations

import os
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from pyengine.doors.admin import migrate
from tests.support.barrier import Stage, interleavings
from tests.support.clock import Clock
from tests.support.cluster import broken_laws, deadlocks
from tests.system.races.scenes import World

Connection = psycopg.Connection[TupleRow]
TWO_ROWS = (
    "create table public.t (id int primary key, n int not null); insert into public.t values (1, 0), (2, 0)"
)


@pytest.mark.unlawful
def test_a_broken_law_is_seen(dsn: str, conn: Connection) -> None:
    """A run whose execution head is gone is a row of durable.check(), which would fail its test."""
    assert broken_laws(dsn) == []
    conn.execute("select durable.start(workflow => 'w', id => 'r')")
    conn.execute("set session_replication_role = replica")
    conn.execute("delete from durable._executions")
    assert broken_laws(dsn)


@pytest.mark.unlawful
def test_what_a_performance_breaks_is_seen(conn: Connection, clock: Clock) -> None:
    """A law that is broken in a performance of a race is found there, and is not read again in the next."""
    first, second = (World(conn=conn, clock=clock, id=f"s{n}", since=n) for n in (1, 2))
    conn.execute("select durable.start(workflow => 'w', id => 's1')")
    conn.execute("select durable.start(workflow => 'w', id => 's2')")
    assert first.broken() == second.broken() == []
    conn.execute("set session_replication_role = replica")
    conn.execute("delete from durable._executions where id = 's1'")
    assert first.broken()
    assert second.broken() == []


def test_a_deadlock_is_counted(empty_database: Callable[[], str], maintenance: Connection) -> None:
    """Two sessions that lock two rows in opposite order leave a count that would fail their test."""
    dsn = empty_database()
    with psycopg.connect(dsn) as conn:
        conn.execute(TWO_ROWS)
    with Stage(dsn) as stage:
        a, b = stage.player("a"), stage.player("b")
        a.begin()
        b.begin()
        a.do("update public.t set n = 1 where id = 1")
        b.do("update public.t set n = 2 where id = 2")
        waiting = a.do("update public.t set n = 1 where id = 2")
        assert waiting.blocked
        crossing = b.do("update public.t set n = 2 where id = 1")
        errors = {type(each) for each in (waiting.error, crossing.error)}
        assert psycopg.errors.DeadlockDetected in errors
    name = str(conninfo_to_dict(dsn)["dbname"])
    assert deadlocks(maintenance, name) == 1


def test_a_blocked_step_is_seen_and_goes_on(stage: Stage, conn: Connection) -> None:
    """A player that waits for another's row is blocked until that one commits."""
    conn.execute(TWO_ROWS.encode())
    a, b = stage.player("a"), stage.player("b")
    a.begin()
    assert not a.do("update public.t set n = 1 where id = 1").blocked
    waiting = b.do("update public.t set n = n + 10 where id = 1 returning n")
    assert waiting.blocked
    assert not waiting.done
    assert stage.blockers(b.pid) == [a.pid]
    a.commit()
    assert waiting.value() == 11


def test_a_failed_step_keeps_its_error(stage: Stage) -> None:
    """An error is the step's answer; the player can go on."""
    player = stage.player("a")
    step = player.do("select 1 / 0")
    assert isinstance(step.error, psycopg.errors.DivisionByZero)
    assert player.do("select %s::int + 1", (2,)).value() == 3


def test_interleavings_are_all_orders() -> None:
    """Programs of two and two steps have six interleavings, each keeping the order of each program."""
    orders = list(interleavings("ab", "xy"))
    assert len(set(orders)) == 6
    assert all(
        order.index("a") < order.index("b") and order.index("x") < order.index("y") for order in orders
    )


def test_the_clock_stands_until_it_is_moved(clock: Clock, conn: Connection) -> None:
    """The database reads the test's clock, and no time passes by itself."""
    first = conn.execute("select durable._now_ms()").fetchone()
    assert first == (clock.now_ms,)
    assert clock.advance(1500) == clock.now_ms
    assert conn.execute("select durable._now_ms()").fetchone() == (clock.now_ms,)


def test_a_reapplied_logic_brings_the_real_clock_back(clock: Clock, dsn: str, conn: Connection) -> None:
    """Production has no time door: an install overwrites the replaced function."""
    migrate.install(dsn, reapply=True)
    assert conn.execute("select durable._now_ms() <> %s", (clock.now_ms,)).fetchone() == (True,)


def test_seeds_repeat(seed: int, request: pytest.FixtureRequest) -> None:
    """A test's seed depends on the session's seed and its own name alone."""
    assert 0 <= seed < 2**32
    assert os.environ["PYENGINE_TEST_SEED"].isdigit()
    assert seed == request.getfixturevalue("seed")
