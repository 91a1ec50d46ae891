"""Starting, attaching, sharing and stopping, when nothing goes wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from pyengine.doors.embedded.postmaster import read_postmaster
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.errors import EmbeddedPostgresError

ROOT = Path(__file__).resolve().parents[3]
FAST = {"fsync": "off"}
Start = Callable[[], Any]


def ask(dsn: str, question: str) -> Any:
    """Ask a server one question."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question).fetchone()
        return row[0] if row else None


async def ask_async(dsn: str, question: str) -> Any:
    """Ask a server one question by the other driver."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def test_a_cold_start_makes_a_durable_server(fresh_home: Path) -> None:
    """In an empty folder a server comes up with fsync on, a closed socket and no TCP."""
    with EmbeddedPostgres(fresh_home) as postgres:
        assert ask(postgres.dsn, "show fsync") == "on"
        assert ask(postgres.dsn, "show listen_addresses") == ""
        assert ask(postgres.dsn, "show server_encoding") == "UTF8"
        assert stat.S_IMODE((fresh_home / "run" / ".s.PGSQL.5432").stat().st_mode) == 0o700
    assert read_postmaster(fresh_home / "data") is None


def test_both_drivers_take_the_url(home: Path) -> None:
    """asyncpg and psycopg connect with the same URL, to any database of the server."""
    name = f"my engine? {os.getpid()}"
    with EmbeddedPostgres(home, FAST) as postgres:
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute(f'drop database if exists "{name}"')
            connection.execute(f'create database "{name}"')
        for dsn, answer in ((postgres.dsn, "postgres"), (postgres.database(name), name)):
            assert ask(dsn, "select current_database()") == answer
            assert asyncio.run(ask_async(dsn, "select current_database()")) == answer


def test_a_warm_start_keeps_rows(home: Path) -> None:
    """What was written is there after stop and start, also by another object."""
    for count in range(3):
        with EmbeddedPostgres(home, FAST) as postgres, psycopg.connect(postgres.dsn) as connection:
            connection.execute("insert into notes values ('warm start')")
            row = connection.execute("select count(*) from notes where word = 'warm start'").fetchone()
            assert row == (count + 1,)


def test_settings_can_be_overridden(home: Path) -> None:
    """A setting that is given counts over ours and over the server's."""
    with EmbeddedPostgres(home, {"fsync": "off", "jit": "on", "work_mem": "7MB"}) as postgres:
        assert [ask(postgres.dsn, f"show {name}") for name in ("fsync", "jit", "work_mem")] == [
            "off",
            "on",
            "7MB",
        ]


def test_start_and_stop_may_be_repeated(home: Path) -> None:
    """A second start changes nothing, a second stop does nothing, and the URL needs a started server."""
    postgres = EmbeddedPostgres(home, FAST)
    assert postgres.stop() is False
    with pytest.raises(EmbeddedPostgresError, match=r"call start\(\) first"):
        _ = postgres.dsn
    assert postgres.start() == postgres.start() == postgres.dsn
    assert (postgres.stop(), postgres.stop()) == (True, False)
    assert postgres.start()
    assert postgres.stop() is True


def test_the_psql_command_can_be_typed(home: Path) -> None:
    """The command line that a person is shown works in a shell."""
    with EmbeddedPostgres(home, FAST) as postgres:
        command = f"{postgres.psql_command()} -XAtc 'select 6*7'"
        said = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert said.stdout.strip() == "42"


def test_objects_of_one_process_share_the_server(home: Path) -> None:
    """Several objects of one process count separately; the last one out stops the server."""
    first, second = EmbeddedPostgres(home, FAST), EmbeddedPostgres(home, FAST)
    assert first.start() == second.start()
    assert first.stop() is False
    assert ask(second.dsn, "select 1") == 1
    assert second.stop() is True


def test_another_process_attaches_and_the_last_one_out_stops(home: Path, user_process: Start) -> None:
    """A server outlives the process that started it as long as another one uses it."""
    other = user_process()
    postgres = EmbeddedPostgres(home)
    dsn = postgres.start()
    assert other.stop() == "False"
    other.end()
    assert ask(dsn, "select 1") == 1
    assert postgres.stop() is True
    assert read_postmaster(home / "data") is None


def test_a_process_that_ends_without_stop_stops_too(
    home: Path, user_process: Start, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """An orderly end of the interpreter counts as stop."""
    other = user_process()
    assert read_postmaster(home / "data") is not None
    other.end()
    assert eventually(lambda: read_postmaster(home / "data") is None)


def test_six_processes_at_once_on_a_fresh_folder(fresh_home: Path) -> None:
    """Of six that start at once one makes the data, all connect, and exactly the last stops the server."""
    code = (
        "import sys, psycopg; from pyengine.doors.embedded import EmbeddedPostgres\n"
        "p = EmbeddedPostgres(sys.argv[1], {'fsync': 'off'}); c = psycopg.connect(p.start())\n"
        "print(c.execute('select system_identifier from pg_control_system()').fetchone()[0], flush=True)\n"
        "c.close(); sys.stdin.readline(); print(p.stop())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(fresh_home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for _ in range(6)
    ]
    identifiers = {each.stdout.readline() for each in processes if each.stdout}
    assert len(identifiers) == 1
    assert identifiers != {""}
    said = [each.communicate("go\n", timeout=60)[0].strip() for each in processes]
    assert sorted(said) == ["False"] * 5 + ["True"]


def test_threads_may_start_and_stop_at_once(home: Path) -> None:
    """Objects in several threads of one process come and go without losing the server to each other."""
    answers: list[Any] = []

    def use() -> None:
        for _ in range(3):
            with EmbeddedPostgres(home, FAST) as postgres:
                answers.append(ask(postgres.dsn, "select 1"))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == [1] * 12
    assert read_postmaster(home / "data") is None


def test_a_forked_child_does_not_count_as_a_user(home: Path) -> None:
    """A child of fork is no user: the parent stops the server while it lives, its own stop does nothing."""
    code = (
        "import os, sys; from pyengine.doors.embedded import EmbeddedPostgres\n"
        "p = EmbeddedPostgres(sys.argv[1]); p.start()\n"
        "r, w = os.pipe(); r2, w2 = os.pipe(); child = os.fork()\n"
        "if not child: os.write(w, str(p.stop()).encode()); os.read(r2, 1); os._exit(0)\n"
        "print(os.read(r, 5).decode(), p.stop()); os.write(w2, b'x'); os.waitpid(child, 0)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(home)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert said.stdout.split() == ["False", "True"], said.stderr


def test_a_long_path_gets_a_short_socket(move_below: Callable[[str], Path]) -> None:
    """Where a socket's path would be too long, a short folder is used, found by others and removed again."""
    deep = move_below("a" * 60 + "/" + "b" * 60)
    first, second = EmbeddedPostgres(deep, FAST), EmbeddedPostgres(deep, FAST)
    assert first.start() == second.start()
    assert ask(second.dsn, "select 1") == 1
    short = Path(first.dsn.partition("host=")[2].partition("&")[0])
    assert len(str(short)) < 40
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    first.stop()
    assert short.exists()
    second.stop()
    assert not short.exists()


@pytest.mark.parametrize("name", ["with space", "with,comma", "ünï+100%&x=y", "quo'te\"s"])
def test_odd_paths_work(name: str, move_below: Callable[[str], Path]) -> None:
    """A folder with characters that mean something in URLs, lists or shells works, in psql too."""
    with EmbeddedPostgres(move_below(name), FAST) as postgres:
        assert ask(postgres.dsn, "select 1") == 1
        assert asyncio.run(ask_async(postgres.dsn, "select 2")) == 2
        command = f"{postgres.psql_command()} -XAtc 'select 3'"
        said = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert said.stdout.strip() == "3"


def test_a_relative_path_through_a_link_is_the_same_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a folder is named, its server is one."""
    (tmp_path / "link").symlink_to(home)
    monkeypatch.chdir(tmp_path)
    with EmbeddedPostgres("link", FAST) as first, EmbeddedPostgres(home, FAST) as second:
        assert first.dsn == second.dsn


def test_only_its_own_user_may_connect(home: Path, plain_user: Any) -> None:
    """Another user of the machine cannot reach the socket."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    with EmbeddedPostgres(home, FAST) as postgres:
        os.chmod(home, 0o711)
        os.chmod(home / "run", 0o711)
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        path = str(home / "run" / ".s.PGSQL.5432")
        said = plain_user(code, path)
        if (home / "data").owner() != "nobody":
            assert "PermissionError" in said.stderr
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(path)
        assert ask(postgres.dsn, "select 1") == 1


def test_a_folder_that_was_removed_is_no_trouble(home: Path) -> None:
    """Stop after the folder is gone ends the server and raises nothing."""
    postgres = EmbeddedPostgres(home, FAST)
    postgres.start()
    server = read_postmaster(home / "data")
    assert server is not None
    while home.exists():  # the server, when it notices, removes files of its own meanwhile
        shutil.rmtree(home, ignore_errors=True)
    try:
        assert postgres.stop() is True
        with pytest.raises(ProcessLookupError):
            os.kill(server.pid, 0)
    finally:
        home.mkdir()


def test_the_log_does_not_grow_for_ever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that has become too long is put aside once at the next start."""
    monkeypatch.setattr("pyengine.doors.embedded.postmaster._LOG_LIMIT", 100)
    for _ in range(3):
        with EmbeddedPostgres(home, FAST):
            pass
    assert sorted(each.name for each in home.glob("postgres.log*")) == ["postgres.log", "postgres.log.1"]
