"""The invariants of a leased run, for tests of the worker's logic. Each is a property of one run between two
events.
"""

from __future__ import annotations

from collections.abc import Callable

from pyengine.core.protocol.turn import RunReport
from pyengine.core.worker.run_state import Diverged, Fetching, Gone, LeasedRun, Live, Phase, Speculating


def check(run: LeasedRun) -> list[str]:
    """Return which invariants a run breaks between two events; none, in a worker that works."""
    return [text for text, broken in INVARIANTS if broken(run, run.phase)]


def _sent(run: LeasedRun) -> RunReport | None:
    return run.report


def _unrecorded(run: LeasedRun, live: Live) -> bool:
    """Whether a command of its coroutine is not recorded, as far as is known."""
    sent = _sent(run)
    return bool(live.commands or (sent is not None and sent.commands))


def _starts_early(run: LeasedRun, phase: Phase) -> bool:
    if not isinstance(phase, Live):
        return False
    waiting = {call.child for call in phase.steps_after_commands}
    waits = _unrecorded(run, phase) or run.waits_for_steps
    return bool(waiting & phase.attempts.keys()) or (bool(waiting) and not waits)


def _repeats_early(run: LeasedRun, phase: Phase) -> bool:
    if not isinstance(phase, Live):
        return False
    later = phase.attempts_after_record.keys() | phase.scheduled_retries.keys()
    return bool(later & phase.attempts.keys())


def _reports_in_vain(run: LeasedRun, phase: Phase) -> bool:
    return run.report is not None and not isinstance(phase, Live | Speculating | Diverged)


def _speculates_openly(run: LeasedRun, phase: Phase) -> bool:
    sent = _sent(run)
    if not isinstance(phase, Speculating):
        return False
    both = phase.end is not None and phase.deferred is not None
    return both or (sent is not None and (bool(sent.commands) or sent.seen != phase.applied_seq))


def _transacts_early(run: LeasedRun, phase: Phase) -> bool:
    if not isinstance(phase, Live) or phase.asked is None:
        return False
    if phase.transaction is None:
        return True
    # what a statement lets the code do is recorded later, and the commit waits for that
    return phase.asked.kind in ("begin", "commit") and _unrecorded(run, phase)


def _outlives(run: LeasedRun, phase: Phase) -> bool:
    return isinstance(phase, Fetching | Gone) and not run.replay.evicted


def _works_on(run: LeasedRun, phase: Phase) -> bool:
    return bool(phase.attempts) and not isinstance(phase, Live | Fetching)


def _runs_ahead(run: LeasedRun, phase: Phase) -> bool:
    sent = _sent(run)
    if sent is None:
        return False
    announced = {command.child for command in sent.commands}
    return any(outcome.child in announced for outcome in sent.outcomes)


def _is_forgotten(run: LeasedRun, phase: Phase) -> bool:
    return phase.is_dirty and run.report is None and not (run.queued or run.waits_for_steps)


INVARIANTS: tuple[tuple[str, Callable[[LeasedRun, Phase], bool]], ...] = (
    ("a step starts when its commands are recorded, not earlier", _starts_early),
    ("a further attempt waits until the failure is recorded, and for its time", _repeats_early),
    ("only live, speculating and diverged runs have a report on its way", _reports_in_vain),
    ("of a speculation only an end leaves, with the outcomes it is based on", _speculates_openly),
    ("a transaction begins and commits with no command unrecorded", _transacts_early),
    ("a run that is being fetched or gone has no coroutine", _outlives),
    ("only live runs, and those that are being fetched, have attempts", _works_on),
    ("an outcome travels after the command that announces its step", _runs_ahead),
    ("a run with something to report is queued", _is_forgotten),
)
