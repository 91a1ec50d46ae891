"""A stop needs nobody's consent: a process that serves ends at a signal, whatever code of users does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pyengine import App, EngineError
from tests.support.verbs import server_pid
from tests.system.crash.processes import environment, until

Connection = psycopg.Connection[tuple[object, ...]]
Process = subprocess.Popen[bytes]
Serve = Callable[..., Process]
WAIT_S = 60.0

HEAD = """
import asyncio, ctypes, multiprocessing, os, signal, sys, threading, time
from pathlib import Path
from pyengine import App, ctx


def mark(name):
    Path(name).touch()
"""

WAITS = """
@app.step
async def wait() -> None:
    mark("waits")
    await asyncio.sleep(600)

@app.workflow
async def waits() -> None:
    await wait()
"""

# what holds up a stop, as the only step of a workflow: the body of `hold`
HOLDING = {
    "deaf": """
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                mark("cancelled")
    """,
    "blocked": """
        time.sleep(600)
    """,
    "blocked in C": """
        library = ctypes.CDLL(None)
        while True:
            library.sigsuspend(ctypes.create_string_buffer(128))
    """,
    "default executor": """
        await asyncio.gather(*[asyncio.to_thread(time.sleep, 600) for _ in range(100)])
    """,
    "thread": """
        threading.Thread(target=time.sleep, args=(600,)).start()
        await asyncio.sleep(600)
    """,
}


@pytest.fixture
def serve(dsn: str, tmp_path: Path) -> Iterator[Serve]:
    """Start a program with an app; in its folder it makes marks. What still runs at the end is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(
        source: str, *, url: str = dsn, last: str = "app.serve()", **options: str
    ) -> subprocess.Popen[bytes]:
        (tmp_path / "served.py").write_text(f"{HEAD}{source}\nif __name__ == '__main__':\n    {last}\n")
        process = subprocess.Popen(
            [sys.executable, "served.py"],
            cwd=tmp_path,
            env=environment(url) | options,
            stderr=(tmp_path / "log").open("wb"),
            stdout=subprocess.DEVNULL,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()


def happens(process: Process, what: Callable[[], object], folder: Path) -> None:
    """Wait until something is true, for as long as a program runs."""
    ends_s = time.monotonic() + WAIT_S
    while not what():
        assert process.poll() is None and time.monotonic() < ends_s, (folder / "log").read_text()
        time.sleep(0.02)


def made(folder: Path, name: str, process: Process) -> None:
    """Wait until a program has made a mark."""
    happens(process, (folder / name).exists, folder)


def held(body: str) -> str:
    """An app whose workflow `go` runs a step with this body, which marks that it has begun."""
    return f"""
app = App()

@app.step
async def hold() -> None:
        mark("begun")
        {body.strip()}

@app.workflow
async def go() -> None:
    await hold()
"""


def ended(process: Process, folder: Path) -> tuple[int, str]:
    """The code and the log of a process that ends, in a time far above what the law allows."""
    try:
        code = process.wait(30)
    except subprocess.TimeoutExpired:
        raise AssertionError((folder / "log").read_text()) from None
    return code, (folder / "log").read_text()


@pytest.mark.parametrize("what", HOLDING)
def test_nothing_holds_up_a_second_signal(what: str, serve: Serve, conn: Connection, tmp_path: Path) -> None:
    """It ends the process at once, also while the loop is blocked."""
    conn.execute("select durable.start('go', '[]', any_workflow => true)")
    process = serve(held(HOLDING[what]))
    made(tmp_path, "begun", process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    code, _ = ended(process, tmp_path)
    # the loop has let go of the signals by then if nothing in it holds up the stop
    assert code == 128 + signal.SIGTERM or (
        what in ("thread", "default executor") and code in (0, -signal.SIGTERM)
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", HOLDING)
def test_nothing_holds_up_a_stop(what: str, serve: Serve, dsn: str, conn: Connection, tmp_path: Path) -> None:
    """One signal: the process ends after the grace, its runs are there for others, no crash is counted."""
    source = held(HOLDING[what]) + WAITS
    conn.execute("select durable.start('waits', '[]', any_workflow => true)")
    process = serve(source, last="app.serve(grace='1s')")
    made(tmp_path, "waits", process)
    conn.execute("select durable.start('go', '[]', id => 'go', any_workflow => true)")
    made(tmp_path, "begun", process)
    process.send_signal(signal.SIGTERM)
    code, log = ended(process, tmp_path)
    assert (code, "Traceback" in log) == (0, False), log
    rows = conn.execute("select distinct state, crashes from durable._tasks where id <> 'go'").fetchall()
    assert rows == [("pending", 0)]
    if not what.startswith("blocked"):
        assert conn.execute("select state, crashes from durable._tasks where id = 'go'").fetchall() == rows


STARTS = {
    "a dependency": """
async def pool():
    mark("begun")
    await asyncio.sleep(600)

app = App(deps={"pool": pool})
""",
    "a dependency that blocks the loop": """
def pool():
    mark("begun")
    time.sleep(600)

app = App(deps={"pool": pool})
""",
    "a dependency that swallows its cancellation": """
async def pool():
    mark("begun")
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

app = App(deps={"pool": pool})
""",
}


@pytest.mark.parametrize("what", STARTS)
def test_a_start_that_waits_is_given_up(what: str, serve: Serve, tmp_path: Path) -> None:
    """For a dependency, whatever its code does."""
    process = serve(STARTS[what])
    made(tmp_path, "begun", process)
    process.send_signal(signal.SIGTERM)
    code, log = ended(process, tmp_path)
    assert (code, "main thread is here" in log) == (0, "blocks" in what)


COMMAND = "os.execl(sys.executable, sys.executable, '-m', 'pyengine', "
AT_A_COPY = {
    "worker": "app.serve()",
    "adapter worker": COMMAND + "'adapter', 'worker', '--adapter', 'a=/bin/true')",
    "command": COMMAND + "'worker', 'served:app')",
    "memo": "app.serve()",
}


@pytest.mark.unlawful("a copy is made here")
@pytest.mark.parametrize("what", AT_A_COPY)
def test_a_worker_of_a_copy_stops(
    what: str, serve: Serve, another_database: Callable[[], str], tmp_path: Path
) -> None:
    """While it waits for the adoption."""
    url = another_database()
    with psycopg.connect(url, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"alter database {name} set durable.site = 'copy'".encode())
    memo = "@app.memo\nasync def double(n: int) -> int:\n    return 2 * n\n" if what == "memo" else ""
    process = serve(held(HOLDING["thread"]) + memo, url=url, last=AT_A_COPY[what])
    happens(process, lambda: "was not adopted" in (tmp_path / "log").read_text(), tmp_path)
    process.send_signal(signal.SIGTERM)
    assert ended(process, tmp_path)[0] == 0


FORKING = """
app = App()

@app.step
def one() -> int:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

@app.step
def pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(3) as several:
        return several.map(abs, [1, -2, 3])

@app.step
def default() -> bool:
    child = os.fork()
    if not child:
        code = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.set_wakeup_fd(-1) == -1
        os._exit(not code)
    return os.waitpid(child, 0)[1] == 0

@app.workflow
async def go() -> tuple[int, list[int], bool]:
    return await one(), await pool(), await default()
"""


def test_the_end_of_a_child_is_no_signal_for_its_parent(
    serve: Serve, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """A step forks processes and ends them: their worker goes on (C045)."""
    conn.execute(
        "select durable.start('go', '[]', id => id, any_workflow => true) from unnest('{a,b}'::text[]) id"
    )
    process = serve(FORKING)
    until(dsn, "select count(*) = 2 from durable.runs where state in ('completed', 'failed')")
    rows = conn.execute("select distinct result, error from durable.runs where workflow = 'go'").fetchall()
    assert rows == [([-signal.SIGTERM, [1, 2, 3], True], None)]
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, log = ended(process, tmp_path)
    assert (code, "Traceback" in log) == (0, False)


def test_a_child_keeps_no_session_of_its_parent(
    serve: Serve, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """A worker that was killed is gone for the server at once, although a process that it forked lives on."""
    body = """child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        Path("number").write_text(str(child))
        os.rename("number", "child")
        await asyncio.sleep(600)"""
    conn.execute("select durable.start('go', '[]', any_workflow => true)")
    process = serve(held(body))
    try:
        made(tmp_path, "child", process)
        process.kill()
        process.wait()
        until(
            dsn,
            "select count(*) = 0 from pg_stat_activity where datname = current_database() "
            "and application_name like 'pyengine%%'",
        )
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("door", "table"),
    [
        ("worker", "_workers"),
        ("command", "_workflows"),
        ("worker", "settings"),
        ("adapter worker", "_workers"),
    ],
)
def test_a_table_that_is_locked_is_waited_for(
    door: str, table: str, serve: Serve, dsn: str, tmp_path: Path
) -> None:
    """A worker that starts meanwhile says who holds it, and can be stopped; then it starts."""
    waits = "waits to start: table"
    with psycopg.connect(dsn) as holder:
        holder.execute(f"lock table durable.{table} in access exclusive mode".encode())
        for stays in (False, True):
            process = serve(held(HOLDING["thread"]), last=AT_A_COPY[door])
            happens(process, lambda: waits in (tmp_path / "log").read_text(), tmp_path)
            assert f"pid {server_pid(holder)}" in (tmp_path / "log").read_text()
            if not stays:
                process.send_signal(signal.SIGTERM)
                assert ended(process, tmp_path)[0] == 0
    until(dsn, "select count(*) > 0 from durable._workers")
    process.send_signal(signal.SIGTERM)
    assert ended(process, tmp_path)[0] == 0


@pytest.mark.parametrize("where", ["step", "task of a step", "workflow"])
def test_a_loop_that_stands_still_ends_the_process(
    where: str, serve: Serve, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """The watchdog names the line, and gives back all runs but the one that holds the loop."""
    bodies = {
        "step": "    time.sleep(600)",
        "task of a step": "    async def inner(): time.sleep(600)\n    await asyncio.gather(inner())",
        "workflow": "    pass",
    }
    source = f"""
app = App()

@app.step
async def hold() -> None:
    mark("begun")
{bodies[where]}

@app.workflow
async def go() -> None:
    await hold()
    exec(compile("while True: pass", __file__, "exec"))
"""
    conn.execute("update durable.settings set value = '2000' where name = 'stall_limit_ms'")
    conn.execute("select durable.start('waits', '[]', any_workflow => true)")
    process = serve(source + WAITS)
    made(tmp_path, "waits", process)
    conn.execute("select durable.start('go', '[]', id => 'go', any_workflow => true)")
    code, log = ended(process, tmp_path)
    assert code == 1 and "run go holds the event loop" in log and "served.py:" in log
    rows = dict(conn.execute("select id, state from durable._tasks").fetchall())
    assert rows.pop("go") == "acquired" and set(rows.values()) == {"pending"}


def test_a_program_outlives_its_worker(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """`app.worker()` within another program: its block fails, once the loop turns again, and nothing else."""
    app = App(dsn)
    conn.execute("update durable.settings set value = '1500' where name = 'stall_limit_ms'")

    @app.step
    async def hold() -> None:
        while "holds the event loop" not in caplog.text:
            time.sleep(0.05)

    @app.workflow
    async def go() -> None:
        await hold()

    async def main() -> str:
        async with app.client() as client:
            await client.start(go)
        with pytest.raises(EngineError, match="holds the event loop"):
            async with app.worker():
                await asyncio.sleep(60)
        return "goes on"

    assert asyncio.run(main()) == "goes on"
