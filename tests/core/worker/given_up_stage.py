"""Runs that are cancelled while the body of a step runs, and the events about it, for the table of phases and
events. No law stands here.
"""

from __future__ import annotations

import json

from pyengine import ctx
from pyengine.core.protocol.journal import RowType
from pyengine.core.rules import CHILDREN_RULES
from pyengine.core.worker import events as on
from pyengine.core.worker.effects import CancelAttempt, Effect, PostLater
from pyengine.core.worker.run_state import LeasedRun
from tests.core.worker.run_stage import Stage, app, one, poll_due


@app.workflow
async def cleaning() -> None:
    """A step, and another one once the run is cancelled."""
    try:
        await one(1)
    finally:
        async with ctx.shield():
            await one(2)


@app.workflow
async def ending() -> None:
    """A step, and nothing once the run is cancelled."""
    await one(1)


def live_cleaning(stage: Stage) -> LeasedRun:
    """Cancelled, and the body of the step that it gave up still runs."""
    return cancelled_in(stage, "cleaning")


def live_cancelled(stage: Stage) -> LeasedRun:
    """The same, without a clean-up."""
    return cancelled_in(stage, "ending")


def cancelled_in(stage: Stage, workflow: str) -> LeasedRun:
    """A run that is cancelled in its first step."""
    run = stage.claim(workflow, rules=CHILDREN_RULES)
    until = {"reason": None, "until": stage.now_ms + 10_000}
    stage.stored(run).append(RowType.CANCEL_REQUESTED, data=json.dumps(until))
    stage.bodies = list(run.phase.attempts.values())
    poll_due(stage, run)
    cancel, wait = stage.turn(run)
    assert isinstance(cancel, CancelAttempt) and isinstance(wait, PostLater) and wait.in_s == 5
    stage.wait_over = wait.event
    return run


def body_ended(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`BodyEnded` of the step that it gave up."""
    (attempt,) = stage.bodies
    return stage.post(on.BodyEnded(attempt))


def body_is_foreign(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`BodyEnded` of another run."""
    return stage.post(on.BodyEnded(stage.attempt(stage.claim("steps"), 0)))


def waited(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`WaitOver`."""
    assert isinstance(stage.wait_over, on.WaitOver)
    return stage.post(stage.wait_over)


def waited_before(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`WaitOver` of an earlier wait."""
    return stage.post(on.WaitOver(run, set()))
