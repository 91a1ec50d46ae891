"""Does other code fit the journal of a run? The verdict on one run.

What lives here: `judge`, and the records of what it found. What may not: the database (replay_check.py),
printing. The theory: a run is its journal, so code that replays the journal without a difference can take
the run over, and nothing else needs to be asked. A replay ends where the journal ends: no step is executed
and nothing is sent.

A difference is where a worker would halt the run. Beyond that, a run that waits must not end in its replay,
its arguments and recorded values must be readable, and a run that has ended must end again in the same way.
What the code would do next is its own affair.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from pyengine.definitions.current_run import RunInfo
from pyengine.definitions.definition import WorkflowDef
from pyengine.errors import EngineError
from pyengine.protocol.commands import Cancelled, Complete, ContinueAsNew, End, Fail, Halt, Suspend
from pyengine.protocol.journal import Row
from pyengine.replay.machine import Replay
from pyengine.values.codec import Codec

__all__ = ["Divergence", "Finding", "Journal", "Verdict", "judge"]

_BRIEF = 100
_SET_ASIDE = frozenset({"paused", "halted", "dead"})
_OWN_ENDS = frozenset({"completed", "failed", "continued"})
_ENDED_FROM_OUTSIDE = frozenset({"timed_out", "cancelled"})
_WORDS: dict[type[Any], str] = {
    Complete: "completed",
    Fail: "failed",
    Cancelled: "cancelled",
    ContinueAsNew: "continued",
    Suspend: "waits",
    type(None): "works",
}

Verdict: TypeAlias = Literal["ok", "diverged", "unknown"]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The journal of one run, and where the run stands; the fields of the procedure `journals_v1`.

    Args:
        execution: its number in the database.
        id: run id.
        workflow: workflow name.
        version: workflow version.
        param: JSON text of the arguments.
        started_at: epoch milliseconds.
        queue: its queue.
        first_child: where its child numbers begin.
        state: as in the view `durable.runs`, or "continued": a generation that passed on to the next one.
        outcome: JSON text of the value or error it ended with, or of the arguments it passed on.
        waiting_on: numbers that it waits for, if it waits.
        rows: JSON text of its rows.
    """

    execution: int
    id: str
    workflow: str
    version: str
    param: str | None = None
    started_at: int = 0
    queue: str | None = None
    first_child: int = 0
    state: str = "running"
    outcome: str | None = None
    waiting_on: list[int] | None = None
    rows: str = "[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where code and journal part.

    Args:
        child: child number; None if it is not about one.
        expected: what the journal holds, one line.
        got: what the code did, one line.
        neighbours: lines of the journal around that child.
    """

    child: int | None
    expected: str
    got: str
    neighbours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one run.

    Args:
        id: run id.
        execution: its number; of a run that continued as new, one for each generation.
        workflow: workflow name.
        version: workflow version.
        state: where the run stands in the database.
        verdict: ok; diverged; or unknown: the code does not have this workflow in this version.
        ends: where the replay came to: waits, works (steps are to be executed), completed, failed,
            cancelled, continued; None if it diverged on the way or was not replayed.
        divergence: the first difference.
    """

    id: str
    execution: int
    workflow: str
    version: str
    state: str
    verdict: Verdict
    ends: str | None = None
    divergence: Divergence | None = None


def judge(journal: Journal, workflow: WorkflowDef | None, codec: Codec) -> Finding:
    """Replay one journal and return the verdict.

    Args:
        journal: the run.
        workflow: the code; None if there is none for it.
        codec: reads and writes values.

    Raises:
        KeyboardInterrupt: raised inside workflow code.
    """
    ends, divergence = None, None
    if workflow is not None:
        ends, divergence = _replayed(journal, workflow, codec)
    return Finding(
        id=journal.id,
        execution=journal.execution,
        workflow=journal.workflow,
        version=journal.version,
        state=journal.state,
        verdict="unknown" if workflow is None else "ok" if divergence is None else "diverged",
        ends=ends,
        divergence=divergence,
    )


def _replayed(journal: Journal, workflow: WorkflowDef, codec: Codec) -> tuple[str | None, Divergence | None]:
    ended = journal.state in _OWN_ENDS or journal.state in _ENDED_FROM_OUTSIDE
    refused = None if ended else _refused_arguments(journal, workflow)
    if refused is not None:
        return None, refused
    rows = msgspec.json.decode(journal.rows, type=list[Row])
    replay = Replay(
        workflow, _run_info(journal), lambda: time.time_ns() // 1_000_000, random.Random(0), codec
    )
    replay.load(rows)
    try:
        end = replay.advance().end
    finally:
        replay.evict()
    if isinstance(end, Halt):
        return None, _of_problem(end)
    word = _WORDS[type(end)]
    return word, _of_ended(journal, rows, end, word) if ended else _of_live(journal, end, word)


def _run_info(journal: Journal) -> RunInfo:
    return RunInfo(
        id=journal.id,
        execution=journal.execution,
        version=0,
        workflow=journal.workflow,
        workflow_version=journal.version,
        param=journal.param or "[]",
        started_at_ms=journal.started_at,
        queue=journal.queue or "default",
        first_child=journal.first_child,
    )


def _refused_arguments(journal: Journal, workflow: WorkflowDef) -> Divergence | None:
    try:
        workflow.signature.decode(journal.param or "[]")
    except EngineError as error:
        return Divergence(
            child=None, expected=f"arguments {_brief(journal.param)}", got=f"refused: {error.message}"
        )
    return None


def _of_problem(end: Halt) -> Divergence:
    problem = msgspec.json.decode(end.problem)
    return Divergence(
        child=problem.get("child"),
        expected=problem.get("expected") or "a journal that the code can follow",
        got=problem.get("got") or problem.get("message") or "a halt",
        neighbours=tuple(problem.get("neighbours") or ()),
    )


def _of_live(journal: Journal, end: End | None, word: str) -> Divergence | None:
    """Return what is wrong with where the replay of a live run came to."""
    unread = isinstance(end, Fail) and _shape(end.error)[0] == "DecodeError"
    if unread and journal.waiting_on is None:
        return Divergence(child=None, expected="recorded values that the code can read", got=_told(end, word))
    if journal.waiting_on is None:
        return None
    waits = f"the run waits for {_listed(journal.waiting_on)}"
    if word not in ("waits", "works"):
        return Divergence(child=min(journal.waiting_on), expected=waits, got=_told(end, word))
    # one that is resumed stands in the journal as waiting, and may only wait for the same again
    strange = set(end.on) - set(journal.waiting_on) if isinstance(end, Suspend) else set()
    if strange and journal.state in _SET_ASIDE:
        return Divergence(child=min(strange), expected=waits, got=_told(end, word))
    return None


def _of_ended(journal: Journal, rows: list[Row], end: End | None, word: str) -> Divergence | None:
    """Return how the replay of a run that has ended differs from its end."""
    if journal.state in _ENDED_FROM_OUTSIDE or _ended_while_waiting(rows):
        return None
    ours = getattr(end, "error" if word == "failed" else "value", None)
    if word == journal.state:
        as_is = _shape if word == "failed" else _json
        if as_is(ours) == as_is(journal.outcome):
            return None
    return Divergence(
        child=None, expected=f"the workflow {journal.state}: {_shown(journal)}", got=_told(end, word)
    )


def _ended_while_waiting(rows: list[Row]) -> bool:
    """Whether somebody else settled the promise of the run: its code was waiting, and was not resumed."""
    last = next((row.type for row in reversed(rows) if row.type in "AWQ"), "W")
    return last == "A"


def _json(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text or "null")
    except msgspec.DecodeError:
        # a peer of another kind wrote it
        return text


def _shape(error: str | None) -> tuple[Any, ...]:
    """Return what two errors have in common that are the same: class and message, down to the first cause."""
    record = _json(error)
    parts: list[Any] = []
    while isinstance(record, dict):
        parts += (record.get("type"), record.get("message"))
        record = record.get("cause")
    return tuple(parts) or (record,)


def _shown(journal: Journal) -> str:
    return _error(journal.outcome) if journal.state == "failed" else _brief(journal.outcome)


def _told(end: End | None, word: str) -> str:
    match end:
        case Suspend():
            return f"the workflow waits for {_listed(end.on)}"
        case Complete():
            return f"the workflow completed: {_brief(end.value)}"
        case Fail():
            return f"the workflow failed: {_error(end.error)}"
        case None:
            return "the workflow has steps to execute"
        case ContinueAsNew():
            return f"the workflow continued as new: {_brief(end.value)}"
    return f"the workflow {word}"


def _error(text: str | None) -> str:
    kind, message = (*_shape(text), None)[:2]
    return _clipped(f"{kind}: {message}" if message else str(kind))


def _brief(text: str | None) -> str:
    return _clipped(text or "null")


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
