"""Law: the logic of a worker is a table of phases and events. Each cell has its row here: the phase and its
data, the event, the phase and the effects that follow. No database, no event loop; each row checks the
invariants of `run_invariants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import get_args

import pytest

from pyengine.core.protocol.commands import Complete, Halt, Release
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.history import History
from pyengine.core.worker import events as on
from pyengine.core.worker.effects import (
    CancelAttempt,
    Effect,
    Execute,
    FetchJournal,
    PostLater,
    RecordDeadline,
    RollBack,
    StartAttempt,
)
from pyengine.core.worker.run_state import LeasedRun, Live, Speculating
from tests.core.worker.given_up_stage import (
    body_ended,
    body_is_foreign,
    live_cancelled,
    live_cleaning,
    waited,
    waited_before,
)
from tests.core.worker.run_stage import (
    NOW_MS,
    Stage,
    another_lease_lost,
    answered_again,
    attempt_deferred,
    attempt_ends,
    attempt_fails,
    attempt_is_foreign,
    attempt_runs_long,
    attempt_stale,
    broken,
    broken_often,
    busy,
    came_between,
    claimed_again,
    claimed_late,
    claimed_warm,
    closed,
    deferring,
    diverged_reporting,
    draining,
    executed,
    fetching,
    fetching_busy,
    fetching_rejected,
    found_lost,
    found_stale,
    gone,
    halt_rejected,
    halted_by_others,
    journal_comes,
    journal_lost,
    journal_written,
    kinds,
    leases_lost,
    live,
    live_busy,
    live_ending,
    live_releasing,
    live_reporting,
    live_scheduled,
    live_suspending,
    live_transacting,
    live_waiting,
    live_watched,
    lost_before,
    poll_due,
    progress_due,
    recorded,
    rejected,
    resent,
    retry_due,
    speculating,
    speculating_reporting,
    step_progressed,
    stopping,
    transaction_deferred,
    transaction_failed,
    warm,
)

START, CANCEL, FETCH = StartAttempt.__name__, CancelAttempt.__name__, FetchJournal.__name__
EXECUTE, ROLL_BACK, LATER = Execute.__name__, RollBack.__name__, PostLater.__name__
DEADLINE = RecordDeadline.__name__


@dataclass(frozen=True)
class Cell:
    """Phase, event, phase, effects; and whether the run has something to report then."""

    before: Callable[[Stage], LeasedRun]
    event: Callable[[Stage, LeasedRun], list[Effect]]
    after: str
    effects: tuple[str, ...] = ()
    dirty: bool = False


TABLE = [
    # claims
    Cell(live, claimed_again, "Gone", (CANCEL, START)),
    Cell(live, claimed_late, "Live"),
    Cell(fetching, claimed_late, "Fetching"),
    Cell(fetching, claimed_again, "Gone", (START,)),
    Cell(warm, claimed_warm, "Live", (), dirty=True),
    Cell(warm, claimed_again, "Gone"),
    Cell(warm, claimed_late, "Warm"),
    # journals
    Cell(fetching, journal_comes, "Live", (START,)),
    Cell(fetching_rejected, journal_comes, "Live", (), dirty=True),
    Cell(fetching_busy, journal_comes, "Live", (), dirty=True),
    Cell(fetching, journal_lost, "Gone"),
    Cell(live, journal_comes, "Live"),
    Cell(gone, journal_comes, "Gone"),
    # attempts
    Cell(live, attempt_ends, "Live", (), dirty=True),
    Cell(live, attempt_fails, "Live", (), dirty=True),
    Cell(live, attempt_is_foreign, "Live"),
    Cell(live_busy, attempt_ends, "Live"),
    Cell(fetching_busy, attempt_ends, "Fetching"),
    Cell(warm, attempt_is_foreign, "Warm"),
    Cell(gone, attempt_is_foreign, "Gone"),
    Cell(live, attempt_runs_long, "Live", (), dirty=True),
    Cell(fetching_busy, attempt_runs_long, "Fetching"),
    Cell(live, attempt_deferred, "Live", (), dirty=True),
    Cell(fetching_busy, attempt_deferred, "Fetching"),
    # steps that were given up
    Cell(live_cleaning, body_ended, "Live", (START,)),
    Cell(live_cleaning, body_is_foreign, "Live"),
    Cell(live_cleaning, waited, "Live", (START,)),
    Cell(live_cleaning, waited_before, "Live"),
    Cell(live_cleaning, poll_due, "Live"),
    Cell(live_cancelled, body_ended, "Live", (), dirty=True),
    Cell(live_cancelled, waited, "Live", (), dirty=True),
    Cell(live_cancelled, leases_lost, "Gone"),
    Cell(gone, body_is_foreign, "Gone"),
    # their ends elsewhere
    Cell(live, attempt_stale, "Fetching", (FETCH,)),
    Cell(live_busy, attempt_stale, "Live"),
    Cell(fetching_busy, attempt_stale, "Fetching"),
    Cell(live, journal_written, "Live", (START,)),
    Cell(live_busy, journal_written, "Live"),
    Cell(fetching_busy, journal_written, "Fetching"),
    Cell(live_scheduled, retry_due, "Live", (START,)),
    # reports
    Cell(live_reporting, recorded, "Live", (START,)),
    Cell(live_waiting, recorded, "Live", (START,)),
    Cell(live_ending, recorded, "Gone"),
    Cell(live_suspending, recorded, "Warm", (DEADLINE,)),
    Cell(live_releasing, recorded, "Warm"),
    Cell(live_reporting, halted_by_others, "Gone"),
    Cell(live_busy, halted_by_others, "Gone", (CANCEL,)),
    Cell(live_reporting, found_stale, "Fetching", (FETCH,)),
    Cell(live_reporting, found_lost, "Gone"),
    Cell(live_busy, found_lost, "Gone", (CANCEL,)),
    Cell(live, answered_again, "Live"),
    Cell(live_reporting, lost_before, "Live"),
    Cell(speculating_reporting, recorded, "Gone"),
    Cell(deferring, recorded, "Live", (START,)),
    Cell(deferring, came_between, "Fetching", (FETCH,)),
    Cell(deferring, found_stale, "Fetching", (FETCH,)),
    Cell(deferring, found_lost, "Gone"),
    Cell(diverged_reporting, recorded, "Gone"),
    Cell(diverged_reporting, answered_again, "Fetching", (FETCH,)),
    Cell(diverged_reporting, found_lost, "Gone"),
    Cell(live_reporting, rejected, "Live"),
    Cell(live_reporting, halt_rejected, "Gone"),
    Cell(live_reporting, busy, "Live", (LATER,)),
    Cell(live, busy, "Live"),
    Cell(live_reporting, resent, "Live", (), dirty=True),
    Cell(live, poll_due, "Live", (), dirty=True),
    Cell(live_reporting, poll_due, "Live"),
    Cell(deferring, poll_due, "Speculating"),
    Cell(fetching, poll_due, "Fetching"),
    Cell(warm, poll_due, "Warm"),
    Cell(gone, poll_due, "Gone"),
    # progress
    Cell(live_watched, progress_due, "Live", (), dirty=True),
    Cell(live, progress_due, "Live"),
    Cell(warm, progress_due, "Warm"),
    Cell(live, step_progressed, "Live", (LATER,)),
    Cell(live_watched, step_progressed, "Live"),
    Cell(live_reporting, step_progressed, "Live"),
    Cell(fetching_busy, step_progressed, "Fetching"),
    Cell(gone, step_progressed, "Gone"),
    # transactions
    Cell(live_transacting, executed, "Live", (EXECUTE,)),
    Cell(live_transacting, broken, "Fetching", (ROLL_BACK, FETCH)),
    Cell(live_transacting, broken_often, "Live", (ROLL_BACK,), dirty=True),
    Cell(live_transacting, transaction_deferred, "Live", (), dirty=True),
    Cell(live_transacting, transaction_failed, "Live", (ROLL_BACK,), dirty=True),
    Cell(live_transacting, leases_lost, "Gone", (ROLL_BACK,)),
    # the worker
    Cell(live, leases_lost, "Gone", (CANCEL,)),
    Cell(live, another_lease_lost, "Live"),
    Cell(live_reporting, leases_lost, "Live"),
    Cell(fetching_busy, leases_lost, "Gone", (CANCEL,)),
    Cell(warm, leases_lost, "Warm"),
    Cell(live, stopping, "Live", (CANCEL,)),
    Cell(live_transacting, stopping, "Live", (ROLL_BACK,)),
    Cell(fetching_busy, stopping, "Fetching", (CANCEL,)),
    Cell(speculating, stopping, "Speculating", (), dirty=True),
    Cell(live, draining, "Live"),
    Cell(fetching, draining, "Gone"),
    Cell(fetching_busy, draining, "Fetching"),
    Cell(speculating, draining, "Speculating", (), dirty=True),
    Cell(live, closed, "Gone", (CANCEL,)),
    Cell(warm, closed, "Gone"),
]


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: f"{cell.before.__name__}-{cell.event.__name__}")
def test_a_cell_of_the_table(cell: Cell) -> None:
    """Phase and data, event, phase and data, effects."""
    stage = Stage()
    run = cell.before(stage)
    was_dirty = run.queued
    stage.effects = []
    effects = cell.event(stage, run)
    assert type(run.phase).__name__ == cell.after
    assert kinds(effects) == list(cell.effects)
    assert run.queued == cell.dirty, was_dirty


def test_every_event_has_a_row() -> None:
    """The table has each kind of event at least once, and each phase as a beginning and as an end."""
    names = " ".join((cell.event.__doc__ or "") + str(cell.event.__code__.co_names) for cell in TABLE)
    assert [event for event in get_args(on.Event) if event.__name__ not in names] == []
    phases = {"Live", "Fetching", "Speculating", "Diverged", "Warm", "Gone"}
    assert {cell.after for cell in TABLE} | {"Diverged"} == phases


def test_the_outcome_of_a_failure_is_recorded_before_the_next_attempt() -> None:
    """A failure is reported; the next attempt is scheduled by the time of the turn that records it."""
    stage = Stage()
    run = stage.claim("retried")
    stage.end(run, 0, error="{}", retry_in_ms=1000)
    (effect,) = stage.turn(run)
    assert isinstance(effect, PostLater) and isinstance(effect.event, on.RetryDue)
    call = effect.event.call
    assert (effect.in_s, call.attempt, call.retry_at_ms) == (1, 2, NOW_MS + 1000)


def test_a_step_that_was_cut_off_does_not_run_twice() -> None:
    """It fails where a replay asks for it again, without an attempt."""
    stage = Stage()
    run = stage.claim("careful")
    assert kinds(stage.turn(run)) == [START]
    call = stage.attempt(run, 0).call
    row = Row(0, RowType.OPEN_ATTEMPT_FAILED, 0, 1, call.name, call.hash, '{"interrupted": true}')
    stage.stored(run).append(row.type, 0, attempt=1, name=row.name, hash=row.hash, data=row.data)
    claimed_again(stage, run)
    again = stage.runs.leased[run.execution]
    assert isinstance(again.phase, Live) and not again.phase.attempts
    (outcome,) = again.phase.outcomes
    assert "must not run twice" in str(outcome.error)


def test_a_run_that_waits_long_is_given_back() -> None:
    """A retry that is further away than 5 s releases the run, which goes on with it when it comes back."""
    stage = Stage()
    run = stage.claim("retried")
    stage.end(run, 0, error="{}", retry_in_ms=60_000)
    assert kinds(stage.turn(run)) == [LATER]
    report = stage.send(run)
    assert isinstance(report.end, Release) and report.end.retry_in_ms == 60_000
    stage.post(stage.database.report(report))
    assert type(run.phase).__name__ == "Warm"
    stage.now_ms += 60_000
    assert kinds(claimed_warm(stage, run)) == [START]


@pytest.mark.parametrize("on_its_way", [False, True])
def test_a_retry_that_comes_due_during_a_release_waits_for_the_next_lease(on_its_way: bool) -> None:
    """An attempt that began then would be cancelled by the answer; an unsent release is hastened."""
    stage = Stage()
    run = stage.claim("retried")
    stage.end(run, 0, error="{}", retry_in_ms=60_000)
    stage.turn(run)
    assert isinstance(run.phase, Live)
    due = on.RetryDue(run, run.phase.scheduled_retries[0])
    stage.now_ms += 60_000
    report = stage.send(run) if on_its_way else None
    assert stage.post(due) == []
    report = report or stage.send(run)
    assert isinstance(report.end, Release) and report.end.retry_in_ms == (60_000 if on_its_way else 0)
    assert stage.post(stage.database.report(report)) == []
    assert type(run.phase).__name__ == "Warm"
    assert kinds(claimed_warm(stage, run)) == [START]


def test_attempts_go_on_if_the_replay_asks_for_them() -> None:
    """After `stale` the attempt under way is kept, and the outcome that was not recorded is reported."""
    stage = Stage()
    run = live_busy(stage)
    attempt = stage.attempt(run, 1)
    stage.stale(run)
    stage.fetched(run)
    assert stage.attempt(run, 1) is attempt
    assert [one.child for one in run.phase.outcomes] == [0]


def test_the_oldest_warm_run_makes_room() -> None:
    """Beyond `max_warm` the coroutine that has waited longest is thrown away."""
    stage = Stage(max_warm=1)
    first, second = warm(stage), warm(stage)
    assert first.gone and list(stage.runs.warm.values()) == [second]


def test_warm_runs_are_bounded_by_what_they_hold() -> None:
    """Beyond `max_warm_bytes` too, unless it is the only one; a run that goes on takes its share with it."""
    each = warm(Stage()).replay.size
    assert each > 0
    for room, kept in ((2 * each, 2), (1, 1)):
        stage = Stage(max_warm_bytes=room)
        runs = [warm(stage) for _ in range(4)]
        assert list(stage.runs.warm.values()) == runs[4 - kept :]
        assert [run.gone for run in runs] == [number < 4 - kept for number in range(4)]
    stage = Stage(max_warm_bytes=2 * each)
    first, second = warm(stage), warm(stage)
    stage.post(on.RunClaimed(stage.database.claim(stage.stored(first), warm=True), inf))
    third = warm(stage)
    assert list(stage.runs.warm.values()) == [second, third]


def test_what_a_run_holds_is_its_input_and_its_journal() -> None:
    """Results count as they are reported, and as a journal brings them; failures of a step once."""
    stage = Stage()
    run = stage.claim("steps")
    before, value = run.replay.size, '"' + 1000 * "x" + '"'
    stage.end(run, 0, value=value)
    stage.turn(run)
    assert run.replay.size == before + len(value)
    history = History()
    history.add([Row(0, RowType.STEP_COMPLETED, 0, 1, "one", None, value)])
    assert history.size == len(value)
    failures = [RowType.FIRST_ATTEMPT_FAILED, *[RowType.ATTEMPT_FAILED] * 9]
    history.add([Row(3 * n + 3, kind, 1, n + 1, "one", None, "{}") for n, kind in enumerate(failures)])
    assert history.size == len(value) + 2


def test_a_transaction_waits_for_what_comes_before_it() -> None:
    """It begins when the command before it is recorded, and goes on by the answers."""
    stage = Stage()
    run = stage.claim("paying")
    assert stage.effects == []
    (begin,) = stage.turn(run)
    asked = []
    effect: Effect = begin
    while isinstance(effect, Execute):
        asked.append(effect.ask.kind)
        if effect.ask.kind == "commit":
            log, stored = effect.log, stage.stored(run)
            row = Row(0, RowType.STEP_COMPLETED, log.child, 1, log.name, log.hash, log.data(committed=True))
            journal = stage.database.commit(stored.execution, run.replay.next_seq, row)
            (effect,) = stage.post(on.StatementAnswered(run, effect.ask, ("value", None), journal))
        else:
            value = "UPDATE 1" if effect.ask.kind == "execute" else None
            (effect,) = stage.post(on.StatementAnswered(run, effect.ask, ("value", value)))
    assert asked == ["begin", "execute", "commit"] and isinstance(effect, StartAttempt)


@pytest.mark.parametrize("event", [transaction_failed, broken_often])
def test_a_report_on_its_way_does_not_bring_a_failed_transaction_back(
    event: Callable[[Stage, LeasedRun], list[Effect]],
) -> None:
    """Its next statement would be executed, and committed, outside of it."""
    stage = Stage()
    run = stage.claim("beside")
    executed(stage, run)
    assert isinstance(run.phase, Live)
    stage.end(run, min(run.phase.attempts))
    sent = stage.send(run)
    assert kinds(event(stage, run)) == ["RollBack"]
    assert "Execute" not in kinds(stage.post(stage.database.report(sent)))
    assert isinstance(stage.send(run).end, Halt)
    closed(stage, run)


def test_one_of_two_outcomes_is_not_enough_to_speculate() -> None:
    """A run with a step under way waits for the record; with all outcomes it goes on."""
    stage = Stage()
    for child in (0, 1):
        teacher = stage.claim("both")
        teacher.last_step = child
        stage.runs.ending_steps.learn(teacher)
    run = stage.claim("both")
    stage.end(run, 0)
    assert isinstance(run.phase, Live)
    stage.end(run, 1)
    assert isinstance(run.phase, Speculating) and isinstance(run.phase.end, Complete)
    report = stage.send(run)
    assert len(report.outcomes) == 2 and report.end is not None


def test_progress_leaves_with_the_next_report() -> None:
    """A report that leaves anyway takes it, the event that was scheduled for it finds nothing; without one an
    empty report is sent. Of a later value only what was set since is sent.
    """
    stage = Stage()
    run = live_watched(stage)
    due = next(one.event for one in stage.effects if isinstance(one, PostLater))
    stage.end(run, 0)
    progress = stage.send(run).progress
    assert progress is not None and (progress.seq, progress.done, progress.total) == (0, 1, 2)
    assert stage.post(due) == [] and not run.queued
    another = live_watched(stage)
    progress_due(stage, another)
    empty = stage.send(another)
    assert (empty.outcomes, empty.commands, empty.end) == ([], (), None) and empty.progress is not None
    stage.post(stage.database.report(empty))
    stage.end(another, 0)
    assert stage.send(another).progress is None


def test_progress_of_a_stale_run_is_set_again_by_its_replay() -> None:
    """What was on its way is gone with the coroutine; the replay sets it at the same position."""
    stage = Stage()
    run = live_watched(stage)
    stage.end(run, 0)
    first = stage.send(run).progress
    stage.stale(run)
    stage.fetched(run)
    assert stage.send(run).progress == first
