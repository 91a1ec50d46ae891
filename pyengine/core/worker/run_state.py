"""The state of one run at a worker: its phase, and its report on the way.

Lives here: `LeasedRun`; the phases, one class each, whose fields exist in no other phase. May not: the
database, the event loop, what an event changes (run_manager.py). Design: a run is reported when something of
it changed, and has at most one report on its way. Its coroutine is advanced by rows that a turn returned;
`Speculating` is the one exception. So a step waits until the commands of the same advance, and all before
them, are recorded; and the next attempt of a step waits until the failure of the last one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.protocol.commands import (
    Adopt,
    AwaitRow,
    CallRemote,
    Command,
    Ending,
    Intend,
    MakeJoinSet,
    MakePromise,
    Receive,
    RunChild,
    StartTimer,
    StepOutcome,
    Suspend,
    text_bytes,
    weight,
)
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.protocol.turn import ClaimedRun, Lease, RunReport
from pyengine.core.replay import run_log
from pyengine.core.replay.advance import Advance, StepCall
from pyengine.core.replay.asks import Ask, Asking
from pyengine.core.replay.machine import Replay
from pyengine.core.worker.attempts import Attempt
from pyengine.errors import EngineError

OUTCOMES_MAX = 1000
"""Outcomes of one run in one report, at most."""

TURN_BYTES_MAX = 8 << 20
"""A turn, or the report of one run, that weighs this much takes nothing more."""

_WAKERS = (StartTimer, MakePromise, CallRemote, AwaitRow, Adopt, Receive, MakeJoinSet)
_WAKING_ROWS = frozenset(
    {
        RowType.CHILD_RUN_SCHEDULED,
        RowType.PROMISE_REGISTERED,
        RowType.TIMER_SCHEDULED,
        RowType.JOIN_SET_CREATED,
        RowType.SIGNAL_DELIVERED,
        RowType.SIGNAL_RECEIVED,
        RowType.EXECUTION_AWAITING,
        RowType.CANCEL_REQUESTED,
    }
)


# -- phases


class Phase:
    """The phase of a run at this worker, with its unreported work and its attempts; most phases have none."""

    __slots__ = ()

    @property
    def attempts(self) -> dict[int, Attempt]:
        """Attempts under way, by child number."""
        return {}

    @property
    def outcomes(self) -> Sequence[StepOutcome]:
        """Outcomes to be reported."""
        return ()

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to report."""
        return False

    def take_report(self, run: LeasedRun) -> RunReport:
        """Return all that is to be reported, as the report on its way.

        Raises:
            EngineError: this phase reports nothing.
        """
        raise EngineError(f"run {run.info.id} has nothing to report while it is {type(self).__name__}")


class Fetching(Phase):
    """Its journal is being fetched, from which it will be replayed; there is no coroutine to advance.

    Attributes:
        attempts: they go on if the replay asks for them again.
        unrecorded: outcomes that may not be recorded, by child and attempt; reported if asked for again.
        rejected: the database found it stale, so the journal must hold something new.
        poll: others may have appended meanwhile.
    """

    __slots__ = ("attempts", "poll", "rejected", "unrecorded")

    def __init__(
        self, attempts: dict[int, Attempt], outcomes: Iterable[StepOutcome], *, rejected: bool, poll: bool
    ) -> None:
        self.attempts = attempts  # type: ignore[misc]
        self.unrecorded = {(one.child, one.attempt): one for one in outcomes if not one.begun}
        self.rejected = rejected
        self.poll = poll


class Live(Phase):
    """Its coroutine stands where the journal ends, or is ahead by the commands that are being recorded.

    Attributes:
        attempts: attempts under way, by child number.
        outcomes: to be reported.
        commands: to be reported, in the order in which the coroutine gave them.
        end: to be reported: how the run leaves this worker.
        poll: report it even if nothing changed, to get what others appended.
        steps_after_commands: steps that wait until the commands are recorded.
        attempts_after_record: attempts that wait until the last outcome of their step is recorded.
        scheduled_retries: attempts that wait for their time, by child number.
        exhausted: the failures for which the run will be set aside, by child number; they are reported with
            that, as soon as nothing else is under way.
        transaction: what has begun, or is to begin, on a connection.
        asked: what was last handed out for execution in it.
        replay_when_quiet: replay it as soon as no report is on its way.
        progress: what it has set for those who watch it, since the last report.
    """

    __slots__ = (
        "asked",
        "attempts",
        "attempts_after_record",
        "commands",
        "end",
        "exhausted",
        "outcomes",
        "poll",
        "progress",
        "replay_when_quiet",
        "scheduled_retries",
        "steps_after_commands",
        "transaction",
    )

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        self.outcomes: list[StepOutcome] = []
        self.commands: tuple[Command, ...] = ()
        self.end: Ending | None = None
        self.poll = False
        self.steps_after_commands: tuple[StepCall, ...] = ()
        self.attempts_after_record: dict[int, StepCall] = {}
        self.scheduled_retries: dict[int, StepCall] = {}
        self.exhausted: dict[int, StepOutcome] = {}
        self.transaction: Asking | None = None
        self.asked: Ask | None = None
        self.replay_when_quiet = False
        self.progress: ProgressReport | None = None

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.outcomes or self.commands or self.end is not None or self.poll)

    @property
    def waits_for_record(self) -> bool:
        """Whether anything is to be reported, or waits until something is recorded."""
        return bool(self.attempts_after_record or self.steps_after_commands or self.is_dirty)

    @property
    def may_stay_warm(self) -> bool:
        """Whether a claim can go on with its coroutine: nothing is left but attempts that wait for their
        time. A retry that began while the run was being released would be lost.
        """
        waits = self.attempts or self.attempts_after_record or self.steps_after_commands or self.exhausted
        news = self.outcomes or self.commands or self.end is not None
        return not (waits or news or self.replay_when_quiet)

    def recorded_calls(self, report: RunReport, now_ms: int) -> list[StepCall]:
        """Return the attempts that waited for this report to be recorded.

        Args:
            report: what is recorded.
            now_ms: the instant of its turn, from which delays count.
        """
        calls: list[StepCall] = []
        intended: set[int] = set()
        if report.commands:
            intended = {command.child for command in report.commands if isinstance(command, Intend)}
            for child in intended.intersection(self.attempts):
                self.attempts[child].begun = True
        if self.steps_after_commands and not self.commands:
            steps, self.steps_after_commands = self.steps_after_commands, ()
            calls += [replace(one, begun=True) if one.child in intended else one for one in steps]
        if self.attempts_after_record:
            for outcome in report.outcomes:
                call = self.attempts_after_record.get(outcome.child)
                if call is None or outcome.begun != call.begun:
                    continue
                if outcome.begun or outcome.retry_in_ms is not None:
                    del self.attempts_after_record[outcome.child]
                    at_ms = None if outcome.begun else now_ms + (outcome.retry_in_ms or 0)
                    calls.append(call if outcome.begun else replace(call, retry_at_ms=at_ms))
        return calls

    @property
    def fits_one_report(self) -> bool:
        """Whether all that is to be reported goes out together."""
        return self._outcomes_that_fit()[0] == len(self.outcomes)

    def take_report(self, run: LeasedRun) -> RunReport:
        """Return what is to be reported, as far as it fits, as the report on its way."""
        count, bytes = self._outcomes_that_fit()
        outcomes, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        commands, self.commands = self.commands, ()
        if commands and outcomes:
            # a step takes its number once in a turn: its outcome goes with the next one
            intended = {command.child for command in commands if isinstance(command, Intend)}
            self.outcomes[:0] = [one for one in outcomes if one.child in intended]
            outcomes = [one for one in outcomes if one.child not in intended]
        end = self.end
        if self.outcomes and isinstance(end, Suspend):
            end = None  # it would be refused while outcomes are outstanding
        else:
            self.end = None
        self.poll = False
        report = run.send_report(run.replay.next_seq, outcomes, commands, end, bytes)
        if self.progress is not None:
            self.send_progress(run)
        return report

    def send_progress(self, run: LeasedRun) -> None:
        """Add what the run has set since the last report to the one on its way."""
        progress, self.progress = self.progress, None
        if run.report is not None and progress is not None:
            run.report.progress = progress
            run.report_bytes += progress.weight

    def _outcomes_that_fit(self) -> tuple[int, int]:
        """Return how many of the outcomes go with the next report, and how much it weighs."""
        bytes = weight(self.commands, self.end) if self.commands or self.end is not None else 0
        for count, outcome in enumerate(self.outcomes):
            if count and (count == OUTCOMES_MAX or bytes >= TURN_BYTES_MAX):
                return count, bytes
            bytes += text_bytes(outcome.value or outcome.error or outcome.param or "")
        return len(self.outcomes), bytes


class Speculating(Phase):
    """Its coroutine went on with outcomes that are not recorded yet.

    Attributes:
        live: the phase to return to, with nothing in it.
        applied_seq: where the coroutine was in the journal before.
        outcomes: these outcomes.
        end: how the run ended by them; it leaves in the same report.
        deferred: all that the coroutine did, if it did not end; taken once the outcomes are recorded.
        poll: others may have appended.
    """

    __slots__ = ("applied_seq", "deferred", "end", "live", "outcomes", "poll")

    def __init__(
        self, live: Live, applied_seq: int, *, end: Ending | None = None, deferred: Advance | None = None
    ) -> None:
        self.live = live
        self.applied_seq = applied_seq
        self.outcomes, live.outcomes = live.outcomes, []  # type: ignore[misc]
        self.poll, live.poll = live.poll, False
        self.end = end
        self.deferred = deferred

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.outcomes or self.poll)

    def take_report(self, run: LeasedRun) -> RunReport:
        """Return the outcomes, and the end that the coroutine came to with them, as the report on its way."""
        outcomes, self.outcomes = self.outcomes, ()  # type: ignore[misc]
        end, self.end, self.poll = self.end, None, False
        bytes = weight((), end) + sum([text_bytes(one.value or one.error or "") for one in outcomes])
        report = run.send_report(self.applied_seq, outcomes, (), end, bytes)
        self.live.send_progress(run)
        return report


class Diverged(Phase):
    """The database found it stale, and the journal holds nothing new: it leaves this worker for a while, and
    nothing of what its coroutine did counts.

    Attributes:
        end: how it leaves; None once that is on its way.
    """

    __slots__ = ("end",)

    def __init__(self, end: Ending) -> None:
        self.end: Ending | None = end

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to report."""
        return self.end is not None

    def take_report(self, run: LeasedRun) -> RunReport:
        """Return how it leaves, as the report on its way."""
        end, self.end = self.end, None
        return run.send_report(run.replay.next_seq, (), (), end, weight((), end))


class Warm(Phase):
    """It is suspended or released, and its coroutine is kept in case this worker claims it again.

    Attributes:
        scheduled_retries: attempts that waited for their time.
    """

    __slots__ = ("scheduled_retries",)

    def __init__(self, scheduled_retries: dict[int, StepCall]) -> None:
        self.scheduled_retries = scheduled_retries


class Gone(Phase):
    """It is not this worker's any more, or has ended."""

    __slots__ = ()


# -- the run


class LeasedRun:
    """One run under this worker's lease, or suspended with its coroutine kept warm.

    Args:
        info: which run.
        replay: its coroutine.
        reply: where the process that started it wants its end reported.

    Attributes:
        version: version of the lease.
        known_until_s: until when the lease is known to hold (pyengine/core/process/lease_terms.py).
        phase: what it does.
        report: its report on the way.
        report_bytes: of what that carries.
        resends: how often in a row that met what somebody has locked; it is sent again, as it is.
        reported_s: when its last report was taken into a turn, by our clock.
        queued: it stands in the queue of runs to report.
        wakeable: others may wake its code: it has child runs, timers, promises or receives, or is cancelling.
        stale_at: logical number after the journal when the database last found it stale.
        last_step: child number of the step that ended last; -1 before the first.
        progress_scheduled: an event will have its progress reported, if no report takes it before.
        transaction_tries: how often in a row its transactions did not come to their end.
        waits_for_steps: it cleans up, and neither reports nor begins anything until the steps have ended that
            it gave up (attempts.py).
    """

    __slots__ = (
        "info",
        "known_until_s",
        "last_step",
        "phase",
        "progress_scheduled",
        "queued",
        "replay",
        "reply",
        "report",
        "report_bytes",
        "reported_s",
        "resends",
        "stale_at",
        "transaction_tries",
        "version",
        "waits_for_steps",
        "wakeable",
    )

    def __init__(self, info: RunInfo, replay: Replay, reply: str | None = None) -> None:
        self.info = info
        self.version = info.version
        self.replay = replay
        self.reply = reply
        self.phase: Phase = Live()
        self.report: RunReport | None = None
        self.report_bytes = self.resends = 0
        self.reported_s = self.known_until_s = 0.0
        self.queued = self.wakeable = self.waits_for_steps = False
        self.stale_at = self.last_step = -1
        self.progress_scheduled = False
        self.transaction_tries = 0

    @property
    def execution(self) -> int:
        """Number of the run."""
        return self.info.execution

    @property
    def lease(self) -> Lease:
        """The lease, as the database is shown it."""
        return Lease(self.info.execution, self.info.id, self.version)

    @property
    def gone(self) -> bool:
        """Whether this worker has nothing to do with it any more."""
        return isinstance(self.phase, Gone)

    @property
    def in_transaction(self) -> bool:
        """Whether its code is in a transaction, or waits to begin one, with all before that recorded."""
        return isinstance(self.phase, Live) and self.replay.in_transaction

    def waits_only_for(self, attempt: Attempt | None) -> bool:
        """Whether an attempt under way, or its transaction if None, is all that is done here for the run."""
        live = self.phase
        if not isinstance(live, Live) or live.waits_for_record or live.exhausted or self.report is not None:
            return False
        if attempt is None:
            return not live.attempts and self.in_transaction
        return list(live.attempts.values()) == [attempt] and not self.in_transaction

    def see_rows(self, rows: Iterable[Row]) -> None:
        """Note whether rows of others show that they may wake its code."""
        if not self.wakeable:
            self.wakeable = any(row.type in _WAKING_ROWS for row in rows)

    def see_commands(self, commands: Iterable[Command]) -> None:
        """Note whether what its code made may wake it."""
        if not self.wakeable:
            self.wakeable = any(
                isinstance(command, _WAKERS) or (isinstance(command, RunChild) and not command.detached)
                for command in commands
            )

    def send_report(
        self,
        seen: int,
        outcomes: Sequence[StepOutcome],
        commands: Sequence[Command],
        end: Ending | None,
        bytes: int,
    ) -> RunReport:
        """Fill the slot of the report on its way."""
        info = self.info
        report = RunReport(info.execution, info.id, self.version, seen, outcomes, commands, end)
        if end is not None:
            report.reply = self.reply
        self.report, self.report_bytes, self.resends = report, bytes, 0
        return report


def run_info(task: ClaimedRun) -> RunInfo:
    """Return which run a claimed task is of."""
    return RunInfo(
        id=task.id,
        execution=task.execution,
        version=task.version,
        workflow=task.workflow,
        workflow_version=task.workflow_version,
        param=task.param or "[]",
        started_at_ms=task.started_at,
        queue=task.queue,
        crashes=task.crashes,
        first_child=task.first_child,
        rules=task.rules,
    )


def evict(replay: Replay) -> None:
    """Throw a coroutine away, whatever its clean-up does."""
    try:
        replay.evict()
    except SystemExit:
        # a workflow has no process to leave
        run_log.run_evicted(replay.run, "SystemExit")
    except EngineError as error:
        run_log.run_evicted(replay.run, error.message)
