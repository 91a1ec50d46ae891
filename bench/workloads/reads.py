"""Ours: queries of people beside a million finished runs, 10,000 of them of the last hour; none is live."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from bench.record import Measure
from bench.workloads import Site
from pyengine.doors.admin import queries_runs
from tests.support.finished import fill

_TIMES = 5
_FAILED = "select * from durable.runs where state = 'failed'"
_READS = {
    "newest five": "select id, state, waits_for, age from durable.newest limit 5",
    "failed, 20": f"{_FAILED} limit 20",
    "failed in the last hour": f"{_FAILED} and settled_at > now() - interval '1 hour'",
    "running, queued or waiting, none there": (
        "select * from durable.runs where state in ('running', 'queued', 'waiting')"
    ),
    "not settled, none there": "select * from durable.runs where settled_at is null",
    "run by id": "select * from durable.runs where id = '{id}'",
    "events of a run": "select * from durable.journal_events where id = '{id}'",
    "steps of a run": "select * from durable.steps where run = '{id}'",
    "promise by id": "select * from durable.promises where id = '{id}'",
    "pending promises, 10": "select * from durable.promises where state = 'pending' limit 10",
    "promise_search, pending, none there": "select * from durable.promise_search('pending')",
    "newest of one of ten workflows": "select * from durable.newest where workflow = 'w3' limit 20",
    "newest of a workflow with five old runs": (
        "select * from durable.newest where workflow = 'rare' limit 20"
    ),
    "runs by state, counted": "select * from durable.counts",
}
_CHECK = "select * from durable.check(since => '1 hour')"
_HAS_CHECK = """select exists (
  select from pg_proc p where p.pronamespace = 'durable'::regnamespace and p.proname = 'check'
  and 'since' = any (p.proargnames))"""


def reads(site: Site) -> Iterator[Measure]:
    """Milliseconds of each statement, as its caller sees them: the median of five."""
    count = site.size(1_000_000, 10_000)
    with (
        psycopg.connect(site.dsn, autocommit=True) as conn,
        psycopg.connect(site.dsn, autocommit=True) as command,
    ):
        # the driver has no value for an infinite deadline
        conn.adapters.register_loader("timestamptz", TextLoader)
        fill(conn, count, count // 100)
        (id_,) = _row(
            conn, "select id from durable._executions order by execution offset %s limit 1", count // 2
        )
        yield _measured(
            "pyengine ps", lambda: queries_runs.runs(command, queries_runs.Filter(roots_only=True, limit=21))
        )
        for state in ("failed", "waiting"):
            wanted = queries_runs.Filter(state=state, limit=21)
            yield _measured(
                f"pyengine ps -s {state}", lambda wanted=wanted: queries_runs.runs(command, wanted)
            )
        for name, text in _READS.items():
            asked = text.replace("{id}", str(id_)).encode()
            yield _measured(name, lambda asked=asked: conn.execute(asked).fetchall())
        if _row(conn, _HAS_CHECK)[0]:
            yield _measured("check(since => '1 hour')", lambda: conn.execute(_CHECK).fetchall())


def _measured(what: str, ask: Callable[[], object]) -> Measure:
    spent = []
    for _ in range(_TIMES):
        begin = time.perf_counter()
        ask()
        spent.append((time.perf_counter() - begin) * 1000)
    return Measure(f"read: {what}", statistics.median(spent), "ms", "less")


def _row(conn: psycopg.Connection[Any], text: str, *values: object) -> tuple[Any, ...]:
    row = conn.execute(text.encode(), values).fetchone()
    assert row is not None
    return tuple(row)
