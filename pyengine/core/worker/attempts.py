"""Attempts of steps: what is executed, what came of it, and which attempt comes next.

Lives here: `Attempt`, and the outcomes that are reported; `StepProgress`, what steps show while they run. May
not: executing one (step_runner.py), when one may start (run_driver.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from pyengine.core.definitions.current_run import StepInfo, StepToken
from pyengine.core.definitions.retry import NO_RETRY, Retry, policy_text, recorded_policy
from pyengine.core.process import clock
from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.replay.advance import StepCall
from pyengine.core.values.codec import Codec

_PROGRESS_PAUSE_S = 0.1


class Attempt(msgspec.Struct, eq=False):
    """One attempt of a step that is under way.

    Args:
        execution: number of its run.
        run_id: id of its run.
        call: which attempt.
        begun: the journal knows, or will know with the next turn, that it has begun.
        rules: those of its run.
        exact: whether values must come back as what they are, and not only equal, by those rules.

    The others belong to the step runner:
        started_s: when the body began, by our clock; 0 while it waits for its turn.
        wanted: the outcome counts; False once the attempt is cancelled or left behind.
        timed_out: it was cancelled because its time was over.
        returned_s: when the body returned, by our clock, 0 before: writing its outcome is not on its time.
        token: shows the body whether the outcome still counts. The body's context refers to it; if it were
            the attempt itself, which refers to the task, only the garbage collector would free both.
        task: executes it, unless a thread does.
        timer: ends it when its time is over.
        asks_until_s: until when a body in a thread, once it is cancelled, may begin to ask for that.
        unawaited: what its function returned in a thread, to be awaited by a task.
    """

    execution: int
    run_id: str
    call: StepCall
    begun: bool = False
    rules: int | None = None
    exact: bool = True
    started_s: float = 0.0
    wanted: bool = True
    timed_out: bool = False
    returned_s: float = 0.0
    token: StepToken = msgspec.field(default_factory=StepToken)
    task: asyncio.Task[None] | None = None
    timer: clock.Timer | None = None
    asks_until_s: float = 0.0
    unawaited: Awaitable[Any] | None = None

    def drop(self) -> None:
        """Close what nobody awaits any more; else Python warns of it."""
        if inspect.iscoroutine(self.unawaited):
            self.unawaited.close()


def next_attempt(call: StepCall) -> StepCall:
    """Return the attempt that follows one that failed."""
    return replace(
        call,
        attempt=call.attempt + 1,
        failures=call.failures + 1,
        begun=False,
        interrupted=False,
        retry_at_ms=None,
    )


def policy_of(call: StepCall) -> Retry:
    """Return the policy that governs a step: the recorded one, if any; else that of the code."""
    if call.recorded_retry is None:
        return call.step.retry
    return recorded_policy(call.recorded_retry) if call.recorded_retry else NO_RETRY


def pauses_run(call: StepCall, outcome: StepOutcome) -> bool:
    """Whether an attempt was the last one before its run is set aside."""
    return outcome.retry_in_ms is not None and policy_of(call).pauses(call.failures + 1)


def step_outcome(call: StepCall, **found: Any) -> StepOutcome:
    """Return the outcome of an attempt; `found` is the rest of its fields."""
    return StepOutcome(child=call.child, name=call.name, hash=call.hash, attempt=call.attempt, **found)


def start_outcome(call: StepCall) -> StepOutcome:
    """Return what records that an attempt has begun."""
    retry = policy_text(policy_of(call)) if call.attempt == 1 else None
    return step_outcome(call, begun=True, param=call.param, retry=retry)


class StepProgress:
    """Collects what steps set for those who watch their runs. A step may do that in a loop, in any thread, so
    it is posted a moment later, or when an attempt ends.

    Args:
        loop: the worker's loop.
        codec: writes values.
        post: takes run, child number, attempt and what was collected.

    Attributes:
        collected: what is to be posted, by run, child number and attempt.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: Codec,
        post: Callable[[int, int, int, ProgressReport], None],
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._post = post
        self._lock = threading.Lock()
        self.collected: dict[tuple[int, int, int], ProgressReport] = {}
        self._scheduled = False

    def set_progress(self, step: StepInfo, done: float, total: float | None, note: str | None) -> None:
        """Set the progress of the run of a step."""
        self._add(step, ProgressReport(seq=0, done=done, total=total, note=note))

    def set_value(self, step: StepInfo, name: str, value: Any) -> None:
        """Set a named value of the run of a step.

        Raises:
            EncodeError: it cannot be written as JSON.
            PayloadTooLarge: it is too large.
        """
        text = self._codec.write_only(value, f"the value {name} of run {step.run_id}", exact=step.exact)
        self._add(step, ProgressReport(named={name: (step.execution, 0, text)}))

    def flush(self) -> None:
        """Post what was collected; called in the loop's thread, before an attempt ends."""
        with self._lock:
            collected, self.collected = self.collected, {}
        for (execution, child, attempt), report in collected.items():
            self._post(execution, child, attempt, report)

    def _add(self, step: StepInfo, report: ProgressReport) -> None:
        if step.cancelled:
            return
        key = step.execution, step.child, step.attempt
        with self._lock:
            self.collected[key] = report.after(self.collected.get(key))
            scheduled, self._scheduled = self._scheduled, True
        if not scheduled:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(clock.call_later, _PROGRESS_PAUSE_S, self._flush_soon)

    def _flush_soon(self) -> None:
        with self._lock:
            self._scheduled = False
        self.flush()
