"""What goes wrong in other engines' replay: each trap a test, seen through the replay machine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import time
import warnings
from contextvars import ContextVar
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.current_run import StepInfo, current_step
from pyengine.core.protocol.commands import CancelChild, Complete, Suspend
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.values.codec import Codec
from pyengine.errors import EngineError, Evicted, ForbiddenInWorkflow, InvalidRequest, NotAwaitable
from tests.core.replay.memory_run import STARTED_MS, MemoryRun, add, greet, ship, step, workflow

outside: ContextVar[str] = ContextVar("outside", default="nothing")


def test_eviction_runs_finally_with_dead_calls(caplog: pytest.LogCaptureFixture) -> None:
    """finally blocks run on eviction; in them every durable call raises Evicted and nothing is logged."""
    seen: list[Any] = []

    async def code() -> None:
        try:
            await greet("a")
        finally:
            for call in (lambda: add(1, 2), lambda: ship(1), lambda: ctx.sleep(1), lambda: ctx.promise()):
                try:
                    await call()
                except Evicted:
                    seen.append("dead")
            for value in (ctx.now, ctx.random, ctx.uuid4, ctx.uuid7, lambda: ctx.choice([1])):
                try:
                    value()
                except Evicted:
                    seen.append("dead")
            ctx.log.error("from the grave")

    run = MemoryRun(workflow(code))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.warm.evict()
        gc.collect()
    assert seen == ["dead"] * 9 and caplog.records == []
    with pytest.raises(EngineError, match="evicted"):
        run.warm.advance()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ctx.start(ship, 1, queue="a/b"), "ctx.start: 'a/b' is not a queue name"),
        (lambda: ctx.start(ship, 1, queue="any@z"), "'any@z' is not a queue name"),
        (lambda: ctx.start(ship, 1, queue=""), "'' is not a queue name"),
        (lambda: ctx.start(ship, 1, timeout="-1s"), "ctx.start: '-1s' is not a duration"),
        (lambda: ctx.promise(timeout=math.inf), "ctx.promise: inf is too long"),
    ],
    ids=range(5),
)
def test_a_child_that_cannot_be_is_refused_at_once(call: Any, says: str) -> None:
    """A wrong option of a child is an error of the code that named it, and takes no number."""

    async def code() -> None:
        call()

    run = MemoryRun(workflow(code))
    assert isinstance(run.error, InvalidRequest) and says in run.error.message
    assert run.moves.commands == ()


def test_eviction_never_runs_a_step_body() -> None:
    """Code that swallows its eviction for ever is closed; no step runs as if outside a workflow."""
    bodies: list[str] = []

    @step
    async def effect() -> None:
        bodies.append("ran")

    async def code() -> None:
        while True:
            with contextlib.suppress(BaseException):
                await effect()

    MemoryRun(workflow(code)).warm.evict()
    assert bodies == []


def test_eviction_is_quiet_whatever_is_pending() -> None:
    """Evicting a run with tasks, gathers, timers and calls that nobody awaited gives no warning at all."""

    async def code() -> None:
        _ = greet("never awaited")
        asyncio.create_task(greet("in a task"))  # noqa: RUF006
        async with asyncio.TaskGroup() as group:
            group.create_task(add(1, 2))
            await ctx.gather(
                ship(1), ctx.first(ctx.promise(), asyncio.sleep(1)), *[add(n, n) for n in range(3)]
            )

    run = MemoryRun(workflow(code))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.warm.evict()
        del run
        gc.collect()


def test_eviction_inside_the_workers_loop() -> None:
    """The machine runs inside the worker's own loop and leaves it as it was."""

    async def code() -> str:
        return await greet("a")

    async def worker() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        run = MemoryRun(workflow(code))
        assert asyncio.get_running_loop() is loop and asyncio.current_task() is task
        run.complete(0, "x")
        await asyncio.sleep(0)
        other = MemoryRun(workflow(code))
        other.warm.evict()
        assert run.value == "x" and asyncio.get_running_loop() is loop

    asyncio.run(worker())


def test_errors_of_unawaited_steps_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    """A failed step that nobody awaits is in the journal; neither Python nor the machine says anything."""

    async def code() -> str:
        _ = greet("a")
        await add(1, 2)
        return "done"

    run = MemoryRun(workflow(code))
    run.complete(0, error=ValueError("unseen"))
    run.complete(1, 3)
    run.warm.evict()
    assert run.value == "done"
    gc.collect()
    assert caplog.records == []


def test_unhandled_task_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The error of a task that nobody awaits is logged with the run's id when the run ends."""

    async def broken() -> None:
        raise ValueError("lost")

    async def code() -> str:
        asyncio.create_task(broken())  # noqa: RUF006
        return await greet("a")

    run = MemoryRun(workflow(code))
    assert caplog.records == []
    run.complete(0, "x")
    (record,) = caplog.records
    assert "an error of the code of run run-1 of code reached no code: " in record.message
    assert (record.__dict__["event"], record.__dict__["run"]) == ("workflow_unhandled_error", "run-1")
    assert record.exc_info is not None and "lost" in str(record.exc_info[1])
    assert run.value == "x"


def test_context_of_the_worker_stays_outside() -> None:
    """Context variables of the worker are not seen by workflow code, nor those of the code outside."""

    async def code() -> str:
        before = outside.get()
        outside.set("workflow")
        await greet("a")
        return before + outside.get()

    outside.set("worker")
    run = MemoryRun(workflow(code))
    run.complete(0, "x")
    assert run.value == "nothingworkflow" and outside.get() == "worker"
    outside.set("nothing")


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda: asyncio.to_thread(time.sleep, 0),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
    ],
)
def test_outside_world_is_refused(forbidden: Any) -> None:
    """Threads, sockets and subprocesses raise ForbiddenInWorkflow and fail the run with the advice."""

    async def code() -> None:
        await forbidden()

    error = MemoryRun(workflow(code)).error
    assert isinstance(error, ForbiddenInWorkflow) and error.hint is not None and "step" in error.hint


async def goes_round() -> None:
    """Waits for nothing, again and again."""
    while True:
        await asyncio.sleep(0)


async def within() -> None:
    """Waits for what goes round."""
    await goes_round()


async def calls_itself() -> None:
    """A callback that makes itself ready again."""

    def again() -> None:
        asyncio.get_running_loop().call_soon(again)

    again()
    await ctx.sleep(1)


@pytest.mark.parametrize("bound", ["_CALLBACKS_MAX", "_STORM_S"])
@pytest.mark.parametrize(("code", "place"), [(within, goes_round), (calls_itself, calls_itself)])
def test_endless_loop_fails_the_run(
    code: Any, place: Any, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workflow that goes round without waiting fails instead of holding the worker for ever: after so many
    callbacks or so much time, with file and line.
    """
    if bound == "_CALLBACKS_MAX":
        monkeypatch.setattr("pyengine.core.loop.event_loop._CALLBACKS_MAX", 1000)
    else:
        monkeypatch.setattr("pyengine.core.loop.event_loop._STORM_S", 0.0)
        monkeypatch.setattr("pyengine.core.loop.event_loop._STORM_CHECKED", 100)

    error = MemoryRun(workflow(code)).error
    assert isinstance(error, ForbiddenInWorkflow)
    line = place.__code__.co_firstlineno + 3
    assert f"in a loop without end at {__file__}, line {line}," in str(error)


def test_sys_exit_fails_the_run() -> None:
    """sys.exit in a workflow ends the run, not the worker; KeyboardInterrupt is the worker's."""

    async def leaves() -> None:
        raise SystemExit(3)

    async def interrupted() -> None:
        raise KeyboardInterrupt

    assert "SystemExit" in str(MemoryRun(workflow(leaves)).error)
    with pytest.raises(KeyboardInterrupt):
        MemoryRun(workflow(interrupted))


def test_cancelling_itself_fails_the_run() -> None:
    """CancelledError that reaches the top is an error of the run with a plain message."""

    async def code() -> None:
        raise asyncio.CancelledError

    assert "cancelled itself" in str(MemoryRun(workflow(code)).error)


def test_mixed_captures_without_names() -> None:
    """Rows whose name was not kept still tell a UUID from a number."""

    async def numbers() -> float:
        return ctx.random()

    async def ids() -> str:
        return str(ctx.uuid4())

    run = MemoryRun(workflow(numbers))
    rows = [Row(0, RowType.EXECUTION_STARTED), Row(1, RowType.RANDOM_GENERATED, 0, data="0.5")]
    assert run.cold(rows=rows).end == Complete(value="0.5")
    assert "uuid4" in str(run.cold(workflow(ids), rows=rows).end)


def test_gather_waits_for_all_then_raises() -> None:
    """ctx.gather raises the first error by position, after every member is done, whatever came first."""

    async def code() -> list[Any]:
        seen: list[Any] = []
        try:
            await ctx.gather(ship(1), ship(2), ship(3))
        except Exception as error:
            seen.append(str(error.__cause__))
        outcomes = await ctx.gather(ship(4), ship(5), return_exceptions=True)
        return [*seen, *(type(one).__name__ for one in outcomes), await ctx.gather()]

    run = MemoryRun(workflow(code))
    run.complete(2, error=ValueError("third"))
    run.complete(1, error=ValueError("second"))
    assert run.end == Suspend(on=(0,), kind="single")
    run.complete(0, "fine")
    run.complete_all([(3, "x", None), (4, None, ValueError("y"))])
    assert run.value == ["second", "str", "RunFailed", []]
    assert run.cold().end == run.end


def test_timeout_around_gather_cancels_all() -> None:
    """A timeout around ctx.gather gives every member up; a timeout around ctx.first leaves them going."""

    async def code() -> list[Any]:
        promise = ctx.promise()
        for wait in (lambda: ctx.gather(ship(1), ship(2)), lambda: ctx.first(promise, ship(3))):
            try:
                async with asyncio.timeout(1):
                    await wait()
            except TimeoutError:
                pass
        return [await promise]

    run = MemoryRun(workflow(code))
    assert run.end == Suspend(on=(1, 2, 3), kind="any")
    run.complete(2, "one")
    run.complete(1)
    assert run.end == Suspend(on=(0, 4, 5), kind="any")
    assert [one for one in run.commands if isinstance(one, CancelChild)] == [CancelChild(child=3)]
    run.complete(4)
    assert run.end == Suspend(on=(0,), kind="single")
    run.complete_all([(5, "late", None), (0, 7, None)])
    assert run.value == [7] and run.cold().end == run.end


def test_waits_for_members_of_every_kind() -> None:
    """wait on tasks around calls, wait_for, shield and a Queue between branches are deterministic."""

    async def code() -> list[Any]:
        queue: asyncio.Queue[str] = asyncio.Queue()

        async def producer(name: str) -> None:
            await queue.put(await greet(name))

        tasks = {asyncio.create_task(producer(name)) for name in "abc"}
        done, _ = await asyncio.wait(tasks)
        got = [queue.get_nowait() for _ in done]
        return [*got, await asyncio.shield(add(1, 1)), await asyncio.wait_for(add(2, 2), 9)]

    run = MemoryRun(workflow(code))
    for child in (1, 2, 0):
        run.complete(child, f"{child}")
    run.complete(3, 2)
    (last,) = [call.child for call in run.moves.steps]
    run.complete(last, 4)
    assert run.value == ["1", "2", "0", 2, 4] and run.cold().end == run.end


def test_virtual_clock_starts_at_zero() -> None:
    """loop.time() is 0 at the start, whatever the real clock says."""

    async def code() -> float:
        return asyncio.get_running_loop().time()

    assert MemoryRun(workflow(code)).value == 0.0


def test_undecodable_result_names_the_place() -> None:
    """A recorded result that no longer fits its annotation raises DecodeError in the code that waits."""

    async def code() -> str:
        try:
            await add(1, 2)
        except EngineError as error:
            return error.message
        return "fits"

    run = MemoryRun(workflow(code))
    run.complete(0, "text")
    assert "the recorded result of step add (run run-1, child 0)" in run.value


def test_dead_wait_is_reported_with_the_run() -> None:
    """Waiting for an empty queue that nobody fills is found at once."""

    async def code() -> None:
        await asyncio.Queue().get()

    error = MemoryRun(workflow(code)).error
    assert isinstance(error, NotAwaitable) and "run run-1" in error.message


def test_ctx_outside_of_a_workflow() -> None:
    """Outside a workflow every method says so and says what to use there."""
    for use in (
        ctx.now,
        ctx.random,
        ctx.uuid4,
        ctx.uuid7,
        lambda: ctx.randint(1, 2),
        lambda: ctx.sleep(1),
        lambda: ctx.run_id,
    ):
        with pytest.raises(InvalidRequest, match="outside a workflow") as caught:
            use()
        assert caught.value.hint is not None
    with pytest.raises(InvalidRequest, match="outside a step"):
        _ = ctx.step


def test_ctx_inside_a_step() -> None:
    """Inside a step ctx knows the attempt and an idempotency key; the verbs of workflows are refused."""
    token = current_step.set(StepInfo(run_id="run-9", child=4, attempt=2, name="charge"))
    try:
        assert ctx.step.idempotency_key == "run-9.4" and ctx.step.attempt == 2 and ctx.run_id == "run-9"
        with pytest.raises(InvalidRequest, match="inside a step"):
            ctx.now()
    finally:
        current_step.reset(token)


def test_sync_steps_run_outside_too() -> None:
    """Outside a workflow a step just runs: async in the loop, sync in a thread."""

    @step
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert asyncio.run(where()) is False
    assert asyncio.run(greet("you")) == "hello you"
    assert asyncio.run(ship(3)) == "shipped 3"


def test_now_is_utc() -> None:
    """ctx.now() has a time zone and the precision of the journal."""

    async def code() -> str:
        return ctx.now().isoformat() + ctx.workflow + ctx.run_id

    run = MemoryRun(workflow(code), codec=Codec())
    run.now_ms = STARTED_MS + 5
    assert run.value == "2023-11-14T22:13:20+00:00coderun-1"
