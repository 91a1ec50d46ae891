"""Law: a lease that a start gives is younger than its run's number; a renewal is told the newest one."""

from __future__ import annotations

import pytest

from tests.core.sql.test_workers import Ears, begin, conn, ears, handed
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask

__all__ = ["conn", "ears"]

NEWEST: Call = ("select durable.worker_newest_v1()", ())


@pytest.mark.session("notes")
@pytest.mark.parametrize("key", [None, "k"])
def test_a_hand_off_is_leased_after_its_number_is_drawn(
    dsn: str, conn: Connection, clock: Clock, ears: Ears, key: str | None
) -> None:
    """A worker knows until when it has the lease by what number of a run it heard of before."""
    conn.execute(
        "create or replace function durable._next_execution() returns bigint language sql volatile as $$"
        " update test_clock.instant set now_ms = now_ms + 7;"
        " select nextval('durable._executions_execution_seq') $$"
    )
    before_ms = clock.now_ms
    assert handed(conn, "r", key=key)
    assert ask(conn, ("select expires_at - ttl from durable._tasks", ())) == (before_ms + 7,)


def test_the_newest_number_is_known_before_its_run_is(stage: Stage, conn: Connection) -> None:
    """None is there at first; then the highest counts that was drawn, also in a transaction that is open."""
    assert ask(conn, NEWEST) == (0,)
    starter = stage.player("starter")
    starter.begin()
    assert starter.do(*begin("a")).rows() == [("a", True, False)]
    assert ask(conn, NEWEST) == (1,)
    starter.rollback()
    assert ask(conn, NEWEST) == (1,)
