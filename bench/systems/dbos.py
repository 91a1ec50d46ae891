"""DBOS: the client outside the application for starts, a queue without limits for its worker, both polling
every 10 ms instead of every second."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.systems import NOW, Client, Gate, System, Workflow

_POLL_S = 0.01
_QUEUE = "bench"


def _url(dsn: str) -> str:
    return urlsplit(dsn)._replace(scheme="postgresql+psycopg").geturl()


def _options(workflow: Workflow) -> Any:
    return {"queue_name": _QUEUE, "workflow_name": workflow}


class _Caller(Client):
    def __init__(self, client: Any) -> None:
        self._client = client

    async def start(self, workflow: Workflow, number: int) -> Any:
        return await self._client.enqueue_async(_options(workflow), number)

    async def result(self, handle: Any) -> Any:
        return await handle.get_result(polling_interval_sec=_POLL_S)

    async def signal(self, handle: Any) -> None:
        await self._client.send_async(handle.get_workflow_id(), {"number": 1}, topic="go")


class DBOSSystem(System):
    """DBOS Transact for Python."""

    name = "dbos"
    packages = ("dbos", "SQLAlchemy", "psycopg")
    settings = (
        "async workflows, a queue without limits that is polled every 10 ms (default 1 s), results polled "
        "every 10 ms (default 1 s), listen/notify on, pool of 20, default serializer"
    )
    abilities = frozenset({"noop", "steps", "fan_out", "signal", "long", "naps", "space"})
    schema = "dbos"
    ended = "dbos.workflow_status where status = 'SUCCESS'"

    def install(self, dsn: str) -> None:
        """Its own migrations."""
        from dbos import DBOS

        DBOS.migrate(_url(dsn))

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """A `DBOSClient`."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        from dbos import DBOSClient

        client = DBOSClient(system_database_url=_url(dsn))
        try:
            yield _Caller(client)
        finally:
            client.destroy()

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """It has no call for many: one enqueue after the other in one transaction."""
        import sqlalchemy as sa
        from dbos import DBOSClient

        client = DBOSClient(system_database_url=_url(dsn))
        engine = sa.create_engine(_url(dsn))
        with engine.connect() as conn:
            for number in range(count):
                client.enqueue_in_transaction(conn, _options(workflow), number)

            def gate() -> float:
                if analyze:
                    conn.execute(sa.text("analyze dbos.workflow_status, dbos.operation_outputs"))
                begin = conn.execute(sa.text(NOW)).scalar_one()
                conn.commit()
                return float(begin)

            yield gate
        engine.dispose()
        client.destroy()


SYSTEM = DBOSSystem


def _define() -> None:
    from dbos import DBOS

    from bench.workflows import tenths

    @DBOS.step()
    async def tick(number: int) -> dict[str, int]:
        return {"number": number}

    @DBOS.step()
    async def stamp(number: int) -> float:
        return time.monotonic()

    @DBOS.workflow(name="noop")
    async def noop(number: int) -> dict[str, int]:
        return {"number": number}

    @DBOS.workflow(name="few_steps")
    async def few_steps(count: int) -> dict[str, int]:
        return {"number": sum([(await tick(index))["number"] for index in range(count)])}

    @DBOS.workflow(name="ten_steps")
    async def ten_steps(number: int) -> dict[str, int]:
        total = number
        for index in range(10):
            total += (await tick(index))["number"]
        return {"number": total}

    @DBOS.workflow(name="fan_out")
    async def fan_out(width: int) -> dict[str, int]:
        children = [await DBOS.start_workflow_async(noop, index) for index in range(width)]
        found = [(await child.get_result(polling_interval_sec=_POLL_S)) for child in children]
        return {"number": sum(one["number"] for one in found)}

    @DBOS.workflow(name="signalled")
    async def signalled(number: int) -> Any:
        return await DBOS.recv_async("go", timeout_seconds=600)

    @DBOS.workflow(name="long")
    async def long(steps: int) -> list[float]:
        return tenths([await stamp(index) for index in range(steps)])

    @DBOS.workflow(name="naps")
    async def naps(count: int) -> list[float]:
        stamps = []
        for index in range(count):
            stamps.append(await stamp(index))
            await DBOS.sleep_async(0.02)
        return tenths(stamps)


async def _serve(dsn: str) -> None:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": _url(dsn),
            "sys_db_pool_size": 20,
            "log_level": "WARNING",
        }
    )
    _define()
    DBOS.launch()
    await DBOS.register_queue_async(_QUEUE, polling_interval_sec=_POLL_S)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
