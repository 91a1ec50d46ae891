"""The child runs of one run, and how they end with it.

Lives here: `ChildRuns`: which child runs are asked to end, and the end of the run that waits for them. May
not: driving the coroutine (machine.py), the cancellation itself, which is the database's. The theory
(decisions/0127): a child run is cancelled as a task of asyncio is. `cancel` asks, and the call is cancelled
once the child has ended. A run that ends asks every child that it has not detached, and its own end is
reported once they have ended. The request has no row in this journal: a replay makes it again unless the
journal shows that the code was past it, and a second one changes nothing.
"""

from __future__ import annotations

from pyengine.core.loop.awaitables import Call
from pyengine.core.protocol.commands import (
    CancelChild,
    Cancelled,
    Complete,
    ContinueAsNew,
    End,
    Fail,
    Suspend,
)
from pyengine.core.replay import run_log
from pyengine.core.replay.call_sequence import CallSequence


def _ends_run(end: End) -> bool:
    """Whether nothing of a run goes on after this end of its code, or all of it begins again."""
    return isinstance(end, Complete | Fail | Cancelled) or (
        isinstance(end, ContinueAsNew) and end.error is not None
    )


class ChildRuns:
    """The child runs of one run.

    Args:
        sequence: the calls of the run.

    Attributes:
        deferred: the end of the run, which waits for them.
    """

    def __init__(self, sequence: CallSequence) -> None:
        self._sequence = sequence
        self._late: set[int] = set()
        self._asked: set[int] = set()
        self._left: set[int] = set()
        self._ends: set[int | None] = set()
        self._read = 0
        self.deferred: End | None = None

    @property
    def are_ending(self) -> bool:
        """Whether a child that was asked to end has not ended."""
        return not self._asked.isdisjoint(self._sequence.calls)

    def own(self, call: Call) -> None:
        """Take a call as one of a child run that ends with this one."""
        call.ask = self.ask
        if self._sequence.cancellation.applied:
            self._late.add(call.child)

    def ask(self, child: int) -> bool:
        """Ask a child to end; false if the code is dead, and its calls have no effect."""
        sequence = self._sequence
        if sequence.dead:
            return False
        if child not in self._asked:
            self._asked.add(child)
            # the cancellation of a run reaches the children that it had then
            reached = sequence.cancellation.applied and child not in self._late
            if not reached and child not in self._ended() and sequence.at_frontier():
                sequence.commands.append(CancelChild(child=child))
        return True

    def end_all(self) -> list[Call]:
        """Ask every child to end that has not been detached, and return the calls to wait for."""
        calls = self._sequence.calls.values()
        left = [one for one in calls if getattr(one, "ask", None) is not None and not one.done()]
        for call in left:
            call.cancel()
        return left

    def defer(self, end: End) -> bool:
        """Defer an end of the run until its children have ended; false if it waits for none."""
        sequence = self._sequence
        if not _ends_run(end):
            return False
        is_new = sequence.at_frontier()
        calls = self.end_all()
        if not calls:
            return False
        if is_new:
            run_log.children_left(sequence.run, end, [call.id for call in calls])
        self.deferred = end
        self._left = {call.child for call in calls}
        return True

    def end(self) -> End | None:
        """Return the deferred end once all children have ended; before, the wait for them; None
        while the run is being cancelled and keeps its lease.
        """
        left = tuple(sorted(self._left - self._ended()))
        if not left:
            return self.deferred
        if self._sequence.cancellation.requested:
            return None
        return Suspend(on=left, kind="all" if len(left) > 1 else "single")

    def _ended(self) -> set[int | None]:
        """Return the numbers whose ends are in the journal."""
        completions = self._sequence.history.completions
        self._ends.update(row.child for row in completions[self._read :])
        self._read = len(completions)
        return self._ends
