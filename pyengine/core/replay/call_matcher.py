"""Calls of workflow code, matched with the journal.

Lives here: `CallMatcher`, the `WorkflowRuntime` that `ctx`, `Step` and `Workflow` call, and the `Timers` of
the loop. Every call gets its number from a `CallSequence` (call_sequence.py) and is compared with the row of
that number; what is new becomes a command to record or a step to execute. May not: driving the coroutine,
completing a call (machine.py); signals, join sets and captured values have modules of their own.

A recorded call must agree in kind, name and input hash (call_hashes.py); durations and deadlines may change
under a run. A new call is checked in full before it takes a number. So a call that is refused (wrong
arguments, a value that would not come back) leaves no trace, live and in replay alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn

from msgspec.structs import replace

from pyengine.core.definitions.current_run import RunInfo, within_run
from pyengine.core.definitions.definition import StepDef, WorkflowDef
from pyengine.core.definitions.json_schema import top_schema
from pyengine.core.definitions.retry import Randomness, policy_text
from pyengine.core.loop.awaitables import Call, CallKind, ReceiveCall, TimedReceive
from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.futures import TimerToken
from pyengine.core.loop.several import CompletionIterator, First, Gathering, Outcomes
from pyengine.core.loop.shield import ShieldScope
from pyengine.core.protocol.commands import (
    Adopt,
    AwaitRow,
    CallRemote,
    Intend,
    MakeJoinSet,
    MakePromise,
    RunChild,
    StartTimer,
)
from pyengine.core.protocol.journal import SCHEDULING_STEPS, RowType
from pyengine.core.replay.asks import Asks
from pyengine.core.replay.call_hashes import HashedCall, hashed
from pyengine.core.replay.call_sequence import NOTHING, CallSequence, Match
from pyengine.core.replay.child_runs import ChildRuns
from pyengine.core.replay.completions import read_into
from pyengine.core.replay.continue_request import ContinueAsNewRequest
from pyengine.core.replay.extensions import Compensating
from pyengine.core.replay.history import History, describe_call
from pyengine.core.replay.join_sets import JoinSet
from pyengine.core.replay.pending_steps import PendingStep
from pyengine.core.replay.progress import ProgressSetter
from pyengine.core.replay.recorded_values import RecordedValues
from pyengine.core.replay.signal_inbox import SignalInboxes
from pyengine.core.rules import CHILDREN_RULES, WAIT_FOR_RULES
from pyengine.core.values.codec import Codec, TypeCodec, input_hash, type_codec
from pyengine.errors import Evicted, InvalidRequest, NotAwaitable

_WHOLE_STEPS = frozenset({RowType.STEP_COMPLETED, RowType.STEP_FAILED})


class CallMatcher:
    """Matches calls with the journal.

    Args:
        workflow: the code.
        run: which run this is.
        history: its journal; may grow.
        now_ms: reads the clock, epoch milliseconds; asked for new values only.
        randomness: source of new random values.
        codec: writes values and bounds their size.

    Attributes:
        codec: likewise.
        sequence: numbers, pending calls and new commands of the run.
        open_steps: steps without a result whose calls were not cancelled, by child number.
        new_steps: numbers of open steps not handed out yet; some may have been cancelled since.
        given_up: numbers of open steps whose calls were cancelled since the last advance.
        asks: its requests to its worker; None if there was none.
        children: its child runs that end with it; None if there was none.
        compensations: what is undone if the run fails or is cancelled; None if nothing is.
        progress: what its code sets for those who watch it; None if it has set nothing.
    """

    def __init__(
        self,
        workflow: WorkflowDef,
        run: RunInfo,
        history: History,
        *,
        now_ms: Callable[[], int],
        randomness: Randomness,
        codec: Codec,
    ) -> None:
        self.loop = DeterministicLoop(self, run.id, waits_in_place=run.rules >= WAIT_FOR_RULES)
        self.sequence = CallSequence(run, history, self.loop)
        self.open_steps: dict[int, PendingStep] = {}
        self.new_steps: list[int] = []
        self.given_up: list[int] = []
        self.asks: Asks | None = None
        self.children: ChildRuns | None = None
        self.compensations: Compensating | None = None
        self.progress: ProgressSetter | None = None
        self._workflow = workflow
        self._history = history
        self._allocated = history.allocated
        self.now_ms = now_ms
        self._randomness = randomness
        self.codec = codec
        self._adopted: dict[str, Call] = {}
        self._dead_timers = 0

    # Made at first use: most runs need neither, and this is a visible part of what a short run costs.

    @cached_property
    def inboxes(self) -> SignalInboxes:
        """Its receives."""
        return SignalInboxes(self.sequence)

    @cached_property
    def values(self) -> RecordedValues:
        """Its times, random values and changes of code."""
        return RecordedValues(self.sequence, self.now_ms, self._randomness)

    # -- the WorkflowRuntime that a call finds

    @property
    def run(self) -> RunInfo:
        """Which run this is."""
        return self.sequence.run

    @property
    def alive(self) -> bool:
        """Whether calls of the code still have an effect."""
        return not self.sequence.dead

    @property
    def replaying(self) -> bool:
        """Whether the journal shows that the coroutine was past this point before."""
        sequence, history = self.sequence, self._history
        return sequence.next_child <= history.max_child or sequence.at_seq < history.last_command_seq

    def call_step(self, step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return the call of a step."""
        sequence = self.sequence
        if sequence.restricted and (dead := sequence.admit("step", step.name)) is not None:
            return dead
        signature = step.signature
        packed = signature.pack(args, kwargs)
        digest = sha256(step.key + packed).hexdigest()[:16]
        child = sequence.next_child
        row = self._allocated.get(child)
        if row is None:
            _, copy, named = signature.check(args, kwargs, packed, exact=sequence.exact)
            if len(packed) > self.codec.unchecked_bytes:
                self.codec.check_size(len(packed), f"the input of step {step.name} of run {self.run.id}")
            if child in self._history.open_receives:
                got = describe_call("step", step.name, packed, digest)
                return sequence.disagree(got, row, "step", step.name)
            if sequence.restricted and sequence.cancellation.discards_step(child, row):
                call = sequence.take_call("step", step.name, signature.result, discarded=True)
                call.on_cancel = self._give_step_up
                return call
            if signature.has_defaults:
                called = HashedCall(step.key, signature, args, kwargs, packed)
                digest = called.to_record(digest, sequence.run.rules)
            self.open_steps[child] = PendingStep(step, digest, packed, (copy, named))
            self.new_steps.append(child)
        elif (row.name != step.name or row.type not in SCHEDULING_STEPS) or (
            row.hash != digest
            and not HashedCall(step.key, signature, args, kwargs, packed).agrees(digest, row.hash)
        ):
            signature.check(args, kwargs, packed, exact=sequence.exact)
            return sequence.disagree(describe_call("step", step.name, packed, digest), row, "step", step.name)
        elif row.type not in _WHOLE_STEPS:
            self.open_steps[child] = PendingStep(step, row.hash or digest, packed, None)
            self.new_steps.append(child)
        # `take_call`, inlined: this is the hot path of a replay
        sequence.next_child = child + 1
        sequence.calls[child] = call = Call(loop=self.loop)
        call.order = call.child = child
        call.kind = "step"
        call.name = step.name
        call.codec = signature.result
        call.on_cancel = self._give_step_up
        if row is None:
            call.set_place(3)
        return call

    def call_workflow(
        self,
        workflow: WorkflowDef,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        queue: str | None = None,
        timeout_ms: int | None = None,
        detached: bool = False,
        abandon: bool = False,
    ) -> Call:
        """Return the call of a child run."""
        sequence, name, signature = self.sequence, workflow.name, workflow.signature
        if sequence.restricted and (dead := sequence.admit("child run", name)) is not None:
            return dead
        packed = signature.pack(args, kwargs)
        digest = recorded = input_hash(name, packed)
        row = sequence.row()
        match: Match = "agrees"
        if row is None or (
            (row.type, row.name) != (RowType.CHILD_RUN_SCHEDULED, name)
            or (
                row.hash != digest
                and not hashed(name, signature, args, kwargs, packed).agrees(digest, row.hash)
            )
        ):
            text = signature.check(args, kwargs, packed, exact=sequence.exact)[0]
            workflow.refuse_namesake(self._workflow.home)
            if len(packed) > self.codec.unchecked_bytes:
                self.codec.check_size(len(packed), f"the input of child run {name} of run {self.run.id}")
            if signature.has_defaults:
                recorded = hashed(name, signature, args, kwargs, packed).to_record(digest, sequence.run.rules)
            command = RunChild(
                child=sequence.next_child,
                name=name,
                version=workflow.version,
                queue=queue or workflow.queue,
                hash=recorded,
                param=text,
                timeout_ms=workflow.deadline_ms if timeout_ms is None else timeout_ms,
                detached=detached,
                abandon=abandon,
            )
            got = describe_call("child run", name, packed, digest)
            match = sequence.match_unrecorded(row, got, lambda: command)
        if match == "disagrees":
            return sequence.dead_call("child run", name)
        call = sequence.take_call("child run", name, signature.result, discarded=match == "discarded")
        if detached:
            call.kind = "detached run"
            call.adopted_id = sequence.started_id(call.child, row)
            (sequence.cancellation.calls if match == "discarded" else sequence.calls).pop(call.child)
            call.fail(
                NotAwaitable(f"run {call.id} was started detached; nothing of this run can wait for it")
            )
        elif not abandon and match != "discarded" and self.run.rules >= CHILDREN_RULES:
            self.children = self.children or ChildRuns(sequence)
            self.children.own(call)
        return call

    def make_promise(
        self, annotation: Any, *, timeout_ms: int | None, name: str, key: str | None = None
    ) -> Call:
        """Return the call of an external promise, or of the wait for the row with a key (JSON text)."""
        sequence = self.sequence
        if sequence.restricted and (dead := sequence.admit("promise", name)) is not None:
            return dead
        child, codec = sequence.next_child, type_codec(annotation)
        if key is None:
            return self._promise(codec, MakePromise(child=child, name=name, timeout_ms=timeout_ms))
        digest = input_hash(name, key)
        command = AwaitRow(child=child, name=name, hash=digest, key=key, timeout_ms=timeout_ms)
        return self._promise(codec, command, digest, key)

    def call_remote(
        self, name: str, *, target: str, param: str, annotation: Any, timeout_ms: int | None
    ) -> Call:
        """Return the call of a function that other processes serve, with its arguments as JSON text."""
        sequence = self.sequence
        if sequence.restricted and (dead := sequence.admit("remote call", name)) is not None:
            return dead
        self.codec.check_size(len(param), f"the input of {name}, called by run {self.run.id}")
        digest = input_hash(name, param)
        command = CallRemote(
            child=sequence.next_child,
            name=name,
            target=target,
            hash=digest,
            param=param,
            timeout_ms=timeout_ms,
        )
        return self._promise(type_codec(annotation), command, digest, param, kind="remote call")

    def adopt(self, annotation: Any, promise_id: str) -> Call:
        """Return the call of a promise that the run did not make.

        Raises:
            InvalidRequest: it is the run itself, a child of it, or waited for already.
        """
        sequence = self.sequence
        if sequence.restricted and (dead := sequence.admit("promise", promise_id)) is not None:
            return dead
        self._check_foreign(promise_id)
        command = Adopt(child=sequence.next_child, name=promise_id)
        call = self._promise(type_codec(annotation), command)
        call.adopted_id = promise_id
        self._adopted[promise_id] = call
        return call

    def _check_foreign(self, promise_id: str) -> None:
        run = self.run
        head, _, number = promise_id.rpartition(".")
        if promise_id == run.id:
            raise InvalidRequest(f"run {run.id} would wait for itself")
        if head == run.id and number.isdecimal() and int(number) >= run.first_child:
            raise InvalidRequest(
                f"{promise_id} is a child of this run", hint="await the handle that starting it returned"
            )
        if promise_id in self._adopted and not self._adopted[promise_id].done():
            raise InvalidRequest(
                f"run {run.id} waits for promise {promise_id} already", hint="await that handle"
            )

    def _promise(
        self,
        codec: TypeCodec,
        command: MakePromise | CallRemote | AwaitRow | Adopt,
        digest: str | None = None,
        key: str | None = None,
        *,
        kind: CallKind = "promise",
    ) -> Call:
        sequence, name = self.sequence, command.name
        row = sequence.row()
        match: Match = "agrees"
        if row is None or (row.type, row.name or "", row.hash) != (RowType.PROMISE_REGISTERED, name, digest):
            got = describe_call(kind, name, key, digest)
            match = sequence.match_unrecorded(
                row,
                got,
                lambda: (  # whoever answers a promise is held to its type
                    replace(command, param=top_schema(codec.annotation))
                    if isinstance(command, MakePromise)
                    else command
                ),
            )
        if match == "disagrees":
            return sequence.dead_call(kind, name)
        return sequence.take_call(kind, name, codec, discarded=match == "discarded")

    def sleep(self, duration_ms: int) -> Call:
        """Return the call of a timer."""
        return self.sequence.placed(self._timer("sleep", lambda: duration_ms))

    def sleep_until(self, epoch_ms: int) -> Call:
        """Return the call of a timer that fires at an instant; the clock is read only if it is new."""
        return self.sequence.placed(self._timer("sleep_until", lambda: max(0, epoch_ms - self.now_ms())))

    def receive(self, name: str, codec: TypeCodec, timeout_ms: int | None) -> Call | TimedReceive:
        """Return the call of a receive."""
        call, row = self.inboxes.receive(name, codec)
        if row is not None:
            read_into(call, row)
        if timeout_ms is None or call.done() or not isinstance(call, ReceiveCall):
            return call
        return TimedReceive(self.loop, call, self._timer("sleep", lambda: timeout_ms, name))

    def join_set(self) -> JoinSet[Any]:
        """Return a new join set."""
        sequence = self.sequence
        if sequence.restricted and sequence.admit("step", "join set") is not None:
            return JoinSet(sequence, -1, self._intent, discarded=True)
        row, child = sequence.row(), sequence.next_child
        match: Match = "agrees"
        if row is None or row.type != RowType.JOIN_SET_CREATED:
            match = sequence.match_unrecorded(row, "join set", lambda: MakeJoinSet(child=child))
        if match == "disagrees":
            self.loop.raise_evicted()
            return JoinSet(sequence, -1, self._intent, discarded=True)
        sequence.next_child = child + 1
        return JoinSet(sequence, child, self._intent, discarded=match == "discarded")

    def shield(self, timeout_s: float | None) -> ShieldScope:
        """Return a scope that defers cancellations."""
        return ShieldScope(timeout_s)

    def continue_as_new(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], version: WorkflowDef | None = None
    ) -> NoReturn:
        """Leave the workflow, to begin it, or another version, with these arguments and an empty journal."""
        sequence = self.sequence
        if sequence.restricted and sequence.admit("child run", self._workflow.name) is not None:
            raise Evicted
        text = (version or self._workflow).signature.encode(args, kwargs, exact=self.run.exact)
        self.codec.check_size(len(text.encode()), f"the input of run {self.run.id}, continued as new")
        raise ContinueAsNewRequest(text, None if version is None else version.version)

    def set_progress(self, done: float, total: float | None, note: str | None) -> None:
        """Set the progress of the run."""
        self._progress().set_progress(done, total, note)

    def set_value(self, name: str, value: Any) -> None:
        """Set a named value of the run."""
        self._progress().set_value(name, value)

    def _progress(self) -> ProgressSetter:
        if self.progress is None:
            self.progress = ProgressSetter(self.sequence, self.codec)
        return self.progress

    def gather(
        self,
        awaitables: tuple[Awaitable[Any], ...],
        *,
        return_exceptions: bool,
        mapped: Outcomes | None = None,
    ) -> Gathering:
        """Return the wait for all of these."""
        gathering = Gathering(self.loop, awaitables, return_exceptions=return_exceptions, mapped=mapped)
        self.sequence.add_all_wait(gathering)
        return self.sequence.add_wait(gathering)

    def first(self, awaitables: tuple[Awaitable[Any], ...]) -> First:
        """Return the wait for any of these."""
        return self.sequence.add_wait(First(self.loop, awaitables))

    def as_completed(self, awaitables: tuple[Awaitable[Any], ...]) -> CompletionIterator:
        """Return an iterator over these, in the order in which they complete."""
        return CompletionIterator(self.loop, awaitables)

    # -- the Timers of the loop

    def schedule(self, delay_s: float) -> TimerToken:
        """Make a timer for the loop (asyncio.sleep, timeout, call_later) and return its child number.

        Raises:
            asyncio.CancelledError: the run is being cancelled, and the code is not in a shield.
        """
        sequence = self.sequence
        match = "disagrees" if sequence.dead else self._match_timer(lambda: round(delay_s * 1000))
        if match == "disagrees":
            self.loop.raise_evicted()
            self._dead_timers -= 1
            return TimerToken(self._dead_timers)
        child = sequence.next_child
        sequence.next_child = child + 1
        if match == "discarded":
            sequence.cancellation.timers.add(child)
        return TimerToken(child)

    def cancel(self, token: TimerToken) -> None:
        """Record nothing: a timer without a waiter stays pending, and its firing is ignored."""

    # -- helpers

    def _give_step_up(self, child: int) -> None:
        if self.open_steps.pop(child, None) is not None:
            self.given_up.append(child)

    def give_steps_up(self) -> None:
        """Give up every open step: the code has ended."""
        for child in tuple(self.open_steps):
            if (call := self.sequence.calls.get(child)) is None or not call.cancel():
                self._give_step_up(child)

    def _intent(self, child: int) -> Intend | None:
        """Return the command that a step needs before another row refers to it, if its row is missing."""
        step = self.open_steps.get(child)
        if step is None or child in self._allocated:
            return None
        return Intend(
            child=child,
            name=step.step.name,
            hash=step.hash,
            param=step.packed.decode(),
            retry=policy_text(step.step.retry),
        )

    def _timer(self, name: str, duration_ms: Callable[[], int], limits: str | None = None) -> Call:
        sequence = self.sequence
        match = "disagrees" if sequence.dead else self._match_timer(duration_ms, limits)
        if match == "disagrees":
            return sequence.dead_call("timer", name)
        return sequence.take_call("timer", name, NOTHING, discarded=match == "discarded")

    def _match_timer(self, duration_ms: Callable[[], int], limits: str | None = None) -> Match:
        """Match a timer with the next number; the duration, in milliseconds, is asked for if it is new."""
        sequence = self.sequence
        if sequence.restricted and sequence.admit("timer", "") is not None:
            return "disagrees"
        row, child = sequence.row(), sequence.next_child
        if row is not None and row.type == RowType.TIMER_SCHEDULED:
            return "agrees"
        return sequence.match_unrecorded(
            row, "timer", lambda: StartTimer(child=child, duration_ms=duration_ms(), name=limits)
        )


def matcher_within(method: str, instead: str) -> CallMatcher:
    """Return the calls of the run whose workflow code is running, for the part of `ctx` that a feature adds.

    Args:
        method: method of `ctx`, for the error.
        instead: the alternative elsewhere, for the error.

    Raises:
        InvalidRequest: this is no workflow code.
    """
    within = within_run(method, instead)
    assert isinstance(within, CallMatcher)
    return within
