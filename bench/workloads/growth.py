"""Ours: the cost of a start and a no-op beside a million finished runs, compared with a database with few. A
machine's speed changes within the minutes that a million runs take, so both databases are measured in turns.
The few grow by a backlog with each turn.
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
    small = replace(site, dsn=server.create(site.dsn, _FEW))
    try:
        site.system.install(small.dsn)
        with (
            psycopg.connect(small.dsn, autocommit=True) as of_small,
            psycopg.connect(site.dsn, autocommit=True) as of_full,
        ):
            with site.system.workers(site.dsn):
                asyncio.run(warmed(site, "noop"))
                _fill(site, of_full, runs)
            with small.system.workers(small.dsn):
                asyncio.run(warmed(small, "noop"))
                _drained(small, of_small, site.size(_BATCH))
            pairs = [(_measured(small, of_small), _measured(site, of_full)) for _ in range(_PAIRS)]
    finally:
        server.drop(site.dsn, _FEW)
    for number, what in enumerate(("no-op", "start")):
        beside_few, beside_many = ([each[number] for each in side] for side in zip(*pairs, strict=True))
        yield Measure(f"{what}, few finished runs", median(beside_few), "ms", "less")
        yield Measure(f"{what}, {runs:,} finished runs", median(beside_many), "ms", "less")
        ratios = [many / few for few, many in zip(beside_few, beside_many, strict=True)]
        yield Measure(f"time of a {what}, full to empty", median(ratios), "x", "less")


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
