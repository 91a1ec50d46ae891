"""The runs that this worker has leased.

What lives here: `LeasedRun`, everything the worker knows of one run between turns: its coroutine, what it is
to report, its steps; `StepAttempt` and `TransactionRun`, what it has under way. What may not: the database,
tasks of the event loop. The theory: a run is reported when something of it moved, and has at most one report
on its way. The coroutine is advanced by rows that a turn returned; speculation.py tells when it may be
advanced before. So a step waits until the commands of the same advance, and all before them, are recorded;
and the next attempt of a step until the failure of the last one is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pyengine.definitions.current_run import RunInfo, StepToken
from pyengine.errors import EngineError
from pyengine.protocol.commands import (
    Adopt,
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
from pyengine.protocol.journal import Row
from pyengine.protocol.turn import ClaimedRun, Lease, RunReport
from pyengine.replay.advance import Advance, StepCall
from pyengine.replay.machine import Replay
from pyengine.replay.transaction_log import TransactionLog
from pyengine.worker.thread_pool import Job

__all__ = [
    "Hooks",
    "LeasedRun",
    "StepAttempt",
    "TransactionRun",
    "evict",
    "run_info",
]

logger = logging.getLogger("pyengine.worker")

FACTS_MAX = 1000
"""Outcomes of one run in one bundle, at most."""

_WAKES = (StartTimer, MakePromise, Adopt, Receive, MakeJoinSet)

TURN_BYTES_MAX = 8 << 20
"""A turn, or the bundle of one run, that weighs this much takes nothing more."""


class LeasedRun:
    """One run under this worker's lease, or suspended with its coroutine kept warm.

    Args:
        info: which run.
        replay: its coroutine.
        reply: where the process that started it wants its end noted.

    Attributes:
        version: version of the lease.
        outcomes: to be reported.
        commands: to be reported; the coroutine did them.
        end: to be reported; how the run leaves this worker.
        blocked: steps that wait until the commands are recorded.
        next_calls: attempts that wait until the last outcome about their step is recorded.
        parked: attempts that wait for their moment, by child number.
        steps: attempts under way, by child number.
        flight: the bundle on its way.
        busy: how often in a row the bundle met what somebody has locked; it is sent again, as it is.
        seen: where the coroutine was in the journal before it went on with outcomes that are not recorded.
        kept: what it did then, other than to end.
        last: number of the step that reported last; -1 before the first.
        queued: it stands in the worker's queue of runs to report.
        transaction: what answers its transactions.
        tries: how often in a row its transactions did not come to their end.
        keep: report it even if nothing moved, to get what others appended.
        loading: its journal is being fetched; nothing is reported meanwhile.
        outside: others may wake its code: it has child runs, timers, promises or receives, or is cancelling.
        dropped: it is not ours any more.
        ahead: its coroutine did what was refused and is not known, so nothing can go on with it.
        moved_at: next_seq at the last verdict `stale`.
        sent_s: when its last bundle left, by the loop's clock.
        weight: bytes of what its last bundle carried.
    """

    __slots__ = (
        "ahead",
        "blocked",
        "busy",
        "commands",
        "dropped",
        "end",
        "flight",
        "info",
        "keep",
        "kept",
        "last",
        "loading",
        "moved_at",
        "next_calls",
        "outcomes",
        "outside",
        "parked",
        "queued",
        "replay",
        "reply",
        "seen",
        "sent_s",
        "steps",
        "transaction",
        "tries",
        "version",
        "weight",
    )

    def __init__(self, info: RunInfo, replay: Replay, reply: str | None = None) -> None:
        self.info = info
        self.version = info.version
        self.replay = replay
        self.outcomes: list[StepOutcome] = []
        self.commands: tuple[Command, ...] = ()
        self.end: Ending | None = None
        self.blocked: tuple[StepCall, ...] = ()
        self.next_calls: dict[int, StepCall] = {}
        self.parked: dict[int, StepCall] = {}
        self.steps: dict[int, StepAttempt] = {}
        self.flight: RunReport | None = None
        self.busy = 0
        self.seen: int | None = None
        self.kept: Advance | None = None
        self.last = -1
        self.queued = False
        self.keep = False
        self.loading = False
        self.outside = False
        self.dropped = False
        self.ahead = False
        self.moved_at = -1
        self.sent_s = 0.0
        self.weight = 0
        self.transaction: TransactionRun | None = None
        self.tries = 0
        self.reply = reply

    @property
    def execution(self) -> int:
        """Number of the run."""
        return self.info.execution

    @property
    def lease(self) -> Lease:
        """Which run it holds, as it tells the database."""
        return Lease(self.info.execution, self.info.id, self.version)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.outcomes or self.commands or self.end is not None or self.keep)

    @property
    def idle(self) -> bool:
        """Whether all that is left to do here is to wait for parked attempts."""
        busy = self.steps or self.next_calls or self.blocked or self.has_news or self.in_transaction
        return not busy and self.flight is None

    def waits_for_step(self, child: int) -> bool:
        """Whether that step, which is under way, is all that is done here for the run."""
        busy = self.next_calls or self.blocked or self.has_news or self.in_transaction
        return not busy and self.flight is None and list(self.steps) == [child]

    @property
    def waits_for_transaction(self) -> bool:
        """Whether a transaction, which has not begun, is all that is done here for the run."""
        busy = self.steps or self.next_calls or self.blocked or self.has_news or self.dropped or self.loading
        return not busy and self.flight is None and self.in_transaction

    @property
    def in_transaction(self) -> bool:
        """Whether its code is in a transaction, or waits to begin one, with all before that recorded."""
        return self.replay.in_transaction and self.kept is None

    def stop_transaction(self) -> None:
        """Roll back the transaction that it is in, if any."""
        own, self.transaction = self.transaction, None
        if own is not None:
            own.stop()

    def take(self, moves: Advance) -> None:
        """Note what an advance brought; its steps are the caller's business, as soon as `blocked` is not
        for them.
        """
        # more than one advance may come between two turns while a transaction is open
        self.commands += moves.commands
        self.end = moves.end
        if self.commands:
            self.blocked += moves.steps
            if not self.outside:
                self.outside = any(
                    isinstance(command, _WAKES) or (isinstance(command, RunChild) and not command.detached)
                    for command in moves.commands
                )

    def load_bundle(self) -> RunReport:
        """Return what is to be reported, as the bundle on its way."""
        count = self._outcomes_that_fit()
        if self.seen is not None:
            count = len(self.outcomes)
        if count == len(self.outcomes):
            outcomes, self.outcomes = self.outcomes, []
        else:
            outcomes, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        commands, self.commands = self.commands, ()
        if commands and outcomes:
            # a step takes its number once in a turn: what became of it goes with the next one
            intended = {command.child for command in commands if isinstance(command, Intend)}
            self.outcomes[:0] = [outcome for outcome in outcomes if outcome.child in intended]
            outcomes = [outcome for outcome in outcomes if outcome.child not in intended]
        end = self.end
        if self.outcomes and isinstance(end, Suspend):
            end = None  # it would be refused while outcomes are outstanding
        else:
            self.end = None
        seen = self.replay.next_seq if self.seen is None else self.seen
        bundle = RunReport(self.info.execution, self.info.id, self.version, seen, outcomes, commands, end)
        if end is not None:
            bundle.reply = self.reply
        self.keep = False
        self.flight = bundle
        return bundle

    def accept(
        self, flight: RunReport, before: Sequence[Row], after: Sequence[Row], next_seq: int, now_ms: int
    ) -> bool:
        """Load the rows of a bundle that was taken; false if what the code has done since does not count.

        Where the code went on before the bundle left, nothing may have come with it.
        The answers of a transaction let the code go on between two turns. What it did then, before a request
        of cancellation came into sight, is what the database refuses when it can tell.

        Args:
            flight: the bundle.
            before: rows of others, from where the coroutine was to the bundle's.
            after: rows of others behind those.
            next_seq: the logical number after the bundle's own rows.
            now_ms: the instant of the turn.
        """
        replay = self.replay
        if self.seen is not None:
            self.seen = None
            return next_seq == replay.next_seq and not (before or after)
        counts = not self.commands or replay.transactions.cancel_requested
        replay.accept(
            tail=before, commands=flight.commands, outcomes=flight.outcomes, next_seq=next_seq, now_ms=now_ms
        )
        if after:
            replay.load(after)
        return counts or not replay.transactions.cancel_requested

    @property
    def fits_one_bundle(self) -> bool:
        """Whether all that is to be reported goes out together."""
        return self._outcomes_that_fit() == len(self.outcomes)

    def _outcomes_that_fit(self) -> int:
        """Return how many of the outcomes go with the next bundle, and note how much it weighs."""
        self.weight = weight(self.commands, self.end) if self.commands or self.end is not None else 0
        for count, outcome in enumerate(self.outcomes):
            if count and (count == FACTS_MAX or self.weight >= TURN_BYTES_MAX):
                return count
            self.weight += text_bytes(outcome.value or outcome.error or outcome.param or "")
        return len(self.outcomes)

    def ready_calls(self, flight: RunReport, now_ms: int) -> list[StepCall]:
        """Return the attempts that waited for a bundle to be recorded."""
        calls: list[StepCall] = []
        intended: set[int] = set()
        if flight.commands:
            intended = {command.child for command in flight.commands if isinstance(command, Intend)}
            for child in intended.intersection(self.steps):
                self.steps[child].begun = True
        if self.blocked and not self.commands:
            calls += [replace(one, begun=True) if one.child in intended else one for one in self.blocked]
            self.blocked = ()
        if self.next_calls:
            calls += self.recorded_calls(flight.outcomes, now_ms)
        return calls

    def recorded_calls(self, outcomes: Iterable[StepOutcome], now_ms: int) -> list[StepCall]:
        """Return the attempts that waited for these outcomes to be recorded.

        Args:
            outcomes: recorded outcomes.
            now_ms: the instant of the turn that recorded them, from which delays count.
        """
        ready = []
        for outcome in outcomes:
            call = self.next_calls.get(outcome.child)
            if call is None or outcome.begun != call.begun:
                continue
            if outcome.begun:
                ready.append(self.next_calls.pop(outcome.child))
            elif outcome.retry_in_ms is not None:
                ready.append(
                    replace(self.next_calls.pop(outcome.child), retry_at_ms=now_ms + outcome.retry_in_ms)
                )
        return ready

    def forget(self, end: Ending) -> None:
        """Report nothing but how it leaves: what its code did is refused, and nobody knows why."""
        self._clear()
        self.end, self.ahead = end, True

    def start_over(self, replay: Replay) -> dict[tuple[int, int], StepOutcome]:
        """Take a coroutine that is being replayed from the journal in place of the old one.

        What was to be reported is taken back and returned by child and attempt: the replay decides what is
        still wanted. Attempts under way go on.
        """
        sent = self.flight.outcomes if self.flight is not None else ()
        unsent = {
            (outcome.child, outcome.attempt): outcome
            for outcome in (*sent, *self.outcomes)
            if not outcome.begun
        }
        self._clear()
        self.replay, self.ahead = replay, False
        self.next_calls.clear()
        self.parked.clear()
        return unsent

    def _clear(self) -> None:
        """Let go of all that its coroutine did and that is not known to be recorded."""
        self.stop_transaction()
        self.outcomes, self.commands, self.end, self.blocked, self.flight = [], (), None, (), None
        self.seen = self.kept = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the holdings ask of the worker.

    Args:
        max_warm: suspended coroutines kept, at most.
        fetch: get the journal of a run, then call `journal_came`.
        timer: a deadline of a run's own making, by the loop's clock.
        transaction: something of a run moved that is in a transaction.
    """

    max_warm: int
    fetch: Callable[[LeasedRun], None]
    timer: Callable[[float], None]
    transaction: Callable[[LeasedRun], None]


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
    )


def evict(replay: Replay) -> None:
    """Throw a coroutine away, whatever its clean-up does."""
    try:
        replay.evict()
    except SystemExit:
        # a workflow has no process to leave
        logger.warning("run.evicted_with_exit", extra={"run_id": replay.run.id})
    except EngineError as error:
        logger.warning("run.evicted_with_error", extra={"run_id": replay.run.id, "problem": error.message})


class StepAttempt:
    """One attempt under way.

    Attributes:
        held: its run.
        call: which attempt.
        begun: the journal knows, or will know with the next turn, that it has begun.
        started_s: when the body began, by the loop's clock; 0 while it waits for its turn.
        wanted: somebody waits for the outcome.
        timed_out: it was cancelled because its time was over.
        token: tells the body whether the outcome is still wanted.
    """

    __slots__ = ("begun", "call", "held", "job", "started_s", "task", "timed_out", "timer", "token", "wanted")

    def __init__(self, held: LeasedRun, call: StepCall) -> None:
        self.held = held
        self.call = call
        self.begun = call.begun
        self.started_s = 0.0
        self.wanted = True
        self.timed_out = False
        self.token = StepToken()
        self.task: asyncio.Task[None] | None = None
        self.job: Job | None = None
        self.timer: asyncio.TimerHandle | None = None


class TransactionRun:
    """The transactions of one run that are being answered.

    Attributes:
        task: the work.
        moved: set when something of the run moved.
        overdue: the transaction whose connection was closed because its time was over.
    """

    __slots__ = ("moved", "overdue", "task")
    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.overdue: TransactionLog | None = None

    def stop(self) -> None:
        """Roll back what is open."""
        self.task.cancel()
