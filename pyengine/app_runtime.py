"""Where an app keeps its runs: one database, its listener and client, for one event loop.

What lives here: `AppRuntime`: finding the database, starting the embedded one, installing the schema where
that was asked for, and letting go of all of it. What may not: what is done with it (app.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from pyengine.client.client import Client
from pyengine.database.connection import Database
from pyengine.database.listener import Listener
from pyengine.definitions.registry import Registry

__all__ = ["AppRuntime"]


class AppRuntime:
    """The database of an app in one event loop, shared by its clients and workers.

    Args:
        registry: what the client knows.
        url: URL that the app was given.
        data_dir: folder for the embedded Postgres that the app was given.
        listen_url: URL past a pooler that the app was given.

    Attributes:
        users: blocks that use it at present.
    """

    def __init__(
        self, registry: Registry, url: str | None, data_dir: Path | None, listen_url: str | None = None
    ) -> None:
        self._registry = registry
        self._url = url
        self._data_dir = data_dir
        self._listen_url = listen_url
        self._opening = asyncio.Lock()
        self._release: Callable[[], object] | None = None
        self._opened = False
        self.users = 0
        self.database: Database
        self.listener: Listener
        self.client: Client

    async def open(self, *, install: bool) -> None:
        """Find the database, starting the embedded one if that is meant, and check it.

        Args:
            install: install the schema; the embedded database gets it in any case.

        Raises:
            EngineError: it cannot be reached, started, or used.
        """
        async with self._opening:
            if self._opened:
                return
            from pyengine.embedded.server import EmbeddedPostgres, database_url, listen_url

            target = database_url(self._url, self._data_dir)
            # our own server has no pooler before it
            direct = None if target.embedded else listen_url(self._listen_url)
            url = target.url
            if url is None:
                server = EmbeddedPostgres(target.data_dir)
                url, self._release = await asyncio.to_thread(server.start), server.stop
            if install or target.embedded:
                from pyengine.admin import migrate

                await asyncio.to_thread(migrate.install, url)
            self.database = Database(url, listen_url=direct)
            await self.database.open()
            self.listener = Listener(self.database)
            self.client = Client(self.database, registry=self._registry, listener=self.listener)
            self._opened = True

    async def close(self) -> None:
        """Close the client, and let go of the embedded server."""
        if self._opened:
            self._opened = False
            await self.client.close()
        if self._release is not None:
            release, self._release = self._release, None
            await asyncio.to_thread(release)
