"""Going on with results before they are recorded.

What lives here: `Speculation`: which run may go on with what its steps have just reported, and what is kept
back of what it does then. What may not: the loops of a worker, what a turn's verdict means (run_manager.py).
The theory: a coroutine is advanced by what is recorded. But where all it waits for are steps of its own, and
all of them have just ended, nothing but a request to stop can come before their rows; so what it does with
them is known before they have left. If it ends, its end goes out in the same bundle: a run costs one turn and
one commit less, and one with a single step two instead of three. Anything else is kept back until the rows
are there, so no step begins before what it depends on is recorded. If something did come before them, what
the coroutine did is thrown away and it is replayed from its journal, as after any verdict `stale`. To go on
early costs a little and saves nothing unless the run ends, so it does after steps after which runs of its
workflow have ended before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context

from pyengine.protocol.commands import Complete, Fail
from pyengine.replay.advance import Advance
from pyengine.worker.run_state import LeasedRun

__all__ = ["Speculation"]

_ENDS = (Complete, Fail)
_ENDS_MAX = 100


class Speculation:
    """Takes what runs have to report.

    Args:
        news: called with each of them.

    Attributes:
        drive: advances the coroutine of a run by all that is loaded.
    """

    drive: Callable[[LeasedRun], Advance]

    def __init__(self, news: Callable[[LeasedRun], None]) -> None:
        self._news = news
        # a step reports from a context of its own, which is no business of its run's
        self._context = Context()
        self._ends: dict[str, set[int]] = {}

    def reported(self, held: LeasedRun) -> None:
        """Note that a step has added an outcome to a run; let the run go on if it may and is likely to
        end.
        """
        held.last = held.outcomes[-1].child
        ends = self._ends.get(held.info.workflow)
        if ends is not None and held.last in ends and _may_go_on(held):
            self._context.run(self._go_on, held)
        self._news(held)

    def moved(self, held: LeasedRun) -> None:
        """Note that the code of a run has moved; if to its end, then others like it may end there too."""
        if isinstance(held.end, _ENDS) and held.last >= 0:
            ends = self._ends.setdefault(held.info.workflow, set())
            if len(ends) == _ENDS_MAX:
                ends.clear()
            ends.add(held.last)
        self._news(held)

    def _go_on(self, held: LeasedRun) -> None:
        held.seen = held.replay.next_seq
        held.replay.predict(held.outcomes)
        moves = self.drive(held)
        if isinstance(moves.end, _ENDS) and not moves.commands and not moves.given_up:
            held.end = moves.end
        else:
            held.kept = moves


def _may_go_on(held: LeasedRun) -> bool:
    """Whether its outcomes are all that the run waits for, and nobody else can come before them."""
    outcomes, replay = held.outcomes, held.replay
    steps = replay.open_steps
    if len(outcomes) != len(steps) or held.outside or held.flight is not None or held.seen is not None:
        return False
    if held.commands or held.end is not None or held.loading or held.dropped or held.transaction is not None:
        return False
    for outcome in outcomes:
        if outcome.begun or outcome.retry_in_ms is not None or outcome.child not in steps:
            return False
    return not replay.in_transaction and (len(outcomes) == 1 or held.fits_one_bundle)
