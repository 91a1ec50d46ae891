"""Law: starts of one client at the same time share statements, and each has its own run, answer and error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Run
from pyengine.core.client.asyncpg_transport import AsyncpgTransport
from pyengine.core.client.transport import Transport
from pyengine.core.database.listener import Listener
from pyengine.core.database.statements.procedures import StartRequest
from pyengine.errors import InvalidRequest, NotFound, PayloadTooLarge, Unavailable
from tests.support.verbs import Connection, ask

# runs of one transaction were inserted by one statement
TRANSACTIONS = "select count(distinct xmin::text), count(*) from durable._promises where target is not null"


def known(dsn: str) -> App:
    """An app whose workflow a worker has registered."""
    app = App(dsn)

    @app.workflow
    async def double(number: int) -> int:
        return 2 * number

    async def register() -> None:
        async with app.worker():
            pass

    asyncio.run(register())
    return app


def test_they_share_statements(dsn: str, conn: Connection) -> None:
    """The first goes alone and the rest together, in portions, each under its own id with its own input."""
    app = known(dsn)

    async def main() -> None:
        async with app.client() as client:
            runs: list[Run[int]] = await asyncio.gather(*(client.start("double", n) for n in range(250)))
            assert all(run.created for run in runs)
            assert len({run.id for run in runs}) == 250
            assert ask(conn, (TRANSACTIONS, ())) == (4, 250)
            async with app.worker():
                results = await asyncio.gather(*(run.result(timeout=30) for run in runs))
            assert results == [2 * n for n in range(250)]

    asyncio.run(main())


def test_only_equal_options_go_together(dsn: str, conn: Connection) -> None:
    """Starts of one queue are sent together, and those of another one by themselves."""
    known(dsn)

    async def main() -> None:
        async with Client(dsn) as client:
            queues = ["default", *["a", "b"] * 5]
            runs = await asyncio.gather(*(client.start("double", 1, queue=queue) for queue in queues))
            where = {row[0]: row[1] for row in conn.execute("select id, queue from durable._tasks")}
            assert [where[run.id] for run in runs] == queues

    asyncio.run(main())
    assert ask(conn, (TRANSACTIONS, ())) == (5, 11)


def test_each_gets_its_own_error(dsn: str, conn: Connection) -> None:
    """What is wrong with one start is told to its caller, and the others are started."""
    known(dsn)
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))

    async def main() -> None:
        async with Client(dsn) as client:
            starts = [client.start("double", n) for n in range(5)]
            starts += [client.start("double", "x" * 3000), client.start("unknown"), client.start("unknown")]
            *runs, too_large, first, second = await asyncio.gather(*starts, return_exceptions=True)
            assert all(isinstance(run, Run) for run in runs)
            assert isinstance(too_large, PayloadTooLarge)
            assert isinstance(first, NotFound)
            assert isinstance(second, NotFound)
            assert (await client.start("double", 1)).created

    asyncio.run(main())
    assert ask(conn, (TRANSACTIONS, ()))[1] == 6


def test_a_caller_that_goes_starts_nothing(dsn: str, conn: Connection) -> None:
    """A start that is cancelled while it waits is not sent; those beside it are."""
    known(dsn)

    async def main() -> None:
        async with Client(dsn) as client:
            first, *others = [asyncio.create_task(client.start("double", n)) for n in range(4)]
            await asyncio.sleep(0)
            others[1].cancel()
            await asyncio.wait([first, *others])
            assert others[1].cancelled()
            assert not any(one.exception() for one in (first, others[0], others[2]))

    asyncio.run(main())
    assert ask(conn, ("select count(*) from durable._tasks", ())) == (3,)


def test_a_start_by_key_holds_up_no_other(dsn: str, conn: Connection) -> None:
    """A start that waits for a user's open transaction waits by itself."""
    known(dsn)

    async def main() -> None:
        with psycopg.connect(dsn) as user:
            user.execute("select durable.start('double', '[1]', key => 'k')")
            async with Client(dsn) as client:
                held = asyncio.create_task(client.start("double", 1, key="k"))
                async with asyncio.timeout(20):
                    await asyncio.gather(*(client.start("double", n) for n in range(20)))
                assert not held.done()
                user.commit()
                assert not (await held).created

    asyncio.run(main())


def test_a_slow_statement_is_waited_for_a_moment(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement on a connection that is dead holds up those that wait for it for a moment only."""
    known(dsn)
    send, stuck = Transport.start, asyncio.Event()

    async def stay(transport: AsyncpgTransport, request: StartRequest) -> Any:
        if json.loads(request.args) == [0]:
            await stuck.wait()
        return await send(transport, request)

    monkeypatch.setattr(Transport, "start", stay)

    async def main() -> None:
        async with Client(dsn) as client:
            first = asyncio.create_task(client.start("double", 0))
            async with asyncio.timeout(20):
                await asyncio.gather(*(client.start("double", n) for n in range(1, 6)))
            assert not first.done()
            stuck.set()
            await first

    asyncio.run(main())
    assert ask(conn, (TRANSACTIONS, ())) == (2, 6)


def test_a_start_does_not_fail_after_its_commit(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that cannot listen has started its runs all the same, and says so; the hint is sent."""
    known(dsn)

    async def refuse(listener: Listener) -> None:
        raise Unavailable("no connection is left")

    monkeypatch.setattr(Listener, "start", refuse)

    async def main() -> None:
        async with Client(dsn) as client:
            runs = await asyncio.gather(*(client.start("double", n) for n in range(5)))
            assert all(run.created for run in runs)
            with pytest.raises(Unavailable):
                await runs[0].result(timeout=5)

    asyncio.run(main())
    assert ask(conn, (TRANSACTIONS, ())) == (2, 5)


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_answer_that_is_lost(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    """Whether the statement was carried out or not, each run is there once."""
    known(dsn)
    send = AsyncpgTransport._start_together

    async def lose(transport: AsyncpgTransport, requests: list[StartRequest]) -> bool:
        if carried_out:
            assert await send(transport, requests)
        raise Unavailable("the connection was lost")

    monkeypatch.setattr(AsyncpgTransport, "_start_together", lose)

    async def main() -> None:
        async with Client(dsn) as client:
            runs = await asyncio.gather(*(client.start("double", n) for n in range(5)))
            inputs = {row[0]: row[1] for row in conn.execute("select id, args from durable.runs")}
            assert [inputs[run.id] for run in runs] == [[n] for n in range(5)]

    asyncio.run(main())
    assert ask(conn, (TRANSACTIONS, ()))[1] == 5


def test_a_client_that_closes(dsn: str, conn: Connection) -> None:
    """A caller that waits then gets its run, or is told that the client is closed; then there is no run. The
    client closes while others start, and nothing is left behind."""
    known(dsn)
    runs: list[str] = []

    async def start_on(client: Client) -> None:
        while True:
            runs.append((await client.start("double", len(runs))).id)

    async def main() -> list[Any]:
        client = Client(dsn)
        await client.open()
        starts = [asyncio.create_task(start_on(client)) for _ in range(5)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await client.close()
            ends = await asyncio.gather(*starts, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return ends

    ends = asyncio.run(main())
    assert [type(end) for end in ends] == [InvalidRequest] * 5
    assert {row[0] for row in conn.execute("select id from durable._tasks")} == set(runs)


def test_a_client_that_closes_as_it_begins_to_listen(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first start listens for results, and leaves nothing behind either."""
    known(dsn)
    begun, closed = asyncio.Event(), asyncio.Event()
    listen = Listener.start

    async def late(listener: Listener) -> None:
        await listen(listener)
        begun.set()
        await closed.wait()

    monkeypatch.setattr(Listener, "start", late)

    async def main() -> None:
        client = Client(dsn)
        await client.open()
        start = asyncio.create_task(client.start("double", 1))
        async with asyncio.timeout(20):
            await begun.wait()
            await client.close()
            closed.set()
            await start
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_nobody_waiting(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a statement is cancelled with the task that sends it."""
    known(dsn)
    sending = asyncio.Event()

    async def stay(transport: AsyncpgTransport, requests: list[StartRequest]) -> bool:
        sending.set()
        await asyncio.sleep(60)
        return True

    monkeypatch.setattr(AsyncpgTransport, "_start_together", stay)

    async def main() -> None:
        async with Client(dsn) as client:
            starts = [asyncio.create_task(client.start("double", n)) for n in range(5)]
            await sending.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task(), *starts}:
                task.cancel()
            async with asyncio.timeout(20):
                await asyncio.wait(starts)
            assert [one.cancelled() for one in starts] == [False] + [True] * 4

    asyncio.run(main())
