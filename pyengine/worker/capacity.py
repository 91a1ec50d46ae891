"""How many runs a worker works on at a time.

What lives here: `Capacity`. What may not: claiming (dispatcher.py), connections (database/pool.py). The
theory: a worker that gets no further connection has more runs than it can serve, and another may have
connections to spare. So it claims nothing for a moment, in which others take what it gave back, and works on
half as many; after a while on twice as many again, up to as many as it was told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

__all__ = ["Capacity"]

logger = logging.getLogger("pyengine.worker")

_PAUSE_S = 1.0
_REGROW_S = 10.0


class Capacity:
    """How many runs are worked on at a time.

    Args:
        most: as many as it was told to.
        wake: called from time to time while there are fewer: there may be more by now.
    """

    def __init__(self, most: int, wake: Callable[[], None]) -> None:
        self.most = most
        self._wake = wake
        self._waking: asyncio.TimerHandle | None = None
        self._now = most
        self._halved_s = self._short_s = self._doubled_s = float("-inf")

    @property
    def now(self) -> int:
        """As many at this moment; 0 while others are to have what was given back."""
        now_s = time.monotonic()
        while self._now < self.most and now_s >= max(self._short_s, self._doubled_s) + _REGROW_S:
            self._now = min(self.most, 2 * self._now)
            self._doubled_s = max(self._short_s, self._doubled_s) + _REGROW_S
            if self._now == self.most:
                logger.warning("the worker works on up to %d runs at a time again", self.most)
        return 0 if now_s < self._short_s + _PAUSE_S and self._now < self.most else self._now

    def too_many(self, held: int, why: str) -> None:
        """So many runs are more than can be served.

        Args:
            held: runs that it has.
            why: for the log.
        """
        now_s = time.monotonic()
        if now_s >= self._halved_s + _PAUSE_S:
            self._halved_s = now_s
            self._now = max(1, min(self._now, held) // 2)
            logger.warning(
                "%s; the worker gives runs back and works on %d at a time instead of %d for a while",
                why,
                self._now,
                self.most,
            )
        self._short_s = now_s
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(_PAUSE_S, self._look_again)

    def _look_again(self) -> None:
        self._waking = None
        if self.now < self.most:
            self._waking = asyncio.get_running_loop().call_later(_PAUSE_S, self._look_again)
        self._wake()
