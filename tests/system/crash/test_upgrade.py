"""A database is upgraded to the next version under load, with workers of both versions as processes.

The next version is a trial (`tests/support/next_version.py`). First a step fails, and all of it is rolled
back; then the upgrade succeeds while workers of this version go on, which keeps the contract waiting; then
workers of the next version take over, and the contract follows. Every start that returned is a run that
completes, once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from pyengine.doors.admin import migrate
from tests.support import next_version
from tests.support.catalogue import differences, snapshot
from tests.support.cluster import broken_laws
from tests.system.crash import effects
from tests.system.crash.processes import ROOT, stop, until

JOB = "tests.system.crash.job:app"
PENDING = "select count(*) = 0 from durable._promises where state = 'pending'"
STEPS = "select array_agg(name order by id) from durable.migrations"


class Load(threading.Thread):
    """Starts runs and counts those whose start returned; any error is kept, for there may be none."""

    def __init__(self, dsn: str, name: str) -> None:
        super().__init__(daemon=True)
        self.dsn, self.label = dsn, name
        self.started: list[str] = []
        self.errors: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Start runs until `done` is set."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while not self.done.is_set():
                run = f"{self.label}-{len(self.started)}"
                workflow = ("journey", "side", "side", "echo")[len(self.started) % 4]
                try:
                    conn.execute("select durable.start(%s, %s, id => %s)", (workflow, f'["{run}"]', run))
                    conn.execute("select state, workflow from durable.runs where id = %s", (run,))
                except psycopg.Error as error:
                    self.errors.append(f"{error.sqlstate} {error}")
                else:
                    self.started.append(run)
                time.sleep(0.02)

    def more(self, runs: int) -> None:
        """Wait until so many more runs were started."""
        goal = len(self.started) + runs
        while len(self.started) < goal and not self.errors:
            time.sleep(0.01)


@contextmanager
def workers(dsn: str, folder: Path, count: int, log: Path) -> Iterator[None]:
    """Worker processes of the tree in a folder."""
    with log.open("ab") as file:
        started = [next_version.launch_worker(dsn, folder, JOB, file) for _ in range(count)]
        try:
            version = None if folder == ROOT else next_version.NEXT
            until(
                dsn,
                "select count(*) = %s from durable._workers where present and missing_at is null and "
                "(about ->> 'pyengine' = %s) is not false",
                count,
                version,
            )
            yield
        finally:
            for process in started:
                stop(process)


@contextmanager
def load(dsn: str, threads: int) -> Iterator[list[Load]]:
    """Clients that start runs all the time."""
    running = [Load(dsn, f"load{number}") for number in range(threads)]
    for one in running:
        one.start()
    try:
        yield running
    finally:
        for one in running:
            one.done.set()
            one.join()


def steps(dsn: str) -> list[str]:
    """Names of the steps that a database has."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(STEPS).fetchone()
    return row[0] if row else []


def ended(dsn: str) -> int:
    """How many runs have completed."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select count(*) from durable.runs where state = 'completed'").fetchone()
    return row[0] if row else 0


def go_on(dsn: str, clients: list[Load], runs: int) -> None:
    """Wait until clients have started more runs, and workers have completed as many."""
    before = ended(dsn)
    clients[0].more(runs)
    until(dsn, "select count(*) >= %s from durable.runs where state = 'completed'", before + runs)


@pytest.mark.full
@pytest.mark.parametrize(
    ("runs", "threads"), [pytest.param(20, 2, id="small"), pytest.param(400, 4, id="400")]
)
def test_an_upgrade_under_load(
    tmp_path: Path, empty_database: Callable[[], str], runs: int, threads: int
) -> None:
    """Nothing is lost, nothing runs twice, no client sees an error, and no law is broken."""
    dsn, log, folder = empty_database(), tmp_path / "workers.log", tmp_path / "next"
    sources = next_version.make(folder)
    migrate.install(dsn)
    effects.prepare(dsn)
    first = steps(dsn)
    with workers(dsn, ROOT, 2, log), load(dsn, threads) as clients:
        go_on(dsn, clients, runs)
        before = snapshot(dsn)
        expand = sources.migrations / f"{len(first) + 1:04d}_expand_trial.sql"
        expand.write_text(next_version.EXPAND + next_version.BROKEN)
        failed = next_version.command(dsn, folder, "db", "migrate", "--json")
        assert (failed.returncode != 0, "division by zero" in failed.stdout + failed.stderr) == (True, True)
        assert (steps(dsn), differences(before, snapshot(dsn))) == (first, [])
        go_on(dsn, clients, runs)
        expand.write_text(next_version.EXPAND)
        upgraded = next_version.command(dsn, folder, "db", "migrate", "--json")
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        report = json.loads(upgraded.stdout)
        assert report["left"] == [f"{len(first) + 4:04d}_contract_trial"]
        assert "function durable._later(bigint,bigint)" in report["dropped"]
        assert steps(dsn)[-1].endswith("_backfill_trial")
        # workers of this version go on, beside the newer schema; then those of the next take over
        go_on(dsn, clients, runs)
        with workers(dsn, folder, 1, log):
            go_on(dsn, clients, runs)
    with workers(dsn, folder, 2, log), load(dsn, 1) as last:
        last[0].label = "last"
        go_on(dsn, last, runs)
        contracted = next_version.command(dsn, folder, "db", "migrate", "--json")
        assert json.loads(contracted.stdout)["applied"] == report["left"], contracted.stderr
        go_on(dsn, last, runs)
        last[0].done.set()
        until(dsn, PENDING)
    check(dsn, [*clients, *last], log)


def check(dsn: str, clients: list[Load], log: Path) -> None:
    """Every acknowledged run is completed, and each step was executed once."""
    assert [error for one in clients for error in one.errors] == []
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = conn.execute("select id from durable.runs where state = 'completed'").fetchall()
        lost = {run for one in clients for run in one.started} - {id_ for (id_,) in rows}
        assert not lost, log.read_text()
        assert conn.execute("select count(*) from durable._promises where region is null").fetchone() == (0,)
        assert conn.execute("select max(crashes) from durable.runs").fetchone() in [(0,), (None,)]
    assert (effects.repeated(dsn), effects.missing(dsn), broken_laws(dsn)) == ([], [], [])
    with suppress(FileNotFoundError):
        assert "cache lookup failed" not in log.read_text()
