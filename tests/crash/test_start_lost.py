"""The server crashes before a start that did not wait for the disk has got there, and a worker has it.

Nobody was told of that run. Its number is given to another one; the worker, which could not know, reports
what it did with the first, and nothing of that is taken for the second.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


def test_a_start_that_was_lost_is_taken_for_no_other_run(dsn: str) -> None:
    """The number means another run then, held by the same worker under the same version."""
    with worker(dsn) as process:
        start(dsn, "first", "echo", '["first"]')
        until(dsn, RESTS, CODE)
        with psycopg.connect(dsn, autocommit=True) as conn:
            row = conn.execute("select pid from pg_stat_activity where backend_type = 'walwriter'").fetchone()
            assert row is not None
            # which the log would have otherwise, so that the lost number were not given again
            conn.execute(NO_NUMBERS_AHEAD.encode())
            process.send_signal(signal.SIGSTOP)
            os.kill(row[0], signal.SIGSTOP)
            assert conn.execute(START.encode(), ('["lost"]', "lost")).fetchone() == (True, True)
            lost = conn.execute("select execution, pid from durable._tasks where id = 'lost'").fetchone()
            assert lost is not None
            os.kill(row[0], signal.SIGKILL)
        until(dsn, "select not exists (select from durable.runs where id = 'lost')")
        start(dsn, "next", "echo", '["next"]')
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert conn.execute(CLAIM.encode(), (lost[1], [CODE])).fetchone() == ("next",)
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
