"""From events to effects: the one place where the parts of a worker meet.

Lives here: `Dispatcher`, which applies events one after the other and hands each effect to the part that
executes it. May not: the change that an event makes (run_manager.py), the execution of an effect. Design: any
part may post an event at any time, also while it executes an effect. Events wait in one queue and are worked
through in slices, so they never overlap. An event posted while no slice is pending is applied before `post`
returns. Events are applied in a context of their own, because a step's context must not reach a run. An error
that no part expects ends the worker: a run whose event was lost would stand still under a lease that is
renewed for ever, and the worker that claims it next replays it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pyengine.core.process import clock
from pyengine.core.worker.effects import PostLater
from pyengine.core.worker.events import Event
from pyengine.core.worker.run_manager import RunManager

logger = logging.getLogger("pyengine.worker")

T = TypeVar("T")

_SLICE_S = 0.0002
_NO_EVENTS: Iterator[Event] = iter(())


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
        self._timers: dict[int, clock.Timer] = {}
        self._working = False
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._handlers: dict[type, Callable[[Any], object]] = {
            PostLater: self.post_later,
        }

    def start(self, handlers: Mapping[type, Callable[[Any], object]]) -> None:
        """Hand effects of these classes to these handlers from now on."""
        self._handlers.update(handlers)

    def share(self, variable: contextvars.ContextVar[T], value: T) -> None:
        """Let all that follows from events, such as the bodies of steps, find a value in a variable."""
        self._context.run(variable.set, value)

    def post(self, event: Event) -> None:
        """Have an event applied, and all that follows from it; by the next slice, if one is pending."""
        self._events.append(event)
        if not self._working:
            self._context.run(self._work)

    async def post_all(self, events: Iterable[Event]) -> None:
        """Have events applied in slices, letting other tasks run in between: the database waits for the one
        that sends turns.
        """
        more = iter(events)
        try:
            while not self._context.run(self._work, more, clock.monotonic() + _SLICE_S):
                self._working = True
                await asyncio.sleep(0)
        finally:
            self._working = False

    def close(self) -> None:
        """Post no event any more that waits for its time."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def failure(self) -> None:
        """Wait for an error that no part expects.

        Raises:
            Exception: that error.
        """
        await self._failed

    def _work(self, more: Iterator[Event] = _NO_EVENTS, until_s: float | None = None) -> bool:
        """Apply the events of the queue, then more events, each with all that follows from it, until that
        time of our clock; return whether there are no more.
        """
        queue, apply, handlers, now_s = self._events, self._apply, self._handlers, clock.monotonic
        self._working = True
        try:
            while True:
                another = next(more, None)
                if another is not None:
                    queue.append(another)
                while queue:
                    event = queue.popleft()
                    try:
                        effects = apply(event)
                    except Exception as error:  # boundary: see above
                        self._fail(error)
                        continue
                    for effect in effects:
                        try:
                            handlers[type(effect)](effect)
                        except Exception as error:  # boundary; what else follows from the event goes on
                            self._fail(error)
                if another is None:
                    return True
                if until_s is not None and now_s() > until_s:
                    return False
        finally:
            self._working = False
            if self._dirty:
                self._wake()

    def _fail(self, error: Exception) -> None:
        if self._failed.done():
            logger.error("one more error while the worker stops", exc_info=error)
        else:
            self._failed.set_exception(error)

    def post_later(self, effect: PostLater) -> None:
        """Post an event when its time has come, unless the worker is closed by then."""
        self._timers[id(effect)] = clock.call_later(effect.in_s, self._due, effect)

    def _due(self, effect: PostLater) -> None:
        del self._timers[id(effect)]
        self.post(effect.event)
