"""What a replay costs, in calls of Python functions of ours: every run and every call of a run pays it.

Counts, not times: they are the same on every machine, and a later Python makes fewer. A bound that must rise
needs a law as its reason. They were 50, 360 and 3,269 before the laws of decisions/0139.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.registry import Workflow
from pyengine.core.protocol.commands import Complete, Suspend
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from tests.core.replay.memory_run import step, workflow


@step
async def one(k: int) -> int:
    """A step; its body never runs here."""
    return k


@workflow
async def nop(k: int) -> int:
    """No call."""
    return k


@workflow
async def ten(k: int) -> int:
    """Ten steps, one after the other."""
    for _ in range(10):
        k = await one(k)
    return k


@workflow
async def fan(k: int) -> int:
    """A hundred child runs at once."""
    return sum(await asyncio.gather(*(nop(k) for _ in range(100))))


def calls_of(action: Callable[[], object]) -> int:
    """The calls of functions of the package while it runs."""
    count = 0

    def seen(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/pyengine/core/" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def life(code: Workflow[..., Any]) -> None:
    """A run from its beginning: each call that it makes has its result in the next row."""
    info = RunInfo(id="r", execution=1, version=1, workflow=code.definition.name, param="[1]")
    replay = Replay(code.definition, info, lambda: 0, random.Random(1), Codec())
    seq = 1
    while not isinstance((advance := replay.advance()).end, Complete):
        steps = [
            Row(
                seq=seq,
                type=RowType.STEP_COMPLETED,
                child=call.child,
                name=call.name,
                hash=call.hash,
                attempt=call.attempt,
                data="1",
            )
            for call in advance.steps
        ]
        assert steps or isinstance(advance.end, Suspend), advance
        ends = [
            Row(seq=seq + n, type=RowType.CHILD_SETTLED, child=command.child, data="1", ok=True)
            for n, command in enumerate(advance.commands)
        ]
        replay.load([*steps, *ends])
        seq += len(steps) + len(ends)


@pytest.mark.parametrize(("code", "most"), [(nop, 55), (ten, 375), (fan, 3_385)])
def test_a_run_calls_no_more_functions_than_it_did(code: Workflow[..., Any], most: int) -> None:
    """The machine drives a no-op, ten steps and a hundred child runs by a bounded number of calls."""
    life(code)  # what is made once for a workflow is made
    assert calls_of(lambda: life(code)) <= most
