"""A place between a worker and its turns, where tests kill, settle or count. Patches the driver, so nothing
of the worker is replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

Send: TypeAlias = Callable[[], Awaitable[Any]]
Watch: TypeAlias = Callable[[Send, tuple[Any, ...]], Awaitable[Any]]


def carries(sent: tuple[Any, ...]) -> bool:
    """Whether the arguments of a turn hold reports."""
    return any(isinstance(value, str) and value.startswith("[{") for value in sent)


def intercept(watch: Watch) -> Callable[[], None]:
    """Send every turn of this process through `watch`, which gets the call to make and its arguments;
    answers how to undo it."""
    plain, prepared = asyncpg.Connection.fetchval, PreparedStatement.fetchval

    async def fetchval(self: Any, query: str, *args: Any, **more: Any) -> Any:
        if "worker_turn_v1" not in query:
            return await plain(self, query, *args, **more)
        return await watch(lambda: plain(self, query, *args, **more), args)

    async def fetchval_prepared(self: Any, *args: Any, **more: Any) -> Any:
        if "worker_turn_v1" not in self.get_query():
            return await prepared(self, *args, **more)
        return await watch(lambda: prepared(self, *args, **more), args)

    def undo() -> None:
        asyncpg.Connection.fetchval = plain
        PreparedStatement.fetchval = prepared

    asyncpg.Connection.fetchval = fetchval
    PreparedStatement.fetchval = fetchval_prepared
    return undo
