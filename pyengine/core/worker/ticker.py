"""Everything that time starts: calling `tick` when it is due.

Lives here: `Ticker`, which knows when to call, and nothing of what a tick does; that is SQL. Design: every
worker may call, any number of them at once; a call that is missed only delays. A process wakes for the timers
that it made itself, and a little later for those of others, in case their maker is gone. While others hold
tasks the workers share a watch over them, about one call a second in all; when nobody holds anything a call
every few seconds is enough. A worker that finds another one missing looks again as soon as its grace is over.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec

from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import TICK
from pyengine.core.process import clock
from pyengine.core.worker.blocked_runs import BlockedRuns, pause_s
from pyengine.core.worker.effects import RecordDeadline
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.housekeeping")

TICK_LIMIT = 500
WATCH_EVERY_S = 1.05
IDLE_EVERY_S = 5.0
ACTIVE_S = 60.0
_LATE_S = 0.002
_TIMERS_MAX = 100_000
_JITTER_MS = 1_000


class DatabaseClock:
    """The database's time between two of its answers: the last one plus what has passed since."""

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self._last_ms = 0

    def set(self, now_ms: int) -> None:
        """Record an instant that the database just reported; 0 means none."""
        if now_ms:
            self._offset_ms = now_ms - clock.monotonic() * 1000

    def now_ms(self) -> int:
        """Return the instant, epoch milliseconds; it goes back only where the clock jumps back."""
        now_ms = int(self._offset_ms + clock.monotonic() * 1000)
        if not self._last_ms - _JITTER_MS < now_ms < self._last_ms:
            self._last_ms = now_ms
        return self._last_ms


class TickAnswer(msgspec.Struct):
    """The answer of a tick."""

    promises: int
    leases: int
    schedules: int
    next_due_ms: int | None
    more: bool
    hints: list[str]
    waits: int = 0
    problem: str | None = None
    warning: str | None = None
    locked: list[str] = []
    gone_in_ms: int | None = None


class Ticker:
    """Calls `tick` when something is due.

    Args:
        link: a connection of its own, because a tick may wait for locks.
        worker: id of this worker.
        ticked: called with each answer that did something.
        services: called with the time and the next time of a service, after every tick.
        blocked: records the runs that are left out because they are locked.

    Attributes:
        others: whether other workers are there.
    """

    def __init__(
        self,
        link: ConnectionPool,
        worker: str,
        *,
        ticked: Callable[[TickAnswer], None],
        services: Callable[[float, int | None], None],
        blocked: BlockedRuns,
    ) -> None:
        self._link = link
        self._worker = worker
        self._ticked = ticked
        self._services = services
        self._blocked = blocked
        self._locked: set[str] = set()
        self._vain_ticks = 0
        self._timers: list[float] = []
        self._due_s: float | None = None
        self._told_s = 0.0
        self._watch_s = 0.0
        self._active_until_s = 0.0
        self._wake = asyncio.Event()
        self._waits_until_s = 0.0
        # apart, so that not all workers wake for the timer of one that is gone
        self._patience_s = 0.05 + random.random() * 0.45
        self._fired = False
        self._ticked_s: float | None = None
        self._troubles = {
            schedules: FailureLog(
                logger, what, type_next="pyengine db status, or in psql: select durable.tick();"
            )
            for schedules, what in ((True, "tick with schedules"), (False, "tick"))
        }
        self._problem = FailureLog(logger, "a part of the tick")
        self._in_vain_s = -self._patience_s
        self.others = True

    def since_tick_ms(self) -> int | None:
        """Milliseconds since a tick did all that was due; None before the first. From any thread."""
        return None if self._ticked_s is None else round((clock.monotonic() - self._ticked_s) * 1000)

    def record_timer(self, due_s: float) -> None:
        """A deadline of our own making, by our clock."""
        if len(self._timers) < _TIMERS_MAX:
            heapq.heappush(self._timers, due_s + _LATE_S)
        self._rearm(due_s)

    def record_deadline(self, effect: RecordDeadline) -> None:
        """A deadline of our own making, from now."""
        self.record_timer(clock.monotonic() + effect.in_ms / 1000)

    def record_due(self, asked_s: float, now_s: float, due_in_ms: int | None) -> None:
        """The next deadline of all, as a turn or a tick answers now that was sent at `asked_s`; below 0:
        something to do at once.
        """
        # turns and ticks overlap: what came since that question may be newer than its answer, and stays
        newer_s = self._due_s if self._told_s >= asked_s else None
        self._told_s = now_s
        if due_in_ms is None:
            self._due_s = newer_s
            return
        if due_in_ms < 0:
            # a commit has left it, so nobody's clock tells when; but others may have it in hand
            due_s = max(now_s, self._in_vain_s + self._patience_s)
        else:
            due_s = now_s + due_in_ms / 1000 + self._patience_s
        self._due_s = due_s if newer_s is None else min(due_s, newer_s)
        self._rearm(self._due_s)

    def record_activity(self, now_s: float) -> None:
        """Somebody is at work: leases may need watching soon."""
        self._active_until_s = now_s + ACTIVE_S
        if self._watch_s > now_s + WATCH_EVERY_S:
            self._watch_s = now_s + WATCH_EVERY_S
            self._rearm(self._watch_s)

    async def run(self) -> None:
        """Call tick whenever it is due, for ever."""
        while True:
            now_s = clock.monotonic()
            self._waits_until_s = at_s = self._next_s()
            if at_s > now_s:
                self._wake.clear()
                handle = clock.call_at(at_s, self._wake.set)
                await self._wake.wait()
                handle.cancel()
                continue
            while self._timers and self._timers[0] <= now_s:
                heapq.heappop(self._timers)
            self._due_s = None
            await self._tick()

    def _next_s(self) -> float:
        at_s = self._watch_s
        if self._timers:
            at_s = min(at_s, self._timers[0])
        if self._due_s is not None:
            at_s = min(at_s, self._due_s)
        return at_s

    def _rearm(self, at_s: float) -> None:
        if at_s < self._waits_until_s - _LATE_S / 2:
            self._wake.set()

    async def _tick(self) -> None:
        asked_s, schedules = clock.monotonic(), not self._fired
        try:
            rows: list[Any] = await self._link.rows(TICK, TICK_LIMIT, schedules, self._worker)
        except EngineError as error:
            self._troubles[schedules].failed(error)
            # a schedule that fails holds up no timer
            self._fired = schedules
            self._watch_s = clock.monotonic() + WATCH_EVERY_S
            await clock.sleep(WATCH_EVERY_S)
            return
        answer = msgspec.json.decode(rows[0]["answer"], type=TickAnswer)
        workers: int = rows[0]["watch"]
        self._worked(schedules, answer)
        # what is done alone and the rest take turns, so that a backlog of one does not hold up the other
        self._fired = answer.schedules > 0 or answer.waits > 0
        now_s = clock.monotonic()
        if not self._fired:
            self._ticked_s = now_s
        if (answer.next_due_ms or 0) < 0 and not (answer.promises or answer.waits):
            self._in_vain_s = now_s
        self._services(now_s, rows[0]["services"])
        self.others = abs(workers) > 1
        if workers > 0 or self._active_until_s > now_s:
            self._watch_s = now_s + max(WATCH_EVERY_S, 0.5 * abs(workers))
        else:
            self._watch_s = now_s + IDLE_EVERY_S * (0.9 + 0.2 * random.random())
        if answer.gone_in_ms is not None:
            # not spread: only who calls within the grace finds it missing, one or two in a second
            self._watch_s = min(self._watch_s, now_s + answer.gone_in_ms / 1000 + _LATE_S)
        if answer.more:
            self._due_s = now_s
        else:
            self.record_due(asked_s, now_s, answer.next_due_ms)
        self._left_out(answer.locked, now_s)
        if answer.promises or answer.leases or answer.schedules:
            self._ticked(answer)

    def _worked(self, schedules: bool, answer: TickAnswer) -> None:
        self._troubles[schedules].succeeded()
        if answer.warning is not None:
            logger.warning("%s", answer.warning)
        if answer.problem is not None:
            self._problem.failed(answer.problem)
        else:
            self._problem.succeeded()

    def _left_out(self, locked: list[str], now_s: float) -> None:
        """Come back soon for what somebody has locked, and more and more seldom while nothing changes."""
        if not locked:
            self._locked.clear()
            return
        self._blocked.record(locked, now_s)
        self._vain_ticks = self._vain_ticks + 1 if self._locked.issuperset(locked) else 1
        self._locked = set(locked)
        again_s = now_s + pause_s(self._vain_ticks)
        self._due_s = again_s if self._due_s is None else min(self._due_s, again_s)
        self._rearm(again_s)
