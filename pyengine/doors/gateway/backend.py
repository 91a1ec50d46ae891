"""The database behind a gateway.

Lives here: `Backend`: the connections for requests, and how a failure of the database becomes a refusal. May
not: HTTP. Design: a connection is lent for one statement, never for a request or a stream. A request that the
database has given up for a conflict with another is sent again; after a lost connection only one that may
arrive twice is. A row that a user holds locked is not waited for again, because the others wait for the
connection meanwhile. A database that is gone or hangs is a state: requests are refused until it is there
again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from pyengine.core.database.connection import Database, ReconnectingConnection, backoff_s
from pyengine.core.database.listener import Listener
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import VERSION, Procedure
from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.statements.gateway import RPC
from pyengine.errors import EngineError, InvalidRequest, NotAdopted, SchemaMismatch, Unavailable, passes

logger = logging.getLogger("pyengine.gateway")

T = TypeVar("T")

# a deadlock, a serialization failure
_CONFLICTS = frozenset({"40P01", "40001"})
# a conflict, a lock that somebody keeps, a statement that took too long
_BUSY = _CONFLICTS | {"55P03", "57014"}
# a text, a number or a nesting that jsonb cannot represent
_TOO_MUCH = frozenset({"54000", "54001", "54011"})
# refusals of functions that answer no envelope, as durable.error_codes() has them
_STATUSES = {
    "WF001": 404,
    "WF002": 409,
    "WF003": 409,
    "WF004": 400,
    "WF005": 422,
    "WF008": 400,
    "WF009": 409,
    "WF010": 422,
    "WF011": 403,
    "WF012": 422,
}
_TRIES = 3
_RETRY_S = 0.01
_RETRY_MAX_S = 1.0
_RETRY_AFTER_S = 1
_COPY = "the database is a copy, in which nothing runs before it is adopted: pyengine db adopt"
_RETRY_AFTER_COPY_S = 10
_WAIT_S = 8.0
_ANSWER_S = 9.0
_READY_S = 5.0
# an acquire may be sent again by the process that has the task
_REPEATABLE = (
    *("promise.", "schedule.get", "schedule.create", "schedule.search"),
    *("task.get", "task.search", "task.acquire", "task.heartbeat", "task.halt"),
)


class Backend:
    """The connections of a gateway.

    Args:
        database: the database.
        connections: the largest number of connections for requests.
        max_waiting: requests that may wait for one; further ones are refused.

    Attributes:
        database: the database.
        pool: connections for requests.
        listener: hints of the database.
    """

    def __init__(self, database: Database, *, connections: int, max_waiting: int) -> None:
        self.database = database
        self.pool = ConnectionPool(database, "gateway", connections, min_open=1)
        self.listener = Listener(database)
        self._slots = asyncio.Semaphore(connections)
        # apart from the requests, which may have to wait while the database answers
        self._probe = ReconnectingConnection(database, "ready")
        self._max_waiting = max_waiting
        self._listening = False
        self._waiting = 0

    async def open(self) -> None:
        """Open the database, as soon as it is there.

        Raises:
            EngineError: it refuses the connection, or its schema does not fit.
        """
        failures = 0
        while True:
            try:
                await self.database.open()
                await self.listener.start()
            except Unavailable as error:
                failures += 1
                self.database.outage.failed(error.message)
                await clock.sleep(backoff_s(failures))
            else:
                self._listening = True
                return

    async def close(self) -> None:
        """Close all connections."""
        if self._listening:
            await self.listener.stop()
        await self._probe.close()
        await self.pool.close()

    async def rpc(self, kind: str, text: str) -> dict[str, Any]:
        """Return the database's answer to a request of the protocol.

        Args:
            kind: its kind.
            text: the request as JSON.

        Raises:
            Refused: the database does not take the request, or is not there.
        """
        answer = await self.ask(RPC, text, repeatable=kind.startswith(_REPEATABLE))
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        if decoded["head"]["status"] == 503:
            # the one refusal of the database that is about the database
            raise Refused(503, _COPY, retry_after_s=_RETRY_AFTER_COPY_S)
        return decoded

    async def ask(self, procedure: Procedure, *values: Any, repeatable: bool = False) -> Any:
        """Run a statement for a request, and return the first column of its first row.

        Args:
            procedure: the statement.
            values: its parameters.
            repeatable: it may run twice, so it is sent again after a lost connection.

        Raises:
            Refused: the database does not take it, or is not there.
        """
        return await self._for_request(lambda conn: conn.fetchval(procedure.sql, *values), repeatable)

    async def rows(self, procedure: Procedure, *values: Any, repeatable: bool = False) -> list[Any]:
        """Run a statement for a request, and return its rows.

        Raises:
            Refused: as `ask`.
        """
        return await self._for_request(lambda conn: conn.fetch(procedure.sql, *values), repeatable)

    async def row(self, procedure: Procedure, *values: Any) -> Any:
        """Run a statement for a request, and return its one row.

        Raises:
            Refused: as `ask`.
        """
        rows = await self.rows(procedure, *values)
        return rows[0]

    async def is_ready(self) -> bool:
        """Return whether the database answers."""
        if not self.database.opened:
            return False
        try:
            async with clock.timeout(_READY_S):
                await self._probe.run(VERSION)
        except (EngineError, TimeoutError):
            return False
        return True

    async def _for_request(self, action: Callable[[Any], Awaitable[T]], repeatable: bool) -> T:
        if not self.database.opened:
            raise _unavailable("the database is not available")
        if self._waiting >= self._max_waiting:
            raise _unavailable("too many requests are waiting")
        self._waiting += 1
        try:
            async with clock.timeout(_WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise _unavailable("the database is busy") from None
        finally:
            self._waiting -= 1
        try:
            async with clock.timeout(_ANSWER_S):
                return await self._until_taken(action, repeatable)
        except TimeoutError:
            raise _unavailable("the database does not answer") from None
        except EngineError as error:
            raise _refused(error) from error
        finally:
            self._slots.release()

    async def _until_taken(self, action: Callable[[Any], Awaitable[T]], repeatable: bool) -> T:
        for attempt in range(1, _TRIES):
            try:
                return await self.pool.once(action)
            except Unavailable:
                if not repeatable:
                    raise
                repeatable = False
            except EngineError as error:
                if _sqlstate(error) not in _CONFLICTS:
                    raise
                await clock.sleep(random.uniform(0, backoff_pause(_RETRY_S, _RETRY_MAX_S, attempt)))
        return await self.pool.once(action)


def _unavailable(reason: str) -> Refused:
    return Refused(503, reason, retry_after_s=_RETRY_AFTER_S)


def _refused(error: EngineError) -> Refused:
    """Return the refusal for an error of a statement, which names no place and no secret."""
    code = _sqlstate(error)
    if isinstance(error, NotAdopted):
        return Refused(503, _COPY, retry_after_s=_RETRY_AFTER_COPY_S)
    if code in _STATUSES:
        return Refused(_STATUSES[code], error.message)
    if isinstance(error, InvalidRequest) or code in _TOO_MUCH:
        reason = getattr(error.__cause__, "message", None) or "it cannot be read"
        return Refused(400, f"the database does not take this request: {reason}")
    if code is None and not isinstance(error, Unavailable):
        logger.error("%s", error.message)
    if code is None or isinstance(error, Unavailable) or passes(code):
        return _unavailable("the database is not available")
    if code in _BUSY:
        return _unavailable("the database is busy")
    if isinstance(error, SchemaMismatch):
        return Refused(503, "the schema of the database does not fit this gateway")
    logger.error("a request failed in the database: %s", error.message, exc_info=error)
    return Refused(500, "internal error")


def _sqlstate(error: EngineError) -> str | None:
    code = getattr(error.__cause__, "sqlstate", None)
    return code if isinstance(code, str) else None
