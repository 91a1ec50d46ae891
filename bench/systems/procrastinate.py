"""procrastinate: a queue of jobs without steps. Its asynchronous worker with listen/notify, its own call for
many jobs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction

_MANY = 5_000
_POLL_S = 0.002


def _app(dsn: str, most: int) -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=most))

    @app.task(name="noop")
    async def noop(number: int) -> dict[str, int]:
        return {"number": number}

    return app


class _Caller(Client):
    def __init__(self, app: Any) -> None:
        self._app = app

    async def start(self, workflow: Workflow, number: int) -> Any:
        return await self._app.tasks[workflow].defer_async(number=number)

    async def result(self, handle: Any) -> Any:
        # jobs have no results; that it succeeded is all there is to wait for
        while True:
            status = (await self._app.job_manager.get_job_status_async(handle)).value
            if status not in ("todo", "doing"):
                return status
            await asyncio.sleep(_POLL_S)


class ProcrastinateSystem(System):
    """procrastinate over psycopg."""

    name = "procrastinate"
    packages = ("procrastinate", "psycopg")
    settings = "async worker, concurrency 32, pool of 34, listen/notify; ends of jobs polled every 2 ms"
    abilities = frozenset({"noop", "bulk"})
    backlog = 3_000
    ended = "procrastinate_jobs where status = 'succeeded'"

    def install(self, dsn: str) -> None:
        """Its schema file."""
        from procrastinate.schema import SchemaManager

        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SchemaManager.get_schema().encode())

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """An `App` with a pool."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        app = _app(dsn, 2)
        async with app.open_async():
            yield _Caller(app)

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """The function behind `batch_defer`, as its client calls it."""
        with transaction(dsn, self.schema, analyze) as (conn, gate):
            for begin in range(0, count, _MANY):
                args = [json.dumps({"number": n}) for n in range(begin, min(begin + _MANY, count))]
                conn.execute(
                    "select count(*) from unnest(procrastinate_defer_jobs_v1(array(select row('default', %s, "
                    "0, null, null, a, null)::procrastinate_job_to_defer_v1 from unnest(%s::jsonb[]) a)))",
                    (workflow, args),
                )
            yield gate


SYSTEM = ProcrastinateSystem


async def _serve(dsn: str) -> None:
    app = _app(dsn, 34)
    async with app.open_async():
        await app.run_worker_async(concurrency=32, listen_notify=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
