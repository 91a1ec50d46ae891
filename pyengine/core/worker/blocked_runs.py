"""Runs and promises that transactions of users have locked.

Lives here: `BlockedRuns`, which measures for how long, reports it to the database, and logs once which
session holds them; and the pauses after which they are tried again. May not: leaving them out (SQL),
trying again (turn_loop.py, ticker.py). Design: no turn, claim or tick waits for a transaction of a user,
so only the rows that it has locked stand still; and since no session waits for them, only the worker knows. A
lock that lasts for a moment is not reported: mostly it belongs to another worker's turn. A statement of
another session may have payloads in it, so the log has it only up to its first value; `durable.blocked` has
all of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import BLOCKED
from pyengine.core.definitions.retry import Randomness
from pyengine.core.process.backoff import backoff_pause
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.blocked")

_REPORT_AFTER_S = 1.0
WARN_AFTER_S = 5.0
_FORGET_AFTER_S = 2.0
_IDS_MAX = 100
_SHOWN = 5
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.4
# where a text, a dollar quote, a number or a comment begins; $1 and a1 are neither
_VALUE = re.compile(r"'|\$(?!\d)|(?<![\w$])[-+]?\.?\d|--|/\*")


def pause_s(tries: int) -> float:
    """Return how long to leave out what has been found locked so many times in a row."""
    return backoff_pause(_PAUSE_S, _PAUSE_MAX_S, tries - 1)


def resend_pause_s(tries: int, randomness: Randomness) -> float:
    """Return the same with jitter, so that reports do not come back all at once."""
    return pause_s(tries) * (0.75 + 0.5 * randomness.random())


class Holder(msgspec.Struct):
    """A transaction that holds one of them, as `durable.worker_blocked_v1` returns it."""

    id: str
    pid: int
    user: str
    state: str
    age_ms: int
    """How old its transaction is; -1 if the role of this worker may not see it."""
    query: str
    prepared: str = ""
    """The name of a prepared transaction, which has no session any more: its pid is 0."""

    @property
    def key(self) -> tuple[int, str]:
        """Which transaction it is."""
        return self.pid, self.prepared

    def may_block(self, least_s: float) -> bool:
        """Whether it may have blocked something for so long."""
        return self.age_ms < 0 or self.age_ms >= least_s * 1000

    def __str__(self) -> str:
        """Return which transaction it is, and what to type to end it."""
        query = _without_values(" ".join(self.query.split())) or "not shown to this role (pg_read_all_stats)"
        age = "since when is not shown" if self.age_ms < 0 else f"open for {self.age_ms / 1000:.0f} s"
        if self.prepared:
            name = self.prepared.replace("'", "''")
            return (
                f"the prepared transaction {self.prepared} (user {self.user}, {age}). "
                f"To end it: rollback prepared '{name}'"
            )
        return (
            f"a transaction of pid {self.pid} (user {self.user or 'unknown'}, "
            f"{self.state or 'state unknown'}, {age}), "
            f"whose last statement is: {query}. "
            f"To end it: select pg_terminate_backend({self.pid})"
        )


class BlockedRuns:
    """Locked runs and promises that this worker leaves out.

    Args:
        link: for asking which sessions hold the locks.
        worker: id of this worker.
    """

    def __init__(self, link: ConnectionPool, worker: str) -> None:
        self._link = link
        self._worker = worker
        self._first_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self._reported: list[str] = []
        self._warned: set[tuple[int, str]] = set()

    def record(self, ids: Iterable[str], now_s: float) -> None:
        """Note the ids of runs and promises that were left out at this time of our clock."""
        for one in ids:
            if len(self._first_s) < _IDS_MAX or one in self._first_s:
                self._first_s.setdefault(one, now_s)
                self._last_s[one] = now_s

    async def report(self, now_s: float) -> None:
        """Report to the database what has been left out for long; called about once a second."""
        for one in [one for one, last_s in self._last_s.items() if last_s < now_s - _FORGET_AFTER_S]:
            del self._first_s[one], self._last_s[one]
        ids = sorted(one for one, first_s in self._first_s.items() if first_s <= now_s - _REPORT_AFTER_S)
        lasting = {one for one in ids if self._first_s[one] <= now_s - WARN_AFTER_S}
        if not ids:
            self._warned.clear()
        if ids == self._reported and not lasting:
            return
        try:
            rows: Any = await self._link.run(BLOCKED, self._worker, ids)
        except EngineError as error:
            logger.debug("blocked: %s", error.message)
            return
        self._reported = ids
        holders = msgspec.json.decode(rows, type=list[Holder])
        # a session that has begun only just now has not held it all the time
        self._warn([one for one in holders if one.id in lasting and one.may_block(_REPORT_AFTER_S)])

    def _warn(self, holders: list[Holder]) -> None:
        """Log once for each transaction what it holds."""
        keys = {holder.key for holder in holders}
        for key in keys - self._warned:
            ids = [holder.id for holder in holders if holder.key == key]
            holder = next(one for one in holders if one.key == key)
            more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
            logger.warning(
                "%s%s: held by %s. Everything else goes on. See: select * from durable.blocked",
                ", ".join(ids[:_SHOWN]),
                more,
                holder,
            )
        self._warned = keys


def _without_values(query: str) -> str:
    """Return a statement up to its first literal or comment."""
    found = _VALUE.search(query)
    return query if found is None else query[: found.start()] + "..."
