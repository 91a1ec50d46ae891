"""pgqueuer: a queue of jobs without steps. Its worker takes and reports jobs in batches; its own call for
many jobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction

_MANY = 5_000
_POLL_S = 0.002
_BATCH = 100


class _Caller(Client):
    def __init__(self, queries: Any) -> None:
        self._queries = queries

    async def start(self, workflow: Workflow, number: int) -> Any:
        return (await self._queries.enqueue(workflow, b'{"number": %d}' % number))[0]

    async def result(self, handle: Any) -> Any:
        # jobs have no results, and its CompletionWatcher sleeps for 50 ms: this is its query with a shorter
        # pause
        while True:
            for _, status in await self._queries.job_status([handle]):
                if status in ("successful", "exception", "canceled", "deleted"):
                    return status
            await asyncio.sleep(_POLL_S)


class _InTransaction:
    """Its driver for programs that block, over a connection whose transaction is ours."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    def fetch(self, query: str, *args: object) -> list[dict[str, object]]:
        from psycopg.raw_cursor import RawCursor
        from psycopg.rows import dict_row

        return RawCursor(self._conn, row_factory=dict_row).execute(query.encode(), args or None).fetchall()


class PgQueuerSystem(System):
    """pgqueuer over asyncpg."""

    name = "pgqueuer"
    packages = ("pgqueuer", "asyncpg")
    settings = (
        f"asyncpg driver, batch_size {_BATCH}, no limit of concurrency, statistics not folded meanwhile; "
        "ends of jobs polled every 2 ms"
    )
    abilities = frozenset({"noop", "bulk"})
    backlog = 20_000
    ended = "pgqueuer_log where status = 'successful'"

    def install(self, dsn: str) -> None:
        """Its own installation."""
        asyncio.run(self._install(dsn))

    async def _install(self, dsn: str) -> None:
        async with self._queries(dsn) as queries:
            await queries.install()

    @asynccontextmanager
    async def _queries(self, dsn: str) -> AsyncIterator[Any]:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        conn = await asyncpg.connect(dsn)
        try:
            yield Queries(AsyncpgDriver(conn))
        finally:
            await conn.close()

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """Its `Queries` over one connection."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        async with self._queries(dsn) as queries:
            yield _Caller(queries)

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """Its `enqueue` with lists."""
        from pgqueuer.queries import SyncQueries

        with transaction(dsn, self.schema, analyze) as (conn, gate):
            queries = SyncQueries(_InTransaction(conn))
            for begin in range(0, count, _MANY):
                some = range(begin, min(begin + _MANY, count))
                payloads: list[bytes | None] = [b'{"number": %d}' % number for number in some]
                queries.enqueue([workflow] * len(some), payloads, [0] * len(some))
            yield gate


SYSTEM = PgQueuerSystem


async def _serve(dsn: str) -> None:
    import asyncpg
    from pgqueuer import PgQueuer

    conn = await asyncpg.connect(dsn)
    app = PgQueuer.from_asyncpg_connection(conn)

    @app.entrypoint("noop")
    async def noop(job: Any) -> None:
        return None

    await app.run(batch_size=_BATCH, log_aggregation_interval=timedelta(0))


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
