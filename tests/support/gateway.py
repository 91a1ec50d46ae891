"""The protocol over HTTP, for tests that run published SDKs: one page, on the loopback interface only.

What lives here: `POST /`, which hands an envelope to durable.rpc; `GET /poll/{group}/{pid}`, a stream of what
waits for that member; and the ticks of a small deployment. What may not: any rule of the protocol. It leaves
out what a gateway for users needs: tokens, limits, push, more than one process.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import asyncpg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

POLL_S = 0.03
START_S = 30.0
# what waits for member $2 of group $1, and for its own address $3
DUE = """
select jsonb_build_object('kind', 'execute', 'head', '{}'::jsonb, 'data', jsonb_build_object(
         'task', jsonb_build_object('id', o.id, 'version', o.version))), null
from unnest(array[$1, $3]) q cross join lateral durable.task_offer(q, 64, $2) o
union all
select jsonb_build_object('kind', 'unblock', 'head', '{}'::jsonb, 'data', jsonb_build_object(
         'promise', durable._wire_promise(u.promise))), u.promise_id
from durable.unblock_claim($3, 64) u
"""


class Gateway:
    """A gateway before a database, in a thread of its own; `url` is where clients reach it.

    Use it as a context manager.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        routes = [
            Route("/", self._rpc, methods=["POST"]),
            Route("/poll/{group}/{pid}", self._poll, methods=["GET"]),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        # shorter than a client's own, a keep-alive would cost it requests
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_keep_alive=75)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="gateway")
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        late = time.monotonic() + START_S
        while not self._server.started:
            assert self._thread.is_alive(), "the gateway ended while it started"
            assert time.monotonic() < late, f"the gateway has not started in {START_S} s"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the gateway does not end"

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self._dsn, min_size=1, max_size=8) as self._pool:
            ticking = asyncio.create_task(self._tick())
            yield
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await self._pool.execute("select durable.tick()")
            await asyncio.sleep(POLL_S)

    async def _rpc(self, request: Request) -> Response:
        body = (await request.body()).decode()
        answer = await self._pool.fetchval("select durable.rpc($1::jsonb)::text", body)
        status = json.loads(answer)["head"]["status"]
        return Response(answer, status_code=status, media_type="application/json")

    async def _poll(self, request: Request) -> Response:
        group, pid = request.path_params["group"], request.path_params["pid"]
        return StreamingResponse(self._messages(group, pid), media_type="text/event-stream")

    async def _messages(self, group: str, pid: str) -> AsyncIterator[str]:
        yield ": here\n\n"
        own = f"poll://uni@{group}/{pid}"
        while not self._server.should_exit:
            for message, promise in await self._pool.fetch(DUE, group, pid, own):
                yield f"data: {message}\n\n"
                if promise is not None:
                    await self._pool.fetchval("select durable.unblock_acknowledge($1, $2)", promise, own)
            await asyncio.sleep(POLL_S)
