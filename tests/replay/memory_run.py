"""A run in memory: a journal as the database would keep it, and the turns between it and the replay machine.

It knows the row types and nothing about coroutines: acts become rows, facts become rows, time passes by hand.
`warm` is the replay that lives through all of it; `cold` makes a second one from the journal alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyengine.codec import Codec
from pyengine.model import (
    ROW_WIDTH,
    Act,
    Captured,
    Complete,
    Fact,
    Fail,
    Halt,
    MakePromise,
    Moves,
    Row,
    RunChild,
    RunInfo,
    StartTimer,
    StepCall,
    Suspend,
)
from pyengine.registry import Step, Workflow, make_step, make_workflow
from pyengine.replay import Replay

STARTED_MS = 1_700_000_000_000


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


class MemoryRun:
    """One run, its journal, and what it waits for."""

    def __init__(
        self,
        code: Workflow[..., Any],
        *args: Any,
        codec: Codec | None = None,
        seed: int = 1,
        rows: Sequence[Row] = (),
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
        )
        self.seed = seed
        self.now_ms = STARTED_MS
        self.rows = list(rows) or [Row(0, "S")]
        self.open: dict[int, Act | StepCall] = {}
        self.warm = self.replay()
        self.warm.load(self.rows)
        self.moves = Moves()
        self.advance()

    @property
    def next_seq(self) -> int:
        """The logical number of the next row."""
        return self.rows[-1].seq + ROW_WIDTH[self.rows[-1].type]

    @property
    def end(self) -> Any:
        """How the last advance ended."""
        return self.moves.end

    def replay(self, code: Workflow[..., Any] | None = None) -> Replay:
        """Return a new replay, of this code or of other code."""
        definition = self.code if code is None else code.definition
        return Replay(definition, self.run, lambda: self.now_ms, random.Random(self.seed), self.codec)

    def cold(self, code: Workflow[..., Any] | None = None, rows: Sequence[Row] | None = None) -> Moves:
        """Return the moves of a replay of the whole journal by a process that knows nothing else."""
        replay = self.replay(code)
        replay.load(self.rows if rows is None else rows)
        moves = replay.advance()
        replay.evict()
        return moves

    def advance(self) -> Moves:
        """Advance the warm replay and record what it did."""
        self.moves = moves = self.warm.advance()
        if isinstance(moves.end, Halt):
            return moves
        for act in moves.acts:
            self.rows.append(self._act_row(act))
            self.open[act.child] = act
            if isinstance(act, Captured):
                del self.open[act.child]
        for call in moves.steps:
            self.open[call.child] = call
        if isinstance(moves.end, Suspend):
            self.rows.append(Row(self.next_seq, "A", data=json.dumps({"on": moves.end.on})))
        if not self.warm.finished:
            self.warm.accept(tail=(), facts=(), next_seq=self.next_seq, now_ms=self.now_ms)
        return moves

    def _act_row(self, act: Act) -> Row:
        seq = self.next_seq
        match act:
            case RunChild():
                return Row(seq, "I", act.child, None, act.name, act.hash)
            case StartTimer():
                data = {"duration": act.duration_ms, "fire_at": self.now_ms + act.duration_ms}
                return Row(seq, "T", act.child, data=json.dumps(data))
            case MakePromise():
                return Row(seq, "X", act.child, None, act.name)
            case Captured():
                kind = "n" if act.kind == "random" else "m"
                return Row(seq, kind, act.child, None, act.name, None, act.value)

    def complete(self, child: int, value: Any = None, *, error: BaseException | str | None = None) -> Moves:
        """Complete one child, append its row, and advance."""
        return self.complete_all([(child, value, error)])

    def complete_all(self, outcomes: Sequence[tuple[int, Any, BaseException | str | None]]) -> Moves:
        """Complete several children in one turn: first those that others complete, then own steps."""
        tail: list[Row] = []
        facts: list[Fact] = []
        mine = [each for each in outcomes if isinstance(self.open[each[0]], StepCall)]
        for child, value, error in [each for each in outcomes if each not in mine] + mine:
            call = self.open.pop(child)
            text = json.dumps(value)
            if error is not None:
                text = error if isinstance(error, str) else self.codec.encode_error(error)
            if isinstance(call, StepCall):
                given: dict[str, Any] = {"value" if error is None else "error": text}
                facts.append(Fact(child=child, name=call.name, hash=call.hash, attempt=call.attempt, **given))
                kind = ("L" if error is None else "E") if not call.begun else ("c" if error is None else "e")
                row = Row(self.next_seq, kind, child, call.attempt, call.name, call.hash, text)
            elif isinstance(call, StartTimer):
                row = Row(self.next_seq, "Z", child)
                self.now_ms += 1
            else:
                row = Row(self.next_seq, "d", child, None, None, None, text, error is None)
            self.rows.append(row)
            if not isinstance(call, StepCall):
                tail.append(row)
        self.warm.accept(tail=tail, facts=facts, next_seq=self.next_seq, now_ms=self.now_ms)
        return self.advance()

    @property
    def value(self) -> Any:
        """What the workflow returned."""
        assert isinstance(self.end, Complete), self.end
        return json.loads(self.end.value)

    @property
    def error(self) -> BaseException:
        """What the workflow raised."""
        assert isinstance(self.end, Fail), self.end
        return self.codec.decode_error(self.end.error)

    @property
    def problem(self) -> dict[str, Any]:
        """Where it was halted."""
        return problem_of(self.moves)


def problem_of(moves: Moves) -> dict[str, Any]:
    """Return the problem of moves that end in a halt."""
    assert isinstance(moves.end, Halt), moves.end
    problem = json.loads(moves.end.problem)
    assert isinstance(problem, dict)
    return problem
