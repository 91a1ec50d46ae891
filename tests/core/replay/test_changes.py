"""What lets a run live long: changes of code, a new beginning, promises of others, numbers that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.registry import Workflow
from pyengine.core.protocol.commands import Adopt, Captured, Complete, ContinueAsNew, RunChild, Suspend
from pyengine.core.protocol.journal import Row, RowType
from pyengine.errors import AwaitCycle, InvalidRequest, NotFound
from tests.core.replay.memory_run import MemoryRun, add, greet, problem_of, ship, workflow


def check(run: MemoryRun) -> None:
    """A cold replay ends as the live run did and wants nothing."""
    moves = run.cold()
    assert (moves.end, moves.commands, moves.steps) == (run.end, (), ())


# --- patched ------------------------------------------------------------------------------------------------


async def old() -> list[Any]:
    """The code before the change."""
    return [await greet("a"), await greet("b")]


async def new() -> list[Any]:
    """The code after it: another step in place of the second one."""
    first = await greet("a")
    return [first, await add(1, 2) if ctx.patched("sum") else await greet("b")]


async def newer() -> list[Any]:
    """The change asked for twice, and once more for another one."""
    first = await greet("a")
    again = [ctx.patched("sum") for _ in range(3)]
    return [first, await add(1, 2) if ctx.patched("sum") else await greet("b"), *again, ctx.patched("other")]


def test_a_run_that_was_past_the_change_stays_on_the_old_side() -> None:
    """A journal that holds anything at or after the point answers False, without a number."""
    run = MemoryRun(workflow(old))
    run.complete(0, "A")
    run.complete(1, "B")
    assert run.cold(workflow(new)).end == run.end
    moves = run.cold(workflow(newer))
    assert moves.end == Complete(value='["A","B",false,false,false,true]')


def test_a_run_that_comes_there_first_takes_the_new_side() -> None:
    """Otherwise the answer is True and recorded, once for each name, and stays."""
    before = MemoryRun(workflow(old))
    before.complete(0, "A")
    moves = before.cold(workflow(new))
    assert moves.commands == (Captured(child=1, kind="random", name="patched:sum", value="true"),)
    assert [call.child for call in moves.steps] == [2]
    run = MemoryRun(workflow(newer))
    run.complete(0, "A")
    run.complete(2, 3)
    assert run.value == ["A", 3, True, True, True, True]
    assert [command.child for command in run.commands] == [1, 3]
    check(run)


def test_a_blocked_run_stays_on_the_old_side() -> None:
    """A run that waited at the point was past it, though it recorded nothing there."""

    async def before() -> Any:
        return await ctx.promise()

    async def after() -> Any:
        promise = ctx.promise()
        changed = ctx.patched("wait")
        return [changed, await promise]

    async def receives() -> Any:
        return await ctx.receive("a")

    async def receives_after() -> Any:
        return [ctx.patched("wait"), await ctx.receive("a")]

    run = MemoryRun(workflow(before))
    assert run.cold(workflow(after)).end == Suspend(on=(0,), kind="single")
    run.complete(0, 5)
    assert run.cold(workflow(after)).end == Complete(value="[false,5]")
    waiting = MemoryRun(workflow(receives))
    moves = waiting.cold(workflow(receives_after))
    assert moves.commands == () and moves.end == Suspend(on=(0,), kind="signal")


def test_a_change_that_was_taken_back_is_a_difference() -> None:
    """Code that does not ask any more disagrees with a journal that holds the answer."""
    run = MemoryRun(workflow(new))
    run.complete(0, "A")
    run.complete(2, 3)
    problem = problem_of(run.cold(workflow(old)))
    assert (problem["child"], problem["expected"]) == (1, "random value patched:sum")


# --- continue as new ----------------------------------------------------------------------------------------


def test_continue_as_new() -> None:
    """The run ends with its new arguments as text; numbers go on where they were, recorded or not."""

    async def code(n: int, who: str = "x") -> None:
        _ = greet("nobody waits")
        await ctx.sleep(1)
        ctx.continue_as_new(n + 1, who="y")

    run = MemoryRun(workflow(code), 1)
    moves = run.complete(2)  # 0 are the defaults with which it began
    assert run.end == ContinueAsNew(value='[2,"y"]', children=(3,)) and run.warm.finished
    assert moves.given_up == (1,), "the step that runs is given up"
    check(run)


def test_the_next_generation() -> None:
    """Numbers of a continued run begin where the last ones ended, in calls, ids and checks alike."""

    async def code() -> list[Any]:
        child = ctx.start(ship, 1)
        return [child.id, await greet("a"), await child, ctx.patched("p")]

    run = MemoryRun(workflow(code), first_child=7)
    assert isinstance(run.moves.commands[0], RunChild) and run.moves.commands[0].child == 7
    run.complete(8, "a")
    run.complete(7, "c")
    assert run.value == ["run-1.7", "a", "c", True]
    check(run)


CONTINUED: list[tuple[str, Callable[[], Any]]] = [
    ("arguments", lambda: ctx.continue_as_new("x", 2, 3)),
    ("type", lambda: ctx.continue_as_new("x")),
    ("name", lambda: ctx.continue_as_new(1, nobody=2)),
]


@pytest.mark.parametrize(("what", "wrong"), CONTINUED, ids=[what for what, _ in CONTINUED])
def test_wrong_arguments_are_refused(what: str, wrong: Callable[[], Any]) -> None:
    """Arguments that do not fit the workflow are refused where they are given; the run goes on."""

    async def code(n: int) -> str:
        with pytest.raises(InvalidRequest, match="workflow code"):
            wrong()
        return await greet(str(n))

    run = MemoryRun(workflow(code), 1)
    assert [call.child for call in run.moves.steps] == [0] and what


def test_it_leaves_through_except_exception() -> None:
    """Code that catches Exception lets it by, and so do a task group and a gather around it."""

    async def leave() -> None:
        ctx.continue_as_new()

    async def plain() -> None:
        try:
            await leave()
        except Exception:
            await greet("never")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            group.create_task(ctx.sleep(5))  # type: ignore[arg-type]

    async def gathered() -> None:
        await asyncio.gather(leave(), ctx.sleep(5))

    for code in (plain, grouped, gathered):
        assert isinstance(MemoryRun(workflow(code)).end, ContinueAsNew), code.__name__


def test_catching_it_goes_on() -> None:
    """Code that catches everything is not continued as new: nothing has happened yet."""

    async def code() -> str:
        try:
            ctx.continue_as_new()
        except BaseException:
            return "here"

    assert MemoryRun(workflow(code)).value == "here"


# --- promises of others -------------------------------------------------------------------------------------


def test_adopting_a_promise() -> None:
    """A promise of others keeps its id, has a number here, and comes as its own type or as an error."""

    async def code() -> list[Any]:
        one, two = ctx.promise(int, id="order-1"), ctx.promise(id="order-2")
        seen: list[Any] = [one.id, two.id, await one]
        try:
            await two
        except TimeoutError as error:
            seen.append(str(error))
        return [*seen, await ctx.promise(id="order-1")]

    run = MemoryRun(workflow(code))
    assert run.commands == [Adopt(child=0, name="order-1"), Adopt(child=1, name="order-2")]
    run.complete(0, 5)
    run.complete(1, error='{"type": "Timeout", "message": "the deadline passed"}')
    run.complete(2, 5)
    assert run.value == ["order-1", "order-2", 5, "promise order-2 timed out", 5]
    check(run)


def test_an_adoption_that_is_refused() -> None:
    """What the database has against an adoption is raised where it is awaited, live and in a replay; the
    code may catch it and go on, and asking again is another call."""

    async def code() -> list[Any]:
        one, two = ctx.promise(int, id="missing-1"), ctx.promise(int, id="there")
        seen: list[Any] = []
        for each in (one, two, None):
            try:
                seen.append(await (ctx.promise(int, id="missing-1") if each is None else each))
            except NotFound as error:
                seen.append(error.message)
        return seen

    run = MemoryRun(workflow(code))
    assert [row.type for row in run.rows] == [
        RowType.EXECUTION_STARTED,
        RowType.PROMISE_REGISTERED,
        RowType.PROMISE_REGISTERED,
        RowType.CHILD_SETTLED,
        RowType.EXECUTION_AWAITING,
    ]
    run.complete(1, 5)
    assert [row.type for row in run.rows] == [
        RowType.EXECUTION_STARTED,
        RowType.PROMISE_REGISTERED,
        RowType.PROMISE_REGISTERED,
        RowType.CHILD_SETTLED,
        RowType.EXECUTION_AWAITING,
        RowType.CHILD_SETTLED,
        RowType.PROMISE_REGISTERED,
        RowType.CHILD_SETTLED,
    ]
    words = "There is no promise missing-1."
    assert run.value == [words, 5, words]
    check(run)


def test_a_circle_is_raised_with_its_path() -> None:
    """AwaitCycle comes back from the journal as it was: with the path."""
    data = {"detail": None, "hint": None, "path": ["run-1", "other", "run-1"]}
    told = {"type": "AwaitCycle", "module": "pyengine", "message": "m", "args": ["m"], "data": data}

    async def code() -> list[Any]:
        try:
            await ctx.promise(id="other")
        except AwaitCycle as error:
            return [error.message, *error.path]
        return []

    rows = [
        Row(0, RowType.EXECUTION_STARTED),
        Row(1, RowType.PROMISE_REGISTERED, 0, None, "other"),
        Row(2, RowType.CHILD_SETTLED, 0, 1, None, None, json.dumps(told)),
    ]
    assert MemoryRun(workflow(code), rows=rows).value == ["m", "run-1", "other", "run-1"]


def test_adopting_another_promise_is_a_difference() -> None:
    """The id of an adopted promise is compared with the journal."""

    async def before() -> None:
        await ctx.promise(id="order-1")

    async def after() -> None:
        await ctx.promise(id="order-2")

    problem = problem_of(MemoryRun(workflow(before)).cold(workflow(after)))
    assert (problem["expected"], problem["got"]) == ("promise order-1", "promise order-2")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ctx.promise(id="run-1"),
        lambda: ctx.promise(id="run-1.7"),
        lambda: ctx.promise(id="known"),
        lambda: ctx.promise(id=""),
        lambda: ctx.promise(id="a\0"),
        lambda: ctx.promise(id="x" * 513),
        lambda: ctx.promise(id="x", name="label"),
        lambda: ctx.promise(id="x", timeout=5),
        lambda: ctx.patched(""),
        lambda: ctx.patched(5),  # type: ignore[arg-type]
    ],
)
def test_bad_use(wrong: Callable[[], Any]) -> None:
    """What could never come, or says too much, is refused at the call and takes no number."""

    async def code() -> list[str]:
        ctx.promise(id="known")
        with pytest.raises(InvalidRequest):
            wrong()
        return [ctx.promise(id="run-1.6").id, ctx.promise(id="run-2").id, ctx.promise().id]

    run = MemoryRun(workflow(code), first_child=7)
    assert run.value == ["run-1.6", "run-2", "run-1.10"]


# --- what is recorded of steps ------------------------------------------------------------------------------


def test_the_recorded_policy() -> None:
    """The first row of a step tells its policy: none recorded yet, begun without one, or its text."""

    async def code() -> str:
        return await greet("a")

    def policy(*rows: Row) -> str | None:
        found: str | None = (
            MemoryRun(code_of, rows=[Row(0, RowType.EXECUTION_STARTED), *rows]).moves.steps[0].recorded_retry
        )
        return found

    code_of: Workflow[..., Any] = workflow(code)
    digest = MemoryRun(code_of).moves.steps[0].hash
    assert policy() is None
    for kind, data, expected in (
        (RowType.STEP_STARTED, '{"input": ["a"]}', ""),
        (RowType.STEP_STARTED, '{"input": ["a"], "retry": {"max_attempts": 3}}', '{"max_attempts": 3}'),
        (
            RowType.FIRST_ATTEMPT_FAILED,
            '{"error": {}, "retry_at": 5, "retry": {"max_attempts": 2}}',
            '{"max_attempts": 2}',
        ),
        (
            RowType.FIRST_ATTEMPT_FAILED,
            '{"error": {}, "retry_at": 5, "interrupted": false, "retry": null}',
            "",
        ),
    ):
        assert policy(Row(1, kind, 0, 1, "greet", digest, data)) == expected
