"""Calls of workflow code, matched with the journal.

What lives here: `Matcher`, which gives every call its child number, compares it with the row that the journal
holds for that number, and keeps what is new: acts to record and steps to execute. It is what `ctx`, `Step`
and `Workflow` find as `scope`, and the `Timers` of the loop. What may not: driving the coroutine, completing
a call (replay.py).

A hit must agree in kind, name and input hash; durations and deadlines may change under a run. A miss is
checked in full before it takes a number, so a call that is refused (wrong arguments, a value that would not
come back) leaves no trace, live and in replay alike. An act is recorded in the turn that it happened in, a
step only when an attempt of it ended: so a missing row below recorded ones must be a step, and anything else
there is a disagreement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

import msgspec

from pyengine.codec import Codec, TypeCodec, input_hash, type_codec
from pyengine.errors import Evicted, NotAwaitable
from pyengine.history import History, describe, described
from pyengine.loop import DeterministicLoop, TimerToken
from pyengine.model import Act, Captured, MakePromise, Row, RunChild, RunInfo, StartTimer
from pyengine.registry import StepDef, WorkflowDef
from pyengine.retry import Randomness
from pyengine.waits import Call, CallKind, Completed, First, Gathering

__all__ = ["Matcher", "OpenStep"]

_STEP_ROWS = frozenset("LEfl")
_COMPLETED_STEP_ROWS = frozenset("LE")
_NONE = type_codec(None)
_ADVICE = "deploy the code that began the run, or give the change a new version"


class OpenStep:
    """A step call without a result."""

    __slots__ = ("args", "hash", "packed", "step")

    def __init__(
        self,
        step: StepDef,
        input_hash: str,
        packed: bytes,
        args: tuple[tuple[Any, ...], dict[str, Any]] | None,
    ) -> None:
        self.step = step
        self.hash = input_hash
        self.packed = packed
        self.args = args


class Matcher:
    """Gives calls their numbers and matches them with the journal.

    Args:
        run: which run this is.
        history: its journal; may grow.
        now_ms: reads the clock, epoch milliseconds; asked for new values only.
        randomness: source of new random values.
        codec: writes values and bounds their size.
    """

    def __init__(
        self,
        run: RunInfo,
        history: History,
        *,
        now_ms: Callable[[], int],
        randomness: Randomness,
        codec: Codec,
    ) -> None:
        self._run = run
        self._history = history
        self._allocated = history.allocated
        self._now_ms = now_ms
        self._randomness = randomness
        self._codec = codec
        self.loop = DeterministicLoop(self, run.id)
        self.next_child = 0
        self._dead_timers = 0
        self.dead = False
        """Set when the coroutine is thrown away or halted: every call fails from then on."""
        self.problem: str | None = None
        """JSON text of the first disagreement with the journal."""
        self.at_seq = -1
        """The completion row that the coroutine was advanced by last."""
        self.calls: dict[int, Call] = {}
        """Calls that are not completed, given-up ones included."""
        self.acts: list[Act] = []
        self.open_steps: dict[int, OpenStep] = {}
        """Steps without a result that somebody wants."""
        self.new_steps: list[int] = []
        """Open steps that were not handed out yet; some may have been given up since."""
        self.given_up: list[int] = []
        """Open steps that were given up since the last advance."""
        self.gatherings: list[Gathering] = []

    # -- what a call finds as its scope

    @property
    def run(self) -> RunInfo:
        """Which run this is."""
        return self._run

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
        if self.dead:
            return self._dead_call("step", step.name)
        signature = step.signature
        packed = signature.pack(args, kwargs)
        digest = sha256(step.key + packed).hexdigest()[:16]
        child = self.next_child
        row = self._allocated.get(child)
        if row is None:
            _, copy, named = signature.check(args, kwargs, packed)
            self._codec.check_size(len(packed), f"the input of step {step.name} of run {self._run.id}")
            self.open_steps[child] = OpenStep(step, digest, packed, (copy, named))
            self.new_steps.append(child)
        elif row.hash != digest or row.name != step.name or row.type not in _STEP_ROWS:
            signature.check(args, kwargs, packed)
            return self._disagree(described("step", step.name, digest), row, "step", step.name)
        elif row.type not in _COMPLETED_STEP_ROWS:
            self.open_steps[child] = OpenStep(step, digest, packed, None)
            self.new_steps.append(child)
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
    ) -> Call:
        """Return the call of a child run."""
        name, signature = workflow.name, workflow.signature
        if self.dead:
            return self._dead_call("child run", name)
        packed = signature.pack(args, kwargs)
        digest = input_hash(name, packed)
        row = self._allocated.get(self.next_child)
        got = described("child run", name, digest)
        if row is not None and row.hash == digest and row.name == name and row.type == "I":
            pass
        else:
            text = signature.check(args, kwargs, packed)[0]
            self._codec.check_size(len(packed), f"the input of child run {name} of run {self._run.id}")
            if not self._is_new(row):
                return self._disagree(got, row, "child run", name)
            self.acts.append(
                RunChild(
                    child=self.next_child,
                    name=name,
                    version=workflow.version,
                    queue=queue or workflow.queue,
                    hash=digest,
                    param=text,
                    timeout_ms=workflow.deadline_ms if timeout_ms is None else timeout_ms,
                    detached=detached,
                )
            )
        call = self._new_call("child run", name, signature.result)
        if detached:
            del self.calls[call.child]
            call.fail(
                NotAwaitable(f"run {call.id} was started detached; nothing of this run can wait for it")
            )
        return call

    def make_promise(self, annotation: Any, *, timeout_ms: int | None, name: str) -> Call:
        """Return the call of an external promise."""
        if self.dead:
            return self._dead_call("promise", name)
        codec = type_codec(annotation)
        row = self._allocated.get(self.next_child)
        if row is None or row.type != "X" or (row.name or "") != name:
            if not self._is_new(row):
                return self._disagree(described("promise", name, None), row, "promise", name)
            self.acts.append(MakePromise(child=self.next_child, name=name, timeout_ms=timeout_ms))
        return self._new_call("promise", name, codec)

    def sleep(self, duration_ms: int) -> Call:
        """Return the call of a timer."""
        if self.dead:
            return self._dead_call("timer", "")
        if self._take_timer(lambda: duration_ms):
            return self._new_call("timer", "", _NONE)
        return self._dead_call("timer", "")

    def sleep_until(self, epoch_ms: int) -> Call:
        """Return the call of a timer that fires at an instant; the clock is read only if it is new."""
        if self.dead:
            return self._dead_call("timer", "")
        if self._take_timer(lambda: max(0, epoch_ms - self._now_ms())):
            return self._new_call("timer", "", _NONE)
        return self._dead_call("timer", "")

    def time_ms(self) -> int:
        """Return the recorded time, epoch milliseconds."""
        return int(msgspec.json.decode(self._capture("time", "now", lambda: str(self._now_ms()))))

    def random(self) -> float:
        """Return the recorded random number, 0 <= x < 1."""
        return float(
            msgspec.json.decode(self._capture("random", "random", lambda: repr(self._randomness.random())))
        )

    def uuid4(self) -> UUID:
        """Return the recorded random UUID."""
        text = self._capture(
            "random", "uuid4", lambda: f'"{UUID(int=self._randomness.getrandbits(128), version=4)}"'
        )
        return msgspec.json.decode(text, type=UUID)

    def gather(self, awaitables: tuple[Awaitable[Any], ...], *, return_exceptions: bool) -> Gathering:
        """Return the wait for all of these."""
        self.gatherings = [one for one in self.gatherings if not one.done()]
        gathering = Gathering(self.loop, awaitables, return_exceptions=return_exceptions)
        self.gatherings.append(gathering)
        return gathering

    def first(self, awaitables: tuple[Awaitable[Any], ...]) -> First:
        """Return the wait for any of these."""
        return First(self.loop, awaitables)

    def as_completed(self, awaitables: tuple[Awaitable[Any], ...]) -> Completed:
        """Return an iterator over these, in the order in which they complete."""
        return Completed(self.loop, awaitables)

    # -- what the loop finds as its timers

    def schedule(self, delay_s: float) -> TimerToken:
        """Make a timer for the loop (asyncio.sleep, timeout, call_later) and return its child number."""
        if self.dead or not self._take_timer(lambda: round(delay_s * 1000)):
            self.loop.raise_evicted()
            self._dead_timers -= 1
            return TimerToken(self._dead_timers)
        self.next_child += 1
        return TimerToken(self.next_child - 1)

    def cancel(self, token: TimerToken) -> None:
        """Nothing to record: a timer that nobody waits for stays pending, and its firing is ignored."""

    # -- numbers and comparison

    def _give_step_up(self, child: int) -> None:
        if self.open_steps.pop(child, None) is not None:
            self.given_up.append(child)

    def _new_call(self, kind: CallKind, name: str, codec: TypeCodec) -> Call:
        call = Call(loop=self.loop)
        call.order = call.child = self.next_child
        call.kind = kind
        call.name = name
        call.codec = codec
        self.calls[self.next_child] = call
        self.next_child += 1
        return call

    def _is_new(self, row: Row | None) -> bool:
        """Whether an act with the next number is new: nothing is recorded for it, nor after it."""
        return row is None and self.next_child > self._history.max_child

    def _take_timer(self, duration_ms: Callable[[], int]) -> bool:
        """Match a timer with the next number; false if the journal disagrees."""
        row = self._allocated.get(self.next_child)
        if row is None or row.type != "T":
            if not self._is_new(row):
                self.halt("timer", row)
                return False
            self.acts.append(StartTimer(child=self.next_child, duration_ms=duration_ms()))
        return True

    def _capture(self, kind: Literal["random", "time"], name: str, make: Callable[[], str]) -> str:
        """Return the JSON text recorded for a value, or make a new one."""
        if self.dead:
            self.loop.raise_evicted()
            return make()
        row = self._allocated.get(self.next_child)
        if row is not None and row.type == ("n" if kind == "random" else "m"):
            text = row.data or "null"
            # rows without a name are told apart by their values: only a UUID is a text
            same = row.name == name if row.name else (name == "uuid4") is text.startswith('"')
        else:
            same, text = self._is_new(row), make()
            if same:
                self.acts.append(Captured(child=self.next_child, kind=kind, name=name, value=text))
        if not same:
            self.halt(described("time" if kind == "time" else "random value", name, None), row)
            self.loop.raise_evicted()
        self.next_child += 1
        return text

    def _disagree(self, got: str, row: Row | None, kind: CallKind, name: str) -> Call:
        self.halt(got, row)
        return self._dead_call(kind, name)

    def _dead_call(self, kind: CallKind, name: str) -> Call:
        """Return a call that raises Evicted when awaited; after some of them it blocks (see the loop)."""
        answer = self.loop.dead_call()
        call = Call(loop=self.loop)
        call.order = hash(answer)
        call.child, call.kind, call.name, call.codec = -1, kind, name, _NONE
        call.noted = self._give_step_up
        if answer.done():
            answer.exception()
            call.fail(Evicted())
        return call

    def halt(self, got: str, row: Row | None, *, child: int | None = None) -> None:
        """Note that code and journal disagree; the first disagreement counts.

        Args:
            got: what the code did.
            row: what the journal holds there, or None if it holds nothing.
            child: child number; the next one by default.
        """
        if self.problem is not None:
            return
        child = self.next_child if child is None else child
        expected = describe(row) if row is not None else "a step that is not finished"
        self.problem = problem_text(
            self._run, child=child, expected=expected, got=got, neighbours=self._history.neighbours(child)
        )
        self.dead = True


def problem_text(run: RunInfo, *, child: int, expected: str, got: str, neighbours: tuple[str, ...]) -> str:
    """Return the JSON text of a disagreement, which also reads back as a NondeterminismError."""
    message = f"run {run.id}, child {child}: the journal expects {expected}, the code made {got}"
    facts = {
        "run_id": run.id,
        "child": child,
        "expected": expected,
        "got": got,
        "neighbours": neighbours,
    }
    record = {
        "type": "NondeterminismError",
        "module": "pyengine.errors",
        "message": message,
        **facts,
        "args": [message],
        "data": {
            **facts,
            "detail": None,
            "hint": _ADVICE,
        },
    }
    return msgspec.json.encode(record).decode()
