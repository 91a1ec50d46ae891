"""Shields: which cancellations wait for the end of a shield, and which get through."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.loop.shield import Shield, reaches
from pyengine.core.protocol.commands import Cancelled, StartTimer
from pyengine.errors import InvalidRequest
from tests.core.replay.memory_run import MemoryRun, add, greet, step, workflow


def check(run: MemoryRun) -> None:
    """A cold replay ends as the live run did and wants nothing new."""
    moves = run.cold()
    assert (moves.end, moves.commands, run.cold_waits) == (run.end, (), run.waits)


def finished(code: Callable[[], Any], *children: int) -> Any:
    """Run a workflow to its end, completing these children in order, and return its value."""
    run = MemoryRun(workflow(code))
    for child in children:
        check(run)
        run.complete(child, f"value {child}")
    check(run)
    return run.value


def test_reaches() -> None:
    """A cancellation gets through to what stands in the same shield, further out, or in none."""
    outer = Shield(None)
    inner, other = Shield(outer), Shield(None)
    for source, target, expected in (
        (None, None, True),
        (outer, None, True),
        (outer, outer, True),
        (inner, outer, True),
        (None, outer, False),
        (outer, inner, False),
        (other, outer, False),
    ):
        assert reaches(source, target) is expected


def test_a_task_is_cancelled_when_it_leaves() -> None:
    """A cancellation from outside waits until the outermost shield is left, and is raised there."""

    async def work(seen: list[str]) -> None:
        try:
            async with ctx.shield():
                async with ctx.shield():
                    seen.append(await greet("a"))
                seen.append(await greet("b"))
            seen.append("never")
        finally:
            seen.append("left")

    async def code() -> list[Any]:
        seen: list[str] = []
        task = asyncio.create_task(work(seen))
        await ctx.sleep(1)
        answer = task.cancel("enough")
        await asyncio.wait([task])
        return [answer, task.cancelled(), *seen]

    # the timer is the first call: the task makes its own only when the loop comes to it
    assert finished(code, 0, 1, 2) == [True, True, "value 1", "value 2", "left"]


def test_a_limit_around_a_shield_waits() -> None:
    """asyncio.timeout around a shield raises TimeoutError when the shield is left, with all counts right."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        try:
            async with asyncio.timeout(1):
                async with ctx.shield():
                    seen.append(await greet("a"))
                seen.append("never")
        except TimeoutError:
            seen.append("late")
        task = asyncio.current_task()
        assert task is not None
        return [*seen, task.cancelling(), await greet("b")]

    assert finished(code, 0, 1, 2) == ["value 1", "late", 0, "value 2"]


def test_a_limit_inside_a_shield_works() -> None:
    """A limit that is set inside a shield is the shield's own business, and so is that of the shield."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        async with ctx.shield():
            try:
                async with asyncio.timeout(1):
                    await greet("a")
            except TimeoutError:
                seen.append("late")
        try:
            async with ctx.shield("2s"):
                await greet("b")
        except TimeoutError:
            seen.append("too late")
        async with ctx.shield(timeout=5):
            seen.append(await greet("c"))
        return seen

    run = MemoryRun(workflow(code))
    assert run.moves.commands == (StartTimer(child=0, duration_ms=1000),)
    assert finished(code, 0, 2, 5) == ["late", "too late", "value 5"]


def test_a_group_inside_a_shield_works() -> None:
    """A TaskGroup in a shield cancels its members and its body when one fails, though they are shielded."""

    async def failing() -> None:
        await greet("a")
        raise LookupError("member")

    async def code() -> list[Any]:
        seen: list[Any] = []
        async with ctx.shield():
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(failing())
                    member = group.create_task(add(1, 2))
                    await ctx.sleep(1)
                    seen.append("never")
            except* LookupError:
                seen.append(member.cancelled())
            seen.append(await greet("b"))
        return seen

    assert finished(code, 2, 3) == [True, "value 3"]


def test_a_group_around_a_shield_waits() -> None:
    """A TaskGroup whose member fails does not interrupt a shield in its body or in another member."""

    async def failing() -> None:
        await greet("a")
        raise LookupError("member")

    async def shielded(seen: list[Any]) -> None:
        async with ctx.shield():
            seen.append(await greet("b"))
        seen.append("never")

    async def code() -> list[Any]:
        seen: list[Any] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
                group.create_task(shielded(seen))
                async with ctx.shield():
                    seen.append(await greet("c"))
                seen.append("never")
        except* LookupError:
            seen.append("group")
        task = asyncio.current_task()
        assert task is not None
        return [*seen, await greet("d")]

    assert finished(code, 1, 2, 0, 3) == ["value 2", "value 0", "group", "value 3"]


def test_tasks_made_inside_are_shielded() -> None:
    """A task made in a shield stays in it: it may go on when the run is asked to end."""
    seen: list[str] = []

    async def undo(name: str) -> None:
        seen.append(await greet(name))
        seen.append(await greet(name + name))

    async def code() -> None:
        seen.clear()
        async with ctx.shield():
            tasks = [asyncio.create_task(undo(name)) for name in "ab"]
        await asyncio.gather(*tasks)

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.end is None and run.waits == 2
    for child in (1, 0, 2):
        run.complete(child, f"value {child}")
        check(run)
    run.complete(3, "value 3")
    assert run.end == Cancelled() and len(seen) == 4
    check(run)


def test_a_task_of_a_shield_is_cancelled_from_inside_only() -> None:
    """Code in the same shield may cancel a task that was made there; code outside cannot, and is told so."""

    async def code() -> list[Any]:
        async with ctx.shield():
            one, two = asyncio.create_task(ctx.sleep(1)), asyncio.create_task(greet("a"))
            await asyncio.sleep(0)
            inside = one.cancel()
            await asyncio.wait([one])
        outside = two.cancel()
        return [inside, one.cancelled(), outside, await two]

    assert finished(code, 1) == [True, True, False, "value 1"]


def test_cancelled_before_the_shield() -> None:
    """A cancellation that came before the shield is raised at its entry, not inside."""

    async def work() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        async with ctx.shield():
            await greet("never")

    async def code() -> str:
        try:
            await asyncio.create_task(work())
        except asyncio.CancelledError:
            return "at the entry"
        return "inside"

    run = MemoryRun(workflow(code))
    assert run.value == "at the entry" and run.commands == []


def test_an_error_leaves_before_the_cancellation() -> None:
    """An error that leaves a shield is not hidden by a cancellation, which is raised at the next wait."""

    async def work(seen: list[Any]) -> None:
        try:
            async with ctx.shield():
                await greet("a")
                raise ValueError("from inside")
        except ValueError as error:
            seen.append(str(error))
            await ctx.sleep(1)

    async def code() -> list[Any]:
        seen: list[Any] = []
        task = asyncio.create_task(work(seen))
        await ctx.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return [*seen, task.cancelled()]

    assert finished(code, 0, 1) == ["from inside", True]


def test_bad_use() -> None:
    """A shield is entered once, in workflow code only, with a limit that is a duration."""

    async def code() -> str:
        shield = ctx.shield()
        async with shield:
            pass
        with pytest.raises(RuntimeError, match="entered once"):
            async with shield:
                pass
        with pytest.raises(InvalidRequest, match=r"ctx\.shield"):
            ctx.shield("soon")
        return "refused"

    assert MemoryRun(workflow(code)).value == "refused"
    with pytest.raises(InvalidRequest, match="outside a workflow"):
        ctx.shield()


def test_a_step_is_never_shielded() -> None:
    """The result of a step that only a shield waits for comes in the same way as any other."""

    @step
    async def never() -> None:
        raise AssertionError

    async def code() -> str:
        async with ctx.shield():
            _ = never()
            return await greet("a")

    run = MemoryRun(workflow(code))
    run.complete(1, "a")
    assert run.value == "a" and run.waits == 0


def test_eviction_in_a_shield_is_quiet() -> None:
    """Throwing a run away that stands in shields gives no warning, wherever it waits."""

    async def undo() -> None:
        try:
            async with ctx.shield(9):
                await greet("a")
        finally:
            with contextlib.suppress(BaseException):
                async with ctx.shield(9):
                    await greet("b")

    async def code() -> None:
        async with ctx.shield(), asyncio.TaskGroup() as group:
            group.create_task(undo())
            group.create_task(undo())
            await ctx.receive("x")

    run = MemoryRun(workflow(code))
    run.cancel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.warm.evict()
        del run
        gc.collect()
