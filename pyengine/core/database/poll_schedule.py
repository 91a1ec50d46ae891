"""When to poll, and whether a NOTIFY is part of the commit that causes it.

Lives here: `PollSchedule`, the times at which a waiter polls, and `NotifyThrottle`, which limits how often a
notification delays other commits. May not: polling, sending. Design: after a hint the row may not be visible
yet, or may be gone again. So a waiter polls at once and after 5, 20, 30, 80, 320 ms and 1 s, then after
growing pauses.
"""

from __future__ import annotations

import random
from math import inf
from typing import Literal, TypeAlias

from pyengine.core.process.backoff import backoff_pause

Channel: TypeAlias = Literal["durable_ready", "durable_settled", "durable_progress"]

# SQL sends one hint in 50 ms (`durable._hint`): the fourth poll finds runs that started without one
_AFTER_HINT_S = (0.0, 0.005, 0.02, 0.03, 0.08, 0.32, 1.0)
_MIN_GAP_S = 0.01
_HEARD_GAP_S = 0.05
_RETRY_S = 0.1
_RETRY_MAX_S = 1.0


class PollSchedule:
    """Polling times, in seconds of a monotonic clock.

    Args:
        longest_s: the longest pause, in seconds.

    Attributes:
        at: the time of the next poll.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self._steps = 0
        self.at = 0.0

    def hinted(self, now: float) -> None:
        """Poll at once, and soon again."""
        self._steps = 0
        self.at = min(self.at, now) if self.at else now

    def is_hinted(self, now: float) -> bool:
        """Whether a poll is due because of a hint, or because the last one left rows; not as one of those
        that follow to be sure.
        """
        return self._steps == 0 and self.at <= now

    def poll_within(self, now: float, pause_s: float) -> None:
        """Poll after that pause at the latest: a row was not available just now."""
        self.at = min(self.at, now + pause_s)

    def wait_begun(self, now: float, *, alone: bool) -> None:
        """Poll soon for a run that has just started; its end will send a hint.

        Args:
            now: the time.
            alone: there is no other waiter, so a poll that is due earlier may be delayed.
        """
        soon = now + _AFTER_HINT_S[1]
        if alone or self.at > soon:
            self._steps, self.at = 1, soon

    def polled(self, now: float, *, found: bool) -> None:
        """Record a poll; if it found rows there may be more, so the next one comes soon."""
        if found:
            self._steps = 0
        self._steps += 1
        if self._steps < len(_AFTER_HINT_S):
            pause = _AFTER_HINT_S[self._steps]
        else:
            pause = backoff_pause(1.0, self._longest_s, self._steps - len(_AFTER_HINT_S))
            pause *= 0.8 + 0.2 * random.random()
        self.at = now + pause


class NotifyThrottle:
    """Decides whether a hint is part of the commit that causes it, which saves a round trip.

    A notification locks the whole database until its commit is on disk. So only one per 10 ms is sent with
    its commit, and none within 50 ms of a hint that another process sent; the others follow in a transaction
    that writes nothing. After a hand-off the next one may be sent with its commit at once, because few others
    can be sending then. In a stream without pauses one is sent with its commit after 100 ms, and after
    growing spans up to 1 s, to find a worker that is idle again.
    """

    def __init__(self) -> None:
        self._stream_until_s: dict[Channel, float] = {}
        self._retry_at_s: dict[Channel, float] = {}
        self._retry_s: dict[Channel, float] = {}
        self._next_allowed: set[Channel] = set()

    def with_commit(self, channel: Channel, now_s: float) -> bool:
        """Return whether the hint may be part of the commit; if so, it counts as sent."""
        in_stream = channel not in self._next_allowed and now_s < self._stream_until_s.get(channel, -inf)
        allowed = not in_stream or now_s >= self._retry_at_s.get(channel, -inf)
        if allowed:
            retry_s = (
                min(2 * self._retry_s.get(channel, _RETRY_S / 2), _RETRY_MAX_S) if in_stream else _RETRY_S
            )
            self._retry_s[channel], self._retry_at_s[channel] = retry_s, now_s + retry_s
        self._next_allowed.discard(channel)
        self._extend_stream(channel, now_s + _MIN_GAP_S)
        return allowed

    def heard(self, channel: Channel, now_s: float) -> None:
        """Record a hint of another process."""
        self._extend_stream(channel, now_s + _HEARD_GAP_S)

    def allow_next(self, channel: Channel) -> None:
        """Let the next hint be sent with its commit, however soon it comes."""
        self._next_allowed.add(channel)

    def _extend_stream(self, channel: Channel, until_s: float) -> None:
        self._stream_until_s[channel] = max(until_s, self._stream_until_s.get(channel, -inf))
