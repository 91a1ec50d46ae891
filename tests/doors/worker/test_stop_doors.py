"""A stop at the other doors: processes of memos and gateways end at a signal, in each phase of theirs."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.system.crash.processes import launch

Connection = psycopg.Connection[tuple[object, ...]]
Begin = Callable[..., subprocess.Popen[bytes]]
WAIT_S = 90.0
ENDS_S = 30.0
MEMOS = """
import asyncio, time
from pathlib import Path
from pyengine import App, ctx

app = App()

def mark():
    Path("begun").touch()

@app.memo(version="1")
def build(n: int) -> int:
    mark()
    time.sleep(600)
    return n

@app.memo(version="1")
async def gather(n: int) -> int:
    mark()
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@app.workflow
async def threaded(n: int) -> int:
    return await ctx.call(build, n)

@app.workflow
async def deaf(n: int) -> int:
    return await ctx.call(gather, n)
"""


@pytest.fixture
def begin(dsn: str, tmp_path: Path) -> Iterator[Begin]:
    """Starts commands in a folder with an app; those that are left end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "memos.py").write_text(MEMOS)

    def start(*words: str, url: str = dsn) -> subprocess.Popen[bytes]:
        log = (tmp_path / "log").open("wb")
        started.append(launch(url, "-m", "pyengine", *words, folder=tmp_path, log=log))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def happens(what: Callable[[], object], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until something is true, for as long as a process runs."""
    ends_s = time.monotonic() + WAIT_S
    while not what():
        assert process.poll() is None and time.monotonic() < ends_s, (folder / "log").read_text()
        time.sleep(0.02)


def logged(folder: Path, text: str) -> Callable[[], bool]:
    """Whether a text is in the log of the process."""
    return lambda: text in (folder / "log").read_text()


def waits(conn: Connection) -> Callable[[], bool]:
    """Whether a session of ours waits for a lock."""
    asked = (
        "select count(*) > 0 from pg_stat_activity where datname = current_database() "
        "and application_name like 'pyengine%' and wait_event_type = 'Lock'"
    )
    return lambda: conn.execute(asked).fetchone() == (True,)


@pytest.mark.sample(1)
@pytest.mark.parametrize("workflow", ["threaded", "deaf"])
def test_a_memo_that_hangs_keeps_no_process(
    workflow: str, begin: Begin, conn: Connection, tmp_path: Path
) -> None:
    """Its attempt is given back, nothing is registered any more, and the process is gone."""
    conn.execute("select durable.start(%s, '[1]', any_workflow => true)", [workflow])
    process = begin("worker", "memos:app", "--grace", "0.5")
    happens((tmp_path / "begun").exists, process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDS_S) == 0
    for table, held in (("_tasks", "pid is not null"), ("_workers", "true")):
        assert conn.execute(f"select count(*) from durable.{table} where {held}".encode()).fetchone() == (0,)


def test_a_second_signal_ends_a_memo_at_once(begin: Begin, conn: Connection, tmp_path: Path) -> None:
    """Also within a long grace."""
    conn.execute("select durable.start('deaf', '[1]', any_workflow => true)")
    process = begin("worker", "memos:app", "--grace", "600")
    happens((tmp_path / "begun").exists, process, tmp_path)
    process.send_signal(signal.SIGTERM)
    happens(logged(tmp_path, "a second one ends the process"), process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDS_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("table", ["_promises", "migrations"])
def test_a_gateway_stops_while_a_table_is_locked(
    table: str, signals: int, begin: Begin, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """Its messages, or its start, wait for that table."""
    with psycopg.connect(dsn) as holder:
        holder.execute(f"lock table durable.{table} in access exclusive mode".encode())
        process = begin("serve", "--port", "0")
        happens(waits(conn), process, tmp_path)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        # before it has begun to serve, a signal ends it as any process
        assert process.wait(ENDS_S) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


DOORS = ("serve --port 0", "worker memos:app", "adapter worker --adapter a=/bin/true")


@pytest.mark.parametrize("words", DOORS)
def test_a_process_without_its_database_stops(words: str, begin: Begin, tmp_path: Path) -> None:
    """It waits for a server that is not there."""
    process = begin(*words.split(), url="postgresql://x@127.0.0.1:1/none")
    happens(logged(tmp_path, "waiting for it"), process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDS_S) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("words", DOORS)
def test_a_process_whose_database_is_silent_stops(words: str, begin: Begin, tmp_path: Path) -> None:
    """It waits for a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = begin(*words.split(), url=f"postgresql://x@127.0.0.1:{server.getsockname()[1]}/none")
        server.accept()
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_S) in (0, -signal.SIGTERM)
