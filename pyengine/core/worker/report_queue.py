"""From runs with something to report to the content of a turn.

Lives here: `ReportQueue`, from which turns are filled, `TurnBatch`, the content of one, and `LargeReports`,
which sends large ones. May not: what a run reports (run_state.py), when other turns leave (turn_loop.py),
what answers mean. Design: first come, first served, and a run has at most one report on its way. While a turn
is on its way the next one is packed as far as it is known, so the database does not wait for that. A turn is
bounded by reports and by their bytes. A large report is written, sent and stored for seconds, and no small
one is to wait for it. So large ones have turns of their own, on a connection that is made when it is needed,
one after the other. They claim nothing, and the heartbeat renews the leases meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pyengine.core.protocol.turn import Answer, RunReport, encode_reports
from pyengine.core.values.sizes import LARGE_BYTES
from pyengine.core.worker.run_state import TURN_BYTES_MAX, Gone, LeasedRun
from pyengine.core.worker.turn_sender import TurnSender

REPORTS_MAX = 1000

QUICK_BYTES_MAX = 2 << 20
"""A turn of small reports that weighs this much takes nothing more."""


@dataclass(slots=True)
class TurnBatch:
    """The content of a turn.

    Attributes:
        runs: which runs report.
        reports: the report of each of them.
        text: these reports as the turn takes them.
        bytes: of what they carry.
        ends: how many of them end their run.
    """

    runs: list[LeasedRun] = field(default_factory=list)
    reports: list[RunReport] = field(default_factory=list)
    text: str = "[]"
    bytes: int = 0
    ends: int = 0

    def add(self, runs: list[LeasedRun], reports: list[RunReport]) -> None:
        """Put more of them in."""
        text = encode_reports(reports)
        self.text = f"{self.text[:-1]},{text[1:]}" if self.reports else text
        self.runs += runs
        self.reports += reports
        self.ends += sum([one.end is not None for one in reports])


class ReportQueue:
    """Fills turns.

    Args:
        dirty: runs with something to report, or with a report to be sent once more as it is.
        large_came: called when a large report was met.
    """

    def __init__(self, dirty: deque[LeasedRun], large_came: Callable[[], None]) -> None:
        self._dirty = dirty
        self._packed = TurnBatch()
        self._large: deque[tuple[LeasedRun, RunReport]] = deque()
        self._large_came = large_came

    def __bool__(self) -> bool:
        return bool(self._dirty or self._packed.reports)

    @property
    def ends(self) -> int:
        """How many runs end by what is packed and has not left."""
        return self._packed.ends

    def pack(self, now_s: float, most: int) -> None:
        """Take reports into the next turn, and write them down; not of runs which may have more to say until
        it leaves, because attempts of theirs are under way.

        Args:
            now_s: the time by our clock.
            most: how many reports the turn carries.
        """
        busy = self._fill(now_s, most, last=False)
        self._dirty.extendleft(reversed(busy))

    def collect(self, now_s: float, most: int) -> TurnBatch:
        """Return what the next turn carries.

        Args:
            now_s: the time by our clock.
            most: how many reports.
        """
        packed = self._packed
        if any(isinstance(run.phase, Gone) for run in packed.runs):
            left = [each for each in zip(packed.runs, packed.reports, strict=True) if not each[0].gone]
            self._packed = TurnBatch(bytes=packed.bytes)
            self._packed.add([run for run, _ in left], [report for _, report in left])
        self._fill(now_s, most, last=True)
        packed, self._packed = self._packed, TurnBatch()
        return packed

    def take_large(self) -> list[RunReport]:
        """Return the next large reports: one, or as many as are not too much together."""
        reports: list[RunReport] = []
        size = 0
        while self._large and size < TURN_BYTES_MAX:
            run, report = self._large[0]
            if reports and size + run.report_bytes > TURN_BYTES_MAX:
                break
            self._large.popleft()
            if run.report is report:
                # else the run is gone
                reports.append(report)
                size += run.report_bytes
        return reports

    def _fill(self, now_s: float, most: int, *, last: bool) -> list[LeasedRun]:
        """Add to what the next turn carries, and return the runs that were passed over."""
        taken: list[LeasedRun] = []
        reports: list[RunReport] = []
        busy: list[LeasedRun] = []
        packed, dirty = self._packed, self._dirty
        most -= len(packed.reports)
        while dirty and len(reports) < most and packed.bytes < QUICK_BYTES_MAX:
            run = dirty.popleft()
            phase, report = run.phase, run.report
            if not last and phase.attempts:
                busy.append(run)
                continue
            run.queued = False
            if report is None:
                if run.waits_for_steps or not phase.is_dirty:
                    continue
                report = phase.take_report(run)
            # a run in the queue whose report has left met what somebody had locked
            run.reported_s = now_s
            if run.report_bytes >= LARGE_BYTES:
                self._large.append((run, report))
                self._large_came()
                continue
            reports.append(report)
            taken.append(run)
            packed.bytes += run.report_bytes
        if reports:
            packed.add(taken, reports)
        return busy


class LargeReports:
    """Sends large reports.

    Args:
        turns: sends turns; nothing else is sent by it.
        answered: takes the answers to reports.
    """

    def __init__(
        self, turns: TurnSender, answered: Callable[[list[Answer], list[RunReport], TurnSender], None]
    ) -> None:
        self.turns = turns
        self._answered = answered
        self._came = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stopping = False

    def came(self) -> None:
        """There is one to be sent."""
        self._came.set()

    async def send(self, queue: ReportQueue) -> None:
        """Send what comes into a queue until `stop`."""
        while True:
            reports = [] if self._stopping else queue.take_large()
            if reports:
                self._quiet.clear()
                try:
                    self._answered(await self.turns.send(reports, -1), reports, self.turns)
                finally:
                    self._quiet.set()
            elif self._stopping:
                return
            else:
                self._came.clear()
                await self._came.wait()

    async def stop(self) -> None:
        """Begin no further turn, and wait for the answer to the one on its way."""
        self._stopping = True
        self._came.set()
        await self._quiet.wait()

    async def close(self) -> None:
        """Close the connection."""
        await self.turns.close()
