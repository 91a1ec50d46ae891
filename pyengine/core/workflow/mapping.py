"""`ctx.map`: one call for each item, some at a time.

Lives here: `start_lanes`. May not: rows, child numbers. The theory: a lane is a task that takes the next item
as soon as its call is done. Lanes wait for calls, and the loop is deterministic, so a replay gives each lane
the same items. The result is a wait for all lanes (loop/several.py), so a map that is never awaited is
logged like a gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyengine.core.loop.several import Outcomes


def start_lanes(
    call: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    *,
    lanes: int,
    done: Callable[[int], object],
) -> tuple[tuple[asyncio.Task[None], ...], Outcomes]:
    """Start the lanes that make a call with each item; return them, and the outcomes in the items' order.

    Every call is made and ends, also if some fail. The outcomes are complete when all lanes have ended.

    Args:
        call: a step, a workflow, an async function.
        items: its arguments.
        lanes: how many calls are under way at a time.
        done: called with the number of calls that have ended, after each.
    """
    # of an item that no lane comes to, because somebody has cancelled the task of the lane
    outcomes: Outcomes = [(True, asyncio.CancelledError())] * len(items)
    numbered = iter(enumerate(items))
    ended = 0

    async def lane() -> None:
        nonlocal ended
        for number, item in numbered:
            try:
                outcomes[number] = False, await call(item)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                outcomes[number] = True, error
            except Exception as error:  # boundary to user code: it is the outcome of this item
                outcomes[number] = True, error
            ended += 1
            done(ended)

    return tuple([asyncio.create_task(lane()) for _ in range(min(lanes, len(items)))]), outcomes
