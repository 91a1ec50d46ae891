"""Runs that clean up after they were asked to end: in a shield, at another worker, or in their own code."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.core.worker import run_driver
from tests.core.worker.test_cancelling import CANCELLED, cancel, cancelled, state, types
from tests.support.turns import Send, intercept

Connection = psycopg.Connection[tuple[object, ...]]


def test_clean_up_in_a_shield_takes_durable_steps(dsn: str, conn: Connection) -> None:
    """In a shield the code may take steps and wait, after the request as before; then it ends."""
    app = App(dsn)
    did: list[str] = []

    @app.step
    async def slow() -> None:
        did.append("slow")
        await asyncio.sleep(600)

    @app.step
    async def undo(what: str) -> str:
        did.append(f"undo {what}")
        return what

    @app.workflow
    async def child(what: str) -> str:
        return await undo(what)

    @app.workflow
    async def go() -> None:
        try:
            await slow()
        finally:
            async with ctx.shield():
                await undo("first")
                await ctx.sleep(0.05)
                assert await child("second") == "second"
                await asyncio.gather(undo("third"), undo("fourth"))

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not did:
                await asyncio.sleep(0.005)
            cancel(conn, "r", grace="1 hour")
            await cancelled(run)

    asyncio.run(main())
    assert did == ["slow", "undo first", "undo second", "undo third", "undo fourth"]
    assert types(conn, "r", leave_out=("step_started", "child_run_started")) == [
        *("execution_started", "cancel_requested", "step_completed", "timer_scheduled", "timer_fired"),
        *("child_run_scheduled", "open_child_settled", "step_completed"),
        *("step_completed", "execution_cancelled"),
    ]


def test_clean_up_goes_on_at_another_worker(dsn: str, conn: Connection) -> None:
    """A worker that stops in the middle of a clean-up leaves it to the next one; what was done stays done."""
    app = App(dsn)
    did: list[str] = []

    @app.step
    async def slow() -> None:
        did.append("slow")
        await asyncio.sleep(600)

    @app.step
    async def undo(what: str) -> str:
        did.append(what)
        if len(did) == 3:
            await asyncio.sleep(600)
        return what

    @app.workflow
    async def go() -> None:
        try:
            await slow()
        finally:
            async with ctx.shield():
                await undo("first")
                await undo("second")

    async def main() -> None:
        async with app.client() as client:
            run = await client.start(go, id="r")
            async with app.worker():
                while not did:
                    await asyncio.sleep(0.005)
                cancel(conn, "r", grace="1 hour")
                while len(did) < 3:
                    await asyncio.sleep(0.005)
            async with app.worker():
                await cancelled(run)

    asyncio.run(main())
    assert did == ["slow", "first", "second", "second"]


def test_clean_up_is_tried_again_after_it_was_given_back(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a clean-up whose next attempt is far away gives the run back, and is made again later."""
    monkeypatch.setattr(run_driver, "RELEASE_AFTER_MS", 10)
    app = App(dsn)
    attempts: list[int] = []

    @app.step(retry=Retry(max_attempts=3, initial="150ms", backoff=1, jitter=0))
    async def undo() -> None:
        attempts.append(ctx.step.attempt)
        if ctx.step.attempt < 3:
            raise OSError("not yet")

    @app.workflow
    async def go() -> None:
        try:
            await ctx.sleep("1h")
        finally:
            async with ctx.shield():
                await undo()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.005)
            cancel(conn, "r", grace="1 hour")
            await cancelled(run)

    asyncio.run(main())
    assert attempts == [1, 2, 3]
    assert types(conn, "r") == [
        *("execution_started", "timer_scheduled", "execution_awaiting", "cancel_requested"),
        *("first_attempt_failed", "attempt_failed", "last_attempt_completed", "execution_cancelled"),
    ]


@pytest.mark.parametrize("moment", ["running", "reported"])
def test_an_attempt_in_a_shield_goes_on(dsn: str, conn: Connection, moment: str) -> None:
    """A request does not touch a step in a shield: it is made once and its result counts, also if the
    request comes between the end of the step and the turn that reports it.
    """
    app = App(dsn)
    attempts: list[int] = []
    release = asyncio.Event()

    @app.step
    async def work() -> str:
        attempts.append(ctx.step.attempt)
        await release.wait()
        return "worked"

    @app.step
    async def after() -> None:
        raise AssertionError("after a request no step begins outside a shield")

    @app.workflow
    async def go() -> None:
        async with ctx.shield():
            assert await work() == "worked"
        await after()

    async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
        if (
            moment == "reported"
            and any('"worked' in str(one) for one in sent)
            and state(conn, "r") == "running"
        ):
            cancel(conn, "r", grace="1 hour")
        return await send()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not attempts:
                await asyncio.sleep(0.005)
            if moment == "running":
                cancel(conn, "r", grace="1 hour")
                # long enough that the worker has heard of it
                await asyncio.sleep(0.3)
            release.set()
            await cancelled(run)

    undo = intercept(watch)
    try:
        asyncio.run(main())
    finally:
        undo()
    assert attempts == [1]
    *before, step, last = types(conn, "r", leave_out=("step_started",))
    assert [*before, last] == CANCELLED and step in ("step_completed", "open_step_completed")


def test_code_may_catch_it_and_return(dsn: str, conn: Connection) -> None:
    """A request is not an order: what the workflow returns counts."""
    app = App(dsn)
    began: list[int] = []

    @app.step
    async def slow() -> None:
        began.append(1)
        await asyncio.sleep(600)

    @app.workflow
    async def go() -> str:
        try:
            await slow()
        except asyncio.CancelledError:
            return "kept"
        return "slow"

    async def main() -> str:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not began:
                await asyncio.sleep(0.005)
            cancel(conn, "r")
            return await run.result(timeout=20)

    assert asyncio.run(main()) == "kept"
    assert types(conn, "r", leave_out=("step_started",)) == [*CANCELLED[:2], "execution_completed"]
