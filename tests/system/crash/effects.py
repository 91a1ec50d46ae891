"""What crash tests ask the database afterwards. Reads tables; asserts nothing."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.system.crash.job import EFFECTS

REPEATED = """
select e.run, e.child, e.step, e.at_ms, j.ts
from public.effects e
join durable._promises p on p.id = e.run
join durable._journal j on j.execution = p.head and j.child = e.child
     and durable._completes_step(j.type)
where e.at_ms > j.ts
"""

MISSING = """
select r.run, r.child
from (select p.id as run, j.child from durable._journal j join durable._promises p on p.head = j.execution
      where durable._holds_result(j.type)) r
where not exists (select from public.effects e where e.run = r.run and e.child = r.child)
"""


def prepare(dsn: str) -> None:
    """Make the table that steps write their traces to."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(EFFECTS)


def repeated(dsn: str) -> list[tuple[Any, ...]]:
    """Traces of steps that ran after their result had been recorded."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(REPEATED).fetchall()


def missing(dsn: str) -> list[tuple[Any, ...]]:
    """Recorded steps that left no trace."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(MISSING).fetchall()


def extra(dsn: str) -> int:
    """Traces beyond one for each attempt that the journal knows of: bodies that ran and were killed before
    they were recorded."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select count(*) - (select count(*) from durable.journal_events where event = 'InvokeStarted'"
            " and promise_id in (select run || '.' || child from public.effects)) from public.effects"
        ).fetchone()
    assert row is not None
    return int(row[0])
