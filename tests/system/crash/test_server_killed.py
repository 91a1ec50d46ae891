"""The database server itself is killed with SIGKILL under load, with durability on.

What a client was told is there afterwards: every start that returned is a run that completes, every result
that was read stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import make_folder
from tests.system.crash import effects
from tests.system.crash.processes import until, worker

ROUNDS = 2
STARTS_A_ROUND = 30


@pytest.fixture
def durable_server() -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, durability on."""
    folder = make_folder()
    server = EmbeddedPostgres(folder)
    server.start()
    try:
        migrate.install(server.dsn)
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def kill_server(server: EmbeddedPostgres) -> None:
    """kill -9 of the postmaster, and start again once its sessions have gone down with it."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        os.kill(int((server.data_dir / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        with suppress(psycopg.OperationalError):
            while True:
                conn.execute("select 1")
                time.sleep(0.01)
    server.start()


class Starter(threading.Thread):
    """Starts runs as fast as it can and remembers those whose start returned."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self.dsn = dsn
        self.acknowledged: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Start until told to stop; a server that is down is waited for."""
        number = 0
        while not self.done.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True) as conn:
                    while not self.done.is_set():
                        number += 1
                        conn.execute(
                            "select durable.start('side', %s::jsonb, id => %s)",
                            (f'["{number}"]', f"load-{number}"),
                        )
                        self.acknowledged.append(f"load-{number}")
                        time.sleep(0.005)
            except psycopg.OperationalError:
                time.sleep(0.05)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    durable_server: EmbeddedPostgres, figures: Callable[[str, str], None]
) -> None:
    """kill -9 of the postmaster under load loses no start that returned and no result that was read."""
    dsn = durable_server.dsn
    effects.prepare(dsn)
    starter = Starter(dsn)
    seen: dict[str, str] = {}
    with worker(dsn):
        starter.start()
        for round_ in range(1, ROUNDS + 1):
            until(
                dsn,
                "select count(*) >= %s from durable.runs where state = 'completed'",
                round_ * STARTS_A_ROUND,
            )
            with psycopg.connect(dsn, autocommit=True) as conn:
                seen |= dict(
                    conn.execute(
                        "select id, value_data from durable._promises where state = 'resolved'"
                    ).fetchall()
                )
            kill_server(durable_server)
        until(
            dsn,
            "select count(*) >= %s from durable.runs where state = 'completed'",
            (ROUNDS + 1) * STARTS_A_ROUND,
        )
        starter.done.set()
        starter.join()
        until(dsn, "select bool_and(state = 'completed') from durable.runs")
    with psycopg.connect(dsn, autocommit=True) as conn:
        results = dict(
            conn.execute("select id, value_data from durable._promises where state = 'resolved'").fetchall()
        )
        assert conn.execute("select * from durable.check()").fetchall() == []
    assert set(starter.acknowledged) <= set(results)
    assert {run: results.get(run) for run in seen} == seen
    assert effects.repeated(dsn) == []
    figures(
        "server-killed",
        f"{ROUNDS} times under load; {len(starter.acknowledged)} acknowledged starts, all completed; "
        f"{len(seen)} results read before a kill, all unchanged",
    )
