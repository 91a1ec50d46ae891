"""Threads for plain functions, mostly of users.

Lives here: `ThreadPool`, and `Job`, a function that it calls; `ValueThreads`, for work of ours. May not: the
functions (worker/step_runner.py, worker/turn_sender.py, calls/memo_runner.py). Design: the threads are
daemons, made when they are needed. The standard pool will not do, because the interpreter waits for its
threads at exit: a step that hangs would keep a worker from stopping. A thread whose function does not end is
left behind and another one takes its place, so it is not missing to others; up to a number, since each of
them costs memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec

from pyengine.core.process import clock

T = TypeVar("T")
V = TypeVar("V")

logger = logging.getLogger("pyengine.steps")

_THREAD_AGAIN_S = 1.0
_REPLACED = 4
_FOR_VALUES = 2


class Job(msgspec.Struct, eq=False):
    """A function to call, and who gets its outcome."""

    context: contextvars.Context
    body: Callable[[], Any]
    done: Callable[[Any, BaseException | None], None]
    running: bool = False
    left_behind: bool = False


class ThreadPool:
    """Runs plain functions in threads.

    Args:
        loop: gets the outcomes.
        size: number of threads, at most, without those that are left behind.
        name: what they do, in their names.
        around: makes the block in which each function is called.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        size: int,
        name: str = "step",
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._loop = loop
        self._size = size
        self._name = name
        self._around = around
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._left_behind = 0
        self._again: clock.Timer | None = None

    @property
    def _usable(self) -> int:
        """How many threads there may be beside those that are left behind."""
        return max(0, min(self._size, (1 + _REPLACED) * self._size - self._left_behind))

    @property
    def exhausted(self) -> bool:
        """Whether so many threads are left behind that none can be made in their place."""
        return self._usable < 1

    def submit(self, body: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> Job:
        """Call `body` in a thread, in a copy of the present context, then `done` in the loop's thread with
        (value, None) or (None, error).
        """
        job = Job(contextvars.copy_context(), body, done)
        self._busy += 1
        self._jobs.put(job)
        self._grow()
        return job

    def leave_behind(self, job: Job) -> None:
        """Do not count on the end of a function that is running."""
        if not job.running or job.left_behind:
            return
        job.left_behind = True
        self._left_behind += 1
        self._busy -= 1
        logger.warning(
            "%d threads are left behind by functions that do not end, beside %d that can work",
            self._left_behind,
            self._usable,
        )
        self._grow()

    def _grow(self) -> None:
        """Start threads for jobs that wait; later, if the system has none to give."""
        while self._again is None and self._threads - self._left_behind < min(self._busy, self._usable):
            name = f"pyengine-{self._name}-{self._threads + 1}"
            try:
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            except RuntimeError as error:
                logger.warning("no thread for a step, which waits: %s", error)
                self._again = clock.call_later(_THREAD_AGAIN_S, self._grow_again)
            else:
                self._threads += 1

    def _grow_again(self) -> None:
        self._again = None
        self._grow()

    def close(self) -> None:
        """Let idle threads end; those that are busy end when they come back."""
        if self._again is not None:
            self._again.cancel()
        for _ in range(self._threads):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            value, error = None, None
            job.running = True
            try:
                value = job.context.run(self._call, job.body)
            except BaseException as raised:  # boundary to user code: whatever a step raises is its outcome
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._finish, job, value, error)
            except RuntimeError:
                return  # the loop is closed
            del job, value, error

    def _call(self, body: Callable[[], Any]) -> Any:
        with self._around():
            return body()

    def _finish(self, job: Job, value: Any, error: BaseException | None) -> None:
        job.running = False
        if job.left_behind:
            self._left_behind -= 1
            if self._threads - self._left_behind > self._size:
                # it is one too many, now that it is back
                self._threads -= 1
                self._jobs.put(None)
        else:
            self._busy -= 1
        job.done(value, error)


class ValueThreads(ThreadPool):
    """A few threads in which large values are written, checked and read: that takes a second for many
    megabytes, and in the loop of the worker no other run would go on. Functions of users never have them.

    Args:
        loop: gets what they return.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, _FOR_VALUES, "value")

    async def call(self, body: Callable[[], T]) -> T:
        """Return what a function returns, called in a thread.

        Raises:
            BaseException: what it raises.
        """
        returned: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(body, partial(_return, returned))
        return await returned

    async def made_of(self, value: V, make: Callable[[V], T], *, large: bool) -> T:
        """Return what a function makes of a value, in a thread if that is large.

        Raises:
            BaseException: what it raises.
        """
        return await self.call(partial(make, value)) if large else make(value)


def _return(returned: asyncio.Future[T], value: T, error: BaseException | None) -> None:
    if returned.done():
        return  # nobody waits for it any more
    if error is None:
        returned.set_result(value)
    else:
        # which no future takes
        stops = type(error) is StopIteration
        returned.set_exception(RuntimeError("a function raised StopIteration") if stops else error)
