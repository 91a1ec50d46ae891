"""Waiting for results of runs.

Lives here: `ResultPoller`, one loop for all runs that a client waits for. May not: the meaning of a result
(run.py). Design: waiting is polling. One query asks for all runs at once, at each hint that a promise settled
and after growing pauses without one. While the database is down, the waits go on. If the loop fails, they
fail, and the next wait starts it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any

import msgspec

from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.listener import Listener, message_address
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import RESULTS
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.core.protocol.turn import decode_result
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.results")

POLL_LONGEST_S = 3.0
RETRY_S = 1.0
"""Pause after a poll that failed."""
_LARGE_POLL = 50
_LARGE_POLL_PAUSE_MAX_S = 0.2
_UNCLAIMED_MAX = 100


class ResultPoller:
    """Waits for runs, all with one loop, which starts with the first wait.

    Args:
        pool: the connections to poll on.
        listener: receives hints and direct messages.
    """

    def __init__(self, pool: ConnectionPool, listener: Listener) -> None:
        self._pool = pool
        self._listener = listener
        self._futures: dict[str, list[asyncio.Future[Any]]] = {}
        self._schedule = PollSchedule(longest_s=POLL_LONGEST_S)
        self._wake = asyncio.Event()
        self._starting = asyncio.Lock()
        self._background = Background(self._fail)
        self._trouble = FailureLog(logger, "waiting for results")
        self._listening = False
        self._hint_count = 0
        # results that came by message before `wait` was called, oldest first
        self._unclaimed: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._address = message_address()
        self._closed = False

    @property
    def hint_count(self) -> int | None:
        """The number of hints received so far; None while not listening."""
        return self._hint_count if self._listening else None

    @property
    def address(self) -> str | None:
        """The address to which a worker may send a result directly; None while not listening there."""
        return self._address if self._listening and self._listener.receives(self._address) else None

    async def listen(self) -> None:
        """Start listening for hints, unless this is closed; they can be sent from then on too.

        Raises:
            EngineError: the database cannot be reached.
        """
        if self._background:
            return
        async with self._starting:
            if not self._closed:
                await self._begin()
            if self._closed:
                # `close` may have come meanwhile, and found nothing to end
                await self._end()

    async def close(self) -> None:
        """Stop; waits that are under way raise CancelledError."""
        self._closed = True
        await self._end()
        for futures in self._futures.values():
            for future in futures:
                future.cancel()
        self._futures.clear()

    async def wait(self, id: str, timeout_s: float | None, hint_count: int | None = None) -> Any:
        """Return the row of a run that has ended: state (None if there is no such run), value, error.

        Args:
            id: run id.
            timeout_s: how long to wait.
            hint_count: the property's value before the run was started; if no hint has come since then,
                the first poll can wait a little.

        Raises:
            TimeoutError: it has not ended in time.
        """
        if id in self._unclaimed:
            return self._unclaimed.pop(id)
        await self.listen()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(id, []).append(future)
        if hint_count is not None and hint_count == self._hint_count:
            alone = len(self._futures) == len(self._futures[id]) == 1
            self._schedule.wait_begun(clock.monotonic(), alone=alone)
            self._wake.set()
        else:
            self._poll_now()
        try:
            async with clock.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise TimeoutError(f"run {id} has not ended after {timeout_s:g} s; it goes on") from None
        finally:
            futures = self._futures.get(id, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del self._futures[id]

    async def _begin(self) -> None:
        if self._background:
            # somebody else was quicker
            return
        if not self._listening:
            self._listener.subscribe("durable_settled", self._on_hint)
            self._listener.add_receiver(self._address, self._on_message, self._on_hint)
            try:
                await self._listener.start()
            except BaseException:
                self._unsubscribe()
                raise
            self._listening = True
        self._background.start(self._run())

    async def _end(self) -> None:
        await self._background.cancel()
        if self._listening:
            self._listening = False
            self._unsubscribe()
            await self._listener.stop()

    def _fail(self, error: BaseException) -> None:
        """The loop has failed: so do the waits."""
        logger.error("waiting for %d runs has failed", len(self._futures), exc_info=error)
        waiting, self._futures = self._futures, {}
        for future in (one for futures in waiting.values() for one in futures if not one.done()):
            failure = EngineError(f"results cannot be waited for: {error!r}", hint="wait again")
            failure.__cause__ = error
            future.set_exception(failure)

    def _unsubscribe(self) -> None:
        self._listener.unsubscribe("durable_settled", self._on_hint)
        self._listener.remove_receiver(self._address)

    def _on_message(self, message: str) -> None:
        """Take the result of a run that was started here, sent by its worker."""
        try:
            row = msgspec.structs.asdict(decode_result(message))
        except msgspec.DecodeError:
            # a hint comes with it, so the poll finds the result
            logger.exception("a direct message cannot be read")
            return
        if not self._settle(row):
            # the start may not have returned yet; a result never changes
            self._unclaimed[row["id"]] = row
            if len(self._unclaimed) > _UNCLAIMED_MAX:
                self._unclaimed.popitem(last=False)

    def _settle(self, row: Any) -> bool:
        """Give a row to the waits for its run; return false if there are none."""
        futures = self._futures.pop(row["id"], None)
        for future in futures or ():
            if not future.done():
                future.set_result(row)
        return futures is not None

    def _on_hint(self) -> None:
        self._hint_count += 1
        self._poll_now()

    def _poll_now(self) -> None:
        if self._futures:
            self._schedule.hinted(clock.monotonic())
            self._wake.set()

    async def _run(self) -> None:
        while True:
            if not self._futures or self._schedule.at > clock.monotonic():
                self._wake.clear()
                handle = clock.call_at(self._schedule.at, self._wake.set) if self._futures else None
                await self._wake.wait()
                if handle is not None:
                    handle.cancel()
                continue
            try:
                await self._poll()
                self._trouble.succeeded()
            except EngineError as error:
                self._trouble.failed(error.message)
                await clock.sleep(RETRY_S)

    async def _poll(self) -> None:
        ids, began_s = list(self._futures), clock.monotonic()
        self._schedule.polled(began_s, found=False)
        rows = await self._pool.rows(RESULTS, ids)
        for row in rows:
            self._settle(row)
        if len(ids) > _LARGE_POLL:
            # hints must not make large polls follow each other without a pause
            await clock.sleep(min(_LARGE_POLL_PAUSE_MAX_S, 2 * (clock.monotonic() - began_s)))
