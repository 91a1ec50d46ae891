"""Ours: the cost of a start and a no-op beside a million finished runs, compared with a database of few. A
machine's speed changes within the minutes that a million runs take, so both databases are measured in turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import psycopg

from bench import server
from bench.record import Measure
from bench.workloads import Site
from bench.workloads.speed import starts, wait, warmed

_FEW = "bench_few_runs"
_PAIRS = 3
_BATCH = 10_000
_MOST_WAITING = 50_000


def growth(site: Site) -> Iterator[Measure]:
    """The same measurements in a database with a million real runs and in one with few, in turns."""
    runs = site.size(1_000_000, 10_000)
    few = replace(site, dsn=server.create(site.dsn, _FEW))
    try:
        site.system.install(few.dsn)
        with (
            psycopg.connect(few.dsn, autocommit=True) as empty,
            psycopg.connect(site.dsn, autocommit=True) as full,
        ):
            with site.system.workers(site.dsn):
                asyncio.run(warmed(site, "noop"))
                _fill(site, full, runs)
            with few.system.workers(few.dsn):
                asyncio.run(warmed(few, "noop"))
                _drained(few, empty, site.size(_BATCH))
            pairs = [(_measured(few, empty), _measured(site, full)) for _ in range(_PAIRS)]
    finally:
        server.drop(site.dsn, _FEW)
    for number, what in enumerate(("a no-op", "a start")):
        name = what.removeprefix("a ")
        here, there = ([each[number] for each in side] for side in zip(*pairs, strict=True))
        yield Measure(f"{name}, few finished runs", median(here), "ms", "less")
        yield Measure(f"{name}, {runs:,} finished runs", median(there), "ms", "less")
        ratios = [one / other for one, other in zip(there, here, strict=True)]
        yield Measure(f"time of {what}, full to empty", median(ratios), "x", "less")


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
