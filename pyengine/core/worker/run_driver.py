"""Advancing a run, and what follows from that.

Lives here: `RunDriver`: a coroutine is advanced, its commands and outcomes are queued for a report, its
steps are started or wait, and what its transaction asks for is executed, each as early as the invariants
allow; or the coroutine is thrown away and replayed from the journal. May not: which event leads to that
(run_manager.py). Design: every change of a live run ends in `settle`, which derives what is to be done
from the run's state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.registry import Registry
from pyengine.core.definitions.retry import Randomness
from pyengine.core.protocol.commands import ContinueAsNew, End, Ending, Halt, Release, StepOutcome
from pyengine.core.protocol.journal import Row
from pyengine.core.protocol.turn import RunReport
from pyengine.core.replay import run_log
from pyengine.core.replay.advance import Advance, StepCall
from pyengine.core.replay.divergence import explain
from pyengine.core.replay.extensions import UnawaitedCalls
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from pyengine.core.worker.attempts import (
    Attempt,
    GivenUpSteps,
    halt,
    next_attempt,
    pause,
    pauses_run,
    start_outcome,
    step_outcome,
)
from pyengine.core.worker.effects import (
    CancelAttempt,
    Effect,
    Execute,
    FetchJournal,
    FindUnread,
    PostLater,
    RollBack,
    StartAttempt,
)
from pyengine.core.worker.events import ProgressDue, RetryDue, StepProgressed, WaitOver
from pyengine.core.worker.run_state import Fetching, LeasedRun, Live, Speculating, evict
from pyengine.core.worker.speculation import ENDS, EndingSteps, may_speculate
from pyengine.errors import StepInterrupted

_PROGRESS_S = 0.2
"""Progress of a run waits so long for another report of it, in seconds."""

RELEASE_AFTER_MS = 5_000
"""An attempt that is further away than this does not keep its run here, in milliseconds."""


def _must_end(call: StepCall) -> bool:
    """Whether an attempt is not made again if it is cut off."""
    return call.step.on_interrupt == "fail"


class RunDriver:
    """Advances live runs.

    Args:
        registry: the code.
        codec: values and errors.
        now_ms: the database's time, epoch milliseconds.
        may_begin: whether the code of a run may be driven: its lease is known to hold.
        randomness: source of `ctx.random`.
        unawaited: finds calls that no code awaits.

    Attributes:
        now_ms: reads the database's time.
        ending_steps: the steps after which runs have ended.
        given_up: the steps that runs gave up and that still run.
        effects: what is to be done, by the event that is being applied.
        dirty: runs with something to report, each once, in the order in which they got it.
        stopping: nothing starts any more.
        draining: but what the journal says to have begun, and must not be cut off.
    """

    def __init__(
        self,
        registry: Registry,
        codec: Codec,
        now_ms: Callable[[], int],
        may_begin: Callable[[LeasedRun], bool],
        randomness: Randomness,
        *,
        unawaited: UnawaitedCalls,
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._randomness = randomness
        self._unawaited = unawaited
        self.now_ms = now_ms
        self.may_begin = may_begin
        self.ending_steps = EndingSteps()
        self.given_up = GivenUpSteps()
        self.effects: list[Effect] = []
        self.dirty: deque[LeasedRun] = deque()
        self.stopping = self.draining = False

    def advance(self, run: LeasedRun, live: Live) -> None:
        """Advance a coroutine by what was loaded, and take over the result."""
        self.take(run, live, self.drive(run))

    def begin(self, run: LeasedRun, live: Live, rows: list[Row], next_seq: int) -> None:
        """Replay a run that was claimed, from its whole journal."""
        self.take(run, live, self._replay_whole(run, rows, next_seq))
        self.settle(run, live)

    def drive(self, run: LeasedRun) -> Advance:
        """Advance the coroutine of a run; whatever goes wrong halts the run. If its lease may be over, its
        code stands still, and is replayed once the lease is known to hold.
        """
        if not self.may_begin(run):
            if isinstance(run.phase, Live):
                run.phase.replay_when_quiet = True
            return Advance()
        try:
            return run.replay.advance()
        except Exception as error:  # boundary to user code and to the machine that drives it
            run_log.run_failed_to_replay(run.info, error)
            return Advance(end=halt(type(error).__name__, str(error)))

    def take(self, run: LeasedRun, live: Live, advance: Advance) -> None:
        """Take over what an advance gave; `settle` follows."""
        for child in advance.given_up:
            self._cancel(live, child)
        if self.given_up.bodies and not run.waits_for_steps:
            self._wait_for_steps(run)
        # more than one advance may come between two turns while a transaction is open
        live.commands += advance.commands
        if advance.progress is not None:
            live.progress = advance.progress.after(live.progress)
        if not isinstance(live.end, Halt):
            # a run that is to be halted stays so, whatever its coroutine does until it is reported
            live.end = advance.end
        if live.commands:
            live.steps_after_commands += advance.steps
            run.see_commands(advance.commands)
        elif advance.steps:
            self.start_all(run, live, advance.steps)

    def settle(self, run: LeasedRun, live: Live) -> None:
        """Do what follows from the state of a live run after every change of it."""
        if run.phase is not live:
            return
        if live.replay_when_quiet and run.report is None:
            self.fetch(run)
            return
        if live.exhausted:
            self._pause_if_idle(run, live)
        elif live.scheduled_retries:
            self._release_if_idle(run, live)
        if live.is_dirty:
            if isinstance(live.end, ENDS):
                self.ending_steps.learn(run)
            self.queue_report(run)
        if live.transaction is not None or run.replay.in_transaction:
            self._serve_transaction(run, live)
        if live.progress is not None and not (run.queued or run.progress_scheduled):
            run.progress_scheduled = True
            self.effects.append(PostLater(ProgressDue(run), _PROGRESS_S))

    def _release_if_idle(self, run: LeasedRun, live: Live) -> None:
        """Give a run back that only waits for an attempt which is far away."""
        if live.attempts or live.waits_for_record or run.in_transaction or run.report is not None:
            return
        soonest_ms = min(call.retry_at_ms or 0 for call in live.scheduled_retries.values()) - self.now_ms()
        if soonest_ms > RELEASE_AFTER_MS:
            live.end = Release(retry_in_ms=soonest_ms)

    def _pause_if_idle(self, run: LeasedRun, live: Live) -> None:
        """Set a run aside whose steps have used up their attempts, as soon as nothing else is under way."""
        if live.attempts or live.waits_for_record or run.in_transaction or run.report is not None:
            return
        live.outcomes += live.exhausted.values()
        live.end = pause(live.exhausted.values())
        live.exhausted.clear()

    def queue_report(self, run: LeasedRun) -> None:
        """Have a run reported, as soon as it has no report on its way."""
        if not run.queued and run.report is None and not run.waits_for_steps:
            run.queued = True
            self.dirty.append(run)

    def start_all(self, run: LeasedRun, live: Live, calls: Iterable[StepCall]) -> None:
        """Start attempts, each at its time; a replay that is due asks for them again."""
        if run.replay.finished or live.replay_when_quiet:
            return
        if run.waits_for_steps:
            live.steps_after_commands += tuple(calls)
            return
        for call in calls:
            if call.retry_at_ms is not None and (in_ms := call.retry_at_ms - self.now_ms()) > 0:
                live.scheduled_retries[call.child] = call
                self.effects.append(PostLater(RetryDue(run, call), in_ms / 1000))
            else:
                self.start(run, live, call)

    def start(self, run: LeasedRun, live: Live, call: StepCall) -> None:
        """Start an attempt, or refuse to, according to the definition of its step."""
        step = call.step
        if self.stopping and not (self.draining and call.begun and _must_end(call)):
            return
        if call.interrupted and step.on_interrupt == "fail":
            error = StepInterrupted(
                f"step {call.name} of run {run.info.id} was cut off in attempt {call.attempt - 1}; "
                "it must not run twice",
                step=call.name,
                hint="find out what it did, and go on from there in the workflow",
            )
            text = self._codec.encode_error(
                error, rules=run.info.rules, run=run.info.id, step=call.name, attempt=call.attempt
            )
            outcome = step_outcome(call, error=text)
            run_log.attempt_failed(run.info, outcome, self.now_ms())
            live.outcomes.append(outcome)
        elif not call.begun and (step.intent or self._may_kill(run, call)):
            live.attempts_after_record[call.child] = replace(call, begun=True)
            live.outcomes.append(start_outcome(call))
        else:
            info = run.info
            attempt = live.attempts[call.child] = Attempt(
                info.execution, info.id, call, call.begun, info.rules, info.exact
            )
            self.effects.append(StartAttempt(run, attempt))

    @staticmethod
    def _may_kill(run: LeasedRun, call: StepCall) -> bool:
        """Whether a step may be the one with which a worker was lost: recorded before it begins, it is named
        if another worker is lost with it.
        """
        return run.info.crashes > 0 and run.last_step < 0 and not call.step.records_itself

    def _cancel(self, live: Live, child: int) -> None:
        """Stop a step whose outcome is not wanted, whatever it waits for."""
        live.scheduled_retries.pop(child, None)
        live.attempts_after_record.pop(child, None)
        live.exhausted.pop(child, None)
        attempt = live.attempts.pop(child, None)
        if attempt is not None:
            self.given_up.add([attempt])
            self.effects.append(CancelAttempt(attempt))
        elif live.steps_after_commands:
            live.steps_after_commands = tuple(
                [one for one in live.steps_after_commands if one.child != child]
            )

    def cancel_all(self, attempts: dict[int, Attempt]) -> None:
        """Stop attempts, whatever becomes of their run."""
        if attempts:
            self.effects += [CancelAttempt(attempt) for attempt in attempts.values()]
            attempts.clear()

    def outcome_came(self, run: LeasedRun, live: Live, call: StepCall, outcome: StepOutcome) -> None:
        """Have an outcome reported, and go on with it before that, if the run may and is likely to end. If
        the step is to be tried again, the next attempt waits until the outcome is recorded.
        """
        again = outcome.retry_in_ms is not None
        if again and pauses_run(call, outcome):
            live.exhausted[call.child] = outcome
            self.settle(run, live)
            return
        live.outcomes.append(outcome)
        run.last_step = outcome.child
        if again:
            live.attempts_after_record[call.child] = next_attempt(call)
        elif self.ending_steps.likely(run) and may_speculate(run, live):
            self._speculate(run, live)
        self.queue_report(run)

    def _speculate(self, run: LeasedRun, live: Live) -> None:
        """Go on with outcomes that are not recorded yet."""
        applied_seq = run.replay.next_seq
        run.replay.predict(live.outcomes)
        advance = self.drive(run)
        if isinstance(advance.end, ENDS) and not advance.commands and not advance.given_up:
            if advance.progress is not None:
                live.progress = advance.progress.after(live.progress)
            run.phase = Speculating(live, applied_seq, end=advance.end)
        else:
            run.phase = Speculating(live, applied_seq, deferred=advance)

    def _serve_transaction(self, run: LeasedRun, live: Live) -> None:
        """Have executed what the code of a transaction waits for; begin and commit wait until all that the
        code did before is recorded.
        """
        asks = run.replay.asks
        log = None if asks is None else asks.front
        if live.transaction is not None and (log is not live.transaction or log.ask is None):
            self.roll_back(run)
        if log is None or log.ask is None or log.ask is live.asked or not log.live or self.stopping:
            return
        if run.waits_for_steps and log.ask.kind == "begin":
            return
        sent = run.report
        if isinstance(live.end or (sent and sent.end), Halt | Release):
            # it leaves without an answer: what came before this statement is rolled back, or did not begin
            return
        if log.ask.kind in ("begin", "commit") and (live.commands or (sent and sent.commands)):
            return
        live.transaction, live.asked = log, log.ask
        self.effects.append(Execute(run, log, log.ask))

    def roll_back(self, run: LeasedRun) -> None:
        """End the transaction of a run, if any, without a commit."""
        live = run.phase
        if isinstance(live, Live) and live.transaction is not None:
            live.transaction = live.asked = None
            self.effects.append(RollBack(run))

    def stop(self, run: LeasedRun, *, drains: bool) -> None:
        """Begin nothing more, and cancel what has begun.

        Args:
            run: the run.
            drains: leave alone the steps that must not be cut off.
        """
        attempts = run.phase.attempts
        drained = {
            child: attempt
            for child, attempt in attempts.items()
            if drains and attempt.started_s and _must_end(attempt.call)
        }
        for child in drained:
            del attempts[child]
        self.cancel_all(attempts)
        attempts.update(drained)
        self.roll_back(run)
        live = run.phase
        if isinstance(live, Live):
            live.scheduled_retries.clear()
            live.exhausted.clear()
            waiting = {
                child for child, call in live.attempts_after_record.items() if call.begun and _must_end(call)
            }
            unsent = {one.child for one in live.outcomes if one.begun} & waiting
            live.outcomes = [one for one in live.outcomes if one.child not in unsent]
            for child in set(live.attempts_after_record) - (waiting - unsent if drains else set()):
                del live.attempts_after_record[child]

    # -- steps that were given up

    def _wait_for_steps(self, run: LeasedRun) -> None:
        """Let a run that cleans up wait for the steps that it gave up."""
        in_s = self.given_up.wait_s(run.execution, run.replay.cleans_up_until_ms, self.now_ms())
        if in_s is not None:
            run.waits_for_steps = True
            self.effects.append(PostLater(WaitOver(run, self.given_up.bodies[run.execution]), in_s))

    def body_ended(self, leased: Mapping[int, LeasedRun], attempt: Attempt) -> None:
        """Go on with a run if no step of it runs any more that it gave up."""
        run = leased.get(attempt.execution)
        if self.given_up.remove(attempt) and run is not None and run.waits_for_steps:
            self._go_on(run)

    def wait_over(self, event: WaitOver) -> None:
        """Go on beside the steps that do not end."""
        run = event.run
        if run.waits_for_steps and self.given_up.bodies.get(run.execution) is event.bodies and not run.gone:
            run_log.steps_go_on(run.info, self.given_up.forget(run.execution))
            self._go_on(run)

    def _go_on(self, run: LeasedRun) -> None:
        """Go on with a run whose steps it waits for no longer."""
        run.waits_for_steps, live = False, run.phase
        if isinstance(live, Live):
            if not live.commands and (run.report is None or not run.report.commands):
                calls, live.steps_after_commands = live.steps_after_commands, ()
                self.start_all(run, live, calls)
            self.settle(run, live)
        elif live.is_dirty:
            self.queue_report(run)

    # -- progress

    def step_progressed(self, run: LeasedRun, event: StepProgressed) -> None:
        """Take over what an attempt under way has set, as of the end of the journal."""
        live = run.phase
        if not isinstance(live, Live):
            return
        attempt = live.attempts.get(event.child)
        if attempt is not None and attempt.call.attempt == event.attempt:
            live.progress = event.progress.at(run.replay.next_seq).after(live.progress)
            self.settle(run, live)

    def progress_due(self, event: ProgressDue) -> None:
        """Report what a run has set, if no report has taken it meanwhile: so a run sets values as often as it
        likes, and writes a few times a second at most.
        """
        run, live = event.run, event.run.phase
        run.progress_scheduled = False
        if isinstance(live, Live) and live.progress is not None:
            live.poll = True
            self.queue_report(run)

    # -- replays

    def fetch(self, run: LeasedRun, *, sent: RunReport | None = None, rejected: bool = False) -> None:
        """Throw a coroutine away, and replay the run from its journal.

        Args:
            run: the run.
            sent: a report that the database did not take, though it may have taken it before.
            rejected: the database found the run stale.
        """
        phase = run.phase
        held = phase.exhausted.values() if isinstance(phase, Live) else ()
        outcomes = (*(() if sent is None else sent.outcomes), *phase.outcomes, *held)
        poll = isinstance(phase, Live | Speculating) and phase.poll
        self.roll_back(run)
        run.phase = Fetching(phase.attempts, outcomes, rejected=rejected, poll=poll)
        evict(run.replay)
        self.effects.append(FetchJournal(run))

    def replay(self, run: LeasedRun, before: Fetching, rows: list[Row]) -> None:
        """Replay a run from its whole journal."""
        run.replay = self.new_replay(run.info)
        live = run.phase = Live()
        live.poll = before.poll
        advance = self._replay_whole(run, rows)
        self.take(run, live, replace(advance, steps=self._adopt(live, advance.steps, before)))
        self.settle(run, live)

    def _replay_whole(self, run: LeasedRun, rows: list[Row], next_seq: int = 0) -> Advance:
        """Advance a new coroutine by a whole journal; if they differ, find out whether a second one would."""
        self.load(run, rows, next_seq)
        advance = self.drive(run)
        if not isinstance(advance.end, Halt):
            return advance

        def replay_again() -> End | None:
            other = self.new_replay(run.info)
            other.load(rows, next_seq)
            try:
                return other.advance().end
            except Exception as error:  # boundary to user code: it differs from the first replay
                return halt(type(error).__name__, str(error))
            finally:
                evict(other)

        return replace(advance, end=explain(advance.end, run.replay.workflow, replay_again))

    def _adopt(self, live: Live, calls: Iterable[StepCall], before: Fetching) -> tuple[StepCall, ...]:
        """Keep the attempts under way and the outcomes that a replay asks for again; return the other calls
        that it asks for.
        """
        new: list[StepCall] = []
        for call in calls:
            attempt = before.attempts.get(call.child)
            outcome = before.unrecorded.get((call.child, call.attempt))
            if attempt is not None and (attempt.call.hash, attempt.call.attempt) == (call.hash, call.attempt):
                attempt.begun = call.begun
                live.attempts[call.child] = before.attempts.pop(call.child)
            elif outcome is not None and outcome.hash == call.hash and pauses_run(call, outcome):
                live.exhausted[call.child] = outcome
            elif outcome is not None and outcome.hash == call.hash:
                live.outcomes.append(outcome)
                if outcome.retry_in_ms is not None:
                    live.attempts_after_record[call.child] = next_attempt(call)
            else:
                new.append(call)
        self.given_up.add(before.attempts.values())
        self.cancel_all(before.attempts)
        return tuple(new)

    def ended(self, run: LeasedRun, end: Ending, now_ms: int, state: str) -> None:
        """Report the end of a run, as the journal has it now, and what it did not receive."""
        run_log.run_ended(run.info, end, now_ms, state)
        if state != "done" or isinstance(end, ContinueAsNew):
            return
        received = self._registry.signals(run.replay.workflow)
        if received.types or received.any:
            given_up = [name for _, name in run.replay.lost_signals()]
            self.effects.append(FindUnread(run.execution, run.info, given_up))

    def new_replay(self, info: RunInfo) -> Replay:
        """Return a coroutine that has no journal yet."""
        workflow = self._registry.workflow(info.workflow, info.workflow_version)
        return Replay(workflow, info, self.now_ms, self._randomness, self._codec, unawaited=self._unawaited)

    @staticmethod
    def load(run: LeasedRun, rows: list[Row], next_seq: int = 0) -> None:
        """Load rows, by which the next advance goes on."""
        run.replay.load(rows, next_seq)
        run.see_rows(rows)
