"""Cancellation as calls see it: which calls a request in the journal discards.

Lives here: `CancellationCursor`. May not: cancelling tasks (cancellation.py), comparing calls with rows
(call_sequence.py). The theory: a cancellation request stands at one place in the journal, and the code
receives it there, live and in replay alike. A command that the code made before that place and that the
journal does not hold is discarded: the database refused the turn that was to record it. A discarded call
keeps its number and has no effect: it is not recorded, it never completes, and it is cancelled when the
request is applied. So is every call after it. A step before it was running, and goes on. Inside a shield
nothing is discarded.
"""

from __future__ import annotations

from pyengine.core.loop.awaitables import Call
from pyengine.core.loop.shield import current_shield
from pyengine.core.protocol.journal import Row
from pyengine.core.replay.history import History


class CancellationCursor:
    """Where the code of a run stands relative to the cancellation request in its journal.

    Args:
        history: the journal; may grow.

    Attributes:
        applied: the code has received the request.
        calls: discarded calls, by child number.
        timers: child numbers of discarded timers of the loop; they never fire.
    """

    __slots__ = ("_discarding", "_history", "applied", "calls", "timers")

    def __init__(self, history: History) -> None:
        self._history = history
        self._discarding = False
        self.applied = False
        self.calls: dict[int, Call] = {}
        self.timers: set[int] = set()

    @property
    def requested(self) -> bool:
        """Whether the journal holds a request."""
        return self._history.cancel_seq is not None

    @property
    def ahead(self) -> bool:
        """Whether a request is in the journal, the code has not received it, and is in no shield."""
        return self.requested and not self.applied and current_shield() is None

    def is_ahead_of(self, row: Row | None) -> bool:
        """Whether the request, not received yet, stands before a row; None is the end of the journal."""
        return self.ahead and (row is None or row.seq > (self._history.cancel_seq or 0))

    def discards_command(self, child: int, row: Row | None) -> bool:
        """Whether a command with the next number is discarded.

        Args:
            child: the next number.
            row: the row of that number, if there is one.
        """
        return row is None and self.ahead and self.discard(child)

    def discards_step(self, child: int, row: Row | None) -> bool:
        """Whether a step is discarded, which only happens after a discarded command; arguments as above."""
        return self._discarding and self.discards_command(child, row)

    def discards_transaction(self, child: int) -> bool:
        """Whether a transaction that has no row is discarded: it was not committed before the request."""
        if not self.ahead:
            return False
        self.discard(child)
        return True

    def discard(self, child: int) -> bool:
        """Discard what has no row, from this number on; false if the journal must hold it.

        Below the highest number recorded before the request, a missing row is a disagreement.
        """
        self._discarding = self._discarding or child > self._history.max_child_at_cancel
        return self._discarding
