"""When to poll, and when a hint goes along with a commit.

What lives here: `PollSchedule`, the times at which somebody who waits polls, and `NotifyThrottle`, which
limits how often a notification holds up other commits. What may not: polling, sending. The theory: after a
hint the row may not be visible yet, or may be gone again. So one polls at once and after 5, 20, 30, 80, 320
ms and 1 s, then after growing pauses.
"""

from __future__ import annotations

import random
from math import inf
from typing import Literal, TypeAlias

__all__ = ["Channel", "NotifyThrottle", "PollSchedule"]

Channel: TypeAlias = Literal["durable_ready", "durable_settled"]

# SQL sends one hint in 50 ms (`durable._hint`): the fourth look finds what was started without one
_AFTER_HINT_S = (0.0, 0.005, 0.02, 0.03, 0.08, 0.32, 1.0)
_APART_S = 0.01
_RETRY_S = 0.1


class PollSchedule:
    """The times to look, told in seconds of a monotonic clock.

    Args:
        longest_s: the longest pause, in seconds.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self._steps = 0
        self._at = 0.0

    @property
    def at(self) -> float:
        """When to look next."""
        return self._at

    def hinted(self, now: float) -> None:
        """Look at once, and soon again."""
        self._steps = 0
        self._at = min(self._at, now) if self._at else now

    def again(self, now: float, pause_s: float) -> None:
        """Look after that pause at the latest: something could not be had just now."""
        self._at = min(self._at, now + pause_s)

    def begun(self, now: float, *, alone: bool) -> None:
        """Look soon: what is waited for has only begun, and a hint will tell; nothing else is, if alone."""
        soon = now + _AFTER_HINT_S[1]
        if alone or self._at > soon:
            self._steps, self._at = 1, soon

    def looked(self, now: float, *, found: bool) -> None:
        """Note that one has looked; where something was found there may be more."""
        if found:
            self._steps = 0
        self._steps += 1
        if self._steps < len(_AFTER_HINT_S):
            pause = _AFTER_HINT_S[self._steps]
        else:
            pause = min(self._longest_s, 2.0 ** (self._steps - len(_AFTER_HINT_S)))
            pause *= 0.8 + 0.2 * random.random()
        self._at = now + pause


class NotifyThrottle:
    """Whether a hint goes along with the commit that gives reason for it.

    That saves a round trip. But a notification takes a lock of the whole database until its commit is on
    disk, so only one in a while may; those that follow go after their commits, in a transaction that writes
    nothing. After a start that an idle worker was handed the next one may go along at once: few others can be
    sending then. In a stream without pauses one in 100 ms goes along, to find a worker that is idle again.
    """

    def __init__(self) -> None:
        self._last_s: dict[Channel, float] = {}
        self._retry_at_s: dict[Channel, float] = {}
        self._one_more: set[Channel] = set()

    def along(self, channel: Channel, now_s: float) -> bool:
        """Whether this one may; then it is taken to be sent."""
        last_s = self._last_s.get(channel, -inf)
        may = channel in self._one_more or now_s - last_s >= _APART_S or now_s >= self._retry_at_s[channel]
        self._one_more.discard(channel)
        self._last_s[channel] = now_s
        if may:
            self._retry_at_s[channel] = now_s + _RETRY_S
        return may

    def one_more(self, channel: Channel) -> None:
        """The next one may go along however soon it comes."""
        self._one_more.add(channel)
