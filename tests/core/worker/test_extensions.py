"""Law: a worker without the features of an app says so to code that needs one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyengine.core.protocol.commands import Halt
from pyengine.core.worker.effects import Execute
from pyengine.core.worker.events import Event
from pyengine.core.worker.extensions import Extensions, WorkerResources
from pyengine.core.worker.run_state import Live
from pyengine.errors import InvalidRequest
from tests.core.worker.run_stage import Stage


def resources(posted: list[Event]) -> WorkerResources:
    """Parts of a worker, of which only the events are looked at."""
    nothing: Any = None
    return WorkerResources(nothing, "w", nothing, nothing, posted.append, nothing, nothing)


def test_a_transaction_halts_its_run() -> None:
    """It is not begun, and a worker that executes transactions goes on with the run."""
    stage = Stage()
    posted: list[Event] = []
    run = stage.claim("paying")
    (effect,) = stage.turn(run)
    assert isinstance(effect, Execute)
    Extensions().requests(resources(posted)).execute(effect)
    (event,) = posted
    stage.post(event)
    assert isinstance(run.phase, Live) and isinstance(run.phase.end, Halt)
    assert "this worker executes no transactions" in run.phase.end.problem


def test_a_step_in_sql_is_refused() -> None:
    """That is the error of the step."""
    stage = Stage()
    run = stage.claim("steps")
    with pytest.raises(InvalidRequest, match="in SQL, which this worker does not execute"):
        asyncio.run(Extensions().steps_in_sql(resources([])).run(run, stage.attempt(run, 0)))
