"""The world of the random workflows can be believed: what it does ends, and what stands still is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.chaos.test_programs import prepare
from tests.chaos.world import World
from tests.crash.processes import launch, until

ASLEEP = "import time; time.sleep(3600)"
ENDED = "raise SystemExit('tired')"
# commits only when it is woken
HOLDER = """
import os, signal, psycopg
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
with psycopg.connect(os.environ["PYENGINE_DATABASE_URL"], application_name="holder") as conn:
    conn.execute("select from durable._tasks for update")
    conn.execute("select 'held'")
    signal.sigwait([signal.SIGCONT])
"""


def world(dsn: str, code: str, *, workers: int = 2) -> World:
    """A world with a run, the workers of which are processes that do something else."""

    class Other(World):
        def _launch(self) -> subprocess.Popen[bytes]:
            return launch(self._dsn, "-c", code, log=self._log)

    made = Other(dsn, 0, workers=workers, faults=True)
    made.start("r", ["step", 1])
    return made


def test_faults_wait_for_work(another_database: Callable[[], str]) -> None:
    """While no code moves on nothing is killed, frozen or paused: workers that need long to start are not
    killed before they have begun, again and again. Who gives up waiting says what is left."""
    dsn = another_database()
    prepare(dsn)
    idle = world(dsn, ASLEEP)
    try:
        with pytest.raises(TimeoutError) as told:
            idle.play(1)
    finally:
        idle.close()
    assert set(idle.done) <= {"settled", "signalled", "cancelled"}
    said = str(told.value).splitlines()
    assert any(line.startswith("  ('r', 'queued', None, 0") for line in said), said
    assert "  ('r', '0 ExecutionStarted')" in said


def test_a_frozen_worker_is_woken_while_the_world_waits(another_database: Callable[[], str]) -> None:
    """A worker that was frozen with locks is woken in time by a world that itself waits for them."""
    dsn = another_database()
    prepare(dsn)
    waiting = world(dsn, HOLDER, workers=1)
    try:
        until(dsn, "select exists (select from pg_stat_activity where query = 'select ''held''')")
        waiting._freeze()
        waiting._conn.execute("set statement_timeout = '60 s'")
        waiting._pause()
    finally:
        waiting.close()
    assert waiting.done == {"frozen": 1, "paused": 1}


def test_a_worker_that_ends_by_itself_is_told(another_database: Callable[[], str]) -> None:
    """Nobody waits for a worker that has ended without being killed; its last words are told."""
    dsn = another_database()
    prepare(dsn)
    left = world(dsn, ENDED)
    try:
        with pytest.raises(RuntimeError, match=r"ended with 1(?s:.*)tired"):
            left.play(60)
    finally:
        left.close()


def test_a_worker_may_log_as_much_as_it_likes(another_database: Callable[[], str]) -> None:
    """A process of ours does not stand still because nobody reads what it writes."""
    process = launch(another_database(), "-c", "import sys; sys.stderr.write('x' * 1_000_000)")
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
