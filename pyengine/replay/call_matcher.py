"""Calls of workflow code, matched with the journal.

What lives here: `CallMatcher`, what `ctx`, `Step` and `Workflow` find as `scope`, and the `Timers` of the
loop: it gives every call its number (call_sequence.py), compares it with the row that the journal holds for
that number, and keeps what is new: commands to record and steps to execute. What may not: driving the
coroutine, completing a call (machine.py); signals, join sets and captured values have modules of their own.

A hit must agree in kind, name and input hash; durations and deadlines may change under a run. A miss is
checked in full before it takes a number, so a call that is refused (wrong arguments, a value that would not
come back) leaves no trace, live and in replay alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn
from uuid import UUID

from pyengine.definitions.current_run import RunInfo
from pyengine.definitions.definition import StepDef, WorkflowDef
from pyengine.definitions.retry import Randomness, policy_text
from pyengine.errors import Evicted, InvalidRequest, NotAwaitable
from pyengine.loop.awaitables import Call, Completed, First, Gathering, ReceiveCall, Received
from pyengine.loop.event_loop import TimerToken
from pyengine.loop.shield import ShieldScope
from pyengine.protocol.commands import Adopt, Intend, MakeJoinSet, MakePromise, RunChild, StartTimer
from pyengine.replay.call_sequence import NOTHING, CallSequence
from pyengine.replay.completions import read_into
from pyengine.replay.history import History, described
from pyengine.replay.join_sets import JoinSet
from pyengine.replay.pending_steps import PendingStep
from pyengine.replay.recorded_values import RecordedValues
from pyengine.replay.signal_inbox import SignalInboxes
from pyengine.replay.transaction import Transaction
from pyengine.replay.transaction_log import TransactionLog, Transactions
from pyengine.values.codec import Codec, TypeCodec, input_hash, type_codec

__all__ = ["CallMatcher", "StartAnew"]

_STEP_ROWS = frozenset("LEflo")
_COMPLETED_STEP_ROWS = frozenset("LE")


class StartAnew(BaseException):
    """Leaves the workflow that asked to be continued as new; no error, so that `except Exception` lets it by.

    Attributes:
        param: JSON text of the new arguments.
    """

    def __init__(self, param: str) -> None:
        super().__init__("the workflow continues as new")
        self.param = param


class CallMatcher(CallSequence):
    """Matches calls with the journal.

    Args:
        workflow: the code.
        run: which run this is.
        history: its journal; may grow.
        now_ms: reads the clock, epoch milliseconds; asked for new values only.
        randomness: source of new random values.
        codec: writes values and bounds their size.
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
        super().__init__(run, history, self)
        self._workflow = workflow
        self._now_ms = now_ms
        self._codec = codec
        self._randomness = randomness
        self.transacting: list[TransactionLog] = []
        """Transactions that the code is in, or waits to begin; looked at before anything is asked of them."""
        self.open_steps: dict[int, PendingStep] = {}
        """Steps without a result that somebody wants."""
        self.new_steps: list[int] = []
        """Open steps that were not handed out yet; some may have been given up since."""
        self.given_up: list[int] = []
        """Open steps that were given up since the last advance."""
        self.overtaken_timers: set[int] = set()
        """Timers of the loop that a request of cancellation overtook; they never fire."""
        self._adopted: dict[str, Call] = {}
        self._dead_timers = 0

    # most runs have none of these; and what refers back to its run must be found by the collector in the end

    @cached_property
    def transactions(self) -> Transactions:
        """Its transactions."""
        return Transactions(self, self._codec, self.transacting)

    @cached_property
    def inboxes(self) -> SignalInboxes:
        """Its receives."""
        return SignalInboxes(self)

    @cached_property
    def _captures(self) -> RecordedValues:
        return RecordedValues(self, self._now_ms, self._randomness)

    # -- what a call finds as its scope

    @property
    def alive(self) -> bool:
        """Whether what the code does still counts."""
        return not self.dead

    @property
    def replaying(self) -> bool:
        """Whether the journal shows that the coroutine was past this point before."""
        return self.next_child <= self._history.max_child or self.at_seq < self._history.made_seq

    def call_step(self, step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return the call of a step."""
        if self.barred and (dead := self.bar("step", step.name)) is not None:
            return dead
        signature = step.signature
        packed = signature.pack(args, kwargs)
        digest = sha256(step.key + packed).hexdigest()[:16]
        child = self.next_child
        row = self._allocated.get(child)
        if row is None:
            _, copy, named = signature.check(args, kwargs, packed)
            if len(packed) > self._codec.noted_bytes:
                self._codec.check_size(len(packed), f"the input of step {step.name} of run {self._run.id}")
            if child in self._history.receiving:
                return self.disagree(described("step", step.name, digest), row, "step", step.name)
            if self.barred and self.is_overtaken(row, command=False):
                call = self.take_call("step", step.name, signature.result, overtaken=True)
                call.noted = self._give_step_up
                return call
            self.open_steps[child] = PendingStep(step, digest, packed, (copy, named))
            self.new_steps.append(child)
        elif row.hash != digest or row.name != step.name or row.type not in _STEP_ROWS:
            signature.check(args, kwargs, packed)
            return self.disagree(described("step", step.name, digest), row, "step", step.name)
        elif row.type not in _COMPLETED_STEP_ROWS:
            self.open_steps[child] = PendingStep(step, digest, packed, None)
            self.new_steps.append(child)
        # as take_call does, without a call of it: this is the hot path
        self.next_child = child + 1
        self.calls[child] = call = Call(loop=self.loop)
        call.order = call.child = child
        call.kind = "step"
        call.name = step.name
        call.codec = signature.result
        call.noted = self._give_step_up
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
        name, signature = workflow.name, workflow.signature
        if self.barred and (dead := self.bar("child run", name)) is not None:
            return dead
        packed = signature.pack(args, kwargs)
        digest = input_hash(name, packed)
        row = self.row()
        overtaken = False
        if row is None or (row.type, row.name, row.hash) != ("I", name, digest):
            text = signature.check(args, kwargs, packed)[0]
            self._codec.check_size(len(packed), f"the input of child run {name} of run {self._run.id}")
            overtaken = self.is_overtaken(row, command=True)
            if not overtaken:
                if not self.is_new(row):
                    return self.disagree(described("child run", name, digest), row, "child run", name)
                self.commands.append(
                    RunChild(
                        child=self.next_child,
                        name=name,
                        version=workflow.version,
                        queue=queue or workflow.queue,
                        hash=digest,
                        param=text,
                        timeout_ms=workflow.deadline_ms if timeout_ms is None else timeout_ms,
                        detached=detached,
                        abandon=abandon,
                    )
                )
        call = self.take_call("child run", name, signature.result, overtaken=overtaken)
        if detached:
            call.kind = "detached run"
            (self.overtaken if overtaken else self.calls).pop(call.child)
            call.fail(
                NotAwaitable(f"run {call.id} was started detached; nothing of this run can wait for it")
            )
        return call

    def make_promise(
        self, annotation: Any, *, timeout_ms: int | None, name: str, key: str | None = None
    ) -> Call:
        """Return the call of an external promise, or of the wait for the row with a key (JSON text)."""
        if self.barred and (dead := self.bar("promise", name)) is not None:
            return dead
        digest = None if key is None else input_hash(name, key)
        command = MakePromise(child=self.next_child, name=name, timeout_ms=timeout_ms, key=key, hash=digest)
        return self._promise(type_codec(annotation), command, digest)

    def adopt(self, annotation: Any, promise_id: str) -> Call:
        """Return the call of a promise that is not the run's own.

        Raises:
            InvalidRequest: it is the run itself, a child of it, or waited for already.
        """
        if self.barred and (dead := self.bar("promise", promise_id)) is not None:
            return dead
        self._check_foreign(promise_id)
        call = self._promise(type_codec(annotation), Adopt(child=self.next_child, name=promise_id))
        call.alias = promise_id
        self._adopted[promise_id] = call
        return call

    def _check_foreign(self, promise_id: str) -> None:
        head, _, number = promise_id.rpartition(".")
        if promise_id == self._run.id:
            raise InvalidRequest(f"run {self._run.id} would wait for itself")
        if head == self._run.id and number.isdecimal() and int(number) >= self._run.first_child:
            raise InvalidRequest(
                f"{promise_id} is a child of this run", hint="await the handle that starting it returned"
            )
        if promise_id in self._adopted and not self._adopted[promise_id].done():
            raise InvalidRequest(
                f"run {self._run.id} waits for promise {promise_id} already", hint="await that handle"
            )

    def _promise(self, codec: TypeCodec, command: MakePromise | Adopt, digest: str | None = None) -> Call:
        row = self.row()
        overtaken = False
        if row is None or (row.type, row.name or "", row.hash) != ("X", command.name, digest):
            overtaken = self.is_overtaken(row, command=True)
            if not overtaken:
                if not self.is_new(row):
                    return self.disagree(
                        described("promise", command.name, digest), row, "promise", command.name
                    )
                self.commands.append(command)
        return self.take_call("promise", command.name, codec, overtaken=overtaken)

    def sleep(self, duration_ms: int) -> Call:
        """Return the call of a timer."""
        return self._timer(lambda: duration_ms)

    def sleep_until(self, epoch_ms: int) -> Call:
        """Return the call of a timer that fires at an instant; the clock is read only if it is new."""
        return self._timer(lambda: max(0, epoch_ms - self._now_ms()))

    def receive(self, name: str, codec: TypeCodec, timeout_ms: int | None) -> Call | Received:
        """Return the call of a receive."""
        call, row = self.inboxes.receive(name, codec)
        if row is not None:
            read_into(call, row)
        if timeout_ms is None or call.done() or not isinstance(call, ReceiveCall):
            return call
        return Received(self.loop, call, self.sleep(timeout_ms))

    def join_set(self) -> JoinSet[Any]:
        """Return a new join set."""
        if self.barred and self.bar("step", "join set") is not None:
            return JoinSet(self, -1, self._intent, overtaken=True)
        row, child = self.row(), self.next_child
        overtaken = self.is_overtaken(row, command=True)
        if not overtaken and (row is None or row.type != "j"):
            if not self.is_new(row):
                self.halt("join set", row)
                self.loop.raise_evicted()
                return JoinSet(self, -1, self._intent, overtaken=True)
            self.commands.append(MakeJoinSet(child=child))
        self.next_child = child + 1
        return JoinSet(self, child, self._intent, overtaken=overtaken)

    def transaction(self, name: str, timeout_ms: int) -> Transaction:
        """Return a transaction that is not begun."""
        return Transaction(self.transactions, self._codec, self._run.id, name, timeout_ms)

    def shield(self, timeout_s: float | None) -> ShieldScope:
        """Return a scope that keeps cancellations away."""
        return ShieldScope(timeout_s)

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """Leave the workflow, to begin it again with these arguments and an empty journal."""
        if self.barred and self.bar("child run", self._workflow.name) is not None:
            raise Evicted
        text = self._workflow.signature.encode(args, kwargs)
        self._codec.check_size(len(text.encode()), f"the input of run {self._run.id}, continued as new")
        raise StartAnew(text)

    def time_ms(self) -> int:
        """Return the recorded time, epoch milliseconds."""
        return self._captures.time_ms()

    def random(self) -> float:
        """Return the recorded random number, 0 <= x < 1."""
        return self._captures.random()

    def uuid4(self) -> UUID:
        """Return the recorded random UUID."""
        return self._captures.uuid4()

    def patched(self, change: str) -> bool:
        """Return whether the run takes the new side of a change of code."""
        return self._captures.patched(change)

    def gather(self, awaitables: tuple[Awaitable[Any], ...], *, return_exceptions: bool) -> Gathering:
        """Return the wait for all of these."""
        gathering = Gathering(self.loop, awaitables, return_exceptions=return_exceptions)
        self.add_whole(gathering)
        return gathering

    def first(self, awaitables: tuple[Awaitable[Any], ...]) -> First:
        """Return the wait for any of these."""
        return First(self.loop, awaitables)

    def as_completed(self, awaitables: tuple[Awaitable[Any], ...]) -> Completed:
        """Return an iterator over these, in the order in which they complete."""
        return Completed(self.loop, awaitables)

    # -- what the loop finds as its timers

    def schedule(self, delay_s: float) -> TimerToken:
        """Make a timer for the loop (asyncio.sleep, timeout, call_later) and return its child number.

        Raises:
            asyncio.CancelledError: the run is being cancelled, and the code is not in a shield.
        """
        made = None if self.dead else self._take_timer(lambda: round(delay_s * 1000))
        if made is None:
            self.loop.raise_evicted()
            self._dead_timers -= 1
            return TimerToken(self._dead_timers)
        self.next_child += 1
        if not made:
            self.overtaken_timers.add(self.next_child - 1)
        return TimerToken(self.next_child - 1)

    def cancel(self, token: TimerToken) -> None:
        """Nothing to record: a timer that nobody waits for stays pending, and its firing is ignored."""

    # -- numbers and comparison

    def _give_step_up(self, child: int) -> None:
        if self.open_steps.pop(child, None) is not None:
            self.given_up.append(child)

    def _intent(self, child: int) -> Intend | None:
        """Return what must be recorded of a step before anything refers to it."""
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

    def _timer(self, duration_ms: Callable[[], int]) -> Call:
        if self.dead:
            return self.dead_call("timer", "")
        made = self._take_timer(duration_ms)
        if made is None:
            return self.dead_call("timer", "")
        return self.take_call("timer", "", NOTHING, overtaken=not made)

    def _take_timer(self, duration_ms: Callable[[], int]) -> bool | None:
        """Match a timer with the next number; false if it was overtaken, None if the journal disagrees."""
        if self.barred:
            self.bar("timer", "")
        row = self.row()
        if row is None or row.type != "T":
            if self.is_overtaken(row, command=True):
                return False
            if not self.is_new(row):
                self.halt("timer", row)
                return None
            self.commands.append(StartTimer(child=self.next_child, duration_ms=duration_ms()))
        return True
