"""Workers that are not dead but no good, and workers that only look dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.processes import kill, launch, start, stop, until, worker

WORKER = ("-m", "pyengine", "worker", "tests.system.crash.job:app")


def settings(dsn: str, **values: int) -> None:
    """Change settings of the engine."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name, value in values.items():
            conn.execute("select durable.set_setting(%s, %s)", (name, str(value)))


def test_a_run_that_blocks_the_loop_for_ever_is_taken_over(dsn: str, tmp_path: Path) -> None:
    """A worker whose event loop does not tick ends, so another one takes the run."""
    settings(dsn, stall_limit_ms=1500, lease_ttl_ms=1500)
    mark = tmp_path / "mark"
    start(dsn, "stuck", "stuck", f'["{mark}"]')
    first = launch(dsn, *WORKER)
    try:
        until(dsn, "select state = 'running' from durable.runs where id = 'stuck'")
        with worker(dsn):
            until(
                dsn,
                "select state = 'completed' and result = '\"taken over\"' from durable.runs where id "
                "= 'stuck'",
            )
        assert first.wait(30) == 1
        assert int(mark.read_text()) == first.pid
    finally:
        kill(first)


@pytest.mark.session("presence")
def test_a_killed_worker_is_noticed_by_its_presence(dsn: str) -> None:
    """Default leases are long, yet the work of a killed worker is taken over once its presence lock was
    found free twice."""
    effects.prepare(dsn)
    settings(dsn, lease_ttl_ms=600_000)
    start(dsn, "patient", "patient", '["p", 2.0]')
    first = launch(dsn, *WORKER)
    until(dsn, "select count(*) = 1 from public.effects")
    until(dsn, "select bool_or(present) from durable._workers")
    kill(first)
    with worker(dsn):
        until(dsn, "select state = 'completed' from durable.runs where id = 'patient'")
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute("select count(*) from public.effects").fetchone() == (2,)


@pytest.mark.session("presence")
def test_losing_only_the_presence_connection_runs_nothing_again(dsn: str) -> None:
    """A living worker whose presence connection is cut takes a new one; its work is neither taken over nor
    run again."""
    effects.prepare(dsn)
    start(dsn, "patient", "patient", '["p", 4.0]')
    with worker(dsn), worker(dsn), psycopg.connect(dsn, autocommit=True) as conn:
        until(dsn, "select count(*) = 1 from public.effects")
        until(dsn, "select count(*) = 2 from durable._workers where present")
        cut = conn.execute(
            "select pg_terminate_backend(l.pid) from pg_locks l join durable._workers w on w.number = l.objid"
            " where l.locktype = 'advisory' and l.classid = 1685417570"
            " and l.database = (select oid from pg_database where datname = current_database())"
        ).fetchall()
        assert cut == [(True,), (True,)]
        until(dsn, "select state = 'completed' from durable.runs where id = 'patient'")
        assert conn.execute("select count(*) from public.effects").fetchone() == (1,)
        assert conn.execute(
            "select count(*) from durable.journal_events where event = 'InvokeRetrying'"
        ).fetchone() == (0,)


@pytest.mark.session("presence")
def test_a_step_that_must_not_repeat_fails_after_a_crash(dsn: str) -> None:
    """A step with on_interrupt="fail" whose worker was killed in the middle is not run again: the run sees
    StepInterrupted."""
    effects.prepare(dsn)
    start(dsn, "once", "careful", '["c", 30.0]')
    first = launch(dsn, *WORKER)
    until(dsn, "select count(*) = 1 from public.effects")
    until(dsn, "select bool_or(present) from durable._workers")
    kill(first)
    with worker(dsn):
        until(dsn, "select state = 'completed' from durable.runs where id = 'once'")
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute("select result from durable.runs where id = 'once'").fetchone() == (
            "interrupted",
        )
        assert conn.execute("select count(*) from public.effects").fetchone() == (1,)


def test_sigterm_gives_work_back_at_once(dsn: str) -> None:
    """A worker that is told to stop releases its tasks without waiting for its lease, and no crash is
    counted."""
    effects.prepare(dsn)
    settings(dsn, lease_ttl_ms=600_000)
    start(dsn, "patient", "patient", '["p", 2.0]')
    first = launch(dsn, *WORKER)
    until(dsn, "select count(*) = 1 from public.effects")
    os.kill(first.pid, signal.SIGTERM)
    first.wait(30)
    stop(first)
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select state, crashes from durable.tasks where id = 'patient'").fetchone()
        assert row == ("pending", 0)
        assert conn.execute("select count(*) from durable._workers").fetchone() == (0,)
    with worker(dsn):
        until(dsn, "select state = 'completed' from durable.runs where id = 'patient'")
