"""A few connections for many callers.

Lives here: `ConnectionPool`. May not: how a connection is made and what its failure means (connection.py).
Design: connections are the scarcest resource of a server. A pool makes one only when a caller needs it and
all others are in use, and closes connections that are idle for a while. If the server gives no more, callers
share those that it has given; a caller that gets none in time gets `NoConnection`, and can leave its work to
another process. If the server is down, callers wait, because no process has a connection then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from pyengine.core.database.connection import Database, NoConnection, ReconnectingConnection, backoff_s
from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.database.statements.time_limits import limit_s
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.errors import Unavailable

logger = logging.getLogger("pyengine.connection")

T = TypeVar("T")

# while connections are handed from caller to caller, a caller waits up to so many times its patience longer
_PROGRESS = 3


class ConnectionPool:
    """A few connections that callers take in turn.

    Args:
        database: the database.
        role: the purpose of the connections.
        size: the largest number of connections.
        min_open: the number of idle connections that stay open.

    Attributes:
        size: the largest number of connections.
        idle_s: seconds after which other idle connections are closed.
        patience_s: seconds that `taken` waits for a server that gives no further connection.
    """

    idle_s = 10.0
    patience_s = 5.0

    def __init__(self, database: Database, role: str, size: int, *, min_open: int = 0) -> None:
        self._database = database
        self._role = role
        self._min_open = min_open
        self.size = size
        self._slots = asyncio.Semaphore(size)
        # last in, first out: as many connections as are needed and no more
        self._free: list[tuple[ReconnectingConnection, float]] = []
        self._taken = 0
        self._short_until_s = self._last_taken_s = 0.0
        self._is_down = False
        self._returned = asyncio.Event()
        self._background = Background(self._fail)
        self._trim_handle: clock.Timer | None = None
        self._trouble = FailureLog(logger, f"connecting for {role}")
        self._closed = False
        self._waiting = 0
        database.shortage.pools.add(self)

    @property
    def where(self) -> str:
        """The database's name in messages."""
        return self._database.where

    # -- statements

    async def run(self, procedure: Procedure, *args: Any) -> Any:
        """Run a statement, once, and return the first column of its first row.

        Raises:
            EngineError: as `ReconnectingConnection.run`.
        """
        return await self._with(lambda connection: connection.run(procedure, *args))

    async def rows(self, procedure: Procedure, *args: Any) -> list[Any]:
        """Run a statement that may be run twice, and return its rows.

        Raises:
            EngineError: as `use`.
        """
        within_s = limit_s(procedure)
        result: list[Any] = await self.use(lambda conn: conn.fetch(procedure.sql, *args, timeout=within_s))
        return result

    async def use(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Run statements that may be run twice; retried once if the connection was lost.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        try:
            return await self.once(action)
        except NoConnection:
            raise
        except Unavailable:
            return await self.once(action)

    async def once(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Run statements that may not run twice.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the connection was lost, and the outcome is unknown.
        """
        return await self._with(lambda connection: connection.use(action))

    async def _with(self, action: Callable[[ReconnectingConnection], Awaitable[T]]) -> T:
        connection = await self._take(None)
        try:
            return await action(connection)
        finally:
            self._give_back(connection)

    # -- connections

    @contextlib.asynccontextmanager
    async def taken(self, *, clean: bool = True) -> AsyncIterator[ReconnectingConnection]:
        """Take a connection for the block, once the database is available.

        Args:
            clean: reset afterwards what statements of users have set in its session.

        Raises:
            NoConnection: the server gave none in time. Time during which the pool's own callers use all its
                connections does not count.
            EngineError: the server refuses the connection.
        """
        connection = await self._take(self.patience_s)
        try:
            yield connection
        finally:
            if clean:
                self._background.start(self._clean(connection))
            else:
                self._give_back(connection)

    def drop_idle(self) -> None:
        """Terminate the connections that nobody uses; what they have cached of the schema is out of date."""
        free, self._free = self._free, []
        for connection, _ in free:
            connection.drop()

    def make_room(self) -> None:
        """Close the connections that nobody uses, but for those that stay open."""
        while len(self._free) > self._min_open:
            self._background.start(self._free.pop(0)[0].close())

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._trim_handle is not None:
            self._trim_handle.cancel()
        await self._background.ended()
        free, self._free = self._free, []
        await asyncio.gather(*(connection.close() for connection, _ in free))

    async def _take(self, patience_s: float | None) -> ReconnectingConnection:
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._connected(patience_s)
        except BaseException:
            self._slots.release()
            raise

    async def _connected(self, patience_s: float | None) -> ReconnectingConnection:
        """Return a connection, with a slot taken for it.

        Args:
            patience_s: None raises the first failure, unless other callers have connections that they will
                give back.
        """
        waiting_since_s = 0.0
        while True:
            while self._free:
                connection, _ = self._free.pop()
                if connection.alive:
                    self._taken += 1
                    self._last_taken_s = clock.monotonic()
                    return connection
            now_s, is_only_caller = clock.monotonic(), patience_s is None and not self._taken
            if is_only_caller or now_s >= self._short_until_s:
                try:
                    return await self._new()
                except Unavailable as error:
                    self._is_down = not isinstance(error, NoConnection)
                    if is_only_caller or (patience_s is None and self._is_down):
                        raise
                    self._trouble.failed(error)
                    if self._is_down:
                        self._database.outage.failed(error.message)
                    self._short_until_s = clock.monotonic() + backoff_s(self._trouble.failures)
                continue
            pause_s = self._short_until_s - now_s
            if patience_s is not None and not self._is_down:
                since_s = waiting_since_s = waiting_since_s or now_s
                last_s = min(max(since_s, self._last_taken_s), since_s + _PROGRESS * patience_s)
                if now_s >= last_s + patience_s:
                    raise NoConnection(
                        f"{self._database.where} gave no connection for {self._role} in {patience_s:g} s"
                    )
                pause_s = min(pause_s, last_s + patience_s - now_s)
            self._returned.clear()
            with contextlib.suppress(TimeoutError):
                async with clock.timeout(pause_s):
                    await self._returned.wait()

    async def _new(self) -> ReconnectingConnection:
        connection = ReconnectingConnection(self._database, self._role)
        self._taken += 1
        try:
            await connection.connected()
        except BaseException:
            self._taken -= 1
            raise
        self._trouble.succeeded()
        return connection

    def _give_back(self, connection: ReconnectingConnection) -> None:
        self._taken -= 1
        if self._closed:
            connection.drop()
        elif connection.alive:
            self._free.append((connection, clock.monotonic()))
            if self._database.shortage.waiting and not self._waiting:
                self.make_room()
            if self._trim_handle is None and len(self._free) > self._min_open:
                self._trim_handle = clock.call_later(self.idle_s, self._trim)
        # callers that have a slot come before those that wait for one
        self._returned.set()
        self._slots.release()

    def _trim(self) -> None:
        """Close connections that were idle for a while; the oldest are at the front."""
        self._trim_handle = None
        while len(self._free) > self._min_open and self._free[0][1] <= clock.monotonic() - self.idle_s:
            self._background.start(self._free.pop(0)[0].close())
        if len(self._free) > self._min_open:
            self._trim_handle = clock.call_at(self._free[0][1] + self.idle_s, self._trim)

    async def _clean(self, connection: ReconnectingConnection) -> None:
        try:
            await connection.clean()
        except BaseException:
            # what is left in its session is not known
            connection.drop()
            raise
        finally:
            self._give_back(connection)

    def _fail(self, error: BaseException) -> None:
        """A connection could not be cleaned or closed; it is gone, and nobody waits for it."""
        logger.error("a connection for %s was given up", self._role, exc_info=error)
