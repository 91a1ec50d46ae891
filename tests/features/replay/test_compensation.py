"""What a run undoes if it fails or is cancelled: in reverse order, once, and the same at every replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.protocol.commands import Cancelled, ContinueAsNew
from pyengine.core.values.codec import Codec, TypeCodec
from pyengine.errors import InvalidRequest
from pyengine.features.compensation.compensation import CompensationFailed
from tests.core.replay.memory_run import MemoryRun, add, greet, ship, step, workflow
from tests.core.replay.test_cancelling import check


class Boom(Exception):
    """What the workflows here fail with."""


def called(run: MemoryRun) -> list[str]:
    """Steps that were recorded, in the order of their numbers."""
    return [row.name or "" for row in sorted(run.rows, key=lambda row: row.child or 0) if row.name]


def complete_open(run: MemoryRun) -> None:
    """Complete what is open, one after the other, with its name as the result."""
    while not run.warm.finished and run.open:
        check(run)
        run.complete(min(run.open), "done")


@step
async def undo(what: str) -> None:
    """A compensation; its body never runs here."""


def test_the_last_one_comes_first() -> None:
    """A failure undoes what was done, last first, and ends the run as it would have ended."""

    async def code() -> None:
        for name in "abc":
            await greet(name)
            ctx.on_failure(undo, name)
        raise Boom("no")

    run = MemoryRun(workflow(code))
    complete_open(run)
    assert called(run) == ["greet"] * 3 + ["undo"] * 3
    inputs = [call for call in run.rows if call.name == "undo"]
    assert len(inputs) == 3 and "no" in str(run.error)
    check(run)


def test_generators_are_closed_before() -> None:
    """What code leaves open is closed before what it has done is undone."""

    async def pages() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await greet("close")

    async def code() -> None:
        ctx.on_failure(undo, "a")
        async for _ in pages():
            raise Boom("no")

    run = MemoryRun(workflow(code))
    complete_open(run)
    assert called(run) == ["greet", "undo"]
    assert "no" in str(run.error)
    check(run)


def test_arguments_are_those_of_the_registration() -> None:
    """What the code does to an argument later changes nothing."""
    seen: list[Any] = []

    async def note(order: list[int]) -> None:
        seen.append(list(order))

    @step
    async def refund(order: list[int]) -> None: ...

    async def code() -> None:
        order = [1]
        ctx.on_failure(note, order)
        ctx.on_failure(refund, order)
        order.append(2)
        raise Boom

    run = MemoryRun(workflow(code))
    (call,) = run.open.values()
    assert call.args == ([1],)  # type: ignore[union-attr]
    complete_open(run)
    assert seen[-1] == [1, 2], "a plain function gets the object itself"


def test_a_result_is_written_once() -> None:
    """A run that has registered what to undo, and returns, writes its result once: it may be large."""
    written: list[str] = []

    class Noting(Codec):
        def write(self, codec: TypeCodec, value: Any, where: str, *, exact: bool = True) -> str:
            written.append(where)
            return super().write(codec, value, where, exact=exact)

    async def code() -> str:
        ctx.on_failure(undo, "a")
        return "fine"

    assert MemoryRun(workflow(code), codec=Noting()).value == "fine"
    assert len(written) == 1


def test_nothing_is_undone_after_success() -> None:
    """Nor if the code catches its error, nor if it continues as new."""

    async def fine() -> str:
        ctx.on_failure(undo, "a")
        try:
            raise Boom
        except Boom:
            return "fine"

    async def again() -> None:
        ctx.on_failure(undo, "a")
        ctx.continue_as_new()

    assert MemoryRun(workflow(fine)).value == "fine"
    run = MemoryRun(workflow(again))
    assert isinstance(run.end, ContinueAsNew) and not run.moves.steps


def test_a_cancelled_run_is_undone() -> None:
    """In a shield, so the steps are made although the run is being cancelled; then it is cancelled."""

    async def code() -> None:
        await greet("a")
        ctx.on_failure(undo, "a")
        ctx.on_failure(ship, 1)
        await ctx.sleep("1d")

    run = MemoryRun(workflow(code))
    run.complete(0, "a")
    check(run)
    run.cancel("changed my mind")
    check(run)
    run.complete(2, "shipped")
    check(run)
    run.complete(3)
    assert run.end == Cancelled()
    check(run)


def test_a_cancellation_while_it_is_undone_changes_nothing() -> None:
    """The run was failing already, and fails."""

    async def code() -> None:
        ctx.on_failure(undo, "a")
        ctx.on_failure(undo, "b")
        raise Boom("first")

    run = MemoryRun(workflow(code))
    run.cancel()
    check(run)
    complete_open(run)
    assert "first" in str(run.error) and called(run) == ["undo", "undo"]
    check(run)


def test_one_that_fails_does_not_stop_the_others() -> None:
    """The run ends with CompensationFailed, which names it, and whose cause is the run's own error."""

    async def code() -> None:
        ctx.on_failure(undo, "a")
        ctx.on_failure(add, 1, 2)
        raise Boom("first")

    run = MemoryRun(workflow(code))
    run.complete(0, error=ValueError("out of order"))
    run.complete(1)
    error = run.error
    assert isinstance(error, CompensationFailed)
    assert "after Boom: first" in str(error) and "add: ValueError: out of order" in str(error)
    assert error.__cause__ is not None and "first" in str(error.__cause__)
    check(run)


def test_other_tasks_end_first() -> None:
    """Nothing goes forward while it is undone; what a task registers as it ends is undone too."""
    left: list[str] = []

    async def aside() -> None:
        try:
            await greet("aside")
        finally:
            ctx.on_failure(undo, "aside")
            left.append("ended")

    async def code() -> None:
        ctx.on_failure(undo, "main")
        asyncio.get_running_loop().create_task(aside())
        await add(1, 2)
        raise Boom

    run = MemoryRun(workflow(code))
    run.complete(0, 3)
    assert left == ["ended"]
    del run.open[1]
    assert [call.child for call in run.moves.steps] == [2]
    complete_open(run)
    assert called(run) == ["add", "undo", "undo"]


def test_what_undoes_may_register_more() -> None:
    """A function that undoes several things is a workflow's code like any other."""

    async def undo_both() -> None:
        ctx.on_failure(undo, "late")
        await add(1, 2)

    async def code() -> None:
        ctx.on_failure(undo, "first")
        ctx.on_failure(undo_both)
        raise Boom

    run = MemoryRun(workflow(code))
    complete_open(run)
    assert called(run) == ["add", "undo", "undo"]


def test_a_result_that_cannot_be_recorded_is_a_failure() -> None:
    """Then too the run fails, and what it did is undone."""

    async def code() -> int:
        ctx.on_failure(undo, "a")
        return object()  # type: ignore[return-value]

    run = MemoryRun(workflow(code))
    complete_open(run)
    assert called(run) == ["undo"] and run.error is not None
    check(run)


def test_wrong_arguments_are_refused_at_once() -> None:
    """Not when it is too late; and what is no function is refused."""

    async def code() -> str:
        with pytest.raises(InvalidRequest, match="missing a required argument"):
            ctx.on_failure(undo)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequest, match="takes a step"):
            ctx.on_failure("undo")  # type: ignore[arg-type]
        return "fine"

    assert MemoryRun(workflow(code)).value == "fine"
    with pytest.raises(InvalidRequest, match="outside a workflow"):
        ctx.on_failure(undo, "a")
