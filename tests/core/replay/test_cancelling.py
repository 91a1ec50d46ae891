"""Cancellation of a run, seen through the replay machine: two phases, shields, and what was overtaken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.protocol.commands import Cancelled, Captured, Complete, Fail, RunChild, StartTimer, Suspend
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.cancellation import REPEATS_MAX
from pyengine.errors import EngineError, InvalidRequest, NotAwaitable
from tests.core.replay.memory_run import Cancel, MemoryRun, SignalSent, add, greet, problem_of, ship, workflow


def check(run: MemoryRun) -> None:
    """A cold replay ends as the live run did and wants the same."""
    moves = run.cold()
    assert (moves.end, moves.commands) == (run.end, ())
    called = [call.child for call in moves.steps]
    assert called == [n for n in run.open if n in called]
    assert run.cold_waits == run.waits


WAITS: list[Callable[[], Any]] = [
    lambda: ctx.sleep(1),
    lambda: asyncio.sleep(1),
    lambda: greet("a"),
    lambda: ship(1),
    lambda: ctx.promise(),
    lambda: ctx.receive("a"),
    lambda: ctx.receive("a", timeout=5),
    lambda: ctx.gather(greet("a"), ship(1)),
    lambda: ctx.first(greet("a"), ship(1)),
    lambda: asyncio.gather(greet("a"), ship(1)),
    lambda: asyncio.wait_for(ctx.promise(), 5),
    lambda: (ctx.start(ship, 1), asyncio.Event().wait())[1],
    lambda: asyncio.shield(greet("a")),
]


@pytest.mark.parametrize("wait", WAITS, ids=range(len(WAITS)))
def test_it_reaches_every_wait(wait: Callable[[], Any]) -> None:
    """Wherever the code waits it sees CancelledError, and a run that lets it out is cancelled."""
    seen: list[Any] = []

    async def code() -> None:
        ctx.promise()
        try:
            await asyncio.gather(wait(), ctx.sleep(99))
        except asyncio.CancelledError as error:
            seen.append(error.args)
            raise

    run = MemoryRun(workflow(code))
    run.cancel("customer called")
    assert run.end == Cancelled() and run.warm.finished
    assert seen in ([("customer called",)], [()]), "a gather has a CancelledError of its own"
    check(run)


@pytest.mark.parametrize(
    ("reason", "args"),
    [("why", ("why",)), (None, ()), ({"by": 1}, ('{"by": 1}',)), (5, ("5",)), ([], ("[]",))],
)
def test_reasons(reason: Any, args: tuple[str, ...]) -> None:
    """A reason that is a text is the message; anything else is its JSON text; none is none."""
    seen: list[Any] = []

    async def code() -> None:
        try:
            await ctx.sleep(1)
        except asyncio.CancelledError as error:
            seen.append(error.args)

    run = MemoryRun(workflow(code))
    run.cancel(reason)
    assert seen == [args] and run.end == Complete(value="null")


def test_code_that_catches_the_cancellation_may_complete_or_fail() -> None:
    """A run that catches the cancellation may complete; one that raises something else fails."""

    async def completes() -> str:
        try:
            await ship(1)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    async def fails() -> None:
        try:
            await ship(1)
        finally:
            raise ValueError("in clean-up")

    run = MemoryRun(workflow(completes))
    run.cancel()
    assert run.value == "done all the same"
    check(run)
    failing = MemoryRun(workflow(fails))
    failing.cancel()
    assert isinstance(failing.error, ValueError) and failing.cold().end == failing.end


@pytest.mark.parametrize("waits", [0, 1], ids=["failing", "failed"])
def test_it_reaches_the_members_of_a_group_that_failed(waits: int) -> None:
    """A member that cleans up outside a shield is cancelled too, and the run reaches its own clean-up."""

    async def tidy() -> None:
        try:
            await ctx.sleep(99)
        except asyncio.CancelledError:
            await greet("tidy")
            raise

    async def fail() -> None:
        await ship(1)
        raise ValueError("no")

    async def code() -> None:
        try:
            with contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(tidy())
                    group.create_task(fail())
            await ctx.sleep(99)
        except asyncio.CancelledError:
            async with ctx.shield():
                await greet("clean")
            raise

    run = MemoryRun(workflow(code))
    for child in range(1, 2 + waits):
        run.complete(child, "done")
    run.cancel()
    assert run.end is None and len(run.moves.steps) == 1
    check(run)
    run.complete(max(run.open), "done")
    assert run.end == Cancelled()
    check(run)


def test_cancelling_itself_is_no_cancellation() -> None:
    """CancelledError that leaves a run which nobody asked to end is the error that it was before."""

    async def code() -> None:
        raise asyncio.CancelledError

    assert isinstance(MemoryRun(workflow(code)).error, EngineError)


CALLS: list[Callable[[], Any]] = [
    lambda: greet("x"),
    lambda: ship(2),
    lambda: ctx.start(ship, 2),
    lambda: ctx.start(ship, 2, detached=True),
    lambda: ctx.promise(),
    lambda: ctx.promise(id="foreign"),
    lambda: ctx.sleep(1),
    lambda: ctx.receive("b"),
    lambda: ctx.join_set(),
    lambda: ctx.continue_as_new(),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_every_later_call_is_refused(call: Callable[[], Any]) -> None:
    """After the request each durable call outside a shield raises CancelledError and takes no number."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        try:
            await ctx.sleep(1)
        except asyncio.CancelledError:
            for _ in range(3):
                try:
                    call()
                except asyncio.CancelledError:
                    seen.append("refused")
        async with ctx.shield():
            seen.append(ctx.promise().id)
        return seen

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.value == ["refused"] * 3 + ["run-1.1"]
    check(run)


def test_loop_timers_are_refused_too() -> None:
    """asyncio.sleep and asyncio.timeout are durable timers, so they raise CancelledError as well."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        try:
            await ctx.sleep(1)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
                seen.append("slept")
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.timeout(5):
                    seen.append("entered")
            await asyncio.sleep(0)
        return seen

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.value == [] and len(run.commands) == 1
    check(run)


def test_values_can_still_be_taken() -> None:
    """Time and randomness need no wait, so clean-up may take them, with numbers of their own."""

    async def code() -> list[Any]:
        try:
            await ctx.sleep(1)
        except asyncio.CancelledError:
            return [ctx.now().isoformat(), ctx.random(), str(ctx.uuid4()), ctx.patched("p")]
        return []

    run = MemoryRun(workflow(code))
    run.cancel()
    assert [command.child for command in run.commands] == [0, 1, 2, 3, 4] and run.value[3] is True
    run.seed = 5
    check(run)


def test_clean_up_takes_durable_steps() -> None:
    """In a shield every call works; the run is held, not suspended, while one is waited for."""

    async def code() -> None:
        try:
            await greet("work")
        finally:
            async with ctx.shield():
                await add(1, 2)
                await ship(3)
                await ctx.sleep(5)

    run = MemoryRun(workflow(code))
    moves = run.cancel()
    assert moves.given_up == (0,) and [call.child for call in moves.steps] == [1] and moves.end is None
    check(run)
    moves = run.complete(1, 3)
    assert isinstance(moves.commands[0], RunChild) and (moves.end, run.waits) == (None, 0)
    check(run)
    moves = run.complete(2, "back")
    assert moves.commands == (StartTimer(child=3, duration_ms=5000),) and moves.end is None
    check(run)
    run.complete(3)
    assert run.end == Cancelled()
    check(run)


def test_a_late_row_of_a_cancelled_call() -> None:
    """The row of a step that the cancellation gave up changes nothing."""

    async def code() -> None:
        try:
            await greet("work")
        finally:
            async with ctx.shield():
                await add(1, 2)

    run = MemoryRun(workflow(code))
    run.cancel()
    run.complete(0, "late")
    assert run.end is None and run.waits == 1
    check(run)
    run.complete(1, 3)
    assert run.end == Cancelled()
    check(run)


def test_a_request_in_a_shield_waits_for_its_end() -> None:
    """A shield that the run stands in is finished first; its exit raises the cancellation, once."""
    seen: list[str] = []

    async def code() -> None:
        try:
            async with ctx.shield():
                seen.append(await greet("a"))
                seen.append(await greet("b"))
        except asyncio.CancelledError as error:
            seen.append(f"cancelled: {error}")
            raise

    run = MemoryRun(workflow(code))
    run.cancel("why")
    assert run.end is None and run.moves.given_up == ()
    run.complete(0, "a")
    check(run)
    seen.clear()
    run.complete(1, "b")
    assert run.end == Cancelled() and seen[0] == "b" and seen[1].startswith("cancelled")
    check(run)


def test_outcomes_before_the_request_are_wanted() -> None:
    """A result that stands before the request reaches the code; so does one that a shield waits for."""

    async def code() -> list[Any]:
        done: list[Any] = []
        task = asyncio.create_task(add(1, 1))
        try:
            done.append(await greet("a"))
            done.append(await greet("b"))
        except asyncio.CancelledError:
            async with ctx.shield():
                done.append(await task)
        return done

    run = MemoryRun(workflow(code))
    run.complete(1, "a")
    run.cancel()
    assert run.moves.given_up == (2,) and run.waits == 1
    check(run)
    run.complete(0, 2)
    assert run.value == ["a", 2]
    check(run)


def test_child_runs_are_abandoned_or_not() -> None:
    """What cancelling does to a child is said when it is started, and nothing else is accepted."""

    async def code() -> str:
        ctx.start(ship, 1, on_cancel="abandon")
        ctx.start(ship, 2)
        with pytest.raises(InvalidRequest, match="on_cancel"):
            ctx.start(ship, 3, on_cancel="kill")  # type: ignore[arg-type]
        return "started"

    run = MemoryRun(workflow(code))
    assert [
        (command.abandon, command.detached) for command in run.commands if isinstance(command, RunChild)
    ] == [
        (True, False),
        (False, False),
    ]
    check(run)


# --- code that goes on waiting ------------------------------------------------------------------------------


def test_waiting_for_nothing_is_cancelled_again() -> None:
    """Code that catches the request and waits for what cannot come is cancelled again until it ends."""

    async def code() -> int:
        times = 0
        while times < 7:
            try:
                await asyncio.Event().wait() if times else await ctx.sleep(1)
            except asyncio.CancelledError:
                times += 1
        return times

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.value == 7
    check(run)


def test_earlier_calls_wake_no_code_outside_a_shield() -> None:
    """Waiting outside a shield for an older call is no clean-up: it is cancelled at once."""

    async def code() -> str:
        child = ctx.start(ship, 1)
        try:
            await ctx.sleep(1)
        except asyncio.CancelledError:
            await child
        return "never"

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.end == Cancelled()
    check(run)


@pytest.mark.parametrize("wait", [lambda: asyncio.Event().wait(), lambda: ctx.gather(ctx.receive("a"))])
def test_a_shield_defers_only_while_something_can_complete(wait: Callable[[], Any]) -> None:
    """A wait in a shield that nothing can end is cancelled through the shield: also one for a signal."""

    async def code() -> list[str]:
        seen: list[str] = []
        try:
            async with ctx.shield():
                seen.append(await greet("a"))
                await wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        return seen

    run = MemoryRun(workflow(code))
    run.complete(0, "a")
    assert isinstance(run.end, Suspend | Fail)
    if isinstance(run.end, Suspend):
        run.cancel()
        assert run.value == ["a", "cancelled"]
        check(run)
    other = MemoryRun(workflow(code))
    other.cancel()
    other.complete(0, "a")
    assert other.value[-1] == "cancelled"
    check(other)


def test_clean_up_receives_nothing_new() -> None:
    """A run that is being cancelled receives only what came before; a receive in a shield is refused."""

    async def code() -> str:
        ctx.receive("b").close()
        given_up = asyncio.create_task(ctx.receive("a"))
        try:
            await ctx.sleep(1)
            given_up.cancel()
            await ctx.sleep(1)
        except asyncio.CancelledError:
            async with ctx.shield():
                with pytest.raises(asyncio.CancelledError, match="signal 'c' never comes"):
                    ctx.receive("c")
                return f"{await ctx.receive('a')} {ctx.promise().id}"
        return "never"

    run = MemoryRun(workflow(code))
    run.complete(2)
    run.turn(SignalSent("a", 1), SignalSent("c", 1), Cancel())
    assert run.value == "1 run-1.4"
    check(run)


@pytest.mark.parametrize("shielded", [False, True])
def test_stubborn_code_fails(shielded: bool) -> None:
    """Code that waits for nothing, however often it is cancelled, fails with a clear error."""
    times: list[int] = [0]

    async def code() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                async with ctx.shield() if shielded else contextlib.nullcontext():
                    await asyncio.Event().wait()
            times[0] += 1
            if times[0] == 1:
                await asyncio.sleep(0)

    async def started() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.sleep(1)
        await code()

    run = MemoryRun(workflow(started))
    run.cancel()
    assert isinstance(run.error, NotAwaitable) and f"cancelled {REPEATS_MAX} times" in str(run.error)
    assert times[0] >= REPEATS_MAX
    assert run.cold().end == run.end


def test_background_work_goes_on_while_a_shield_waits_for_it() -> None:
    """A task outside shields keeps the step it waits for, and is stopped at its next call."""
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append(await greet("a"))
            seen.append(await greet("b"))
        except asyncio.CancelledError:
            seen.append("stopped")
            raise

    async def code() -> None:
        task = asyncio.create_task(work())
        try:
            await ctx.sleep(9)
        finally:
            async with ctx.shield():
                await asyncio.wait([task])

    run = MemoryRun(workflow(code))
    run.cancel()
    assert run.end is None and run.waits == 1
    run.complete(1, "a")
    assert run.end == Cancelled() and seen == ["a", "stopped"]
    check(run)


# --- what the request overtook ------------------------------------------------------------------------------


async def overtaken() -> None:
    """A step, then one of each kind of command, then clean-up."""
    await greet("a")
    try:
        tasks = ctx.join_set()
        tasks.submit(ctx.start(ship, 1))
        ctx.promise()
        ctx.receive("x")
        _ = greet("b")
        ctx.now()
        await asyncio.sleep(1)
    finally:
        async with ctx.shield():
            await add(1, 2)


def test_discarded_calls_keep_their_numbers() -> None:
    """Calls whose turn came after the request keep their numbers and are not made; values are recorded."""
    run = MemoryRun(workflow(overtaken))
    run.late_request = Cancel()
    run.complete(0, "a")
    assert [command.child for command in run.commands] == [6] and isinstance(run.commands[0], Captured)
    assert [call.child for call in run.moves.steps] == [8]
    check(run)
    run.complete(8, 3)
    assert run.end == Cancelled()
    check(run)


def test_commands_recorded_before_the_request_have_effect() -> None:
    """If the turn came first everything was made, and the same numbers are taken after it."""
    run = MemoryRun(workflow(overtaken))
    run.complete(0, "a")
    assert [command.child for command in run.commands] == [1, 2, 2, 3, 4, 6, 7]
    run.cancel()
    assert [call.child for call in run.moves.steps] == [8]
    check(run)
    run.complete(8, 3)
    assert run.end == Cancelled()
    check(run)


def test_a_request_before_the_first_line() -> None:
    """A run that was asked to end before it began runs up to its first wait, makes nothing, and cleans up."""
    seen: list[str] = []

    async def code() -> None:
        try:
            seen.append("began")
            await ship(1)
            seen.append("never")
        finally:
            async with ctx.shield():
                await greet("bye")

    run = MemoryRun(
        workflow(code), rows=[Row(0, RowType.EXECUTION_STARTED), Row(1, RowType.CANCEL_REQUESTED)]
    )
    assert run.commands == [] and [call.child for call in run.moves.steps] == [1] and seen == ["began"]
    run.complete(1, "x")
    assert run.end == Cancelled() and seen == ["began"]
    check(run)


def test_a_missing_command_below_recorded_ones_halts() -> None:
    """A request discards only commands after the recorded ones: one missing below them halts the run."""

    async def before() -> None:
        await greet("a")
        await ctx.sleep(1)
        await ctx.sleep(2)

    async def after() -> None:
        await greet("a")
        await asyncio.gather(ctx.promise(), ctx.sleep(2))

    run = MemoryRun(workflow(before))
    run.complete(0, "a")
    run.complete(1)
    run.cancel()
    assert problem_of(run.cold(workflow(after)))["expected"] == "timer"


def test_continue_as_new_does_not_outrun_a_request() -> None:
    """Who was asked to end does not begin again: the run is cancelled."""

    async def code() -> None:
        await greet("a")
        ctx.continue_as_new()

    run = MemoryRun(workflow(code))
    run.late_request = Cancel()
    run.complete(0, "a")
    assert run.end == Cancelled()
    check(run)
