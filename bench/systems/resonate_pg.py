"""resonate-pg: the SQL that is a Resonate server, driven by a minimal worker over asyncpg instead of an SDK,
so it is measured without the processor time of one. Its SQL is in no package: RESONATE_PG_SQL names it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction

_SQL = "RESONATE_PG_SQL"
_TARGET = "poll://any@bench"
_POOL, _BATCH, _RUNS = 16, 100, 64
_TTL_MS, _TICK_S, _LOST_S = 60_000, 5, 1
_FOR_EVER_MS = 4_102_444_800_000  # the year 2100
_SETTINGS = {"search_path": "resonate, public"}
_RPC = "select resonate.resonate_rpc($1::text::jsonb)::text"
_CREATE = (
    "select count(resonate.promise_create('run-' || %s::text || '-' || n, %s, jsonb_build_object("
    "'headers', '{}'::jsonb, 'data', replace(encode(convert_to(jsonb_build_object("
    "'func', %s::text, 'args', jsonb_build_array(n))::text, 'utf8'), 'base64'), E'\\n', '')), "
    "jsonb_build_object('resonate:target', %s::text), "
    "(extract(epoch from clock_timestamp()) * 1000)::bigint)) from generate_series(1, %s) n"
)


def _encoded(value: object) -> dict[str, Any]:
    return {"headers": {}, "data": base64.b64encode(json.dumps(value).encode()).decode()}


def _decoded(value: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(value["data"]))


class _Conflict(RuntimeError):
    """The state of what is asked for does not allow it."""


async def _rpc(conn: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    answer = json.loads(await conn.fetchval(_RPC, json.dumps({"kind": kind, "head": {}, "data": data})))
    if answer["head"]["status"] not in (200, 201):
        raise (_Conflict if answer["head"]["status"] == 409 else RuntimeError)(f"{kind}: {answer}")
    found = answer["data"]
    assert isinstance(found, dict)
    return found


async def _create(conn: Any, promise_id: str, param: object, tags: dict[str, str]) -> None:
    data = {"id": promise_id, "timeoutAt": _FOR_EVER_MS, "param": _encoded(param), "tags": tags}
    await _rpc(conn, "promise.create", data)


class _Caller(Client):
    def __init__(self, conn: Any, heard: asyncio.Event, address: str) -> None:
        self._conn = conn
        self._heard = heard
        self._address = address

    async def start(self, workflow: Workflow, number: int) -> Any:
        run = f"run-{uuid.uuid4()}"
        await _create(self._conn, run, {"func": workflow, "args": [number]}, {"resonate:target": _TARGET})
        return run

    async def result(self, handle: Any) -> Any:
        asked = {"awaited": handle, "address": self._address}
        promise = (await _rpc(self._conn, "promise.register_listener", asked))["promise"]
        while promise["state"] == "pending":
            await _wait(self._heard)
            for (text,) in await self._conn.fetch(
                "select promise::text from resonate.dequeue_unblock($1)", self._address
            ):
                if (found := json.loads(text))["id"] == handle:
                    promise = found
        return _decoded(promise["value"])


class ResonatePgSystem(System):
    """resonate-pg without an SDK."""

    name = "resonate_pg"
    packages = ("asyncpg",)
    settings = (
        f"no SDK: a worker of {_RUNS} runs over {_POOL} connections, {_BATCH} offers at once, LISTEN, a "
        "create and a settle for each step, ttl 60 s, timers every 5 s"
    )
    abilities = frozenset({"noop", "steps", "space"})
    schema = "resonate"
    ended = "resonate.promises where state = 'resolved' and tags ? 'resonate:target'"

    def missing(self) -> str | None:
        """Its SQL is found by an environment variable."""
        path = os.environ.get(_SQL)
        if path is None or not Path(path).is_file():
            return f"{_SQL} does not name its resonate.sql"
        return super().missing()

    def install(self, dsn: str) -> None:
        """Its file; without pg_cron it warns, and the worker calls its timers."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(Path(os.environ[_SQL]).read_bytes())

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """Connections for its procedure, one for each of up to 16 callers at once, and one that listens."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        address = f"poll://uni@caller/{uuid.uuid4()}"
        async with _connections(dsn) as pool, _listening(dsn, address) as heard:
            yield _Caller(pool, heard, address)

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """Its function for one, called for each in one statement."""
        with transaction(dsn, self.schema, analyze) as (conn, gate):
            batch = str(uuid.uuid4())
            conn.execute("set local search_path to resonate, public")
            conn.execute(_CREATE.encode(), (batch, _FOR_EVER_MS, workflow, _TARGET, count))
            yield gate


SYSTEM = ResonatePgSystem


def _connections(dsn: str) -> AbstractAsyncContextManager[Any]:
    import asyncpg

    pool: AbstractAsyncContextManager[Any] = asyncpg.create_pool(
        dsn, min_size=1, max_size=_POOL, server_settings=_SETTINGS
    )
    return pool


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    import asyncpg

    conn = await asyncpg.connect(dsn, server_settings=_SETTINGS)
    try:
        yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def _listening(dsn: str, address: str) -> AsyncIterator[asyncio.Event]:
    heard = asyncio.Event()
    async with _connected(dsn) as conn:
        channel = await conn.fetchval("select resonate.outbox_channel($1)", address)
        await conn.add_listener(channel, lambda *_: heard.set())
        yield heard


async def _wait(event: asyncio.Event) -> None:
    """Wait for a notification, but not for ever for one that came before the listener."""
    try:
        async with asyncio.timeout(_LOST_S):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


async def _execute(conn: Any, task_id: str, version: int, pid: str) -> None:
    lease = {"id": task_id, "version": version, "pid": pid, "ttl": _TTL_MS}
    try:
        acquired = await _rpc(conn, "task.acquire", lease)
    except _Conflict:
        return  # a slow machine is offered a task again before it is acquired
    asked = _decoded(acquired["promise"]["param"])
    number = int(asked["args"][0])
    for index in range({"ten_steps": 10, "few_steps": number}.get(asked["func"], 0)):
        step = f"{task_id}.{index}"
        await _create(conn, step, None, {"resonate:scope": "local"})
        await _rpc(
            conn, "promise.settle", {"id": step, "state": "resolved", "value": _encoded({"number": index})}
        )
    done = {"id": task_id, "state": "resolved", "value": _encoded({"number": number})}
    fulfil = {"id": task_id, "version": acquired["task"]["version"], "action": {"data": done}}
    await _rpc(conn, "task.fulfill", fulfil)


async def _ticks(dsn: str) -> None:
    async with _connected(dsn) as conn:
        while True:
            await asyncio.sleep(_TICK_S)
            await conn.fetchval("select resonate.process_timeouts()")


async def _serve(dsn: str) -> None:
    pid, free, runs = f"bench-{os.getpid()}", asyncio.Queue[Any](), asyncio.Semaphore(_RUNS)

    async def run(task_id: str, version: int) -> None:
        conn = await free.get()
        try:
            await _execute(conn, task_id, version, pid)
        finally:
            free.put_nowait(conn)
            runs.release()

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for _ in range(_POOL):
            free.put_nowait(await stack.enter_async_context(_connected(dsn)))
        heard = await stack.enter_async_context(_listening(dsn, _TARGET))
        outbox = await stack.enter_async_context(_connected(dsn))
        tasks.create_task(_ticks(dsn))
        while True:
            offers = await outbox.fetch("select * from resonate.dequeue_execute($1, $2)", _TARGET, _BATCH)
            for task_id, version in offers:
                await runs.acquire()
                tasks.create_task(run(task_id, version))
            if len(offers) < _BATCH:
                await _wait(heard)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
