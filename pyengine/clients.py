"""The client: starting runs and waiting for them, from any process.

Lives here: `ClientApi`, put together from the core of a client and from what each feature adds to it; and
`Client`, for asynchronous programs (sync.py has the one for blocking programs). May not: a verb of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyengine.core.client.asyncpg_transport import AsyncpgTransport
from pyengine.core.client.client import CoreClient
from pyengine.core.client.transport import Transport
from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.definitions.registry import Registry
from pyengine.features.many_runs.client import ManyRuns
from pyengine.features.many_runs.starts import ManyStarts
from pyengine.features.promises.client import Promises
from pyengine.features.removal.client import Removal
from pyengine.features.schedules.client import Schedules

__all__ = ["Client", "ClientApi"]


class ClientApi(CoreClient, ManyStarts, ManyRuns, Removal):
    """Starts runs, waits for them, and controls them.

    Args:
        transport: the way to the database.
        registry: code known here: types of results by workflow name, and error classes.

    Attributes:
        promises: creates and completes durable promises, and waits for them by callback.
        schedules: creates, lists, pauses and deletes schedules.
    """

    def __init__(self, transport: Transport, registry: Registry | None) -> None:
        super().__init__(transport, registry)
        self.promises = Promises(transport, self._codec)
        self.schedules = Schedules(transport, self._registry, self._codec)


class Client(ClientApi):
    """Starts runs, waits for them, and controls them.

    Args:
        database: the database or its URL.
        registry: code known here: types of results by workflow name, and error classes.
        listener: shared with the worker of this process.
        connections: the largest number of connections for statements; one more listens for hints.

    Use it as an async context manager, or call `close` at the end.
    """

    def __init__(
        self,
        database: Database | str,
        *,
        registry: Registry | None = None,
        listener: Listener | None = None,
        connections: int = 4,
    ) -> None:
        where = Database(database) if isinstance(database, str) else database
        super().__init__(AsyncpgTransport(where, listener or Listener(where), connections), registry)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
