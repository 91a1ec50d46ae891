"""Join sets, seen through the replay machine: order of completion, what is recorded, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.registry import Step, make_step
from pyengine.core.definitions.retry import Retry, policy_text
from pyengine.core.protocol.commands import Fail, Intend, MakeJoinSet, RunChild, Submit, Suspend, Take
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.values.codec import input_hash
from pyengine.errors import InvalidRequest, RunFailed
from tests.core.replay.memory_run import Done, MemoryRun, add, greet, problem_of, ship, workflow

MARKS = {RowType.JOIN_SET_SUBMITTED: "submit", RowType.JOIN_SET_AWAITED: "take"}


def check(run: MemoryRun) -> None:
    """A cold replay ends as the live run did and wants nothing."""
    moves = run.cold()
    assert (moves.end, moves.commands, moves.steps) == (run.end, (), ())


def marks(run: MemoryRun) -> list[tuple[str, int | None, int | None]]:
    """What was done to join sets: verb, member, set."""
    return [(MARKS[row.type], row.child, row.attempt) for row in run.rows if row.type in MARKS]


async def three() -> list[Any]:
    """Three children, taken one by one."""
    tasks = ctx.join_set()
    for order in range(3):
        tasks.submit(ctx.start(ship, order))
    return [await tasks.next() for _ in range(3)]


def test_results_in_the_order_of_completion() -> None:
    """The set and each submission are recorded at once; results come in the order of the journal."""
    run = MemoryRun(workflow(three))
    assert (
        run.commands[0] == MakeJoinSet(child=0)
        and [type(command) for command in run.commands[1:]] == [RunChild, Submit] * 3
    )
    assert run.end == Suspend(on=(1, 2, 3), kind="any") and run.cold().end == run.end
    assert run.complete(3, "c").commands == (Take(child=3, join_set=0),)
    assert run.end == Suspend(on=(1, 2), kind="any") and run.cold().end == run.end
    assert run.turn(Done(1, "a"), Done(2, "b")).commands == (
        Take(child=1, join_set=0),
        Take(child=2, join_set=0),
    )
    assert run.value == ["c", "a", "b"]
    check(run)


def test_the_intent_of_a_step_comes_before_its_submission() -> None:
    """A step has no row until it ends, so submitting one records its intent, with its policy."""
    patient: Step[..., int] = make_step(add.fn, name="patient", retry=Retry(max_attempts=3))

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        tasks.submit(patient(1, 2))
        tasks.submit(greet("x"))
        return await tasks.all()

    run = MemoryRun(workflow(code))
    made, first, second, third, fourth = run.commands
    assert made == MakeJoinSet(child=0) and (second, fourth) == (
        Submit(child=1, join_set=0),
        Submit(child=2, join_set=0),
    )
    assert isinstance(first, Intend) and (first.child, first.name, first.param) == (1, "patient", "[1,2]")
    assert (
        first.retry == policy_text(Retry(max_attempts=3))
        and isinstance(third, Intend)
        and third.retry is None
    )
    assert [call.child for call in run.moves.steps] == [1, 2]
    (one, two) = run.cold().steps
    assert (one.begun, one.recorded_retry, two.begun, two.recorded_retry) == (True, first.retry, True, "")
    run.turn(Done(2, "hello"), Done(1, 3))
    assert run.value == [3, "hello"] and marks(run)[2:] == [("take", 2, 0), ("take", 1, 0)]
    check(run)


def test_a_recorded_step_needs_no_intent() -> None:
    """A complete step is submitted as it is; what completed first is taken first."""

    async def code() -> list[Any]:
        calls = [greet("a"), greet("b"), ctx.promise(str)]
        await ctx.gather(*calls[:2])
        tasks = ctx.join_set()
        for call in reversed(calls):
            assert tasks.submit(call) is call
        assert len(tasks) == 3
        return [await tasks.next(), await tasks.next(), await tasks.next(), len(tasks)]

    run = MemoryRun(workflow(code))
    run.complete(1, "b")
    run.complete(0, "a")
    assert not any(isinstance(command, Intend) for command in run.commands)
    assert marks(run) == [
        ("submit", 2, 3),
        ("submit", 1, 3),
        ("submit", 0, 3),
        ("take", 1, 3),
        ("take", 0, 3),
    ]
    assert run.end == Suspend(on=(2,), kind="single")
    run.complete(2, "c")
    assert run.value == ["b", "a", "c", 0]
    check(run)


@pytest.mark.parametrize("kind", [RowType.FIRST_ATTEMPT_FAILED, RowType.STEP_STARTED])
def test_a_step_that_has_a_row_needs_no_intent(kind: RowType) -> None:
    """An open step of which the journal holds an attempt is submitted without another intent."""

    async def code() -> Any:
        call = greet("a")
        tasks = ctx.join_set()
        tasks.submit(call)
        return await tasks.next()

    digest = input_hash("greet", '["a"]')
    run = MemoryRun(
        workflow(code), rows=[Row(0, RowType.EXECUTION_STARTED), Row(1, kind, 0, 1, "greet", digest, "{}")]
    )
    assert run.commands == [MakeJoinSet(child=1), Submit(child=0, join_set=1)]
    assert [(call.child, call.begun) for call in run.moves.steps] == [(0, kind == RowType.STEP_STARTED)]


def test_all() -> None:
    """All is one wait for what is pending; it takes by completion and answers by submission."""

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        for order in range(4):
            tasks.submit(ship(order))
        first = await tasks.next()
        return [first, await tasks.all(), await tasks.all(), len(tasks)]

    run = MemoryRun(workflow(code))
    run.complete(2, "b")
    assert run.end == Suspend(on=(1, 3, 4), kind="all") and run.cold().end == run.end
    assert run.complete(4, "d").end == Suspend(on=(1, 3), kind="all")
    run.turn(Done(3, "c"), Done(1, "a"))
    assert run.value == ["b", ["a", "c", "d"], [], 0]
    assert marks(run)[4:] == [("take", 2, 0), ("take", 4, 0), ("take", 3, 0), ("take", 1, 0)]
    check(run)


def test_iteration() -> None:
    """async for gives every result and ends; over an empty set it ends at once."""

    async def code() -> list[Any]:
        tasks, none = ctx.join_set(), ctx.join_set()
        for name in "ab":
            tasks.submit(greet(name))
        return [[one async for one in tasks], [one async for one in none]]

    run = MemoryRun(workflow(code))
    run.complete(3, "b")
    run.complete(2, "a")
    assert run.value == [["b", "a"], []]
    check(run)


def test_errors() -> None:
    """The error of a member is raised where its result would come, and is taken with it."""

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        for name in "abcd":
            tasks.submit(greet(name))
        tasks.submit(ctx.start(ship, 1))
        seen: list[Any] = []
        try:
            await tasks.next()
        except KeyError as error:
            seen.append(repr(error))
        seen += [repr(one) for one in await tasks.all(return_exceptions=True)]
        return [*seen, len(tasks)]

    async def raising() -> None:
        tasks = ctx.join_set()
        for name in "ab":
            tasks.submit(greet(name))
        await tasks.all()

    run = MemoryRun(workflow(code))
    run.complete(2, error=KeyError("b"))
    run.turn(Done(5, error=ValueError("e")), Done(4, "d"), Done(3, error=IndexError("c")), Done(1, "a"))
    assert run.value[:4] == ["KeyError('b')", "'a'", "IndexError('c')", "'d'"]
    assert run.value[4].startswith(RunFailed.__name__) and run.value[5] == 0
    check(run)
    failing = MemoryRun(workflow(raising))
    failing.turn(Done(2, error=KeyError("b")), Done(1, error=IndexError("a")))
    assert isinstance(failing.error, IndexError) and marks(failing)[2:] == [("take", 2, 0), ("take", 1, 0)]
    assert isinstance(failing.cold().end, Fail)


def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    """A next with a limit leaves the result to the next one; nothing is lost and the set stays closed."""

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        tasks.submit(ship(1))
        try:
            async with asyncio.timeout(1):
                await tasks.next()
        except TimeoutError:
            await ctx.sleep(1)
        with pytest.raises(InvalidRequest, match="closed"):
            tasks.submit(ship(2))
        return [await tasks.next()]

    run = MemoryRun(workflow(code))
    assert run.end == Suspend(on=(1, 2), kind="any")
    run.complete(2)
    assert run.end == Suspend(on=(3,), kind="single"), "nobody waits for the member now"
    run.complete(1, "a")
    run.complete(3)
    assert run.value == ["a"] and marks(run) == [("submit", 1, 0), ("take", 1, 0)]
    check(run)


def test_two_tasks_at_one_set() -> None:
    """Who asked first gets the first result; who asks for more than there is, is told so."""

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        tasks.submit(ship(1))
        tasks.submit(ship(2))
        asked = [asyncio.create_task(tasks.next()) for _ in range(3)]
        return [str(one) for one in await asyncio.gather(*asked, return_exceptions=True)]

    run = MemoryRun(workflow(code))
    run.complete(2, "second")
    run.complete(1, "first")
    assert run.value[:2] == ["second", "first"] and "nothing to wait for" in run.value[2]
    check(run)


def test_a_member_that_is_given_up_leaves_the_set() -> None:
    """The result of a member that the code cancelled never comes, so nobody waits for it."""

    async def code() -> list[Any]:
        tasks = ctx.join_set()
        gone = tasks.submit(greet("slow"))
        tasks.submit(ship(1))
        gone.cancel()  # type: ignore[attr-defined]
        rest = [await tasks.next()]
        with pytest.raises(InvalidRequest, match="every result was taken or given up"):
            await tasks.next()
        only = ctx.join_set()
        only.submit(gone_too := greet("slow"))
        gone_too.cancel()  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequest, match="nothing to wait for: every member was given up"):
            await only.next()
        return rest

    run = MemoryRun(workflow(code))
    assert run.moves.steps == () and run.end == Suspend(on=(2,), kind="single")
    run.complete(2, "a")
    assert run.value == ["a"]
    check(run)


REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("cannot hold a timer", lambda tasks: tasks.submit(ctx.sleep(1))),
    ("cannot hold a receive", lambda tasks: tasks.submit(ctx.receive("a"))),
    ("cannot hold a detached run", lambda tasks: tasks.submit(ctx.start(ship, 1, detached=True))),
    ("cannot hold <join set run-1.0", lambda tasks: tasks.submit(tasks)),
    ("cannot hold 5", lambda tasks: tasks.submit(5)),
    ("cannot hold <", lambda tasks: tasks.submit(asyncio.ensure_future(asyncio.sleep(0)))),
    ("nothing to wait for: nothing was submitted", lambda tasks: tasks.next()),
]


@pytest.mark.parametrize(("text", "wrong"), REFUSED, ids=[text for text, _ in REFUSED])
def test_bad_use(text: str, wrong: Callable[[Any], Any]) -> None:
    """What cannot be a member, and a result where none can come, is refused at the call and not recorded."""

    async def code() -> str:
        tasks = ctx.join_set()
        with pytest.raises(InvalidRequest, match=text):
            wrong(tasks)
        return "refused"

    run = MemoryRun(workflow(code))
    assert run.value == "refused" and marks(run) == []
    assert run.cold().end == run.end


def test_one_set_each() -> None:
    """A call is in one set at most, once; a call that was given up, or of another run, in none."""
    others: list[Any] = []

    async def other() -> None:
        others.append(greet("other"))
        await ctx.sleep(1)

    async def code() -> str:
        tasks, more = ctx.join_set(), ctx.join_set()
        call = tasks.submit(greet("a"))
        for one in (tasks, more):
            with pytest.raises(InvalidRequest, match="in a join set already"):
                one.submit(call)
        gone = greet("b")
        gone.cancel()  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequest, match="was given up"):
            more.submit(gone)
        with pytest.raises(InvalidRequest, match="another run"):
            more.submit(others[0])
        return await tasks.next()

    MemoryRun(workflow(other))
    run = MemoryRun(workflow(code))
    run.complete(2, "hello")
    assert run.value == "hello"
    check(run)


async def other_member() -> None:
    """Submits another call."""
    tasks = ctx.join_set()
    ctx.start(ship, 0)
    tasks.submit(ctx.start(ship, 1))
    await tasks.next()


async def other_set() -> None:
    """Submits to another set."""
    ctx.join_set()
    tasks = ctx.join_set()
    tasks.submit(ctx.start(ship, 0))
    await tasks.next()


async def no_submission() -> None:
    """Submits one member less."""
    tasks = ctx.join_set()
    tasks.submit(ctx.start(ship, 0))
    tasks.submit(ctx.start(ship, 1))
    await ctx.start(ship, 2)


async def takes_nothing() -> list[Any]:
    """Waits for the members, not for the set."""
    tasks = ctx.join_set()
    return list(await ctx.gather(*[tasks.submit(ctx.start(ship, order)) for order in range(3)]))


async def no_set() -> None:
    """Has a timer in place of the set."""
    await ctx.sleep(1)


async def submits_more() -> None:
    """Submits a promise that the journal knows nothing of."""
    first = ctx.join_set()
    for order in range(3):
        first.submit(ctx.start(ship, order))
    second = ctx.join_set()
    second.submit(ctx.promise())
    await first.next()


OTHER: list[tuple[Callable[[], Any], int, str, str]] = [
    (other_member, 2, "submit of child 1 by join set 0", "submit of child 2 by join set 0"),
    (other_set, 1, "child run ship", "join set"),
    (no_submission, 3, "submit of child 3 by join set 0", "no more calls: the workflow ended"),
    (takes_nothing, 3, "take of child 3 by join set 0", "no such call: the workflow waits"),
    (no_set, 0, "join set", "timer"),
]


@pytest.mark.parametrize(("code", "child", "expected", "got"), OTHER, ids=[one[0].__name__ for one in OTHER])
def test_other_code(code: Callable[[], Any], child: int, expected: str, got: str) -> None:
    """What code does to its sets must be what the journal holds, in the same order."""
    run = MemoryRun(workflow(three))
    run.complete(3, "c")
    problem = problem_of(run.cold(workflow(code)))
    assert (problem["child"], problem["expected"].split(" (")[0], problem["got"]) == (child, expected, got)


def test_a_missing_row_is_a_difference() -> None:
    """A submission or a taking that is missing below recorded rows halts the run; at the end it is new."""

    async def code() -> Any:
        tasks = ctx.join_set()
        tasks.submit(ctx.start(ship, 1))
        first = await tasks.next()
        return [first, await ctx.sleep(1)]

    run = MemoryRun(workflow(code))
    run.complete(1, "a")
    assert [row.type for row in run.rows] == [
        RowType.EXECUTION_STARTED,
        RowType.JOIN_SET_CREATED,
        RowType.CHILD_RUN_SCHEDULED,
        RowType.JOIN_SET_SUBMITTED,
        RowType.EXECUTION_AWAITING,
        RowType.OPEN_CHILD_SETTLED,
        RowType.JOIN_SET_AWAITED,
        RowType.TIMER_SCHEDULED,
        RowType.EXECUTION_AWAITING,
    ]
    assert run.cold(rows=run.rows[:6]).commands == (Take(child=1, join_set=0), run.commands[-1])
    assert run.cold(rows=run.rows[:3]).commands == (Submit(child=1, join_set=0),)
    for missing, words in ((3, "submit of child 1"), (6, "take of child 1")):
        rows = run.rows[:missing] + run.rows[missing + 1 :]
        problem = problem_of(run.cold(rows=rows))
        assert problem["got"].startswith(words) or problem["expected"].startswith(words)
    problem = problem_of(run.cold(workflow(submits_more), rows=run.rows[:5]))
    assert problem["expected"] != problem["got"]


def test_dead_code_submits_nothing() -> None:
    """While a run is thrown away its join sets do nothing, whatever its finally blocks ask for."""
    seen: list[str] = []

    async def code() -> None:
        tasks = ctx.join_set()
        try:
            await ctx.sleep(1)
        finally:
            for use in (
                lambda: tasks.submit(greet("a")),
                lambda: ctx.join_set().submit(greet("b")),
                lambda: tasks.next(),
            ):
                try:
                    await use()
                except BaseException as error:
                    seen.append(type(error).__name__)
            async for _ in tasks:
                pass

    run = MemoryRun(workflow(code))
    run.warm.evict()
    assert seen == ["Evicted"] * 3 and len(run.commands) == 2
