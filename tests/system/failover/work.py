"""Callers and workers of tests that take their database away.

What lives here: `Starter`, which starts runs and remembers which starts returned, and worker processes that
leave their trail in a file. What may not: which server they find; that is the URL's.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pyengine.core.servers import libpq_url
from pyengine.errors import Unavailable
from pyengine.sync import Client as SyncClient
from tests.system.crash.processes import ROOT, environment, stop
from tests.system.failover.job import FILE

Start = Callable[[str], None]
PAUSE_S = 0.02


@contextmanager
def worker(dsn: str, trail: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process, stopped in an orderly way at the end if it still lives."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyengine", "worker", "tests.system.failover.job:app", *options],
            cwd=ROOT,
            env={**environment(dsn), FILE: str(trail)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
        )
    try:
        yield process
    finally:
        stop(process)


class Starter(threading.Thread):
    """Starts journeys, waits for a database that is away, and remembers the starts that returned.

    Args:
        name: begins the ids of its runs.
        door: makes a function that starts a run of this id, for as long as its block lasts.
    """

    def __init__(self, name: str, door: Callable[[], Iterator[Start]]) -> None:
        super().__init__(daemon=True)
        self.label = name
        self._door = contextmanager(door)
        self.acknowledged: list[str] = []
        self._done = threading.Event()

    def run(self) -> None:
        """Start until `finish`. A start that failed is tried again with the same id."""
        number = 0
        while not self._done.is_set():
            try:
                with self._door() as start:
                    while not self._done.is_set():
                        start(f"{self.label}-{number}")
                        self.acknowledged.append(f"{self.label}-{number}")
                        number += 1
                        time.sleep(PAUSE_S)
            except (psycopg.OperationalError, Unavailable):
                time.sleep(PAUSE_S)

    def finish(self) -> None:
        """Start no more."""
        self._done.set()
        self.join()


def by_sql(dsn: str) -> Callable[[], Iterator[Start]]:
    """The door of psql, through libpq."""

    def door() -> Iterator[Start]:
        with psycopg.connect(libpq_url(dsn), autocommit=True) as conn:
            yield lambda run: conn.execute(
                "select durable.start('journey', jsonb_build_array(%s::text), id => %s)", (run, run)
            )

    return door


def by_sync_client(dsn: str) -> Callable[[], Iterator[Start]]:
    """The door of programs that block."""

    def door() -> Iterator[Start]:
        with SyncClient(dsn) as client:
            yield lambda run: client.start("journey", run, id=run)

    return door


def start_by_command(dsn: str, run: str) -> None:
    """The door of people."""
    command = [sys.executable, "-m", "pyengine", "start", "journey", f'["{run}"]', "--id", run]
    done = subprocess.run(command, cwd=ROOT, env=environment(dsn), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> float:
    """Wait until a condition is true, through a database that comes back; return the seconds it took."""
    begun_s = time.monotonic()
    while True:
        try:
            if condition():
                return time.monotonic() - begun_s
        except psycopg.OperationalError:
            pass
        assert time.monotonic() < begun_s + limit_s, f"never true: {inspect.getsource(condition)}"
        time.sleep(0.02)


def alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process of ours still runs."""
    return process.poll() is None and os.path.exists(f"/proc/{process.pid}")
