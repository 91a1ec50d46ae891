"""What undoes the work of a step begins when the step has stopped, and RunCancelled is raised after that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from pyengine import App, Retry, ctx
from pyengine.errors import RunCancelled

STUCK = "stuck"


class Bookings:
    """What steps in threads and in the loop have done, and whether it was undone before."""

    def __init__(self) -> None:
        self.begun = defaultdict[str, threading.Event](threading.Event)
        self.undone = defaultdict[str, threading.Event](threading.Event)
        self.release = threading.Event()
        self.early: dict[str, bool] = {}

    async def begins(self, kind: str) -> None:
        """Wait for a step."""
        while not self.begun[kind].is_set():
            await asyncio.sleep(0.005)


def steps_of(app: App, bookings: Bookings) -> Any:
    """Steps that go on for a moment after they were given up; one never ends."""

    def go_on(kind: str) -> None:
        bookings.begun[kind].set()
        while not ctx.step.cancelled:
            threading.Event().wait(0.005)
        bookings.early[kind] = bookings.undone[kind].wait(0.2)

    @app.step
    def book(kind: str) -> None:
        go_on(kind)

    @app.step(timeout="50ms")
    def book_in_time(kind: str) -> None:
        go_on(kind)

    @app.step
    def book_for_ever(kind: str) -> None:
        bookings.begun[kind].set()
        bookings.release.wait(60)

    @app.step
    async def book_in_loop(kind: str) -> None:
        bookings.begun[kind].set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            bookings.early[kind] = bookings.undone[kind].is_set()

    @app.step
    async def pay(kind: str) -> None:
        await bookings.begins(kind)
        raise ValueError("no money")

    @app.step
    async def undo(kind: str) -> None:
        bookings.undone[kind].set()

    return SimpleNamespace(
        book=book, in_time=book_in_time, for_ever=book_for_ever, in_loop=book_in_loop, pay=pay, undo=undo
    )


def app_of(dsn: str, bookings: Bookings) -> App:
    """Workflows that give up such a step, each in another way."""
    app = App(dsn)
    step = steps_of(app, bookings)
    undo = step.undo

    @app.workflow
    async def fails(kind: str) -> None:
        ctx.on_failure(undo, kind)
        await asyncio.gather(step.book(kind), step.pay(kind))

    @app.workflow
    async def late(kind: str) -> None:
        ctx.on_failure(undo, kind)
        await step.in_time(kind)

    @app.workflow
    async def compensates(kind: str) -> None:
        ctx.on_failure(undo, kind)
        await (step.for_ever if kind == STUCK else step.book)(kind)

    @app.workflow
    async def cleans_up(kind: str) -> None:
        try:
            await step.in_loop(kind)
        finally:
            async with ctx.shield():
                await undo(kind)

    @app.workflow(retry=Retry(max_attempts=2, initial="1ms"))
    async def again(kind: str) -> None:
        if ctx.attempt == 1:
            await asyncio.gather(step.book(kind), step.pay(kind))
        await undo(kind)

    @app.workflow
    async def ends(kind: str) -> None:
        await step.book(kind)

    return app


def test_the_undoing_waits_for_the_step(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """A thread that ends, an async step with a clean-up of its own; failure, timeout and cancellation. A
    thread that never ends gets half of the grace, and a warning names it."""
    bookings = Bookings()
    app = app_of(dsn, bookings)
    caplog.set_level(logging.WARNING, logger="pyengine")

    async def main() -> None:
        async with app.client() as client, app.worker():
            failing = [await client.start(name, name) for name in ("fails", "late", "again")]
            cancelled = {
                name: await client.start(name, name) for name in ("compensates", "cleans_up", "ends")
            }
            stuck = await client.start("compensates", STUCK)
            for kind in (*cancelled, STUCK):
                await bookings.begins(kind)
            for run in cancelled.values():
                await run.cancel()
            await stuck.cancel(grace="1s")
            for kind, run in cancelled.items():
                with pytest.raises(RunCancelled):
                    await run.result(timeout=20)
                assert kind in bookings.early
            for run in failing:
                with contextlib.suppress(Exception):
                    await run.result(timeout=20)
            with pytest.raises(RunCancelled):
                await stuck.result(timeout=20)
            bookings.release.set()

    asyncio.run(main())
    kinds = {"fails", "late", "again", "compensates", "cleans_up", "ends"}
    assert bookings.early == dict.fromkeys(kinds, False)
    assert {kind for kind, event in bookings.undone.items() if event.is_set()} == kinds - {"ends"} | {STUCK}
    told = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "run_steps_go_on"]
    assert len(told) == 1 and "book_for_ever" in told[0]
