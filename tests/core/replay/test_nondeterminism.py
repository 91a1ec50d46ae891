"""Where code and journal disagree the run halts at the first difference and says what it expected and got."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.protocol.commands import Complete
from pyengine.core.protocol.journal import Row, RowType
from pyengine.errors import NondeterminismError
from tests.core.replay.memory_run import MemoryRun, add, greet, problem_of, ship, step, workflow


async def old() -> str:
    """The code that began the run: one call of each kind."""
    await greet("a")
    await ctx.sleep(1)
    ctx.now()
    ctx.random()
    ctx.uuid4()
    await ship(1)
    await ctx.promise(name="label")
    return await greet("b")


def history() -> MemoryRun:
    """Return a run of the old code that is through with everything but its last step."""
    run = MemoryRun(workflow(old))
    for child, value in ((0, "hello a"), (1, None), (5, "shipped"), (6, None)):
        run.complete(child, value)
    return run


async def to_timer() -> None:
    """Go up to the timer."""
    await greet("a")
    await ctx.sleep(1)


async def to_child() -> None:
    """Go up to the child run."""
    await to_timer()
    ctx.now()
    ctx.random()
    ctx.uuid4()


async def other_step() -> None:
    await add(1, 2)


async def other_input() -> None:
    await greet("z")


async def step_for_timer() -> None:
    await greet("a")
    await greet("b")


async def timer_for_step() -> None:
    await ctx.sleep(1)


async def loop_timer_for_step() -> None:
    await asyncio.sleep(1)


async def random_for_now() -> None:
    await to_timer()
    ctx.random()


async def uuid_for_random() -> None:
    await to_timer()
    ctx.now()
    ctx.uuid4()


async def step_for_child() -> None:
    await to_child()
    await greet("x")


async def child_with_other_input() -> None:
    await to_child()
    await ship(2)


async def promise_with_other_name() -> None:
    await to_child()
    await ship(1)
    await ctx.promise(name="other")


async def ends_early() -> None:
    await to_timer()


async def waits_for_too_little() -> None:
    await greet("a")
    await asyncio.Event().wait()


TABLE: list[tuple[Callable[[], Any], int, str, str]] = [
    (other_step, 0, "step greet", "step add"),
    (other_input, 0, "step greet", "step greet"),
    (step_for_timer, 1, "timer", "step greet"),
    (timer_for_step, 0, "step greet", "timer"),
    (loop_timer_for_step, 0, "step greet", "timer"),
    (random_for_now, 2, "time now", "random value random"),
    (uuid_for_random, 3, "random value random", "random value uuid4"),
    (step_for_child, 5, "child run ship", "step greet"),
    (child_with_other_input, 5, "child run ship", "child run ship"),
    (promise_with_other_name, 6, "promise label", "promise other"),
    (ends_early, 2, "time now", "no more calls: the workflow ended"),
    (waits_for_too_little, 1, "timer", "no such call"),
]


@pytest.mark.parametrize(("code", "child", "expected", "got"), TABLE)
def test_table(code: Any, child: int, expected: str, got: str) -> None:
    """Each kind of difference is found at its child number, with both sides named."""
    moves = history().cold(workflow(code))
    problem = problem_of(moves)
    assert (problem["child"], problem["run_id"]) == (child, "run-1")
    assert problem["expected"].startswith(expected) and problem["got"].startswith(got)
    assert problem["expected"] != problem["got"]
    assert moves.commands == () and moves.steps == ()
    assert 1 <= len(problem["neighbours"]) <= 3
    assert any(line.startswith(f"{child}: {expected}") for line in problem["neighbours"])


def test_problem_reads_back_as_an_error() -> None:
    """The problem is also the JSON of a NondeterminismError with the same fields."""
    run = history()
    moves = run.cold(workflow(other_step))
    error = run.codec.decode_error(moves.end.problem)  # type: ignore[union-attr]
    assert isinstance(error, NondeterminismError)
    assert (error.run_id, error.child) == ("run-1", 0)
    assert error.expected is not None and error.expected.startswith("step greet (of its input ")
    assert "run run-1, child 0" in error.message and error.hint is not None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: add(1, 2),
        lambda: ship(1),
        lambda: ctx.sleep(1),
        lambda: asyncio.sleep(1),
        lambda: ctx.promise(),
        lambda: asyncio.sleep(ctx.random() * 0),
    ],
)
def test_the_code_cannot_swallow_it(wrong: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that catches everything goes nowhere: after the first difference every call is dead, and ends."""
    monkeypatch.setattr("pyengine.core.loop.event_loop._CALLBACKS_MAX", 1000)

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(BaseException):
                await wrong()

    assert problem_of(history().cold(workflow(stubborn)))["child"] == 0


def test_completion_of_a_call_that_was_not_made() -> None:
    """A completion for a number that the code has not come to yet is a difference at that number."""

    async def code() -> None:
        await greet("a")

    run = MemoryRun(workflow(code))
    moves = run.cold(rows=[Row(0, RowType.EXECUTION_STARTED), Row(1, RowType.TIMER_FIRED, 3)])
    assert problem_of(moves)["child"] == 3


def test_command_below_recorded_numbers() -> None:
    """A missing row below recorded ones must be a step: a command there would have been recorded."""

    async def before() -> None:
        await asyncio.gather(greet("slow"), ctx.sleep(1), greet("quick"))

    async def after() -> None:
        await asyncio.gather(ctx.sleep(9), ctx.sleep(1), greet("quick"))

    run = MemoryRun(workflow(before))
    run.complete(2, "quick")
    assert run.cold().end is None
    problem = problem_of(run.cold(workflow(after)))
    assert (problem["child"], problem["expected"], problem["got"]) == (
        0,
        "a step or a receive that is not finished",
        "timer",
    )


def test_durations_may_change() -> None:
    """Another duration is no difference: the recorded timer stays."""

    async def before() -> str:
        await ctx.sleep("1h")
        return "a"

    async def after() -> str:
        await ctx.sleep("2h")
        return "b"

    run = MemoryRun(workflow(before))
    run.complete(0)
    assert run.cold(workflow(after)).end == Complete(value='"b"')


def test_refused_calls_leave_no_trace() -> None:
    """A call that is refused at the call takes no number, live and in replay alike."""

    @step
    async def typed(n: int) -> int:
        raise AssertionError

    async def code() -> list[Any]:
        seen: list[Any] = []
        for value in ("x", 1, float("nan"), {1, 2}, 2):
            try:
                seen.append(await typed(value))
            except Exception as error:
                seen.append(type(error).__name__)
        return seen

    run = MemoryRun(workflow(code))
    assert [call.child for call in run.moves.steps] == [0]
    run.complete(0, 10)
    run.complete(1, 20)
    assert run.value == ["InvalidRequest", 10, "EncodeError", "InvalidRequest", 20]
    assert run.cold().end == run.end


def test_a_later_change_is_found_when_it_is_reached() -> None:
    """Code that differs only after the end of the journal goes on from there."""

    async def before() -> str:
        return await greet("a") + await greet("b")

    async def after() -> str:
        return await greet("a") + await greet("c")

    run = MemoryRun(workflow(before))
    run.complete(0, "x")
    moves = run.cold(workflow(after))
    assert moves.end is None and moves.steps[0].args == ("c",)
