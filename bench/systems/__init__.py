"""The interface of a system under measurement, and the common part of systems in Postgres. Each system has a
file in this folder: its installation, its calls and its counters, and, run as a program, its worker.

A system has abilities: a workload that needs one which a system lacks has no figure of that system.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import psycopg

from bench.server import ROOT, version

Ability = Literal["noop", "steps", "fan_out", "signal", "long", "naps", "bulk", "space", "own"]
Workflow = Literal["noop", "few_steps", "ten_steps", "fan_out", "signalled", "long", "naps", "slow"]
Gate = Callable[[], float]

NAMES = ("pyengine", "dbos", "absurd", "resonate_pg", "procrastinate", "pgqueuer", "restate")
LIMIT = "bare"  # measured on request only: it is not a peer
READY_S = 30
NOW = "select extract(epoch from clock_timestamp())"


class Client(ABC):
    """One caller with its connections. Handles are the system's own."""

    @abstractmethod
    async def start(self, workflow: Workflow, number: int) -> Any:
        """Start a run and return its handle as soon as the start is durable."""

    @abstractmethod
    async def result(self, handle: Any) -> Any:
        """The value of a run, as soon as it is there."""

    async def run(self, workflow: Workflow, number: int) -> Any:
        """Start a run and wait for its value, in the quickest way there is."""
        return await self.result(await self.start(workflow, number))

    async def leave(self, number: int) -> None:
        """Start a no-op that is not executed while starts are measured: no worker runs."""
        await self.start("noop", number)

    async def signal(self, handle: Any) -> None:
        """Send a waiting run its signal."""
        raise NotImplementedError


class System(ABC):
    """A system that is measured; one object of it serves one workload.

    Args:
        name: as on the command line and in tables.
        packages: what must be installed.
        settings: the settings as text, for the report.
        abilities: what it can do.
        backlog: how many no-ops make a backlog that lasts for seconds.
        schema: where its tables are.
        ended: the rows of ended runs: table and condition, if in Postgres.
    """

    name: str
    packages: tuple[str, ...]
    settings: str
    abilities: frozenset[Ability]
    backlog: int = 5_000
    schema: str = "public"
    ended: str = ""

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        gone = [package for package in self.packages if version(package) is None]
        return f"{', '.join(gone)} not installed; pip install '.[bench]'" if gone else None

    def versions(self) -> dict[str, str | None]:
        """The exact subject of the measurement."""
        return {package: version(package) for package in self.packages}

    @abstractmethod
    def install(self, dsn: str) -> None:
        """Make its tables in an empty database, and leave no connection open."""

    def running(self, dsn: str) -> AbstractContextManager[None]:
        """The processes that must run before a start; none for a system that is tables."""
        return nullcontext()

    @abstractmethod
    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """A caller of its own, with the best API there is for single starts."""

    @abstractmethod
    def fill(
        self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True
    ) -> AbstractContextManager[Gate]:
        """Prepare a backlog that no worker sees until the gate is opened; that returns when it was, in
        seconds of the clock that tells of ends too.

        For tables it is one transaction, and the gate its commit: workers are warm and wait, planners have
        statistics.
        """

    def settled(self, conn: psycopg.Connection[Any]) -> int:
        """How many runs have come to their end."""
        return int(self._of_ended(conn, "count(*)"))

    def last_end(self, conn: psycopg.Connection[Any]) -> float:
        """When the last of them did, by the clock of its gate: when the server committed it."""
        return float(self._of_ended(conn, "extract(epoch from max(pg_xact_commit_timestamp(xmin)))"))

    def _of_ended(self, conn: psycopg.Connection[Any], what: str) -> Any:
        row = conn.execute(f"select {what} from {self.ended}".encode()).fetchone()
        assert row is not None
        return row[0]

    def command(self, dsn: str) -> list[str]:
        """The worker process."""
        return [sys.executable, "-m", f"bench.systems.{self.name}", dsn]

    @contextmanager
    def workers(self, dsn: str, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run worker processes; raise an error with the end of their log if one of them ends by itself."""
        with tempfile.TemporaryDirectory(prefix="bench-worker-", dir="/tmp") as folder:
            started: list[subprocess.Popen[bytes]] = []
            log = Path(folder) / "log"
            try:
                with log.open("wb") as out:
                    for _ in range(count):
                        started.append(self.start_worker(dsn, out.fileno()))
                try:
                    with _watched(started):
                        yield started
                except Exception as error:
                    error.add_note("log of the worker: " + log.read_text(errors="replace")[-1500:])
                    raise
            finally:
                for process in started:
                    stop(process)

    def start_worker(self, dsn: str, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """One more worker process."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYENGINE_DATABASE_URL": dsn}
        # modules are compiled once, as an installation does it
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            self.command(dsn),
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def violations(self, conn: psycopg.Connection[Any]) -> list[str]:
        """The problems that the system itself finds in its tables afterwards."""
        return []


@contextmanager
def _watched(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Raise an error as soon as one of the processes ends by itself."""

    def look(*_: object) -> None:
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended by itself, with {process.returncode}")

    before = signal.signal(signal.SIGCHLD, look)
    try:
        look()
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def stop(process: subprocess.Popen[bytes], patience_s: float = 5) -> None:
    """End a process that we started, orderly if it is quick about it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def system(name: str) -> System:
    """A new object for the system of that name. Its own packages are not imported yet."""
    made = importlib.import_module(f"bench.systems.{name}").SYSTEM()
    assert isinstance(made, System)
    return made


async def warm(client: Client, workflow: Workflow = "noop", number: int = 1, times: int = 3) -> None:
    """Execute some runs first, so that imports, connections and plans are not measured."""
    for _ in range(times):
        await asyncio.wait_for(client.run(workflow, number), READY_S)


@contextmanager
def transaction(dsn: str, schema: str, analyze: bool) -> Iterator[tuple[psycopg.Connection[Any], Gate]]:
    """A connection in a transaction, and the gate that commits it, with statistics for the planner before."""
    with psycopg.connect(dsn) as conn:

        def gate() -> float:
            if analyze:
                for (table,) in conn.execute(
                    "select c.oid::regclass::text from pg_class c where c.relkind = 'r' "
                    "and c.relnamespace = to_regnamespace(%s)",
                    (schema,),
                ).fetchall():
                    conn.execute(f"analyze {table}".encode())
            row = conn.execute(NOW).fetchone()
            conn.commit()
            assert row is not None
            return float(row[0])

        yield conn, gate
