"""Until when leases are known to hold: the one place that says whether a body may begin.

Lives here: `LeaseTerms`, and `LeaseOver`. May not: renewing (worker/lease_heartbeat.py,
calls/adapter_worker.py), what a body is. Design: what is known is known of each lease by itself. One that was
asked for at some instant holds for its length from then on, because the database counts from later. A renewal
says so of the leases that it named and of no others: an answer that is read after a standstill has runs in
it that another worker may have by now, and the renewal after it has not named them. A lease that came unasked
was given by the start of its run, after that had drawn its number; so it is younger than a renewal whose
answer knew no number as high. Bodies ask immediately before they begin, also those that have waited for a
slot, a thread or a connection. The clock counts the time in which the process was stopped or the machine
suspended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

from pyengine.core.process import clock


class LeaseOver(Exception):
    """A body did not begin, because its lease may be over."""


class Leased(Protocol):
    """A run, or an attempt of a call, under a lease.

    Attributes:
        known_until_s: until when the lease is known to hold, by the clock.
    """

    known_until_s: float


class LeaseTerms:
    """The knowledge of one process about its leases. Made in its loop.

    Args:
        ttl_s: length of a lease.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._void_until_s = float("-inf")
        # nothing is handed to this process before it is there
        self._numbered: tuple[tuple[int, float], ...] = ((0, self.asked()),)
        self._loop = asyncio.get_running_loop()
        self._renewed = asyncio.Event()

    def asked(self) -> float:
        """Return until when a lease is known to hold that is asked for now, if it is given."""
        return clock.elapsed() + self._ttl_s

    def handed(self, number: int) -> float:
        """Return the same for a run with this number that its start has leased to this process unasked.

        If no renewal is known to be older, the next one that names the run says until when.
        """
        return max((until_s for newest, until_s in self._numbered if newest < number), default=float("-inf"))

    def numbered(self, newest: int, until_s: float) -> None:
        """A renewal has been answered, and by then no run had drawn a higher number than this; any thread.

        Args:
            newest: the number.
            until_s: the answer of `asked` when it was sent.
        """
        # the one before is for a run that is on its way meanwhile
        self._numbered = (self._numbered[-1], (newest, until_s))

    def may_begin(self, held: Leased) -> bool:
        """Whether a body may begin now; any thread."""
        return clock.elapsed() < held.known_until_s > self._void_until_s

    async def holds(self, held: Leased, wanted: Callable[[], bool]) -> None:
        """Wait until a body may begin, or is not wanted any more."""
        while wanted() and not self.may_begin(held):
            self._renewed.clear()
            await self._renewed.wait()

    def wake(self) -> None:
        """Some bodies are not wanted any more."""
        self._renewed.set()

    def renewed(self, helds: Iterable[Leased], until_s: float) -> None:
        """A renewal of these, and of no others, has been answered; any thread.

        Args:
            helds: all that it named, without those that are lost.
            until_s: the answer of `asked` when it was sent.
        """
        for held in helds:
            held.known_until_s = max(held.known_until_s, until_s)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._renewed.set)

    def void(self) -> None:
        """All leases are given back that were asked for until now; any thread."""
        self._void_until_s = self.asked()
