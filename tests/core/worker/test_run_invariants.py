"""Law: each invariant of a leased run has a state that breaks it, so a test that checks it can fail; and no
order of events of several runs breaks one, whatever gets lost or comes late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from pyengine.core.protocol.commands import Complete, Fail, StepOutcome
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.protocol.turn import ClaimedRun, RunReport
from pyengine.core.replay.advance import Advance
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from pyengine.core.worker import events as on
from pyengine.core.worker.attempts import Attempt, step_outcome
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
from pyengine.core.worker.report_queue import ReportQueue
from pyengine.core.worker.run_state import LeasedRun, Live, Warm, run_info
from tests.core.worker.memory_database import Stored
from tests.core.worker.run_invariants import INVARIANTS, check
from tests.core.worker.run_stage import (
    Stage,
    app,
    gone,
    live,
    live_dirty,
    live_reporting,
    live_scheduled,
    live_transacting,
    live_waiting,
    speculating_reporting,
    warm,
)


def spoil_start(stage: Stage) -> LeasedRun:
    """A step starts although its command is on the way."""
    run = live_waiting(stage)
    assert isinstance(run.phase, Live)
    (call,) = run.phase.steps_after_commands
    run.phase.attempts[call.child] = Attempt(run.execution, run.info.id, call)
    return run


def spoil_retry(stage: Stage) -> LeasedRun:
    """An attempt runs beside one that is scheduled."""
    run = live_scheduled(stage)
    assert isinstance(run.phase, Live)
    run.phase.attempts[0] = Attempt(run.execution, run.info.id, run.phase.scheduled_retries[0])
    return run


def spoil_report(stage: Stage) -> LeasedRun:
    """A run that is being fetched has a report on its way."""
    run = live_reporting(stage)
    sent = run.report
    stage.stale(run)
    run.report = sent
    return run


def spoil_speculation(stage: Stage) -> LeasedRun:
    """A speculation reports that it has seen what it predicts."""
    run = speculating_reporting(stage)
    assert run.report is not None
    run.report.seen = run.replay.next_seq
    return run


def spoil_transaction(stage: Stage) -> LeasedRun:
    """A transaction begins with a command on the way."""
    run = live_transacting(stage)
    other = live_waiting(stage)
    run.report = other.report
    return run


def spoil_coroutine(stage: Stage) -> LeasedRun:
    """A run that is gone keeps its coroutine."""
    run = gone(stage)
    run.replay = live(stage).replay
    return run


def spoil_attempt(stage: Stage) -> LeasedRun:
    """A warm run has an attempt."""
    run = warm(stage)
    attempts = live(stage).phase.attempts

    run.phase = type("Working", (Warm,), {"attempts": attempts})({})
    return run


def spoil_order(stage: Stage) -> LeasedRun:
    """An outcome travels with the command that announces its step."""
    run = live_waiting(stage)
    assert run.report is not None
    child = run.report.commands[0].child
    run.report.outcomes = [StepOutcome(child=child, name="x", hash="0" * 16, attempt=1, value="1")]
    return run


def spoil_queue(stage: Stage) -> LeasedRun:
    """A run with an outcome is in no queue."""
    run = live_dirty(stage)
    run.queued = False
    return run


SPOILT = [
    spoil_start,
    spoil_retry,
    spoil_report,
    spoil_speculation,
    spoil_transaction,
    spoil_coroutine,
    spoil_attempt,
    spoil_order,
    spoil_queue,
]


@pytest.mark.parametrize("number", range(len(SPOILT)))
def test_an_invariant_that_is_broken_is_found(number: int) -> None:
    """Each invariant has a state that breaks it, and no other one."""
    assert len(SPOILT) == len(INVARIANTS)
    assert check(SPOILT[number](Stage())) == [INVARIANTS[number][0]]


# -- random events


class Machine:
    """Several runs on a worker whose every part answers late, or not at all.

    Attributes:
        attempts: under way.
        timers: events that fall due some time.
        sent: reports on their way to the database.
        answers: on their way back.
        asks: statements under way.
        tasks: claims that were made, which may come again.
    """

    WORKFLOWS = ("steps", "single", "retried", "both", "captured", "asleep", "paying", "careful")

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = Stage(max_warm=2)
        self.reports = ReportQueue(self.stage.runs.dirty, list)
        self.attempts: list[Attempt] = []
        self.timers: list[on.Event] = []
        self.sent: list[RunReport] = []
        self.answers: list[on.ReportAnswered] = []
        self.asks: list[Execute] = []
        self.tasks: list[ClaimedRun] = []
        self.count = 0

    def post(self, event: on.Event) -> None:
        """Apply an event, and let its effects begin."""
        versions = {run.info.id: run.version for run in self.stage.runs.leased.values()}
        for effect in self.stage.post(event):
            self.begin(effect)
        for run in self.stage.runs.leased.values():
            assert run.version >= versions.get(run.info.id, 0), "an old claim replaced a newer one"
        self.count += 1

    def begin(self, effect: Effect) -> None:
        """Begin what an effect asks for."""
        match effect:
            case StartAttempt():
                live = effect.run.phase
                assert isinstance(live, Live) and effect.attempt in live.attempts.values()
                self.attempts.append(effect.attempt)
            case CancelAttempt():
                self.attempts.remove(effect.attempt)
            case PostLater():
                self.timers.append(effect.event)
            case FetchJournal():
                self.timers.append(on.JournalFetched(effect.run, None))
            case Execute():
                if effect.ask.kind in ("begin", "commit"):
                    stored = self.stage.stored(effect.run)
                    assert effect.run.version != stored.version or effect.run.replay.next_seq <= stored.next
                self.asks.append(effect)
            case RollBack():
                self.asks = [one for one in self.asks if one.run is not effect.run]
            case RecordDeadline():
                pass

    def step(self) -> bool:
        """Let one thing happen; false if there is nothing left."""
        choices = [*self.choices()]
        if not choices:
            return False
        self.rng.choice(choices)()
        return True

    def choices(self) -> Iterator[Any]:
        """What may happen next."""
        waiting = [one for one in self.stage.database.runs.values() if one.state == "pending"]
        if waiting:
            yield lambda: self.claim(self.rng.choice(waiting))
        if self.reports:
            yield self.send
        for things, act in (
            (self.attempts, self.end_attempt),
            (self.sent, self.record),
            (self.answers, self.answer),
            (self.timers, self.fall_due),
            (self.asks, self.execute),
        ):
            if things:
                yield lambda things=things, act=act: act(things.pop(self.rng.randrange(len(things))))

    def disturb(self) -> None:
        """Let others act, or a message come late."""
        stored = self.rng.choice([*self.stage.database.runs.values()])
        leased = [*self.stage.runs.leased.values()]
        match self.rng.randrange(10):
            case 0 | 1:
                self.stage.database.settle(stored)
            case 2 if stored.end is None and not stored.cancelling and self.rng.random() < 0.3:
                stored.append(RowType.CANCEL_REQUESTED, data='{"reason": null}')
            case 3 if leased:
                self.post(on.PollDue(self.rng.choice(leased)))
            case 4 if self.tasks:
                self.post(on.RunClaimed(self.rng.choice(self.tasks), inf))
            case 5 if stored.state == "acquired":
                # somebody else had it for a moment
                stored.version += 1
                stored.state = "pending"
                stored.left_at = 0
            case 6 if leased:
                run = self.rng.choice(leased)
                if run.version != self.stage.stored(run).version:
                    self.post(on.LeasesLost([run.lease]))
            case 7 if self.attempts:
                self.post(on.AttemptRunsLong(self.rng.choice(self.attempts)))
            case 8 if self.sent:
                self.post(on.ReportBusy(self.rng.choice(self.sent)))
            case 9:
                # the renewals are not answered, or are again
                self.stage.holds = not self.stage.holds
            case _:
                pass

    def claim(self, stored: Stored) -> None:
        """Claim a run, warm if its coroutine is here."""
        run = self.stage.runs.warm.get(stored.execution)
        warm = run is not None and stored.left_at > 0 and run.version == stored.version
        task = self.stage.database.claim(stored, warm=warm, whole=self.rng.random() < 0.7)
        self.tasks.append(task)
        self.post(on.RunClaimed(task, inf))

    def send(self) -> None:
        """Let a turn leave, or pack it."""
        if self.rng.random() < 0.3:
            self.reports.pack(0.0, 10)
        else:
            self.sent += self.reports.collect(0.0, 10).reports

    def record(self, report: RunReport) -> None:
        """Let a report reach the database; its answer may get lost, and then it is sent again."""
        answer = self.stage.database.report(report)
        if self.rng.random() < 0.1:
            self.sent.append(report)
        else:
            self.answers.append(answer)

    def answer(self, answer: on.ReportAnswered) -> None:
        """Let an answer come."""
        self.post(answer)

    def end_attempt(self, attempt: Attempt) -> None:
        """End an attempt: done, failed, or to be tried again."""
        found: dict[str, Any] = {"value": "1"}
        if attempt.call.name.endswith("again") and attempt.call.attempt < 3 and self.rng.random() < 0.5:
            found = {
                "error": Codec().encode_error(ValueError("no")),
                "retry_in_ms": self.rng.choice((1, 9000)),
            }
        self.post(on.AttemptEnded(attempt, step_outcome(attempt.call, **found)))

    def fall_due(self, event: on.Event) -> None:
        """Let a timer fire, or a journal come."""
        if isinstance(event, on.JournalFetched):
            journal = self.stage.database.journal(event.run.execution, event.run.version)
            if journal is not None:
                event = on.JournalFetched(event.run, journal)
        self.stage.now_ms += 10_000 if isinstance(event, on.RetryDue) else 1
        self.post(event)

    def execute(self, effect: Execute) -> None:
        """Execute a statement of a transaction, or fail to."""
        run, log, ask = effect.run, effect.log, effect.ask
        if ask.kind != "commit":
            value = "UPDATE 1" if ask.kind == "execute" else None
            self.post(on.StatementAnswered(run, ask, ("value", value)))
            return
        row = Row(0, RowType.STEP_COMPLETED, log.child, 1, log.name, log.hash, log.data(committed=True))
        stored = self.stage.stored(run)
        mine = stored.version == run.version and stored.state == "acquired"
        journal = self.stage.database.commit(run.execution, run.replay.next_seq, row) if mine else None
        if journal is None:
            self.timers.append(on.TransactionBroken(run, ask, "not seen", counts=False))
        else:
            self.post(on.StatementAnswered(run, ask, ("value", None), journal))


def play(seed: int, runs: int, patch: pytest.MonkeyPatch) -> Machine:
    """Start runs, let things happen at random, then let all of them end."""
    machine = Machine(seed)
    advance = Replay.advance

    def advanced(replay: Replay) -> Advance:
        assert machine.stage.holds, "code went on although its lease may have been over"
        return advance(replay)

    patch.setattr(Replay, "advance", advanced)
    for _ in range(runs):
        machine.stage.database.start(machine.rng.choice(Machine.WORKFLOWS))
    for _ in range(runs * 40):
        if machine.rng.random() < 0.15:
            machine.disturb()
        else:
            machine.step()
    database, machine.stage.holds = machine.stage.database, True
    for _ in range(runs * 1000):
        if all(one.end is not None for one in database.runs.values()):
            return machine
        if not machine.step():
            for stored in database.runs.values():
                database.settle(stored)
            for run in (*machine.stage.runs.leased.values(),):
                machine.post(on.PollDue(run))
                if run.version != machine.stage.stored(run).version:
                    machine.post(on.LeasesLost([run.lease]))
    left = {one.execution: (one.workflow, one.state) for one in database.runs.values() if one.end is None}
    raise AssertionError(f"seed {seed}: {left} did not end")


def replayed(stored: Stored) -> Any:
    """How a process that knows nothing but the journal ends the run."""
    task = ClaimedRun(
        stored.execution, "r", 1, stored.workflow, "1", "[]", 0, 0, [], 0, 1_700_000_000_000, "default"
    )
    replay = Replay(
        app.registry.workflow(stored.workflow, "1"), run_info(task), lambda: 0, random.Random(1), Codec()
    )
    replay.load(stored.rows)
    advance = replay.advance()
    replay.evict()
    return advance


@pytest.mark.parametrize(("seeds", "runs"), [(60, 4), pytest.param(2000, 12, marks=pytest.mark.full)])
def test_random_events_break_no_invariant(seeds: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order: the invariants hold after each event, no code goes on while leases may be over,
    each run ends, and its journal replays to the same end.
    """
    events = 0
    for seed in range(seeds):
        try:
            with monkeypatch.context() as patch:
                machine = play(seed, runs, patch)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        events += machine.count
        for stored in machine.stage.database.runs.values():
            advance = replayed(stored)
            assert (advance.end, advance.commands, advance.steps) == (stored.end, (), ()), (seed, stored)
            assert isinstance(stored.end, Complete | Fail) or stored.cancelling, (seed, stored)
    print(f"{events} events")
