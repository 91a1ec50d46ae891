"""When held runs are asked for although nothing of them moved: each after every hint, not too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pyengine.worker.journal_poller import JournalPoller


@dataclass(eq=False)
class Held:
    """What the keeper sees of a run."""

    outside: bool = False
    sent_s: float = 0.0
    keep: bool = False


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


def stage(*runs: Held) -> tuple[Clock, JournalPoller, list[tuple[float, Held]]]:
    """A clock, a keeper of these runs, and what it asked for, when; what is asked for is sent at once."""
    clock, asked = Clock(), []

    def news(held: Any) -> None:
        assert held.keep
        asked.append((clock.now_s, held))
        held.sent_s = clock.now_s + 0.0001

    held = dict(enumerate(runs))
    return clock, JournalPoller(cast("Any", clock), cast("Any", held), news), asked


def test_after_a_hint_every_held_run_is_asked_for_once() -> None:
    """Those that others can wake at once, the rest soon; without another hint never again."""
    woken, alone = Held(outside=True), Held()
    clock, keeper, asked = stage(woken, alone)
    keeper.hinted()
    clock.move(0.01)
    assert [one for _, one in asked] == [woken]
    clock.move(1.0)
    assert [one for _, one in asked] == [woken, alone]
    clock.move(60.0)
    assert len(asked) == 2


def test_a_run_that_reports_anyway_is_not_asked_for() -> None:
    """A bundle that left after the hint brought what the hint may have meant."""
    alone = Held()
    clock, keeper, asked = stage(alone)
    keeper.hinted()
    alone.sent_s = clock.now_s + 0.01
    clock.move(1.0)
    assert asked == []


def test_a_hint_that_comes_while_one_waits_is_not_lost() -> None:
    """A run whose bundle left between two hints is asked for because of the second one."""
    alone = Held()
    clock, keeper, asked = stage(alone)
    keeper.hinted()
    alone.sent_s = clock.now_s + 0.01
    clock.move(0.02)
    keeper.hinted()
    clock.move(1.0)
    assert [one for _, one in asked] == [alone]


def test_many_hints_ask_in_bounded_number() -> None:
    """However many hints come, each run is asked for the less often the more runs there are."""
    runs = [Held() for _ in range(100)] + [Held(outside=True) for _ in range(100)]
    clock, keeper, asked = stage(*runs)
    for _ in range(1000):
        keeper.hinted()
        clock.move(0.01)
    assert {one for _, one in asked} == set(runs)
    others = sum(not one.outside for _, one in asked)
    assert 1500 <= others <= 2000 < len(asked) - others <= 10_000
