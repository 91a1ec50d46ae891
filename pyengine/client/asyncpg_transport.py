"""The transport of programs that await.

What lives here: `AsyncpgTransport`, which runs statements on a pool of asyncpg connections, listens for
hints, and waits for results. What may not: a verb, SQL text.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pyengine.client import caller_connection
from pyengine.client.results import ResultPoller
from pyengine.client.transport import refuse_workflow
from pyengine.database.connection import Database
from pyengine.database.listener import Listener
from pyengine.database.poll_schedule import Channel
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.procedures import START, Procedure
from pyengine.errors import InvalidRequest

__all__ = ["AsyncpgTransport"]


class AsyncpgTransport:
    """Asks on connections of asyncpg.

    Args:
        database: where to.
        listener: receives hints, and sends them.
        connections: connections for statements, at most.
    """

    def __init__(self, database: Database, listener: Listener, connections: int) -> None:
        self._database = database
        self._listener = listener
        self._links = ConnectionPool(database, "client", connections)
        self._waiting = ResultPoller(self._links, listener)
        self._opening = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Check the database, once.

        Raises:
            EngineError: it cannot be used.
        """
        if self._database.opened and not self._closed:
            return
        async with self._opening:
            if self._closed:
                raise InvalidRequest("this client is closed")
            await self._database.open()

    async def rows(self, procedure: Procedure, *values: Any) -> list[Any]:
        """Run a procedure that may be run twice, and return its rows.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        refuse_workflow()
        caller_connection.checked(procedure, values)
        await self.open()
        return await self._links.rows(procedure, *values)

    async def within(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure on an asynchronous connection of the caller's.

        Raises:
            EngineError: as `rows`; InvalidRequest if that is no connection which is taken.
        """
        refuse_workflow()
        return await caller_connection.ask(conn, procedure, *values)

    async def start(self, values: tuple[Any, ...], *, fresh: bool) -> Any:
        """Start a run, tell of it, and listen for ends from now on.

        Raises:
            EngineError: as `rows`.
        """
        refuse_workflow()
        caller_connection.checked(START, (*values, fresh, False, None))
        await self.open()
        sent = self.along("durable_ready")
        reply = self._waiting.reply if sent else None
        (row,) = await self._links.rows(START, *values, fresh, sent, reply)
        if row["handed"]:
            self._listener.one_more("durable_ready")
            await self._waiting.listen()
        elif row["created"]:
            await self.hint("durable_ready", sent=sent)
        return row

    @property
    def heard(self) -> int | None:
        """How many hints that promises settled have come; None before anybody listens."""
        return self._waiting.heard

    def along(self, channel: Channel) -> bool:
        """Whether a statement may send this hint itself, with its commit."""
        return self._listener.along(channel)

    async def hint(self, channel: Channel, *, sent: bool = False) -> None:
        """Tell subscribers of this process and, unless they were, of others to look again, soon."""
        await self._waiting.listen()
        self._listener.announce(channel, sent=sent)

    async def ended(self, id: str, timeout_s: float | None, since: int | None = None) -> Any:
        """Wait for the end of a run that was started when so many hints had come.

        Raises:
            TimeoutError: it has not ended in time.
            InvalidRequest: that can be no id.
        """
        refuse_workflow()
        await self.open()
        return await self._waiting.wait(id, timeout_s, since)

    async def close(self) -> None:
        """Close the connections; whoever still waits for a result gets a CancelledError."""
        self._closed = True
        await self._waiting.close()
        await self._links.close()
