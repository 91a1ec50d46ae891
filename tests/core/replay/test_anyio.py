"""anyio in workflow code: groups and scopes wake what they cancel in one order, and nothing spins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio._backends import _asyncio as backend

from pyengine.context import ctx
from pyengine.core.loop.anyio_scopes import _orderly
from pyengine.core.protocol.commands import Cancelled
from pyengine.errors import ForbiddenInWorkflow
from tests.core.replay.memory_run import MemoryRun, greet, workflow

Code = Callable[[], Awaitable[Any]]


async def slowly(name: str, seen: list[str]) -> None:
    """Wait for a step, and undo it with another one."""
    try:
        await greet(name)
    finally:
        async with ctx.shield():
            seen.append(await greet(f"undo {name}"))


async def group_by_hand() -> list[str]:
    """Cancel a group of several children."""
    seen: list[str] = []
    async with anyio.create_task_group() as group:
        for name in "abcde":
            group.start_soon(slowly, name, seen)
        await ctx.sleep(1)
        group.cancel_scope.cancel()
    return seen


async def nested() -> list[str]:
    """Cancel scopes within scopes, each with children of its own."""
    seen: list[str] = []

    async def inner(name: str) -> None:
        async with anyio.create_task_group() as group:
            for n in range(2):
                group.start_soon(slowly, f"{name}{n}", seen)

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(inner, name)
        await ctx.sleep(1)
        group.cancel_scope.cancel()
    return seen


async def fails() -> list[str]:
    """One child fails, the others are cancelled."""
    seen: list[str] = []

    async def failing() -> None:
        await ctx.sleep(1)
        raise ValueError

    try:
        async with anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(slowly, name, seen)
            group.start_soon(failing)
    except* ValueError:
        seen.append("failed")
    return seen


async def move_on() -> list[str]:
    """A limit, around a clean-up that a shield keeps."""
    seen: list[str] = []
    with anyio.move_on_after(1) as scope:
        await slowly("a", seen)
    return [*seen, str(scope.cancelled_caught)]


async def fail_after() -> list[str]:
    """A limit that raises, around a clean-up that a shield keeps."""
    seen: list[str] = []
    try:
        with anyio.fail_after(1):
            await slowly("a", seen)
    except TimeoutError:
        seen.append("TimeoutError")
    return seen


async def started() -> list[str]:
    """Children that say when they have started, and streams between them."""
    send, receive = anyio.create_memory_object_stream[str](1)

    async def produce(*, task_status: anyio.abc.TaskStatus[str]) -> None:
        task_status.started(await greet("a"))
        async with send:
            await send.send(await greet("b"))

    async with anyio.create_task_group() as group:
        first = await group.start(produce)
        return [first, *[each async for each in receive]]


def finished(code: Code) -> MemoryRun:
    """Play a workflow to its end, its calls completed in the order of their numbers, timers last."""
    run = MemoryRun(workflow(code))
    for _ in range(50):
        if run.warm.finished:
            break
        moves = run.cold()
        assert (moves.end, moves.commands, run.cold_waits) == (run.end, (), run.waits)
        calls = [child for child, call in run.open.items() if hasattr(call, "step")]
        undone = [child for child in calls if "undo" in str(run.open[child].param)]  # type: ignore[union-attr]
        timers = [child for child in run.open if child not in calls]
        child = (timers or undone or calls)[0]
        run.complete(child, str(child))
    assert (run.cold().end, run.cold().commands) == (run.end, ())
    return run


def play_often(code: Code, times: int = 40) -> None:
    """Play it, and each time amid more objects."""
    ballast = []
    for n in range(times):
        assert finished(code).rows == finished(code).rows
        ballast.append([backend.CancelScope() for _ in range(n * 37)])


CODES = [group_by_hand, nested, fails, move_on, fail_after, started]


@pytest.mark.parametrize("code", CODES, ids=[one.__name__ for one in CODES])
def test_a_second_play_is_equal(code: Code) -> None:
    """The order in which children are woken does not depend on what else is in memory; replays repeat it."""
    play_often(code, 3)


def test_without_order_plays_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """By address the order of a group's children changes, so the test above notices it."""
    monkeypatch.setattr(backend.CancelScope, "__hash__", object.__hash__)
    with pytest.raises(AssertionError):  # a cold replay, or a play, that is not the first one
        play_often(nested)


def test_values() -> None:
    """Each construct gives what it gives in asyncio."""
    values = {code: finished(code).value for code in CODES}
    assert values[group_by_hand] == ["6", "7", "8", "9", "10"]
    assert len(values[nested]) == 6 and values[fails][-1] == "failed"
    assert values[move_on] == ["2", "True"] and values[fail_after] == ["2", "TimeoutError"]
    assert values[started] == ["0", "1"]


def test_nothing_spins() -> None:
    """While a shield keeps a child of a cancelled scope, the loop runs a bounded number of callbacks."""
    run = MemoryRun(workflow(move_on))
    loop = run.warm._loop
    timer = next(child for child, call in run.open.items() if not hasattr(call, "step"))
    run.complete(timer)
    assert len(loop._parked) == 1 and not loop.ready
    run.complete(2, "undone")
    assert run.value == ["undone", "True"]


def test_a_run_that_is_cancelled() -> None:
    """Its groups are left, and the clean-ups in shields run once."""
    run = MemoryRun(workflow(group_by_hand))
    run.cancel()
    undone = [child for child, call in run.open.items() if "undo" in str(getattr(call, "param", ""))]
    assert len(undone) == 5
    for child in undone:
        run.complete(child, "undone")
    assert run.end == Cancelled()


def test_an_evicted_group_leaves_nothing() -> None:
    """A run that is thrown away while a shield keeps a child ends, and repeats nothing."""
    run = MemoryRun(workflow(move_on))
    run.complete(next(child for child, call in run.open.items() if not hasattr(call, "step")))
    loop = run.warm._loop
    run.warm.evict()
    assert loop.is_closed() and not loop._parked and not loop.ready


def test_a_library_asks_whether_it_is_reached_from_outside() -> None:
    """A call from another thread is refused by an error that is a NotImplementedError as well; the journal
    has it under its public name."""

    async def code() -> str:
        try:
            asyncio.get_running_loop().call_soon_threadsafe(print)
        except NotImplementedError as error:
            return type(error).__qualname__
        return "reached"

    async def uncaught() -> None:
        asyncio.get_running_loop().call_soon_threadsafe(print)

    assert finished(code).value == "ForbiddenInWorkflow"
    assert type(MemoryRun(workflow(uncaught)).error) is ForbiddenInWorkflow


def test_threads_are_refused(tmp_path: Path) -> None:
    """The function is not called, and what calls it within anyio is refused as well."""
    called: list[int] = []

    async def thread() -> None:
        await anyio.to_thread.run_sync(called.append, 1)

    async def path() -> None:
        await anyio.Path(tmp_path).exists()

    for code in (thread, path):
        error = MemoryRun(workflow(code)).error
        assert isinstance(error, ForbiddenInWorkflow) and "anyio.to_thread.run_sync()" in error.message
        assert (error.hint or "").startswith("use instead: a step")
    assert not called
    assert anyio.run(anyio.to_thread.run_sync, lambda: called.append(1)) is None and called


def test_wait_for_one() -> None:
    """A set of one has no order, so that a bare gather is taken; two are refused."""

    async def one() -> str:
        done, _ = await asyncio.wait((asyncio.gather(greet("a")),))
        return str((await done.pop())[0])

    async def two() -> None:
        await asyncio.wait((asyncio.gather(greet("a")), asyncio.gather(greet("b"))))

    assert finished(one).value == "0"
    assert isinstance(MemoryRun(workflow(two)).error, ForbiddenInWorkflow)


def test_the_class_of_anyio_is_as_we_know_it() -> None:
    """What is replaced of anyio: a class that is made of a deadline and a shield."""
    plain = backend.CancelScope.__mro__[1]
    assert list(inspect.signature(plain.__init__).parameters) == ["self", "deadline", "shield"]
    assert list(inspect.signature(plain._deliver_cancellation).parameters) == ["self", "origin"]
    assert issubclass(_orderly(plain, object), plain)
    assert backend.CancelScope(shield=True).shield
