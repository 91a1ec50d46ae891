"""The replay machine: journal rows in, commands out.

Lives here: `Replay`, which drives a coroutine by its journal. May not: asyncpg, threads, real time, real
randomness (both are passed in), sending anything. The theory: one counter for each run gives every call its
child number in call order (call_sequence.py). The coroutine is advanced by completion rows only, one at a
time, in journal order, each until nothing is ready any more; a cancellation request is such a row too. So a
live run and any later replay of its journal make the same calls with the same numbers, whatever the branches
inside. Results are always read from their recorded text, so live code sees what a replay will see. Where code
and journal disagree the run halts and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from pyengine.core.definitions.current_run import RunInfo, scope
from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.retry import Randomness
from pyengine.core.loop.awaitables import Call
from pyengine.core.loop.futures import DeterministicTask, TimerToken
from pyengine.core.loop.generators import Generators, close_left_open
from pyengine.core.loop.restrictions import asyncio_hint
from pyengine.core.protocol.commands import (
    Cancelled,
    Command,
    Complete,
    ContinueAsNew,
    End,
    Fail,
    Halt,
    Refuse,
    StartTimer,
    StepOutcome,
    Suspend,
)
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay import dead_ends, run_log
from pyengine.core.replay.advance import Advance, StepCall
from pyengine.core.replay.asks import Asks
from pyengine.core.replay.begun_defaults import begun_arguments
from pyengine.core.replay.call_matcher import CallMatcher
from pyengine.core.replay.cancellation import REPEATS_MAX, UNBOUNDED_MS, Cancellation, until_ms
from pyengine.core.replay.completions import complete, virtual_s
from pyengine.core.replay.continue_request import ContinueAsNewRequest
from pyengine.core.replay.divergence import refusal
from pyengine.core.replay.extensions import NO_SEARCH, UnawaitedCalls
from pyengine.core.replay.history import History, add_outcomes
from pyengine.core.rules import GENERATORS_RULES
from pyengine.core.values.codec import Codec
from pyengine.core.values.error_access import asked, is_a
from pyengine.core.values.error_describing import only_error
from pyengine.errors import DecodeError, EngineError, ForbiddenInWorkflow

# constants, since looking up a member of an enum is slow and each row of a replay needs these
_CANCEL_REQUESTED = RowType.CANCEL_REQUESTED
_SIGNAL_RECEIVED = RowType.SIGNAL_RECEIVED
_TIMER_FIRED = RowType.TIMER_FIRED

_LAST = (Complete, Fail, Cancelled, ContinueAsNew, Halt, Refuse)
_WITHOUT_STEPS = (Cancelled, ContinueAsNew)


class Replay:
    """Drives the coroutine of one run.

    Args:
        workflow: the code.
        run: which run it is.
        now_ms: reads the clock, epoch milliseconds; asked for new values of `ctx.now` only.
        randomness: source of new values of `ctx.random` and `ctx.uuid4`.
        codec: reads and writes values; bounds their size.
        unawaited: finds calls that no code awaits.

    Attributes:
        finished: the workflow returned, raised, left or was halted; it cannot be advanced any more.
        evicted: its coroutine was thrown away.

    The worker loads rows, calls `advance` and reports what that returns in a turn. If the turn accepts it the
    worker calls `accept`; if the verdict is stale or the lease is lost, `evict`.
    """

    def __init__(
        self,
        workflow: WorkflowDef,
        run: RunInfo,
        now_ms: Callable[[], int],
        randomness: Randomness,
        codec: Codec,
        *,
        unawaited: UnawaitedCalls = NO_SEARCH,
    ) -> None:
        self.workflow = workflow
        self._unawaited = unawaited
        self.run = run
        self._codec = codec
        self._randomness = randomness
        self._history = History()
        self._matcher = CallMatcher(
            workflow, run, self._history, now_ms=now_ms, randomness=randomness, codec=codec
        )
        self._sequence = self._matcher.sequence
        self._loop = self._matcher.loop
        self._main: DeterministicTask | None = None
        self._end: End | None = None
        self._applied = 0
        self._handed_out: set[int] = set()
        self._unread: list[Call] = []
        self._value: str | None = None
        self.evicted = self.finished = self._undoes = False

    @cached_property
    def _cancellation(self) -> Cancellation:
        return Cancellation(self._matcher)

    @property
    def asks(self) -> Asks | None:
        """The requests of its code to its worker; None if there was none."""
        return self._matcher.asks

    @property
    def in_transaction(self) -> bool:
        """Whether its code is in a transaction, or waits to begin one: no other row advances it meanwhile."""
        return self._matcher.asks is not None and self._matcher.asks.live

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancellation is requested, so that unrecorded commands have no effect."""
        return self._sequence.cancellation.requested

    @property
    def cleans_up_until_ms(self) -> float | None:
        """The end of its grace, epoch milliseconds, if its code undoes or ends what it began; else None."""
        if self.cancel_requested:
            return until_ms(self._history.cancel_data)
        again = isinstance(self._end, ContinueAsNew) and self._end.error is not None
        return UNBOUNDED_MS if self._undoes or again else None

    @property
    def next_seq(self) -> int:
        """The logical number after the last row that was loaded."""
        return self._history.next_seq

    @property
    def open_steps(self) -> Mapping[int, object]:
        """Numbers of the steps that its code called and that have no result."""
        return self._matcher.open_steps

    @property
    def size(self) -> int:
        """The characters of its input and of its journal."""
        return len(self.run.param) + self._history.size

    def load(self, rows: Iterable[Row], next_seq: int = 0) -> None:
        """Append journal rows: those of a claim, up to next_seq, or the tail that a turn returned."""
        self._history.add(rows, next_seq)

    def predict(self, outcomes: Sequence[StepOutcome]) -> None:
        """Load the rows that these outcomes become, provided that no other row comes before them."""
        add_outcomes(self._history, outcomes)

    def accept(
        self,
        *,
        tail: Sequence[Row],
        commands: Sequence[Command],
        outcomes: Sequence[StepOutcome],
        next_seq: int,
        now_ms: int,
    ) -> None:
        """Load what a turn recorded of a report.

        Args:
            tail: rows that others appended before it.
            commands: its commands.
            outcomes: its outcomes that were recorded, in their order.
            next_seq: the logical number after the rows of the report.
            now_ms: the turn's own time, at which its timers were started.
        """
        if tail:
            self._history.add(tail)
        add_outcomes(self._history, outcomes)
        self._history.next_seq = next_seq
        for command in commands:
            if isinstance(command, StartTimer):
                self._sequence.fire_at_ms[command.child] = now_ms + command.duration_ms

    def advance(self) -> Advance:
        """Advance the coroutine by every row that was loaded, and return what is new since the last advance.

        Raises:
            EngineError: it was evicted.
            KeyboardInterrupt: raised inside workflow code; evict this object.
        """
        if self.evicted and not self.finished:
            raise EngineError(f"run {self.run.id}: its coroutine was evicted and cannot be advanced")
        if not self.finished:
            self._end = end = self._after_children()
            if end is not None and isinstance(end, _LAST):
                self.finished = True
                self.evict()
        elif isinstance(self._end, ContinueAsNew):
            self._end = self._next_generation(self._end)
        return self._collect()

    def evict(self) -> None:
        """Drop the coroutine: its `finally` blocks run, and every durable call in them is dead.

        Raises:
            KeyboardInterrupt, SystemExit: raised by workflow code meanwhile.
        """
        if not self.evicted:
            self.evicted = True
            self._drop_code()

    def _drop_code(self) -> None:
        self._sequence.die()
        try:
            # the loop may close a coroutine outside of its task: there, too, calls must be dead
            self._loop.evict() if self._loop.has_only_main_task else self._context().run(self._loop.evict)
        finally:
            run_log.errors_unhandled(self.run, self._loop.unhandled)
            self._sequence.calls.clear()

    def lost_signals(self) -> list[tuple[int, str]]:
        """Return number and name of receives whose signals came and were not read by its code."""
        rows = self._history.completions[self._applied :]
        late = [(row.child or 0, row.name or "") for row in rows if row.type == _SIGNAL_RECEIVED]
        return [*self._matcher.inboxes.unread(), *late]

    # -- driving

    def _after_children(self) -> End | None:
        """Drive the code; an end of the run is deferred until its child runs have ended."""
        children = self._matcher.children
        if children is None or children.deferred is None:
            end, children = self._drive(), self._matcher.children
            if end is None or children is None or not children.defer(end):
                return end
            self._matcher.give_steps_up()
            self._drop_code()
        end = children.end()
        return self._next_generation(end) if isinstance(end, ContinueAsNew) else end

    def _drive(self) -> End | None:
        self._sequence.update_restricted()
        try:
            with self._loop.installed:
                self._apply_rows()
        except (ForbiddenInWorkflow, SystemExit) as error:
            # a workflow has no process to leave
            return self._halted() or self._failed(error)
        waits = self._matcher.asks is not None and self.in_transaction
        if self._sequence.dead and self._sequence.swallows_at is not None:
            return Cancelled()
        if not waits and self._sequence.misses_calls:
            self._sequence.halt_at_missing_call(self._main)
        if self._sequence.problem is not None:
            return self._halted()
        if (main := self._main) is None:
            return self._end
        if main.done():
            end = self._result(main)
            if isinstance(end, Complete) and (self._unread or self._sequence.calls):
                several = self._sequence.unawaited_waits
                self._unawaited.warn(self.run, self._sequence.calls, self._unread, several, ended=True)
            if isinstance(end, Complete) and (tasks := self._loop.other_tasks):
                self._unawaited.warn_of_tasks(self.run, tasks)
            return end
        return self._stuck_in_transaction() if waits else self._suspend()

    def _apply_rows(self) -> None:
        """Advance by one completion row at a time, each until nothing is ready."""
        sequence, completions, matcher = self._sequence, self._history.completions, self._matcher
        main = self._main or self._start()
        if main is None:
            return
        if self._loop.ready or sequence.cancellation.applied or (matcher.asks and matcher.asks.front):
            self._run_until_idle(main)
        while self._applied < len(completions):
            main = self._main or main
            if main.done() or sequence.dead or (matcher.asks is not None and self.in_transaction):
                return
            row = completions[self._applied]
            self._applied += 1
            sequence.at_seq = row.seq
            if row.type == _CANCEL_REQUESTED:
                self._cancellation.apply(row, main)
            else:
                self._apply(row)
            self._run_until_idle(main)

    def _run_until_idle(self, main: DeterministicTask) -> None:
        self._loop.run_until_idle()
        if self._matcher.asks is not None:
            self._run_ready()
        if self._sequence.cancellation.applied:
            self._cancellation.repeat(main, self._run_ready)
        stopped = self._sequence.dead and self._sequence.swallows_at
        if stopped:
            run_log.cancellation_swallowed(self.run, stopped)
        generators = self._loop.generators
        if generators is not None and main.done() and self._must_close(generators):
            closing = close_left_open(generators, self._loop.call_exception_handler, main)
            self._run_as(closing, "generators")
        elif self._matcher.compensations is not None and (main.done() or stopped):
            self._compensate(main, is_stopped=bool(stopped))

    def _must_close(self, generators: Generators) -> bool:
        """Whether code that has ended left generators open, and what closes them belongs to the run."""
        belongs = self.run.rules >= GENERATORS_RULES and not self._sequence.dead
        return belongs and generators.left_open and not generators.gave_up

    def _run_as(self, coroutine: Coroutine[Any, Any, Any], what: str) -> None:
        """Run what follows the code as its main task, which ends as the code did."""
        name = f"{self.run.workflow}, {what}"
        self._main = self._loop.create_task(coroutine, name=name, context=self._context())
        self._run_until_idle(self._main)

    def _run_ready(self) -> None:
        """Run everything that is ready, and answer from the journal what is recorded there."""
        self._loop.run_until_idle()
        while self._matcher.asks is not None and self._matcher.asks.answer_recorded():
            self._loop.run_until_idle()

    def _compensate(self, main: DeterministicTask, *, is_stopped: bool) -> None:
        """Undo what code has done that failed, was cancelled or stopped, in a task that ends as it did."""
        error = asyncio.CancelledError() if is_stopped or main.cancelled() else main.exception()
        if error is None:
            try:
                self._written(main)
            except EngineError as refused:
                error = refused
        compensations, self._matcher.compensations = self._matcher.compensations, None
        if compensations is None or error is None or type(only_error(error)) is ContinueAsNewRequest:
            return
        self._undoes = True
        self._sequence.revive()
        self._run_as(compensations.run(error, left=not is_stopped), "compensations")

    def _start(self) -> DeterministicTask | None:
        if self._history.run_attempt > 1:
            self.run = self._sequence.run = replace(self.run, attempt=self._history.run_attempt)
        try:
            args, kwargs = begun_arguments(self.workflow.signature, self._sequence)
            coroutine = self.workflow.fn(*args, **kwargs)
        except EngineError as error:
            self._end = refusal(self._failed(error), error)
            return None
        self._main = self._loop.create_task(coroutine, name=self.run.workflow, context=self._context())
        return self._main

    def _context(self) -> Context:
        """Return a context in which code belongs to this run and sees nothing of the worker's own."""
        context = Context()
        context.run(scope.set, self._matcher)
        return context

    def _apply(self, row: Row) -> None:
        child, kind = row.child, row.type
        assert child is not None
        call = self._sequence.calls.pop(child, None)
        if call is None:
            if child >= self._sequence.next_child:
                self._sequence.halt("no such call yet", self._history.allocated.get(child, row), child=child)
            elif kind == _TIMER_FIRED and self._loop.fire(TimerToken(child)):
                self._loop.advance_to(virtual_s(row, self._sequence))
            return
        self._matcher.open_steps.pop(child, None)
        self._handed_out.discard(child)
        if kind == _SIGNAL_RECEIVED and not self._matcher.inboxes.deliver(call, row):
            return
        if call.done():
            return
        call.done_at = self._applied
        if kind == _TIMER_FIRED:
            self._loop.advance_to(virtual_s(row, self._sequence))
        complete(call, row, self._codec)
        if not self._loop.ready:
            self._unawaited.put_unread(self._unread, call)

    # -- how it ended

    def _halted(self) -> Halt | None:
        return None if (problem := self._sequence.problem) is None else Halt(problem=problem)

    def _result(self, main: DeterministicTask) -> End:
        if main.cancelled():
            if self._sequence.cancellation.requested:
                return Cancelled()
            return self._failed(dead_ends.cancelled_itself(self.run))
        error = main.exception()
        request = only_error(error)
        if type(request) is ContinueAsNewRequest:
            return self._next_generation(ContinueAsNew(value=request.param, version=request.version))
        if error is None:
            try:
                return Complete(value=self._written(main))
            except EngineError as refused:
                error = refused
        hint = asked(lambda: asyncio_hint(error) or self._unawaited.hint(error), None)
        asked(lambda: error.add_note(hint) if hint else None, None)
        return self._next_attempt(error)

    def _written(self, main: DeterministicTask) -> str:
        """Return the result of code that returned, as JSON text.

        Raises:
            EngineError: it cannot be recorded.
        """
        if self._value is None:
            run, codec = self.run, self.workflow.signature.result
            where = f"the result of workflow {run.workflow} (run {run.id})"
            self._value = self._codec.write(codec, main.result(), where, exact=self._sequence.exact)
        return self._value

    def _next_attempt(self, error: BaseException) -> End:
        """Return how code that failed ends: as failed, or to be tried again by the policy of its workflow."""
        failure = self._failed(error)
        if is_a(error, EngineError) and asked(lambda: getattr(error, "is_final", False), False):
            return failure
        delay_ms = self.workflow.retry.delay_ms(self.run.attempt, error, self._randomness)
        if delay_ms is None:
            return refusal(failure, error) if type(error) is DecodeError else failure
        again = ContinueAsNew(value=self.run.param, children=(), error=failure.error, retry_in_ms=delay_ms)
        return self._next_generation(again)

    def _next_generation(self, end: ContinueAsNew) -> End:
        """Return the ending of a run that begins another journal, by all rows in the journal now."""
        if self._sequence.cancellation.requested:
            # a run that was asked to end does not begin again
            return Cancelled() if end.error is None else Fail(error=end.error)
        return replace(end, children=(self._sequence.next_child, *sorted(n for n, _ in self.lost_signals())))

    def _failed(self, error: BaseException) -> Fail:
        return Fail(error=self._codec.encode_error(error, rules=self.run.rules, run=self.run.id))

    def _stuck_in_transaction(self) -> Fail | None:
        """Return the failure of code that waits for something else inside a transaction; None if it asks."""
        if self._matcher.asks is None or not self._matcher.asks.stuck:
            return None
        return self._failed(dead_ends.in_transaction(self.run, self._sequence.in_transaction))

    def _suspend(self) -> End | None:
        """Return what the coroutine waits for; None while steps are open or a cancelled run cleans up."""
        cancelling = self._sequence.cancellation.applied
        if cancelling and self._cancellation.is_ignored:
            return self._failed(dead_ends.cancelled_often(self.run, REPEATS_MAX))
        if self._matcher.open_steps or cancelling:
            return None
        calls, several = self._sequence.calls, self._sequence.unawaited_waits
        waiting = {child for child, call in calls.items() if not call.done() and call.awaited}
        if self._unread or several or len(waiting) < len(calls):
            self._unawaited.warn(self.run, calls, self._unread, several, ended=False)
        waiting.update(self._loop.pending_timers)
        if not waiting:
            return self._failed(dead_ends.nothing_pending(self.run))
        return Suspend(on=tuple(sorted(waiting)), kind=self._sequence.wait_kind(waiting))

    # -- what is new

    def _collect(self) -> Advance:
        matcher, sequence, end = self._matcher, self._sequence, self._end
        if isinstance(end, Halt):
            return Advance(end=end)
        commands: tuple[Command, ...] = ()
        if sequence.commands:
            commands, sequence.commands = tuple(sequence.commands), []
        open_steps = matcher.open_steps
        given_up: tuple[int, ...] = ()
        if matcher.given_up:
            given_up = tuple([child for child in matcher.given_up if child in self._handed_out])
            matcher.given_up = []
        progress = None if matcher.progress is None else matcher.progress.take()
        if self.finished:
            if isinstance(end, _WITHOUT_STEPS):
                given_up += tuple(child for child in open_steps if child in self._handed_out)
            return Advance(commands=commands, end=end, given_up=given_up, progress=progress)
        steps = self._new_steps() if matcher.new_steps else ()
        return Advance(commands=commands, steps=steps, end=end, given_up=given_up, progress=progress)

    def _new_steps(self) -> tuple[StepCall, ...]:
        matcher, open_steps = self._matcher, self._matcher.open_steps
        new, matcher.new_steps = matcher.new_steps, []
        in_transaction = matcher.asks is not None and self.in_transaction
        if len(new) == 1 and (child := new[0]) in open_steps and not in_transaction:
            self._handed_out.add(child)
            return (open_steps[child].call(child, self._history.attempts(child)),)
        # rows that an open transaction defers are recorded, and their steps must not run again
        applied = self._applied if in_transaction else len(self._history.completions)
        done = {row.child for row in self._history.completions[applied:]}
        new = [child for child in new if child in open_steps and child not in done]
        self._handed_out.update(new)
        return tuple([open_steps[child].call(child, self._history.attempts(child)) for child in new])
