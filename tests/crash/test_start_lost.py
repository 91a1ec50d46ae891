"""The server crashes before a start that did not wait for the disk has got there, and a worker has it.

Nobody was told of that run. Its number is given to another one; the worker, which could not know, reports
what it did with the first, and nothing of that is taken for the second.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.admin import migrate
from pyengine.embedded import EmbeddedPostgres
from tests.crash.processes import start, until, worker

CODE = "4:echo1"
START = (
    "select handed, hasty from durable.start_v1("
    "'echo', %s, %s, null, 'default', '1', null, null, 0, '{}', '', true, true, true, null, true)"
)
RESTS = "select exists (select from durable._resting where ends_at > durable._now_ms() and %s = any (hasty))"
NO_NUMBERS_AHEAD = (
    "select setval('durable._executions_execution_seq', max(execution)) from durable._executions"
)
BUSY = "select count(*) from pg_stat_activity where application_name like 'pyengine %' and state <> 'idle'"
CLAIM = "select durable.worker_turn_v1(%s, '{default}', %s, '{ab}', 1, '[]', 60000, false) #>> '{tasks,0,1}'"


@pytest.fixture
def dsn() -> Iterator[str]:
    """A server of this test's own, durability on, that writes no log by itself."""
    folder = Path(tempfile.mkdtemp(prefix="pyengine-crash-", dir="/tmp"))
    server = EmbeddedPostgres(folder, settings={"autovacuum": "off"})
    server.start()
    try:
        migrate.install(server.dsn)
        yield server.dsn
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def unlogged(process: subprocess.Popen[bytes], conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Nothing that is committed meanwhile gets to the disk unless somebody waits for that, and the worker
    does nothing; then the server crashes.
    """
    row = conn.execute("select pid from pg_stat_activity where backend_type = 'walwriter'").fetchone()
    assert row is not None
    process.send_signal(signal.SIGSTOP)
    while conn.execute(BUSY).fetchone() != (0,):
        time.sleep(0.01)
    os.kill(row[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(row[0], signal.SIGKILL)


def test_a_start_that_was_lost_is_taken_for_no_other_run(dsn: str, tmp_path: Path) -> None:
    """The number means another run then, held by the same worker under the same version."""
    log = tmp_path / "worker.log"
    with log.open("wb") as out, worker(dsn, log=out) as process:
        start(dsn, "first", "echo", '["first"]')
        until(dsn, RESTS, CODE)
        with psycopg.connect(dsn, autocommit=True) as conn:
            # with them the log would know that the lost number was given
            conn.execute(NO_NUMBERS_AHEAD)
            with unlogged(process, conn):
                assert conn.execute(START, ('["lost"]', "lost")).fetchone() == (True, True)
                lost = conn.execute("select execution, pid from durable._tasks where id = 'lost'").fetchone()
                # the note goes to the worker's socket after the commit
                time.sleep(0.2)
        assert lost is not None
        until(dsn, "select not exists (select from durable.runs where id = 'lost')")
        start(dsn, "next", "echo", '["next"]')
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert conn.execute(CLAIM, (lost[1], [CODE])).fetchone() == ("next",)
            held = conn.execute(
                "select execution, pid, version from durable._tasks where id = 'next'"
            ).fetchone()
        assert held == (*lost, 1)
        process.send_signal(signal.SIGCONT)
        until(dsn, "select bool_and(state = 'completed') from durable.runs")
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = conn.execute("select id, result from durable.runs order by id").fetchall()
        assert found == [("first", "first"), ("next", "next")]
        assert conn.execute("select * from durable.check()").fetchall() == []
    assert "run.lost run_id=lost version=1" in log.read_text()
