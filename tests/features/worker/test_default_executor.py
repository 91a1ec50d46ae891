"""The default executor of an event loop is for code of users: nothing of ours waits for a place in it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyengine import App, ctx
from pyengine.core.database.connection import Database
from pyengine.core.process.own_threads import in_a_thread, resolve_in_threads
from pyengine.features.calls.exchange import FolderPlace
from pyengine.features.calls.remotes import FileRemote
from tests.system.failover.cable import Cable

Connection = psycopg.Connection[tuple[object, ...]]
WITHIN_S = 60


@contextlib.asynccontextmanager
async def full() -> AsyncIterator[None]:
    """Every thread of the default executor hangs, and more wait for one."""
    release = threading.Event()
    loop = asyncio.get_running_loop()
    hung = [loop.run_in_executor(None, release.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(WITHIN_S):
            yield
    finally:
        release.set()
        await asyncio.gather(*hung)


def in_full_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop of asyncio whose default executor is full."""

    async def run() -> Any:
        async with full():
            return await main

    return asyncio.run(run())


@pytest.fixture
def named(direct: str) -> Iterator[str]:
    """The database by a name of its host, which has an address where nobody listens, too."""
    told = conninfo_to_dict(direct)
    with Cable(Socket((str(told["host"]), str(told["port"])))) as cable:
        port = cable.place[1]
        yield f"postgresql://{told['user']}@localhost:{port}/{told['dbname']}"


class Socket(NamedTuple):
    """Where the server of the tests is."""

    place: tuple[str, str]


def test_lost_connections_come_back(named: str, conn: Connection) -> None:
    """A worker and a client whose connections are cut go on, by the name of the host."""
    app = App(named)

    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def go(n: int) -> int:
        return await double(n)

    async def main() -> list[int]:
        async with app.worker(), app.client() as client:
            first = await (await client.start(go, 1)).result()
            cut = conn.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
            assert cut is not None and cut[0]
            while True:
                # the first statement of a session that was cut tells of it
                with contextlib.suppress(ConnectionError):
                    return [first, await (await client.start(go, 2, id="second")).result()]

    assert in_full_loop(main()) == [2, 4]


def test_a_statement_is_cancelled(named: str, conn: Connection) -> None:
    """The connection that asks the server to stop a statement is made, too."""

    async def main() -> None:
        session = await Database(named).connect("check")
        with pytest.raises(asyncio.TimeoutError):
            await session.fetchval("select pg_sleep(600)", timeout=0.2)
        # it is answered: the session goes on
        assert await session.fetchval("select 1") == 1
        await session.close()

    in_full_loop(main())


def test_requests_find_their_host(dsn: str) -> None:
    """`ctx.http` looks up a name, and makes its TLS context, with threads of ours."""
    app = App(dsn)

    @app.workflow
    async def fetch(url: str) -> str:
        return (await ctx.http("GET", url)).text

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, app.worker(), app.client() as client:
            return await (await client.start(fetch, f"http://localhost:{port}/")).result()

    assert in_full_loop(main()) == "hi"


def test_folders_are_read(tmp_path: Path) -> None:
    """A remote that is a folder is read in a thread of its own."""
    assert in_full_loop(FolderPlace(FileRemote(tmp_path.as_uri())).ref("main")) is None


def test_look_ups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names whose look-up hangs take so many threads at a time and no more; each is counted until it ends."""
    release, begun = threading.Event(), []

    def hang(host: str, *rest: object) -> list[Any]:
        begun.append(host)
        release.wait(WITHIN_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        resolve_in_threads(loop, most=3)
        resolve_in_threads(loop, most=100)
        for n in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await loop.getaddrinfo(f"host-{n}", 80)
        hanging = len(begun)
        release.set()
        await loop.getaddrinfo("last", 80)
        return hanging

    assert asyncio.run(main()) == 3


def test_loops_that_resolve_by_themselves_are_left_alone() -> None:
    """What a program has done about names in its loop stays."""

    class Loop(asyncio.SelectorEventLoop):
        async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
            return ["mine"]

    loop = Loop()
    try:
        resolve_in_threads(loop)
        assert loop.run_until_complete(loop.getaddrinfo("localhost", 80)) == ["mine"]
    finally:
        loop.close()


def test_an_outcome_comes_from_its_thread() -> None:
    """The value or the error of the function, in the context of its caller."""

    def where() -> str:
        return threading.current_thread().name

    async def main() -> None:
        assert await in_a_thread(where) != where()
        with pytest.raises(ZeroDivisionError):
            await in_a_thread(lambda: 1 // 0)

    asyncio.run(main())
