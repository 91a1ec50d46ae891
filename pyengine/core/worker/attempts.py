"""Attempts of steps: what is executed, what came of it, and which attempt comes next.

Lives here: `Attempt`, and the outcomes that are reported; `GivenUpSteps`, the bodies that still run though
nobody wants their outcomes; the ending of a run that is set aside; `StepProgress`, what steps show while they
run. May not: executing one (step_runner.py), when one may start (run_driver.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from pyengine.core.definitions.current_run import StepInfo, StepToken
from pyengine.core.definitions.retry import NO_RETRY, Retry, policy_text, recorded_policy
from pyengine.core.process import clock
from pyengine.core.protocol.commands import Halt, StepOutcome
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.replay.advance import StepCall
from pyengine.core.rules import CHILDREN_RULES
from pyengine.core.values.codec import Codec

PATIENCE_S = 30.0
"""How long a run waits for bodies if nobody cancels it, in seconds: the default grace of a cancellation."""

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
        left_behind: it has failed because its time was over, and its body still runs.
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
    left_behind: bool = False
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


def halt(kind: str, message: str) -> Halt:
    """Return the ending of a run that cannot go on."""
    return Halt(problem=msgspec.json.encode({"type": kind, "message": message}).decode())


def pause(failures: Collection[StepOutcome]) -> Halt:
    """Return the ending of a run that waits until somebody resumes it, for these last failures of steps."""
    first, *others = failures
    error = msgspec.json.decode(first.error or "{}", type=_Error)
    words = f"step {first.name} failed in attempt {first.attempt}: {error.type}: {error.message}"
    if others:
        words += f"; so did {len(others)} more"
    return halt("Paused", f"{words}; durable.resume(id) tries again")


class _Error(msgspec.Struct):
    """The part of a recorded error that is shown."""

    type: str = "error"
    message: str = ""


def step_outcome(call: StepCall, **found: Any) -> StepOutcome:
    """Return the outcome of an attempt; `found` is the rest of its fields."""
    return StepOutcome(child=call.child, name=call.name, hash=call.hash, attempt=call.attempt, **found)


def start_outcome(call: StepCall) -> StepOutcome:
    """Return what records that an attempt has begun."""
    retry = policy_text(policy_of(call)) if call.attempt == 1 else None
    return step_outcome(call, begun=True, param=call.param, retry=retry)


class GivenUpSteps:
    """The bodies of steps that runs gave up while they ran, of runs that wait for them when they clean up.

    An async body ends a while after it was cancelled, and a thread ends when it likes. Until then whatever
    undoes their work must not begin, and a run must not say that it was cancelled (decisions/0128). The wait
    is bounded, because the clean-up needs its share of the grace too.

    Attributes:
        bodies: of each run, by execution; no entry is empty.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, set[Attempt]] = {}

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Record attempts whose bodies may still run; each is removed once it has ended."""
        for attempt in attempts:
            if (attempt.rules or 0) >= CHILDREN_RULES:
                self.bodies.setdefault(attempt.execution, set()).add(attempt)

    def wait_s(self, execution: int, until_ms: float | None, now_ms: int) -> float | None:
        """Return how long a run must wait, in seconds: half of what is left of its grace.

        Args:
            execution: number of the run.
            until_ms: the end of its grace, inf if nothing bounds it; None if the run does not clean up.
            now_ms: the instant now.
        """
        if execution not in self.bodies or until_ms is None:
            return None
        return PATIENCE_S if until_ms == inf else max(0.0, (until_ms - now_ms) / 2000)

    def remove(self, attempt: Attempt) -> bool:
        """A body has ended; return whether it was the last one of its run."""
        bodies = self.bodies.get(attempt.execution, set())
        bodies.discard(attempt)
        return not bodies and self.bodies.pop(attempt.execution, None) is not None

    def forget(self, execution: int) -> list[str]:
        """Wait no longer for the bodies of a run; return the names of their steps."""
        return sorted(attempt.call.name for attempt in self.bodies.pop(execution, ()))


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
