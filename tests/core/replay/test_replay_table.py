"""The replay machine as a table: journal and code in, moves out. No database, no clock, no thread."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import weakref
from datetime import datetime
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.registry import make_workflow
from pyengine.core.protocol.commands import (
    Captured,
    Complete,
    Fail,
    MakePromise,
    RunChild,
    StartTimer,
    StepOutcome,
)
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec, input_hash
from pyengine.errors import (
    InvalidRequest,
    NotAwaitable,
    PayloadTooLarge,
    RemoteError,
    RunCancelled,
    RunFailed,
    RunTimedOut,
)
from tests.core.replay.memory_run import STARTED_MS, MemoryRun, add, greet, ship, step, workflow


def test_sequence_of_steps() -> None:
    """A step is handed out once; its row, warm or cold, gives the same result and the same numbers."""

    async def code(name: str) -> str:
        first = await greet(name)
        return first + str(await add(len(first), 1))

    run = MemoryRun(workflow(code), "world")
    (call,) = run.moves.steps
    assert (call.child, call.name, call.args, call.kwargs, call.attempt) == (0, "greet", ("world",), {}, 1)
    assert call.hash == input_hash("greet", call.param) and call.param == '["world"]'
    assert run.moves.end is None and run.waits == 1
    assert run.warm.advance().steps == (), "each step is handed out once"
    run.complete(0, "hello world")
    assert run.moves.steps[0].args == (11, 1)
    run.complete(1, 12)
    assert run.value == "hello world12"
    assert run.cold().end == run.end and run.cold().commands == ()


def test_result_is_read_back_live() -> None:
    """A live run sees what a replay will see: the recorded text, not the worker's object."""

    @step
    async def when() -> datetime:
        raise AssertionError

    async def code() -> str:
        return type(await when()).__name__

    run = MemoryRun(workflow(code))
    run.complete(0, "2026-01-02T03:04:05Z")
    assert run.value == "datetime"


def test_step_gets_a_copy_of_its_arguments() -> None:
    """A step that changes its argument must not change the workflow's own object."""

    @step
    async def grow(items: list[int]) -> int:
        raise AssertionError

    async def code() -> int:
        items = [1]
        await grow(items)
        return len(items)

    run = MemoryRun(workflow(code))
    run.moves.steps[0].args[0].append(2)
    run.complete(0, 1)
    assert run.value == 1


def test_commands_in_call_order() -> None:
    """One counter numbers steps, children, timers, promises and captured values in the order of the calls."""

    async def code() -> Any:
        child = ctx.start(ship, 7, queue="post", timeout="1h")
        promise = ctx.promise(int, timeout="30s", name="approval")
        moment, number, unique = ctx.now(), ctx.random(), ctx.uuid4()
        nap = ctx.sleep("5s")
        first = greet("a")
        await asyncio.sleep(2)
        return [
            child.id,
            promise.id,
            moment.isoformat(),
            number,
            str(unique),
            await child,
            await promise,
            await nap,
            await first,
        ]

    run = MemoryRun(workflow(code))
    child, promise, moment, number, unique, nap, sleep = run.moves.commands
    digest = input_hash("ship", "[7]")
    assert child == RunChild(
        child=0,
        name="ship",
        version="1",
        queue="post",
        hash=digest,
        param="[7]",
        timeout_ms=3_600_000,
        detached=False,
    )
    schema = '{"type":"integer"}'
    assert promise == MakePromise(child=1, name="approval", timeout_ms=30_000, param=schema)
    assert moment == Captured(child=2, kind="time", name="now", value=str(STARTED_MS))
    assert isinstance(number, Captured) and (number.child, number.kind, number.name) == (
        3,
        "random",
        "random",
    )
    assert isinstance(unique, Captured) and (unique.child, unique.kind, unique.name) == (4, "random", "uuid4")
    assert nap == StartTimer(child=5, duration_ms=5_000)
    assert [one.child for one in run.moves.steps] == [6]
    assert sleep == StartTimer(child=7, duration_ms=2_000)
    for child_number, value in ((6, "x"), (5, None), (7, None), (1, 42), (0, "done")):
        run.complete(child_number, value)
    assert run.value[:3] == ["run-1.0", "run-1.1", "2023-11-14T22:13:20+00:00"]
    assert run.value[5:] == ["done", 42, None, "x"]
    run.seed, run.now_ms = 99, 0
    assert run.cold().end == run.end, "captured values come from the journal"


def test_step_is_a_coroutine_too() -> None:
    """What a step call returns may be given to create_task and TaskGroup, like a coroutine."""

    async def code() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(add(n, 1)) for n in range(3)]
        one = asyncio.create_task(add(9, 9))
        return [task.result() for task in tasks] + [await one]

    run = MemoryRun(workflow(code))
    assert [call.child for call in run.moves.steps] == [0, 1, 2]
    run.complete_all([(2, 3, None), (1, 2, None), (0, 1, None)])
    run.complete(3, 18)
    assert run.value == [1, 2, 3, 18]


def test_child_run_errors() -> None:
    """A failed child raises RunFailed with its error as cause; deadline and cancel have their own classes."""

    async def code() -> list[str]:
        seen = []
        for order in range(3):
            try:
                await ship(order)
            except RunFailed as error:
                seen.append(f"{type(error).__name__} {error.run_id} {type(error.__cause__).__name__}")
        return seen

    run = MemoryRun(workflow(code))
    run.complete(0, error=KeyError("k"))
    run.complete(1, error='{"type": "Timeout", "message": "the deadline passed"}')
    run.complete(2, error='{"type": "Cancelled", "message": "cancelled"}')
    assert run.value == [
        "RunFailed run-1.0 KeyError",
        f"{RunTimedOut.__name__} run-1.1 NoneType",
        f"{RunCancelled.__name__} run-1.2 NoneType",
    ]


def test_promise_errors() -> None:
    """A rejected promise raises what was recorded; one that timed out raises TimeoutError."""

    async def code() -> list[str]:
        seen = []
        for _ in range(3):
            try:
                await ctx.promise()
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
        return seen

    run = MemoryRun(workflow(code))
    run.complete(0, error=ValueError("no"))
    run.complete(1, error='{"type": "Timeout", "message": "the deadline passed"}')
    run.complete(2, error="not even JSON")
    assert run.value == [
        "ValueError: no",
        "TimeoutError: promise run-1.1 timed out",
        "RemoteError: Exception: not even JSON",
    ]


def test_step_errors() -> None:
    """A failed step raises its own class if that is known, else RemoteError with its type."""

    class Local(Exception):
        pass

    async def code() -> list[str]:
        seen = []
        for _ in range(2):
            try:
                await greet("x")
            except (LookupError, RemoteError) as error:
                seen.append(str(getattr(error, "type", type(error).__name__)))
        return seen

    run = MemoryRun(workflow(code))
    run.complete(0, error=IndexError("i"))
    run.complete(1, error=Local("l"))
    assert run.value == ["IndexError", Local.__qualname__]


def test_detached_child_cannot_be_awaited() -> None:
    """A detached child takes a number and a command, and waiting for it is refused at once."""

    async def code() -> str:
        child = ctx.start(ship, 1, detached=True)
        with pytest.raises(NotAwaitable):
            await child
        return child.id

    run = MemoryRun(workflow(code))
    command = run.moves.commands[0]
    assert isinstance(command, RunChild) and command.detached
    assert run.value == "run-1.0"


def test_failure_of_the_workflow() -> None:
    """What the workflow raises, or a result that cannot be recorded, is the run's error."""

    async def raises() -> None:
        raise ValueError("no such thing")

    async def unwritable() -> str:
        return 5  # type: ignore[return-value]

    assert isinstance(MemoryRun(workflow(raises)).error, ValueError)
    assert "the result of workflow unwritable (run run-1)" in str(MemoryRun(workflow(unwritable)).error)


def test_wrong_arguments_fail_the_run() -> None:
    """A run that was started with wrong arguments fails and names the function and the parameter."""

    async def code(n: int) -> int:
        return n

    run = MemoryRun(workflow(code), "x")
    assert isinstance(run.error, InvalidRequest) and "workflow code, argument 'n'" in str(run.error)


def test_arguments_by_name() -> None:
    """A run may be started with a JSON object of named arguments."""
    info = RunInfo(id="r", execution=1, version=1, workflow="w", param='{"name": "world", "n": 2}')

    @make_workflow
    async def code(name: str, n: int = 1) -> str:
        return name * n

    replay = Replay(code.definition, info, lambda: 0, random.Random(), Codec())
    assert replay.advance().end == Complete(value='"worldworld"')
    assert replay.finished


def test_freed_at_once() -> None:
    """A run that has ended is freed as soon as nobody holds it, without the collector."""

    @make_workflow
    async def code() -> int:
        _ = add(3, 4)
        async with asyncio.timeout(60):
            return await add(1, 2)

    info = RunInfo(id="r", execution=1, version=1, workflow="code")
    gc.collect()
    gc.disable()
    try:
        replay = Replay(code.definition, info, lambda: 0, random.Random(), Codec())
        call = replay.advance().steps[1]
        outcome = StepOutcome(child=call.child, name="add", hash=call.hash, attempt=1, value="3")
        replay.accept(tail=(), commands=(), outcomes=(outcome,), next_seq=5, now_ms=0)
        assert replay.advance().end == Complete(value="3")
        seen = [weakref.ref(one) for one in (replay, replay._matcher, replay._loop)]
        del replay
        assert [one() for one in seen] == [None, None, None]
    finally:
        gc.enable()


def test_payload_limit() -> None:
    """An input or a result over the limit is refused by name of run and step, and leaves no trace."""

    async def code() -> str:
        with pytest.raises(PayloadTooLarge, match="input of step greet of run run-1"):
            _ = greet("x" * 100)
        return str(await greet("short")) * 100

    run = MemoryRun(workflow(code), codec=Codec(max_bytes=50))
    assert [call.child for call in run.moves.steps] == [0], "the refused call took no number"
    run.complete(0, "hello")
    assert isinstance(run.error, PayloadTooLarge) and run.error.limit == 50


def test_attempts_from_the_journal() -> None:
    """Attempt, failures and the next date come from the rows; interrupted attempts are no failures."""
    digest = input_hash("greet", '["a"]')

    def row(seq: int, kind: RowType, attempt: int, data: Any = None) -> Row:
        return Row(seq, kind, 0, attempt, "greet", digest, json.dumps(data))

    async def code() -> str:
        return await greet("a")

    failed = {"error": {}, "retry_at": 5, "interrupted": False}
    cut = {"error": {}, "retry_at": 9, "interrupted": True}
    table: list[tuple[list[Row], tuple[Any, ...]]] = [
        ([row(1, RowType.FIRST_ATTEMPT_FAILED, 1, failed)], (2, 1, 5, False, False)),
        (
            [row(1, RowType.FIRST_ATTEMPT_FAILED, 1, failed), row(4, RowType.ATTEMPT_FAILED, 2, failed)],
            (3, 2, 5, False, False),
        ),
        (
            [row(1, RowType.FIRST_ATTEMPT_FAILED, 1, failed), row(4, RowType.ATTEMPT_FAILED, 2, cut)],
            (3, 1, 9, False, True),
        ),
        ([row(1, RowType.STEP_STARTED, 1)], (1, 0, None, True, False)),
        (
            [row(1, RowType.STEP_STARTED, 1), row(3, RowType.OPEN_ATTEMPT_FAILED, 1, cut)],
            (2, 0, 9, False, True),
        ),
        (
            [
                row(1, RowType.STEP_STARTED, 1),
                row(3, RowType.OPEN_ATTEMPT_FAILED, 1, failed),
                row(4, RowType.ATTEMPT_STARTED, 2),
            ],
            (2, 1, 5, True, False),
        ),
        # rows of failures that lie far back were removed; the interrupted attempt 7 stays
        (
            [
                row(1, RowType.STEP_STARTED, 1),
                row(3, RowType.OPEN_ATTEMPT_FAILED, 1, failed),
                row(14, RowType.ATTEMPT_STARTED, 7),
                row(15, RowType.OPEN_ATTEMPT_FAILED, 7, cut),
                row(900, RowType.ATTEMPT_FAILED, 450, failed),
            ],
            (451, 449, 5, False, False),
        ),
    ]
    for rows, expected in table:
        (call,) = MemoryRun(workflow(code), rows=[Row(0, RowType.EXECUTION_STARTED), *rows]).moves.steps
        got = (call.attempt, call.failures, call.retry_at_ms, call.begun, call.interrupted)
        assert got == expected, rows
        assert call.args == ("a",)


def test_a_completed_step_needs_none_of_its_attempts() -> None:
    """Failed attempts before a completion are kept and change nothing: the recorded result is the answer."""
    digest = input_hash("greet", '["a"]')
    failed = json.dumps({"error": {}, "retry_at": 5, "interrupted": False})

    async def code() -> str:
        return await greet("a")

    first = Row(1, RowType.FIRST_ATTEMPT_FAILED, 0, 1, "greet", digest, failed)
    last = Row(4, RowType.LAST_ATTEMPT_COMPLETED, 0, 2, data='"hello"', ok=True)
    run = MemoryRun(workflow(code), rows=[Row(0, RowType.EXECUTION_STARTED), first, last])
    assert (run.value, run.moves.steps) == ("hello", ())


def test_messages_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """ctx.log is silent where the journal shows that the run was past that point, and only there."""

    async def code() -> None:
        ctx.log.warning("begin")
        await greet("a")
        ctx.log.warning("middle")
        await ctx.sleep(1)
        ctx.log.warning("end")

    run = MemoryRun(workflow(code))
    run.complete(0, "x")
    assert [record.message for record in caplog.records] == ["begin", "middle"]
    caplog.clear()
    run.rows.append(Row(run.next_seq, RowType.TIMER_FIRED, 1))
    assert isinstance(run.cold().end, Complete)
    assert [record.message for record in caplog.records] == ["end"]
    assert caplog.records[0].__dict__["run"] == "run-1"
    run.warm.evict()


def test_rows_count_logical_events() -> None:
    """next_seq counts the logical events that rows stand for."""
    run = MemoryRun(ship, 1)
    replay = run.replay()
    replay.load(
        [
            Row(0, RowType.EXECUTION_STARTED),
            Row(1, RowType.STEP_COMPLETED, 0),
            Row(4, RowType.TIMER_SCHEDULED, 1),
            Row(5, RowType.TIMER_FIRED, 1),
        ]
    )
    assert replay.next_seq == 6
    assert isinstance(run.end, Complete | Fail)
