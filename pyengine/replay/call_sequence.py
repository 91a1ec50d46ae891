"""Numbers: what the next call of a run gets, and whether the journal agrees.

What lives here: `CallSequence`, the counter of child numbers, the commands that are new, and the judgement
whether a call is recorded, new, overtaken, or in disagreement with the journal. What may not: what a call
means (call_matcher.py, signal_inbox.py, join_sets.py, recorded_values.py), driving the coroutine
(machine.py). The theory: every call takes the next number. Commands are recorded in the turn that they
happened in, in the order of the code; a step when an attempt of it ended; a receive when its signal came. So
a missing row below recorded ones is a step or a receive, and anything else there is a disagreement.

A request of cancellation stands in the journal at one place, and the coroutine learns of it there, live and
in replay alike. What the code did before that place and the journal does not hold was overtaken: the turn
that was to record it was refused. Such a call has its number, as it had when it was made, but is not made any
more: nothing is recorded, it never completes, and it is cancelled when the request is applied. So is what
came after it; a step before it was running, and goes on. What stands in a shield is made all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pyengine.definitions.current_run import RunInfo
from pyengine.errors import Evicted, InvalidRequest
from pyengine.loop.awaitables import Call, CallKind, Whole
from pyengine.loop.event_loop import DeterministicLoop
from pyengine.loop.futures import Timers
from pyengine.loop.shield import current_shield
from pyengine.protocol.commands import Command, Submit, Take, WaitKind
from pyengine.protocol.journal import Row
from pyengine.replay.history import History, describe, mark_described
from pyengine.values.codec import TypeCodec, type_codec

__all__ = ["NOTHING", "CallSequence", "told_end"]

C = TypeVar("C", bound=Call)

NOTHING = type_codec(None)
_BRIEF = 500
_ADVICE = "deploy the code that began the run, or give the change a new version"


class CallSequence:
    """Gives numbers away, and keeps what is new.

    Args:
        run: which run this is.
        history: its journal; may grow.
        timers: makes the timers of the run's loop.
    """

    def __init__(self, run: RunInfo, history: History, timers: Timers) -> None:
        self._run = run
        self._history = history
        self._allocated = history.allocated
        self.loop = DeterministicLoop(timers, run.id)
        self.next_child = run.first_child
        self.dead = False
        """Set when the coroutine is thrown away or halted: every call fails from then on."""
        self.barred = False
        """Whether a call must ask `bar` first: dead, or a request of cancellation is known."""
        self.cancelling = False
        """Set when the request of cancellation is applied."""
        self.problem: str | None = None
        """JSON text of the first disagreement with the journal."""
        self.at_seq = -1
        """The row that the coroutine was advanced by last."""
        self.calls: dict[int, Call] = {}
        """Calls that are not completed, given-up ones included."""
        self.overtaken: dict[int, Call] = {}
        """Calls that a request of cancellation overtook."""
        self.commands: list[Command] = []
        self.wholes: list[Whole] = []
        """Waits for every one of some calls."""
        self.in_transaction: str | None = None
        """Name of the transaction that is open: no durable call fits inside."""
        self.keep_inside: Callable[[str, Callable[[], str] | None], str | None] | None = None
        """While a transaction is open: keeps captured values in its record."""
        self._overtook = False
        self._marked = 0

    @property
    def run(self) -> RunInfo:
        """Which run this is."""
        return self._run

    @property
    def history(self) -> History:
        """Its journal."""
        return self._history

    # -- judgement

    def bar(self, kind: CallKind, name: str) -> Call | None:
        """Return a dead call if the code is dead, or None if the call may be made.

        Raises:
            asyncio.CancelledError: the run is being cancelled, and the call is not in a shield.
            InvalidRequest: a transaction is open.
        """
        if self.dead:
            return self.dead_call(kind, name)
        self.refuse_in_transaction(f"{kind} {name}".rstrip())
        if self.cancelling and current_shield() is None:
            raise asyncio.CancelledError
        return None

    def set_bar(self) -> None:
        """Find out whether a call must ask `bar` first."""
        known = self._history.cancel_seq is not None
        self.barred = self.dead or known or self.in_transaction is not None

    def refuse_in_transaction(self, what: str) -> None:
        """Refuse a durable call inside a transaction.

        Raises:
            InvalidRequest: a transaction is open.
        """
        if self.in_transaction is not None:
            raise InvalidRequest(
                f"run {self._run.id}: {what} inside transaction {self.in_transaction}, which is open",
                hint="a transaction holds locks: call it before or after `async with ctx.transaction()`; "
                "inside, use the connection, tx.start, tx.signal, tx.resolve",
            )

    def row(self) -> Row | None:
        """Return what the journal holds under the next number."""
        return self._allocated.get(self.next_child)

    def is_new(self, row: Row | None) -> bool:
        """Whether a command with the next number is new: nothing is recorded for it, nor after it."""
        return row is None and self.next_child > self._history.max_child

    def at_frontier(self) -> bool:
        """Whether the journal does not show that the code was past this point before."""
        return self.next_child > self._history.max_child and self._history.await_seq <= self.at_seq

    def is_overtaken(self, row: Row | None, *, command: bool) -> bool:
        """Whether a request of cancellation overtook a call with the next number.

        Args:
            row: what the journal holds for it.
            command: whether it is recorded in the turn it happens in; a step is not.
        """
        if row is not None or not self._before_request() or not (command or self._overtook):
            return False
        self._overtook = self.next_child > self._history.sealed_child
        return self._overtook

    def is_transaction_overtaken(self) -> bool:
        """Whether a request of cancellation overtook a transaction that has no row; it was not committed."""
        if not self._before_request():
            return False
        self._overtook = self._overtook or self.next_child > self._history.sealed_child
        return True

    def _before_request(self) -> bool:
        """Whether the code has not come to the request of cancellation yet, and is in no shield."""
        known = self._history.cancel_seq is not None
        return known and not self.cancelling and current_shield() is None

    def mark(self, command: Submit | Take, *, before: Command | None = None) -> bool:
        """Match a command that takes no number; false if it does not count, being overtaken or in
        disagreement.

        Such commands are compared one after the other: the journal holds them in the order of the code.

        Args:
            command: what the code does to a join set.
            before: has to be recorded before it, if it is new.
        """
        self.refuse_in_transaction("a join set was used")
        history = self._history
        row = history.marks[self._marked] if self._marked < len(history.marks) else None
        kind, verb = ("u", "submit") if isinstance(command, Submit) else ("a", "take")
        if self._before_request() and (row is None or row.seq > (history.cancel_seq or 0)):
            if self.next_child > history.sealed_child:
                self._overtook = True
                return False
        elif row is not None and (row.type, row.child, row.attempt) == (
            kind,
            command.child,
            command.join_set,
        ):
            self._marked += 1
            return True
        elif row is None and self.at_frontier():
            if before is not None:
                self.commands.append(before)
            self.commands.append(command)
            return True
        self.halt(mark_described(verb, command.child, command.join_set), row, child=command.child)
        self.loop.raise_evicted()
        return False

    def unmatched(self) -> Row | None:
        """Return the first recorded operation on a join set that the code did not do."""
        marks = self._history.marks
        return marks[self._marked] if self._marked < len(marks) else None

    # -- calls

    def take_call(self, kind: CallKind, name: str, codec: TypeCodec, *, overtaken: bool = False) -> Call:
        """Return a pending call under the next number."""
        call = self.make_call(Call, kind, name, codec, self.next_child)
        (self.overtaken if overtaken else self.calls)[self.next_child] = call
        self.next_child += 1
        return call

    def make_call(self, cls: type[C], kind: CallKind, name: str, codec: TypeCodec, child: int) -> C:
        """Return a pending call that nobody knows of yet."""
        call = cls(loop=self.loop)
        call.order = call.child = child
        call.kind = kind
        call.name = name
        call.codec = codec
        return call

    def dead_call(self, kind: CallKind, name: str) -> Call:
        """Return a call that raises Evicted when awaited; after some of them it blocks (see the loop)."""
        answer = self.loop.dead_call()
        call = self.make_call(Call, kind, name, NOTHING, -1)
        call.order = hash(answer)
        call.noted = _nothing
        if answer.done():
            answer.exception()
            call.fail(Evicted())
        return call

    def add_whole(self, whole: Whole) -> None:
        """Note a wait for every one of some calls."""
        self.wholes = [one for one in self.wholes if not one.done()]
        self.wholes.append(whole)

    def wait_kind(self, waiting: set[int]) -> WaitKind:
        """Return what ends a wait for these children.

        Args:
            waiting: all that the code waits for, by number.
        """
        if len(waiting) == 1:
            call = self.calls.get(next(iter(waiting)))
            return "signal" if call is not None and call.kind == "receive" else "single"
        for whole in self.wholes:
            members = [one for one in whole.members if not one.done()]
            if (
                not whole.done()
                and all(isinstance(one, Call) for one in members)
                and {one.child for one in members if isinstance(one, Call)} == waiting
            ):
                return "all"
        return "any"

    # -- the end of it

    def die(self) -> None:
        """From now on every call fails."""
        self.dead = self.barred = True

    def disagree(self, got: str, row: Row | None, kind: CallKind, name: str) -> Call:
        """Halt at the next number, and return what the code gets instead of a call."""
        self.halt(got, row)
        return self.dead_call(kind, name)

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
        if row is not None:
            expected = describe(row)
        elif child in self._history.receiving:
            expected = "a receive that still waits"
        else:
            expected = "a step or a receive that is not finished"
        self.problem = _problem_text(
            self._run, child=child, expected=expected, got=got, neighbours=self._history.neighbours(child)
        )
        self.die()


def told_end(main: asyncio.Task[Any]) -> str:
    """Return what code did that made fewer calls than the journal has, and why it ended if it was an error.

    Args:
        main: the workflow's own task.
    """
    if not main.done():
        return "no such call: the workflow waits"
    error = None if main.cancelled() else main.exception()
    if error is None:
        return "no more calls: the workflow ended"
    why = " ".join(str(error).split())
    return f"no more calls: the workflow ended with {type(error).__name__}: {why[:_BRIEF]}"


def _nothing(child: int) -> None:
    """What a dead call does when it is given up."""


def _problem_text(run: RunInfo, *, child: int, expected: str, got: str, neighbours: tuple[str, ...]) -> str:
    """Return the JSON text of a disagreement, which also reads back as a NondeterminismError."""
    message = f"run {run.id}, child {child}: the journal expects {expected}, the code made {got}"
    details = {
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
        **details,
        "args": [message],
        "data": {
            **details,
            "detail": None,
            "hint": _ADVICE,
        },
    }
    return msgspec.json.encode(record).decode()
