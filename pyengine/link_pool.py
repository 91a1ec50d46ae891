"""A few connections for many callers.

What lives here: `LinkPool`. What may not: what a connection is and what its failure means (connection.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from pyengine.connection import Database, Link
from pyengine.errors import Unavailable
from pyengine.procedures import Procedure

__all__ = ["LinkPool"]

T = TypeVar("T")


class LinkPool:
    """A few links that callers take in turn.

    Args:
        database: where to.
        role: what for.
        size: connections at a time, at most.
    """

    def __init__(self, database: Database, role: str, size: int) -> None:
        self._links = [Link(database, role) for _ in range(size)]
        self._tidying: set[asyncio.Task[None]] = set()
        # last in, first out: as many connections as are needed and no more
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for link in reversed(self._links):
            self._free.put_nowait(link)

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
        link = await self._free.get()
        try:
            try:
                return await link.use(action)
            except Unavailable:
                return await link.use(action)
        finally:
            self._free.put_nowait(link)

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[Link]:
        """Take a link for as long as the block lasts; what users' statements left in its session goes."""
        link = await self._free.get()
        try:
            yield link
        finally:
            tidying = asyncio.get_running_loop().create_task(self._tidy(link))
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)

    async def _tidy(self, link: Link) -> None:
        try:
            await link.clean()
        finally:
            self._free.put_nowait(link)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._tidying, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links))
