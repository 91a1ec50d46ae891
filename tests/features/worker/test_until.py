"""Waits for rows of users' tables, by real workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import TICK, Procedure
from pyengine.core.worker import ticker
from pyengine.errors import Conflict, InvalidRequest, NotFound
from tests.core.worker.test_cancelling import types
from tests.core.worker.test_signals import waits
from tests.support.rows import shop

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass
class Order:
    """A row with a type of its own."""

    id: int
    status: str
    total: float | None = None


async def armed(conn: Connection, count: int = 1) -> None:
    """Wait until the triggers have so many waits."""
    text = "select count(*) from durable._row_waits where test_at is null"
    while conn.execute(text).fetchone() != (count,):
        await asyncio.sleep(0.005)


def test_the_commit_of_somebody_else_wakes_a_run(dsn: str, conn: Connection) -> None:
    """A run waits for a row by its key and gets it, by its type, once somebody has made it so; other rows,
    other keys, and a transaction that was undone wake nobody.
    """
    app = App(dsn)

    @app.workflow
    async def pay(number: int) -> list[Any]:
        order = await ctx.until("orders", "paid", key={"id": number}, type=Order)
        again = await ctx.until("public.orders", "paid", key={"id": number})
        return [order.id, order.status, order.total, again]

    async def main() -> list[Any]:
        shop(conn)
        conn.execute("insert into orders values (7, 'new', 1.5), (8, 'new', 2)")
        async with app.client() as client, app.worker():
            run = await client.start(pay, 7, id="r")
            await waits(run)
            await armed(conn)
            conn.execute("update orders set status = 'sent'")
            conn.execute("update orders set status = 'paid' where id = 8")
            with conn.transaction(force_rollback=True):
                conn.execute("update orders set status = 'paid'")
            assert conn.execute("select count(*) from durable._row_events").fetchone() == (0,)
            conn.execute("update orders set status = 'paid'")
            return await run.result(timeout=20)

    assert asyncio.run(main()) == [7, "paid", 1.5, {"id": 7, "status": "paid", "total": 1.5}]
    assert types(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting", "child_settled"),
        *("execution_resumed", "promise_registered", "execution_awaiting", "child_settled"),
        *("execution_resumed", "execution_completed"),
    ]


def test_a_row_that_is_there_already(dsn: str, conn: Connection) -> None:
    """The wait ends by the worker's own ticker, without anybody writing anything."""
    app = App(dsn)

    @app.workflow
    async def pay(number: int) -> str:
        return str((await ctx.until("orders", "paid", key={"id": number}))["status"])

    async def main() -> str:
        shop(conn)
        conn.execute("insert into orders values (7, 'paid')")
        async with app.client() as client, app.worker():
            return await (await client.start(pay, 7)).result(timeout=20)

    assert asyncio.run(main()) == "paid"


def test_errors_are_raised_where_the_code_waits(dsn: str, conn: Connection) -> None:
    """An unknown watch, a key of another shape, a row that does not come in time, a row of another type, a
    condition that raises, a watch that is taken away: each is an exception of its class in the workflow, live
    and in replay."""
    app = App(dsn)

    @app.workflow
    async def ask() -> list[str]:
        seen = []
        for table, watch, key, more in (
            ("orders", "payd", {"id": 1}, {}),
            ("orders", "paid", {"nr": 1}, {}),
            ("orders", "paid", {"id": 9}, {"timeout": "20ms"}),
            ("orders", "paid", {"id": 2}, {"type": str}),
            ("orders", "cheap", {"id": 2}, {}),
            ("orders", "never", {"id": 2}, {}),
        ):
            try:
                await ctx.until(table, watch, key=key, **more)
            except Exception as error:  # every class is told
                seen.append(type(error).__name__)
            else:
                seen.append("row")
            await ctx.sleep(0.001)
        return seen

    async def main() -> list[str]:
        shop(conn)
        conn.execute("select durable.watch('orders', 'cheap', '{id}', '1 / total < 1')")
        conn.execute("select durable.watch('orders', 'never', '{id}', 'false')")
        conn.execute("insert into orders values (2, 'paid', 0)")
        async with app.client() as client:
            async with app.worker():
                run = await client.start(ask, id="r")
                while conn.execute("select count(*) from durable._row_waits where watch = 3").fetchone() != (
                    1,
                ):
                    await asyncio.sleep(0.005)
            # another worker replays it from its journal
            conn.execute("select durable.unwatch('orders', 'never')")
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == [
        NotFound.__name__,
        InvalidRequest.__name__,
        "TimeoutError",
        "DecodeError",
        Conflict.__name__,
        NotFound.__name__,
    ]


@pytest.mark.parametrize("key", [{}, {1: 2}, None, "id", {"id": object()}])
def test_what_is_no_key_is_refused_at_once(dsn: str, key: Any) -> None:
    """Before anything is recorded."""
    app = App(dsn)

    @app.workflow
    async def ask() -> str:
        try:
            await ctx.until("orders", "paid", key=key)
        except InvalidRequest as error:
            return error.message
        return ""

    assert "is not a key" in app.run(ask)


def test_until_is_for_workflow_code() -> None:
    """Elsewhere it says what to use."""
    with pytest.raises(InvalidRequest, match=r"ctx\.until\(\) was used outside a workflow"):
        ctx.until("orders", "paid", key={"id": 1})


def test_another_key_at_the_same_place_halts(dsn: str, conn: Connection) -> None:
    """The key is a part of what the journal compares."""
    app = App(dsn)
    keys = [{"id": 1}]

    @app.workflow
    async def ask() -> Any:
        return await ctx.until("orders", "paid", key=keys[0])

    async def main() -> None:
        shop(conn)
        async with app.client() as client:
            async with app.worker():
                run = await client.start(ask, id="r")
                await waits(run)
                await armed(conn)
            keys[0] = {"id": 2}
            conn.execute("insert into orders values (1, 'paid')")
            async with app.worker():
                while (await run.get()).state != "halted":
                    await asyncio.sleep(0.005)
            problem = str((await run.get()).problem)
            assert "promise orders.paid (input" in problem
            await run.cancel(force=True)

    asyncio.run(main())


@pytest.fixture
def by_hints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that never look of their own accord."""

    def look_no_more(looks: PollSchedule, now: float, *, found: bool) -> None:
        looks.at = now + 1e6

    monkeypatch.setattr(PollSchedule, "polled", look_no_more)
    monkeypatch.setattr(ticker, "WATCH_EVERY_S", 1e6)
    monkeypatch.setattr(ticker, "IDLE_EVERY_S", 1e6)


@pytest.fixture
def own(alone: str) -> Iterator[Connection]:
    """A connection to a server of the test's own, where nobody else writes: a wait is armed at once."""
    with psycopg.connect(alone, autocommit=True) as connection:
        yield connection


@pytest.mark.usefixtures("by_hints_alone")
def test_the_hint_of_the_commit_is_enough(alone: str, own: Connection) -> None:
    """A worker notices every commit by the hint that it sent, and takes a few rounds for each."""
    app = App(alone)

    @app.workflow
    async def follow(count: int) -> int:
        for number in range(count):
            await ctx.until("orders", "paid", key={"id": number})
        return count

    def ticks() -> int:
        text = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'tick_v1'"
        found = own.execute(text.encode()).fetchone()
        assert found is not None
        return int(str(found[0]))

    async def main() -> int:
        shop(own)
        own.execute("select durable.set_setting('hints', 'commit')")
        async with app.client() as client, app.worker():
            run = await client.start(follow, 10, id="r")
            before = ticks()
            for number in range(10):
                while (
                    own.execute(
                        "select from durable._row_waits where promise_id = %s and test_at is null",
                        (f"r.{number}",),
                    ).rowcount
                    != 1
                ):
                    await asyncio.sleep(0.002)
                own.execute("insert into orders values (%s, 'paid')", (number,))
            assert await run.result(timeout=20) == 10
        return ticks() - before

    # one that arms, one that settles, for each; others where they meet
    assert asyncio.run(asyncio.wait_for(main(), 60)) <= 10 * 8


@pytest.mark.usefixtures("by_hints_alone")
def test_an_older_answer_does_not_take_back_what_a_newer_one_told(
    alone: str, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit comes while a tick that has seen nothing of it is on its way back, and a turn has told of it
    by then: the next tick ends the wait."""
    app = App(alone)
    told, is_paid = asyncio.Event(), False
    record_due, rows = ticker.Ticker.record_due, ConnectionPool.rows

    def listen_in(keeper: ticker.Ticker, asked_s: float, now_s: float, due_in_ms: int | None) -> None:
        record_due(keeper, asked_s, now_s, due_in_ms)
        if due_in_ms == -1 and is_paid:
            told.set()

    async def hold_a_tick(link: ConnectionPool, procedure: Procedure, *args: Any) -> list[Any]:
        nonlocal is_paid
        found = await rows(link, procedure, *args)
        if procedure is TICK and not is_paid:
            answer = json.loads(found[0]["answer"])
            waiting = own.execute("select test_at is null from durable._row_waits").fetchall()
            if waiting == [(True,)] and not answer["more"] and answer["next_due_ms"] is None:
                own.execute("insert into orders values (1, 'paid')")
                is_paid = True
                await told.wait()
        return found

    monkeypatch.setattr(ticker.Ticker, "record_due", listen_in)
    monkeypatch.setattr(ConnectionPool, "rows", hold_a_tick)

    @app.workflow
    async def pay() -> str:
        return str((await ctx.until("orders", "paid", key={"id": 1}))["status"])

    async def main() -> str:
        shop(own)
        own.execute("select durable.set_setting('hints', 'commit')")
        async with app.client() as client, app.worker():
            run = await client.start(pay, id="r")
            return str(await run.result(timeout=20))

    assert asyncio.run(asyncio.wait_for(main(), 60)) == "paid"
    assert told.is_set()


def test_waits_for_rows_are_waits_like_others(dsn: str, conn: Connection) -> None:
    """They are gathered, raced against a sleep, and left by a timeout of asyncio; a run that is cancelled
    while it waits leaves nothing behind."""
    app = App(dsn)

    @app.workflow
    async def collect() -> list[Any]:
        rows = await ctx.gather(*(ctx.until("orders", "paid", key={"id": number}) for number in (1, 2)))
        winner, _ = await ctx.first(ctx.until("orders", "paid", key={"id": 3}), ctx.sleep(0.01))
        try:
            async with asyncio.timeout(0.01):
                await ctx.until("orders", "paid", key={"id": 4})
        except TimeoutError:
            return [row["id"] for row in rows] + [winner]
        return []

    @app.workflow
    async def stay() -> None:
        await ctx.until("orders", "paid", key={"id": 9})

    async def main() -> list[Any]:
        shop(conn)
        async with app.client() as client, app.worker():
            run, other = await client.start(collect, id="r"), await client.start(stay, id="s")
            await armed(conn, 3)
            conn.execute("insert into orders values (2, 'paid')")
            conn.execute("insert into orders values (1, 'paid')")
            told = await run.result(timeout=20)
            await other.cancel()
            while conn.execute("select count(*) from durable._row_waits").fetchone() != (0,):
                await asyncio.sleep(0.005)
            return told

    assert asyncio.run(asyncio.wait_for(main(), 600)) == [1, 2, 1]
