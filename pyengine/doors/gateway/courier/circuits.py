"""Circuit breakers: how many requests an address may have now.

Lives here: `Circuit`, and `Circuits` of all addresses. May not: requests, a clock of its own. Design: after
failures in a row the circuit opens for a pause, which doubles with each further failure. Then one request
tries; its success closes the circuit. Failures of requests that began before the circuit opened say nothing
new. Each process finds out by itself, so gateways need not agree.
"""

from __future__ import annotations

import random
from math import inf

from pyengine.core.process.backoff import backoff_pause

_FAILURES = 3
_FIRST_S = 1.0
_LONGEST_S = 60.0
_RETRY_AFTER_MAX_S = 3600.0
_FORGET_S = 900.0


class Circuit:
    """The circuit of an address.

    Attributes:
        in_flight: requests that are open.
        status: the last answer's status, so that the log names a change only.
        answers: whether the last request was answered. One that never was may hang with all it can get.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.status: int | None = None
        self.answers = False
        self._failures = 0
        self._opened_s = -inf
        self._retry_s = -inf
        self._used_s = -inf

    @property
    def is_open(self) -> bool:
        """Whether the address has failed too often: one request may try, after the pause."""
        return self._failures >= _FAILURES

    def room(self, now_s: float, most: int) -> int:
        """Return how many further requests may begin.

        Args:
            now_s: the time.
            most: the largest number of open requests while the circuit is closed.
        """
        if now_s < self._retry_s:
            return 0
        return max(0, (1 if self.is_open else most) - self.in_flight)

    def begun(self, now_s: float) -> None:
        """Record that a request begins."""
        self.in_flight += 1
        self._used_s = now_s

    def succeeded(self, now_s: float) -> bool:
        """Record that a request was answered; return whether this closes the circuit."""
        was_open = self.is_open
        self._ended(now_s)
        self._failures, self._retry_s = 0, -inf
        self.answers = True
        return was_open

    def failed(self, begun_s: float, now_s: float, *, at_once: bool, retry_after_s: float | None) -> bool:
        """Record that a request has failed; return whether this opens the circuit.

        Args:
            begun_s: when it began.
            now_s: when it failed.
            at_once: one failure is enough, and the pause is the longest.
            retry_after_s: the pause that the receiver asks for, in seconds.
        """
        self._ended(now_s)
        self.answers = False
        if begun_s < self._opened_s:
            return False
        was_open = self.is_open
        self._failures = max(self._failures + 1, _FAILURES if at_once else 0)
        pause_s = _LONGEST_S if at_once else 0.0
        if self.is_open:
            self._opened_s = now_s
            pause_s = pause_s or backoff_pause(_FIRST_S, _LONGEST_S, self._failures - _FAILURES)
        pause_s *= random.uniform(0.8, 1.2)
        self._retry_s = now_s + max(pause_s, min(retry_after_s or 0.0, _RETRY_AFTER_MAX_S))
        return self.is_open and not was_open

    def is_forgotten(self, now_s: float) -> bool:
        """Return whether nothing is left to remember."""
        return not self.in_flight and now_s >= max(self._retry_s, self._used_s + _FORGET_S)

    def _ended(self, now_s: float) -> None:
        self.in_flight -= 1
        self._used_s = now_s


class Circuits:
    """The circuits of all addresses that were in use lately."""

    def __init__(self) -> None:
        self._circuits: dict[str, Circuit] = {}

    def of(self, address: str) -> Circuit:
        """Return the circuit of an address."""
        return self._circuits.setdefault(address, Circuit())

    def open_count(self) -> int:
        """Return how many of them are open."""
        return sum(one.is_open for one in self._circuits.values())

    def forget(self, now_s: float) -> None:
        """Forget the circuits of addresses without requests for a while."""
        for address in [key for key, one in self._circuits.items() if one.is_forgotten(now_s)]:
            del self._circuits[address]
