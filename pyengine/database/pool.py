"""A few connections for many callers.

What lives here: `ConnectionPool`. What may not: what a connection is and what its failure means
(connection.py). The theory: connections are what a server has least of. So a pool makes one when a caller
needs it and all that it has are taken, and closes what nobody has needed for a while. Where the server gives
no more, those that it has given are taken in turn; who gets none of them in time is told so (`NoConnection`),
and can leave its work to a process that has one. A server that is away is waited for, because nobody has one
then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from pyengine.database.connection import Database, NoConnection, ReconnectingConnection, backoff_s
from pyengine.database.failure_log import FailureLog
from pyengine.database.statements.procedures import Procedure
from pyengine.errors import Unavailable

__all__ = ["ConnectionPool"]

logger = logging.getLogger("pyengine.connection")

T = TypeVar("T")

_PROGRESS = 3
_LOOK_AGAIN_S = 0.5


class ConnectionPool:
    """A few links that callers take in turn.

    Args:
        database: where to.
        role: what for.
        size: connections at a time, at most.
        keep: so many stay open when nobody needs them.

    Attributes:
        idle_s: the others are closed after so many seconds.
        patience_s: so long is waited for a server that gives no further connection.
    """

    idle_s = 10.0
    patience_s = 5.0

    def __init__(self, database: Database, role: str, size: int, *, keep: int = 0) -> None:
        self._database = database
        self._role = role
        self._size = size
        self._keep = keep
        # last in, first out: as many connections as are needed and no more
        self._free: list[tuple[ReconnectingConnection, float]] = []
        self._taken = 0
        self._short_until_s = self._handed_s = 0.0
        self._away = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tidying: set[asyncio.Task[None]] = set()
        self._trim_handle: asyncio.TimerHandle | None = None
        self._trouble = FailureLog(logger, f"connecting for {role}")
        self._closed = False

    @property
    def where(self) -> str:
        """How messages call the database."""
        return self._database.where

    # -- statements

    async def run(self, procedure: Procedure, *args: Any) -> Any:
        """Run a statement, once, and return the first column of its first row.

        Raises:
            EngineError: as `ReconnectingConnection.run`.
        """
        return await self._once(lambda link: link.run(procedure, *args))

    async def rows(self, procedure: Procedure, *args: Any) -> list[Any]:
        """Run a statement that may be run twice, and return its rows.

        Raises:
            EngineError: as `use`.
        """
        result: list[Any] = await self.use(lambda conn: conn.fetch(procedure.sql, *args))
        return result

    async def use(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Run statements that may be run twice; tried once more if the connection was found dead.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        try:
            return await self._once(lambda link: link.use(action))
        except NoConnection:
            raise
        except Unavailable:
            return await self._once(lambda link: link.use(action))

    async def _once(self, action: Callable[[ReconnectingConnection], Awaitable[T]]) -> T:
        link = await self._take(None)
        try:
            return await action(link)
        finally:
            self._give_back(link)

    # -- links

    @contextlib.asynccontextmanager
    async def taken(self, *, clean: bool = True) -> AsyncIterator[ReconnectingConnection]:
        """Take a link that is connected for as long as the block lasts, once the database is there.

        Args:
            clean: what users' statements left in its session goes.

        Raises:
            NoConnection: the server gave none in time. Waiting for others, who have all that the pool may
                have, does not count.
            EngineError: the server refuses us.
        """
        link = await self._take(self.patience_s)
        try:
            yield link
        finally:
            if clean:
                tidying = asyncio.get_running_loop().create_task(self._tidy(link))
                self._tidying.add(tidying)
                tidying.add_done_callback(self._tidying.discard)
            else:
                self._give_back(link)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._trim_handle is not None:
            self._trim_handle.cancel()
        await asyncio.gather(*self._tidying, return_exceptions=True)
        free, self._free = self._free, []
        await asyncio.gather(*(link.close() for link, _ in free))

    async def _take(self, patience_s: float | None) -> ReconnectingConnection:
        """Take a link that is connected; without patience the first failure is the answer, unless others of
        the pool have links that they will give back.
        """
        loop, begun_s = asyncio.get_running_loop(), 0.0
        while True:
            while self._free:
                link, _ = self._free.pop()
                if link.alive:
                    self._taken += 1
                    self._handed_s = loop.time()
                    return link
            # who is woken may leave without a link, so nobody relies on it alone
            now_s, pause_s = loop.time(), _LOOK_AGAIN_S
            at_once = patience_s is None and not self._taken
            if self._taken >= self._size:
                begun_s = 0.0
            elif at_once or now_s >= self._short_until_s:
                try:
                    return await self._made()
                except Unavailable as error:
                    self._away = not isinstance(error, NoConnection)
                    if at_once or (patience_s is None and self._away):
                        raise
                    self._trouble.failed(error.message)
                    self._short_until_s = loop.time() + backoff_s(self._trouble.failures)
                continue
            else:
                pause_s = min(pause_s, self._short_until_s - now_s)
                if patience_s is not None and not self._away:
                    begun_s = begun_s or now_s
                    # while those that there are go from hand to hand, it is worth waiting for longer
                    until_s = min(max(begun_s, self._handed_s), begun_s + _PROGRESS * patience_s) + patience_s
                    if now_s >= until_s:
                        raise NoConnection(
                            f"{self._database.where} gave no connection for {self._role} in {patience_s:g} s"
                        )
                    pause_s = min(pause_s, until_s - now_s)
            await self._wait(pause_s)

    async def _made(self) -> ReconnectingConnection:
        link = ReconnectingConnection(self._database, self._role)
        self._taken += 1
        try:
            await link.connected()
        except BaseException:
            self._taken -= 1
            self._wake()
            raise
        self._trouble.over()
        return link

    async def _wait(self, pause_s: float) -> None:
        """Wait until a link is given back, or so long at most."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(pause_s):
                await waiting
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._wake()  # it was for somebody
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _wake(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def _give_back(self, link: ReconnectingConnection) -> None:
        self._taken -= 1
        if self._closed:
            link.drop()
            return
        loop = asyncio.get_running_loop()
        if link.alive:
            self._free.append((link, loop.time()))
            if self._trim_handle is None and len(self._free) > self._keep:
                self._trim_handle = loop.call_later(self.idle_s, self._trim)
        self._wake()

    def _trim(self) -> None:
        """Close what nobody has needed for a while; those at the front are the ones."""
        self._trim_handle = None
        loop = asyncio.get_running_loop()
        late_s = loop.time() - self.idle_s
        while len(self._free) > self._keep and self._free[0][1] <= late_s:
            closing = loop.create_task(self._free.pop(0)[0].close())
            self._tidying.add(closing)
            closing.add_done_callback(self._tidying.discard)
        if len(self._free) > self._keep:
            self._trim_handle = loop.call_at(self._free[0][1] + self.idle_s, self._trim)

    async def _tidy(self, link: ReconnectingConnection) -> None:
        try:
            await link.clean()
        finally:
            self._give_back(link)
