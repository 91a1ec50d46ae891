"""Services in SQL, called by workers.

Lives here: `Server`, which serves tasks of `sql://` services as soon as they are ready. May not: the list of
services and the meaning of serving one; that is SQL. Design: any worker may serve any service, because its
code is in the database. One function is called at a time, in a transaction of its own on a connection of its
own, so a slow one delays no timer and no turn of this worker. A process polls only after a tick has reported
services.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.sessions import transaction
from pyengine.core.process import clock
from pyengine.core.worker.extensions import Served
from pyengine.errors import EngineError
from pyengine.features.sql.statements import NEXT_SERVICE, SERVE, SERVICE_LIMIT, SERVICES_DUE

logger = logging.getLogger("pyengine.serving")

_AGAIN_S = 1.0
_PAUSE_S = 0.02
_PAUSE_MAX_S = 1.0
_UNLIMITED_S = 1e7


class Server:
    """Serves services.

    Args:
        links: connections for functions of users, which may take their time.
        served: called with each answer that did something.
    """

    def __init__(self, links: ConnectionPool, served: Callable[[Served], None]) -> None:
        self._links = links
        self._served = served
        self._known = False
        self._due_s: float | None = None
        self._wake = asyncio.Event()

    def record_due(self, now_s: float, due_ms: int | None) -> None:
        """Record when the next task of a service is ready, as a tick reports it.

        Args:
            now_s: the time by our clock.
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
            self.record_due(now_s, 0)

    async def run(self) -> None:
        """Serve whatever is ready, for ever."""
        pause_s = _PAUSE_S
        while True:
            now_s = clock.monotonic()
            if self._due_s is None or self._due_s > now_s:
                self._wake.clear()
                handle = None if self._due_s is None else clock.call_at(self._due_s, self._wake.set)
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
                await clock.sleep(_AGAIN_S)
                self.hinted(clock.monotonic())
                continue
            if answer is not None and answer.served:
                self._served(answer)
                pause_s = _PAUSE_S
            elif due_ms == 0:
                # another worker has it, or it is locked at this moment
                due_ms = round(pause_s * 1000)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self.record_due(clock.monotonic(), due_ms)

    async def _serve(self, conn: Any) -> tuple[Served | None, int | None]:
        answer = None
        async with transaction(conn):
            row = await conn.fetchrow(NEXT_SERVICE.sql)
            if row is not None:
                await conn.fetchval(SERVICE_LIMIT.sql, str(row["timeout_ms"] or 0))
                text = await conn.fetchval(SERVE.sql, row["id"], timeout=_UNLIMITED_S)
                answer = msgspec.json.decode(text, type=Served)
        return answer, await conn.fetchval(SERVICES_DUE.sql)
