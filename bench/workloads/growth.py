"""Ours: the cost of a start and a no-op beside a million finished runs, compared with a database without
runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from bench.record import Measure
from bench.workloads import Site
from bench.workloads.speed import starts, wait, warmed

_BATCH = 10_000
_MOST_WAITING = 50_000


def growth(site: Site) -> Iterator[Measure]:
    """The same measurement twice, with a million real runs in between."""
    runs = site.size(1_000_000, 10_000)
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        with site.system.workers(site.dsn):
            asyncio.run(warmed(site, "noop"))
            _drained(site, conn, site.size(_BATCH))
        empty = _measured(site, conn)
        with site.system.workers(site.dsn):
            _fill(site, conn, runs)
        full = _measured(site, conn)
    yield Measure("no-op, few finished runs", empty[0], "ms", "less")
    yield Measure(f"no-op, {runs:,} finished runs", full[0], "ms", "less")
    yield Measure("time of a no-op, full to empty", full[0] / empty[0], "x", "less")
    yield Measure("start, few finished runs", empty[1], "ms", "less")
    yield Measure(f"start, {runs:,} finished runs", full[1], "ms", "less")
    yield Measure("time of a start, full to empty", full[1] / empty[1], "x", "less")


def _measured(site: Site, conn: psycopg.Connection[Any]) -> tuple[float, float]:
    """Milliseconds for a no-op of a backlog, and for a start."""
    conn.execute("vacuum (analyze)")
    conn.execute("checkpoint")
    started = asyncio.run(starts(site, 1, 0.5 if site.quick else 3))
    with site.system.workers(site.dsn):
        asyncio.run(warmed(site, "noop"))
        _until_left(conn, 0)  # the starts that were measured
        count = site.size(site.system.backlog)
        return _drained(site, conn, count) * 1000 / count, 1000 / started


def _fill(site: Site, conn: psycopg.Connection[Any], runs: int) -> None:
    for _ in range(runs // _BATCH):
        with site.system.fill(site.dsn, "noop", _BATCH, analyze=False) as gate:
            gate()
        _until_left(conn, _MOST_WAITING)
    _until_left(conn, 0)


def _drained(site: Site, conn: psycopg.Connection[Any], count: int) -> float:
    with site.system.fill(site.dsn, "noop", count) as gate:
        begin = gate()
        # what is left is counted, not the finished ones: a million of them would be what is measured
        wait(lambda: count - _left(conn), count)
        return site.system.last_end(conn) - begin


def _left(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from durable._tasks").fetchone()
    assert row is not None
    return int(row[0])


def _until_left(conn: psycopg.Connection[Any], most: int) -> None:
    while _left(conn) > most:
        time.sleep(0.01)
