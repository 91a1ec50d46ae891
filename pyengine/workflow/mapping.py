"""`ctx.map`: one call for each item, some at a time.

Lives here: `map_calls`. May not: rows, child numbers. The theory: a lane is a task that takes the next item
as soon as its call is done. Lanes wait for calls, and the loop is deterministic, so a replay gives each lane
the same items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

__all__ = ["map_calls"]


async def map_calls(
    call: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    *,
    gather: Callable[[tuple[Awaitable[Any], ...]], Awaitable[list[Any]]],
    lanes: int,
    return_exceptions: bool,
    done: Callable[[int], object],
) -> list[Any]:
    """Call `call` with each item and return the results in the order of the items.

    Every call is made and ends, also if some fail; then the first error in the order of the items is raised.

    Args:
        call: a step, a workflow, an async function.
        items: its arguments.
        gather: waits for all of several awaitables.
        lanes: how many calls are under way at a time.
        return_exceptions: errors are returned in the place of results.
        done: called with the number of calls that have ended, after each.
    """
    outcomes: list[tuple[bool, Any]] = [(False, None)] * len(items)
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

    await gather(tuple([asyncio.create_task(lane()) for _ in range(min(lanes, len(items)))]))
    errors = [] if return_exceptions else [one for failed, one in outcomes if failed]
    if errors:
        raise errors[0]
    return [one for _, one in outcomes]
