"""``pyengine demo`` from end to end: real workers, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.demo import effects
from tests.cli.packages import installed, sources, wheel
from tests.support.verbs import begin_run, complete, report, take_turn


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Three installed distributions and a wheel."""
    place = tmp_path / "site"
    for name in ("one", "two", "three"):
        installed(place, name, sources(name, 6))
    wheel(place, "four", sources("four", 6))
    return place


def test_kills_lose_nothing_and_repeat_nothing(
    at_database: Any, site: Path, conn: psycopg.Connection[Any]
) -> None:
    """With two kills every file is verified, no recorded step runs again, and the run is found again."""
    at_database("db", "set", "presence_grace_ms", "200")
    answer = at_database("demo", str(site), "--json")
    told = answer.document
    assert answer.code == 0, told
    assert told["totals"] | {"bytes": 0, "skipped": 0} == {
        "distributions": 4, "without_record": 0, "files": 24, "bytes": 0, "skipped": 0,
        "mismatch": 0, "missing": 0, "unreadable": 0,
    }  # fmt: skip
    assert len([kill for kill in told["kills"] if kill["held"]]) == 2
    interrupted = sorted(attempt["run_id"] for attempt in told["interrupted_attempts"])
    assert interrupted == sorted(id for kill in told["kills"] for id in kill["held"])
    assert (told["repeated_after_recorded"], told["check"]) == (0, [])
    again = at_database("demo", str(site), "--json").document
    assert (again["found_finished"], again["run_id"], again["kills"]) == (True, told["run_id"], [])
    shown = at_database("demo", str(site)).out
    for words in (
        "finished",
        "All 24 files",
        "after they were recorded: 0",
        "interrupted",
        "no law is broken",
        "db psql",
    ):
        assert words in shown
    assert conn.execute("select count(*) from durable.tasks where state <> 'fulfilled'").fetchone() == (0,)


def test_a_stopped_audit_continues_and_names_the_problems(at_database: Any, dsn: str, site: Path) -> None:
    """Ctrl-C leaves the run, the same command ends it; a tampered and a missing file exit 1."""
    tampered = site / "two" / "m3.py"
    tampered.write_bytes(tampered.read_bytes() + b"#")
    (site / "one" / "m1.py").unlink()
    # what the killed worker held stays with it for this long, so the interrupt comes before the end
    at_database("db", "set", "presence_grace_ms", "5000")
    command = [sys.executable, "-m", "pyengine", "demo", str(site)]
    environment = os.environ | {"PYENGINE_DATABASE_URL": dsn, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    running = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # whoever runs the tests in the background may ignore Ctrl-C, and what they start would inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("kill -9") and "nothing any more" not in line:
            running.send_signal(signal.SIGINT)
            break
    rest = running.stdout.read()
    assert running.wait() == 130, rest
    assert "Go on with: " in rest
    assert "Traceback" not in rest
    at_database("db", "set", "presence_grace_ms", "200")
    answer = at_database("demo", str(site))
    assert answer.code == 1
    assert f"mismatch: {tampered} (" in answer.out
    assert f"missing: {site / 'one' / 'm1.py'} (" in answer.out
    assert "after they were recorded: 0" in answer.out
    assert len(at_database("ps", "--json").document) == 1


@pytest.mark.session("the server process that waits is looked for")
def test_runs_that_end_in_the_last_turn_of_a_killed_worker_are_not_counted(
    dsn: str, conn: psycopg.Connection[Any]
) -> None:
    """The query of the runs that a process has leased waits for its turn under way in the server."""
    effects.install(conn)
    conn.execute("insert into pyengine_demo.workers values ('W', 'one', 1)")
    run = begin_run(conn, "audit")
    assert effects.leased_runs(conn, "audit") == {1: ["audit"]}
    with (
        psycopg.connect(dsn) as dying,
        psycopg.connect(dsn, autocommit=True) as looking,
        ThreadPoolExecutor() as pool,
    ):
        take_turn(dying, "W", report(run, end=complete()))
        look = pool.submit(effects.leased_runs, looking, "audit")
        blocked = "select pg_blocking_pids(%s) = array[%s::integer]"
        while not conn.execute(blocked, (looking.info.backend_pid, dying.info.backend_pid)).fetchone()[0]:
            assert not look.done()
        dying.commit()
        assert look.result() == {}


def test_nothing_to_audit_is_reported_before_any_database(pyengine: Any, tmp_path: Path) -> None:
    """A wrong path exits with a message and starts no server."""
    assert pyengine("demo", str(tmp_path / "none"), "--data-dir", str(tmp_path / "data")).code == 3
    assert pyengine("demo", str(tmp_path), "--data-dir", str(tmp_path / "data")).code == 3
    assert not (tmp_path / "data").exists()
