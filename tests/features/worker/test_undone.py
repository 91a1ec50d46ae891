"""Compensations of runs that are tried again, and of code that does not let itself be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import psycopg
import pytest

from pyengine import App, Client, CompensationFailed, RunCancelled, RunFailed, ctx
from tests.core.worker.test_run_attempts import SOON, Boom, history

Connection = psycopg.Connection[tuple[object, ...]]


def test_each_attempt_is_undone_before_the_next(dsn: str, conn: Connection) -> None:
    """Compensations come before the next attempt; one that fails ends the run at once."""
    app = App(dsn)
    done: list[str] = []

    @app.step
    async def book(room: int) -> None:
        done.append(f"book {room}")

    @app.step
    async def give_back(room: int) -> None:
        done.append(f"give back {room}")
        if room == 13:
            raise ValueError("lost the key")

    @app.workflow(retry=SOON)
    async def stay(room: int) -> str:
        await book(room)
        ctx.on_failure(give_back, room)
        if ctx.attempt < 2:
            raise Boom("no breakfast")
        return "slept"

    async def main(client: Client) -> None:
        assert await (await client.start(stay, 12, id="r")).result(timeout=20) == "slept"
        assert done == ["book 12", "give back 12", "book 12"]
        with pytest.raises(RunFailed, match="lost the key") as caught:
            await (await client.start(stay, 13, id="lost")).result(timeout=20)
        assert isinstance(caught.value.__cause__, CompensationFailed)

    async def within() -> None:
        async with app.client() as client, app.worker():
            await main(client)

    asyncio.run(within())
    assert len(history(conn, "lost")) == 1


def test_what_stopped_code_has_done_is_undone(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its compensations are made, also after their own worker has gone; then the run is cancelled."""
    app, undone = App(dsn), list[int]()
    first_tries = asyncio.Event()

    @app.step
    async def undo(n: int) -> None:
        if n == 1 and not first_tries.is_set():
            first_tries.set()
            await asyncio.sleep(60)
        undone.append(n)

    @app.workflow
    async def stubborn() -> None:
        for n in (1, 2):
            ctx.on_failure(undo, n)
        while True:
            with contextlib.suppress(BaseException):
                await ctx.gather(ctx.sleep("1h"), ctx.sleep("2h"))

    async def main() -> None:
        async with app.client() as client:
            async with app.worker(grace=0):
                run = await client.start(stubborn)
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.01)
                await run.cancel()
                await first_tries.wait()
            async with app.worker():
                with pytest.raises(RunCancelled):
                    await run.result(timeout=30)

    with caplog.at_level(logging.ERROR, logger="pyengine"):
        asyncio.run(main())
    assert undone == [2, 1]
    # one for each worker that has executed the code
    assert [getattr(one, "event", "") for one in caplog.records] == ["cancellation_swallowed"] * 2
