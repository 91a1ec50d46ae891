"""When the journals of leased runs are read: on request, and after hints.

Lives here: `JournalFetcher`, which reads a journal as a whole; `JournalPoller`, which has runs report
although nothing of them changed. May not: what rows mean for a run (run_manager.py), turns. The theory:
others append to the journal of a leased run: its children end, its timers fire, signals come, a cancellation
is requested. A report, even an empty one, returns all of that; a hint says that it may be worth sending one.
So after a hint every leased run is reported once more, unless a report left after the hint anyway. Runs that
others can wake are polled at once; runs that wait only for their own steps (which only a cancellation can
interrupt) after 0.1 s. The number of runs bounds how often. Without hints the worker polls every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from pyengine.core.database.faults import Fault, fault_of
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import JOURNAL
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.protocol.turn import decode_journal
from pyengine.core.values.sizes import LARGE_BYTES
from pyengine.core.worker.effects import FetchJournal
from pyengine.core.worker.events import Event, JournalFetched, PollDue
from pyengine.core.worker.run_state import Fetching, LeasedRun
from pyengine.errors import EngineError, Unavailable

logger = logging.getLogger("pyengine.turn")

_AGAIN_S = 1.0
_WAKEABLE_S = (0.0, 0.01, 0.001)
_OTHERS_S = (0.1, 0.1, 0.005)


class JournalFetcher:
    """Reads journals.

    Args:
        connections: to read on.
        worker: id of the worker.
        terms: a journal is read once the lease of its run is known to hold.
        post: takes the journals.
        background: its tasks.
        values: read large journals.
    """

    def __init__(
        self,
        connections: ConnectionPool,
        worker: str,
        terms: LeaseTerms,
        post: Callable[[Event], None],
        *,
        background: Background,
        values: ValueThreads,
    ) -> None:
        self._terms = terms
        self._connections = connections
        self._worker = worker
        self._post = post
        self._background = background
        self._values = values
        self._tasks: set[asyncio.Task[None]] = set()

    def fetch(self, effect: FetchJournal) -> None:
        """Read the journal of a run, again and again if need be."""
        task = self._background.start(self._fetch(effect.run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fetch(self, run: LeasedRun) -> None:
        while isinstance(run.phase, Fetching):
            await self._terms.holds(run, lambda: isinstance(run.phase, Fetching))
            try:
                text = await self._connections.run(JOURNAL, self._worker, *run.lease)
            except EngineError as error:
                if fault_of(error) is Fault.RUN:
                    # the claim that follows the end of its lease sets it aside, with the reason
                    logger.warning("journal of run %s cannot be read: %s", run.info.id, error.message)
                    self._post(JournalFetched(run, None))
                    return
                # a database that cannot be reached is logged once for all connections
                level = logging.DEBUG if type(error) is Unavailable else logging.WARNING
                logger.log(level, "journal of run %s: %s", run.info.id, error.message)
                await clock.sleep(_AGAIN_S)
                continue
            if text is None or len(text) < LARGE_BYTES:
                journal = None if text is None else decode_journal(text)
            else:
                journal = await self._values.call(partial(decode_journal, text))
            self._post(JournalFetched(run, journal))
            return


class JournalPoller:
    """Has leased runs reported after hints.

    Args:
        leased: the runs, by execution.
        post: takes `PollDue`.
    """

    def __init__(
        self,
        leased: Mapping[int, LeasedRun],
        post: Callable[[Event], None],
    ) -> None:
        self._leased = leased
        self._post = post
        self._rounds = (
            _Round(lambda since_s: self._poll(since_s, wakeable=True), _WAKEABLE_S),
            _Round(lambda since_s: self._poll(since_s, wakeable=False), _OTHERS_S),
        )

    def hinted(self) -> None:
        """Something was settled, signalled or cancelled somewhere, or it is time to see."""
        for each in self._rounds:
            each.request()

    def close(self) -> None:
        """Poll no more."""
        for each in self._rounds:
            each.close()

    def _poll(self, since_s: float, *, wakeable: bool) -> int:
        # a report sent after the hint already returns whatever the hint announced
        runs = [run for run in self._leased.values() if run.wakeable is wakeable and run.reported_s < since_s]
        for run in runs:
            self._post(PollDue(run))
        return len(runs)


class _Round:
    """Polls some time after a request, and not too often.

    Args:
        poll: takes the time of the request, and returns how many runs it polled.
        pauses_s: from the request to the poll; from one poll to the next, at least; and for each run polled.
    """

    def __init__(
        self,
        poll: Callable[[float], int],
        pauses_s: tuple[float, float, float],
    ) -> None:
        self._poll = poll
        self._first_s, self._least_s, self._each_s = pauses_s
        self._requested_s = self._since_s = self._next_s = 0.0
        self._timer: clock.Timer | None = None

    def request(self) -> None:
        """Poll soon."""
        self._requested_s = clock.monotonic()
        if self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        self._since_s = self._requested_s
        self._timer = clock.call_at(max(self._next_s, self._since_s + self._first_s), self._go)

    def close(self) -> None:
        """Poll no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _go(self) -> None:
        self._timer = None
        polled = self._poll(self._since_s)
        self._next_s = clock.monotonic() + self._least_s + self._each_s * polled
        if self._requested_s > self._since_s:
            # requested again meanwhile
            self._set_timer()
