"""The work of a worker for its runs: the output of `RunManager.apply`.

Lives here: one record for each kind of effect. May not: doing it; the dispatcher hands each effect
to the one part of the worker that can. "Has something to report" is no effect: the manager collects such runs
in `RunManager.dirty`, from which the next turn is filled.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.replay.asks import Ask, Asking
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.events import Event
from pyengine.core.worker.run_state import LeasedRun


class _Record(msgspec.Struct, gc=False):
    """Made and dropped within one round of the dispatcher, so the garbage collector need not track it."""


class StartAttempt(_Record):
    """Execute a step; `AttemptEnded` or another event about the attempt follows."""

    run: LeasedRun
    attempt: Attempt


class CancelAttempt(_Record):
    """Stop an attempt whose outcome is not wanted any more."""

    attempt: Attempt


class PostLater(_Record):
    """Post an event after so many seconds."""

    event: Event
    in_s: float


class FetchJournal(_Record):
    """Post `JournalFetched`."""

    run: LeasedRun


class Execute(_Record):
    """Execute what code asks for; `StatementAnswered` or another event about `ask` follows."""

    run: LeasedRun
    log: Asking
    ask: Ask


class RollBack(_Record):
    """End the transaction of a run, if its connection is still open, without a commit."""

    run: LeasedRun


class FindUnread(_Record):
    """Find and log the signals that a run has not received, which has ended; given_up: those that came for
    receives which its code had given up, by name."""

    execution: int
    info: RunInfo
    given_up: list[str]


class RecordDeadline(_Record):
    """A timer or a deadline was recorded, which falls due in so many milliseconds."""

    in_ms: int


Effect: TypeAlias = (
    StartAttempt | CancelAttempt | PostLater | FetchJournal | Execute | RollBack | FindUnread | RecordDeadline
)
