"""The health of an engine with a worker that has ticked."""

from __future__ import annotations

import psycopg

from tests.core.worker.test_trouble import tick_and_report

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_worker_that_ticks_is_healthy(dsn: str, conn: Connection) -> None:
    """No row of the view is wrong, because the worker has reported the instant of its last tick."""
    tick_and_report(dsn, conn)
    assert conn.execute("select count(*) from durable.health where not ok").fetchone() == (0,)
