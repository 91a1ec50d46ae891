"""Signals that runs have left unread when they ended.

Lives here: `UnreadSignals`, which asks the database about runs that have ended here, and has it logged. May
not: runs that others have ended, such as by a deadline; `durable.why` tells of all. Design: only the database
knows what came until the end, so it is asked after it, beside the turns, for all runs that have ended
meanwhile; and only about workflows that receive signals. Only a worker that stops waits for the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import UNREAD_SIGNALS
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.process.background import Background
from pyengine.core.replay import run_log
from pyengine.core.worker.effects import FindUnread
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.worker")


class UnreadSignals:
    """Finds signals that nobody has received.

    Args:
        connections: to ask on.
        background: its task.
    """

    def __init__(self, connections: ConnectionPool, background: Background) -> None:
        self._connections = connections
        self._background = background
        self._ended: dict[int, tuple[RunInfo, Counter[str]]] = {}
        self._task: asyncio.Task[None] | None = None

    def find(self, effect: FindUnread) -> None:
        """Find those of a run that has ended."""
        self._ended[effect.execution] = effect.info, Counter(effect.given_up)
        if self._task is None or self._task.done():
            self._task = self._background.start(self._find())

    async def finish(self) -> None:
        """Wait until all runs that have ended are asked about."""
        if self._task is not None:
            await self._task

    async def _find(self) -> None:
        while self._ended:
            ended, self._ended = self._ended, {}
            try:
                rows = await self._connections.rows(UNREAD_SIGNALS, list(ended))
            except EngineError as error:
                logger.debug("unread signals: %s", error.message)
                rows = []
            for row in rows:
                ended[row["execution"]][1][row["name"]] += row["unread"]
            for info, unread in ended.values():
                if unread:
                    run_log.signals_unread(info, unread)
