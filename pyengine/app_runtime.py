"""The resources of an app in one event loop: its database, listener and client.

Lives here: `AppRuntime`, which finds the database, starts the embedded one, installs the schema if requested,
and closes all of that; `Runtimes`, those of all loops of an app. May not: the use of it (app.py). Design: a
loop that ends without `app.close()` can close nothing any more. The next loop does it, in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pyengine.clients import Client
from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.definitions.registry import Registry
from pyengine.core.process.own_threads import in_a_thread

if TYPE_CHECKING:
    from pyengine.doors.embedded.server import EmbeddedPostgres

__all__ = ["AppRuntime", "Runtimes"]


class AppRuntime:
    """The database of an app in one event loop, shared by its clients and workers.

    Args:
        registry: the registry of the app.
        url: the app's database URL.
        data_dir: the app's folder for the embedded Postgres.
        listen_url: the app's URL past a pooler.

    Attributes:
        users: the number of blocks that use it at present.
        before: those of loops that have ended, whose server this one stops using.
    """

    def __init__(
        self, registry: Registry, url: str | None, data_dir: Path | None, listen_url: str | None = None
    ) -> None:
        self._registry = registry
        self._url = url
        self._data_dir = data_dir
        self._listen_url = listen_url
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()
        self._opened = False
        self._server: EmbeddedPostgres | None = None
        self.before: list[AppRuntime] = []
        self.users = 0
        self.database: Database
        self.listener: Listener
        self.client: Client

    async def open(self, *, install: bool) -> None:
        """Find the database, start the embedded one if there is no URL, and check it.

        Args:
            install: install the schema; the embedded database gets it in any case.

        Raises:
            EngineError: it cannot be reached, started, or used.
        """
        async with self._opening:
            if self._opened:
                return
            from pyengine.doors.embedded.server import EmbeddedPostgres, database_url, listen_url

            target = database_url(self._url, self._data_dir)
            # there is no pooler before the embedded server
            direct = None if target.embedded else listen_url(self._listen_url)
            url, start_server = target.url, None
            if url is None:
                self._server = EmbeddedPostgres(target.data_dir)
                start_server = self._server.start
                url = await in_a_thread(self._server.start)
                self._closing.push_async_callback(in_a_thread, self._server.stop)
            if install or target.embedded:
                from pyengine.doors.admin import migrate

                await in_a_thread(migrate.install, url)
            self.database = Database(url, listen_url=direct, start_server=start_server)
            await self.database.open()
            self.listener = Listener(self.database)
            self.client = Client(self.database, registry=self._registry, listener=self.listener)
            self._closing.push_async_callback(self.client.close)
            self._opened = True
            while self.before:
                server = self.before.pop()._server
                if server is not None:
                    await in_a_thread(server.stop)

    async def close(self) -> None:
        """Close the client, and stop using the embedded server."""
        self._opened = False
        await self._closing.aclose()


class Runtimes:
    """The runtimes of an app, one for each event loop that uses it."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, AppRuntime] = {}

    def get(self) -> AppRuntime | None:
        """Return the runtime of this loop."""
        return self._by_loop.get(asyncio.get_running_loop())

    def here(self, make: Callable[[], AppRuntime]) -> AppRuntime:
        """Return the runtime of this loop; it succeeds those of loops that have ended."""
        found = self.get()
        if found is None:
            ended = [loop for loop in list(self._by_loop) if loop.is_closed()]
            found = self._by_loop[asyncio.get_running_loop()] = make()
            found.before = [self._by_loop.pop(loop) for loop in ended]
        return found

    def remove(self) -> None:
        """Forget the runtime of this loop."""
        del self._by_loop[asyncio.get_running_loop()]
