"""When held runs are asked for although nothing of them moved.

What lives here: `JournalPoller`. What may not: what a run is, turns. The theory: others append to the journal
of a run that is held here: its children end, its timers fire, signals come, somebody asks it to stop. A
bundle, even an empty one, brings all of that; a hint says that it may be worth sending one. So after a hint
every held run is reported once more, unless it reports anyway: at once those whose code others can wake, a
little later those that only wait for steps of their own, to which only a request to stop can come. How often
is bounded by how many there are. Without hints somebody calls every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyengine.worker.run_state import LeasedRun

__all__ = ["JournalPoller"]

_WOKEN_S = (0.0, 0.01, 0.001)
_OTHERS_S = (0.1, 0.1, 0.005)


class JournalPoller:
    """Has held runs reported after hints.

    Args:
        loop: the worker's loop.
        held: the runs, by execution.
        news: called with a run that is to be reported.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        held: Mapping[int, LeasedRun],
        news: Callable[[LeasedRun], None],
    ) -> None:
        self._held = held
        self._news = news
        self._rounds = (
            _Round(loop, lambda since_s: self._ask(since_s, outside=True), _WOKEN_S),
            _Round(loop, lambda since_s: self._ask(since_s, outside=False), _OTHERS_S),
        )

    def hinted(self) -> None:
        """Something was settled, signalled or cancelled somewhere, or it is time to see."""
        for each in self._rounds:
            each.wish()

    def close(self) -> None:
        """Ask no more."""
        for each in self._rounds:
            each.close()

    def _ask(self, since_s: float, *, outside: bool) -> int:
        # a bundle that left after the hint brings all that it may have meant
        runs = [one for one in self._held.values() if one.outside is outside and one.sent_s < since_s]
        for held in runs:
            held.keep = True
            self._news(held)
        return len(runs)


class _Round:
    """Asks some time after it was wished, and not too often.

    Args:
        loop: the worker's loop.
        ask: takes the time of the wish, and answers how many runs it asked for.
        pauses_s: from the wish to asking; from one time to the next, at least; and for each run asked for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask: Callable[[float], int],
        pauses_s: tuple[float, float, float],
    ) -> None:
        self._loop = loop
        self._ask = ask
        self._first_s, self._least_s, self._each_s = pauses_s
        self._wished_s = self._since_s = self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wish(self) -> None:
        """Ask soon."""
        self._wished_s = self._loop.time()
        if self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        self._since_s = self._wished_s
        self._timer = self._loop.call_at(max(self._next_s, self._since_s + self._first_s), self._go)

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _go(self) -> None:
        self._timer = None
        asked = self._ask(self._since_s)
        self._next_s = self._loop.time() + self._least_s + self._each_s * asked
        if self._wished_s > self._since_s:
            # wished again meanwhile
            self._set_timer()
