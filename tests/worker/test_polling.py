"""When leased runs are polled although nothing of them changed: each after every hint, not too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pyengine.worker.events import PollDue
from pyengine.worker.journal_poller import JournalPoller


@dataclass(eq=False)
class Leased:
    """What the poller sees of a run."""

    wakeable: bool = False
    reported_s: float = 0.0


class Clock:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((at_s, callback))
        return callback

    def move(self, seconds: float) -> None:
        """Let time pass, and call what is due."""
        until_s = self.now_s + seconds
        while due := sorted((one for one in self.timers if one[0] <= until_s), key=lambda one: one[0]):
            self.timers.remove(due[0])
            self.now_s = max(self.now_s, due[0][0])
            due[0][1]()
        self.now_s = until_s


def stage(*runs: Leased) -> tuple[Clock, JournalPoller, list[tuple[float, Leased]]]:
    """A clock, a poller of these runs, and what it polled, when; what is polled is reported at once."""
    clock, polled = Clock(), []

    def post(event: Any) -> None:
        assert isinstance(event, PollDue)
        run = cast("Leased", event.run)
        polled.append((clock.now_s, run))
        run.reported_s = clock.now_s + 0.0001

    leased = dict(enumerate(runs))
    return clock, JournalPoller(cast("Any", clock), cast("Any", leased), post), polled


def test_after_a_hint_every_leased_run_is_polled_once() -> None:
    """Those that others can wake at once, the others soon; without another hint never again."""
    woken, alone = Leased(wakeable=True), Leased()
    clock, poller, polled = stage(woken, alone)
    poller.hinted()
    clock.move(0.01)
    assert [one for _, one in polled] == [woken]
    clock.move(1.0)
    assert [one for _, one in polled] == [woken, alone]
    clock.move(60.0)
    assert len(polled) == 2


def test_a_run_that_reports_anyway_is_not_polled() -> None:
    """A report sent after the hint returned whatever the hint announced."""
    alone = Leased()
    clock, poller, polled = stage(alone)
    poller.hinted()
    alone.reported_s = clock.now_s + 0.01
    clock.move(1.0)
    assert polled == []


def test_a_hint_that_comes_while_one_waits_is_not_lost() -> None:
    """A run whose report left between two hints is polled because of the second one."""
    alone = Leased()
    clock, poller, polled = stage(alone)
    poller.hinted()
    alone.reported_s = clock.now_s + 0.01
    clock.move(0.02)
    poller.hinted()
    clock.move(1.0)
    assert [one for _, one in polled] == [alone]


def test_many_hints_poll_in_bounded_number() -> None:
    """However many hints come: the more runs there are, the less often each is polled."""
    runs = [Leased() for _ in range(100)] + [Leased(wakeable=True) for _ in range(100)]
    clock, poller, polled = stage(*runs)
    for _ in range(1000):
        poller.hinted()
        clock.move(0.01)
    assert {one for _, one in polled} == set(runs)
    others = sum(not one.wakeable for _, one in polled)
    assert 1500 <= others <= 2000 < len(polled) - others <= 10_000
