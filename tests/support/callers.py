"""Connections and sessions of callers, of every kind that `conn=` takes, driven alike.

What lives here: `Caller`, one open connection with the words of its driver for begin, commit, savepoint;
the kinds by name; and `Awaited`, a client that blocks seen as one that awaits, so that one text tests both.
No law is stated here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as sessions
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pyengine import Client
from pyengine.sync import Client as SyncClient
from pyengine.sync import SyncRun


@dataclass
class Caller:
    """A connection or session of somebody who uses the engine."""

    conn: Any
    """What is given as `conn`."""
    begin: Callable[[], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]
    savepoint: Callable[[], AbstractAsyncContextManager[object]]
    """An error inside takes it back."""
    execute: Callable[[str], Awaitable[object]]


class Awaited:
    """A client, handle or promises that block, with verbs to be awaited."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "promises":
            return Awaited(value)
        if not callable(value):
            return value

        async def verb(*args: Any, **kwargs: Any) -> Any:
            answer = value(*args, **kwargs)
            return Awaited(answer) if isinstance(answer, SyncRun) else answer

        return verb


async def nothing() -> None:
    """Begin a transaction where the first statement does that by itself."""


def awaited(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a function that blocks as one to be awaited."""

    async def call(*args: Any) -> Any:
        return function(*args)

    return call


def entered(block: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[object]]:
    """Return a function that gives a `with` block as one that gives an `async with` block."""

    @asynccontextmanager
    async def enter() -> AsyncIterator[None]:
        with block():
            yield

    return enter


@asynccontextmanager
async def of_asyncpg(dsn: str) -> AsyncIterator[Caller]:
    """A connection of asyncpg."""
    conn = await asyncpg.connect(dsn)
    yield asyncpg_caller(conn)
    await conn.close()


@asynccontextmanager
async def of_asyncpg_pool(dsn: str) -> AsyncIterator[Caller]:
    """A connection of a pool of asyncpg, which is a proxy."""
    options = {"min_size": 1, "max_size": 1, "statement_cache_size": 0}
    async with asyncpg.create_pool(dsn, **options) as pool, pool.acquire() as conn:
        yield asyncpg_caller(conn)


def asyncpg_caller(conn: Any) -> Caller:
    """The words of asyncpg."""
    open_now = []

    async def begin() -> None:
        open_now.append(conn.transaction())
        await open_now[-1].start()

    async def commit() -> None:
        await open_now.pop().commit()

    async def rollback() -> None:
        await open_now.pop().rollback()

    return Caller(conn, begin, commit, rollback, conn.transaction, conn.execute)


@asynccontextmanager
async def of_psycopg_async(dsn: str) -> AsyncIterator[Caller]:
    """An AsyncConnection of psycopg, whose first statement begins a transaction."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield Caller(conn, nothing, conn.commit, conn.rollback, conn.transaction, conn.execute)


@asynccontextmanager
async def of_psycopg(dsn: str) -> AsyncIterator[Caller]:
    """A Connection of psycopg."""
    with psycopg.connect(dsn) as conn:
        yield Caller(
            conn,
            nothing,
            awaited(conn.commit),
            awaited(conn.rollback),
            entered(conn.transaction),
            awaited(conn.execute),
        )


def of_sqlalchemy_async(driver: str, wanted: type) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    """Sessions and connections of SQLAlchemy that are awaited."""

    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(
            make_url(dsn).set(drivername=f"postgresql+{driver}"),
            poolclass=NullPool,
            connect_args=POOLED[driver],
        )
        if wanted is AsyncConnection:
            conn: Any = await engine.connect()
        elif wanted is AsyncSession:
            conn = AsyncSession(engine)
        else:
            conn = async_scoped_session(sessions(engine), scopefunc=lambda: 1)

        async def execute(statement: str) -> object:
            return await conn.execute(text(statement))

        yield Caller(conn, nothing, conn.commit, conn.rollback, conn.begin_nested, execute)
        await conn.close()
        await engine.dispose()

    return opened


def of_sqlalchemy(wanted: type) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    """Sessions and connections of SQLAlchemy that block, over psycopg."""

    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Caller]:
        engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"), poolclass=NullPool)
        if wanted is Connection:
            conn: Any = engine.connect()
        else:
            conn = Session(engine) if wanted is Session else scoped_session(sessionmaker(engine))

        def execute(statement: str) -> object:
            return conn.execute(text(statement))

        yield Caller(
            conn,
            nothing,
            awaited(conn.commit),
            awaited(conn.rollback),
            entered(conn.begin_nested),
            awaited(execute),
        )
        conn.close()
        engine.dispose()

    return opened


# what asyncpg and SQLAlchemy need behind a pooler, and is no harm without one
POOLED = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"of_tests_{uuid4().hex}",
    },
    "psycopg": {"prepare_threshold": None},
}

Opener = Callable[[str], AbstractAsyncContextManager[Caller]]

ASYNC: dict[str, Opener] = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpg_pool,
    "psycopg async": of_psycopg_async,
    "AsyncSession asyncpg": of_sqlalchemy_async("asyncpg", AsyncSession),
    "AsyncConnection asyncpg": of_sqlalchemy_async("asyncpg", AsyncConnection),
    "AsyncSession psycopg": of_sqlalchemy_async("psycopg", AsyncSession),
    "AsyncConnection psycopg": of_sqlalchemy_async("psycopg", AsyncConnection),
    "async_scoped_session asyncpg": of_sqlalchemy_async("asyncpg", async_scoped_session),
}
BLOCKING: dict[str, Opener] = {
    "psycopg": of_psycopg,
    "Session": of_sqlalchemy(Session),
    "Connection": of_sqlalchemy(Connection),
    "scoped_session": of_sqlalchemy(scoped_session),
}


@asynccontextmanager
async def open_caller(kind: str, dsn: str) -> AsyncIterator[tuple[Any, Caller]]:
    """Give a client and a caller's connection of that kind, which go together."""
    if kind in ASYNC:
        async with Client(dsn) as client, ASYNC[kind](dsn) as caller:
            yield client, caller
    else:
        with SyncClient(dsn) as blocking:
            async with BLOCKING[kind](dsn) as caller:
                yield Awaited(blocking), caller
