"""Child numbers: which one the next call of a run gets, and whether the journal agrees with the call.

Lives here: `CallSequence`: the counter of child numbers, the new commands, the pending calls, and the
comparison of a call with the row of its number. May not: the meaning of a call (call_matcher.py,
signal_inbox.py, join_sets.py, recorded_values.py, sql/transaction_log.py), driving the coroutine
(machine.py). The theory: every call takes the next number. Commands are recorded in the turn in which the
code made them, in the order of the code; a step when an attempt of it ended; a receive when its signal came.
So a missing row below recorded ones is a step or a receive, and anything else there is a disagreement.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, TypeAlias, TypeVar

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.loop.awaitables import AllWait, Call, CallKind
from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.futures import cancelled_now
from pyengine.core.loop.restrictions import is_of_user
from pyengine.core.loop.several import WaitForSeveral
from pyengine.core.loop.shield import current_shield
from pyengine.core.protocol.child_ids import LONG_ID_BYTES, check_room, detached_id, read_started_id
from pyengine.core.protocol.commands import (
    AwaitRow,
    CallRemote,
    Command,
    MakePromise,
    RunChild,
    StartTimer,
    Submit,
    Take,
    WaitKind,
)
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.cancellation_cursor import CancellationCursor
from pyengine.core.replay.divergence import Difference
from pyengine.core.replay.history import History, describe_operation, describe_row
from pyengine.core.rules import SHORT_IDS_RULES
from pyengine.core.values.codec import TypeCodec, type_codec
from pyengine.errors import Evicted, InvalidRequest

C = TypeVar("C", bound=Call)
W = TypeVar("W", bound=WaitForSeveral)

Match: TypeAlias = Literal["agrees", "discarded", "disagrees"]
"""How a command compares with the journal: recorded or new, without effect, or a reason to halt."""

NOTHING = type_codec(None)
_BRIEF = 500

REFUSALS_MAX = 100_000
"""How many calls of a run that is being cancelled are refused before its code is stopped."""


class CallSequence:
    """Numbers the calls of one run and collects its new commands.

    Args:
        run: which run this is.
        history: its journal; may grow.
        loop: drives its code.

    Attributes:
        exact: whether its values must come back as what they are; asked once, since each call needs it.
        next_child: the next child number.
        at_seq: logical number of the row that the coroutine was advanced by last; -1 at the beginning.
        dead: the coroutine was evicted or the run halted: every call fails from now on.
        restricted: a call must ask `admit` first; kept so that the hot path reads one flag.
        cancellation: where the code stands relative to a cancellation request.
        problem: JSON text of the first disagreement with the journal.
        commands: commands that the journal does not hold, in the order of the code.
        calls: calls that are not completed, by child number; cancelled ones stay until their rows come.
        all_waits: waits for all of several calls.
        in_transaction: the open transaction, in words; no durable call fits inside.
        swallows_at: file and line of code that goes on however often it is cancelled, and is stopped there.
        capture_inside: while a transaction is open: records captured values in its row.
    """

    def __init__(self, run: RunInfo, history: History, loop: DeterministicLoop) -> None:
        self.run = run
        self.exact = run.exact
        self.history = history
        self.loop = loop
        self.next_child = run.first_child
        self.at_seq = -1
        self.dead = False
        self.restricted = False
        self.cancellation = CancellationCursor(history)
        self.problem: str | None = None
        self.commands: list[Command] = []
        self.calls: dict[int, Call] = {}
        self.all_waits: list[AllWait] = []
        self._waits: list[WaitForSeveral] = []
        self.fire_at_ms: dict[int, int] = {}
        self.in_transaction: str | None = None
        self.capture_inside: Callable[[str, Callable[[], str] | None], str | None] | None = None
        self._operations = 0
        self._refusals = 0
        self.swallows_at: str | None = None
        # a character has four bytes at most
        self._may_have_long_id = 4 * len(run.id) > LONG_ID_BYTES

    # -- which calls are allowed

    def admit(self, kind: CallKind, name: str) -> Call | None:
        """Return None if the call may be made, or the dead call that the code gets instead.

        Raises:
            asyncio.CancelledError: the run is being cancelled, and the caller is in no shield.
            InvalidRequest: a transaction is open.
        """
        if self.dead:
            return self.dead_call(kind, name)
        self.refuse_in_transaction(f"{kind} {name}".rstrip())
        if self.cancellation.applied and current_shield() is None:
            self._refusals += 1
            if self._refusals > REFUSALS_MAX:
                if self.swallows_at is None:
                    self.swallows_at = _place_of_code()
                    self.die()
                return self.dead_call(kind, name)
            raise cancelled_now()
        return None

    def update_restricted(self) -> None:
        """Find out whether a call must ask `admit` first."""
        requested = self.history.cancel_seq is not None
        self.restricted = requested or self.dead or self.in_transaction is not None

    def refuse_in_transaction(self, call: str) -> None:
        """Refuse a durable call inside a transaction.

        Args:
            call: the call, for the error.

        Raises:
            InvalidRequest: a transaction is open.
        """
        if self.in_transaction is not None:
            raise InvalidRequest(
                f"run {self.run.id}: {call} inside {self.in_transaction}, which is open",
                hint="a transaction holds locks: call it before or after `async with ctx.transaction()`; "
                "inside, use the connection, tx.start, tx.signal, tx.resolve",
            )

    # -- comparison with the journal

    def row(self) -> Row | None:
        """Return the row of the next number, if the journal holds one."""
        return self.history.allocated.get(self.next_child)

    def is_new(self, row: Row | None) -> bool:
        """Whether a command with the next number is new: the journal holds nothing there, nor above."""
        return row is None and self.next_child > self.history.max_child

    def match_unrecorded(self, row: Row | None, got: str, make: Callable[[], Command]) -> Match:
        """Match a command with the next number whose row is missing or of something else.

        Args:
            row: the row of that number, if there is one.
            got: how the command reads in an error.
            make: makes it; called if it is new.
        """
        if self.cancellation.discards_command(self.next_child, row):
            return "discarded"
        if not self.is_new(row):
            self.halt(got, row)
            return "disagrees"
        command = make()
        if self._may_have_long_id:
            self._check_room(command)
        self.commands.append(command)
        return "agrees"

    def _check_room(self, command: Command) -> None:
        """Refuse a call whose promise would have an id that is too long, or whose children would."""
        if isinstance(command, RunChild):
            check_room(self.id_of(command.child, detached=command.detached), is_run=True)
        elif isinstance(command, StartTimer | MakePromise | AwaitRow | CallRemote):
            check_room(self.id_of(command.child), is_run=False)

    def started_id(self, child: int, row: Row | None) -> str:
        """Return the id of a detached run; a fork has the row of its origin, and starts nothing again."""
        recorded = row.data if row is not None and row.type == RowType.CHILD_RUN_SCHEDULED else None
        return self.id_of(child, detached=True) if recorded is None else read_started_id(recorded)

    def id_of(self, child: int, *, detached: bool = False) -> str:
        """Return the promise id of a child; a detached run may have a short one."""
        run = self.run
        return (
            detached_id(run.id, child) if detached and run.rules >= SHORT_IDS_RULES else f"{run.id}.{child}"
        )

    def at_frontier(self) -> bool:
        """Whether nothing in the journal shows that the code was past this point before."""
        return self.next_child > self.history.max_child and self.history.suspend_seq <= self.at_seq

    def match_operation(self, operation: Submit | Take, *, before: Command | None = None) -> bool:
        """Match an operation on a join set; false if it is discarded or in disagreement.

        Operations take no number: the journal holds them in the order of the code.

        Args:
            operation: what the code does to the set.
            before: a command to record before it, if it is new.
        """
        self.refuse_in_transaction("a join set was used")
        row = self.unmatched_operation()
        is_submit = isinstance(operation, Submit)
        kind = RowType.JOIN_SET_SUBMITTED if is_submit else RowType.JOIN_SET_AWAITED
        verb = "submit" if is_submit else "take"
        if self.cancellation.is_ahead_of(row):
            if self.cancellation.discard(self.next_child):
                return False
        elif row is not None and (row.type, row.child, row.attempt) == (
            kind,
            operation.child,
            operation.join_set,
        ):
            self._operations += 1
            return True
        elif row is None and self.at_frontier():
            if before is not None:
                self.commands.append(before)
            self.commands.append(operation)
            return True
        got = describe_operation(verb, operation.child, operation.join_set)
        self.halt(got, row, child=operation.child)
        self.loop.raise_evicted()
        return False

    @property
    def misses_calls(self) -> bool:
        """Whether the journal holds calls, or operations on join sets, that the code did not make yet."""
        history = self.history
        return self.next_child <= history.max_child or self._operations < len(history.set_operations)

    def unmatched_operation(self) -> Row | None:
        """Return the first recorded operation on a join set that the code did not do yet."""
        operations = self.history.set_operations
        return operations[self._operations] if self._operations < len(operations) else None

    # -- calls

    def take_call(self, kind: CallKind, name: str, codec: TypeCodec, *, discarded: bool = False) -> Call:
        """Return a pending call under the next number."""
        call = self.make_call(Call, kind, name, codec, self.next_child)
        (self.cancellation.calls if discarded else self.calls)[self.next_child] = call
        self.next_child += 1
        return call

    def make_call(self, cls: type[C], kind: CallKind, name: str, codec: TypeCodec, child: int) -> C:
        """Return a pending call that is not registered under its number."""
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
        call.on_cancel = ignore_cancel
        if answer.done():
            answer.exception()
            call.fail(Evicted())
        return call

    def add_all_wait(self, wait: AllWait) -> None:
        """Register a wait for all of several calls."""
        self.all_waits = [one for one in self.all_waits if not one.done()]
        self.all_waits.append(wait)

    def placed(self, call: Call) -> Call:
        """Return a call that `ctx` asked the runtime for; it keeps its place in the code if it is new."""
        if call.child not in self.history.allocated:
            call.set_place(4)
        return call

    def add_wait(self, wait: W) -> W:
        """Return a wait for several calls; it is kept, to see whether the code awaits it."""
        wait.set_place(4)
        self._waits = [*self.unawaited_waits, wait]
        return wait

    @property
    def unawaited_waits(self) -> list[WaitForSeveral]:
        """The pending waits for several calls that the code has not awaited."""
        return [one for one in self._waits if one.made_at is not None and not one.done()]

    def wait_kind(self, waiting: set[int]) -> WaitKind:
        """Return which completions of these children end a wait.

        Args:
            waiting: numbers of all children that the code waits for.
        """
        if len(waiting) == 1:
            call = self.calls.get(next(iter(waiting)))
            return "signal" if call is not None and call.kind == "receive" else "single"
        for wait in self.all_waits:
            members = [one for one in wait.members if not one.done()]
            if (
                not wait.done()
                and all(isinstance(one, Call) for one in members)
                and {one.child for one in members if isinstance(one, Call)} == waiting
            ):
                return "all"
        return "any"

    # -- the end

    def die(self) -> None:
        """Make every call fail from now on."""
        self.dead = self.restricted = True

    def revive(self) -> None:
        """Allow calls in shields, if code was stopped: it is undone there, and has dead calls itself."""
        self.dead = False

    def disagree(self, got: str, row: Row | None, kind: CallKind, name: str) -> Call:
        """Halt at the next number, and return the dead call that the code gets."""
        self.halt(got, row)
        return self.dead_call(kind, name)

    def halt(self, got: str, row: Row | None, *, child: int | None = None) -> None:
        """Record that code and journal disagree; only the first disagreement counts.

        Args:
            got: what the code did.
            row: the row of the number, or None if the journal holds none.
            child: child number; the next one by default.
        """
        if self.problem is not None:
            return
        child = self.next_child if child is None else child
        if row is not None:
            expected = describe_row(row)
        elif child in self.history.open_receives:
            expected = "a receive that still waits"
        else:
            expected = "a step or a receive that is not finished"
        neighbours = self.history.neighbours(child)
        self.problem = Difference(
            run_id=self.run.id, child=child, expected=expected, got=got, neighbours=neighbours
        ).problem()
        self.die()

    def halt_at_missing_call(self, main: asyncio.Task[Any] | None) -> None:
        """Halt: the journal holds a call that the code did not make, though every row was applied.

        Args:
            main: the workflow's own task, if it began.
        """
        if main is None:
            return
        history, row = self.history, self.unmatched_operation()
        if self.next_child <= history.max_child:
            child = min(n for n in (*history.allocated, *history.open_receives) if n >= self.next_child)
            row = history.allocated.get(child)
        else:
            child = 0 if row is None else row.child or 0
        self.halt(_describe_end(main), row, child=child)


def _place_of_code() -> str:
    """Return file and line of the code of the workflow that makes a call now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame):
        frame = frame.f_back
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _describe_end(main: asyncio.Task[Any]) -> str:
    """Return how code ended that made fewer calls than the journal holds.

    Args:
        main: the workflow's own task.
    """
    if not main.done():
        return "no such call: the workflow waits"
    error = None if main.cancelled() else main.exception()
    if error is None:
        return "no more calls: the workflow ended"
    message = " ".join(str(error).split())
    return f"no more calls: the workflow ended with {type(error).__name__}: {message[:_BRIEF]}"


def ignore_cancel(child: int) -> None:
    """Do nothing when a dead or discarded call is cancelled."""
