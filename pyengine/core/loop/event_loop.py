"""The deterministic event loop that workflow code runs on.

Lives here: the loop, and the eviction of its coroutines. May not: journal rows, child numbers, steps
(``replay/machine.py`` drives this loop), the database, threads, clocks (except to end a loop that never
waits); the methods that the loop refuses (``restrictions.py``).

The theory. A replay repeats a run if the same completions, applied one at a time in the same order, wake
the same callbacks in the same order. So ready callbacks run first in, first out, until none is left. Time is
a number that only the replay machine advances. A timer is a durable timer, made and cancelled through
``Timers``. Tasks and futures hash by a counter, because asyncio stores them in sets. The worker's own loop
continues around this one: while callbacks run, this loop takes its place (``futures.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple

import pyengine.core.loop.wait_for  # noqa: F401 - it replaces the code of asyncio.wait_for on 3.11
from pyengine.core.loop import restrictions
from pyengine.core.loop.anyio_scopes import adapt_anyio
from pyengine.core.loop.futures import (
    DeterministicFuture,
    DeterministicTask,
    Installation,
    Ready,
    Timer,
    Timers,
    TimerToken,
    UnhandledError,
    close_coroutine,
)
from pyengine.core.loop.generators import Generators
from pyengine.core.loop.shield import current_shield, reaches, shield_in
from pyengine.errors import Evicted, ForbiddenInWorkflow

loop_version: Final = "1"  # part of the code digest: raise it when the order of callbacks changes

_Ts = TypeVarTuple("_Ts")

_CALLBACKS_MAX: Final = 1_000_000  # in one advance; more is a loop around sleep(0)
_STORM_S: Final = 10.0  # of processor time, likewise, for slower callbacks; a busy machine is no run's fault
_STORM_CHECKED: Final = 10_000  # callbacks between two looks at the clock
_UNHANDLED_MAX: Final = 100
_UNWIND_ROUNDS: Final = 32  # awaits that the finally blocks of one evicted task may go through
_DEAD_CALLS_MAX: Final = 64  # dead calls that raise Evicted at once; later ones block
_PRUNE_MIN: Final = 16


if TYPE_CHECKING:  # for the checker nothing is abstract: @refusing sets what the class below leaves out
    _EventLoop = asyncio.BaseEventLoop
else:
    _EventLoop = asyncio.AbstractEventLoop


@restrictions.refusing
class DeterministicLoop(_EventLoop):
    """An event loop for one run, advanced by the replay machine.

    Args:
        timers: makes and cancels durable timers.
        run_id: id of the run; salts the hashes and stands in messages. The same at every replay.
        waits_in_place: `asyncio.wait_for` does on 3.11 as on later Pythons (wait_for.py, which asks for it).

    Attributes:
        installed: a context in which this loop is the running one; await nothing in it.
        ready: callbacks that are to run, first in, first out; none, and nothing pending outside, means stuck.
        generators: its async generators; None if none has begun.
    """

    def __init__(self, timers: Timers, run_id: str, *, waits_in_place: bool = True) -> None:
        self.run_id = run_id
        self.waits_in_place = waits_in_place
        self.closing = False  # true from eviction on: every durable call and log line is dead
        self.ignoring_shields = False  # while true no shield defers a cancellation
        self.unhandled: list[UnhandledError] = []
        self.installed = Installation(self, (self._track_generator, self._finish_generator))
        self._durable = timers
        self.ready: deque[Ready | Timer] = deque()
        self._parked: list[Ready | Timer] = []  # callbacks that run only after others
        self._timers: dict[TimerToken, Timer] = {}
        self._tasks: list[DeterministicTask] = []  # strong: asyncio alone lets a waiting task be collected
        self._prune_at = _PRUNE_MIN
        self.generators: Generators | None = None
        self._time_s = 0.0
        self._dead_calls = 0
        self._draining = self._closed = False
        # The salt stands above the counters: small sets iterate in order of creation, and the tasks of many
        # runs do not collide in asyncio's weak set of all tasks.
        salt = int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=5).digest(), "big")
        self._first_order = self._order = self._scope_order = salt << 20
        self._call_order = self._order + (1 << 19)
        if "anyio" in sys.modules:
            adapt_anyio(type(self))

    # Driven by the replay machine

    def run_until_idle(self) -> None:
        """Run ready callbacks, first in, first out, until none is left.

        Raises:
            ForbiddenInWorkflow: the workflow loops without ever waiting.
            KeyboardInterrupt, SystemExit: raised by workflow code; ready callbacks stay ready.
        """
        if not (self.ready or self._draining):
            return
        if self.installed.active:
            self._drain(_CALLBACKS_MAX)
        else:
            with self.installed:
                self._drain(_CALLBACKS_MAX)

    @property
    def pending_timers(self) -> tuple[TimerToken, ...]:
        """Durable timers that code waits for, in the order in which they were made."""
        return tuple(self._timers)

    def limits_of_current_task(self) -> list[Timer]:
        """Return the timers of `asyncio.timeout`, and of anyio, that would cancel the code that runs now."""
        task, shield = asyncio.current_task(), current_shield()
        limits = []
        for timer in self._timers.values():
            owner = getattr(timer._callback, "__self__", None)
            cancelled = getattr(owner, "_task", None) or getattr(owner, "_host_task", None)
            if cancelled is task and reaches(shield_in(timer._context), shield):
                limits.append(timer)
        return limits

    @property
    def pending_tasks(self) -> tuple[DeterministicTask, ...]:
        """Tasks that are not done, in the order in which they were made."""
        return tuple(task for task in self._tasks if not task.done())

    @property
    def other_tasks(self) -> tuple[DeterministicTask, ...]:
        """Tasks that are not done, if there was one beside the first: asked at the end of each run."""
        return self.pending_tasks if self._tasks[1:] else ()

    def advance_to(self, time_s: float) -> None:
        """Move virtual time to time_s seconds after the start, never back."""
        self._time_s = max(self._time_s, time_s)

    def fire(self, token: TimerToken) -> bool:
        """Make the callback of a durable timer ready; false if no code waits for it any more."""
        timer = self._timers.pop(token, None)
        if timer is not None:
            self.ready.append(timer)
        return timer is not None

    def new_future(self) -> DeterministicFuture:
        """Return a future for a durable call; its counter is not that of asyncio and workflow code."""
        future = DeterministicFuture(loop=self)
        future.order = self._call_order = self._call_order + 1
        return future

    def dead_call(self) -> DeterministicFuture:
        """Return the future that a durable call awaits while closing: it raises Evicted.

        Later ones block instead, which stops a ``while True`` around ``except BaseException``.
        """
        future = self.new_future()
        try:
            self.raise_evicted()
        except Evicted as error:
            future.set_exception(error)
        return future

    def raise_evicted(self) -> None:
        """Raise Evicted for a dead call that cannot wait; later ones return, so that loops reach an await."""
        self._dead_calls += 1
        if self._dead_calls <= _DEAD_CALLS_MAX:
            raise Evicted

    @property
    def has_only_main_task(self) -> bool:
        """Whether only the main task is left: no other task, callback, timer or generator holds user code."""
        return not (self.ready or self.generators or self._timers or self._tasks[1:] or self.pending_tasks)

    def evict(self) -> None:
        """Evict the coroutines of this run and close the loop.

        Evicted is raised in each task while ``closing`` is set, so that finally blocks run. Code that
        swallows it, waits or starts tasks gets it again, a bounded number of times.

        Raises:
            KeyboardInterrupt, SystemExit: raised by workflow code meanwhile; every coroutine is evicted.
        """
        if self._closed:
            return
        if self._draining:
            raise RuntimeError(f"the loop of run {self.run_id!r} cannot be closed from inside")
        self._report_unread()  # later ones are caused by the eviction
        self.closing = self.ignoring_shields = True
        self._parked.clear()
        try:
            if self.is_running():
                self._unwind()
            elif self._tasks or self.ready or self.generators:
                with self.installed:
                    self._unwind()
        finally:
            self._closed = True
            self.ready.clear()
            self._timers.clear()
            self._tasks.clear()
            # without references back to the run it is freed at once, not by the garbage collector
            del self.installed
            del self._durable

    close = evict

    # Called by asyncio and workflow code

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run callback after all callbacks that are ready now; dropped once the loop is closed."""
        handle = Ready(callback, args, copy_context() if context is None else context)
        if not self._closed:
            self.ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run callback when virtual time reaches when; a durable timer, unless that moment has come."""
        return self._set_timer(when - self._time_s, Timer(when, callback, args, self, context))

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run callback after delay seconds of virtual time; a durable timer, unless delay is 0 or less."""
        return self._set_timer(delay, Timer(self._time_s + delay, callback, args, self, context))

    def _set_timer(self, delay_s: float, timer: Timer) -> Timer:
        if math.isnan(delay_s):
            raise ValueError("a delay must be a number of seconds, not NaN")
        timer.token = None
        delay_s = round(delay_s, 6)  # in floats (t + d) - t is not d
        if self._closed or delay_s == math.inf:
            return timer
        if delay_s <= 0:
            self.ready.append(timer)
        elif not self.closing:
            try:
                timer.token = self._durable.schedule(delay_s)
            except Evicted:
                self.raise_evicted()
            else:
                self._timers[timer.token] = timer
        return timer

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if self._timers.pop(handle.token, None) is not None and not self.closing:
            self._durable.cancel(handle.token)

    def create_future(self) -> DeterministicFuture:
        """Return a new future."""
        caller = sys._getframe(1)
        if caller.f_code is restrictions.WAIT or caller.f_code is restrictions.WRAP_FUTURE:
            restrictions.check_future(caller, self.run_id)
        future = DeterministicFuture(loop=self)
        future.order = self._order = self._order + 1
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> DeterministicTask:
        """Start a task, with the same name at every replay; while closing, a task that only gets Evicted."""
        caller = sys._getframe(1)
        if caller.f_code is restrictions.ENSURE_FUTURE:
            restrictions.check_task(caller, coro, self.run_id)
        if self.closing:
            coro.close()
            return self._spawn(self._blocked(), name=name, context=context)
        return self._spawn(coro, name=name, context=context, **options)

    def _spawn(self, coro: Any, name: object = None, **options: Any) -> DeterministicTask:
        self._order = order = self._order + 1
        name = f"Task-{order - self._first_order}" if name is None else name
        task = DeterministicTask(coro, order, loop=self, name=name, **options)
        if len(self._tasks) >= self._prune_at:
            self._prune()
            self._prune_at = 2 * len(self._tasks) + _PRUNE_MIN
        self._tasks.append(task)
        return task

    def _prune(self) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]

    def _report_unread(self) -> None:
        """Report the errors of tasks that no code received: some Pythons free such a task too late to."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                self._tasks.append(task)
            elif task._log_traceback:
                message = "Task exception was never retrieved"
                self.call_exception_handler({"message": message, "exception": task.exception()})

    async def _blocked(self) -> None:
        await self.new_future()

    def next_scope(self) -> int:
        """Return the next number by which cancel scopes are ordered in a set."""
        self._scope_order += 1
        return self._scope_order

    def park(self, handle: Any) -> None:
        """Let the callback that was made ready last wait until another one has run, for it changes nothing.

        While closing it is dropped.
        """
        if self.ready and self.ready[-1] is handle:
            self.ready.pop()
            if not self.closing:
                self._parked.append(handle)

    def get_task_factory(self) -> None:
        """Return None: tasks are made by `create_task`."""
        return

    def time(self) -> float:
        """Return virtual time: seconds from the start of the run to the last timer that fired."""
        return self._time_s

    def is_running(self) -> bool:
        """Whether this loop is the thread's running loop."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether the coroutines have been evicted."""
        return self._closed

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode measures time."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Append an error that no code received to ``unhandled``; nothing is printed."""
        if not self.closing and len(self.unhandled) < _UNHANDLED_MAX:
            error = context.get("exception")
            self.unhandled.append(UnhandledError(message=str(context.get("message")), error=error))

    # Running and unwinding

    def _drain(self, callbacks_max: int) -> None:
        if self._draining:
            raise RuntimeError(f"the loop of run {self.run_id!r} cannot be advanced from inside")
        ready = self.ready
        self._draining = True
        idle_at, check_at, over_s = -1, _STORM_CHECKED, math.inf
        try:
            for count in range(callbacks_max):
                if count == check_at:
                    check_at += _STORM_CHECKED
                    now_s = time.thread_time()
                    over_s = min(over_s, now_s + _STORM_S)
                    if now_s >= over_s:
                        break
                if not ready:
                    if not self._parked or count == idle_at:
                        return
                    idle_at = count + 1 + len(self._parked)
                    ready.extend(self._parked)
                    self._parked.clear()
                    continue
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # user code, with no caller to raise to
                    self.call_exception_handler({"message": "error in a callback", "exception": error})
        finally:
            self._draining = False
        instead = "await asyncio.sleep() with a delay, an asyncio.Event, or a step"
        place = restrictions.place_of(ready[0]._callback) if ready else ""
        what = f"asyncio.sleep(0) or loop.call_soon() in a loop without end{place}"
        restrictions.refuse(self.run_id, what, instead)

    def _unwind(self) -> None:
        interrupt: BaseException | None = None
        for _ in range(_UNWIND_ROUNDS):
            self._prune()
            self._wake_with_evicted()
            if not self.ready and not self._close_generators():
                break
            try:
                self._drain(1000 + 10 * len(self._tasks))
            except ForbiddenInWorkflow:
                pass  # busy around sleep(0); the rounds bound it
            except (KeyboardInterrupt, SystemExit) as error:
                interrupt = interrupt or error
        while self._tasks:
            task = self._tasks.pop()
            if not close_coroutine(self, task, attempts=_UNWIND_ROUNDS):
                message = (
                    f"{task.get_coro()!r} swallows every exception; it cannot be freed and stays in memory"
                )
                self.unhandled.append(UnhandledError(message=message, error=None))
        if interrupt is not None:
            raise interrupt

    def _wake_with_evicted(self) -> None:
        # Children were made after their parents and go first, before any callback runs: so each task sees
        # Evicted at its own await, not the cancellation by which a TaskGroup reacts to another task.
        for task in reversed(self._tasks):
            waiter = task._fut_waiter  # type: ignore[attr-defined]
            if waiter is None:
                coro = task.get_coro()
                if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                    task.cancel()  # ends it before its first line
            for callback, context in tuple(getattr(waiter, "_callbacks", None) or ()):
                if getattr(callback, "__self__", None) is task and callback.__name__.endswith("wakeup"):
                    waiter.remove_done_callback(callback)
                    failed: asyncio.Future[Any] = asyncio.Future(loop=self)
                    failed.set_exception(Evicted())
                    self.call_soon(callback, failed, context=context)

    def _track_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self.generators is None:
            self.generators = Generators()
        self.generators.track(generator)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._closed:
            return
        if self.generators is None:
            self.generators = Generators()
        if self.is_running():
            self.generators.add_task(generator, self._spawn(generator.aclose()))
        else:  # freed by the garbage collector, at a moment that no replay repeats: no code may run
            self.generators.keep(generator)
            message = f"{generator!r} was left open until the end of its run; use contextlib.aclosing()"
            self.call_exception_handler({"message": message})

    def _close_generators(self) -> bool:
        generators, self.generators = self.generators, None
        found = [] if generators is None else generators.open
        for generator in found:
            self._spawn(generator.aclose())
        return bool(found)
