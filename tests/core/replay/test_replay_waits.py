"""The waits of the replay machine as a table: which children a run waits for, and the timers among them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.protocol.commands import MakePromise, StartTimer, Suspend
from pyengine.errors import (
    InvalidRequest,
    NotAwaitable,
)
from tests.core.replay.memory_run import STARTED_MS, MemoryRun, add, greet, ship, workflow


@pytest.mark.parametrize(
    ("code", "on", "kind"),
    [
        (lambda: ctx.sleep(1), (0,), "single"),
        (lambda: asyncio.sleep(1), (0,), "single"),
        (lambda: ctx.gather(ctx.sleep(1), ctx.promise(), ship(1)), (0, 1, 2), "all"),
        (lambda: asyncio.gather(ctx.sleep(1), ctx.promise(), ship(1)), (0, 1, 2), "any"),
        (lambda: ctx.gather(ctx.sleep(1), asyncio.sleep(1)), (0, 1), "any"),
        (lambda: ctx.gather(ctx.sleep(1)), (0,), "single"),
        (lambda: ctx.first(ctx.sleep(1), ctx.promise()), (0, 1), "any"),
        (lambda: asyncio.wait_for(ctx.promise(), 5), (0, 1), "any"),
        (lambda: asyncio.gather(ctx.gather(ctx.promise(), ctx.promise()), ctx.sleep(1)), (0, 1, 2), "any"),
    ],
)
def test_wait_kinds(code: Any, on: tuple[int, ...], kind: str) -> None:
    """A blocked run names everything it waits for; All only where one ctx.gather is the whole wait."""

    async def body() -> None:
        await code()

    run = MemoryRun(workflow(body))
    assert run.end == Suspend(on=on, kind=kind)  # type: ignore[arg-type]
    assert run.cold().end == run.end


def test_gather_wakes_with_what_is_left() -> None:
    """An All wait that was woken early goes on with its remaining members."""

    async def code() -> list[Any]:
        return list(await ctx.gather(*[ship(n) for n in range(3)]))

    run = MemoryRun(workflow(code))
    assert run.complete(1, "b").end == Suspend(on=(0, 2), kind="all")
    run.complete_all([(2, "c", None), (0, "a", None)])
    assert run.value == ["a", "b", "c"]


def test_unawaited_calls_do_not_wake() -> None:
    """What nobody waits for at the moment is not part of the wait, yet its completion is kept for later."""

    async def code() -> list[Any]:
        child = ctx.start(ship, 1)
        await ctx.sleep(1)
        return [child.done(), await child]

    run = MemoryRun(workflow(code))
    assert run.end == Suspend(on=(1,), kind="single")
    run.complete_all([(0, "early", None), (1, None, None)])
    assert run.value == [True, "early"]


def test_outstanding_step_keeps_the_run() -> None:
    """While a local step is outstanding nothing is suspended; when only others are left it is."""

    async def code() -> int:
        a, _ = await asyncio.gather(add(1, 2), ctx.sleep(60))
        return a

    run = MemoryRun(workflow(code))
    assert run.end is None and run.waits == 1 and len(run.moves.commands) == 1
    assert run.complete(0, 3).end == Suspend(on=(1,), kind="single")
    run.complete(1)
    assert run.value == 3


def test_waiting_for_nothing_fails() -> None:
    """A workflow that waits for what can never happen fails at once and says so."""

    async def code() -> None:
        ctx.start(ship, 1)
        await asyncio.Event().wait()

    run = MemoryRun(workflow(code))
    assert isinstance(run.error, NotAwaitable) and "can never happen" in str(run.error)


def test_timeout_cancels_a_step() -> None:
    """A step that is given up is reported once, holds nothing, and its late row is ignored."""

    async def code() -> str:
        try:
            async with asyncio.timeout(5):
                await greet("slow")
        except TimeoutError:
            return f"late {asyncio.get_running_loop().time()} {await add(1, 1)}"
        return "in time"

    run = MemoryRun(workflow(code))
    assert run.moves.commands == (StartTimer(child=0, duration_ms=5000),) and run.end is None
    slow = run.moves.steps[0]
    moves = run.complete(0)
    assert moves.given_up == (1,) and run.waits == 1 and moves.steps[0].child == 2
    assert run.warm.advance().given_up == ()
    run.open[1] = slow
    run.complete(1, "too late")
    run.complete(2, 2)
    assert run.value == "late 5.0 2"
    assert run.cold().end == run.end


def test_cancelled_timer_is_ignored() -> None:
    """The timer of a timeout that was not needed fires into the void and does not move virtual time."""

    async def code() -> list[Any]:
        async with asyncio.timeout(5):
            await greet("quick")
        await ctx.promise()
        return [asyncio.get_running_loop().time()]

    run = MemoryRun(workflow(code))
    run.complete(1, "x")
    assert run.end == Suspend(on=(2,), kind="single")
    run.complete(0)
    assert run.end == Suspend(on=(2,), kind="single")
    run.complete(2)
    assert run.value == [0.0] and run.cold().end == run.end


def test_virtual_time_is_nominal() -> None:
    """After a timer, time is its nominal instant: recorded when it was made, warm and cold alike."""

    async def code() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        for delay in (1.5, 2):
            await ctx.sleep(delay)
            times.append(loop.time())
        await asyncio.sleep(0.25)
        return [*times, loop.time()]

    run = MemoryRun(workflow(code))
    for child in range(3):
        run.now_ms += 100_000
        run.complete(child)
    assert run.value == [1.5, 102.001, 200.252]
    assert run.cold().end == run.end


def test_sleep_until() -> None:
    """sleep_until reads the clock once; an instant that has passed still takes a number."""
    target = datetime.fromtimestamp(STARTED_MS / 1000, UTC) + timedelta(milliseconds=1500)

    async def code() -> str:
        await ctx.sleep_until(target)
        await ctx.sleep_until(target - timedelta(days=1))
        return "awake"

    run = MemoryRun(workflow(code))
    assert run.moves.commands == (StartTimer(child=0, duration_ms=1500),)
    run.now_ms += 10_000
    assert run.complete(0).commands == (StartTimer(child=1, duration_ms=0),)
    run.complete(1)
    assert run.value == "awake" and run.cold().end == run.end


def test_first_leaves_the_losers() -> None:
    """ctx.first gives index and value of the winner; the run may end with the loser outstanding."""

    async def code() -> list[Any]:
        return list(await ctx.first(greet("a"), ctx.promise(str)))

    run = MemoryRun(workflow(code))
    run.complete(1, "outside")
    assert run.value == [1, "outside"] and run.waits == 0
    assert run.cold().end == run.end


def test_as_completed() -> None:
    """ctx.as_completed gives results in the order of the journal."""

    async def code() -> list[str]:
        return [await one for one in ctx.as_completed(greet("a"), greet("b"), greet("c"))]

    run = MemoryRun(workflow(code))
    for child, value in ((2, "c"), (0, "a"), (1, "b")):
        run.complete(child, value)
    assert run.value == ["c", "a", "b"] and run.cold().end == run.end


PAST = timedelta(milliseconds=-5)


async def sleeps() -> None:
    await ctx.sleep(PAST)


async def receives() -> None:
    await ctx.receive("a", timeout=PAST)


async def receives_what_came() -> None:
    await ctx.sleep(1)
    assert await ctx.receive("b", timeout=PAST) == 5


async def promised() -> None:
    await ctx.promise(timeout=PAST)


async def shielded() -> None:
    async with ctx.shield(PAST):
        await ctx.sleep(60)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(sleeps, None), (receives, "TimeoutError"), (receives_what_came, None), (shielded, "TimeoutError")],
)
def test_times_that_are_over(code: Callable[[], Awaitable[None]], outcome: str | None) -> None:
    """A computed time below zero does not wait, and as a limit it ends at once; a signal that is there is
    received."""

    async def told() -> str | None:
        try:
            return await code()
        except TimeoutError as error:
            return type(error).__name__

    run = MemoryRun(workflow(told))
    run.send("b", 5)
    for child in [0, 2] if code is receives_what_came else [0, 1]:
        if not run.warm.finished and child in run.open:
            run.complete(child)
    assert run.value == outcome
    assert run.cold().end == run.end


def test_a_promise_whose_time_is_over() -> None:
    """It is made with the shortest limit, so that the database rejects it at once."""
    (command,) = MemoryRun(workflow(promised)).commands
    assert isinstance(command, MakePromise) and command.timeout_ms == 1


async def started() -> None:
    """A child with a limit."""
    await ctx.start(ship, 1, timeout=PAST)


@pytest.mark.parametrize("code", [sleeps, receives, promised, shielded, started])
def test_runs_born_before_are_refused_times_that_are_over(code: Callable[[], Awaitable[None]]) -> None:
    """A run born under older rules may have caught the refusal and gone on; so each replay is refused."""

    async def told() -> str:
        try:
            await code()
        except InvalidRequest as error:
            return error.message
        return "taken"

    run = MemoryRun(workflow(told), rules=3)
    assert run.warm.finished
    assert "is below 0" in run.value
