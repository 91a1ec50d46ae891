"""Waiting for a connection that a pooler does not give.

Lives here: `Shortage`, that of one database in this process. May not: how connections are made
(connection.py), which are idle (pool.py). Design: in session mode a pooler lets the first statement of a
connection wait while others hold all of its sessions, and neither server nor driver says so. Then the pools
of this process close what they keep idle, and a line of the log says who waits, for what, and how many
sessions the process may take.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

from pyengine.core.process import clock

logger = logging.getLogger("pyengine.connection")

WAIT_S = 1.0
_AGAIN_S = 60.0
# a worker has one for turns and one for its heartbeat beside its pools
_BESIDE_POOLS = 2


class Pooled(Protocol):
    """A database that may have a pooler before it."""

    pooled: bool
    where: str


class Pool(Protocol):
    """Keeps connections."""

    size: int

    def make_room(self) -> None:
        """Close what nobody uses."""
        ...


class Shortage:
    """Says that connections wait, and makes room for them.

    Attributes:
        pools: the pools of the process for this database.
        waiting: how many connections wait.
    """

    def __init__(self) -> None:
        self.pools: WeakSet[Pool] = WeakSet()
        self.waiting = 0
        self._reported_s = 0.0

    @contextlib.contextmanager
    def noticed(self, role: str, database: Pooled) -> Iterator[None]:
        """Notice if the block lasts, in which a connection gets its session.

        Args:
            role: purpose of the connection.
            database: its database.
        """
        lasts = False

        def lasting() -> None:
            nonlocal lasts
            if not database.pooled:
                return
            lasts = True
            self.waiting += 1
            self._report(role, database.where)
            for pool in tuple(self.pools):
                pool.make_room()

        timer = clock.call_later(WAIT_S, lasting)
        try:
            yield
        finally:
            timer.cancel()
            self.waiting -= lasts

    def _report(self, role: str, where: str) -> None:
        now_s = clock.monotonic()
        if self._reported_s and now_s < self._reported_s + _AGAIN_S:
            return
        self._reported_s = now_s
        most = sum(pool.size for pool in tuple(self.pools)) + _BESIDE_POOLS
        logger.warning(
            "a connection for %s waits for the pooler of %s, which may have no session left: in session mode "
            "this process needs up to %d. Use transaction mode, or give the pooler more; those that wait are "
            "cl_waiting in its SHOW POOLS",
            role,
            where,
            most,
        )
