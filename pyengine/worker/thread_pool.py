"""The threads in which plain `def` steps run.

What lives here: a bounded pool whose threads can be abandoned. What may not: what a step is. The standard
pool does not do, because the interpreter waits for its threads at exit: a step that hangs would keep a
worker from stopping. These are daemon threads, and a worker that stops leaves behind whatever has not come
back.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Job", "ThreadPool"]


class Job:
    """One call in a thread.

    Args:
        body: what to call.
        done: called in the loop's thread with (value, None) or (None, error), unless the job was cancelled.
    """

    __slots__ = ("body", "cancelled", "context", "done")

    def __init__(
        self,
        body: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        context: contextvars.Context,
    ) -> None:
        self.body = body
        self.done = done
        self.context = context
        self.cancelled = False


class ThreadPool:
    """Runs jobs in at most `size` threads, which are made when they are needed.

    Args:
        loop: gets the outcomes.
        size: number of threads, at most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self._loop = loop
        self._size = size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    def submit(self, body: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> Job:
        """Call `body` in a thread, in a copy of the present context."""
        job = Job(body, done, contextvars.copy_context())
        self._busy += 1
        if self._busy > self._threads and self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"pyengine-step-{self._threads}", daemon=True).start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Let idle threads end; those that are busy end when they come back."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            value, error = None, None
            try:
                if not job.cancelled:
                    value = job.context.run(job.body)
            except BaseException as raised:  # boundary to user code, which has nobody to raise to
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._finish, job, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, value, error

    def _finish(self, job: Job, value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if not job.cancelled:
            job.done(value, error)
