"""Schedules of a role with queues of its own."""

from __future__ import annotations

from tests.core.sql.test_own_queues import SCHEDULE, hello
from tests.support.verbs import Connection, ask


def test_schedules(conn: Connection) -> None:
    """A schedule takes the queue that is declared when it is made or replaced; the same call finds it."""
    found = []
    for queue, replace in (
        *(("reports", False), ("slow", False), ("slow", True)),
        *((None, False), (None, True)),
    ):
        hello(conn, queue)
        ask(conn, (SCHEDULE.format(replace), ()))
        found += ask(conn, ("select queue from durable._schedules", ()))
    assert found == ["reports", "reports", "slow", "slow", "default"]
