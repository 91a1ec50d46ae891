"""Shields: where a cancellation from outside has to wait.

What lives here: `Shield`, the scope that code stands in, `reaches`, which tells whether a cancellation gets
through, and `ShieldScope`, the context manager behind `ctx.shield`. What may not: tasks (futures.py),
rows, child numbers. The theory: shields nest, and who cancels stands in a shield as well, or in none: the
code that calls `cancel`, or the callback of a timeout or of a group, which runs in the context that it was
made in. A cancellation from inside the innermost shield of a task is that task's own business and gets
through; one from further out waits until the task has left every shield that lies between. A task begins
inside the shield that it was made in, and never leaves that one.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from types import TracebackType
from typing import Protocol, cast

__all__ = ["Shield", "ShieldScope", "current_shield", "reaches", "shield_in"]


class Shield:
    """One shield; `outer` is the one around it, if any."""

    __slots__ = ("outer",)

    def __init__(self, outer: Shield | None) -> None:
        self.outer = outer


_shield: ContextVar[Shield | None] = ContextVar("pyengine_shield", default=None)


def current_shield() -> Shield | None:
    """Return the innermost shield around the code that asks."""
    return _shield.get()


def shield_in(context: Context | None) -> Shield | None:
    """Return the innermost shield in a context; None means the current one."""
    return _shield.get() if context is None else context.get(_shield)


def reaches(source: Shield | None, target: Shield | None) -> bool:
    """Whether a cancellation that comes from inside `source` gets through to what stands in `target`."""
    while source is not None and source is not target:
        source = source.outer
    return source is target


class _Shielded(Protocol):
    """What a shield needs of the task that enters it."""

    shield: Shield | None
    _must_cancel: bool

    def leave_shield(self, outer: Shield | None, *, cancelled: bool) -> bool: ...


class ShieldScope:
    """Keeps cancellations away from the code inside; they are raised when it leaves the outermost shield.

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
            # what came before the shield does not wait for its end
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
        due = False
        try:
            if self._timeout is not None:
                await self._timeout.__aexit__(kind, error, trace)
        finally:
            due = self._leave(cancelled=isinstance(error, asyncio.CancelledError))
        if due and error is None:
            # raised here and not at some later await
            await asyncio.sleep(0)

    def _leave(self, *, cancelled: bool) -> bool:
        outer = self._shield.outer
        # code that is thrown away may be closed in a context that is not its own
        if _shield.get() is self._shield:
            _shield.set(outer)
        return self._task.leave_shield(outer, cancelled=cancelled)
