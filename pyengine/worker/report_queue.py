"""Runs with something to report.

What lives here: `ReportQueue`, from which turns are filled, and `TurnBatch`, what one of them carries. What
may not: what a run reports (run_state.py), when a turn leaves (dispatcher.py). The theory: first come, first
served, and a run has at most one bundle on its way. While a turn is on its way the next one is packed as far
as it is known, so the database does not wait for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pyengine.protocol.turn import RunReport, encode_reports
from pyengine.worker.run_state import TURN_BYTES_MAX, LeasedRun

__all__ = ["BUNDLES_MAX", "ReportQueue", "TurnBatch"]

BUNDLES_MAX = 1000


@dataclass(slots=True)
class TurnBatch:
    """What a turn carries.

    Attributes:
        runs: whose.
        bundles: of each of them.
        text: these bundles as the turn takes them.
        weight: bytes of what they carry.
        ends: how many of them end their run.
    """

    runs: list[LeasedRun] = field(default_factory=list)
    bundles: list[RunReport] = field(default_factory=list)
    text: str = "[]"
    weight: int = 0
    ends: int = 0

    def add(self, runs: list[LeasedRun], bundles: list[RunReport]) -> None:
        """Put more of them in."""
        text = encode_reports(bundles)
        self.text = f"{self.text[:-1]},{text[1:]}" if self.bundles else text
        self.runs += runs
        self.bundles += bundles
        self.ends += sum([one.end is not None for one in bundles])


class ReportQueue:
    """Runs with something to report, first come, first served.

    Args:
        wake: called when a run was added.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._runs: deque[LeasedRun] = deque()
        self._load = TurnBatch()

    def __bool__(self) -> bool:
        return bool(self._runs or self._load.bundles)

    @property
    def ends(self) -> int:
        """How many runs end by what is packed and has not left."""
        return self._load.ends

    def add(self, held: LeasedRun) -> None:
        """Put a run into the queue, unless it is there or its bundle is on its way."""
        if held.queued or held.flight is not None or held.loading or held.dropped:
            return
        held.queued = True
        self._runs.append(held)
        self._wake()

    def again(self, held: LeasedRun) -> None:
        """Put a run into the queue whose bundle is to be sent once more, as it is."""
        if held.flight is not None and held.busy and not (held.queued or held.dropped):
            held.queued = True
            self._runs.append(held)
            self._wake()

    def pack(self, now_s: float, most: int) -> None:
        """Make bundles for the next turn, and write them down; not of runs which may have more to say until
        it leaves, because steps of theirs are under way.

        Args:
            now_s: the time by the loop's clock.
            most: how many bundles the turn carries.
        """
        busy = self._fill(now_s, most, last=False)
        self._runs.extendleft(reversed(busy))

    def collect(self, now_s: float = 0.0, most: int = BUNDLES_MAX) -> TurnBatch:
        """Return what the next turn carries.

        Args:
            now_s: the time by the loop's clock.
            most: how many bundles.
        """
        load = self._load
        if any(held.dropped for held in load.runs):
            kept = [each for each in zip(load.runs, load.bundles, strict=True) if not each[0].dropped]
            self._load = TurnBatch(weight=load.weight)
            self._load.add([run for run, _ in kept], [bundle for _, bundle in kept])
        self._fill(now_s, most, last=True)
        load, self._load = self._load, TurnBatch()
        return load

    def _fill(self, now_s: float, most: int, *, last: bool) -> list[LeasedRun]:
        """Add to what the next turn carries, and return who was passed over."""
        taken: list[LeasedRun] = []
        bundles: list[RunReport] = []
        busy: list[LeasedRun] = []
        load, runs = self._load, self._runs
        most -= len(load.bundles)
        while runs and len(bundles) < most and load.weight < TURN_BYTES_MAX:
            held = runs.popleft()
            if not last and held.steps:
                busy.append(held)
                continue
            held.queued = False
            if held.dropped or held.loading or not (held.flight or held.has_news):
                continue
            # what stands in the queue although its bundle has left met what somebody had locked
            bundles.append(held.flight or held.load_bundle())
            taken.append(held)
            held.sent_s = now_s
            load.weight += held.weight
        if bundles:
            load.add(taken, bundles)
        return busy
