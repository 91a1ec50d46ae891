"""The README's code blocks do what the text around them says.

Python blocks run as programs of their own, the SQL block runs statement by statement in psql's place, and
every command of the shell blocks exists. The table "How a run travels" is checked in
tests/worker/test_walk.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.crash.processes import environment, until, worker

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def run_block(dsn: str, code: str, folder: Path) -> str:
    """Run a Python block as a program and answer what it printed."""
    file = folder / "block.py"
    file.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file], env=environment(dsn), cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hello_world_is_under_ten_lines_and_says_hello(dsn: str, tmp_path: Path) -> None:
    """The first Python block has fewer than ten lines of code and prints its greeting."""
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    assert run_block(dsn, code, tmp_path) == "hello world\n"


def test_the_longer_example_runs(dsn: str, tmp_path: Path) -> None:
    """The second Python block prints what its steps and its child run returned."""
    assert run_block(dsn, blocks("python")[1], tmp_path) == "['42: 12.50', 'label 42', 'True']\n"


def test_the_promises_example_runs(dsn: str, tmp_path: Path) -> None:
    """The fourth Python block prints the state and the value that the first answer gave."""
    assert run_block(dsn, blocks("python")[3], tmp_path) == "RESOLVED {'by': 'Ada'}\n"


def test_the_signals_example_runs(dsn: str, tmp_path: Path) -> None:
    """The third Python block buys for the lowest quote once approved, and tells that it was cancelled."""
    bought, cancelled = run_block(dsn, blocks("python")[2], tmp_path).splitlines()
    assert bought == "bought for 6"
    assert "was cancelled" in cancelled


def test_the_steering_block_steers_a_run(dsn: str) -> None:
    """The second SQL block signals, pauses, resumes, cancels and forks a run that nobody serves."""
    text = re.sub(r"--.*", "", blocks("sql")[1])
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.start('hello', '[\"world\"]', id => 'hello-1')")
        told = [conn.execute(part.encode()).fetchone() for part in map(str.strip, text.split(";")) if part]
        assert told == [(1,), ("",), (None,), ("cancelled",), ("hello-2",), ("running", {})]
        states = dict(conn.execute("select id, state from durable.runs").fetchall())
    assert states == {"hello-1": "cancelled", "hello-2": "queued"}


def test_the_protocol_block_serves_a_task(dsn: str) -> None:
    """The third SQL block offers, acquires and fulfils a task, and makes a schedule."""
    text = re.sub(r"--.*", "", blocks("sql")[2])
    create, offer, acquire, fulfill, rpc, schedule = (
        part.strip() for part in text.split(";") if part.strip()
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(create.encode())
        assert conn.execute(offer.encode()).fetchall() == [("pay-7", 0, None)]
        conn.execute(acquire.encode())
        conn.execute(fulfill.encode())
        (answer,) = conn.execute(rpc.encode()).fetchone() or ({},)
        assert answer["head"]["status"] == 200
        assert answer["data"]["promise"]["value"] == {"data": '"paid"'}
        found = conn.execute(schedule.encode()).fetchone()
        assert found is not None
        assert found[0] == "nightly"


def test_there_is_no_block_that_nothing_runs() -> None:
    """Every Python block of the README is run by a test of this file."""
    assert len(blocks("python")) == 4
    assert len(blocks("sql")) == 3


def test_the_sql_block_starts_and_shows_a_run(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a worker running, the SQL block starts a run, reads its result and its journal, and finds no law
    violated."""
    (tmp_path / "hello.py").write_text(
        blocks("python")[0].replace('print(app.run(hello, "world"))', ""), encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = re.sub(r"--.*", "", blocks("sql")[0])
    start, result, runs, journal, check = (part.strip() for part in text.split(";") if part.strip())
    with psycopg.connect(dsn, autocommit=True) as conn, worker(dsn, job="hello:app", folder=tmp_path):
        assert conn.execute(start.encode()).fetchone() == ("hello-1",)
        until(dsn, "select (durable.promise_get('hello-1')).state = 'resolved'")
        assert conn.execute(result.encode()).fetchall() == [("resolved", "hello world", None)]
        assert [row[:2] for row in conn.execute(runs.encode())] == [("hello-1", "completed")]
        events = [row[1] for row in conn.execute(journal.encode())]
        assert events == [
            "ExecutionStarted",
            "InvokeScheduled",
            "InvokeStarted",
            "InvokeCompleted",
            "ExecutionCompleted",
        ]
        assert conn.execute(check.encode()).fetchall() == []


def shell_commands() -> list[str]:
    """The `pyengine` commands of the shell blocks, without their arguments."""
    found = re.findall(r"^pyengine ((?:db )?[a-z-]+)", "\n".join(blocks("sh")), re.M)
    return sorted(set(found))


@pytest.mark.parametrize("command", shell_commands())
def test_commands_of_the_readme_exist(command: str) -> None:
    """Every pyengine command that the README names has a help text."""
    done = subprocess.run(
        [sys.executable, "-m", "pyengine", *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_tree_of_the_readme_is_the_tree() -> None:
    """Every folder in the README's map exists, and every file that the walk names."""
    names = re.findall(r"`((?:pyengine|sql|migrations|tests|bench)[\w/.]*)`", README)
    missing = [name for name in names if not (ROOT / name).exists()]
    assert missing == []
