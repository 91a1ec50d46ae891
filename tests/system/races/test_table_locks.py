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


# what is called more seldom, with the table for which it would wait
SELDOM = {
    "idle": (f"{WORKER}idle_v1('W', 'a', '{{default}}', '{{}}', '{{}}', 15000, 5000)", "_workers"),
    "keep": (f"{WORKER}keep_v1('W', 'r')", "_workers"),
    "watch": (f"{WORKER}watch_v1('W')", "_workers"),
    "blocked": (f"{WORKER}blocked_v1('W', '{{r}}')", "_workers"),
    "unknown": (f"{WORKER}release_unknown_v1('W', '{{}}', '{{}}')", "_tasks"),
    "journal": (f"{WORKER}journal_v1('W', 1, 'r', 1)", "_executions"),
    "apart": (f"{WORKER}claim_apart_v1('W', '{{default}}', '{{1:w1}}', '{{ab}}', 1, 4, 15000)", "_tasks"),
    "schedules": (f"""{WORKER}schedules_v1('{{w}}', '[]')""", "schedules"),
    "services": ("select durable.services_due_v1()", "_services"),
    "service": ("select durable.next_service_v1()", "_services"),
    "lease": ("select durable.call_lease_v1('W', '{a}', 15000, 4)", "_adapters"),
    "release": ("select durable.call_release_v1('\\x00', 1, 'gone')", "_tasks"),
    "sweep": ("select durable.call_sweep_v1()", "_call_attempts"),
}


def is_refused(dsn: str, table: str, text: str, *values: object) -> bool:
    """Whether a statement in a session of a pooler is refused while a user has locked the table."""
    with psycopg.connect(dsn) as user, psycopg.connect(dsn) as pooled:
        user.execute(f"lock table durable.{table} in access exclusive mode".encode())
        pooled.execute("set local lock_timeout = 0; set local statement_timeout = '20s'")
        try:
            pooled.execute(text.encode(), values)
        except psycopg.errors.LockNotAvailable:
            pooled.rollback()
            return True
    return False


@pytest.mark.sample(8)
@pytest.mark.parametrize("table", ["_workers", "_tasks", "_executions", "settings"])
@pytest.mark.parametrize("name", [*STATEMENTS, "report"])
def test_nothing_waits_for_a_locked_table(dsn: str, conn: Connection, name: str, table: str) -> None:
    """It answers, or is refused with 55P03."""
    held: Held = begin_run(conn, "r")
    conn.execute(STATEMENTS["hello"].encode())
    text, values = turn("W", report(held, end=complete())) if name == "report" else (STATEMENTS[name], ())
    is_refused(dsn, table, text, *values)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SELDOM)
def test_nothing_waits_that_is_called_seldom(dsn: str, name: str) -> None:
    """It is refused with 55P03."""
    text, table = SELDOM[name]
    assert is_refused(dsn, table, text)


def test_whatever_a_worker_calls_has_its_limit(conn: Connection) -> None:
    """But what waits like a verb, and what calls functions of users, which wait as they like."""
    without = conn.execute(
        "select proname from pg_proc where pronamespace = 'durable'::regnamespace "
        "and proname ~ '^(worker_|services_due|next_service|tick|call_(lease|release|sweep|report|integr))'"
        " and proname ~ '_v1$' and not coalesce(proconfig::text, '') ~ 'lock_timeout=' order by 1"
    ).fetchall()
    assert without == [("worker_commit_v1",), ("worker_sql_v1",)]
