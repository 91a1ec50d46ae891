"""``pyengine demo`` from end to end: real workers, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.doors.demo import audit
from pyengine.doors.demo.audit import Verdict
from tests.doors.cli.packages import installed, sources


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Four installed packages."""
    place = tmp_path / "site"
    for name in ("one", "two", "three", "four"):
        installed(place, name, sources(name, 6))
    return place


def test_kills_lose_nothing_and_repeat_nothing(
    at_database: Any, site: Path, conn: psycopg.Connection[Any]
) -> None:
    """With two kills every file is verified, and no recorded step runs again; a second audit is a new one."""
    at_database("db", "set", "presence_grace_ms", "200")
    answer = at_database("demo", str(site), "--json")
    told = answer.document
    assert answer.code == 0, told
    assert (told["files"], told["problems"]) == (24, [])
    assert told["bytes"] == sum(file.stat().st_size for file in site.glob("*/*.py"))
    assert len(told["killed"]) == 2 and told["interrupted"]
    assert told["bodies_run"] >= 1 + 4 + 24
    assert (told["repeated_after_recorded"], told["check"]) == (0, [])
    again = at_database("demo", str(site))
    assert again.code == 0
    for words in ("kill -9", "All 24 files", "recorded: 0", "interrupted", "no law is broken", "db psql"):
        assert words in again.out
    states = "select workflow, state, count(*) from durable.runs group by 1, 2 order by 1"
    assert conn.execute(states).fetchall() == [("audit", "completed", 2), ("audit_package", "completed", 8)]


def test_a_stopped_audit_continues_and_names_the_problems(at_database: Any, dsn: str, site: Path) -> None:
    """Ctrl-C leaves the run, the same command ends it; a tampered and a missing file exit 1."""
    tampered = site / "two" / "m3.py"
    tampered.write_bytes(tampered.read_bytes() + b"#")
    (site / "one" / "m1.py").unlink()
    # what the killed worker held stays with it for this long, so the interrupt comes before the end
    at_database("db", "set", "presence_grace_ms", "5000")
    command = [sys.executable, "-m", "pyengine", "demo", str(site)]
    environment = os.environ | {"PYENGINE_DATABASE_URL": dsn, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
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
        if line.startswith("kill -9"):
            running.send_signal(signal.SIGINT)
            break
    rest = running.stdout.read()
    assert running.wait() == 130, rest
    assert "Go on with: " in rest
    assert "Traceback" not in rest
    at_database("db", "set", "presence_grace_ms", "200")
    answer = at_database("demo", str(site))
    assert answer.code == 1
    assert f"mismatch: {tampered}\n" in answer.out
    assert f"missing: {site / 'one' / 'm1.py'}\n" in answer.out
    assert "after they were recorded: 0" in answer.out
    assert len(at_database("ps", "--json").document) == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda file: file.write_bytes(b"# one X\n"), "mismatch"),
        (lambda file: file.unlink(), "missing"),
        (lambda file: (file.unlink(), file.mkdir()), "missing"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "missing"),
    ],
)
def test_a_file_is_compared_with_its_line(
    tmp_path: Path, change: Callable[[Path], object], problem: str
) -> None:
    """Other content, no file, and what is no file, which is never read, are told apart."""
    record = installed(tmp_path, "one", sources("one", 2))
    change(tmp_path / "one" / "m0.py")
    verdict = verify(record)
    assert [(found.kind, Path(found.path).name) for found in verdict.problems] == [(problem, "m0.py")]
    assert verdict.files == 2


@pytest.mark.parametrize("line", ["one/m0.py,nosuch=abc,3", "one/m0.py,shake_128=abc,3"])
def test_a_hash_that_cannot_be_made_is_a_problem(tmp_path: Path, line: str) -> None:
    """And no crash; lines without a hash are left out."""
    record = installed(tmp_path, "one", sources("one", 1), line, "one/what.py,,")
    assert [found.kind for found in verify(record).problems] == ["unreadable"]


def verify(record: Path) -> Verdict:
    """What the audit's step says of all files of a package, without the engine."""
    lines = audit.hashed_lines(str(record.parent))
    return sum((audit.verify_file(record.parent.parent / path, known) for path, known in lines), Verdict())


def test_nothing_to_audit_is_reported_before_any_database(pyengine: Any, tmp_path: Path) -> None:
    """A wrong path exits with a message and starts no server."""
    assert pyengine("demo", str(tmp_path / "none"), "--data-dir", str(tmp_path / "data")).code == 3
    assert pyengine("demo", str(tmp_path), "--data-dir", str(tmp_path / "data")).code == 3
    assert not (tmp_path / "data").exists()
