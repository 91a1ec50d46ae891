"""Killed processes, zombies, orphans, strangers, half-made things: the next start copes with them all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.doors.embedded import postmaster as under_test
from pyengine.doors.embedded.binaries import server_account
from pyengine.doors.embedded.postmaster import is_postmaster, read_postmaster
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.errors import EmbeddedPostgresError
from tests.doors.embedded.killing import kill, server_of

Start = Callable[[], Any]
Eventually = Callable[[Callable[[], bool]], bool]


def write(dsn: str, word: str) -> None:
    """Commit a row."""
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into notes values (%s)", [word])


def words(dsn: str) -> set[str]:
    """Read every row, among them those of other tests."""
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute("select word from notes").fetchall()}


@pytest.fixture
def word(request: pytest.FixtureRequest) -> str:
    """A word that only this test writes."""
    return str(request.node.name)


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and nobody has asked how."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return said.stdout.startswith("Z")


@pytest.fixture
def stranger(home: Path) -> Iterator[int]:
    """The number of a process that has nothing to do with Postgres but runs as its user."""
    account = server_account(home / "data")
    switch = account.popen_args() if account else {}
    process = subprocess.Popen(["sleep", "600"], cwd="/", **switch)
    yield process.pid
    process.kill()
    process.wait()


def test_a_killed_python_leaves_a_server_for_the_next(home: Path, word: str, user_process: Start) -> None:
    """After kill -9 of its only user the server runs on; the next one attaches and, as the last, stops it."""
    user = user_process()
    before = server_of(home)
    user.kill()
    with EmbeddedPostgres(home) as postgres:
        assert server_of(home).pid == before.pid
        write(postgres.dsn, word)
    assert read_postmaster(home / "data") is None


def test_a_killed_python_does_not_count_as_a_user(home: Path, user_process: Start) -> None:
    """Of two users one is killed: the other is the last one out."""
    first, second = user_process(), user_process()
    first.kill()
    assert second.stop() == "True"
    assert read_postmaster(home / "data") is None


def test_a_killed_server_comes_back_with_its_rows(home: Path, word: str) -> None:
    """After kill -9 of the postmaster a second start on the same object brings every committed row back."""
    with EmbeddedPostgres(home) as postgres:
        write(postgres.dsn, word)
        killed = kill(home)
        postgres.start()
        assert server_of(home).pid != killed
        assert word in words(postgres.dsn)


def test_a_killed_server_that_stays_a_zombie_is_replaced(
    home: Path, word: str, user_process: Start, eventually: Eventually
) -> None:
    """A killed postmaster that nobody reaps still has its number; the next start is not fooled."""
    user = user_process()
    killed = kill(home)
    assert eventually(lambda: is_zombie(killed))
    with EmbeddedPostgres(home) as postgres:
        assert is_zombie(killed)
        write(postgres.dsn, word)
        assert user.stop() == "False"
        assert word in words(postgres.dsn)


def test_both_killed_at_once(home: Path, word: str, user_process: Start) -> None:
    """After kill -9 of the user and of the server the next start recovers the rows."""
    user = user_process()
    server = server_of(home)
    write(f"postgresql://postgres@/postgres?host={server.socket_dir}", word)
    user.process.kill()
    kill(home)
    user.kill()
    with EmbeddedPostgres(home) as postgres:
        assert word in words(postgres.dsn)


def test_a_killed_server_needs_no_stop(home: Path) -> None:
    """The last user of a server that was killed leaves without an error, and the next start is clean."""
    postgres = EmbeddedPostgres(home)
    postgres.start()
    kill(home)
    assert postgres.stop() is True
    with EmbeddedPostgres(home) as postgres:
        assert words(postgres.dsn) is not None


def test_a_server_killed_with_a_long_path_leaves_no_folder(move_below: Callable[[str], Path]) -> None:
    """The short folder of a killed server's socket is removed by the next start."""
    deep = move_below("a" * 100)
    with EmbeddedPostgres(deep, {"fsync": "off"}) as postgres:
        killed = server_of(deep)
        kill(deep)
        postgres.start()
        assert not Path(killed.socket_dir).exists()
        assert server_of(deep).socket_dir != killed.socket_dir


def test_orphans_of_a_killed_server_are_waited_for(home: Path, eventually: Eventually) -> None:
    """While a backend of a killed postmaster works, no second server starts; when it has ended, one does."""
    postgres = EmbeddedPostgres(home, timeout_s=0.5)
    postgres.start()
    connection = psycopg.connect(postgres.dsn)
    orphan = connection.info.backend_pid

    def work() -> None:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("do $$ begin loop end loop; end $$")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with psycopg.connect(postgres.dsn, autocommit=True) as other:
            busy = f"select count(*) from pg_stat_activity where pid = {orphan} and query like 'do %'"
            assert eventually(lambda: other.execute(busy).fetchone() == (1,))
        kill(home)
        with pytest.raises(EmbeddedPostgresError, match="Processes of an earlier Postgres still work"):
            postgres.start()
        assert (home / "data" / "postmaster.pid").exists()
    finally:
        os.kill(orphan, signal.SIGKILL)
        worker.join()
    with EmbeddedPostgres(home) as postgres:
        assert words(postgres.dsn) is not None


def test_a_process_id_of_another_program_is_no_server(home: Path, stranger: int) -> None:
    """Files of a killed server that name a live process which is not Postgres do not hinder."""
    lines = [stranger, home / "data", 1700000000, 5432, home / "run", "", "1 1", "ready   "]
    (home / "data" / "postmaster.pid").write_text("\n".join(map(str, lines)) + "\n")
    (home / "run").mkdir()
    (home / "run" / ".s.PGSQL.5432.lock").write_text(
        f"{stranger}\n{home}/data\n1700000000\n5432\n{home}/run\n"
    )
    with EmbeddedPostgres(home) as postgres:
        assert words(postgres.dsn) is not None
        os.kill(stranger, 0)
    os.kill(stranger, 0)


@pytest.mark.parametrize("content", ["", "garbage\n", "-17\n", "99999999\n/elsewhere\n", "\x00" * 40])
def test_a_damaged_pid_file_is_no_server(content: str, home: Path) -> None:
    """What a crash of the machine may leave in postmaster.pid does not hinder a start."""
    (home / "data" / "postmaster.pid").write_text(content)
    with EmbeddedPostgres(home, {"fsync": "off"}) as postgres:
        assert words(postgres.dsn) is not None


def test_a_server_of_another_folder_is_not_ours(home: Path, tmp_path: Path) -> None:
    """A live postmaster counts only for its own data directory."""
    with EmbeddedPostgres(home):
        pid = server_of(home).pid
        assert is_postmaster(pid, home / "data")
        assert not is_postmaster(pid, tmp_path)
        assert not is_postmaster(pid, home)


@pytest.mark.parametrize("blind", ["no /proc", "cwd hidden"])
def test_a_server_is_recognised_by_its_command_line(
    blind: str,
    home: Path,
    stranger: int,
    user_process: Start,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    """Where a working directory cannot be seen, the command line tells a server from others and zombies."""
    if blind == "no /proc":
        monkeypatch.setattr(under_test, "_PROC", Path("/no-such-proc"))
    else:

        def hidden(path: Path) -> str:
            raise PermissionError(path)

        monkeypatch.setattr(os, "readlink", hidden)
    user_process()
    with EmbeddedPostgres(home):
        pid = server_of(home).pid
        assert not is_postmaster(pid, home)
        assert not is_postmaster(stranger, home / "data")
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: is_zombie(pid))
        assert not is_postmaster(pid, home / "data")


def test_a_partial_data_directory_is_made_again(fresh_home: Path) -> None:
    """What an interrupted initdb left is never taken for data."""
    (fresh_home / "data.new" / "base").mkdir(parents=True)
    (fresh_home / "data.new" / "PG_VERSION").write_text("18\n")
    with (
        EmbeddedPostgres(fresh_home, {"fsync": "off"}) as postgres,
        psycopg.connect(postgres.dsn) as connection,
    ):
        assert connection.execute("select 1").fetchone() == (1,)
    assert not (fresh_home / "data.new").exists()


def test_python_killed_during_initdb(fresh_home: Path, eventually: Eventually) -> None:
    """An initdb whose Python was killed is waited for, and then its work is made anew."""
    code = "import sys; from pyengine.doors.embedded import EmbeddedPostgres as E; E(sys.argv[1]).start()"
    root = str(Path(__file__).resolve().parents[3])
    user = subprocess.Popen(
        [sys.executable, "-c", code, str(fresh_home)], env=os.environ | {"PYTHONPATH": root}
    )
    assert eventually(lambda: (fresh_home / "data.new" / "PG_VERSION").exists())
    user.kill()
    user.wait()
    with (
        EmbeddedPostgres(fresh_home, {"fsync": "off"}) as postgres,
        psycopg.connect(postgres.dsn) as connection,
    ):
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "delays_ms", [(0, 150, 250), pytest.param((0, 100, 150, 200, 250, 300), marks=pytest.mark.full)]
)
def test_python_killed_at_any_moment_of_a_start(home: Path, word: str, delays_ms: tuple[int, ...]) -> None:
    """Whenever during a start Python is killed, the next start has a server, and its stop leaves none."""
    code = (
        "import sys; from pyengine.doors.embedded import EmbeddedPostgres; "
        "EmbeddedPostgres(sys.argv[1]).start(); input()"
    )
    root = str(Path(__file__).resolve().parents[3])
    for delay_ms in delays_ms:
        user = subprocess.Popen(
            [sys.executable, "-c", code, str(home)],
            env=os.environ | {"PYTHONPATH": root},
            stdin=subprocess.PIPE,
        )
        time.sleep(delay_ms / 1000)
        user.kill()
        user.communicate()
        with EmbeddedPostgres(home) as postgres:
            write(postgres.dsn, f"{word} {delay_ms}")
        assert read_postmaster(home / "data") is None
    with EmbeddedPostgres(home) as postgres:
        assert words(postgres.dsn) >= {f"{word} {delay_ms}" for delay_ms in delays_ms}


def test_a_server_without_its_socket_is_not_ready(home: Path) -> None:
    """A server whose socket somebody removed is not handed out; the error names its process."""
    with EmbeddedPostgres(home):
        (home / "run" / ".s.PGSQL.5432").unlink()
        with pytest.raises(EmbeddedPostgresError, match=f"process {server_of(home).pid}.* does not answer"):
            EmbeddedPostgres(home, timeout_s=0.05).start()


def test_a_stopped_start_is_not_waited_for_for_ever(home: Path) -> None:
    """Somebody who holds the lock of starting for too long is an error that tells how to find him."""
    slow = EmbeddedPostgres(home)
    with slow._starting_or_stopping(), pytest.raises(EmbeddedPostgresError, match=r"start\.lock"):
        EmbeddedPostgres(home, timeout_s=0.05).start()


@pytest.mark.full  # the server gives its processes 5 s to end
def test_a_server_that_does_not_stop_in_order_is_stopped_at_once(home: Path, word: str) -> None:
    """A server that does not finish its orderly stop in time is stopped without it, and its rows are kept."""
    postgres = EmbeddedPostgres(home, timeout_s=0.5)
    postgres.start()
    write(postgres.dsn, word)
    server = server_of(home)
    children = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(server.pid)], capture_output=True, text=True
    )
    checkpointer = next(
        int(line.split()[0]) for line in children.stdout.splitlines() if "checkpointer" in line
    )
    os.kill(checkpointer, signal.SIGSTOP)  # the orderly stop waits for its checkpoint
    assert postgres.stop() is True
    assert read_postmaster(home / "data") is None
    with EmbeddedPostgres(home) as postgres:
        assert word in words(postgres.dsn)
