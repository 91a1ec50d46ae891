"""One long run, and workers that are killed again and again while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.processes import kill, launch, start, stop, until

SIZES = [
    pytest.param(60, 6, id="60-steps"),
    pytest.param(1000, 100, id="1000-steps", marks=pytest.mark.full),
]


def progress(dsn: str) -> tuple[bool, int]:
    """Whether the run is over, and how many events it has."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select state = 'completed', events from durable.runs where id = 'long'"
        ).fetchone()
    assert row is not None
    return bool(row[0]), int(row[1])


@pytest.mark.parametrize(("steps", "sleeps"), SIZES)
def test_a_long_run_survives_workers_killed_every_second(
    dsn: str, steps: int, sleeps: int, figures: Callable[[str, str], None]
) -> None:
    """A run with many steps and sleeps completes although a worker is killed every second, and no recorded
    step runs again."""
    effects.prepare(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('max_crashes', '1000')")
    start(dsn, "long", "marathon", f"[{steps}, {sleeps}]")
    command = ("-m", "pyengine", "worker", "tests.system.crash.job:app")
    workers = [launch(dsn, *command), launch(dsn, *command)]
    kills = 0
    last = 0
    try:
        while True:
            time.sleep(1.0)
            over, events = progress(dsn)
            if over:
                break
            if events > last:  # killing before anything moved would prove nothing but patience
                last = events
                victim = workers.pop(0)
                kill(victim)
                kills += 1
                workers.append(launch(dsn, *command))
            until(dsn, "select events > %s or state = 'completed' from durable.runs where id = 'long'", last)
    finally:
        for process in workers:
            stop(process)
    with psycopg.connect(dsn, autocommit=True) as conn:
        result = conn.execute("select result from durable.runs where id = 'long'").fetchone()
    assert result == (sum(range(steps)),)
    assert effects.repeated(dsn) == []
    assert effects.missing(dsn) == []
    figures(
        f"long-run-{steps}",
        f"{steps} steps and {sleeps} sleeps, {kills} workers killed, 0 recorded steps ran again",
    )
