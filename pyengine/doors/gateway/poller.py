"""Asking the database again and again, by hints and by time.

Lives here: `Poller`. May not: what is asked. Design: a hint means "ask now" and may be lost, so time is the
backstop. A failure is logged with growing severity and tried again; a database that is gone is left to the
log of its outage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from pyengine.core.database.connection import backoff_s
from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.process import clock
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.gateway")


class Poller:
    """Calls a function when a hint comes, and now and then without one.

    Args:
        poll: asks the database; returns whether it found something, or None if there is nobody to ask for.
        operation: its name in the log.
        longest_s: the longest pause, in seconds.
    """

    def __init__(self, poll: Callable[[], Awaitable[bool | None]], operation: str, longest_s: float) -> None:
        self._poll = poll
        self._schedule = PollSchedule(longest_s=longest_s)
        self._failures = FailureLog(logger, operation)
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Poll now, and soon again."""
        self._schedule.hinted(clock.monotonic())
        self._wake.set()

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            self._wake.clear()
            try:
                found = await self._poll()
            except EngineError as error:
                self._failures.failed(error)
                await clock.sleep(backoff_s(self._failures.failures))
                continue
            self._failures.succeeded()
            if found is None:
                await self._wake.wait()
                continue
            now_s = clock.monotonic()
            if not self._wake.is_set():
                self._schedule.polled(now_s, found=found)
            with contextlib.suppress(TimeoutError):
                async with clock.timeout_at(max(self._schedule.at, now_s)):
                    await self._wake.wait()
