"""Going on with outcomes before they are recorded.

Lives here: `may_speculate`, which runs may; `EndingSteps`, for which it is worth it. May not: what
follows when the outcomes are recorded, or something else came first (run_manager.py). Design: a coroutine
is advanced by what is recorded. But where all it waits for are steps of its own, and all of them have just
ended, nothing but a request to stop can come before their rows; so the effect of these rows is known before
they are written. If the run ends by them, its end leaves in the same report: a run costs one turn and one
commit less, and one with a single step two instead of three. Anything else is deferred until the rows are
there, so no step begins before what it depends on is recorded. If something did come before them, the
coroutine is thrown away and the run is replayed from its journal, as after any report that is stale. A
speculation costs a little and saves nothing unless the run ends, so it is made only after steps after which
runs of the same workflow have ended before.
"""

from __future__ import annotations

from pyengine.core.protocol.commands import Complete, Fail
from pyengine.core.worker.run_state import LeasedRun, Live

ENDS = (Complete, Fail)
"""How a run may end in a speculation."""

_STEPS_MAX = 100


class EndingSteps:
    """The steps after which runs of a workflow have ended."""

    def __init__(self) -> None:
        self._steps: dict[str, set[int]] = {}

    def learn(self, run: LeasedRun) -> None:
        """Note that a run ended after its last step."""
        if run.last_step >= 0:
            steps = self._steps.setdefault(run.info.workflow, set())
            if len(steps) == _STEPS_MAX:
                steps.clear()
            steps.add(run.last_step)

    def likely(self, run: LeasedRun) -> bool:
        """Whether a run may end after its last step."""
        return run.last_step in self._steps.get(run.info.workflow, ())


def may_speculate(run: LeasedRun, live: Live) -> bool:
    """Whether a run waits for nothing but the outcomes that it has, and nothing else can precede them in the
    journal.
    """
    outcomes, replay = live.outcomes, run.replay
    steps = replay.open_steps
    if len(outcomes) != len(steps) or run.wakeable or run.report is not None:
        return False
    if live.commands or live.end is not None or live.transaction is not None:
        return False
    for outcome in outcomes:
        if outcome.begun or outcome.retry_in_ms is not None or outcome.child not in steps:
            return False
    return not replay.in_transaction and (len(outcomes) == 1 or live.fits_one_report)
