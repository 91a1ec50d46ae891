"""The transport of asynchronous programs.

Lives here: `AsyncpgTransport`, which runs statements on a pool of asyncpg connections, listens for hints, and
waits for results. May not: a verb, SQL text.
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
from pyengine.database.statements.procedures import START, Procedure, StartRequest
from pyengine.errors import InvalidRequest

__all__ = ["AsyncpgTransport"]


class AsyncpgTransport:
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
        caller_connection.check_values(procedure, values)
        await self.open()
        return await self._pool.rows(procedure, *values)

    async def run_on(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure on an asynchronous connection of the caller's.

        Raises:
            EngineError: as `rows`; InvalidRequest if the connection is of an unsupported kind.
        """
        refuse_workflow()
        return await caller_connection.run_on(conn, procedure, *values)

    async def start(self, request: StartRequest) -> Any:
        """Start a run, notify workers, and listen for results from now on.

        Raises:
            EngineError: as `rows`.
        """
        refuse_workflow()
        caller_connection.check_values(START, (*request, False, None))
        await self.open()
        with_commit = self.with_commit("durable_ready")
        address = self._results.address if with_commit else None
        (row,) = await self._pool.rows(START, *request, with_commit, address)
        if row["handed_off"]:
            self._listener.allow_next("durable_ready")
            await self._results.listen()
        elif row["created"]:
            await self.announce("durable_ready", with_commit=with_commit)
        return row

    @property
    def hint_count(self) -> int | None:
        """The number of hints that a promise settled; None while not listening."""
        return self._results.hint_count

    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit."""
        return self._listener.with_commit(channel)

    async def announce(self, channel: Channel, *, with_commit: bool) -> None:
        """Wake this process and, unless a commit has sent the hint, the others, soon."""
        await self._results.listen()
        self._listener.announce(channel, with_commit=with_commit)

    async def ended(self, id: str, timeout_s: float | None, hint_count: int | None = None) -> Any:
        """Wait until a run has ended; `hint_count` is the property's value before its start.

        Raises:
            TimeoutError: it has not ended in time.
            InvalidRequest: the id is invalid.
        """
        refuse_workflow()
        await self.open()
        return await self._results.wait(id, timeout_s, hint_count)

    async def close(self) -> None:
        """Close the connections; waits for results raise CancelledError."""
        self._closed = True
        await self._results.close()
        await self._pool.close()
