"""Law: a worker has few connections and gives back what it does not need. Where the server gives no more,
the wait for one costs no step its time, and what waits goes to a worker that has one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyengine import App, Worker, ctx
from pyengine.core.database import shortage
from pyengine.core.database.connection import Database, NoConnection
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import SESSION
from pyengine.core.worker import capacity as slots_module
from pyengine.core.worker.capacity import Capacity
from tests.support.cluster import Cluster
from tests.support.pooler import NoPooler, Pooler
from tests.support.roles import who_works

Connection = psycopg.Connection[tuple[Any, ...]]
REST = {"pyengine turn", "pyengine side", "pyengine heartbeat", "pyengine listen"}
SCENE = """
create schema lab;
create function lab.twice(n integer) returns integer language sql as 'select 2 * n';
grant usage on schema lab to public;
"""


@pytest.fixture
def limited(request: pytest.FixtureRequest, dsn: str, direct: str, conn: Connection) -> Iterator[str]:
    """URL of the test's own database for a role that may have so many connections."""
    conn.execute(SCENE)
    with who_works(conn, connections=request.param) as role:
        told = conninfo_to_dict(direct)
        yield f"postgresql://{role}@/{told['dbname']}?host={told['host']}&port={told['port']}"


def working(dsn: str) -> App:
    """An app whose workflows need connections of users. A slow machine has all the time that it needs."""
    app = App(dsn)

    @app.workflow
    async def both(n: int) -> int:
        async with ctx.transaction() as tx:
            one = await tx.fetchval("select $1::integer + 1", n)
        return int(one + await ctx.sql("lab.twice", n, timeout="60s"))

    return app


def names(conn: Connection) -> list[str]:
    """What the sessions of the engine in this database are for."""
    rows = conn.execute(
        "select application_name from pg_stat_activity where datname = current_database() "
        "and application_name like 'pyengine %' order by 1"
    ).fetchall()
    return [str(name) for (name,) in rows]


async def at_last(database: Database) -> Any:
    """The one connection that a worker at rest leaves to others."""
    while True:
        try:
            return await database.connect("spare")
        except NoConnection:
            await asyncio.sleep(0.02)


@pytest.mark.session("it counts them")
def test_an_idle_worker_has_four_connections(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, all else, signs of life, hints; more while transactions and functions need them."""
    conn.execute(SCENE)
    monkeypatch.setattr(ConnectionPool, "idle_s", 0.3)
    app = working(dsn)

    async def main() -> None:
        async with Worker(app.registry, dsn):
            while conn.execute("select bool_or(present) from durable._workers").fetchone() != (True,):
                await asyncio.sleep(0.02)
            while set(names(conn)) != REST or len(names(conn)) > len(REST):
                await asyncio.sleep(0.02)
            async with app.client() as client:
                runs = [await client.start("both", n) for n in range(20)]
                assert [await run.result(timeout=60) for run in runs] == [3 * n + 1 for n in range(20)]
            while set(names(conn)) != REST or len(names(conn)) > len(REST):
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.session("it has a pooler of its own")
def test_connections_that_wait_for_a_pooler(
    cluster: Cluster,
    direct: str,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In session mode, with fewer sessions than a worker and its client may take, what is idle is closed for
    those that wait, so runs go on; one line says who waits and how many sessions it needs (D036).
    """
    conn.execute(SCENE)
    monkeypatch.setattr(ConnectionPool, "idle_s", 3600.0)
    monkeypatch.setattr(shortage, "WAIT_S", 0.1)
    try:
        pooler = Pooler(cluster.server, cluster.folder / "data", size=6, mode="session")
    except NoPooler as reason:
        pytest.skip(f"PgBouncer: {reason}")

    async def main(app: App) -> None:
        async with app.worker(), app.client() as client:
            runs = [await client.start("both", n) for n in range(12)]
            assert [await run.result(timeout=90) for run in runs] == [3 * n + 1 for n in range(12)]

    with pooler:
        asyncio.run(main(working(pooler.dsn(str(conninfo_to_dict(direct)["dbname"])))))
    told = [one.getMessage() for one in caplog.records if "waits for the pooler" in one.getMessage()]
    assert len(told) == 1
    assert "in session mode this process needs up to 21" in told[0]


def forked() -> tuple[int, int]:
    """A child that lives until the pipe is closed: its process and the end of the pipe."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    return child, write


@pytest.mark.parametrize("mode", ["disable", "prefer"])
def test_a_child_keeps_no_session_that_is_being_opened(mode: str) -> None:
    """A process is forked when the server has a session and the driver waits for its answer: the server sees
    its end when the parent gives it up."""

    async def main(server: socket.socket) -> None:
        address = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/d?sslmode={mode}"
        opened = asyncio.ensure_future(Database(address).connect("turn"))
        session = await asyncio.to_thread(server.accept)
        with session[0] as heard:
            heard.settimeout(30)
            assert await asyncio.to_thread(heard.recv, 1000)
            child, pipe = forked()
            try:
                opened.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await opened
                assert await asyncio.to_thread(heard.recv, 1000) == b""
            finally:
                os.close(pipe)
                os.waitpid(child, 0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        asyncio.run(asyncio.wait_for(main(server), 60))


@pytest.mark.session("connections are counted")
def test_a_connection_that_is_lost_as_it_closes(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may end between the check of a database and the goodbye: that is no error of the check."""
    check = Database._check_version

    async def checked(self: Database, conn: Any) -> None:
        await check(self, conn)

        async def lost(self: Any, timeout: float | None = None) -> None:
            self._transport.abort()
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        monkeypatch.setattr(type(conn), "close", lost)

    async def main() -> None:
        monkeypatch.setattr(Database, "_check_version", checked)
        database = Database(dsn)
        await database.open()
        assert database.opened

    asyncio.run(main())


@pytest.mark.parametrize("limited", [9], indirect=True)
def test_few_connections_fail_no_run(
    limited: str,
    dsn: str,
    conn: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers have one connection to spare between them: all runs end with their results."""
    monkeypatch.setattr(ConnectionPool, "patience_s", 0.5)
    monkeypatch.setattr(ConnectionPool, "idle_s", 0.2)
    app = working(limited)

    async def main() -> list[int]:
        client = App(dsn)
        async with Worker(app.registry, limited), Worker(app.registry, limited), client.client() as asks:
            runs = [await asks.start("both", n) for n in range(40)]
            return [int(await run.result(timeout=100)) for run in runs]

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        assert asyncio.run(main()) == [3 * n + 1 for n in range(40)]
    assert conn.execute("select count(*) from durable._journal where type = 'step_failed'").fetchone() == (0,)


@pytest.mark.session("connections are counted")
@pytest.mark.parametrize("limited", [4], indirect=True)
def test_work_without_a_connection_is_left_to_other_workers(
    limited: str,
    dsn: str,
    conn: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker without a connection to spare gives its runs back, says so and works on fewer; a worker that
    has connections ends them."""
    monkeypatch.setattr(ConnectionPool, "patience_s", 0.3)
    poor, rich = working(limited), working(dsn)

    async def main() -> list[int]:
        async with Worker(poor.registry, limited, concurrency=20) as worker, rich.client() as client:
            runs = [await client.start("both", n) for n in range(10)]
            while not any("gives runs back" in one.getMessage() for one in caplog.records):
                await asyncio.sleep(0.02)
            assert worker.parts.slots.now < 20
            async with Worker(rich.registry, dsn):
                return [int(await run.result(timeout=60)) for run in runs]

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        assert asyncio.run(main()) == [3 * n + 1 for n in range(10)]
    told = next(one.getMessage() for one in caplog.records if "gives runs back" in one.getMessage())
    assert "gave no connection for" in told


@pytest.mark.session("connections are counted")
@pytest.mark.parametrize("limited", [5], indirect=True)
def test_waiting_for_a_connection_is_no_time_of_a_step(
    limited: str, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function with 0.9 s to run is called although its worker had no connection for a longer time."""
    monkeypatch.setattr(ConnectionPool, "idle_s", 0.2)
    app = working(limited)

    @app.workflow
    async def slow() -> int:
        return int(await ctx.sql("lab.twice", 21, timeout="900ms"))

    async def main() -> int:
        database = Database(limited)
        await database.open()
        async with Worker(app.registry, limited), App(dsn).client() as client:
            spare = await at_last(database)
            run = await client.start("slow")
            await asyncio.sleep(1.2)
            await spare.close()
            return int(await run.result(timeout=60))

    assert asyncio.run(main()) == 42


@pytest.mark.parametrize("limited", [2], indirect=True)
def test_a_pool_takes_turns_with_what_it_has(limited: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten callers of a pool of ten share the two connections that the server gives; who needs one for a while
    and gets none is told so; the wait for the pool's own limit is none of that."""

    async def main() -> None:
        database = Database(limited)
        await database.open()
        pool, pids = ConnectionPool(database, "client", 10), []
        while not pids:  # what has looked at the version may still be on its way out
            with contextlib.suppress(NoConnection):
                pids = await asyncio.gather(*(pool.run(SESSION) for _ in range(10)))
        assert 1 <= len(set(pids)) <= 2
        async with pool.taken() as one, pool.taken() as other:
            assert await one.run(SESSION) != await other.run(SESSION)
            monkeypatch.setattr(ConnectionPool, "patience_s", 0.1)
            with pytest.raises(NoConnection, match=r"gave no connection for client in 0\.1 s"):
                async with pool.taken():
                    pass
            small = ConnectionPool(database, "client", 1)
            with pytest.raises(NoConnection):
                await small.run(SESSION)
        await pool.close()
        monkeypatch.setattr(ConnectionPool, "patience_s", 30.0)
        async with small.taken():
            waiting = asyncio.create_task(small.run(SESSION))
            await asyncio.sleep(0.3)
            assert not waiting.done()
        assert isinstance(await waiting, int)
        await small.close()

    asyncio.run(main())


def leased(count: int) -> Any:
    """So many runs, of which nothing but the number counts."""
    return dict.fromkeys(range(count))


def test_slots_shrink_and_grow(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is claimed for a second. They are halved once a second at most, never below one, however often
    connections are short, and doubled every ten seconds in which they are not."""
    now, found = [100.0], []
    monkeypatch.setattr("pyengine.core.process.clock.monotonic", lambda: now[0])

    async def main() -> None:
        slots = Capacity(100, leased(40), lambda: None)
        assert slots.now == 100
        slots.too_many("none left")
        slots.too_many("none left")
        assert slots.now == 0
        now[0] += 1
        assert slots.now == 20
        for _ in range(15):
            now[0] += 0.4
            slots.too_many("none left")
        assert slots.now == 0
        now[0] += 1
        assert slots.now == 1
        now[0] -= 1
        for _ in range(8):
            now[0] += 10
            found.append(slots.now)

    asyncio.run(main())
    assert found == [2, 4, 8, 16, 32, 64, 100, 100]
    assert {one.levelname for one in caplog.records} == {"WARNING"}
    assert caplog.records[0].getMessage().startswith("none left; the worker gives runs back and works on 20")


def test_slots_report_when_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for slots is woken when there may be some, until there are as many as before."""
    monkeypatch.setattr(slots_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(slots_module, "_REGROW_S", 0.3)

    async def main() -> list[int]:
        found: list[int] = []
        slots = Capacity(4, leased(2), lambda: found.append(slots.now))
        slots.too_many("none left")
        assert slots.now == 0
        while not found or found[-1] < 4:
            await asyncio.sleep(0.01)
        return found

    found = asyncio.run(asyncio.wait_for(main(), 30))
    assert found[-1] == 4
    assert found == sorted(found)
