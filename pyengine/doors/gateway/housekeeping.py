"""Time, for deployments without a worker of ours.

Lives here: the tick of a gateway. May not: what a tick does (SQL), when it is due (worker/ticker.py). Design:
a gateway ticks as workers do, and beside them. It serves no service and no run. A promise that was just made
through it tells when the next tick is due, so that a short sleep takes no longer.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import Any

from pyengine.core.database.listener import Listener
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process import clock
from pyengine.core.worker.blocked_runs import BlockedRuns
from pyengine.core.worker.ticker import TickAnswer, Ticker

_REPORT_EVERY_S = 1.0
# a deadline that is further away is found by the ticks in between
_SOON_MS = 60_000


class Housekeeping:
    """Ticks.

    Args:
        link: connections for ticks.
        listener: announces what a tick made ready.
    """

    def __init__(self, link: ConnectionPool, listener: Listener) -> None:
        name = f"gateway {socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._listener = listener
        self._blocked = BlockedRuns(link, name)
        self._ticker = Ticker(
            link, name, ticked=self._ticked, services=lambda now_s, due_ms: None, blocked=self._blocked
        )

    async def run(self) -> None:
        """Tick for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ticker.run())
            group.create_task(self._report())

    def answered(self, kind: str, answer: dict[str, Any]) -> None:
        """Take note of the deadlines in an answer to a request of this kind."""
        if kind.startswith("task."):
            self._ticker.record_activity(clock.monotonic())
        if kind not in ("promise.create", "task.create", "task.fence"):
            return
        # a fence that lets its request pass answers 200, and has the request's own answer within its own
        data = answer["data"]["action"]["data"] if kind == "task.fence" else answer["data"]
        # a refusal has a text as its data
        promise = data.get("promise") if isinstance(data, dict) else None
        if isinstance(promise, dict) and promise.get("state") == "pending":
            due_ms = promise["timeoutAt"] - promise["createdAt"]
            if due_ms <= _SOON_MS:
                self._ticker.record_timer(clock.monotonic() + due_ms / 1000)

    def _ticked(self, answer: TickAnswer) -> None:
        if answer.hints:
            self._listener.announce("durable_ready")
        if answer.promises:
            self._listener.announce("durable_settled")

    async def _report(self) -> None:
        while True:
            await clock.sleep(_REPORT_EVERY_S)
            await self._blocked.report(clock.monotonic())
