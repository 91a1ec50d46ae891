"""A database that goes away and comes back."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pyengine import App, Worker
from pyengine.core.database.connection import Database
from pyengine.core.database.error_mapping import named
from pyengine.core.database.listener import Listener
from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.doors.program.foreground import serve
from pyengine.errors import Unavailable
from tests.support.cluster import SETTINGS, create_database, make_folder

Connection = psycopg.Connection[tuple[object, ...]]


def counting_app(dsn: str) -> tuple[App, list[int]]:
    """Runs of ten steps that take a moment each; the list tells which bodies ran."""
    app = App(dsn)
    ran: list[int] = []

    @app.step
    async def step(n: int, k: int) -> int:
        ran.append(100 * n + k)
        await asyncio.sleep(0.005)
        return 1

    @app.workflow
    async def ten(n: int) -> int:
        return sum([await step(n, k) for k in range(10)])

    return app, ran


def cut(conn: Connection, role: str = "%") -> None:
    """Break off the connections of one role, as a server crash or a firewall would."""
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name like 'pyengine ' || %s and datname = current_database()",
        (role,),
    )


@pytest.mark.parametrize("role", ["turn", "side", "listen", "heartbeat", "client", "%"])
def test_lost_connections_lose_nothing(dsn: str, conn: Connection, role: str) -> None:
    """Whichever connection breaks, and however often, every run ends with its result and no step is
    recorded twice.
    """
    app, _ = counting_app(dsn)

    async def main() -> list[int]:
        async with app.worker(), app.client() as client:
            runs = [await client.start("ten", n) for n in range(20)]
            waiting = asyncio.ensure_future(asyncio.gather(*(run.result(timeout=30) for run in runs)))
            for _ in range(10):
                cut(conn, role)
                await asyncio.sleep(0.02)
            return await waiting

    assert asyncio.run(main()) == [10] * 20
    assert conn.execute("select count(*) from durable._journal where type = 'step_completed'").fetchone() == (
        200,
    )


def test_a_turn_whose_outcome_is_unknown(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns whose answers are lost after the commit are sent again: nothing is recorded twice, no step of a
    live worker runs twice, and what they claimed is given back at once."""
    from pyengine.core.protocol.turn import Answer, RunReport
    from pyengine.core.worker import turn_sender

    app, ran = counting_app(dsn)
    plain, lost = turn_sender.TurnSender.send_once, []

    async def once(self: turn_sender.TurnSender, bundles: list[RunReport], *rest: Any, **more: Any) -> Answer:
        answer = await plain(self, bundles, *rest, **more)
        if len(lost) < 12 and (bundles or answer.tasks):
            lost.append(1)
            if len(lost) % 2:
                raise Unavailable("the answer was lost")
        return answer

    monkeypatch.setattr(turn_sender.TurnSender, "send_once", once)

    async def main() -> list[int]:
        async with app.client() as client:
            runs = [await client.start("ten", n) for n in range(10)]
            async with app.worker():
                return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert asyncio.run(main()) == [10] * 10
    assert conn.execute("select count(*) from durable._journal where type = 'step_completed'").fetchone() == (
        100,
    )
    assert sorted(ran) == sorted(set(ran))
    assert conn.execute(
        "select count(*) from durable._journal where type = 'open_attempt_failed'"
    ).fetchone() == (0,)


@pytest.mark.session("presence")
def test_a_worker_forgotten_while_it_declares_its_presence_declares_it_again(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover others may take it for dead until it has the lock, and delete its row just then."""
    app, _ = counting_app(dsn)
    plain, forgotten = Worker._declare, []

    def declare(self: Worker) -> Any:
        if not forgotten:
            forgotten.append(conn.execute("delete from durable._workers").rowcount)
        return plain(self)

    monkeypatch.setattr(Worker, "_declare", declare)

    async def main() -> None:
        async with app.worker():
            while conn.execute("select bool_or(present) from durable._workers").fetchone() != (True,):
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert forgotten == [1]


@pytest.fixture(scope="module")
def server_of_all() -> Iterator[EmbeddedPostgres]:
    """A server whose database `postgres` has the schema and is only copied."""
    folder = make_folder()
    server = EmbeddedPostgres(folder, settings=SETTINGS)
    server.start()
    migrate.install(server.dsn)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_server(server_of_all: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop, with its database `down`."""
    with psycopg.connect(server_of_all.database("template1"), autocommit=True) as conn:
        create_database(conn, "down", "postgres")
    yield server_of_all
    server_of_all.start()


def test_the_server_stops_and_starts_again(own_server: EmbeddedPostgres) -> None:
    """While the server is down the worker keeps what it has, and goes on when it is back."""
    dsn = own_server.database("down")
    app, _ = counting_app(dsn)

    async def main() -> list[int]:
        async with app.worker(), app.client() as client:
            runs = [await client.start("ten", n) for n in range(10)]
            await asyncio.sleep(0.02)
            await asyncio.to_thread(own_server.stop)
            with pytest.raises(Unavailable):
                await client.start("ten", 99)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own_server.start)
            return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert asyncio.run(main()) == [10] * 10


def test_a_worker_stops_although_the_server_is_down(own_server: EmbeddedPostgres) -> None:
    """A worker that cannot say goodbye ends all the same, and soon."""
    dsn = own_server.database("down")
    app, _ = counting_app(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await client.start("ten", 1)
            await asyncio.to_thread(own_server.stop)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_no_server_at_the_start_is_a_clear_error() -> None:
    """A worker does not start without a database, and says which one it wanted."""
    app, _ = counting_app("postgresql://me:geheim@127.0.0.1:1/shop")

    async def main() -> None:
        async with app.worker():
            raise AssertionError("it started")

    with pytest.raises(Unavailable, match=r"'shop' on 127\.0\.0\.1:1"):
        asyncio.run(main())


def test_a_worker_in_the_foreground_waits_for_its_database(
    own_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it waits, begins when the server is there, and can be stopped while it waits."""
    dsn = own_server.database("down")
    own_server.stop()
    app, _ = counting_app(dsn)

    async def main() -> int:
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(app.worker, wait=True, stop=stop))
        while not caplog.records:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own_server.start)
        async with app.client() as client:
            result = await (await client.start("ten", 1)).result(timeout=30)
        await asyncio.to_thread(own_server.stop)
        stop.set()
        await serving
        await asyncio.wait_for(serve(app.worker, wait=True, stop=stop), 30)
        with pytest.raises(Unavailable):
            await serve(app.worker, wait=False)
        return int(result)

    with caplog.at_level(logging.WARNING, logger="pyengine.app"):
        assert asyncio.run(main()) == 10
    assert caplog.records[0].getMessage().startswith("the worker waits for its database: ")


def test_a_hint_received_while_the_connection_closes_is_not_lost(dsn: str) -> None:
    """What the driver still has to hand over of a connection that is gone raises nothing."""

    async def main() -> int:
        heard: list[int] = []
        database = Database(dsn)
        await database.open()
        listener = Listener(database)
        listener.subscribe("durable_ready", lambda: heard.append(1))
        await listener.start()
        conn = listener._connection._conn
        conn.terminate()
        before = len(heard)
        listener._on_hint(conn, 1, "durable_ready", "")
        listener._on_hint(conn, listener._session, "durable_ready", "")
        after = len(heard)
        await listener.stop()
        return after - before

    assert asyncio.run(main()) == 1


def test_a_server_that_stops_is_one_line(
    own_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """However many connections a worker has, one warning says that the server is gone and what to type next,
    and one that it is back.
    """
    dsn = own_server.database("down")
    app, _ = counting_app(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await (await client.start("ten", 1)).result(timeout=30)
            await asyncio.to_thread(own_server.stop)
            # long enough for the tick, the heartbeat and the turns to find out
            await asyncio.sleep(3)
            down = [record.getMessage() for record in caplog.records]
            await asyncio.to_thread(own_server.start)
            await (await client.start("ten", 2)).result(timeout=30)
            assert len(down) == 1, down
            assert down[0].endswith("type: pyengine db status")

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        asyncio.run(main())
    down, again = [record.getMessage() for record in caplog.records]
    assert named(dsn) in down and again.startswith(f"connected to {named(dsn)} again, after ")
