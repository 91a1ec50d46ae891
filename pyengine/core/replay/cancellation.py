"""Cancellation of a run, as its code sees it.

Lives here: `Cancellation`: the request reaches the code, and code that waits for something impossible is
cancelled again. May not: which calls a request discards (cancellation_cursor.py); the grace period, which is
the database's. The theory: the request is applied at its place in the journal: the main task is cancelled,
once, as asyncio does it. From then on every durable call outside a shield is refused, so code that goes on
regardless is stopped at its next call. A run that is being cancelled is not suspended any more: it stays
leased while shielded code waits for something that can still complete. When nothing can, deferred
cancellations are delivered; if there are none, the main task is cancelled again. That is decided after each
row from the state of the code alone, so a replay decides the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from pyengine.core.loop.futures import DeterministicTask
from pyengine.core.protocol.journal import Row
from pyengine.core.replay.call_matcher import CallMatcher

REPEATS_MAX = 100
"""How often the main task is cancelled again, in all."""

UNBOUNDED_MS = inf
"""The end of a grace that nothing bounds."""


class _Request(msgspec.Struct):
    reason: msgspec.Raw = msgspec.Raw(b"null")
    until: float = UNBOUNDED_MS


class Cancellation:
    """Cancels the code of one run.

    Args:
        matcher: its calls.
    """

    def __init__(self, matcher: CallMatcher) -> None:
        self._matcher = matcher
        self._cursor = matcher.sequence.cancellation
        self._loop = matcher.loop
        self._repeats = 0

    @property
    def is_ignored(self) -> bool:
        """Whether the code goes on waiting for something impossible, however often it is cancelled."""
        return self._repeats > REPEATS_MAX

    def apply(self, row: Row, main: DeterministicTask) -> None:
        """Deliver the request to the code, and cancel the calls that it discards."""
        cursor = self._cursor
        cursor.applied = True
        main.cancel(_message(row))
        discarded, cursor.calls = cursor.calls, {}
        for call in discarded.values():
            call.cancel()
        cursor.calls = discarded

    def repeat(self, main: DeterministicTask, run_ready: Callable[[], None]) -> None:
        """Cancel again, as long as nothing that the code waits for can complete.

        Args:
            main: the main task.
            run_ready: runs everything that is ready.
        """
        loop = self._loop
        while not (main.done() or self._matcher.sequence.dead or self.is_ignored or self._can_wake()):
            self._repeats += 1
            shielded = [task for task in loop.pending_tasks if task.has_deferred_cancel]
            loop.ignoring_shields = True
            try:
                for task in shielded:
                    task.deliver_deferred()
                if not shielded:
                    self._cancel_all(main)
            finally:
                loop.ignoring_shields = False
            run_ready()

    def _cancel_all(self, main: DeterministicTask) -> None:
        """Cancel the main task; from the second time on also tasks that do not get its cancellation.

        A task group that is cancelling its members already does not pass further cancellations on.
        """
        for task in self._loop.pending_tasks if self._repeats > 1 else ():
            if task is not main and task.shield is None:
                task.cancel()
        main.cancel()

    def _can_wake(self) -> bool:
        """Whether a child run is ending, or a task is shielded and what the code waits for can complete."""
        if self._matcher.children is not None and self._matcher.children.are_ending:
            return True
        if not any(task.shield is not None for task in self._loop.pending_tasks):
            return False
        matcher = self._matcher
        timers = set(self._loop.pending_timers) - self._cursor.timers
        if matcher.open_steps or timers or (matcher.asks is not None and matcher.asks.live):
            return True
        calls = matcher.sequence.calls.values()
        return any(call.kind != "receive" and call.awaited and not call.done() for call in calls)


def until_ms(data: str | None) -> float:
    """Return when the grace of a request is over, epoch milliseconds."""
    try:
        return msgspec.json.decode(data or "{}", type=_Request).until
    except msgspec.DecodeError:
        return UNBOUNDED_MS


def _message(row: Row) -> str | None:
    """Return the reason as the message of the CancelledError: a text as it is, else its JSON text."""
    try:
        text = msgspec.json.decode(row.data or "{}", type=_Request).reason
        reason = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    if reason is None:
        return None
    return reason if isinstance(reason, str) else bytes(text).decode()
