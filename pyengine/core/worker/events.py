"""The events about the runs of a worker: the input of `RunManager.apply`.

Lives here: one record for each kind of event. May not: the change that an event makes (run_manager.py), its
observer. Design: an event states a fact and changes nothing by itself. An event about an attempt, a
statement or a retry names the very object that the manager handed out, so an event that comes too late is
recognized by identity and ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.protocol.journal import Row
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.protocol.turn import ClaimedRun, Journal, Lease, RunReport
from pyengine.core.replay.advance import StepCall
from pyengine.core.replay.asks import Ask, Outcome
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.run_state import LeasedRun
from pyengine.errors import EngineError


class _Record(msgspec.Struct, gc=False):
    """Made and dropped within one round of the dispatcher, so the garbage collector need not track it."""


class RunClaimed(_Record):
    """A claim or a hand-off leased a run to this worker, and until then the lease is known to hold."""

    task: ClaimedRun
    known_until_s: float


class JournalFetched(_Record):
    """The journal that `FetchJournal` asked for.

    Args:
        run: whose.
        journal: the whole journal; None if the lease is lost.
    """

    run: LeasedRun
    journal: Journal | None


# -- attempts of steps


class AttemptEnded(_Record):
    """An attempt ended with an outcome that is to be recorded."""

    attempt: Attempt
    outcome: StepOutcome


class AttemptRunsLong(_Record):
    """An attempt has been running for so long that its start is worth recording."""

    attempt: Attempt


class AttemptDeferred(_Record):
    """An attempt got no connection; the run does nothing else here, so another worker may have it."""

    attempt: Attempt


class BodyEnded(_Record):
    """The body of an attempt has ended whose outcome nobody waits for, or never began."""

    attempt: Attempt


class WaitOver(_Record):
    """A run has waited long enough for the bodies of steps that it gave up."""

    run: LeasedRun
    bodies: set[Attempt]


class AttemptStale(_Record):
    """The database refused a step in SQL: the journal holds what the coroutine has not seen.

    Args:
        attempt: of that step.
        seen: the logical number through which the coroutine was advanced.
    """

    attempt: Attempt
    seen: int


class JournalWritten(_Record):
    """A step in SQL recorded its own outcome.

    Args:
        attempt: of that step.
        journal: the run's journal from where the coroutine was when the statement began.
    """

    attempt: Attempt
    journal: Journal


class StepProgressed(_Record):
    """An attempt under way has set what those who watch its run see.

    Args:
        execution: number of the run.
        child: child number of the step.
        attempt: number of the attempt.
        progress: what it has set.
    """

    execution: int
    child: int
    attempt: int
    progress: ProgressReport


class RetryDue(_Record):
    """The time of a scheduled attempt has come."""

    run: LeasedRun
    call: StepCall


# -- reports


class ReportAnswered(_Record):
    """The verdict on a report.

    Args:
        report: the report; a run that was claimed again since has another one.
        verdict: ok, stale or lost.
        state: state of its task now.
        next_seq: logical number after the rows of an accepted report.
        before: rows that others appended before those of the report.
        after: rows that others appended after them.
        now_ms: the instant of the turn.
    """

    report: RunReport
    verdict: str
    state: str
    next_seq: int
    before: list[Row]
    after: list[Row]
    now_ms: int


class ReportRejected(_Record):
    """The database refuses a report with an error. If its run was to leave the worker by it, the run cannot
    even be set aside; else a halt is sent instead, whose answer follows.
    """

    report: RunReport
    error: EngineError


class ReportBusy(_Record):
    """A report was not written, because somebody has locked what it needs."""

    report: RunReport


class ResendDue(_Record):
    """The pause after `ReportBusy` is over."""

    run: LeasedRun


class ProgressDue(_Record):
    """Progress of a run has waited long enough for another report to take it."""

    run: LeasedRun


class PollDue(_Record):
    """Others may have appended to the journal of a run; an empty report finds out."""

    run: LeasedRun


# -- transactions of workflows


class StatementAnswered(_Record):
    """A transaction's statement, begin, commit or rollback was executed.

    Args:
        run: whose.
        ask: what was executed.
        outcome: what the code is given.
        journal: after a commit, the run's journal from where the coroutine was.
    """

    run: LeasedRun
    ask: Ask
    outcome: Outcome
    journal: Journal | None = None


class TransactionBroken(_Record):
    """Nothing is left of a transaction, for a reason that is not the code's business; posted when the run may
    be replayed.

    Args:
        run: whose.
        ask: what was being executed.
        problem: for the log.
        counts: as a failure; a run whose transactions fail too often in a row is halted.
    """

    run: LeasedRun
    ask: Ask
    problem: str
    counts: bool


class TransactionDeferred(_Record):
    """A transaction got no connection; the run does nothing else here, so another worker may have it."""

    run: LeasedRun
    ask: Ask


class TransactionFailed(_Record):
    """A transaction cannot go on, and must not be repeated."""

    run: LeasedRun
    ask: Ask
    problem: str


# -- the worker


class LeasesLost(_Record):
    """The heartbeat, or a statement, found that these leases are somebody else's."""

    leases: list[Lease]


class Stopping(_Record):
    """The worker stops: attempts are cancelled and nothing starts any more; if it drains, an attempt that
    must not be cut off goes on.
    """

    drains: bool = False


class Draining(_Record):
    """Runs of which nothing is under way here are forgotten, to be given back; not those of these numbers."""

    keeps: set[int]


class Closed(_Record):
    """The worker is gone: everything is forgotten."""


Event: TypeAlias = (
    RunClaimed
    | JournalFetched
    | AttemptEnded
    | AttemptRunsLong
    | AttemptDeferred
    | BodyEnded
    | WaitOver
    | AttemptStale
    | JournalWritten
    | StepProgressed
    | RetryDue
    | ReportAnswered
    | ReportRejected
    | ReportBusy
    | ResendDue
    | ProgressDue
    | PollDue
    | StatementAnswered
    | TransactionBroken
    | TransactionDeferred
    | TransactionFailed
    | LeasesLost
    | Stopping
    | Draining
    | Closed
)
