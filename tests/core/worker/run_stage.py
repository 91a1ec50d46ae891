"""What tests of the worker's logic share: small workflows, a manager with a database in memory, runs in each
phase, and each event as the parts of a worker post it. No law stands here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from math import inf
from typing import Any

from pyengine import App, Retry, ctx
from pyengine.core.protocol.commands import Complete, Halt
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.protocol.turn import Journal, RunReport
from pyengine.core.replay.extensions import NO_SEARCH
from pyengine.core.values.codec import Codec
from pyengine.core.worker import events as on
from pyengine.core.worker.attempts import Attempt, step_outcome
from pyengine.core.worker.capacity import WarmRuns
from pyengine.core.worker.effects import Effect
from pyengine.core.worker.run_manager import RunManager
from pyengine.core.worker.run_state import LeasedRun, Live, Speculating
from pyengine.errors import EngineError
from tests.core.worker.memory_database import MemoryDatabase, Stored
from tests.core.worker.run_invariants import check

NOW_MS = 1_700_000_000_000

app = App("postgresql://127.0.0.1:1/none")


@app.step
async def one(n: int) -> int:
    """A step; no body runs here."""
    return n


@app.step(retry=Retry(max_attempts=3, initial="1s", jitter=0))
async def again(n: int) -> int:
    """A step that is tried again."""
    return n


@app.step(on_interrupt="fail")
async def once(n: int) -> int:
    """A step that must not run twice."""
    return n


@app.workflow
async def steps() -> int:
    """Two steps."""
    return await one(1) + await one(2)


@app.workflow
async def single() -> int:
    """One step, then the end; what speculation is for."""
    return await one(1)


@app.workflow
async def retried() -> int:
    """A step that may fail."""
    return await again(1)


@app.workflow
async def careful() -> int:
    """A step that must not run twice."""
    return await once(1)


@app.workflow
async def both() -> list[int]:
    """Two steps at once."""
    return list(await asyncio.gather(one(1), one(2)))


@app.workflow
async def captured() -> int:
    """A command and a step of one advance."""
    ctx.random()
    return await one(1)


@app.workflow
async def asleep() -> None:
    """A timer."""
    await ctx.sleep("1h")


@app.workflow
async def paying() -> str:
    """A command, a transaction with one statement, and a step."""
    ctx.random()
    async with ctx.transaction("pay") as tx:
        await tx.execute("update account")
    return str(await one(1))


@app.workflow
async def watched() -> int:
    """Progress and a step of one advance."""
    ctx.progress(1, 2)
    return await one(1)


@app.workflow
async def beside() -> None:
    """Two steps beside a transaction."""

    async def pay() -> None:
        async with ctx.transaction("pay") as tx:
            await tx.execute("update account")

    await asyncio.gather(one(1), one(2), pay())


class Stage:
    """A manager, what it asked for, and a database that answers.

    Attributes:
        holds: whether leases are known to hold.
        effects: of the last event.
        bodies: of the step that a run gave up.
        wait_over: the event that ends its wait for them.
    """

    def __init__(self, *, max_warm: int = 10, max_warm_bytes: int = 1_000_000) -> None:
        self.database = MemoryDatabase(NOW_MS)
        self.now_ms = NOW_MS
        self.holds = True
        asked = (lambda: self.now_ms), (lambda run: self.holds), random.Random(1)
        warm = WarmRuns(max_warm, max_warm_bytes)
        self.runs = RunManager(app.registry, Codec(), *asked, warm=warm, unawaited=NO_SEARCH)
        self.effects: list[Effect] = []
        self.seen: list[LeasedRun] = []
        self.bodies: list[Attempt] = []
        self.wait_over: on.Event | None = None

    def post(self, event: on.Event) -> list[Effect]:
        """Apply an event, and check every run that there ever was."""
        self.effects = self.runs.apply(event)
        known = (*self.runs.leased.values(), *self.runs.warm.values())
        self.seen += [run for run in known if run not in self.seen]
        assert {run.info.id: broken for run in self.seen if (broken := check(run))} == {}
        return self.effects

    def claim(self, workflow: str, **how: Any) -> LeasedRun:
        """Start and claim a run."""
        stored = self.database.start(workflow)
        self.post(on.RunClaimed(self.database.claim(stored, warm=False, **how), inf))
        return self.runs.leased[stored.execution]

    def stored(self, run: LeasedRun) -> Stored:
        """What the database has of a run."""
        return self.database.runs[run.execution]

    def send(self, run: LeasedRun) -> RunReport:
        """Take the report of a run into a turn."""
        assert run.queued and run.report is None
        self.runs.dirty.remove(run)
        run.queued = False
        report = run.phase.take_report(run)
        assert run.report is report
        return report

    def turn(self, run: LeasedRun) -> list[Effect]:
        """Take the report of a run, record it and answer."""
        return self.post(self.database.report(self.send(run)))

    def attempt(self, run: LeasedRun, child: int) -> Attempt:
        """The attempt of a step that is under way."""
        return run.phase.attempts[child]

    def end(self, run: LeasedRun, child: int, **found: Any) -> list[Effect]:
        """End an attempt."""
        attempt = self.attempt(run, child)
        return self.post(on.AttemptEnded(attempt, step_outcome(attempt.call, **(found or {"value": "1"}))))

    def fetched(self, run: LeasedRun) -> list[Effect]:
        """Answer `FetchJournal`."""
        journal = self.database.journal(run.execution, run.version)
        assert journal is not None
        return self.post(on.JournalFetched(run, journal))

    def stale(self, run: LeasedRun) -> list[Effect]:
        """Answer the report of a run with `stale`."""
        return self.verdict(run, "stale")

    def verdict(self, run: LeasedRun, verdict: str, state: str = "acquired", **more: Any) -> list[Effect]:
        """Answer the report of a run."""
        rows: dict[str, list[Row]] = {"before": [], "after": [], **more}
        report = run.report or RunReport(run.execution, run.info.id, 0, 0)
        return self.post(
            on.ReportAnswered(
                report, verdict, state, run.replay.next_seq, rows["before"], rows["after"], self.now_ms
            )
        )


def kinds(effects: Iterable[Effect]) -> list[str]:
    """The names of effects."""
    return [type(effect).__name__ for effect in effects]


# -- phases, with their data


def live(stage: Stage) -> LeasedRun:
    """An attempt under way."""
    return stage.claim("steps")


def live_watched(stage: Stage) -> LeasedRun:
    """An attempt under way, and progress that waits for a report."""
    return stage.claim("watched")


def live_reporting(stage: Stage) -> LeasedRun:
    """A report on its way, and no attempt."""
    run = stage.claim("steps")
    stage.end(run, 0)
    stage.send(run)
    return run


def live_busy(stage: Stage) -> LeasedRun:
    """A report on its way, and an attempt."""
    run = stage.claim("both")
    stage.end(run, 0)
    stage.send(run)
    return run


def live_dirty(stage: Stage) -> LeasedRun:
    """An outcome to report."""
    run = stage.claim("steps")
    stage.end(run, 0)
    return run


def live_waiting(stage: Stage) -> LeasedRun:
    """A step that waits for a command on its way."""
    run = stage.claim("captured")
    stage.send(run)
    return run


def live_scheduled(stage: Stage) -> LeasedRun:
    """An attempt that waits for its time."""
    run = stage.claim("retried")
    stage.end(run, 0, error="{}", retry_in_ms=1000)
    stage.turn(run)
    return run


def live_transacting(stage: Stage) -> LeasedRun:
    """A transaction that begins."""
    run = stage.claim("paying")
    stage.turn(run)
    return run


def live_ending(stage: Stage) -> LeasedRun:
    """Its end on the way."""
    run = stage.claim("single")
    stage.end(run, 0)
    stage.turn(run)
    stage.send(run)
    return run


def live_suspending(stage: Stage) -> LeasedRun:
    """A timer and the suspend on the way."""
    run = stage.claim("asleep")
    stage.send(run)
    return run


def live_releasing(stage: Stage) -> LeasedRun:
    """Its release on the way, and the time come of the attempt for which it was too far away."""
    run = stage.claim("retried")
    stage.end(run, 0, error="{}", retry_in_ms=60_000)
    stage.turn(run)
    stage.send(run)
    assert isinstance(run.phase, Live)
    stage.post(on.RetryDue(run, run.phase.scheduled_retries[0]))
    return run


def fetching(stage: Stage) -> LeasedRun:
    """Without a journal."""
    return stage.claim("steps", whole=False)


def fetching_rejected(stage: Stage) -> LeasedRun:
    """After `stale`, with an outcome that may not be recorded."""
    run = live_reporting(stage)
    stage.stale(run)
    return run


def fetching_busy(stage: Stage) -> LeasedRun:
    """After `stale`, with an attempt under way."""
    run = live_busy(stage)
    stage.stale(run)
    return run


def speculating(stage: Stage) -> LeasedRun:
    """It ended by an outcome that is not recorded."""
    teacher = live_ending(stage)
    assert teacher.report is not None
    stage.post(stage.database.report(teacher.report))
    run = stage.claim("single")
    stage.end(run, 0)
    assert isinstance(run.phase, Speculating) and isinstance(run.phase.end, Complete)
    return run


def speculating_reporting(stage: Stage) -> LeasedRun:
    """The same, on its way."""
    run = speculating(stage)
    stage.send(run)
    return run


def deferring(stage: Stage) -> LeasedRun:
    """It went on to another step by an outcome that is on its way."""
    run = stage.claim("steps")
    # as if runs of this workflow had ended after their first step
    run.last_step = 0
    stage.runs.ending_steps.learn(run)
    stage.end(run, 0)
    assert isinstance(run.phase, Speculating) and run.phase.deferred is not None
    stage.send(run)
    return run


def diverged(stage: Stage) -> LeasedRun:
    """Found stale twice at the same place."""
    run = fetching_rejected(stage)
    stage.fetched(run)
    stage.send(run)
    stage.stale(run)
    stage.fetched(run)
    return run


def diverged_reporting(stage: Stage) -> LeasedRun:
    """Its release on the way."""
    run = diverged(stage)
    stage.send(run)
    return run


def warm(stage: Stage) -> LeasedRun:
    """Suspended."""
    run = stage.claim("asleep")
    stage.turn(run)
    return run


def gone(stage: Stage) -> LeasedRun:
    """Ended."""
    run = stage.claim("single")
    stage.end(run, 0)
    stage.turn(run)
    stage.turn(run)
    return run


# -- events


def claimed_again(stage: Stage, run: LeasedRun) -> list[Effect]:
    """Its lease was lost and it is claimed again."""
    return stage.post(on.RunClaimed(stage.database.claim(stage.stored(run), warm=False), inf))


def claimed_warm(stage: Stage, run: LeasedRun) -> list[Effect]:
    """It is claimed with what its warm coroutine lacks."""
    stage.database.settle(stage.stored(run))
    return stage.post(on.RunClaimed(stage.database.claim(stage.stored(run), warm=True), inf))


def claimed_late(stage: Stage, run: LeasedRun) -> list[Effect]:
    """A hand-off of a lease that is over."""
    stored = stage.stored(run)
    version, state = stored.version, stored.state
    task = stage.database.claim(stored, warm=False)
    stored.version, stored.state = version, state
    task.version = version
    return stage.post(on.RunClaimed(task, inf))


def journal_comes(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`JournalFetched`."""
    stored = stage.stored(run)
    return stage.post(on.JournalFetched(run, Journal(stored.next, list(stored.rows))))


def journal_lost(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`JournalFetched` without a journal."""
    return stage.post(on.JournalFetched(run, None))


def attempt_ends(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptEnded` of the last attempt."""
    return stage.end(run, max(run.phase.attempts))


def attempt_fails(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptEnded`, to be tried again."""
    return stage.end(run, max(run.phase.attempts), error="{}", retry_in_ms=1000)


def attempt_is_foreign(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptEnded` of an attempt that the run does not want any more."""
    other = stage.attempt(stage.claim("steps"), 0)
    attempt = Attempt(run.execution, run.info.id, other.call)
    return stage.post(on.AttemptEnded(attempt, step_outcome(attempt.call, value="1")))


def attempt_runs_long(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptRunsLong`."""
    return stage.post(on.AttemptRunsLong(stage.attempt(run, max(run.phase.attempts))))


def attempt_deferred(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptDeferred`."""
    return stage.post(on.AttemptDeferred(stage.attempt(run, max(run.phase.attempts))))


def attempt_stale(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`AttemptStale`."""
    attempt = stage.attempt(run, max(run.phase.attempts))
    return stage.post(on.AttemptStale(attempt, run.replay.next_seq))


def journal_written(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`JournalWritten`, as if the step were one in SQL."""
    child = max(run.phase.attempts)
    call, stored = stage.attempt(run, child).call, stage.stored(run)
    seen = run.replay.next_seq
    stored.append(RowType.STEP_COMPLETED, child, attempt=1, name=call.name, hash=call.hash, data="1")
    journal = Journal(stored.next, stored.since(seen))
    return stage.post(on.JournalWritten(stage.attempt(run, child), journal))


def retry_due(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`RetryDue`."""
    stage.now_ms += 2000
    assert isinstance(run.phase, Live)
    return stage.post(on.RetryDue(run, run.phase.scheduled_retries[0]))


def recorded(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`, by the database."""
    assert run.report is not None
    return stage.post(stage.database.report(run.report))


def found_stale(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`: stale."""
    return stage.stale(run)


def found_lost(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`: lost."""
    return stage.verdict(run, "lost")


def came_between(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`: recorded after a row that the coroutine had not seen."""
    seen = run.replay.next_seq
    rows = [Row(seen, RowType.CANCEL_REQUESTED, data='{"reason": null}')]
    return stage.verdict(run, "ok", before=rows)


def halted_by_others(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`: recorded, and the run is paused or halted by somebody."""
    return stage.verdict(run, "ok", "halted")


def answered_again(stage: Stage, run: LeasedRun) -> list[Effect]:
    """A verdict on nothing."""
    return stage.verdict(run, "ok")


def lost_before(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportAnswered`: an earlier lease of the run, which it has again, was lost."""
    report = RunReport(run.execution, run.info.id, 0, 0)
    return stage.post(on.ReportAnswered(report, "lost", "", 0, [], [], NOW_MS))


def rejected(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportRejected`: the sender halts the run instead."""
    assert run.report is not None
    return stage.post(on.ReportRejected(run.report, EngineError("no")))


def halt_rejected(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportRejected` of the halt."""
    assert run.report is not None
    run.report.end = Halt(problem="{}")
    return stage.post(on.ReportRejected(run.report, EngineError("no")))


def busy(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportBusy`."""
    report = run.report or RunReport(run.execution, run.info.id, 0, 0)
    return stage.post(on.ReportBusy(report))


def resent(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`ReportBusy`, then `ResendDue`: the report stands in the queue again."""
    busy(stage, run)
    effects = stage.post(on.ResendDue(run))
    assert run.queued and run.report is not None
    return effects


def poll_due(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`PollDue`."""
    return stage.post(on.PollDue(run))


def progress_due(stage: Stage, run: LeasedRun) -> list[Effect]:
    """What it has set has waited long enough."""
    return stage.post(on.ProgressDue(run))


def step_progressed(stage: Stage, run: LeasedRun) -> list[Effect]:
    """Its first step sets progress."""
    return stage.post(on.StepProgressed(run.execution, 0, 1, ProgressReport(seq=0, done=5)))


def executed(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`StatementAnswered`."""
    assert isinstance(run.phase, Live) and run.phase.asked is not None
    return stage.post(on.StatementAnswered(run, run.phase.asked, ("value", None)))


def broken(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`TransactionBroken`."""
    assert isinstance(run.phase, Live) and run.phase.asked is not None
    return stage.post(on.TransactionBroken(run, run.phase.asked, "deadlock", counts=True))


def broken_often(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`TransactionBroken`, once too often."""
    assert isinstance(run.phase, Live) and run.phase.asked is not None
    run.transaction_tries = 10
    return stage.post(on.TransactionBroken(run, run.phase.asked, "deadlock", counts=True))


def transaction_deferred(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`TransactionDeferred`."""
    assert isinstance(run.phase, Live) and run.phase.asked is not None
    return stage.post(on.TransactionDeferred(run, run.phase.asked))


def transaction_failed(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`TransactionFailed`."""
    assert isinstance(run.phase, Live) and run.phase.asked is not None
    return stage.post(on.TransactionFailed(run, run.phase.asked, "a fault"))


def leases_lost(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`LeasesLost`."""
    return stage.post(on.LeasesLost([run.lease]))


def another_lease_lost(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`LeasesLost` of an earlier version."""
    return stage.post(on.LeasesLost([run.lease._replace(version=0)]))


def stopping(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`Stopping`."""
    return stage.post(on.Stopping())


def draining(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`Draining`."""
    return stage.post(on.Draining(set()))


def closed(stage: Stage, run: LeasedRun) -> list[Effect]:
    """`Closed`."""
    return stage.post(on.Closed())
