"""Ours: the client that awaits, `durable.start_many` for backlogs, `pyengine worker` as users start it."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction
from pyengine import Client as Ours
from pyengine.doors.admin import migrate

_MANY = 5_000


class _Caller(Client):
    def __init__(self, client: Ours) -> None:
        self._client = client

    async def start(self, workflow: Workflow, number: int) -> Any:
        return await self._client.start(workflow, number)

    async def result(self, handle: Any) -> Any:
        return await handle.result(timeout=600)

    async def signal(self, handle: Any) -> None:
        await handle.signal("go", {"number": 1})


class PyEngine(System):
    """The engine of this repository."""

    name = "pyengine"
    packages = ("pyengine-durable", "asyncpg")
    settings = "defaults; `pyengine worker`, one process"
    abilities = frozenset({"noop", "steps", "fan_out", "signal", "long", "naps", "bulk", "space", "own"})
    backlog = 20_000
    schema = "durable"
    ended = "durable._promises where state <> 'pending'"

    def install(self, dsn: str) -> None:
        """The schema of this clone."""
        migrate.install(dsn)

    def command(self, dsn: str) -> list[str]:
        """The worker as users start it."""
        return [sys.executable, "-m", "pyengine", "--database-url", dsn, "worker", "bench.workflows:app"]

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """A `pyengine.Client`."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        async with Ours(dsn) as client:
            yield _Caller(client)

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """`durable.start_many`, with ids as long as those of the others."""
        with transaction(dsn, self.schema, analyze) as (conn, gate):
            for begin in range(0, count, _MANY):
                some = range(begin, min(begin + _MANY, count))
                conn.execute(
                    "select count(*) from durable.start_many(%s, array(select jsonb_build_array(n) from "
                    "unnest(%s::integer[]) n), ids => %s, any_workflow => true)",
                    (workflow, list(some), [str(uuid.uuid4()) for _ in some]),
                )
            yield gate

    def violations(self, conn: psycopg.Connection[Any]) -> list[str]:
        """The laws: `durable.check()`."""
        return [str(row) for row in conn.execute("select * from durable.check()").fetchall()]


SYSTEM = PyEngine
