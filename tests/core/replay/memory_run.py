"""A run in memory: a journal as the database would keep it, and the turns between it and the replay machine.

It knows the row types and nothing about coroutines: commands and outcomes become rows, signals wait in
inboxes, time passes by hand; a report that the database would refuse fails here. `warm` is the replay that
lives through all of it; `cold` makes a second one from the journal alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.registry import Step, Workflow, make_step, make_workflow
from pyengine.core.protocol.commands import (
    Adopt,
    AwaitRow,
    CallRemote,
    CancelChild,
    Captured,
    Command,
    Complete,
    Fail,
    Halt,
    Intend,
    MakeJoinSet,
    MakePromise,
    Receive,
    Refuse,
    RunChild,
    StartTimer,
    StepOutcome,
    Submit,
    Suspend,
    Take,
)
from pyengine.core.protocol.journal import ALLOCATING, RESOLVING, ROW_WIDTH, SCHEDULING_STEPS, Row, RowType
from pyengine.core.replay.advance import Advance, StepCall
from pyengine.core.replay.extensions import NO_SEARCH
from pyengine.core.replay.machine import Replay
from pyengine.core.rules import RULES
from pyengine.core.values.codec import Codec

STARTED_MS = 1_700_000_000_000
MEMBERS = SCHEDULING_STEPS | {RowType.CHILD_RUN_SCHEDULED, RowType.PROMISE_REGISTERED}


@make_step
async def add(a: int, b: int) -> int:
    """A step that several tests share; its body never runs here."""
    return a + b


@make_step
async def greet(name: str) -> str:
    """Another one."""
    return f"hello {name}"


@make_workflow
async def ship(order: int) -> str:
    """A child workflow; it never runs here."""
    return f"shipped {order}"


def workflow(fn: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[..., Any]:
    """Decorate a workflow in the middle of a test."""
    return make_workflow(fn)


def step(fn: Callable[..., Any]) -> Step[..., Any]:
    """Decorate a step in the middle of a test."""
    return make_step(fn)


@dataclass(frozen=True, slots=True)
class Done:
    """A child completes."""

    child: int
    value: Any = None
    error: BaseException | str | None = None


@dataclass(frozen=True, slots=True)
class SignalSent:
    """Somebody sends a signal."""

    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody asks the run to end."""

    reason: Any = None


class MemoryRun:
    """One run, its journal, and what it waits for.

    Attributes:
        open: what can complete, by child number; steps that were given up stay in it.
        commands: everything that was recorded, in order.
        receivers: numbers of receives that wait, by name.
        inboxes: payloads that were sent and not received, by name.
        blocked: what the run is blocked on, if it is.
        late_request: a request of cancellation that arrives just before the next report.
        cold_waits: what the last cold replay waited for, like `waits`.
        unawaited: finds calls that no code awaits; by default none.
    """

    unawaited = NO_SEARCH

    def __init__(
        self,
        code: Workflow[..., Any],
        *args: Any,
        codec: Codec | None = None,
        seed: int = 1,
        rows: Sequence[Row] = (),
        first_child: int = 0,
        rules: int = RULES,
    ) -> None:
        self.code = code.definition
        self.codec = codec or Codec()
        self.run = RunInfo(
            id="run-1",
            execution=1,
            version=1,
            workflow=self.code.name,
            param=json.dumps(args),
            started_at_ms=STARTED_MS,
            first_child=first_child,
            rules=rules,
        )
        self.seed = seed
        self.now_ms = STARTED_MS
        self.rows = list(rows) or [Row(0, RowType.EXECUTION_STARTED)]
        self.open: dict[int, Command | StepCall] = {}
        self.commands: list[Command] = []
        self.receivers: dict[str, int] = {}
        self.inboxes: dict[str, list[Any]] = {}
        self.sets: dict[int, int] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.cancelling = any(row.type == RowType.CANCEL_REQUESTED for row in rows)
        self.blocked: Suspend | None = None
        self.late_request: Cancel | None = None
        self.cold_waits = 0
        self.keeps_children = False
        self.warm = self.replay()
        self.warm.load(self.rows)
        self.moves = Advance()
        self.advance()

    @property
    def next_seq(self) -> int:
        """The logical number of the next row."""
        return self.rows[-1].seq + ROW_WIDTH[self.rows[-1].type]

    @property
    def waits(self) -> int:
        """How many steps and transactions the code waits for."""
        return waits_of(self.warm)

    @property
    def end(self) -> Any:
        """How the last advance ended."""
        return self.moves.end

    def replay(self, code: Workflow[..., Any] | None = None) -> Replay:
        """Return a new replay, of this code or of other code."""
        definition = self.code if code is None else code.definition
        given = (lambda: self.now_ms), random.Random(self.seed), self.codec
        return Replay(definition, self.run, *given, unawaited=self.unawaited)

    def cold(self, code: Workflow[..., Any] | None = None, rows: Sequence[Row] | None = None) -> Advance:
        """Return the moves of a replay of the whole journal by a process that knows nothing else."""
        replay = self.replay(code)
        replay.load(self.rows if rows is None else rows)
        moves = replay.advance()
        self.cold_waits = waits_of(replay)
        replay.evict()
        return moves

    def advance(self) -> Advance:
        """Advance the warm replay and record what it did, until nothing comes back at once."""
        while True:
            self.moves = moves = self.warm.advance()
            if isinstance(moves.end, Halt):
                return moves
            if self.late_request is not None and (moves.commands or moves.end is not None):
                asked, self.late_request = self.late_request, None
                self._ask(asked)
                self._start_over()
                continue
            assert self.blocked is None or not (moves.commands or moves.steps), "a blocked run cannot go on"
            for command in moves.commands:
                self._record(command)
            for call in moves.steps:
                self.open[call.child] = replace(call, begun=call.begun or call.child in self._intended())
            next_seq = self.next_seq
            late = [self._answer(command) for command in moves.commands]
            came = [row for row in late if row is not None]
            if isinstance(moves.end, Suspend) and not came and self.blocked is None:
                assert not self.cancelling, "who is being cancelled cannot be blocked"
                self.blocked = moves.end
                self.rows.append(
                    Row(next_seq, RowType.EXECUTION_AWAITING, data=json.dumps({"on": moves.end.on}))
                )
                next_seq = self.next_seq
            if self.warm.finished:
                return moves
            self.warm.accept(
                tail=(), commands=moves.commands, outcomes=(), next_seq=next_seq, now_ms=self.now_ms
            )
            if not came:
                return moves
            self.warm.load(came)

    def _start_over(self) -> None:
        """The report was answered `stale`: replay from the journal."""
        self.warm.evict()
        self.warm = self.replay()
        self.warm.load(self.rows)

    def _intended(self) -> set[int]:
        return {command.child for command in self.commands if isinstance(command, Intend)}

    def _answer(self, command: Command) -> Row | None:
        """What the database answers a command at once: a buffered signal; that there is no such promise."""
        if isinstance(command, Receive):
            return self._deliver(command.name)
        if isinstance(command, CancelChild):
            return self._end_child(command.child)
        if not isinstance(command, Adopt) or not command.name.startswith("missing"):
            return None
        del self.open[command.child]
        words = f"There is no promise {command.name}."
        error = {"type": "NotFound", "module": "pyengine", "message": words, "args": [words]}
        data = json.dumps({**error, "data": {"detail": None, "hint": None}})
        self.rows.append(Row(self.next_seq, RowType.CHILD_SETTLED, command.child, 1, None, None, data))
        return self.rows[-1]

    def _record(self, command: Command) -> None:
        self.commands.append(command)
        row = self._command_row(command)
        if row is not None:
            self.rows.append(row)
        if isinstance(command, RunChild | StartTimer | MakePromise | CallRemote | AwaitRow | Adopt):
            self.open[command.child] = command
        known = self.open.get(command.child)
        if isinstance(command, Intend) and isinstance(known, StepCall):
            self.open[command.child] = replace(known, begun=True)

    def _command_row(self, command: Command) -> Row | None:
        seq = self.next_seq
        if not isinstance(command, Submit | Take | CancelChild):
            taken = {row.child for row in self.rows if row.type in ALLOCATING}
            assert command.child not in taken, f"number {command.child} is taken"
        match command:
            case CancelChild():
                return None
            case RunChild():
                return Row(seq, RowType.CHILD_RUN_SCHEDULED, command.child, None, command.name, command.hash)
            case StartTimer():
                data = {"duration": command.duration_ms, "fire_at": self.now_ms + command.duration_ms}
                return Row(seq, RowType.TIMER_SCHEDULED, command.child, data=json.dumps(data))
            case CallRemote():
                return Row(seq, RowType.PROMISE_REGISTERED, command.child, None, command.name, command.hash)
            case MakePromise() | AwaitRow() | Adopt():
                return Row(seq, RowType.PROMISE_REGISTERED, command.child, None, command.name)
            case Captured():
                kind = RowType.RANDOM_GENERATED if command.kind == "random" else RowType.TIME_RECORDED
                return Row(seq, kind, command.child, None, command.name, None, command.value)
            case MakeJoinSet():
                return Row(seq, RowType.JOIN_SET_CREATED, command.child)
            case Intend():
                policy = f', "retry": {command.retry}' if command.retry else ""
                data_text = f'{{"input": {command.param}{policy}}}'
                return Row(seq, RowType.STEP_STARTED, command.child, 1, command.name, command.hash, data_text)
            case Submit() | Take():
                return self._operation_row(command)
            case Receive():
                assert (
                    not self.cancelling and self.receivers.get(command.name, command.child) == command.child
                )
                self.receivers[command.name] = command.child
                return None

    def _operation_row(self, command: Submit | Take) -> Row:
        """What the database checks of join sets."""
        kinds = {row.child: row.type for row in self.rows if row.type in ALLOCATING}
        done = {row.child for row in self.rows if row.type in RESOLVING}
        taken = {row.child: row.attempt for row in self.rows if row.type == RowType.JOIN_SET_AWAITED}
        assert kinds[command.join_set] == RowType.JOIN_SET_CREATED and kinds[command.child] in MEMBERS
        if isinstance(command, Submit):
            assert command.child not in self.sets and command.join_set not in taken.values()
            self.sets[command.child] = command.join_set
        else:
            assert (
                self.sets[command.child] == command.join_set
                and command.child in done
                and command.child not in taken
            )
        return Row(
            self.next_seq,
            RowType.JOIN_SET_SUBMITTED if isinstance(command, Submit) else RowType.JOIN_SET_AWAITED,
            command.child,
            command.join_set,
        )

    def _count(self, kind: str, name: str) -> int:
        self.counts[kind, name] = number = self.counts.get((kind, name), 0) + 1
        return number

    def _deliver(self, name: str) -> Row | None:
        """Give the next signal to the receive that waits for it, if both are there."""
        if self.cancelling or name not in self.receivers or not self.inboxes.get(name):
            return None
        text = json.dumps(self.inboxes[name].pop(0))
        child = self.receivers.pop(name)
        row = Row(
            self.next_seq,
            RowType.SIGNAL_RECEIVED,
            child,
            self._count(RowType.SIGNAL_RECEIVED, name),
            name,
            None,
            text,
            True,
        )
        self.rows.append(row)
        return row

    def _ask(self, asked: Cancel) -> list[Row]:
        row = Row(self.next_seq, RowType.CANCEL_REQUESTED, data=json.dumps({"reason": asked.reason}))
        self.rows.append(row)
        self.cancelling = True
        self.blocked = None
        if self.keeps_children:
            return [row]
        children = [n for n, one in self.open.items() if isinstance(one, RunChild) and not one.abandon]
        return [row, *(ended for n in children if (ended := self._end_child(n)) is not None)]

    def _end_child(self, child: int) -> Row | None:
        """End a child run that is cancelled, as the database does with one that no worker has begun."""
        if self.keeps_children or self.open.pop(child, None) is None:
            return None
        error = json.dumps({"type": "Cancelled", "kind": "Cancelled", "message": "cancelled"})
        self.rows.append(Row(self.next_seq, RowType.CHILD_SETTLED, child, 1, None, None, error))
        return self.rows[-1]

    def complete(self, child: int, value: Any = None, *, error: BaseException | str | None = None) -> Advance:
        """Complete one child, append its row, and advance."""
        return self.turn(Done(child, value, error))

    def complete_all(self, outcomes: Sequence[tuple[int, Any, BaseException | str | None]]) -> Advance:
        """Complete several children in one turn."""
        return self.turn(*(Done(*each) for each in outcomes))

    def send(self, name: str, payload: Any = None) -> Advance:
        """Send a signal, and advance."""
        return self.turn(SignalSent(name, payload))

    def cancel(self, reason: Any = None) -> Advance:
        """Ask the run to end, and advance."""
        return self.turn(Cancel(reason))

    def turn(self, *events: Done | SignalSent | Cancel) -> Advance:
        """Let things happen before one report: first what others do, then own steps; and advance."""
        tail: list[Row] = []
        outcomes: list[StepOutcome] = []
        mine = [
            one for one in events if isinstance(one, Done) and isinstance(self.open.get(one.child), StepCall)
        ]
        asked = any(isinstance(one, Cancel) for one in events)
        for event in [one for one in events if one not in mine] + ([] if asked else mine):
            if isinstance(event, Cancel):
                tail.extend(self._ask(event))
            elif isinstance(event, SignalSent):
                tail.extend(self._send(event))
            else:
                self._complete(event, tail, outcomes)
        if asked and mine:
            # the outcomes had not seen the request
            self._start_over()
        else:
            self._unblock({row.child for row in tail if row.type in RESOLVING})
            self.warm.accept(
                tail=tail, commands=(), outcomes=outcomes, next_seq=self.next_seq, now_ms=self.now_ms
            )
        return self.advance()

    def _unblock(self, resolved: set[int | None]) -> None:
        wait = self.blocked
        if wait is None or resolved.isdisjoint(wait.on):
            return
        left = tuple(child for child in wait.on if child not in resolved)
        self.blocked = Suspend(on=left, kind="all") if wait.kind == "all" and left else None

    def _send(self, sent: SignalSent) -> list[Row]:
        row = Row(
            self.next_seq,
            RowType.SIGNAL_DELIVERED,
            None,
            self._count(RowType.SIGNAL_DELIVERED, sent.name),
            sent.name,
        )
        self.rows.append(row)
        self.inboxes.setdefault(sent.name, []).append(sent.payload)
        receipt = self._deliver(sent.name)
        return [row] if receipt is None else [row, receipt]

    def _complete(self, done: Done, tail: list[Row], outcomes: list[StepOutcome]) -> None:
        child, error = done.child, done.error
        call = self.open.pop(child, None)
        if call is None:
            return  # a child run that was cancelled in the same turn
        text = json.dumps(done.value)
        if error is not None:
            text = error if isinstance(error, str) else self.codec.encode_error(error)
        if isinstance(call, StepCall):
            given: dict[str, Any] = {"value" if error is None else "error": text}
            outcomes.append(
                StepOutcome(child=child, name=call.name, hash=call.hash, attempt=call.attempt, **given)
            )
            if call.begun:
                kind = RowType.OPEN_STEP_COMPLETED if error is None else RowType.OPEN_STEP_FAILED
            else:
                kind = RowType.STEP_COMPLETED if error is None else RowType.STEP_FAILED
            row = Row(self.next_seq, kind, child, call.attempt, call.name, call.hash, text)
        elif isinstance(call, StartTimer):
            row = Row(self.next_seq, RowType.TIMER_FIRED, child)
            self.now_ms += 1
        elif isinstance(call, Adopt):
            row = Row(self.next_seq, RowType.CHILD_SETTLED, child, 1, call.name, None, text, error is None)
        else:
            row = Row(self.next_seq, RowType.OPEN_CHILD_SETTLED, child, None, None, None, text, error is None)
        self.rows.append(row)
        if not isinstance(call, StepCall):
            tail.append(row)

    @property
    def value(self) -> Any:
        """What the workflow returned."""
        assert isinstance(self.end, Complete), self.end
        return json.loads(self.end.value)

    @property
    def error(self) -> BaseException:
        """What the workflow raised."""
        assert isinstance(self.end, Fail | Refuse), self.end
        return self.codec.decode_error(self.end.error)

    @property
    def problem(self) -> dict[str, Any]:
        """Where it was halted."""
        return problem_of(self.moves)


def waits_of(replay: Replay) -> int:
    """How many steps and transactions the code of a replay waits for."""
    return 0 if replay.finished else len(replay.open_steps) + replay.in_transaction


def problem_of(moves: Advance) -> dict[str, Any]:
    """Return the problem of moves that end in a halt."""
    assert isinstance(moves.end, Halt), moves.end
    problem = json.loads(moves.end.problem)
    assert isinstance(problem, dict)
    return problem
