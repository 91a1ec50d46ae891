"""Shields: scopes that defer cancellations from outside.

Lives here: `Shield`, one such scope; `reaches`, whether a cancellation gets through; `ShieldScope`, the
context manager behind `ctx.shield`. May not: tasks (futures.py), rows, child numbers. The theory: shields
nest. The canceller has an innermost shield too, or none: it is the code that calls `cancel`, or the callback
of a timeout or task group, which runs in the context that it was made in. A cancellation from inside the
innermost shield of a task gets through; one from further out is deferred until the task has left every shield
in between. A task begins inside the shield that it was made in, and never leaves that one.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from types import TracebackType
from typing import Protocol, cast


class Shield:
    """One shield; `outer` is the one around it, if any."""

    __slots__ = ("outer",)

    def __init__(self, outer: Shield | None) -> None:
        self.outer = outer


_shield: ContextVar[Shield | None] = ContextVar("pyengine_shield", default=None)


def current_shield() -> Shield | None:
    """Return the innermost shield around the caller."""
    return _shield.get()


def shield_in(context: Context | None) -> Shield | None:
    """Return the innermost shield in a context; None means the current one."""
    return _shield.get() if context is None else context.get(_shield)


def reaches(source: Shield | None, target: Shield | None) -> bool:
    """Whether a cancellation made inside `source` gets through to code inside `target`."""
    while source is not None and source is not target:
        source = source.outer
    return source is target


class _Shielded(Protocol):
    """A task that can enter a shield."""

    shield: Shield | None
    _must_cancel: bool

    def leave_shield(self, outer: Shield | None, *, cancelled: bool) -> bool: ...


class ShieldScope:
    """Defers cancellations of the code inside; they are raised when it leaves the outermost shield.

    Args:
        timeout_s: TimeoutError is raised inside after so many seconds; None means never.
    """

    __slots__ = ("_entered", "_shield", "_task", "_timeout", "_timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._entered = False

    async def __aenter__(self) -> None:
        if self._entered:
            raise RuntimeError("a shield is entered once; ask ctx.shield() for another one")
        self._entered = True
        self._task = task = cast("_Shielded", asyncio.current_task())
        if task._must_cancel:
            # a cancellation made before the shield is not deferred by it
            await asyncio.sleep(0)
        task.shield = self._shield = Shield(task.shield)
        _shield.set(self._shield)
        self._timeout = None
        if self._timeout_s is not None:
            try:
                self._timeout = await asyncio.timeout(self._timeout_s).__aenter__()
            except BaseException:
                self._leave(cancelled=False)
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deferred = False
        try:
            if self._timeout is not None:
                await self._timeout.__aexit__(kind, error, trace)
        finally:
            deferred = self._leave(cancelled=kind is not None and issubclass(kind, asyncio.CancelledError))
        if deferred and error is None:
            # raise it here, not at some later await
            await asyncio.sleep(0)

    def _leave(self, *, cancelled: bool) -> bool:
        outer = self._shield.outer
        # evicted code may be closed in another context than its own
        if _shield.get() is self._shield:
            _shield.set(outer)
        return self._task.leave_shield(outer, cancelled=cancelled)
