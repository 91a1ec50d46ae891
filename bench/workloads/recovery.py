"""Ours: a worker is killed with `kill -9` while it has a hundred runs, and another one started at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg

from bench.record import Measure
from bench.systems import stop
from bench.workloads import Site
from bench.workloads.speed import warmed

_RUNS = 100


def recovery(site: Site) -> Iterator[Measure]:
    """Seconds from the kill until all runs are done, with default settings; ten steps of 0.1 s each."""
    system, dsn = site.system, site.dsn
    workers = [system.start_worker(dsn)]
    try:
        asyncio.run(warmed(site, "noop"))
        with psycopg.connect(dsn, autocommit=True) as conn:
            already = system.settled(conn)
            with system.fill(dsn, "slow", _RUNS, analyze=False) as gate:
                gate()
                _until(conn, f"select count(*) = {_RUNS} from durable._tasks where state = 'acquired'")
            time.sleep(0.35)  # in the middle of a step, a few of them recorded
            assert system.settled(conn) == already, "the runs were done before the worker was killed"
            workers[0].kill()
            begin = time.perf_counter()
            workers.append(system.start_worker(dsn))
            while system.settled(conn) < already + _RUNS:
                time.sleep(0.01)
            spent = time.perf_counter() - begin
    finally:
        for worker in workers:
            stop(worker)
    yield Measure("killed worker: all 100 runs done", spent, "s", "less")


def _until(conn: psycopg.Connection[tuple[bool]], question: str) -> None:
    while conn.execute(question.encode()).fetchone() != (True,):
        time.sleep(0.01)
