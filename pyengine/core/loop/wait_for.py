"""`asyncio.wait_for` in one order on every Python, and `asyncio.wait` for calls.

Lives here: `wait_in_place`, whose code Python 3.11 runs in place of its own, and `wait_for_calls`. May not:
other constructs of asyncio. The theory: since 3.12 `wait_for` awaits in place, inside `asyncio.timeout`.
Until 3.11 it makes a task, so calls beside it and cancellations come in another order, and a run that sleeps
could not change its Python. `wait` refuses coroutines; a call is one, and a future, which `ensure_future`
returns as it is. Modules may have imported the functions before this one is there, so the functions stay and
only their code is replaced; outside of such a run they do what they did.
"""

from __future__ import annotations

import asyncio
import sys
from types import FunctionType
from typing import Any, cast


async def wait_in_place(fut: Any, timeout: Any) -> Any:
    """Do as `wait_for` of 3.12, if the running loop asks for it."""
    import asyncio  # the code runs with the names of asyncio around it, not with those of this module

    loop: Any = asyncio._get_running_loop()
    if not getattr(loop, "waits_in_place", False) or (timeout is not None and timeout <= 0):
        return await asyncio.tasks._wait_for_in_a_task(fut, timeout)  # type: ignore[attr-defined]
    async with asyncio.timeout(timeout):
        return await fut


async def wait_for_calls(fs: Any, *, timeout: Any = None, return_when: Any = "ALL_COMPLETED") -> Any:
    """Do as `wait` does with futures, for calls too, if the running loop asks for it."""
    import asyncio  # as above

    loop: Any = asyncio._get_running_loop()
    own: Any = asyncio.tasks._wait_for_futures  # type: ignore[attr-defined]
    if not getattr(loop, "waits_in_place", False) or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        return await own(fs, timeout=timeout, return_when=return_when)
    members = list(fs)
    has_calls = any(asyncio.iscoroutine(one) for one in members) and all(map(asyncio.isfuture, members))
    if not has_calls or return_when not in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"):
        return await own(members, timeout=timeout, return_when=return_when)
    return await asyncio.tasks._wait(set(members), timeout, return_when, loop)  # type: ignore[attr-defined]


def replace_code(name: str, kept: str, code: FunctionType) -> None:
    """Let a function of asyncio run other code, unless that was done, or it is not asyncio's own any more.

    Args:
        name: its name.
        kept: the name by which its own code is called from then on.
        code: has the code.
    """
    names = vars(asyncio.tasks)
    function: Any = names[name]
    its_own = getattr(function, "__globals__", None) is names and function.__closure__ is None
    if its_own and kept not in names:
        names[kept] = own = FunctionType(function.__code__, names, name)
        own.__kwdefaults__ = function.__kwdefaults__
        function.__code__ = code.__code__


if sys.version_info < (3, 12):
    replace_code("wait_for", "_wait_for_in_a_task", cast("FunctionType", wait_in_place))
if hasattr(asyncio.tasks, "_wait"):
    replace_code("wait", "_wait_for_futures", cast("FunctionType", wait_for_calls))
