"""From runs with something to report to the content of a turn.

Lives here: `ReportQueue`, from which turns are filled, and `TurnBatch`, the content of one. May
not: what a run reports (run_state.py), when a turn leaves (turn_loop.py). Design: first come, first
served, and a run has at most one report on its way. While a turn is on its way the next one is packed as far
as it is known, so the database does not wait for that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pyengine.protocol.turn import RunReport, encode_reports
from pyengine.worker.run_state import TURN_BYTES_MAX, Gone, LeasedRun

__all__ = ["REPORTS_MAX", "ReportQueue", "TurnBatch"]

REPORTS_MAX = 1000


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
    """

    def __init__(self, dirty: deque[LeasedRun]) -> None:
        self._dirty = dirty
        self._packed = TurnBatch()

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

    def _fill(self, now_s: float, most: int, *, last: bool) -> list[LeasedRun]:
        """Add to what the next turn carries, and return the runs that were passed over."""
        taken: list[LeasedRun] = []
        reports: list[RunReport] = []
        busy: list[LeasedRun] = []
        packed, dirty = self._packed, self._dirty
        most -= len(packed.reports)
        while dirty and len(reports) < most and packed.bytes < TURN_BYTES_MAX:
            run = dirty.popleft()
            phase, report = run.phase, run.report
            if not last and phase.attempts:
                busy.append(run)
                continue
            run.queued = False
            if report is None:
                if not phase.is_dirty:
                    continue
                report = phase.take_report(run)
            # a run in the queue whose report has left met what somebody had locked
            reports.append(report)
            taken.append(run)
            run.reported_s = now_s
            packed.bytes += run.report_bytes
        if reports:
            packed.add(taken, reports)
        return busy
