"""A gateway in a thread of its own, for tests that speak HTTP to it.

Lives here: starting and stopping the real gateway. May not: a gateway of its own.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from pyengine.doors.gateway.app import Parts
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.http_server import GatewayServer
from pyengine.doors.program.foreground import runner

START_S = 60.0


class Gateway:
    """A gateway before a database; `url` is where clients reach it.

    Use it as a context manager.
    """

    def __init__(self, dsn: str, **options: Any) -> None:
        self._config = GatewayConfig(database_url=dsn, port=options.pop("port", 0), **options)
        self._thread = threading.Thread(target=self._run, name="gateway")
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._server: GatewayServer | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_S), f"the gateway has not started in {START_S} s"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the gateway does not end"

    @property
    def url(self) -> str:
        """Where clients reach it."""
        assert self._server is not None
        return self._server.url

    @property
    def older_url(self) -> str:
        """Where clients of the older API have their streams."""
        return f"http://127.0.0.1:{self.parts.older_port}"

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        assert self._server is not None
        return self._server.parts

    def _run(self) -> None:
        with runner() as loop:
            try:
                loop.run(self._serve())
            except BaseException as error:
                self._failure = error
                self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with GatewayServer(self._config) as self._server:
            while not self._server.parts.backend.database.opened:
                if self._server.parts.failure is not None:
                    raise self._server.parts.failure
                await asyncio.sleep(0.01)
            self._started.set()
            await self._stop.wait()
