"""Signals, seen through the replay machine: numbers, order, limits, and that nothing is lost."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.signals import Signal
from pyengine.core.protocol.commands import Complete, ContinueAsNew, Receive, StartTimer, Suspend
from pyengine.core.protocol.journal import Row, RowType
from pyengine.errors import DecodeError, InvalidRequest
from tests.core.replay.memory_run import Done, MemoryRun, SignalSent, add, greet, problem_of, workflow

approve = Signal[int]("approve")


def check(run: MemoryRun) -> None:
    """A cold replay ends as the live run did and wants nothing."""
    moves = run.cold()
    assert (moves.end, moves.commands, moves.steps) == (run.end, (), ())


def test_declarations() -> None:
    """A signal has its type from the subscript, from the argument, or none; equal ones are equal."""
    assert Signal[int]("a").annotation is int and Signal("a", date).annotation is date
    assert Signal("a").annotation is Any and repr(Signal[int]("a")) == "Signal[int]('a')"
    assert Signal[int]("a") == Signal("a", int) != Signal("a", str)
    assert len({Signal[int]("a"), Signal("a", int)}) == 1
    assert Signal[list[int]]("a").codec.pack([1]) == b"[1]"


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", 5, None])
def test_names(name: Any) -> None:
    """A name is a text of 1 to 256 bytes, for signals and for receives alike, and nothing is recorded."""
    with pytest.raises(InvalidRequest, match="signal"):
        Signal(name)

    async def code() -> int:
        with pytest.raises(InvalidRequest, match="signal"):
            ctx.receive(name)
        return await add(1, 1)

    assert [call.child for call in MemoryRun(workflow(code)).moves.steps] == [0]


def test_a_receive_waits_for_its_signal() -> None:
    """A receive takes its number at the call, is told to the database, and is a wait of its own kind."""

    async def code() -> list[Any]:
        return [await ctx.receive(approve), await add(1, 1)]

    run = MemoryRun(workflow(code))
    assert run.commands == [Receive(child=0, name="approve")]
    assert run.end == Suspend(on=(0,), kind="signal")
    assert run.cold().end == run.end and run.cold().commands == ()
    assert run.send("approve", 7).steps[0].child == 1
    run.complete(1, 2)
    assert run.value == [7, 2]
    check(run)


def test_a_buffered_signal_comes_at_once() -> None:
    """What was sent before is received without a wait, in the order of sending."""

    async def code() -> list[Any]:
        await ctx.sleep(1)
        return [await ctx.receive("a"), await ctx.receive("b"), await ctx.receive("a")]

    run = MemoryRun(workflow(code))
    run.turn(SignalSent("a", 1), SignalSent("b", 2), SignalSent("a", 3))
    run.complete(0)
    assert run.value == [1, 2, 3] and [command.child for command in run.commands] == [0, 1, 2, 3]
    assert [row.type for row in run.rows] == [
        RowType.EXECUTION_STARTED,
        RowType.TIMER_SCHEDULED,
        RowType.EXECUTION_AWAITING,
        RowType.SIGNAL_DELIVERED,
        RowType.SIGNAL_DELIVERED,
        RowType.SIGNAL_DELIVERED,
        RowType.TIMER_FIRED,
        RowType.SIGNAL_RECEIVED,
        RowType.SIGNAL_RECEIVED,
        RowType.SIGNAL_RECEIVED,
    ]
    check(run)


def test_a_delivery_alone_advances_nothing() -> None:
    """Replay skips deliveries: code that does not receive sees none of them, live and cold alike."""

    async def code() -> None:
        await ctx.sleep(1)

    run = MemoryRun(workflow(code))
    before = run.end
    run.turn(SignalSent("a", 1))
    assert run.rows[-1].type == RowType.SIGNAL_DELIVERED
    assert run.end == before == run.cold().end and run.cold().commands == ()


def test_types() -> None:
    """A signal is read by its type; what does not fit raises DecodeError, and is received all the same."""

    async def code() -> list[Any]:
        day = await ctx.receive("day", date)
        try:
            await ctx.receive("day", type=date)
        except DecodeError as error:
            return [day.isoformat(), error.message, await ctx.receive("day")]
        return []

    run = MemoryRun(workflow(code))
    run.turn(SignalSent("day", "2026-01-02"), SignalSent("day", "never"), SignalSent("day", {"x": 1}))
    assert run.value[0] == "2026-01-02" and "signal day" in run.value[1] and run.value[2] == {"x": 1}
    check(run)


@pytest.mark.parametrize(("on", "kind", "make"), [
    ((0, 1), "any", lambda: ctx.first(ctx.receive("a"), ctx.sleep(1))),
    ((0, 1), "any", lambda: asyncio.gather(ctx.receive("a"), ctx.receive("b"))),
    ((0, 1), "all", lambda: ctx.gather(ctx.receive("a"), ctx.receive("b"))),
    ((0, 1), "any", lambda: ctx.receive("a", timeout=5)),
    ((0,), "signal", lambda: ctx.gather(ctx.receive("a"))),
    ((0,), "signal", lambda: asyncio.create_task(ctx.receive("a"))),
])  # fmt: skip
def test_wait_kinds(on: tuple[int, ...], kind: str, make: Any) -> None:
    """A receive is one wait among others; kind signal is for a run that waits for nothing else."""

    async def code() -> None:
        await make()

    run = MemoryRun(workflow(code))
    assert run.end == Suspend(on=on, kind=kind)  # type: ignore[arg-type]
    assert run.cold().end == run.end


def test_a_limit() -> None:
    """A receive with a limit raises TimeoutError; the next one has the same number and gets the signal."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        for _ in range(3):
            try:
                seen.append(await ctx.receive(approve, timeout="5s"))
            except TimeoutError as error:
                seen.append(str(error))
        return seen

    run = MemoryRun(workflow(code))
    limit = StartTimer(child=1, duration_ms=5000, name="approve")
    assert run.moves.commands == (Receive(child=0, name="approve"), limit)
    assert run.complete(1).commands == (StartTimer(child=2, duration_ms=5000, name="approve"),)
    assert run.end == Suspend(on=(0, 2), kind="any") and run.cold().end == run.end
    run.send("approve", 7)
    run.complete(4)
    assert run.value == ["no signal 'approve' came in time", 7, "no signal 'approve' came in time"]
    check(run)


def test_a_signal_after_a_cancelled_receive_is_buffered() -> None:
    """If it comes after the receive was given up, the next receive gets it at once and needs no limit."""

    async def code() -> list[Any]:
        try:
            async with asyncio.timeout(1):
                await ctx.receive(approve)
        except TimeoutError:
            await ctx.sleep(60)
        return [await ctx.receive(approve, timeout=5), await ctx.receive(approve)]

    run = MemoryRun(workflow(code))
    run.complete(0)
    run.send("approve", 1)
    assert run.end == Suspend(on=(2,), kind="single") and run.cold().end == run.end
    run.complete(2)
    assert run.end == Suspend(on=(3,), kind="signal")
    run.send("approve", 2)
    assert run.value == [1, 2]
    check(run)


@pytest.mark.parametrize("first", ["signal", "timer"])
def test_signal_and_limit_in_one_turn(first: str) -> None:
    """What stands first in the journal decides, live and cold; the other changes nothing."""

    async def code() -> list[Any]:
        try:
            got: Any = await ctx.receive(approve, timeout=1)
        except TimeoutError:
            got = "late"
        return [got, await ctx.receive(approve)]

    run = MemoryRun(workflow(code))
    events = [SignalSent("approve", 1), Done(1)]
    run.turn(*(events if first == "signal" else events[::-1]))
    if first == "signal":
        assert run.end == Suspend(on=(2,), kind="signal")
        run.send("approve", 2)
        assert run.value == [1, 2]
    else:
        assert run.value == ["late", 1]
    check(run)


def test_a_cancelled_task_gives_its_receive_up() -> None:
    """A receive in a task that is cancelled, or in a gather, keeps its place for the next one."""

    async def code() -> list[Any]:
        task = asyncio.create_task(ctx.receive(approve))
        await ctx.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return [task.cancelled(), await ctx.receive(approve)]

    run = MemoryRun(workflow(code))
    run.complete(1)
    assert run.end == Suspend(on=(0,), kind="signal")
    run.send("approve", 3)
    assert run.value == [True, 3]
    check(run)


@pytest.mark.parametrize("come", [False, True])
def test_two_receives_of_one_name(come: bool) -> None:
    """A second receive of a name is refused as long as the first was not looked at, and leaves no trace."""

    async def code() -> list[Any]:
        first = ctx.receive(approve)
        await ctx.sleep(1)
        with pytest.raises(InvalidRequest, match=r"receives signal 'approve' already \(child 0\)"):
            ctx.receive(approve)
        _, _, third = await first, await add(1, 1), ctx.receive("approve")
        return [await third]

    run = MemoryRun(workflow(code))
    if come:
        run.send("approve", 1)
    run.complete(1)
    if not come:
        run.send("approve", 1)
    run.complete(2, 2)
    run.send("approve", 9)
    assert run.value == [9] and run.commands[-1] == Receive(child=3, name="approve")
    check(run)


def test_type_given_twice() -> None:
    """A signal brings its type; another one beside it is refused."""

    async def code() -> str:
        with pytest.raises(InvalidRequest, match="one too many"):
            ctx.receive(approve, type=str)  # type: ignore[call-overload]
        return "refused"

    assert MemoryRun(workflow(code)).value == "refused"


def test_a_receive_that_waits_is_a_gap() -> None:
    """Rows above the number of a waiting receive are no disagreement; another command there is one."""

    async def before() -> Any:
        return (await asyncio.gather(ctx.receive("a"), ctx.sleep(1), greet("x")))[0]

    async def timer() -> None:
        await asyncio.gather(ctx.sleep(2), ctx.sleep(1), greet("x"))

    async def step() -> None:
        await asyncio.gather(greet("y"), ctx.sleep(1), greet("x"))

    run = MemoryRun(workflow(before))
    run.complete(2, "hello")
    assert run.end == Suspend(on=(0, 1), kind="any") and run.cold().end == run.end
    for code in (timer, step):
        problem = problem_of(run.cold(workflow(code)))
        assert (problem["child"], problem["expected"]) == (0, "a receive that still waits")
    run.turn(Done(1), SignalSent("a", 1))
    assert run.value == 1
    check(run)


def test_other_name_or_kind() -> None:
    """The number of a received signal belongs to a receive of that name."""

    async def before() -> None:
        await ctx.receive("a")
        await ctx.sleep(1)

    async def name() -> None:
        await ctx.receive("b")

    async def step() -> None:
        await greet("a")

    async def ends() -> None:
        pass

    run = MemoryRun(workflow(before))
    run.send("a", 1)
    for code, got in ((name, "signal b"), (step, "step greet"), (ends, "no more calls")):
        problem = problem_of(run.cold(workflow(code)))
        assert problem["expected"] == "signal a" and problem["got"].startswith(got)
    run.rows = run.rows[:3]
    assert [row.type for row in run.rows] == [
        RowType.EXECUTION_STARTED,
        RowType.EXECUTION_AWAITING,
        RowType.SIGNAL_DELIVERED,
    ]
    problem = problem_of(run.cold(workflow(ends)))
    assert (problem["child"], problem["expected"]) == (0, "a receive that still waits")


def test_a_receive_is_sent_again_only_where_it_may_be_unknown() -> None:
    """Replay repeats the command where the journal does not prove that the database knows, and only there."""

    async def code() -> Any:
        promise = ctx.promise()
        index, value = await ctx.first(greet("x"), ctx.receive("a"))
        return [index, value, await promise]

    run = MemoryRun(workflow(code))
    assert run.cold(rows=run.rows[:1]).commands == tuple(run.commands)
    assert run.cold().commands == (Receive(child=2, name="a"),), "the run may have died before that turn"
    run.complete(1, "hello")
    assert run.rows[-1].type == RowType.EXECUTION_AWAITING and run.end == Suspend(on=(0,), kind="single")
    assert run.cold().commands == (), "it was blocked after that turn"
    assert run.cold(rows=run.rows[:-1]).commands == (Receive(child=2, name="a"),)


def test_continue_as_new_carries_unconsumed_signals() -> None:
    """The ending names the receives whose signals came and were not looked at, also those that come late."""

    async def code() -> None:
        handles = [ctx.receive(name) for name in "abcd"]
        assert await handles[0] == 1
        handles[1].close()
        handles[2].cancel()  # type: ignore[attr-defined]
        await ctx.sleep(1)
        ctx.continue_as_new()

    run = MemoryRun(workflow(code))
    run.turn(SignalSent("a", 1), SignalSent("b", 2), SignalSent("c", 3))
    run.complete(4)
    assert run.end == ContinueAsNew(value="[]", children=(5, 1, 2))
    run.warm.load([Row(run.next_seq, RowType.SIGNAL_RECEIVED, 3, 1, "d", None, "4", True)])
    assert run.warm.advance().end == ContinueAsNew(value="[]", children=(5, 1, 2, 3))
    assert not isinstance(run.end, Complete)


async def two_signals(limit: float | None = None) -> list[list[Any]]:
    """Go on with whichever comes first, again and again."""
    seen = []
    for _ in range(4):
        which, value = await ctx.first(
            ctx.receive("done", int, timeout=limit), ctx.receive("failed", int, timeout=limit)
        )
        seen.append([which, value])
        await add(which, value)
    return seen


@pytest.mark.parametrize("limit", [None, 60])
def test_the_loser_of_a_race_is_asked_again(limit: float | None) -> None:
    """In a loop each turn asks for both signals: the one that lost goes on waiting, or has come meanwhile."""

    async def code() -> list[list[Any]]:
        return await two_signals(limit)

    run = MemoryRun(workflow(code))
    for name, value in (("failed", 1), ("failed", 2), ("done", 3)):
        check(run)
        run.send(name, value)
        step = next(child for child, call in run.open.items() if hasattr(call, "step"))
        if value == 2:
            run.send("done", 4)  # while nobody waits
        run.complete(step, 0)
        if value == 2:
            run.complete(next(child for child, call in run.open.items() if hasattr(call, "step")), 0)
    check(run)
    assert run.value == [[1, 1], [1, 2], [0, 4], [0, 3]]


@pytest.mark.parametrize("limit", [None, 60])
def test_runs_born_before_are_refused_the_loser(limit: float | None) -> None:
    """A run born under older rules may have caught the refusal and gone on; so each replay is refused."""

    async def code() -> list[list[Any]]:
        return await two_signals(limit)

    run = MemoryRun(workflow(code), rules=3)
    run.send("failed", 1)
    run.complete(next(child for child, call in run.open.items() if hasattr(call, "step")), 0)
    assert "already" in str(run.error)


def test_a_receive_that_was_never_awaited_is_not_taken_over() -> None:
    """It is a mistake, and so is a second one while a task waits for the first."""

    async def forgotten() -> None:
        ctx.receive("a")
        await ctx.receive("a")

    async def waiting() -> None:
        task = asyncio.create_task(ctx.receive("a"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await ctx.receive("a")
        await task

    for code in (forgotten, waiting):
        assert "receives signal 'a' already" in str(MemoryRun(workflow(code)).error)


def test_a_wait_of_asyncio_for_calls() -> None:
    """asyncio takes no coroutines there, which calls are as well, nor did runs of older rules: the note says
    what to write.
    """

    async def code() -> None:
        await asyncio.wait([asyncio.ensure_future(ctx.receive("a"))])

    error = MemoryRun(workflow(code), rules=3).error
    assert isinstance(error, TypeError)
    assert error.__notes__ == ["asyncio.create_task() around each call, or ctx.first(...), ctx.gather(...)"]
