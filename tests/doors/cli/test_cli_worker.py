"""``pyengine worker MODULE:APP``: what it finds, and how it lives and ends."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.doors.admin import migrate
from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.display.logs import LogOptions
from pyengine.doors.cli.output import Output
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import SETTINGS, Server, make_folder

HELLO = """
from pyengine import App

app = App()
other = 3


@app.step
async def greet(name: str) -> str:
    return f"hello {name}"


@app.workflow
async def hello(name: str) -> str:
    return await greet(name)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules in it."""
    (tmp_path / "cli_hello.py").write_text(HELLO)
    (tmp_path / "cli_broken.py").write_text("import cli_hello\n1 / 0\n")
    (tmp_path / "cli_refused.py").write_text("from cli_hello import *\napp.step(f := lambda n: n)\n")
    (tmp_path / "cli_syntax.py").write_text("x = (\n")
    (tmp_path / "cli_needs.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "cli_empty.py").write_text("from pyengine import App\n\napp = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("cli_nosuch:app", 3, "there is no module cli_nosuch"),
        ("cli_hello:ap", 3, "pyengine worker cli_hello:app"),
        ("cli_hello:other", 2, "is a int, not an App"),
        ("cli_hello:hello", 2, "is a Workflow, not an App"),
        ("cli_broken:app", 1, "ZeroDivisionError: division by zero"),
        ("cli_broken:app", 1, "cli_broken.py, line 2)"),
        ("cli_refused:app", 1, "cli_refused.py, line 2)\nhint: @step(name=...)"),
        ("cli_syntax:app", 1, "never closed (cli_syntax.py, line 1)\n"),
        ("cli_needs:app", 1, "imports no_such_module_at_all, which is not installed"),
        ("cli_empty:app", 3, "has no workflow"),
        ("cli-hello:app", 2, "no module name"),
        ("", 2, "no module name"),
    ],
)
def test_anything_but_an_app_is_one_message(
    pyengine: Any, folder: Path, name: str, code: int, said: str
) -> None:
    """A wrong name exits with one or two lines that say what to type."""
    answer = pyengine("worker", name)
    assert answer.code == code
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) <= 2


def test_a_database_that_is_down_is_reported(pyengine: Any, folder: Path) -> None:
    """With --no-wait the worker does not begin without its database."""
    url = "postgresql://me:tops3cret@127.0.0.1:1/db"
    answer = pyengine("worker", "cli_hello:app", "--no-wait", "--database-url", url)
    assert (answer.code, "tops3cret" in answer.err) == (4, False)


def test_a_database_that_refuses_us_is_not_waited_for(pyengine: Any, folder: Path, server: Server) -> None:
    """Waiting makes no database that is not there, and no password right."""
    answer = pyengine("worker", "cli_hello:app", "--database-url", server.dsn("no_such_database"))
    assert (answer.code, "does not exist" in answer.err) == (4, True)


def test_a_database_that_comes_later_is_waited_for(folder: Path) -> None:
    """A worker that is started first says that it waits, and serves when the server is there."""
    place = make_folder()
    with EmbeddedPostgres(place, settings=SETTINGS) as server:
        dsn = server.dsn
        migrate.install(dsn)
        with psycopg.connect(dsn) as conn:
            conn.execute("select durable.start('hello', '[\"world\"]', id => 'r', any_workflow => true)")
    running = launch(dsn)
    try:
        assert running.stderr is not None
        assert "waiting for it (--no-wait ends instead)" in running.stderr.readline()
        with server, psycopg.connect(dsn, autocommit=True) as conn:
            while conn.execute("select state from durable.result('r')").fetchone() != ("resolved",):
                time.sleep(0.05)
            running.send_signal(signal.SIGTERM)
            running.communicate()
    finally:
        running.kill()
        running.communicate()
        shutil.rmtree(place, ignore_errors=True)
    assert running.returncode == 0


def test_the_connection_that_was_waited_for_is_used(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes away as it is reached is waited for; then no other connection is needed."""
    real = psycopg.connect

    def lost(*args: Any, **options: Any) -> Any:
        conn = real(*args, **options)
        conn.close()
        return conn

    found: list[Callable[..., Any]] = [real, lost]
    monkeypatch.setattr(psycopg, "connect", lambda *args, **options: found.pop()(*args, **options))
    with Invocation(out=Output(), database_url=dsn).database(wait=True) as db:
        assert found == []
        assert db.conn.execute("select 1").fetchone() == (1,)


def launch(dsn: str, *options: str) -> subprocess.Popen[str]:
    """The worker in a process of its own."""
    package = str(Path(__file__).resolve().parents[3])
    return subprocess.Popen(
        [sys.executable, "-m", "pyengine", "worker", "cli_hello", "--concurrency", "3", *options],
        env=os.environ
        | {
            "PYENGINE_DATABASE_URL": dsn,
            "PYTHONPATH": package,
            "PYTHONUNBUFFERED": "1",
            "GREETING": "good day",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_serves_adapters_too(at_database: Any, dsn: str, folder: Path) -> None:
    """Beside its runs, with the options of adapters; one without its program does not begin."""
    absent = at_database("worker", "cli_hello", "--adapter", "no-such-program-at-all")
    assert (absent.code, "no-such-program-at-all" in absent.err) == (3, True)
    program = folder / "echo"
    answer = '{"v":1,"status":"done","outcome":"ok","value":{"string":"%s"}}'
    program.write_text(f"#!/bin/sh\nprintf '{answer}' \"$GREETING\"\n")
    program.chmod(0o755)
    running = launch(dsn, "--adapter", f"echo={program}", "--env", "GREETING", "--max-procs", "2")
    try:
        assert running.stdout is not None
        assert "and the adapter echo" in running.stdout.readline()
        call = "select durable.call('dml+exec://echo/x', '[1]', scope => 's')"
        with psycopg.connect(dsn, autocommit=True) as conn:
            while (found := conn.execute(call).fetchone()) is not None and found[0]["status"] is None:
                time.sleep(0.05)
        assert found is not None and found[0]["value"] == "good day"
        good = at_database("start", "hello", '["world"]', "--wait", "--anyway", "--json")
        assert good.document["result"] == "hello world"
    finally:
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate()
    assert (running.returncode, "Traceback" in errors) == (0, False)


def test_a_worker_serves_until_it_is_stopped(at_database: Any, dsn: str, folder: Path) -> None:
    """Runs are served by the working directory's module; SIGTERM ends it with exit code 0. It begins with a
    sentence that says from where (F13).
    """
    running = launch(dsn)
    try:
        assert running.stdout is not None
        assert "serves hello from queue default in the database " in running.stdout.readline()
        good = at_database("start", "hello", '["world"]', "--wait", "--anyway", "--json")
        assert (good.code, good.document["result"]) == (0, "hello world")
        wrong = at_database("start", "hello", '{"nam": "x"}', "--wait")
        assert (wrong.code, "'name'" in wrong.out) == (1, True)
        assert "did you mean hello?" in at_database("start", "helo", "[]").err
        assert "hello" in at_database("db", "status").out
    finally:
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate()
    assert (running.returncode, "Traceback" in errors) == (0, False)
    # a log line names the object of its event
    assert re.search(r"worker_started worker=\S+-\d+-\w+ ", errors)
    assert errors.endswith("worker stopped\n")


def stopped(running: subprocess.Popen[str]) -> list[str]:
    """Stop a worker; return the lines of its log."""
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate()
    assert running.returncode == 0
    return errors.splitlines()


def test_the_log_as_json(at_database: Any, dsn: str, folder: Path) -> None:
    """--log-json writes one object a line; --verbose adds the life of each run; no arguments are in it."""
    running = launch(dsn, "--log-json", "--verbose")
    try:
        assert running.stdout is not None and running.stdout.readline()
        assert (
            at_database("start", "hello", '{"nam": "x-secret"}', "--wait", "--anyway", "--id", "r").code == 1
        )
    finally:
        lines = stopped(running)
    records = [json.loads(line) for line in lines if line != "worker stopped"]
    assert [one["event"] for one in records if one.get("run") == "r"] == ["run_began", "run_failed"]
    (failed,) = (one for one in records if one.get("event") == "run_failed")
    assert {"time", "level", "logger", "message", "workflow", "queue"} <= failed.keys()
    assert (failed["level"], failed["logger"]) == ("error", "pyengine.worker")
    assert "x-secret" not in "".join(lines)


FAILING = """
from pyengine import App, Retry

app = App()


@app.step(retry=Retry(max_attempts=2, initial="1h"))
async def charge(order: int) -> None:
    raise ConnectionError("the bank does not answer")


@app.step
async def divide(order: int) -> float:
    return order / 0


@app.workflow
async def checkout(order: int) -> None:
    await charge(order)


@app.workflow
async def bill(order: int) -> float:
    return await divide(order)
"""


def test_show_has_the_traceback(at_database: Any, dsn: str, folder: Path) -> None:
    """Of a run that failed, and of one whose step waits for its next attempt; no line is too long."""
    (folder / "cli_hello.py").write_text(FAILING)
    running = launch(dsn)
    try:
        assert running.stdout is not None and running.stdout.readline()
        assert at_database("start", "bill", "[1]", "--id", "bill-1", "--wait").code == 1
        assert at_database("start", "checkout", "[1]", "--id", "checkout-1").code == 0
        with psycopg.connect(dsn, autocommit=True) as conn:
            text = "select 1 from durable.journal_events where id = 'checkout-1' and event = 'InvokeRetrying'"
            while conn.execute(text).fetchone() is None:
                time.sleep(0.05)
    finally:
        stopped(running)
    failed, waits = (at_database("show", id).out.splitlines() for id in ("bill-1", "checkout-1"))
    for shown, title, step, line in (
        (failed, "failure", "divide", "return order / 0"),
        (waits, "last failed attempt", "charge", 'raise ConnectionError("the bank does not answer")'),
    ):
        first = shown.index(title)
        assert f", step {step}, attempt 1, worker " in shown[first + 1]
        assert "cli_hello.py" in shown[first + 2] and "Traceback" in shown[first + 3]
        assert f"      {line}" in shown
        assert max(map(len, shown)) <= 160


def test_a_module_that_configures_logging(dsn: str, folder: Path) -> None:
    """Its configuration is left as it is."""
    with (folder / "cli_hello.py").open("a") as module:
        module.write('import logging\nlogging.basicConfig(format="mine: %(message)s", level=logging.INFO)\n')
    running = launch(dsn, "--log-json")
    try:
        assert running.stderr is not None
        while "has started" not in (line := running.stderr.readline()):
            assert running.poll() is None
        assert line.startswith("mine: worker ")
    finally:
        stopped(running)


def test_the_log_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """People get the sentence with its level in colour, and a dim traceback; no colour with NO_COLOR."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    root = logging.Logger("root")
    monkeypatch.setattr(logging, "getLogger", lambda name=None: root)
    monkeypatch.setattr(sys, "stderr", Screen())
    LogOptions().configure()
    root.warning("step failed\nTraceback", extra={"event": "attempt_failed"})
    monkeypatch.setenv("NO_COLOR", "1")
    root.warning("step failed\nTraceback")
    colored, trace, plain, _ = sys.stderr.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \x1b\[33mWARNING\x1b\[0m step failed", colored)
    assert trace == "\x1b[2m    Traceback\x1b[0m"
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING step failed", plain)
