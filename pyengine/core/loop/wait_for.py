"""`asyncio.wait_for` in one order on every Python.

Lives here: `wait_in_place`, whose code Python 3.11 runs in place of its own. May not: other constructs of
asyncio. The theory: since 3.12 `wait_for` awaits in place, inside `asyncio.timeout`. Until 3.11 it makes a
task, so calls beside it and cancellations come in another order, and a run that sleeps could not change its
Python. Modules may have imported the function before this one is there, so the function stays and only its
code is replaced; outside of such a run it does what it did.
"""

from __future__ import annotations

import asyncio
import sys
from types import FunctionType
from typing import Any


async def wait_in_place(fut: Any, timeout: Any) -> Any:
    """Do as `wait_for` of 3.12, if the running loop asks for it."""
    import asyncio  # the code runs with the names of asyncio around it, not with those of this module

    loop: Any = asyncio._get_running_loop()
    if not getattr(loop, "waits_in_place", False) or (timeout is not None and timeout <= 0):
        return await asyncio.tasks._wait_for_in_a_task(fut, timeout)  # type: ignore[attr-defined]
    async with asyncio.timeout(timeout):
        return await fut


def replace_code() -> None:
    """Let `wait_for` run the code above, unless that was done, or it is not asyncio's own any more."""
    function: Any = asyncio.tasks.wait_for
    names = vars(asyncio.tasks)
    its_own = getattr(function, "__globals__", None) is names and function.__closure__ is None
    if its_own and "_wait_for_in_a_task" not in names:
        names["_wait_for_in_a_task"] = FunctionType(function.__code__, names, "wait_for")
        function.__code__ = wait_in_place.__code__


if sys.version_info < (3, 12):
    replace_code()
