"""A worker in the foreground: it starts when its database is available, and ends at a signal.

Lives here: `serve`, the loop in which it runs, and the end of its process. May not: the work of a worker, or
the choice of its database (app.py); how signals arrive (stop_signals.py). Design: after a restart of the
machine services start in any order. So a worker waits for its database at the start as it does later, and
logs that; an option gives an error instead. A stop needs nobody's consent: whatever waits at the start is
cancelled, and code of users that does not end is left behind with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from pyengine.core.database.connection import backoff_s
from pyengine.core.definitions.retry import Duration, parse_duration
from pyengine.core.process import clock
from pyengine.core.process.process import Process
from pyengine.core.worker.worker import GRACE_S
from pyengine.doors.program.stop_signals import StopSignals, end_process
from pyengine.errors import Unavailable

logger = logging.getLogger("pyengine.app")

T = TypeVar("T")

_LOG_EVERY = 20
_START_ENDS_S = 1.0
_BEGUN_NOTHING_S = 1.5
# beyond the grace, for the last statements
_GOODBYE_S = 8.0
_TASKS_END_S = 1.0
_THREADS_END_S = 1.0


def grace_seconds(grace: Duration) -> float:
    """Return the grace of a stop in seconds.

    Raises:
        InvalidRequest: it is no duration.
    """
    return parse_duration(grace, what="grace") / 1000


async def serve(
    begin: Callable[[], AbstractAsyncContextManager[object]],
    *,
    wait: bool,
    stop: asyncio.Event | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Run a worker until SIGINT or SIGTERM.

    Args:
        begin: makes the block in which it runs.
        wait: wait for a database that cannot be reached.
        stop: stops it too.
        grace_s: how long the worker may take for its stop; some seconds later the process is ended.

    Raises:
        Unavailable: the database cannot be reached, and `wait` is false.
        EngineError: the worker cannot start, or has failed.
    """
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    begun: asyncio.Future[object] = loop.create_future()

    def stop_soon() -> float:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stop.set)
        worker = begun.result() if begun.done() else None
        if isinstance(worker, Process) and worker.stop_asked is not None:
            worker.stop_asked()
        return grace_s + _GOODBYE_S if begun.done() else _BEGUN_NOTHING_S

    with StopSignals(stop_soon):
        living = asyncio.create_task(_live(begin, stop, begun, wait=wait))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((living, begun, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not begun.done() and not living.done():
                await _give_up(living)
            else:
                await living
        finally:
            stopped.cancel()
            living.cancel()


async def _give_up(starting: asyncio.Task[None]) -> None:
    """End a start that waits: for an adoption, a dependency, a lock, the database."""
    starting.cancel()
    await clock.wait((starting,), _START_ENDS_S)
    if starting.done() and not starting.cancelled():
        starting.result()


async def _live(
    begin: Callable[[], AbstractAsyncContextManager[object]],
    stop: asyncio.Event,
    begun: asyncio.Future[object],
    *,
    wait: bool,
) -> None:
    """Start the worker as soon as the database is available, and let it work until it is to stop."""
    failures = 0
    while not stop.is_set():
        try:
            async with begin() as worker:
                begun.set_result(worker)
                if isinstance(worker, Process):
                    worker.stalled = lambda error: end_process(1)
                # a worker that fails interrupts its block
                await stop.wait()
                return
        except Unavailable as error:
            if not wait or begun.done():
                raise
            failures += 1
            if failures == 1 or failures % _LOG_EVERY == 0:
                logger.warning(
                    "the worker waits for its database: %s; type: pyengine db status", error.message
                )
            await clock.sleep(backoff_s(failures))


class ServingProcess:
    """The process of a command that serves, for the length of a block. If code of users goes on after it, in
    a task that swallows its cancellation or a thread that hangs, then the process is ended without it.
    """

    _current: ServingProcess | None = None

    def __enter__(self) -> Self:
        self._is_outer = ServingProcess._current is None
        if self._is_outer:
            ServingProcess._current = self
        self._left: list[str] = []
        self._threads = set(threading.enumerate())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outer = ServingProcess._current
        if outer is not None and not self._is_outer:
            outer._left += self._left
            return
        ServingProcess._current = None
        left = self._left + self._hanging()
        if not left:
            return
        logger.warning("the process ends without what does not end: %s", ", ".join(left))
        if error is not None:
            logger.error("%s: %s", type(error).__name__, error)
        end_process(0 if error is None else 1)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a loop of its own, and close the loop in bounded time."""
        running = runner()
        loop = running.get_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(threads)
        try:
            return running.run(main)
        finally:
            pending = running.run(_end_tasks())
            threads.shutdown(wait=False, cancel_futures=True)
            self._left += [str(task.get_coro()) for task in pending]
            if not pending:
                # the loop would wait for the threads
                loop.set_default_executor(ThreadPoolExecutor())
                running.close()

    def _hanging(self) -> list[str]:
        """Return the threads that began in the block, do not end, and that the interpreter would wait for."""
        ending = [one for one in set(threading.enumerate()) - self._threads if not one.daemon]
        for thread in ending:
            thread.join(_THREADS_END_S / len(ending))
        return [f"thread {one.name}" for one in ending if one.is_alive()]


async def _end_tasks() -> set[asyncio.Task[Any]]:
    """Cancel what still runs in this loop, and return what goes on all the same."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await clock.wait(tasks, _TASKS_END_S)
    return {task for task in tasks if not task.done()}


def runner() -> asyncio.Runner:
    """Return a runner with uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
