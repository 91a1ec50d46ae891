"""The clock of this process: every wait of ours goes by it.

Lives here: the time, pauses, time limits and timers, as functions that ask the clock in use. May not: the
database's clock (`durable._now_ms`), the time of a workflow (`loop`), time limits of libraries, which stay
real. Design: one seam, held by `tests/style/test_clock.py`, so that a test can put a clock of its own here
and let a week pass in minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# elsewhere than on Linux the monotonic clock goes on
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


class Limit(Protocol):
    """The time limit of a block."""

    def reschedule(self, when: float | None) -> None:
        """Move it to another time of the clock."""
        ...


class Clock:
    """The real clock; a test puts a subclass in its place."""

    # no functions of ours around these: each wait, each step and each advance of a run asks for the time
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    elapsed: Callable[[], float] = staticmethod(partial(time.clock_gettime, _SINCE_BOOT))

    async def sleep(self, seconds: float) -> None:
        """Wait in a task."""
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Wait in a thread, which is blocked."""
        time.sleep(seconds)

    def block(self, wait: Callable[[float], T], seconds: float) -> T:
        """Wait in a thread by a function that takes a time limit, as `Condition.wait`."""
        return wait(seconds)

    def timeout_at(self, when: float | None) -> AbstractAsyncContextManager[Limit]:
        """Return a block that raises TimeoutError at that time."""
        return asyncio.timeout_at(when)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call something in the running loop at that time."""
        return asyncio.get_running_loop().call_at(when, callback, *args)


_clock = Clock()


def use(clock: Clock | None) -> None:
    """Go by another clock from now on, or by the real one; for tests."""
    global _clock  # every wait of the process asks it
    _clock = clock or Clock()


def monotonic() -> float:
    """Return the time, in seconds since some instant; it never goes back."""
    return _clock.monotonic()


def elapsed() -> float:
    """Return the same, with the time in which the machine was suspended, as others have counted it."""
    return _clock.elapsed()


async def sleep(seconds: float) -> None:
    """Wait in a task."""
    await _clock.sleep(seconds)


def pause(seconds: float) -> None:
    """Wait in a thread, which is blocked."""
    _clock.pause(seconds)


def block(wait: Callable[[float], T], seconds: float) -> T:
    """Wait in a thread by a function that takes a time limit, as `Condition.wait`."""
    return _clock.block(wait, seconds)


async def wait(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> None:
    """Wait until all of them are done, or that time is over."""
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await asyncio.wait(tasks)


def timeout(seconds: float | None) -> AbstractAsyncContextManager[Limit]:
    """Return a block that raises TimeoutError after so long."""
    return _clock.timeout_at(None if seconds is None else _clock.monotonic() + seconds)


def timeout_at(when: float | None) -> AbstractAsyncContextManager[Limit]:
    """Return a block that raises TimeoutError at that time."""
    return _clock.timeout_at(when)


def call_later(seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
    """Call something in the running loop after so long."""
    return _clock.call_at(_clock.monotonic() + seconds, callback, *args)


def call_at(when: float, callback: Callable[..., object], *args: Any) -> Timer:
    """Call something in the running loop at that time."""
    return _clock.call_at(when, callback, *args)
