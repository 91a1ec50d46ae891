"""Law: `asyncio.wait_for` in a workflow has one order on every Python, whoever imported it first, and
`asyncio.wait` takes calls.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from asyncio import wait, wait_for
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.loop import wait_for as replacing
from tests.core.replay.memory_run import MemoryRun, greet, workflow

IN_PLACE = sys.version_info >= (3, 12)


async def two(name: str) -> str:
    """Two calls."""
    await greet(f"{name} 1")
    return await greet(f"{name} 2")


async def beside() -> list[str]:
    """One beside other work."""
    return await asyncio.gather(wait_for(two("a"), 60), two("b"))


async def too_late() -> str:
    """One whose time is over, and that cleans up."""

    async def tidies() -> None:
        try:
            await ctx.sleep("1h")
        finally:
            async with ctx.shield():
                await greet("tidied")

    try:
        await wait_for(tidies(), 1)
    except TimeoutError:
        return "too late"
    return "in time"


def finished(code: Any, rules: int) -> tuple[Any, list[tuple[int, Any]]]:
    """Run it to its end, each child after the other; return its value and its calls in their order."""
    run = MemoryRun(workflow(code), rules=rules)
    calls: dict[int, Any] = {}
    while run.open and not run.warm.finished:
        calls |= {child: getattr(one, "args", ("timer",))[0] for child, one in run.open.items()}
        timers = [child for child in run.open if calls[child] == "timer"]
        steps = [child for child in run.open if calls[child] != "timer"]
        run.complete(min(steps) if steps else max(timers) - 1, "x")
        assert type(run.cold().end) is type(run.end)
    return run.value, [calls[child] for child in sorted(calls)]


def test_calls_begin_in_place() -> None:
    """Its part begins where it is awaited; in a run born under older rules as this Python has it."""
    in_place = ["timer", "a 1", "b 1", "a 2", "b 2"]
    assert finished(beside, 4) == (["x", "x"], in_place)
    older = in_place if IN_PLACE else ["timer", "b 1", "a 1", "b 2", "a 2"]
    assert finished(beside, 3) == (["x", "x"], older)


@pytest.mark.parametrize("rules", [3, 4])
def test_a_limit_that_ends(rules: int) -> None:
    """It cancels what it waits for, waits for its clean-up, and raises TimeoutError."""
    assert finished(too_late, rules) == ("too late", ["timer", "timer", "tidied"])


def test_other_loops_have_what_they_had() -> None:
    """Outside of workflows it has its name and parameters, and makes a task where this Python does."""

    async def own() -> bool:
        outer = asyncio.current_task()

        async def inner() -> bool:
            return asyncio.current_task() is outer

        with pytest.raises(TimeoutError):
            await wait_for(asyncio.sleep(3600), 0)
        with pytest.raises(TimeoutError):
            await wait_for(asyncio.sleep(3600), 1e-9)
        return await wait_for(inner(), 60)

    assert asyncio.run(own()) is IN_PLACE
    assert wait_for is asyncio.wait_for is asyncio.tasks.wait_for
    assert list(inspect.signature(wait_for).parameters) == ["fut", "timeout"]
    assert wait_for.__name__ == "wait_for"


def test_a_function_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a library has put another function in its place, or the code is replaced already."""
    own = asyncio.tasks.wait_for

    async def plain(fut: Any, timeout: Any) -> Any:
        pass

    async def around(fut: Any, timeout: Any) -> Any:
        return await own(fut, timeout)

    for other in (plain, around):
        code = other.__code__
        monkeypatch.setattr(asyncio.tasks, "wait_for", other)
        replacing.replace_code("wait_for", "_wait_for_in_a_task", replacing.wait_in_place)
        assert other.__code__ is code
    monkeypatch.setattr(asyncio.tasks, "wait_for", own)
    monkeypatch.setattr(asyncio.tasks, "_wait_for_in_a_task", plain, raising=False)
    code = own.__code__
    replacing.replace_code("wait_for", "_wait_for_in_a_task", replacing.wait_in_place)
    assert own.__code__ is code and vars(asyncio.tasks)["_wait_for_in_a_task"] is plain


async def turns(make: Any, wait: Any) -> list[Any]:
    """Whichever of two signals comes first, three times; the other one is given up."""
    came: list[Any] = []
    for _ in range(3):
        tasks = [make(ctx.receive("completed")), make(ctx.receive("failed", timeout="1h"))]
        done, rest = await wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in rest:
            one.cancel()
        assert done <= set(tasks) and len(rest) == 1
        came.append(done.pop().result())
    return came


@pytest.mark.parametrize("make", [asyncio.create_task, asyncio.ensure_future, lambda one: one])
def test_a_wait_takes_calls(make: Any) -> None:
    """A call is awaited as what `create_task` and `ensure_future` make of it, in a loop too (D006)."""

    async def code() -> list[Any]:
        return await turns(make, wait)

    run = MemoryRun(workflow(code))
    for name in ("failed", "failed", "completed"):
        run.send(name, name)
        run.cold()
    assert run.value == ["failed", "failed", "completed"]


def test_a_wait_refuses_what_it_did() -> None:
    """Coroutines, none at all, a future in place of a list, a name that is no condition; here and elsewhere,
    with the words of asyncio. In a run of older rules calls too.
    """

    async def refused() -> list[str]:
        async def own() -> None:
            await asyncio.sleep(0)

        one = own()
        texts = []
        for given, when in (
            ([one], asyncio.ALL_COMPLETED),
            ([], asyncio.ALL_COMPLETED),
            (asyncio.get_running_loop().create_future(), asyncio.ALL_COMPLETED),
            ([asyncio.ensure_future(own())], "soon"),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                await wait(given, return_when=when)  # type: ignore[call-overload]
            texts.append(str(caught.value))
        one.close()
        return texts

    async def call() -> None:
        await wait([asyncio.ensure_future(ctx.receive("a"))])

    there = asyncio.run(refused())
    assert len(set(there)) == 4
    assert MemoryRun(workflow(refused)).value == [
        text.replace("not Future", "not DeterministicFuture") for text in there
    ]
    assert isinstance(MemoryRun(workflow(call), rules=3).error, TypeError)
    assert wait is asyncio.wait is asyncio.tasks.wait
    assert list(inspect.signature(wait).parameters) == ["fs", "timeout", "return_when"]
