"""Law: an async generator that code leaves open is closed before its run ends, the youngest first, and what
its clean-up awaits belongs to the run.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.loop.generators import Generators
from pyengine.core.replay.advance import StepCall
from tests.core.replay.memory_run import MemoryRun, add, greet, workflow


async def pages(name: str) -> AsyncIterator[int]:
    """A generator with a clean-up."""
    try:
        for n in range(3):
            yield n
    finally:
        await greet(f"close {name}")


async def drops() -> str:
    """Ends right after it has let one go."""
    async for _ in pages("a"):
        break
    return "done"


async def holds() -> str:
    """Ends while it refers to two, which are let go by that."""
    first, second = pages("a"), pages("b")
    await anext(first)
    await anext(second)
    return "done"


async def keeps() -> str:
    """Ends while something else refers to two."""
    kept = [pages("a"), pages("b")]
    for one in kept:
        await anext(one)
    asyncio.get_running_loop().kept = kept  # type: ignore[attr-defined]
    return "done"


async def fails() -> str:
    """Fails within one, whose frame the error keeps."""
    async for _ in pages("a"):
        raise ValueError("no")
    return "never"


async def collected() -> str:
    """Refers to one by a cycle, which only the collector finds."""
    cycle: list[Any] = [pages("a")]
    cycle.append(cycle)
    await anext(cycle[0])
    del cycle
    await add(1, 2)
    return "done"


async def nested() -> str:
    """One that iterates over another."""

    async def chapters() -> AsyncIterator[int]:
        try:
            async for n in pages("inner"):
                yield n
        finally:
            await greet("close outer")

    async for _ in chapters():
        break
    return "done"


async def fails_to_close() -> str:
    """One whose clean-up fails, and an older one."""

    async def broken() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("broken")

    first, second = pages("a"), broken()
    await anext(first)
    await anext(second)
    return "done"


async def exhausted() -> str:
    """One that has ended, or was closed."""
    ended, closed = pages("a"), pages("b")
    async for _ in ended:
        pass
    await anext(closed)
    await closed.aclose()  # type: ignore[attr-defined]
    return "done"


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        (drops, ["close a"]),
        (holds, ["close a", "close b"]),
        (keeps, ["close b", "close a"]),
        (fails, ["close a"]),
        (collected, [1, "close a"]),
        (nested, ["close outer", "close inner"]),
        (fails_to_close, ["close a"]),
        (exhausted, ["close a", "close b"]),
    ],
)
def test_clean_ups_belong_to_the_run(code: Any, calls: list[Any]) -> None:
    """Each clean-up is a step of the run, live and in a replay of every beginning of the journal."""
    run = MemoryRun(workflow(code))
    made = {}
    while run.open and not run.warm.finished:
        gc.collect()
        child, call = min(run.open.items())
        assert isinstance(call, StepCall)
        made |= {child: one.args[0] for child, one in run.open.items() if isinstance(one, StepCall)}
        assert [one.child for one in run.cold().steps] == sorted(run.open)
        run.complete(child, 3 if call.name == "add" else "x")
    assert [made[child] for child in sorted(made)] == calls
    assert run.warm.finished
    assert type(run.end) is type(run.cold().end)
    if code is fails:
        assert isinstance(run.error, ValueError)
    else:
        assert run.value == "done"


def test_a_run_that_is_cancelled_ends() -> None:
    """The clean-up of a generator gets what each call outside a shield gets."""

    async def waits() -> None:
        async for _ in pages("a"):
            await ctx.receive("go")

    run = MemoryRun(workflow(waits))
    run.cancel()
    assert run.warm.finished
    assert type(run.end).__name__ == "Cancelled"
    assert run.commands and not run.moves.steps


def test_a_request_during_the_clean_up() -> None:
    """A request that comes while generators are closed does not change how the code has ended."""
    run = MemoryRun(workflow(holds))
    run.cancel()
    assert run.value == "done"
    assert type(run.cold().end) is type(run.end)


def test_runs_born_before_end_as_they_did() -> None:
    """A run born under older rules ends without the clean-up of what it left open."""
    for code in (drops, holds):
        run = MemoryRun(workflow(code), rules=3)
        assert run.value == "done"


def test_one_that_cannot_be_closed() -> None:
    """The run ends all the same, as its code did."""

    kept: list[Any] = []
    ended: list[bool] = []

    async def stubborn() -> AsyncIterator[int]:
        while True:
            try:
                yield 1
            except GeneratorExit:
                if ended:
                    raise

    async def code() -> str:
        kept.append(stubborn())
        await anext(kept[-1])
        return "done"

    assert MemoryRun(workflow(code)).value == "done"
    ended.append(True)  # for the collector


def test_one_that_is_closed_is_none() -> None:
    """Whether there are any is asked of those that are open."""
    generators, one = Generators(), pages("a")
    assert not generators
    generators.track(one)  # type: ignore[arg-type]
    assert generators
    with pytest.raises(StopIteration):
        one.aclose().send(None)  # type: ignore[attr-defined]
    assert not generators
