"""Law: event loops come and go, and threads serve. A loop that ends leaves no connection once the next one
begins; what belongs to it says so elsewhere; a worker serves in a thread as in a process."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from pyengine import App
from pyengine.errors import InvalidRequest

Connection = psycopg.Connection[tuple[Any, ...]]
IN_A_THREAD = """
import os, threading
from pyengine import App
from pyengine.sync import Client

app = App()

@app.workflow
async def hello(name: str) -> str:
    return f"hello {name}"

threading.Thread(target=app.serve, daemon=True).start()
with Client(os.environ["PYENGINE_DATABASE_URL"]) as client:
    print(client.start("hello", "you").result(timeout=60))
"""


def sessions(conn: Connection) -> int:
    """The sessions of clients in this database."""
    row = conn.execute(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name like 'pyengine %'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def greeting(dsn: str) -> tuple[App, Any]:
    """An app with one workflow."""
    app = App(dsn)

    @app.workflow
    async def hello(n: int) -> int:
        return n

    return app, hello


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, None], ids=["asyncio", "uvloop"])
@pytest.mark.session("sessions are counted")
@pytest.mark.new_database("sessions are counted")
def test_loops_that_end_leave_no_connections(dsn: str, conn: Connection, new_loop: Any) -> None:
    """Loops that start runs and end without `close`, as each test of a suite does, keep those of the last
    loop at most; the next loop warns, and a block or `close` leaves none (C094)."""
    if new_loop is None:
        new_loop = pytest.importorskip("uvloop").new_event_loop
    app, hello = greeting(dsn)

    async def start(n: int) -> None:
        await app.start(hello, n)

    def one_loop(n: int) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(start(n))

    one_loop(0)
    for n in range(1, 4):
        with pytest.warns(ResourceWarning, match=r"await app\.close\(\)"):
            one_loop(n)

    async def block() -> None:
        async with app.client() as client:
            await client.start(hello, 9)

    with pytest.warns(ResourceWarning, match=r"await app\.close\(\)"):
        asyncio.run(block())
    gc.collect()
    for _ in range(200):
        if not sessions(conn):
            break
        conn.execute("select pg_sleep(0.05)")
    assert sessions(conn) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_next_loop_stops_using_the_server_of_the_last(dsn: str) -> None:
    """An embedded server that an ended loop used is not kept for it."""
    app, hello = greeting(dsn)
    stopped = []

    class Server:
        def stop(self) -> bool:
            stopped.append(1)
            return False

    async def start(*, ours: bool) -> None:
        await app.start(hello, 1)
        if ours:
            place = app._places.get()
            assert place is not None
            place._server = Server()  # type: ignore[assignment]

    asyncio.run(start(ours=True))
    asyncio.run(start(ours=False))
    assert stopped == [1]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("verb", ["get", "result", "cancel"])
def test_a_run_of_another_loop_says_so(dsn: str, verb: str) -> None:
    """A run that a loop has started is refused in another one, with the way out (C094)."""
    app, hello = greeting(dsn)

    async def start() -> Any:
        return await app.start(hello, 1)

    run = asyncio.run(start())

    async def use() -> None:
        await getattr(run, verb)()

    with pytest.raises(InvalidRequest, match="another event loop, which has ended") as caught:
        asyncio.run(use())
    assert "client.run(id)" in (caught.value.hint or "")


def test_a_worker_serves_in_a_thread(dsn: str) -> None:
    """`app.serve()` in a thread serves, without signals; the process ends with its main thread (C059)."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD],
        env=os.environ | {"PYENGINE_DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("hello you\n", 0), done.stderr
