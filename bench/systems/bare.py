"""The barest chain from a start to its result: not a peer, but the limit of this server and of its drivers.
One table, one plain statement each for start, claim, end and look, two notifications; it keeps nothing safe:
no lease, no journal, no law, and a run of a worker that ends is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction

_TABLE = (
    "create table bare (id bigint generated always as identity primary key, number bigint not null, "
    "state text not null default 'ready', result text)",
    "create index bare_ready on bare (id) where state = 'ready'",
)
_START = (
    "with run as (insert into bare (number) values ($1) returning id) "
    "select id, pg_notify('ready', '') from run"
)
_CLAIM = (
    "update bare set state = 'taken' "
    "where id = (select id from bare where state = 'ready' order by id limit 1 for update skip locked) "
    "returning id, number"
)
_END = (
    "with run as (update bare set state = 'done', result = $2 where id = $1) select pg_notify('settled', '')"
)
_RESULT = "select result from bare where id = $1 and state = 'done'"
_LOST_S = 1


class _Caller(Client):
    def __init__(self, conn: Any, settled: asyncio.Event) -> None:
        self._conn = conn
        self._settled = settled

    async def start(self, workflow: Workflow, number: int) -> Any:
        return await self._conn.fetchval(_START, number)

    async def result(self, handle: Any) -> Any:
        while True:
            await _heard(self._settled)
            found = await self._conn.fetchval(_RESULT, handle)
            if found is not None:
                return found


class Bare(System):
    """The chain."""

    name = "bare"
    packages = ("asyncpg",)
    settings = "the limit and no system: one table, one run at a time, two notifications, nothing kept safe"
    abilities = frozenset({"noop"})
    ended = "bare where state = 'done'"

    def install(self, dsn: str) -> None:
        """Its table."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            for statement in _TABLE:
                conn.execute(statement.encode())

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """A connection for statements and one that listens."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        async with _connected(dsn, "settled") as (conn, settled):
            yield _Caller(conn, settled)

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """One statement for all."""
        with transaction(dsn, self.schema, analyze) as (conn, gate):
            conn.execute("insert into bare (number) select n from generate_series(1, %s) n", (count,))
            conn.execute("select pg_notify('ready', '')")
            yield gate


SYSTEM = Bare


@asynccontextmanager
async def _connected(dsn: str, channel: str) -> AsyncIterator[tuple[Any, asyncio.Event]]:
    import asyncpg

    conn, ear, heard = await asyncpg.connect(dsn), await asyncpg.connect(dsn), asyncio.Event()
    try:
        await ear.add_listener(channel, lambda *_: heard.set())
        yield conn, heard
    finally:
        await ear.close()
        await conn.close()


async def _heard(event: asyncio.Event) -> None:
    """Wait for a notification, but not for ever for one that came before somebody listened."""
    try:
        async with asyncio.timeout(_LOST_S):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


async def _serve(dsn: str) -> None:
    async with _connected(dsn, "ready") as (conn, ready):
        while True:
            await _heard(ready)
            while run := await conn.fetchrow(_CLAIM):
                await conn.fetchval(_END, run["id"], f'{{"number": {run["number"]}}}')


def _main() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(sys.argv[1]))
    else:
        uvloop.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    _main()
