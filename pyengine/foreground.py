"""A worker in the foreground: it begins when its database is there, and ends when it is told to.

What lives here: `serve`. What may not: what a worker is, or where its database is (app.py). The theory: who
starts a service after a restart of the machine does not know what is up first. So a worker waits for its
database at the start as it does later, and says so; who wants an error instead asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import FrameType

from pyengine.database.connection import backoff_s
from pyengine.errors import Unavailable
from pyengine.worker.worker import Worker

__all__ = ["serve"]

logger = logging.getLogger("pyengine.app")

_TOLD_EVERY = 20


async def serve(
    begin: Callable[[], AbstractAsyncContextManager[Worker]], *, wait: bool, stop: asyncio.Event | None = None
) -> None:
    """Run a worker until SIGINT or SIGTERM.

    Args:
        begin: makes the block in which it runs.
        wait: a database that cannot be reached is waited for.
        stop: ends it too.

    Raises:
        Unavailable: the database cannot be reached, and is not waited for.
        EngineError: the worker cannot begin, or cannot go on.
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
    """Begin as soon as the database is there; None if it is to stop before."""
    failures = 0
    while True:
        try:
            worker = await block.enter_async_context(begin())
        except Unavailable as error:
            if not wait:
                raise
            failures += 1
            if failures == 1 or failures % _TOLD_EVERY == 0:
                logger.warning(
                    "the worker waits for its database: %s; type: pyengine db status", error.message
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff_s(failures))
            if stop.is_set():
                return None
        else:
            return worker


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first SIGINT or SIGTERM; leave at once at the second."""
    loop = asyncio.get_running_loop()

    def stop_or_leave(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        logger.info("signal %d: stopping; a second one ends the process at once", number)
        stop.set()

    def handler(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop_or_leave, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop_or_leave, number)
        except (NotImplementedError, RuntimeError):
            signal.signal(number, handler)
