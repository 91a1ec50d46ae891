"""From events to effects: the one place where the parts of a worker meet.

Lives here: `Dispatcher`, which applies events one after the other and hands each effect to the part that
executes it. May not: the change that an event makes (run_manager.py), the execution of an effect. Design: any
part may post an event at any time, also while it executes an effect; the outermost post works through the
whole queue before it returns. So events never overlap, and after a post from outside all its consequences are
done. Events are applied in a context of their own, because a step's context must not reach a run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyengine.worker.blocked_runs import resend_pause_s
from pyengine.worker.effects import ResendLater, RetryLater
from pyengine.worker.events import Event, ResendDue, RetryDue
from pyengine.worker.run_manager import RunManager

__all__ = ["Dispatcher"]

_SLICE_S = 0.0002


class Dispatcher:
    """Has events applied.

    Args:
        runs: what they are applied to.
        wake: called when runs have something to report.
    """

    def __init__(self, runs: RunManager, wake: Callable[[], None]) -> None:
        self._apply, self._dirty, self._wake = runs.apply, runs.dirty, wake
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._events: deque[Event] = deque()
        self._working = False
        self._handlers: dict[type, Callable[[Any], object]] = {
            RetryLater: self._retry_later,
            ResendLater: self._resend_later,
        }

    def start(self, handlers: Mapping[type, Callable[[Any], object]]) -> None:
        """Hand effects of these classes to these handlers from now on."""
        self._handlers.update(handlers)

    def post(self, event: Event) -> None:
        """Have an event applied, and all that follows from it, unless that is going on already."""
        if self._working:
            self._events.append(event)
        else:
            self._context.run(self._work, (event,))

    async def post_all(self, events: Iterable[Event]) -> None:
        """Post events one after the other, letting other tasks run in between: the database waits for the
        one that sends turns.
        """
        more = iter(events)
        while not self._context.run(self._work, more, self._loop.time() + _SLICE_S):
            await asyncio.sleep(0)

    def _work(self, events: Iterable[Event], until_s: float | None = None) -> bool:
        """Apply events, each with all that follows from it, until that time of the loop's clock; return
        whether all of them are applied.
        """
        queue, apply, handlers, now_s = self._events, self._apply, self._handlers, self._loop.time
        self._working = True
        try:
            for event in events:
                queue.append(event)
                while queue:
                    for effect in apply(queue.popleft()):
                        handlers[type(effect)](effect)
                if until_s is not None and now_s() > until_s:
                    return False
            return True
        finally:
            self._working = False
            if self._dirty:
                self._wake()

    def _retry_later(self, effect: RetryLater) -> None:
        due = RetryDue(effect.run, effect.call)
        self._loop.call_later(effect.in_ms / 1000, self.post, due)

    def _resend_later(self, effect: ResendLater) -> None:
        self._loop.call_later(resend_pause_s(effect.times), self.post, ResendDue(effect.run))
