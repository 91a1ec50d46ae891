"""The logic of a worker: what an event changes for a run, and what is to be done then.

Lives here: `RunManager`: the runs that the worker has leased, those it keeps warm, and the table of
phases and events. May not: SQL, connections, the event loop, a callback, a clock or randomness of its
own. Design: events in, effects out. A claimed run is replayed from its journal or, if its coroutine is
still warm, continued with what came after its suspend. `ok`: the rows of the report and those around it are
loaded and the coroutine goes on. `stale`: the journal holds what the coroutine has not seen, so the coroutine
is thrown away and the run is replayed; attempts under way go on if the replay asks for them again. `lost`:
the run is somebody else's, so all that it does here stops and nothing of it is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyengine.core.definitions.registry import Registry
from pyengine.core.definitions.retry import Randomness
from pyengine.core.protocol.commands import LAST, ContinueAsNew, Halt, Release, deadlines_ms
from pyengine.core.protocol.journal import Row
from pyengine.core.protocol.turn import RunReport
from pyengine.core.replay import run_log
from pyengine.core.replay.advance import Advance
from pyengine.core.replay.extensions import UnawaitedCalls
from pyengine.core.values.codec import Codec
from pyengine.core.worker import events as on
from pyengine.core.worker.attempts import Attempt, halt, pauses_run, start_outcome
from pyengine.core.worker.blocked_runs import resend_pause_s
from pyengine.core.worker.capacity import WarmRuns
from pyengine.core.worker.effects import Effect, FetchJournal, PostLater, RecordDeadline
from pyengine.core.worker.run_driver import RunDriver
from pyengine.core.worker.run_state import (
    Diverged,
    Fetching,
    Gone,
    LeasedRun,
    Live,
    Speculating,
    Warm,
    evict,
    run_info,
)

_STUCK_MS = 1_000
_ELSEWHERE_MS = 100
_TRIES_MAX, _WARN_FROM = 10, 3


class RunManager:
    """All runs of a worker.

    Args:
        registry: the code.
        codec: values and errors.
        now_ms: the database's time, epoch milliseconds.
        may_begin: whether the code of a run may be driven: its lease is known to hold.
        randomness: source of `ctx.random`, and of the jitter of resends.
        warm: where suspended coroutines are kept.
        unawaited: finds calls that no code awaits.

    Attributes:
        leased: runs under a lease of this worker, by execution.
        warm: runs whose coroutine is kept.
        dirty: runs with something to report, each once, in the order in which they got it.
        ending_steps: the steps after which runs have ended.
    """

    def __init__(
        self,
        registry: Registry,
        codec: Codec,
        now_ms: Callable[[], int],
        may_begin: Callable[[LeasedRun], bool],
        randomness: Randomness,
        *,
        warm: WarmRuns,
        unawaited: UnawaitedCalls,
    ) -> None:
        self._driver = RunDriver(registry, codec, now_ms, may_begin, randomness, unawaited=unawaited)
        self._randomness = randomness
        self.leased: dict[int, LeasedRun] = {}
        self.warm = warm
        self.dirty, self.ending_steps = self._driver.dirty, self._driver.ending_steps
        self._handlers: dict[type, Callable[[Any], None]] = {
            on.RunClaimed: self._run_claimed,
            on.JournalFetched: self._journal_fetched,
            on.AttemptEnded: self._attempt_ended,
            on.AttemptRunsLong: self._attempt_runs_long,
            on.AttemptDeferred: self._attempt_deferred,
            on.BodyEnded: lambda event: self._driver.body_ended(self.leased, event.attempt),
            on.WaitOver: self._driver.wait_over,
            on.AttemptStale: self._attempt_stale,
            on.JournalWritten: self._journal_written,
            on.StepProgressed: self._step_progressed,
            on.RetryDue: self._retry_due,
            on.ReportAnswered: self._report_answered,
            on.ReportRejected: self._report_rejected,
            on.ReportBusy: self._report_busy,
            on.ResendDue: self._resend_due,
            on.ProgressDue: self._driver.progress_due,
            on.PollDue: self._poll_due,
            on.StatementAnswered: self._statement_answered,
            on.TransactionBroken: self._transaction_broken,
            on.TransactionDeferred: self._transaction_deferred,
            on.TransactionFailed: self._transaction_failed,
            on.LeasesLost: self._leases_lost,
            on.Stopping: self._stop,
            on.Draining: self._drain,
            on.Closed: self._close,
        }

    def apply(self, event: on.Event) -> list[Effect]:
        """Change what an event changes, and return what is to be done then, in this order."""
        effects = self._driver.effects = []
        self._handlers[type(event)](event)
        return effects

    # -- claims and journals

    def _run_claimed(self, event: on.RunClaimed) -> None:
        task = event.task
        known = self.leased.get(task.execution) or self.warm.get(task.execution)
        if known is not None:
            # another run may have the number now: the database has lost the end of its history
            is_same = known.info.id == task.id
            if is_same and known.version >= task.version:
                return  # a hand-off that came late: the run was given back, and claimed since
            is_next = is_same and task.from_seq and task.version == known.version + 1
            if isinstance(known.phase, Warm) and is_next:
                self._continue(known, known.phase, event)
                return
            self._drop(known)
        info = run_info(task)
        run = self.leased[task.execution] = LeasedRun(info, self._driver.new_replay(info), task.reply)
        run.known_until_s = event.known_until_s
        run_log.run_claimed(info, is_new=task.from_seq == 0 and not task.rows)
        live = run.phase
        if isinstance(live, Live) and task.from_seq == 0:
            self._driver.begin(run, live, task.rows, task.next)
        else:
            self._driver.fetch(run)

    def _continue(self, run: LeasedRun, warm: Warm, event: on.RunClaimed) -> None:
        """Go on with a coroutine that was kept warm."""
        del self.warm[run.execution]
        self.leased[run.execution] = run
        run.version, run.known_until_s = event.task.version, event.known_until_s
        run_log.run_claimed(run.info, is_new=False)
        live = run.phase = Live()
        live.scheduled_retries = warm.scheduled_retries
        self._driver.load(run, event.task.rows)
        self._driver.advance(run, live)
        calls, live.scheduled_retries = live.scheduled_retries, {}
        self._driver.start_all(run, live, calls.values())
        self._driver.settle(run, live)

    def _journal_fetched(self, event: on.JournalFetched) -> None:
        run, phase = event.run, event.run.phase
        if not isinstance(phase, Fetching):
            return
        if (journal := event.journal) is None:
            self._drop(run)
            return
        if not self._driver.may_begin(run):  # it came too late: the lease may be over by now
            self._driver.effects.append(FetchJournal(run))
            return
        if phase.rejected and run.stale_at == journal.next:
            # the database found it stale, and it was not: whoever gets the lease next may know better
            run_log.run_stuck(run.info)
            self._driver.cancel_all(phase.attempts)
            run.phase = Diverged(Release(retry_in_ms=_STUCK_MS))
            self._driver.queue_report(run)
            return
        if phase.rejected:
            run.stale_at = journal.next
        self._driver.replay(run, phase, journal.rows)

    # -- steps

    def _take_off(self, attempt: Attempt) -> LeasedRun | None:
        """Take an attempt that has ended from its run; None if its run does not want it any more."""
        run, child = self.leased.get(attempt.execution), attempt.call.child
        if run is None or (attempts := run.phase.attempts).get(child) is not attempt:
            return None
        del attempts[child]
        return run

    def _attempt_ended(self, event: on.AttemptEnded) -> None:
        run = self._take_off(event.attempt)
        if run is None:
            return
        phase, outcome = run.phase, event.outcome
        self._driver.given_up.add([event.attempt] if event.attempt.left_behind else ())
        if outcome.error is not None:
            pauses = pauses_run(event.attempt.call, outcome)
            run_log.attempt_failed(run.info, outcome, self._driver.now_ms(), pauses=pauses)
        if isinstance(phase, Live):
            self._driver.outcome_came(run, phase, event.attempt.call, outcome)
        elif isinstance(phase, Fetching):
            phase.unrecorded[outcome.child, outcome.attempt] = outcome

    def _attempt_runs_long(self, event: on.AttemptRunsLong) -> None:
        attempt, run = event.attempt, self.leased.get(event.attempt.execution)
        if run is None or run.phase.attempts.get(attempt.call.child) is not attempt or attempt.begun:
            return
        if isinstance(run.phase, Live):
            attempt.begun = True
            run.phase.outcomes.append(start_outcome(attempt.call))
            self._driver.queue_report(run)

    def _attempt_deferred(self, event: on.AttemptDeferred) -> None:
        run, call = self._take_off(event.attempt), event.attempt.call
        if run is not None and isinstance(run.phase, Live):
            run.phase.scheduled_retries[call.child] = call
            run.phase.end = Release(retry_in_ms=_ELSEWHERE_MS)
            self._driver.queue_report(run)

    def _attempt_stale(self, event: on.AttemptStale) -> None:
        run = self._take_off(event.attempt)
        if run is not None and isinstance(run.phase, Live):
            run.stale_at = event.seen
            self._replay_when_quiet(run, run.phase, rejected=True)

    def _journal_written(self, event: on.JournalWritten) -> None:
        run, child = self._take_off(event.attempt), event.attempt.call.child
        if run is None:
            return
        live, journal = run.phase, event.journal
        if isinstance(live, Fetching):
            live.poll = True
        elif isinstance(live, Live):
            # that it has begun is recorded, too
            live.outcomes = [one for one in live.outcomes if one.child != child]
            self._load_written(run, live, journal.rows, journal.next)
            self._driver.settle(run, live)

    def _load_written(self, run: LeasedRun, live: Live, rows: list[Row], next_seq: int) -> bool:
        """Advance a run by what a transaction of its own, not a turn, has written; false if it cannot be yet.

        Args:
            run: the run.
            live: its phase.
            rows: its journal from where the coroutine was when the transaction began, or later, to its end.
            next_seq: the logical number after them.
        """
        seen = run.replay.next_seq
        if run.report is not None or live.commands or live.end is not None:
            # an answer must come first; the next one returns these rows in their order
            live.poll = True
            return False
        if next_seq <= seen:
            return False
        self._driver.load(run, [row for row in rows if row.seq >= seen])
        self._driver.advance(run, live)
        return True

    def _step_progressed(self, event: on.StepProgressed) -> None:
        if (run := self.leased.get(event.execution)) is not None:
            self._driver.step_progressed(run, event)

    def _retry_due(self, event: on.RetryDue) -> None:
        run, live, call = event.run, event.run.phase, event.call
        if not isinstance(live, Live) or live.scheduled_retries.get(call.child) is not call:
            return
        if isinstance(live.end or (run.report and run.report.end), Release):
            # it would be cancelled when the run leaves; the next lease starts it, as soon as can be
            live.end = live.end and Release(retry_in_ms=0)
            return
        del live.scheduled_retries[call.child]
        self._driver.start(run, live, call)
        self._driver.settle(run, live)

    # -- reports

    def _report_answered(self, event: on.ReportAnswered) -> None:
        report, run = event.report, self.leased.get(event.report.execution)
        if run is None or run.report is not report:
            return
        run.report = None
        if event.verdict == "ok":
            self._recorded(run, report, event)
        elif event.verdict == "stale":
            self._driver.fetch(run, sent=report, rejected=True)
        else:
            self._lose(run)

    def _recorded(self, run: LeasedRun, report: RunReport, event: on.ReportAnswered) -> None:
        """A report is in the journal."""
        state, end, phase = event.state, report.end, run.phase
        if isinstance(end, LAST) or (isinstance(end, ContinueAsNew) and state != "acquired"):
            self._driver.ended(run, end, event.now_ms, state)
            self._drop(run)
            return
        deferred = None
        if isinstance(phase, Live):
            live = phase
            counts = self._accept(run, live, report, event)
        elif isinstance(phase, Speculating):
            live = run.phase = phase.live
            live.poll, deferred = phase.poll, phase.deferred
            counts = event.next_seq == run.replay.next_seq and not (event.before or event.after)
        elif state == "acquired":
            self._driver.fetch(run)
            return
        else:
            self._leave(run, state, warm=False)
            return
        if not counts:
            self._driver.fetch(run)
        elif state != "acquired":
            self._leave(run, state, warm=live.may_stay_warm)
        elif live.replay_when_quiet:
            self._driver.fetch(run)
        else:
            self._go_on(run, live, event, deferred)

    def _go_on(self, run: LeasedRun, live: Live, event: on.ReportAnswered, deferred: Advance | None) -> None:
        """Go on with a run whose report is in the journal."""
        report = event.report
        waited = report.commands or live.steps_after_commands or live.attempts_after_record
        calls = live.recorded_calls(report, event.now_ms) if waited else []
        if report.outcomes or event.before or event.after or report.end is not None:
            advance = deferred or self._driver.drive(run)
            self._driver.take(run, live, advance)
            if advance.given_up:
                calls = [call for call in calls if call.child not in advance.given_up]
        if calls:
            self._driver.start_all(run, live, calls)
        self._driver.settle(run, live)

    def _accept(self, run: LeasedRun, live: Live, report: RunReport, event: on.ReportAnswered) -> bool:
        """Load the rows of an accepted report; return false if later commands of the code do not count.

        The answers of a transaction advance the code between two turns. The database refuses commands that it
        made then, before it saw a request of cancellation.
        """
        replay, before, after = run.replay, event.before, event.after
        counts = not live.commands or replay.cancel_requested
        replay.accept(
            tail=before,
            commands=report.commands,
            outcomes=report.outcomes,
            next_seq=event.next_seq,
            now_ms=event.now_ms,
        )
        if after:
            replay.load(after)
        if before or after:
            run.see_rows((*before, *after))
        if report.commands:
            self._driver.effects += [RecordDeadline(in_ms) for in_ms in deadlines_ms(report.commands)]
        return counts or not replay.cancel_requested

    def _report_rejected(self, event: on.ReportRejected) -> None:
        report, run = event.report, self.leased.get(event.report.execution)
        aside = isinstance(report.end, Halt | Release)
        what = "to set it aside; it is given back" if aside else "what it reports; it is halted"
        run_log.report_refused(report.id, what, event.error.message)
        if run is not None and aside:
            # its lease must not be renewed, and its coroutine is ahead of the journal
            self._drop(run)

    def _report_busy(self, event: on.ReportBusy) -> None:
        run = self.leased.get(event.report.execution)
        if run is not None and run.report is event.report:
            run.resends += 1
            resend = PostLater(on.ResendDue(run), resend_pause_s(run.resends, self._randomness))
            self._driver.effects.append(resend)

    def _resend_due(self, event: on.ResendDue) -> None:
        run = event.run
        if run.report is not None and run.resends and not (run.queued or run.gone):
            run.queued = True
            self.dirty.append(run)

    def _poll_due(self, event: on.PollDue) -> None:
        run, phase = event.run, event.run.phase
        if isinstance(phase, Fetching | Live | Speculating):
            phase.poll = True
        if isinstance(phase, Live | Speculating):
            self._driver.queue_report(run)

    # -- transactions

    def _statement_answered(self, event: on.StatementAnswered) -> None:
        run, live, ask, journal = event.run, _asking(event), event.ask, event.journal
        if live is None:
            return
        live.asked = None
        if ask.kind in ("commit", "rollback"):
            live.transaction = None
        if run.replay.asks is not None and run.replay.asks.answer(ask, event.outcome):
            if ask.kind == "commit" and event.outcome[0] == "value":
                run.transaction_tries = 0
            if journal is None or not self._load_written(run, live, journal.rows, journal.next):
                self._driver.advance(run, live)
        elif journal is not None:
            live.poll = True
        self._driver.settle(run, live)

    def _transaction_broken(self, event: on.TransactionBroken) -> None:
        run, live = event.run, _asking(event)
        if live is None:
            return
        run.transaction_tries += event.counts
        if (tries := run.transaction_tries) > _TRIES_MAX:
            words = f"a transaction was begun {tries} times and never came to its end: {event.problem}"
            self._halt_transaction(run, live, words)
            return
        run_log.transaction_repeated(run.info, event.problem, is_expected=tries < _WARN_FROM)
        self._replay_when_quiet(run, live)

    def _replay_when_quiet(self, run: LeasedRun, live: Live, *, rejected: bool = False) -> None:
        """Replay a run from its journal, as soon as no report of it is on its way."""
        if run.report is None:
            self._driver.fetch(run, rejected=rejected)
        else:
            live.replay_when_quiet = True

    def _transaction_deferred(self, event: on.TransactionDeferred) -> None:
        run, live = event.run, _asking(event)
        if live is not None:
            live.transaction = live.asked = None
            live.end = Release(retry_in_ms=_ELSEWHERE_MS)
            self._driver.queue_report(run)

    def _transaction_failed(self, event: on.TransactionFailed) -> None:
        if (live := _asking(event)) is not None:
            self._halt_transaction(event.run, live, event.problem)

    def _halt_transaction(self, run: LeasedRun, live: Live, words: str) -> None:
        self._driver.roll_back(run)
        live.end = halt("TransactionProblem", words)
        self._driver.queue_report(run)

    # -- the end

    def _leave(self, run: LeasedRun, state: str, *, warm: bool) -> None:
        """A run is suspended or released, with its coroutine warm if that can be; or halted, or ended by
        others.
        """
        live = run.phase
        run_log.run_left(run.info, state)
        if not (isinstance(live, Live) and warm and state in ("suspended", "released")):
            self._drop(run)
            return
        self._driver.roll_back(run)
        self._driver.cancel_all(live.attempts)
        run.phase = Warm(live.scheduled_retries)
        del self.leased[run.execution]
        self.warm[run.execution] = run
        while (oldest := self.warm.surplus) is not None:
            self._drop(oldest)

    def _drop(self, run: LeasedRun) -> None:
        """Forget a run: its attempts are cancelled and its coroutine is thrown away."""
        self._driver.roll_back(run)
        self._driver.cancel_all(run.phase.attempts)
        run.phase, run.report = Gone(), None
        for runs in (self.leased, self.warm):
            if runs.get(run.execution) is run:
                del runs[run.execution]
        evict(run.replay)

    def _lose(self, run: LeasedRun) -> None:
        run_log.run_lost(run.info, run.version)
        self._drop(run)

    def _leases_lost(self, event: on.LeasesLost) -> None:
        """Drop runs whose lease is lost. A run that was claimed again since is not meant any more, and a
        report that is on its way gets its own verdict.
        """
        for lease in event.leases:
            run = self.leased.get(lease.execution)
            if run is not None and run.lease == lease and run.report is None:
                self._lose(run)

    def _stop(self, event: on.Stopping) -> None:
        self._driver.stopping, self._driver.draining = True, event.drains
        for run in self.leased.values():
            self._driver.stop(run, drains=event.drains)

    def _drain(self, event: on.Draining) -> None:
        for run in tuple(self.leased.values()):
            if run.execution not in event.keeps and not (run.phase.attempts or run.queued or run.report):
                self._drop(run)

    def _close(self, event: on.Closed) -> None:
        for run in (*self.leased.values(), *self.warm.values()):
            self._drop(run)


def _asking(
    event: on.StatementAnswered | on.TransactionBroken | on.TransactionDeferred | on.TransactionFailed,
) -> Live | None:
    """Return the phase of a run that still waits for this answer; None if the event came too late."""
    live = event.run.phase
    return live if isinstance(live, Live) and live.asked is event.ask else None
