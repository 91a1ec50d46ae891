"""Law: what a worker calls by itself waits a second at most for a table that somebody has locked, also in a
session of a pooler, where nobody has set a `lock_timeout`. One that waited on would be given up by its
worker, sent again, and keep a session of the pool each time.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.support.verbs import Connection, Held, begin_run, complete, report, turn

WORKER = "select * from durable.worker_"
STATEMENTS = {
    "hello": f"{WORKER}hello_v1('W', '{{default}}', '{{w}}', '{{1}}', null, '{{ab}}')",
    "heartbeat": f"{WORKER}heartbeat_v1('W', '{{}}', '{{}}', '{{}}', 0)",
    "present": f"{WORKER}present_v1('W', true)",
    "bye": f"{WORKER}bye_v1('W')",
    "tick": "select durable.tick_v1(10)",
    "claim": f"{WORKER}turn_v1('W', '{{default}}', '{{1:w1}}', '{{ab}}', 4, '[]', 15000)",
}


@pytest.mark.parametrize("table", ["_workers", "_tasks", "_executions", "settings"])
@pytest.mark.parametrize("name", [*STATEMENTS, "report"])
def test_nothing_waits_for_a_locked_table(dsn: str, conn: Connection, name: str, table: str) -> None:
    """It answers, or is refused with 55P03."""
    held: Held = begin_run(conn, "r")
    conn.execute(STATEMENTS["hello"].encode())
    text, values = turn("W", report(held, end=complete())) if name == "report" else (STATEMENTS[name], ())
    with psycopg.connect(dsn) as user, psycopg.connect(dsn) as pooled:
        user.execute(f"lock table durable.{table} in access exclusive mode".encode())
        pooled.execute("set local lock_timeout = 0; set local statement_timeout = '20s'")
        try:
            pooled.execute(text.encode(), values)
        except psycopg.errors.LockNotAvailable:
            pooled.rollback()
