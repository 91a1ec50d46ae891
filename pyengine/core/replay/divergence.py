"""Where code and journal differ, and whether the code or its change is the cause.

Lives here: the record of a difference, its sentence, and `explain`, which replays the same journal a second
time. May not: finding a difference (call_sequence.py), deciding what becomes of the run. The theory: a replay
is a function of code and journal. So if two replays of one journal differ from each other, the code is not
deterministic; if they agree, another code began the run, or the code read something that has changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.protocol.commands import End, Fail, Halt, Refuse
from pyengine.errors import EngineError

SAME_AS_JOURNAL = "what the journal expects"

_HAZARDS_MAX = 3
_CHANGED = "the code or its Python was changed after the run began: a second replay did the same"
_READS = "the code or its Python was changed after the run began, or reads what has changed"
_REMEMBERS = "the code reads what has changed since it ran, such as a global or a closure"
_PASS = "pass it as an argument, or read it in a step"
_TAKE = "take time, random numbers and ids from ctx.now, ctx.random and ctx.uuid4, and the rest from steps"
_DEPLOY = "deploy the code that began the run, or give the change a new version"
_FORK = "then fork the run from before this call, unless the mended code makes the calls of the journal"
_NEW_VALUE = (
    "ctx.now and its like are entries of their own, and the journal has none here: "
    "fork the run from before this call, or deploy the code that began it"
)
_VALUES = ("time ", "random value ")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between the code of a run and its journal.

    Args:
        run_id: the run.
        child: child number.
        expected: the call in the journal, one line.
        got: the call that the code made, one line.
        neighbours: lines of the journal around that child.
        again: what the code did when the same journal was replayed again, if that was something else.
    """

    run_id: str
    child: int | None
    expected: str
    got: str
    neighbours: tuple[str, ...] = ()
    again: str | None = None

    @property
    def message(self) -> str:
        """The sentence."""
        place = f"run {self.run_id}" + ("" if self.child is None else f", child {self.child}")
        if self.again is None:
            return f"{place}: the journal expects {self.expected}, the code made {self.got}"
        return (
            f"{place}: the code is not deterministic: two replays of the same journal gave {self.got}, "
            f"then {self.again}; the journal expects {self.expected}"
        )

    def problem(self, hint: str = _DEPLOY) -> str:
        """Return the JSON text of the problem of a halted run, also that of a NondeterminismError."""
        fields = msgspec.to_builtins(self)
        record = {
            "type": "NondeterminismError",
            "module": "pyengine.errors",
            "message": self.message,
            **fields,
            "args": [self.message],
            "data": {**fields, "detail": None, "hint": hint},
        }
        return msgspec.json.encode(record).decode()


def explain(end: Halt, workflow: WorkflowDef, replay_again: Callable[[], End | None]) -> Halt:
    """Return how a run halts, with the cause of the difference between its code and its journal.

    Args:
        end: how its replay ended.
        workflow: the code.
        replay_again: replays the same journal from its beginning.
    """
    first = _difference(end)
    if first is None:
        return end
    last = replay_again()
    second = _difference(last) if isinstance(last, Halt) else None
    if second is None:
        again: str | None = SAME_AS_JOURNAL
    elif (second.child, second.got) == (first.child, first.got):
        again = None
    else:
        again = second.got if second.child == first.child else f"{second.got} as child {second.child}"
    found = msgspec.structs.replace(first, again=again)
    hint = hint_of(workflow, repeats=again is None)
    if again is not None:
        hint = f"{hint}; {_FORK}"
    elif found.got.startswith(_VALUES):
        hint = f"{_CHANGED}; {_NEW_VALUE}"
    return Halt(problem=found.problem(hint))


def hint_of(workflow: WorkflowDef, *, repeats: bool, same_code: bool = False) -> str:
    """Return the cause and the next thing to try, with the lines of the code that a replay cannot repeat.

    Args:
        workflow: the code.
        repeats: whether two replays agreed.
        same_code: whether it is known that this very code began the run.
    """
    hazards = [] if workflow.home is None else workflow.home.hazards(workflow.fn)[:_HAZARDS_MAX]
    lines = "; ".join(f"{one.file}:{one.line} {one.action}: use {one.instead}" for one in hazards)
    if not repeats:
        return lines or _TAKE
    if same_code:
        return f"{_REMEMBERS}: {lines or _PASS}"
    return f"{_READS}: {lines}; {_DEPLOY}" if lines else f"{_CHANGED}; {_DEPLOY}"


def refusal(failure: Fail, error: EngineError) -> Refuse:
    """Return how a run ends whose code cannot read its arguments or a recorded value.

    Args:
        failure: how it ends if its own code cannot.
        error: why.
    """
    problem = {"type": "Unreadable", "message": error.message, "data": {"hint": _DEPLOY}}
    return Refuse(error=failure.error, problem=msgspec.json.encode(problem).decode())


def _difference(end: Halt) -> Difference | None:
    """Return the difference that halts a run, or None if it is halted for another reason."""
    problem: Any = msgspec.json.decode(end.problem)
    if problem.get("type") != "NondeterminismError":
        return None
    return msgspec.convert(problem, Difference)
