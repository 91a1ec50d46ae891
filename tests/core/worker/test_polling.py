"""When leased runs are polled although nothing of them changed: each after every hint, not too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from pyengine.core.worker.events import PollDue
from pyengine.core.worker.journal_poller import JournalPoller
from tests.support.hand_clock import HandClock


@dataclass(eq=False)
class Leased:
    """What the poller sees of a run."""

    wakeable: bool = False
    reported_s: float = 0.0


Stage = Callable[..., tuple[HandClock, JournalPoller, list[tuple[float, Leased]]]]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A function that makes a clock, a poller of these runs, and what it polled, when."""
    clock = HandClock()
    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)
    return lambda *runs: staged(clock, *runs)


def staged(clock: HandClock, *runs: Leased) -> tuple[HandClock, JournalPoller, list[tuple[float, Leased]]]:
    """A poller of these runs, by that clock; what is polled is reported at once."""
    polled: list[tuple[float, Leased]] = []

    def post(event: Any) -> None:
        assert isinstance(event, PollDue)
        run = cast("Leased", event.run)
        polled.append((clock.now_s, run))
        run.reported_s = clock.now_s + 0.0001

    leased = dict(enumerate(runs))
    return clock, JournalPoller(cast("Any", leased), post), polled


def test_after_a_hint_every_leased_run_is_polled_once(stage: Stage) -> None:
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


def test_a_run_that_reports_anyway_is_not_polled(stage: Stage) -> None:
    """A report sent after the hint returned whatever the hint announced."""
    alone = Leased()
    clock, poller, polled = stage(alone)
    poller.hinted()
    alone.reported_s = clock.now_s + 0.01
    clock.move(1.0)
    assert polled == []


def test_a_hint_that_comes_while_one_waits_is_not_lost(stage: Stage) -> None:
    """A run whose report left between two hints is polled because of the second one."""
    alone = Leased()
    clock, poller, polled = stage(alone)
    poller.hinted()
    alone.reported_s = clock.now_s + 0.01
    clock.move(0.02)
    poller.hinted()
    clock.move(1.0)
    assert [one for _, one in polled] == [alone]


def test_many_hints_poll_in_bounded_number(stage: Stage) -> None:
    """However many hints come: the more runs there are, the less often each is polled."""
    runs = [Leased() for _ in range(100)] + [Leased(wakeable=True) for _ in range(100)]
    clock, poller, polled = stage(*runs)
    for _ in range(1000):
        poller.hinted()
        clock.move(0.01)
    assert {one for _, one in polled} == set(runs)
    others = sum(not one.wakeable for _, one in polled)
    assert 1500 <= others <= 2000 < len(polled) - others <= 10_000
