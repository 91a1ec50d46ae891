"""Ours: the latest start and the latest run while the schema is upgraded, beside a while before."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench.record import Measure
from bench.workloads import Site
from bench.workloads.speed import warmed
from tests.support import next_version
from tests.support.finished import fill

_START = "select durable.start('noop', '[1]', id => %s)"
_AFTER_S = 1.0


class _Starts(threading.Thread):
    """Starts runs, one after the other, and keeps when each began and how long it took."""

    def __init__(self, dsn: str, name: str, *, result: bool) -> None:
        super().__init__(daemon=True)
        self._dsn, self._name, self._result = dsn, name, result
        self._done = threading.Event()
        self.spent: list[tuple[float, float]] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Start runs until `stop`."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            number = 0
            while not self._done.is_set():
                number += 1
                begin = time.perf_counter()
                try:
                    self._once(conn, f"{self._name}-{number}")
                except psycopg.Error as error:
                    self.errors.append(str(error))
                self.spent.append((begin, (time.perf_counter() - begin) * 1000))
                time.sleep(0.002)

    def _once(self, conn: psycopg.Connection[tuple[object, ...]], run: str) -> None:
        conn.execute(_START, (run,))
        while self._result and conn.execute(
            "select state from durable._promises where id = %s", (run,)
        ).fetchone() == ("pending",):
            time.sleep(0.001)

    def stop(self) -> None:
        """Stop, and wait until it has."""
        self._done.set()
        self.join()

    def latest(self, begin: float, end: float) -> float:
        """The longest of those that overlap with a while, in ms."""
        return max(ms for at, ms in self.spent if at <= end and at + ms / 1000 >= begin)


def upgrade(site: Site) -> Iterator[Measure]:
    """A trial version: every function changes, a column is added to the largest table and filled in batches.

    Another worker, another client and the runs that ended before are there throughout.
    """
    before_s, count = (2.0, 1_000) if site.quick else (20.0, 20_000)
    with tempfile.TemporaryDirectory(prefix="bench-next-") as folder, site.system.workers(site.dsn):
        next_version.make(Path(folder), batch=1_000)
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            fill(conn, count, count // 100)
        asyncio.run(warmed(site, "noop"))
        starts, runs = _Starts(site.dsn, "s", result=False), _Starts(site.dsn, "r", result=True)
        for one in (starts, runs):
            one.start()
        time.sleep(before_s / 10)
        first = time.perf_counter()
        time.sleep(before_s)
        begin = time.perf_counter()
        report = _migrate(site.dsn, Path(folder))
        end = time.perf_counter()
        time.sleep(_AFTER_S)
        for one in (starts, runs):
            one.stop()
    if starts.errors or runs.errors:
        raise RuntimeError(f"clients saw errors: {[*starts.errors, *runs.errors][:3]}")
    if not report["logic"]:
        raise RuntimeError(f"the upgrade did not replace functions: {report}")
    yield Measure("latest start, before the upgrade", starts.latest(first, begin), "ms", "less")
    yield Measure("latest start, during the upgrade", starts.latest(begin, end + _AFTER_S), "ms", "less")
    yield Measure("latest run, before the upgrade", runs.latest(first, begin), "ms", "less")
    yield Measure("latest run, during the upgrade", runs.latest(begin, end + _AFTER_S), "ms", "less")
    yield Measure("the upgrade", end - begin, "s", "less")


def _migrate(dsn: str, folder: Path) -> dict[str, object]:
    done = next_version.command(dsn, folder, "db", "migrate", "--json")
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    report: dict[str, object] = json.loads(done.stdout)
    return report
