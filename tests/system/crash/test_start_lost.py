"""The server crashes before a start whose caller does not wait for the disk has got there.

No worker has acted on it, unless that does not wait for the disk either. And its number, which is given to
another run then, is never taken for that: a worker which has the first reports what it did with it, and
nothing of that counts for the second.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import Client
from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.sync import Client as SyncClient
from tests.support.cluster import create_database, drop_database, make_folder
from tests.system.crash.processes import start, until, worker

CODE = "4:echo1"
START = (
    "select handed_off from durable.start_v1("
    "'echo', %s, %s, null, 'default', '1', null, null, 0, '{}', '', true, true, true)"
)
IDLE = "select exists (select from durable._idle_workers where idle_until > durable._now_ms())"
NO_NUMBERS_AHEAD = (
    "select setval('durable._executions_execution_seq', max(execution)) from durable._executions"
)
BUSY = "select count(*) from pg_stat_activity where application_name like 'pyengine %' and state <> 'idle'"
CLAIM = (
    "select durable.worker_turn_v1(%s, '{default}', %s, '{ab}', 1, '[]', 60000, false, 0, durable._rules())"
    " #>> '{tasks,0,1}'"
)
LOST = "select execution, pid from durable._tasks where id = 'lost'"


def committing(dsn: str, level: str) -> str:
    """The URL of sessions whose commits wait so."""
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-csynchronous_commit%3D{level}"


def by_sql(dsn: str, workflow: str, argument: str) -> None:
    """Start the run `lost` from SQL."""
    start(dsn, "lost", workflow, json.dumps([argument]))


def by_client(dsn: str, workflow: str, argument: str) -> None:
    """Start it by the client for programs that await."""

    async def main() -> None:
        async with Client(dsn) as client:
            await client.start(workflow, argument, id="lost")

    asyncio.run(main())


def by_sync_client(dsn: str, workflow: str, argument: str) -> None:
    """Start it by the client for programs that block."""
    with SyncClient(dsn) as client:
        client.start(workflow, argument, id="lost")


def in_a_block(dsn: str, workflow: str, argument: str) -> None:
    """Start it as the clients do, but in a transaction that is made not to wait behind it."""
    with psycopg.connect(dsn, autocommit=True) as conn, conn.transaction():
        conn.execute(START, (json.dumps([argument]), "lost"))
        conn.execute("set local synchronous_commit = off")


Door = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of these tests, durability on, that writes no log by itself. The database `postgres` has the
    schema and is only copied."""
    folder = make_folder()
    server = EmbeddedPostgres(folder, settings={"autovacuum": "off"})
    server.start()
    try:
        migrate.install(server.dsn)
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: EmbeddedPostgres) -> Iterator[str]:
    """The database of one test there."""
    with psycopg.connect(server.database("template1"), autocommit=True) as conn:
        create_database(conn, "crash", "postgres")
    yield server.database("crash")
    with psycopg.connect(server.database("template1"), autocommit=True) as conn:
        drop_database(conn, "crash")


@contextmanager
def unlogged(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Nothing that is committed meanwhile gets to the disk unless somebody waits for that; then the server
    crashes.
    """
    row = conn.execute("select pid from pg_stat_activity where backend_type = 'walwriter'").fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(row[0], signal.SIGKILL)


def stopped(process: subprocess.Popen[bytes], conn: psycopg.Connection[Any]) -> None:
    """Have a worker do nothing, and nothing of it be under way."""
    process.send_signal(signal.SIGSTOP)
    while conn.execute(BUSY).fetchone() != (0,):
        time.sleep(0.01)


SOME = [("on", "off"), ("on", "on"), ("off", "on"), ("off", "off")]
# lost, and handed to no worker; kept; lost, and handed to one, by each client
BY_DEFAULT = [
    (by_sql, "on", "off"),
    (by_sql, "on", "on"),
    (by_client, "off", "off"),
    (by_sync_client, "off", "off"),
]
CASES = [
    *(
        pytest.param(door, *levels, marks=[] if (door, *levels) in BY_DEFAULT else [pytest.mark.full])
        for door in (by_sql, by_client, by_sync_client)
        for levels in SOME
    ),
    pytest.param(in_a_block, "on", "on"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("door", "waits", "caller"), CASES)
def test_a_start_that_was_lost_is_taken_for_no_other_run(
    url: str, tmp_path: Path, door: Door, waits: str, caller: str
) -> None:
    """The number means another run then, held by the same worker under the same version."""
    log = tmp_path / "worker.log"
    with log.open("wb") as out, worker(committing(url, waits), log=out) as process:
        start(url, "first", "echo", '["first"]')
        until(url, IDLE)
        with psycopg.connect(url, autocommit=True) as conn:
            # with them the log would know that the lost number was given
            conn.execute(NO_NUMBERS_AHEAD)
            stopped(process, conn)
            with unlogged(conn):
                door(committing(url, caller), "echo", "lost")
                lost = conn.execute(LOST).fetchone()
                # the note goes to the worker's socket after the commit
                time.sleep(0.2)
        assert lost is not None
        number, holder = lost
        assert (holder is None) == (door is by_sql or (waits, caller) == ("on", "off"))
        kept = door is not in_a_block and caller == "on"
        until(url, "select exists (select from durable.runs where id = 'lost') = %s", kept)
        start(url, "next", "echo", '["next"]')
        if holder is not None and not kept:
            with psycopg.connect(url, autocommit=True) as conn:
                assert conn.execute(CLAIM, (holder, [CODE])).fetchone() == ("next",)
                held = conn.execute(
                    "select execution, pid, version from durable._tasks where id = 'next'"
                ).fetchone()
            assert held == (number, holder, 1)
        process.send_signal(signal.SIGCONT)
        until(url, "select bool_and(state = 'completed') from durable.runs")
    with psycopg.connect(url, autocommit=True) as conn:
        found = conn.execute("select id, result from durable.runs order by execution").fetchall()
        names = ("first", "lost", "next") if kept else ("first", "next")
        assert found == [(name, name) for name in names]
        assert conn.execute("select * from durable.check()").fetchall() == []
    if holder is not None and not kept:
        assert "event=run_lost run=lost " in log.read_text()


@pytest.mark.parametrize(
    "door", [by_client, *(pytest.param(door, marks=pytest.mark.full) for door in (by_sql, by_sync_client))]
)
def test_no_step_runs_for_a_start_that_is_lost(url: str, tmp_path: Path, door: Door) -> None:
    """The caller does not wait for the disk, but the worker does: what it has begun is there after the
    crash."""
    mark = tmp_path / "mark"
    with worker(committing(url, "on")):
        start(url, "first", "echo", '["first"]')
        until(url, IDLE)
        with psycopg.connect(url, autocommit=True) as conn, unlogged(conn):
            door(committing(url, "off"), "leaving", str(mark))
            deadline = time.monotonic() + 60
            while not mark.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        until(url, "select exists (select from durable.runs where id = 'lost')")
        Path(f"{mark}.go").touch()
        until(url, "select bool_and(state = 'completed') from durable.runs")
    assert mark.read_text() == "x"
