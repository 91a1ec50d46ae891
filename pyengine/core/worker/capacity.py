"""How many runs a worker works on at a time, and how many suspended ones it keeps in memory.

Lives here: `Capacity`, `WarmRuns`. May not: claiming (turn_loop.py), suspending and dropping
(run_manager.py), connections (database/pool.py). Design: a worker that gets no further connection has more
runs than it can serve, and another may have connections to spare. So it claims nothing for a moment, in which
others take what it gave back, and works on half as many; after a while on twice as many again, up to the
number that it was configured with. The memory of a coroutine cannot be measured, but nearly all of it came
from the input and the journal of its run, whose text its replay holds too: that is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pyengine.core.process import clock
from pyengine.core.worker.run_state import LeasedRun

logger = logging.getLogger("pyengine.worker")

_PAUSE_S = 1.0
_REGROW_S = 10.0
_LOCKED_ENDS_MAX = 1000


class Capacity:
    """How many runs are worked on at a time.

    Args:
        most: as many as configured.
        leased: the runs that are being worked on.
        wake: called from time to time while there are fewer: there may be more by now.
    """

    def __init__(self, most: int, leased: Mapping[int, LeasedRun], wake: Callable[[], None]) -> None:
        self.most = most
        self._leased = leased
        self._wake = wake
        self._waking: clock.Timer | None = None
        self._now = most
        self._halved_s = self._short_s = self._doubled_s = float("-inf")

    @property
    def now(self) -> int:
        """As many at this moment; 0 while others are to have what was given back."""
        now_s = clock.monotonic()
        while self._now < self.most and now_s >= max(self._short_s, self._doubled_s) + _REGROW_S:
            self._now = min(self.most, 2 * self._now)
            self._doubled_s = max(self._short_s, self._doubled_s) + _REGROW_S
            if self._now == self.most:
                logger.warning("the worker works on up to %d runs at a time again", self.most)
        return 0 if now_s < self._short_s + _PAUSE_S and self._now < self.most else self._now

    def free(self, *, packed_ends: int) -> int:
        """Return how many slots no run is in. A run that ends by its report is out, even while somebody has
        locked what the report needs, unless that is so for too many.

        Args:
            packed_ends: reports that end a run and have not left.
        """
        runs = self._leased.values()
        ending = [run for run in runs if run.report is not None and run.report.end is not None]
        locked = sum([run.resends > 0 for run in ending])
        leaving = len(ending) - packed_ends - max(0, locked - _LOCKED_ENDS_MAX)
        return self.now - len(runs) + leaving

    def too_many(self, why: str) -> None:
        """Note that the runs that there are cannot all be served; `why` is for the log."""
        now_s = clock.monotonic()
        if now_s >= self._halved_s + _PAUSE_S:
            self._halved_s = now_s
            self._now = max(1, min(self._now, len(self._leased)) // 2)
            logger.warning(
                "%s; the worker gives runs back and works on %d at a time instead of %d for a while",
                why,
                self._now,
                self.most,
            )
        self._short_s = now_s
        if self._waking is None:
            self._waking = clock.call_later(_PAUSE_S, self._check_again)

    def _check_again(self) -> None:
        self._waking = None
        if self.now < self.most:
            self._waking = clock.call_later(_PAUSE_S, self._check_again)
        self._wake()


class WarmRuns(dict[int, LeasedRun]):
    """Runs whose coroutine is kept, by execution, the oldest first.

    Args:
        most: kept, at most.
        most_bytes: of their inputs and journals, at most, unless it is one run.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        super().__init__()
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0

    def __setitem__(self, execution: int, run: LeasedRun) -> None:
        super().__setitem__(execution, run)
        self._bytes += run.replay.size

    def __delitem__(self, execution: int) -> None:
        self._bytes -= self[execution].replay.size
        super().__delitem__(execution)

    @property
    def surplus(self) -> LeasedRun | None:
        """The oldest one, if there are too many."""
        number = len(self)
        too_many = number > self._most or (number > 1 and self._bytes > self._most_bytes)
        return next(iter(self.values())) if too_many else None
