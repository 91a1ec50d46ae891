"""The transport of asynchronous programs.

Lives here: `AsyncpgTransport`, which runs statements on a pool of asyncpg connections, listens for hints, and
waits for results. May not: a verb, SQL text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from pyengine.core.client.caller_connection import run_on
from pyengine.core.client.concurrent_starts import ConcurrentStarts
from pyengine.core.client.results import ResultPoller
from pyengine.core.client.transport import Transport
from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.database.poll_schedule import Channel
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import START, START_FRESH, Procedure, StartRequest
from pyengine.core.process import clock
from pyengine.errors import EngineError, InvalidRequest

logger = logging.getLogger("pyengine.client")

_CHANGES: tuple[Channel, ...] = ("durable_settled", "durable_progress")
_HINTS_PAUSE_S = 0.1
_FOLLOW_AFTER = 8
_FOLLOW_GAP_S = 0.25


class AsyncpgTransport(Transport):
    """Runs statements on connections of asyncpg.

    Args:
        database: the database.
        listener: receives and sends hints.
        connections: the largest number of connections for statements.
    """

    def __init__(self, database: Database, listener: Listener, connections: int) -> None:
        self._database = database
        self._listener = listener
        self._pool = ConnectionPool(database, "client", connections)
        self._results = ResultPoller(self._pool, listener)
        self._starts = ConcurrentStarts(super().start, self._start_together)
        self._opening = asyncio.Lock()
        self._last_hint_s, self._in_a_row = -inf, 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Check the database, once.

        Raises:
            EngineError: it cannot be used.
            InvalidRequest: called in another event loop than before.
        """
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise InvalidRequest(
                "this client and its runs belong to another event loop"
                + (", which has ended" if self._loop.is_closed() else ""),
                hint="make a client in this loop: async with app.client() as client: client.run(id)",
            )
        if self._database.opened and not self._closed:
            return
        async with self._opening:
            if self._closed:
                raise InvalidRequest("this client is closed")
            await self._database.open()

    async def start(self, request: StartRequest) -> Any:
        """Start a run, notify workers, and return the row of `START`.

        Raises:
            EngineError: as `rows`.
        """
        if not request.fresh:
            return await super().start(request)
        # a bad start is refused before it waits for others; whether it notifies is decided when it is sent
        await self._prepare(START, (*request, False, None))
        return await self._starts.start(request)

    @property
    def hint_count(self) -> int | None:
        """The number of hints that a promise settled; None while not listening."""
        return self._results.hint_count

    @property
    def address(self) -> str | None:
        """The address to which a worker may send a result directly; None while not listening there."""
        return self._results.address

    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit."""
        now_s = clock.monotonic()
        self._in_a_row = self._in_a_row + 1 if now_s < self._last_hint_s + _FOLLOW_GAP_S else 1
        self._last_hint_s = now_s
        if self._in_a_row == _FOLLOW_AFTER:
            # a client that starts a run now and then is not woken by the starts of others
            self._listener.follow(channel)
        return self._listener.with_commit(channel)

    async def allow_next(self, channel: Channel) -> None:
        """Let the next such hint be sent with its commit; listen for results from now on."""
        self._listener.allow_next(channel)
        await self._listen()

    async def announce(self, channel: Channel, *, with_commit: bool) -> None:
        """Wake this process and, unless a commit has sent the hint, the others, soon."""
        self._listener.announce(channel, with_commit=with_commit)
        await self._listen()

    async def close(self) -> None:
        """Close the connections; waits for results raise CancelledError."""
        self._closed = True
        await self._results.close()
        await self._pool.close()

    @asynccontextmanager
    async def hints(self) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """Return a context whose value waits until a run has changed, or for at most so many seconds."""
        await self.open()
        changed = asyncio.Event()

        async def wait(longest_s: float) -> None:
            # hints of busy runs come in a row: what they announce is read together
            await clock.sleep(_HINTS_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with clock.timeout(longest_s - _HINTS_PAUSE_S):
                    await changed.wait()
            changed.clear()

        for channel in _CHANGES:
            self._listener.subscribe(channel, changed.set)
        try:
            await self._listener.start()
            try:
                yield wait
            finally:
                await self._listener.stop()
        finally:
            for channel in _CHANGES:
                self._listener.unsubscribe(channel, changed.set)

    async def _listen(self) -> None:
        """Listen for results. A start that was committed does not fail without it: a wait tries again."""
        try:
            await self._results.listen()
        except EngineError as error:
            logger.debug("not listening for results: %s", error.message)

    async def _start_together(self, requests: list[StartRequest]) -> bool:
        with_commit = self.with_commit("durable_ready")
        args, ids = [one.args for one in requests], [one.id for one in requests]
        (row,) = await self.rows(START_FRESH, *requests[0].shared(), args, ids, with_commit)
        if row["started"]:
            await self.announce("durable_ready", with_commit=with_commit)
        return bool(row["started"])

    async def _rows(self, procedure: Procedure, values: tuple[Any, ...]) -> list[Any]:
        return await self._pool.rows(procedure, *values)

    async def _first_row_on(self, conn: Any, procedure: Procedure, values: tuple[Any, ...]) -> Any:
        return await run_on(conn, procedure, *values)

    async def _ended(self, id: str, timeout_s: float | None, hint_count: int | None) -> Any:
        return await self._results.wait(id, timeout_s, hint_count)
