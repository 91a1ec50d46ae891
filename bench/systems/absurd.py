"""Absurd: its SDK on one connection for each worker and client, its SQL from absurdctl, polling
every 5 ms instead of every 250."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import psycopg

from bench.systems import Client, Gate, System, Workflow, transaction

_POLL_S = 0.005
_QUEUE, _CHILDREN = "bench", "bench_children"


class _Caller(Client):
    def __init__(self, app: Any) -> None:
        self._app = app

    async def start(self, workflow: Workflow, number: int) -> Any:
        spawned = await self._app.spawn(workflow, {"number": number}, queue=_QUEUE)
        return spawned["task_id"]

    async def result(self, handle: Any) -> Any:
        while True:  # its own await_task_result backs off to a poll a second: tuned, as the worker is
            found = await self._app.fetch_task_result(handle, queue_name=_QUEUE)
            if found is not None and found.state not in ("pending", "running", "sleeping"):
                if found.state != "completed":
                    raise RuntimeError(f"task {handle} is {found.state}")
                return found.result
            await asyncio.sleep(_POLL_S)

    async def signal(self, handle: Any) -> None:
        await self._app.emit_event(f"go-{handle}", {"number": 1}, queue_name=_QUEUE)


class AbsurdSystem(System):
    """Absurd, the SQL and its Python SDK."""

    name = "absurd"
    packages = ("absurd-sdk", "absurdctl", "psycopg")
    settings = (
        "async worker, concurrency 64 on the one connection the SDK gives it, polling every 5 ms (default "
        "250), results polled every 5 ms, claim_timeout 120 s; fan-out to a second queue, which its rules "
        "ask for, served by the same process on a connection of its own"
    )
    abilities = frozenset({"noop", "steps", "fan_out", "signal", "long", "naps", "space"})
    schema = "absurd"
    ended = f"absurd.t_{_QUEUE} where state = 'completed'"

    def install(self, dsn: str) -> None:
        """The SQL of its release, and two queues."""
        import absurdctl

        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(absurdctl.BUNDLED_SCHEMA_SQL.encode())
            for queue in (_QUEUE, _CHILDREN):
                conn.execute("select absurd.create_queue(%s)", (queue,))

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """An `AsyncAbsurd`."""
        return self._client(dsn)

    @asynccontextmanager
    async def _client(self, dsn: str) -> AsyncIterator[Client]:
        from absurd_sdk import AsyncAbsurd

        app = AsyncAbsurd(dsn, queue_name=_QUEUE)
        try:
            yield _Caller(app)
        finally:
            await app.close()

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """It has no call for many: its function for one, called for each in one statement."""
        with transaction(dsn, self.schema, analyze) as (conn, gate):
            conn.execute(
                "select count(*) from generate_series(1, %s) n, absurd.spawn_task(%s, %s, "
                "jsonb_build_object('number', n), '{\"max_attempts\": 5}')",
                (count, _QUEUE, workflow),
            )
            yield gate


SYSTEM = AbsurdSystem


def _define(app: Any, children: Any) -> None:
    from bench.workflows import tenths

    async def noop(params: Any, ctx: Any) -> Any:
        return {"number": params["number"]}

    async def steps(ctx: Any, count: int, total: int) -> Any:
        for index in range(count):

            async def tick(index: int = index) -> dict[str, int]:
                return {"number": index}

            total += (await ctx.step(f"tick-{index}", tick))["number"]
        return {"number": total}

    async def few_steps(params: Any, ctx: Any) -> Any:
        return await steps(ctx, params["number"], 0)

    async def ten_steps(params: Any, ctx: Any) -> Any:
        return await steps(ctx, 10, params["number"])

    async def stamp() -> float:
        return time.monotonic()

    async def long(params: Any, ctx: Any) -> Any:
        return tenths([await ctx.step(f"stamp-{index}", stamp) for index in range(params["number"])])

    async def naps(params: Any, ctx: Any) -> Any:
        stamps = []
        for index in range(params["number"]):
            stamps.append(await ctx.step(f"stamp-{index}", stamp))
            await ctx.sleep_for(f"nap-{index}", 0.02)
        return tenths(stamps)

    async def signalled(params: Any, ctx: Any) -> Any:
        return await ctx.await_event(f"go-{ctx.task_id}")

    async def fan_out(params: Any, ctx: Any) -> Any:
        async def spawn(index: int) -> str:
            spawned = await children.spawn("noop", {"number": index}, queue=_CHILDREN)
            return str(spawned["task_id"])

        tasks = [
            await ctx.step(f"spawn-{index}", lambda index=index: spawn(index))
            for index in range(params["number"])
        ]
        found = [await ctx.await_task_result(task, queue_name=_CHILDREN) for task in tasks]
        return {"number": sum(one.result["number"] for one in found)}

    for task in (noop, few_steps, ten_steps, long, naps, signalled, fan_out):
        app.register_task(task.__name__)(task)
    children.register_task("noop")(noop)


async def _serve(dsn: str) -> None:
    from absurd_sdk import AsyncAbsurd

    app, children = AsyncAbsurd(dsn, queue_name=_QUEUE), AsyncAbsurd(dsn, queue_name=_CHILDREN)
    _define(app, children)
    await asyncio.gather(
        *(
            one.start_worker(concurrency=64, claim_timeout=120, poll_interval=_POLL_S)
            for one in (app, children)
        )
    )


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
