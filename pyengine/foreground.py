"""A worker in the foreground: it starts when its database is available, and ends at a signal.

Lives here: `serve` and the loop in which it runs. May not: the work of a worker, or the choice of its
database (app.py). Design: after a restart of the machine services start in any order. So a worker waits for
its database at the start as it does later, and logs that; an option gives an error instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import FrameType
from typing import Protocol

from pyengine import clock
from pyengine.database.connection import backoff_s
from pyengine.errors import Unavailable

__all__ = ["Worker", "runner", "serve"]

logger = logging.getLogger("pyengine.app")

_LOG_EVERY = 20


class Worker(Protocol):
    """A worker of runs or of adapters."""

    async def wait(self) -> None:
        """Return when the worker has stopped, or raise what stopped it."""
        ...


async def serve(
    begin: Callable[[], AbstractAsyncContextManager[Worker]], *, wait: bool, stop: asyncio.Event | None = None
) -> None:
    """Run a worker until SIGINT or SIGTERM.

    Args:
        begin: makes the block in which it runs.
        wait: wait for a database that cannot be reached.
        stop: stops it too.

    Raises:
        Unavailable: the database cannot be reached, and `wait` is false.
        EngineError: the worker cannot start, or has failed.
    """
    stop = stop or asyncio.Event()
    _stop_on_signals(stop)
    async with AsyncExitStack() as block:
        worker = await _begun(block, begin, stop, wait=wait)
        if worker is None:
            return
        stopped = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(worker.wait())
        await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ended.done():
            ended.result()
        ended.cancel()


async def _begun(
    block: AsyncExitStack,
    begin: Callable[[], AbstractAsyncContextManager[Worker]],
    stop: asyncio.Event,
    *,
    wait: bool,
) -> Worker | None:
    """Start the worker as soon as the database is available; return None if it is stopped before."""
    failures = 0
    while True:
        try:
            worker = await block.enter_async_context(begin())
        except Unavailable as error:
            if not wait:
                raise
            failures += 1
            if failures == 1 or failures % _LOG_EVERY == 0:
                logger.warning(
                    "the worker waits for its database: %s; type: pyengine db status", error.message
                )
            with suppress(TimeoutError):
                async with clock.timeout(backoff_s(failures)):
                    await stop.wait()
            if stop.is_set():
                return None
        else:
            return worker


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first SIGINT or SIGTERM; exit at once at the second."""
    loop = asyncio.get_running_loop()

    def stop_or_exit(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        logger.info("signal %d: stopping; a second one ends the process at once", number)
        stop.set()

    def handler(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop_or_exit, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop_or_exit, number)
        except (NotImplementedError, RuntimeError):
            signal.signal(number, handler)


def runner() -> asyncio.Runner:
    """Return a runner with uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
