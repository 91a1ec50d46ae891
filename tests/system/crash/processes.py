"""Processes of crash tests: started with the test's database, ended by pid, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

import psycopg

ROOT = Path(__file__).parents[3]
WAIT_S = 120.0


def environment(dsn: str) -> dict[str, str]:
    """Environment of a child: the test's database and nothing else of the caller's choice."""
    return {
        **os.environ,
        "PYENGINE_DATABASE_URL": dsn,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def launch(
    dsn: str,
    *command: str,
    folder: Path = ROOT,
    log: IO[bytes] | int | None = subprocess.DEVNULL,
    talks: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start a Python process of ours.

    Args:
        variables: of its environment, besides those that it has anyway.
        talks: whether its input and output are pipes.
        log: where it writes what it logs. No pipe: nobody reads it, so whoever fills it stands still.
    """
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**environment(dsn), **variables},
        stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
        stdout=subprocess.PIPE if talks else subprocess.DEVNULL,
        stderr=log,
    )


@contextmanager
def worker(
    dsn: str,
    *options: str,
    job: str = "tests.system.crash.job:app",
    folder: Path = ROOT,
    log: IO[bytes] | int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process, stopped in an orderly way at the end if it still lives."""
    process = launch(dsn, "-m", "pyengine", "worker", job, *options, folder=folder, log=log)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End one of our processes: politely, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def until(dsn: str, question: str, *args: object) -> None:
    """Wait until a query answers true, through a server that comes back; fail with what the runs look like
    if it never does."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
            while time.monotonic() < deadline:
                row = conn.execute(question.encode(), args).fetchone()
                if row is not None and row[0]:
                    return
                time.sleep(0.05)
        time.sleep(0.05)
    with psycopg.connect(dsn, autocommit=True) as conn:
        runs = conn.execute(
            "select id, state, worker, crashes, problem, waits_for from durable.runs where state <> "
            "'completed' limit 10"
        ).fetchall()
    raise AssertionError(f"never true: {question}\nruns that are not done: {runs}")


def start(dsn: str, run: str, workflow: str, args: str, queue: str = "default") -> None:
    """Start a run through the SQL door."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select durable.start(%s, %s::jsonb, id => %s, queue => %s)", (workflow, args, run, queue)
        )
