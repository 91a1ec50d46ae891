"""Memory that clients use: the bytes that they send, and the bytes that they have not taken yet.

Lives here: `Memory`, which counts them against one limit, and `Share`, the part of one body, answer or
stream. May not: the bytes themselves. Design: a client that is slow keeps its bytes, as long as nobody else
needs the room. When there is none, those that have kept theirs longest are interrupted, so that a few slow
clients cannot exhaust it. A share that still finds no room is refused and gives its own part back, so the
others go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pyengine.core.process import clock

# bytes that have waited for less are in nobody's way
_PATIENCE_S = 5.0


class Memory:
    """Bytes of many clients.

    Args:
        limit: the largest number of them. A single share may exceed it while there is no other.

    Attributes:
        held: how many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shares: set[Share] = set()
        self.held = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """Give a share for the time of a block."""
        share = Share(self)
        try:
            yield share
        finally:
            share.give_back()

    def take(self, share: Share, size: int) -> bool:
        """Take so many bytes more for a share; return false if that would be too many."""
        if self.held and self.held + size > self._limit:
            self._make_room(self.held + size - self._limit, share)
            if self.held and self.held + size > self._limit:
                return False
        self.held += size
        self._shares.add(share)
        return True

    def give_back(self, share: Share, size: int) -> None:
        """Give so many bytes of a share back."""
        self.held -= size
        if share.held == size:
            self._shares.discard(share)

    def _make_room(self, size: int, newest: Share) -> None:
        """Interrupt those that have kept their bytes longest, if that is enough for so many bytes."""
        until_s = clock.monotonic() - _PATIENCE_S
        slow = [one for one in self._shares if one is not newest and one.has_waited_since(until_s)]
        if sum(one.held for one in slow) < size:
            return
        for one in sorted(slow, key=lambda share: share.since_s):
            if size <= 0:
                return
            size -= one.held
            one.let_go()


class Share:
    """Bytes of one client.

    Args:
        memory: those of all.

    Attributes:
        held: how many there are.
        since_s: the time since which the first of them have waited.
        interrupt: makes the owner of the bytes drop them, as long as it waits for its client; else None.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.held = 0
        self.since_s = 0.0
        self.interrupt: Callable[[], None] | None = None

    def add(self, size: int) -> bool:
        """Add so many bytes; return false if there is no memory for them."""
        if not self._memory.take(self, size):
            return False
        if not self.held:
            self.since_s = clock.monotonic()
        self.held += size
        return True

    def remove(self, size: int) -> None:
        """Give so many bytes back; the next ones begin to wait."""
        size = min(size, self.held)
        self._memory.give_back(self, size)
        self.held -= size
        self.since_s = clock.monotonic()

    def give_back(self) -> None:
        """Give all bytes back."""
        self._memory.give_back(self, self.held)
        self.held = 0

    def let_go(self) -> None:
        """Interrupt the owner, whose bytes are no longer counted."""
        if self.interrupt is not None:
            self.interrupt()
        self.give_back()

    def has_waited_since(self, until_s: float) -> bool:
        """Return whether the bytes wait for their client, and have since an instant or longer."""
        return self.interrupt is not None and self.since_s <= until_s
