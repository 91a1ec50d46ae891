"""Attempts of steps: what is executed, what came of it, and which attempt comes next.

Lives here: `Attempt`, and the outcomes that are reported. May not: executing one (step_runner.py),
when one may start (run_driver.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from pyengine import clock
from pyengine.definitions.current_run import StepToken
from pyengine.definitions.retry import NO_RETRY, Retry, policy_text, recorded_policy
from pyengine.protocol.commands import StepOutcome
from pyengine.replay.advance import StepCall

__all__ = ["Attempt", "next_attempt", "pauses_run", "policy_of", "start_outcome", "step_outcome"]


class Attempt(msgspec.Struct, eq=False):
    """One attempt of a step that is under way.

    Args:
        execution: number of its run.
        run_id: id of its run.
        call: which attempt.
        begun: the journal knows, or will know with the next turn, that it has begun.

    The others belong to the step runner:
        started_s: when the body began, by our clock; 0 while it waits for its turn.
        wanted: the outcome counts; False once the attempt is cancelled or left behind.
        timed_out: it was cancelled because its time was over.
        token: shows the body whether the outcome still counts. The body's context refers to it; if it were
            the attempt itself, which refers to the task, only the garbage collector would free both.
        task: executes it, unless a thread does.
        timer: ends it when its time is over.
    """

    execution: int
    run_id: str
    call: StepCall
    begun: bool = False
    started_s: float = 0.0
    wanted: bool = True
    timed_out: bool = False
    token: StepToken = msgspec.field(default_factory=StepToken)
    task: asyncio.Task[None] | None = None
    timer: clock.Timer | None = None


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
