"""A clock of the process that stands still until a test moves it by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyengine.core.process.clock import Clock


class HandClock(Clock):
    """Put it in place with `monkeypatch.setattr("pyengine.core.process.clock._clock", ...)`.

    Attributes:
        now_s: the time, which a test may set.
        timers: calls that are to come, with their times.
        paused: the pauses of threads, which take no time.
    """

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.paused: list[float] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def elapsed(self) -> float:
        """Return the same: nothing is suspended."""
        return self.monotonic()

    def pause(self, seconds: float) -> None:
        """Note the pause."""
        self.paused.append(seconds)

    async def sleep(self, seconds: float) -> None:
        """Note the pause."""
        self.paused.append(seconds)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> _Timer:
        """Note the call."""
        timer = when, lambda: callback(*args)
        self.timers.append(timer)
        return _Timer(self, timer)

    def move(self, seconds: float) -> None:
        """Let time pass, and call what is due."""
        until_s = self.now_s + seconds
        while due := sorted((one for one in self.timers if one[0] <= until_s), key=lambda one: one[0]):
            self.timers.remove(due[0])
            self.now_s = max(self.now_s, due[0][0])
            due[0][1]()
        self.now_s = until_s


class _Timer:
    def __init__(self, clock: HandClock, timer: tuple[float, Callable[[], object]]) -> None:
        self._clock, self._timer = clock, timer

    def cancel(self) -> None:
        """Let it not come."""
        if self._timer in self._clock.timers:
            self._clock.timers.remove(self._timer)
