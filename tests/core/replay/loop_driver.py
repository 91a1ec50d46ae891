"""What drives the deterministic loop in tests: timers in memory, fired in the order they fall due."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.futures import DeterministicFuture, TimerToken


class MemoryTimers:
    """Durable timers that live in a dictionary: token to the virtual time at which it fires."""

    def __init__(self) -> None:
        self.loop: DeterministicLoop
        self.due_s: dict[TimerToken, float] = {}
        self.delays_s: list[float] = []
        self.cancelled: list[TimerToken] = []

    def schedule(self, delay_s: float) -> TimerToken:
        """Note the timer under the next number."""
        self.delays_s.append(delay_s)
        token = TimerToken(len(self.delays_s) - 1)
        self.due_s[token] = self.loop.time() + delay_s
        return token

    def cancel(self, token: TimerToken) -> None:
        """Forget the timer."""
        self.cancelled.append(token)
        del self.due_s[token]


class Driver:
    """One run: its loop, its timers and its durable calls, which the test completes."""

    def __init__(self, name: str = "run-1") -> None:
        self.timers = MemoryTimers()
        self.loop = self.timers.loop = DeterministicLoop(self.timers, name)
        self.calls: dict[int, DeterministicFuture] = {}
        self.made = 0

    async def step(self) -> Any:
        """What workflow code awaits: a durable call, dead while the loop is closing."""
        if self.loop.closing:
            return await self.loop.dead_call()
        number, self.made = self.made, self.made + 1
        self.calls[number] = self.loop.new_future()
        return await self.calls[number]

    def complete(self, number: int, value: Any = None) -> None:
        """Complete a durable call and run until quiet, as a journal row would; an exception makes it fail."""
        future = self.calls.pop(number)
        if isinstance(value, BaseException):
            future.set_exception(value)
        elif not future.done():
            future.set_result(value)
        self.loop.run_until_idle()

    def fire_next(self) -> None:
        """Fire the timer that falls due first and run until quiet."""
        token = min(self.timers.due_s, key=lambda each: (self.timers.due_s[each], each))
        self.loop.advance_to(self.timers.due_s.pop(token))
        self.loop.fire(token)
        self.loop.run_until_idle()

    def start(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Start the main task, run until quiet, and return the task."""
        task = self.loop.create_task(program())
        self.loop.run_until_idle()
        return task

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a program that needs nothing but timers to its end, and return what it returns."""
        task = self.start(program)
        while not task.done():
            self.fire_next()
        return task.result()


def traced(name: str = "run-1") -> tuple[Driver, list[Any]]:
    """Return a driver and an empty trace."""
    return Driver(name), []
