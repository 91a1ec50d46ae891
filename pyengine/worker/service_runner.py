"""Services in SQL, called by workers.

Lives here: `Server`, which has tasks of `sql://` services served as soon as they are ready. May
not: which functions are services and what serving one means; that is SQL. Design: any worker may serve
any service, because its code is in the database. One function is called at a time, in a transaction of its
own on a connection of its own, so a slow one holds up no timer and no turn of this worker. A process that
was never told of services asks nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from pyengine.database.pool import ConnectionPool
from pyengine.database.sessions import transaction
from pyengine.database.statements.sql_functions import NEXT_SERVICE, SERVE, SERVICE_LIMIT, SERVICES_DUE
from pyengine.errors import EngineError

__all__ = ["Served", "Server"]

logger = logging.getLogger("pyengine.serving")

_AGAIN_S = 1.0
_PAUSE_S = 0.02
_PAUSE_MAX_S = 1.0
_UNLIMITED_S = 1e7


class Served(msgspec.Struct):
    """What serving a task answers."""

    served: int
    hints: list[str]
    settled: bool


class Server:
    """Serves services.

    Args:
        links: connections for functions of users, which may take their time.
        served: called with each answer that did something.
    """

    def __init__(self, links: ConnectionPool, *, served: Callable[[Served], None]) -> None:
        self._links = links
        self._served = served
        self._known = False
        self._due_s: float | None = None
        self._wake = asyncio.Event()

    def note_due(self, now_s: float, due_ms: int | None) -> None:
        """Whether anything is served in this database, and when something is ready, as a tick told.

        Args:
            now_s: the time by the loop's clock.
            due_ms: milliseconds; negative if nothing is queued, None if nothing is served.
        """
        self._known = due_ms is not None
        if due_ms is not None and due_ms >= 0:
            at_s = now_s + due_ms / 1000
            if self._due_s is None or at_s < self._due_s:
                self._due_s = at_s
                self._wake.set()

    def hinted(self, now_s: float) -> None:
        """Something became ready somewhere."""
        if self._known:
            self.note_due(now_s, 0)

    async def run(self) -> None:
        """Serve whatever is ready, for ever."""
        loop, pause_s = asyncio.get_running_loop(), _PAUSE_S
        while True:
            now_s = loop.time()
            if self._due_s is None or self._due_s > now_s:
                self._wake.clear()
                handle = None if self._due_s is None else loop.call_at(self._due_s, self._wake.set)
                await self._wake.wait()
                if handle is not None:
                    handle.cancel()
                continue
            self._due_s = None
            try:
                async with self._links.taken(clean=False) as link:
                    answer, due_ms = await link.use(self._serve, transacts=True)
                    if answer is not None:
                        await link.clean()
            except EngineError as error:
                logger.warning("services: %s", error.message)
                await asyncio.sleep(_AGAIN_S)
                self.hinted(loop.time())
                continue
            if answer is not None and answer.served:
                self._served(answer)
                pause_s = _PAUSE_S
            elif due_ms == 0:
                # another worker has it, or it is locked at this moment
                due_ms = round(pause_s * 1000)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self.note_due(loop.time(), due_ms)

    async def _serve(self, conn: Any) -> tuple[Served | None, int | None]:
        answer = None
        async with transaction(conn):
            row = await conn.fetchrow(NEXT_SERVICE.sql)
            if row is not None:
                await conn.fetchval(SERVICE_LIMIT.sql, str(row["timeout_ms"] or 0))
                text = await conn.fetchval(SERVE.sql, row["id"], timeout=_UNLIMITED_S)
                answer = msgspec.json.decode(text, type=Served)
        return answer, await conn.fetchval(SERVICES_DUE.sql)
