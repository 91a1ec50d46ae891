"""The parts of the deterministic loop: futures, tasks, handles, and its installation in a thread.

Lives here: the classes that ``event_loop.py`` instantiates, and the protocol of its timers. May not: any
order of callbacks, any rule of replay. The theory: tasks and futures differ from asyncio's by their hash
alone, so that all of asyncio works with them at the speed of its C code. asyncio finds the running loop, the
current task and the owner of an async generator through the thread, so a loop inside a loop must exchange
all three, and restore all three.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, NewType, Protocol, TypeAlias

from pyengine.core.loop.shield import Shield, current_shield, reaches, shield_in

TimerToken = NewType("TimerToken", int)
GeneratorHook: TypeAlias = Callable[[AsyncGenerator[Any, Any]], None]

_TASK_BELONGS_TO_THREAD: Final = sys.version_info >= (3, 14)
# since then a task group that fails while it is cancelled books the cancellation again, for the next await
_GROUPS_BOOK_AGAIN: Final = sys.version_info >= (3, 13)


class Timers(Protocol):
    """Makes durable timers for the loop; the replay machine implements it."""

    def schedule(self, delay_s: float) -> TimerToken:
        """Make a timer that fires delay_s seconds (finite, above 0) from now; return its child number.

        Raises:
            Evicted: the code is dead, although the loop is not closed yet.
        """

    def cancel(self, token: TimerToken) -> None:
        """Called when no code waits for the timer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhandledError:
    """An error that no code received, such as that of a task that was never awaited."""

    message: str
    error: BaseException | None


class DeterministicFuture(asyncio.Future[Any]):
    """A future that hashes by a counter, not by its address."""

    __slots__ = ("order",)
    order: int

    def __hash__(self) -> int:
        return self.order


class DeterministicTask(asyncio.Task[Any]):
    """A task that hashes by a counter, not by its address, and that shields defer cancellations of."""

    __slots__ = ("_deferred", "_initial_shield", "_raised", "goes_on", "order", "shield")
    order: int
    shield: Shield | None
    goes_on: bool  # code has given up waiting for it, as `ctx.first` does with those that lose
    _must_cancel: bool

    def __init__(self, coro: Any, order: int, **options: Any) -> None:
        self.order = order  # first: until Python 3.12 the constructor puts the task into a weak set
        self._initial_shield = self.shield = shield_in(options.get("context"))
        self._deferred: list[tuple[Shield | None, Any]] = []
        self._raised = 0
        self.goes_on = False
        super().__init__(coro, **options)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, deferred until it has left every shield that does not also contain the caller.

        Returns:
            False if it is done, or was made inside such a shield and so never leaves it.
        """
        if self.shield is not None and not self.done():
            source = current_shield()
            if not (reaches(source, self.shield) or self.get_loop().ignoring_shields):  # type: ignore[attr-defined]
                self._deferred.append((source, msg))
                return reaches(source, self._initial_shield)
        return super().cancel(msg)

    def remove_done_callback(self, fn: Any, /) -> int:
        """Remove a callback: code has waited for it, and gives up."""
        self.goes_on = True
        return super().remove_done_callback(fn)

    @property
    def has_deferred_cancel(self) -> bool:
        """Whether a shield defers a cancellation of it."""
        return bool(self._deferred)

    def deliver_deferred(self) -> None:
        """Deliver the deferred cancellations in spite of the shields."""
        deferred, self._deferred = self._deferred, []
        for _, msg in deferred:
            super().cancel(msg)

    def cancelling(self) -> int:
        """Return how many cancellations were asked for and not withdrawn, those deferred left out."""
        return super().cancelling() + self._raised

    def uncancel(self) -> int:
        """Withdraw one cancellation, possibly a deferred one."""
        if self._deferred and not self.cancelling():
            self._deferred.pop()
        if self._raised:
            self._raised -= 1
        else:
            super().uncancel()
        return self.cancelling()

    def raise_booked(self) -> None:
        """Forget that a cancellation is to be raised at the next await: the caller raises it now."""
        if self._must_cancel and _GROUPS_BOOK_AGAIN:
            while super().cancelling():
                super().uncancel()
                self._raised += 1

    def leave_shield(self, outer: Shield | None, *, cancelled: bool) -> bool:
        """Leave a shield for the one around it; true if a deferred cancellation is delivered by that.

        Args:
            outer: the shield around, if any.
            cancelled: the code leaves because it was cancelled: deferred cancellations are dropped.
        """
        self.shield = outer
        due = [msg for source, msg in self._deferred if reaches(source, outer)]
        self._deferred = [one for one in self._deferred if not reaches(one[0], outer)]
        if cancelled:
            return False
        for msg in due:
            super().cancel(msg)
        return bool(due)

    def __hash__(self) -> int:
        return self.order


def cancelled_now(*message: str) -> asyncio.CancelledError:
    """Return the error that a call of a run that is being cancelled raises in the current task."""
    task = asyncio.current_task()
    if isinstance(task, DeterministicTask):
        task.raise_booked()
    return asyncio.CancelledError(*message)


class Ready(asyncio.Handle):
    """A callback in the ready queue, without the bookkeeping for asyncio's debug mode."""

    __slots__ = ()
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        """Forget the callback, also when it is ready."""
        self._cancelled = True

    def __repr__(self) -> str:
        return f"<Ready {self._callback!r}{' cancelled' if self._cancelled else ''}>"


class Timer(asyncio.TimerHandle):
    """The handle of a timer; token is None while there is no durable timer behind it."""

    __slots__ = ("token",)
    token: TimerToken | None
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context


class Installation:
    """Makes a loop the thread's running loop, and restores the previous one on every exit.

    Args:
        loop: what asyncio.get_running_loop() returns inside.
        hooks: called when an async generator starts, and when one is freed before its end.

    Attributes:
        active: the loop is installed; asyncio's own check costs a system call for the process id.
    """

    __slots__ = ("_collecting", "_hooks", "_loop", "_outer", "_outer_hooks", "_outer_task", "active")

    def __init__(self, loop: asyncio.AbstractEventLoop, hooks: tuple[GeneratorHook, GeneratorHook]) -> None:
        self.active = False
        self._loop = loop
        self._hooks = hooks

    def __enter__(self) -> None:
        outer = asyncio._get_running_loop()
        if outer is self._loop:
            raise RuntimeError("this loop is running already")
        self._outer = outer
        self._outer_task = None  # before Python 3.14 current tasks are stored by loop: nothing to exchange
        if _TASK_BELONGS_TO_THREAD and outer is not None:
            self._outer_task = asyncio.current_task(outer)
        self._outer_hooks = sys.get_asyncgen_hooks()
        self._collecting = gc.isenabled()
        try:
            if self._outer_task is not None:
                asyncio.tasks._swap_current_task(outer, None)  # type: ignore[attr-defined]
            asyncio._set_running_loop(self._loop)
            sys.set_asyncgen_hooks(*self._hooks)
            gc.disable()  # finalizers of cycles would run at moments that no replay repeats
            self.active = True
        except BaseException:  # an interrupt between two of these lines
            self.__exit__()
            raise

    def __exit__(self, *raised: object) -> None:
        self.active = False
        asyncio._set_running_loop(self._outer)
        if self._outer_task is not None:
            asyncio.tasks._swap_current_task(self._outer, self._outer_task)  # type: ignore[attr-defined]
        sys.set_asyncgen_hooks(*self._outer_hooks)
        if self._collecting:
            gc.enable()


def close_coroutine(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], *, attempts: int) -> bool:
    """Close the coroutine of a task that will not run again; false if it swallows every exception.

    Args:
        loop: the running loop, which the task belongs to.
        task: not done.
        attempts: how often it is closed before it is left in memory for good.
    """
    coro: Any = task.get_coro()
    for _ in range(attempts):
        asyncio._enter_task(loop, task)  # outside a task asyncio's calls fail at once: an endless loop
        try:
            coro.close()
        except RuntimeError:
            continue  # it awaited although it was closed; if the error was its own, it is closed now
        except BaseException:  # boundary to user code, which is being evicted
            return True
        finally:
            asyncio._leave_task(loop, task)
        return True
    import ctypes

    # Python closes a coroutine that it frees, at the latest when the process ends and all calls fail at once.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))
    return False
