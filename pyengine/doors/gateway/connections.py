"""The open connections of a gateway, within a limit.

Lives here: `Connections`, which knows those that are idle. May not: their bytes (http_server.py). Design: an
open connection costs memory and a file, also if nothing is sent on it. When there are too many, the one that
has been idle for longest gives way to a new one, because its client can open another. So clients that open
connections and say nothing keep nobody out. A new one is refused only where none is idle.
"""

from __future__ import annotations

from typing import Protocol

from pyengine.doors.gateway.metrics import Metrics


class GivesWay(Protocol):
    """A connection."""

    def give_way(self) -> None:
        """Close it, which is idle."""


class Connections:
    """The open connections.

    Args:
        limit: the largest number of them.
        metrics: counts those that are closed because there were more.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._open: set[GivesWay] = set()
        # those that have been idle for longest come first
        self._idle: dict[GivesWay, None] = {}
        metrics.gauge("connections", "Open connections of clients.", lambda: len(self._open))

    def admit(self, connection: GivesWay) -> bool:
        """Take a new connection, which is idle yet; return false if there may be no further one."""
        if len(self._open) >= self._limit:
            if not self._idle:
                self._metrics.connections_closed.labels("new").inc()
                return False
            longest = next(iter(self._idle))
            self.closed(longest)
            self._metrics.connections_closed.labels("idle").inc()
            longest.give_way()
        self._open.add(connection)
        self.is_idle(connection)
        return True

    def is_busy(self, connection: GivesWay) -> None:
        """Record that it has a request."""
        self._idle.pop(connection, None)

    def is_idle(self, connection: GivesWay) -> None:
        """Record that it has none, perhaps since long ago."""
        if connection in self._open:
            self._idle.setdefault(connection)

    def closed(self, connection: GivesWay) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
