"""Cancellation of a run, as its code sees it.

What lives here: `Cancellation`: the request reaches the code, and code that cannot go on is asked again. What
may not: the end of the grace, which is the database's. The theory: the request is applied where it stands in
the journal: the main task is cancelled, once, as asyncio does it; from then on every durable call outside a
shield is refused, so code that goes on regardless is stopped at its next call. A run that is being cancelled
is not suspended any more: it is held while code in a shield waits for something that can still come. When
nothing can come, cancellations that wait for the end of a shield get through, and if there is none the main
task is cancelled again. That is decided after each row, from the state of the code alone, so a replay decides
the same.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pyengine.loop.event_loop import DeterministicTask
from pyengine.protocol.journal import Row
from pyengine.replay.call_matcher import CallMatcher

__all__ = ["REQUESTS_MAX", "Cancellation"]

REQUESTS_MAX = 100
"""How often the main task is cancelled again, in all."""


class _Request(msgspec.Struct):
    reason: msgspec.Raw = msgspec.Raw(b"null")


class Cancellation:
    """Cancels the code of one run.

    Args:
        matcher: its calls.
    """

    def __init__(self, matcher: CallMatcher) -> None:
        self._matcher = matcher
        self._loop = matcher.loop
        self._requests = 0

    @property
    def is_stubborn(self) -> bool:
        """Whether the code goes on waiting for what cannot come, however often it is cancelled."""
        return self._requests > REQUESTS_MAX

    def apply(self, row: Row, main: DeterministicTask) -> None:
        """Let the code see a request of cancellation; what it overtook is cancelled with it."""
        matcher = self._matcher
        matcher.cancelling = True
        main.cancel(_words(row))
        overtaken, matcher.overtaken = matcher.overtaken, {}
        for call in overtaken.values():
            call.cancel()
        matcher.overtaken = overtaken

    def press(self, main: DeterministicTask, settle_down: Callable[[], None]) -> None:
        """Cancel again, as long as nothing that the code waits for can come.

        Args:
            main: the main task.
            settle_down: lets all that is ready run.
        """
        loop = self._loop
        while not (main.done() or self._matcher.dead or self.is_stubborn or self._can_wake()):
            self._requests += 1
            spared = [task for task in loop.pending_tasks if task.is_spared]
            loop.piercing = True
            try:
                for task in spared:
                    task.pierce()
                if not spared:
                    self._cancel_all(main)
            finally:
                loop.piercing = False
            settle_down()

    def _cancel_all(self, main: DeterministicTask) -> None:
        """Cancel the main task; the second time also those that it waits for without passing it on.

        A group that gives up its members already keeps further cancellations from them.
        """
        for task in self._loop.pending_tasks if self._requests > 1 else ():
            if task is not main and task.shield is None:
                task.cancel()
        main.cancel()

    def _can_wake(self) -> bool:
        """Whether some task stands in a shield, and a completion is to come that somebody waits for."""
        if not any(task.shield is not None for task in self._loop.pending_tasks):
            return False
        matcher = self._matcher
        timers = set(self._loop.pending_timers) - matcher.overtaken_timers
        if matcher.open_steps or (matcher.transacting and matcher.transactions.live) or timers:
            return True
        return any(
            call.kind != "receive" and call.awaited and not call.done() for call in matcher.calls.values()
        )


def _words(row: Row) -> str | None:
    """Return the reason as the message of the CancelledError: a text as it is, else its JSON text."""
    try:
        reason = msgspec.json.decode(row.data or "{}", type=_Request).reason
        told = msgspec.json.decode(reason)
    except msgspec.DecodeError:
        return None
    if told is None:
        return None
    return told if isinstance(told, str) else bytes(reason).decode()
