"""anyio on the deterministic loop.

Lives here: `adapt_anyio`, which replaces the class of its scopes by one that is orderly here, and refuses its
threads. May not: importing anyio where nobody did. The theory: anyio keeps scopes in sets, so a scope needs a
hash that is the same at every replay, as tasks have. And it repeats a cancellation with `call_soon` until the
task has left the scope. Where a shield defers that, only the next row of the journal can change anything: the
callback waits until something else has run.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from functools import cache
from importlib import import_module
from typing import Any, cast

from pyengine.core.loop.restrictions import STEP, refuse

_MODULE = "anyio._backends._asyncio"


def adapt_anyio(deterministic: type) -> None:
    """Make the scopes of anyio orderly, once; each loop asks for it if this process has imported anyio.

    Args:
        deterministic: the class of the loops on which they are.
    """
    _adapt(deterministic)


@cache
def _adapt(deterministic: type) -> None:
    module: Any = import_module(_MODULE)
    backend = getattr(module, "AsyncIOBackend", None)
    deliver = inspect.signature(module.CancelScope._deliver_cancellation)
    if backend is None or "origin" not in deliver.parameters:
        return  # a version before 4.1 has other scopes, which stay as they are
    module.CancelScope = _orderly(module.CancelScope, deterministic)
    in_thread = backend.run_sync_in_worker_thread

    async def run_sync_in_worker_thread(*args: Any, **options: Any) -> Any:
        if isinstance(loop := asyncio.get_running_loop(), deterministic):
            refuse(loop.run_id, "anyio.to_thread.run_sync()", STEP)  # type: ignore[attr-defined]
        return await in_thread(*args, **options)

    backend.run_sync_in_worker_thread = staticmethod(run_sync_in_worker_thread)


def _orderly(base: Any, deterministic: type) -> Any:
    def running() -> Any:
        loop = asyncio._get_running_loop()
        return loop if isinstance(loop, deterministic) else None

    class CancelScope(base):  # type: ignore[misc]
        __slots__ = ("_order",)

        def __init__(self, deadline: float = math.inf, shield: bool = False) -> None:
            super().__init__(deadline, shield)
            loop = running()
            self._order = object.__hash__(self) if loop is None else loop.next_scope()

        def __hash__(self) -> int:
            return cast("int", self._order)

        def _deliver_cancellation(self, origin: Any) -> bool:
            retries: bool = super()._deliver_cancellation(origin)
            if retries and origin is self and (loop := running()) is not None:
                loop.park(self._cancel_handle)
            return retries

    return CancelScope
