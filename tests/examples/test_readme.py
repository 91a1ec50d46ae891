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


def blocks(language: str, heading: str | None = None) -> list[str]:
    """Code blocks of one language, in order, of the whole text or under one heading."""
    text = README
    if heading is not None:
        (text,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def block(language: str, heading: str, place: int = 0) -> str:
    """One code block under a heading."""
    return blocks(language, heading)[place]


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
    code = block("python", "Hello world")
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    assert run_block(dsn, code, tmp_path) == "hello world\n"


def test_the_longer_example_runs(dsn: str, tmp_path: Path) -> None:
    """The Python block prints what its steps and its child run returned."""
    assert run_block(dsn, block("python", "More of it"), tmp_path) == "['42: 12.50', 'label 42', 'True']\n"


def test_the_promises_example_runs(dsn: str, tmp_path: Path) -> None:
    """The Python block prints the state and the value that the first answer gave."""
    assert (
        run_block(dsn, block("python", "Durable promises by themselves"), tmp_path)
        == "RESOLVED {'by': 'Ada'}\n"
    )


def test_the_signals_example_runs(dsn: str, tmp_path: Path) -> None:
    """The Python block buys for the lowest quote once approved, and tells that it was cancelled."""
    bought, cancelled = run_block(
        dsn, block("python", "Signals, join sets, cancelling"), tmp_path
    ).splitlines()
    assert bought == "bought for 6"
    assert "was cancelled" in cancelled


def test_the_steering_block_steers_a_run(dsn: str) -> None:
    """The SQL block signals, pauses, resumes, cancels and forks a run that nobody serves."""
    text = re.sub(r"--.*", "", block("sql", "Signals, join sets, cancelling"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.start('hello', '[\"world\"]', id => 'hello-1')")
        told = [conn.execute(part.encode()).fetchone() for part in map(str.strip, text.split(";")) if part]
        assert told == [(1,), ("",), ("",), ("cancelled",), ("hello-2",), ("running", {})]
        states = dict(conn.execute("select id, state from durable.runs").fetchall())
    assert states == {"hello-1": "cancelled", "hello-2": "queued"}


def test_the_block_about_many(dsn: str) -> None:
    """The SQL block pauses what is there, finds it, and cancels it."""
    text = re.sub(r"--.*", "", block("sql", "Signals, join sets, cancelling", 1))
    with psycopg.connect(dsn, autocommit=True) as conn:
        for id in ("hello-1", "hello-2"):
            conn.execute("select durable.start('hello', '[\"world\"]', id => %s)", (id,))
        told = [conn.execute(part.encode()).fetchall() for part in map(str.strip, text.split(";")) if part]
    paused = [("hello-1", "done", "paused"), ("hello-2", "done", "paused"), ("hello-3", "not_found", None)]
    found = ["hello-1", "hello-2"]
    assert told == [paused, [(found,)], [("hello-1", "done"), ("hello-2", "done")]]


def test_the_transaction_example_moves_money_once(dsn: str, tmp_path: Path) -> None:
    """The Python block moves money, refuses what is not there, and starts a receipt with it."""
    assert run_block(dsn, block("python", "Your own rows, exactly once"), tmp_path) == (
        "70\nann cannot pay 500\n30 from ann to bob\n"
    )


def test_the_example_of_waiting_for_a_row(dsn: str, tmp_path: Path) -> None:
    """The Python block ends when its order was paid, and says so."""
    assert run_block(dsn, block("python", "Waiting for a row"), tmp_path) == "order 42 is paid\n"


def test_the_block_about_watches(dsn: str) -> None:
    """The SQL block watches a table, shows the watch and takes it away."""
    text = re.sub(r"--.*", "", block("sql", "Waiting for a row"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        table, watch, watches, unwatch = (part.strip() for part in text.split(";") if part.strip())
        conn.execute(table.encode())
        assert conn.execute(watch.encode()).fetchone() == ("ticket.sold",)
        expected = ("ticket.sold", ["id"], "(sold AND (seat IS NOT NULL))", "ok", 0)
        assert conn.execute(watches.encode()).fetchall() == [expected]
        assert conn.execute(unwatch.encode()).fetchone() == (0,)
        assert conn.execute(watches.encode()).fetchall() == []


def test_the_example_of_functions(dsn: str, tmp_path: Path) -> None:
    """The Python block withdraws once, tells why it cannot, and gets a report from a service."""
    assert run_block(dsn, block("python", "Functions of the database"), tmp_path) == (
        "70 left, 1 booking\ntoo little: pay in first\n"
    )


def test_the_block_about_services(dsn: str) -> None:
    """The SQL block serves a function, starts a run of it and reads its result, with psql alone."""
    text = re.sub(r"--.*", "", block("sql", "Functions of the database"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        parts = [part for part in map(str.strip, text.split(";")) if part]
        tick = next(part for part in parts if "tick" in part)
        for part in parts[:-2]:
            conn.execute(part.encode())
        while conn.execute("select durable.services_due_v1()").fetchone() == (0,):
            conn.execute(tick.encode())
        assert conn.execute(parts[-2].encode()).fetchone() == ("resolved", 144)
        assert conn.execute(parts[-1].encode()).fetchone() == ("sql://report.square", 5, 0)


def test_the_protocol_block_serves_a_task(dsn: str) -> None:
    """The SQL block offers, acquires and fulfils a task, and makes a schedule."""
    text = re.sub(r"--.*", "", block("sql", "Durable promises by themselves"))
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


def test_the_block_about_the_door(dsn: str) -> None:
    """The SQL block starts two runs from a table, settles a promise by a trigger and waits for it."""
    text = re.sub(r"--.*", "", block("sql", "The SQL door"))
    before, call, after = re.split(r"^(call [^;]*;) *$", text, flags=re.M)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(before.encode())
        assert conn.execute("select args ->> 'address' from durable.runs order by 1").fetchall() == [
            ("ann@example.org",),
            ("bob@example.org",),
        ]
        assert conn.execute(call.encode()).fetchone() == ("resolved", {"id": 7, "paid": True}, None)
        conn.execute(after.encode())
        assert conn.execute("select count(*) from durable._schedules").fetchone() == (0,)


@pytest.mark.session("the reader has a driver with its defaults")
def test_the_example_in_ones_own_transaction(dsn: str, tmp_path: Path) -> None:
    """The Python block ships one order, and of the other one, whose transaction fails, there is no run."""
    assert run_block(dsn, block("python", "In your own transaction"), tmp_path) == "parcel 42\n['order-42']\n"


def test_the_block_about_operation(dsn: str) -> None:
    """The SQL block tells that all is well."""
    text = re.sub(r"--.*", "", block("sql", "In operation"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert [ok for _, ok, _, _ in conn.execute(text.encode()).fetchall()] == [True] * 4


def test_the_block_about_foreign_keys(dsn: str) -> None:
    """The SQL block makes a table that refers to runs, starts one with its row, and joins both."""
    text = re.sub(r"--.*", "", block("sql", "Foreign keys to runs"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        told = [conn.execute(part.encode()) for part in map(str.strip, text.split(";")) if part]
        assert told[-1].fetchall() == [(42, "queued", "fulfil")]


def test_the_block_about_reading(dsn: str) -> None:
    """Each statement of the SQL block answers what its comment says, of a live and a completed run."""
    text = re.sub(r"--.*", "", block("sql", "States"))
    with psycopg.connect(dsn, autocommit=True) as conn:
        for id_ in ("hello-1", "open", "bad"):
            conn.execute("select durable.start('hello', id => %s)", (id_,))
        conn.execute("select durable.resolve('hello-1', '1'), durable.reject('bad', '1')")
        told = [
            conn.execute(f"select array_agg(id) from ({part.strip(' ;')}) x".encode()).fetchone()
            for part in text.strip().splitlines()
        ]
        assert told == [
            (["bad", "open", "hello-1"],),
            (["hello-1"],),
            (["bad"],),
            (["bad"],),
            (None,),
            (["open"],),
        ]


def test_the_block_about_old_runs(dsn: str) -> None:
    """The SQL block removes what is old, and nothing else, and sets the retention."""
    purge, setting = block("sql", "Old runs").strip().splitlines()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select durable.start('w', id => n), durable.resolve(n, '1') from unnest('{old,new}'::text[]) n"
        )
        conn.execute("update durable._promises set created_at = 1, settled_at = 2 where id = 'old'")
        assert conn.execute(purge.encode()).fetchall() == [(1, 1, {}, None)]
        assert conn.execute("select id from durable.runs").fetchall() == [("new",)]
        conn.execute(setting.encode())
        assert conn.execute("select durable._setting('retention_days')").fetchone() == ("30",)


def test_the_example_without_asyncio(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a worker running, the Python block waits for a result and starts a run in a transaction."""
    served = block("python", "Hello world").replace('print(app.run(hello, "world"))', "")
    (tmp_path / "hello.py").write_text(served, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with worker(dsn, job="hello:app", folder=tmp_path):
        until(dsn, "select exists (select from durable.workers)")
        printed = run_block(dsn, block("python", "Without asyncio"), tmp_path)
    assert printed == "hello world\n['you'] ['hello-4', 'hello-3']\n"


def test_there_is_no_block_that_nothing_runs() -> None:
    """Every Python and SQL block of the README is run by a test of this file, which names its heading."""
    code = Path(__file__).read_text(encoding="utf-8")
    run = set(re.findall(r'block\("(python|sql)", "([^"]+)"(?:, (\d))?\)', code))
    headings = re.findall(r"^## (.*)$", README, re.M)
    there = {
        (language, heading, str(place) if place else "")
        for language in ("python", "sql")
        for heading in headings
        for place in range(len(blocks(language, heading)))
    }
    assert there == run


def test_the_sql_block_starts_and_shows_a_run(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a worker running, the SQL block starts a run, reads its result and its journal, and finds no law
    violated."""
    (tmp_path / "hello.py").write_text(
        block("python", "Hello world").replace('print(app.run(hello, "world"))', ""), encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = re.sub(r"--.*", "", block("sql", "The same from SQL"))
    start, result, runs, journal, check, check_one = (
        part.strip() for part in text.split(";") if part.strip()
    )
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
        for checks in (check, check_one):
            assert conn.execute(checks.encode()).fetchall() == []


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
    """Every folder in the README's map exists, and every file and module that it names."""
    names = re.findall(r"`((?:pyengine|sql|migrations|tests|bench)[\w/.]*)`", README)
    modules = {name: ROOT / f"{name.replace('.', '/')}.py" for name in names}
    missing = [name for name in names if not (ROOT / name).exists() and not modules[name].exists()]
    assert missing == []
