"""Ours: how soon a run continues after a user's transaction has locked it for longer than its lease."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from bench.record import Measure
from bench.workloads import Site

_ROWS = "select count(*) from durable.journal_events where id = %s"


def holds(site: Site) -> Iterator[Measure]:
    """From the commit to the next row of the journal, for runs that were locked one after the other."""
    hold_s, times = (2.0, 3) if site.quick else (20.0, 3)
    with psycopg.connect(site.dsn, autocommit=True) as conn, site.system.workers(site.dsn):
        spent = [_held(site.dsn, conn, f"held-{number}", hold_s) for number in range(times)]
    yield Measure("held run goes on after the commit, p50", statistics.median(spent), "ms", "less")
    yield Measure("held run goes on after the commit, longest", max(spent), "ms", "less")


def _held(dsn: str, conn: psycopg.Connection[Any], run: str, hold_s: float) -> float:
    conn.execute("select durable.start('slow', '[1]', id => %s, any_workflow => true)", (run,))
    _until_rows(conn, run, more_than=2)
    with psycopg.connect(dsn) as user:
        user.execute("select durable.signal(%s, 'unheard', '1')", (run,))
        time.sleep(hold_s)
        before = _rows(conn, run)
        user.commit()
        begin = time.perf_counter()
        # the first row is the signal's own
        _until_rows(conn, run, more_than=before + 1)
        return (time.perf_counter() - begin) * 1000


def _until_rows(conn: psycopg.Connection[Any], run: str, *, more_than: int) -> None:
    until = time.monotonic() + 60
    while _rows(conn, run) <= more_than:
        if time.monotonic() > until:
            raise TimeoutError(f"run {run} does not go on")
        time.sleep(0.005)


def _rows(conn: psycopg.Connection[Any], run: str) -> int:
    row = conn.execute(_ROWS, (run,)).fetchone()
    assert row is not None
    return int(row[0])
