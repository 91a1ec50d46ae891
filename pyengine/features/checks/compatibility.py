"""The check that other code fits the journal of a run.

Lives here: `check_journal`, and the records of its findings. May not: the database (replay_check.py),
printing. Design: a run is its journal, so code that replays the journal without a difference can continue
the run, and no other check is needed. A replay ends where the journal ends: it executes no step and sends
nothing.

A difference is a place where a worker would halt the run. In addition, a run that waits must not end in its
replay, its arguments and recorded values must be readable, and a run that has ended must end the same way
again. Commands after the end of the journal are not checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.definition import WorkflowDef, python_of
from pyengine.core.protocol.commands import (
    Cancelled,
    Complete,
    ContinueAsNew,
    End,
    Fail,
    Halt,
    Refuse,
    Suspend,
)
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.divergence import SAME_AS_JOURNAL
from pyengine.core.replay.machine import Replay
from pyengine.core.rules import RULES
from pyengine.core.values.codec import Codec
from pyengine.errors import EngineError
from pyengine.features.checks.unawaited import UNAWAITED

_BRIEF = 100
_STOPPED = frozenset({"paused", "halted", "dead"})
_WAITING = frozenset({RowType.EXECUTION_AWAITING, RowType.EXECUTION_RESUMED, RowType.CANCEL_REQUESTED})
READABLE = "recorded values that the code can read"
"""The expectation of a journal that holds a value which its replay cannot read."""
_OWN_ENDS = frozenset({"completed", "failed", "continued"})
_ENDED_FROM_OUTSIDE = frozenset({"timed_out", "cancelled"})
_ENDINGS: dict[type[Any], str] = {
    Complete: "completed",
    Fail: "failed",
    Cancelled: "cancelled",
    ContinueAsNew: "continued",
    Suspend: "waits",
    type(None): "works",
}

Verdict: TypeAlias = Literal["ok", "diverged", "unknown"]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The journal of one run, and the state of the run; the fields of the procedure `journals_v1`.

    Args:
        execution: its number in the database.
        id: run id.
        workflow: workflow name.
        version: workflow version.
        param: JSON text of the arguments.
        started_at: epoch milliseconds.
        queue: its queue.
        first_child: its first child number.
        state: as in the view `durable.runs`, or "continued": a generation that continued as new. One that was
            tried again has failed.
        outcome: JSON text of its value or error, or of the arguments of the next generation.
        waiting_on: child numbers that it waits for, if it waits.
        rows: JSON text of its rows.
        rules: the rules by which it is replayed.
        digest: digest of the code that wrote it, in hex.
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
    rules: int = RULES
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where code and journal diverge.

    Args:
        child: child number; None if it is not about one.
        expected: the call in the journal, one line.
        got: the call of the code, one line.
        neighbours: lines of the journal around that child.
        again: what a second replay of the same journal had there, if that was something else: the code is not
            deterministic.
    """

    child: int | None
    expected: str
    got: str
    neighbours: tuple[str, ...] = ()
    again: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one run.

    Args:
        id: run id.
        execution: its number; a run that continued as new has one for each generation.
        workflow: workflow name.
        version: workflow version.
        state: the state of the run in the database.
        verdict: ok; diverged; or unknown: the code does not have this workflow in this version.
        ends: the end of the replay: waits, works (steps are to be executed), completed, failed, cancelled,
            continued; None if it diverged before or was not replayed.
        divergence: the first difference.
        python: the Python that drove the run, if that is known.
    """

    id: str
    execution: int
    workflow: str
    version: str
    state: str
    verdict: Verdict
    ends: str | None = None
    divergence: Divergence | None = None
    python: str | None = None


def check_journal(journal: Journal, workflow: WorkflowDef | None, codec: Codec) -> Finding:
    """Replay one journal and return the verdict; one that diverges is replayed twice, to find the cause.

    Args:
        journal: the run.
        workflow: the code, or None if there is none for it.
        codec: encodes and decodes values.

    Raises:
        KeyboardInterrupt: raised inside workflow code.
    """
    ends, divergence = None, None
    if workflow is not None:
        first = _replayed(journal, workflow, codec)
        ends, divergence = first.ends, first.divergence
        if divergence is not None:
            second = _replayed(journal, workflow, codec)
            if second != first:
                again = SAME_AS_JOURNAL if second.divergence is None else second.divergence.got
                divergence = replace(divergence, again=again)
    return Finding(
        id=journal.id,
        execution=journal.execution,
        workflow=journal.workflow,
        version=journal.version,
        state=journal.state,
        verdict="unknown" if workflow is None else "ok" if divergence is None else "diverged",
        ends=ends,
        divergence=divergence,
        python=None if journal.digest is None else python_of(journal.digest),
    )


@dataclass(frozen=True, slots=True)
class _Replayed:
    """How one replay ended, where it diverged first, and the whole value or error that it ended with."""

    ends: str | None
    divergence: Divergence | None
    value: Any = None


def _replayed(journal: Journal, workflow: WorkflowDef, codec: Codec) -> _Replayed:
    ended = journal.state in _OWN_ENDS or journal.state in _ENDED_FROM_OUTSIDE
    refused = None if ended else _refused_arguments(journal, workflow)
    if refused is not None:
        return _Replayed(None, refused)
    rows = msgspec.json.decode(journal.rows, type=list[Row])
    replay = Replay(
        workflow,
        _run_info(journal),
        lambda: time.time_ns() // 1_000_000,
        random.Random(0),
        codec,
        unawaited=UNAWAITED,
    )
    replay.load(rows)
    try:
        end = replay.advance().end
    finally:
        replay.evict()
    if isinstance(end, Halt):
        return _Replayed(None, _of_problem(end))
    if isinstance(end, Refuse):
        end = Fail(error=end.error)
    if isinstance(end, ContinueAsNew) and end.error is not None:
        # whether another attempt follows is a matter of the policy, not of the journal
        end = Fail(error=end.error)
    ending = _ENDINGS[type(end)]
    found = _of_ended(journal, rows, end, ending) if ended else _of_live(journal, end, ending)
    value = _shape(end.error) if isinstance(end, Fail) else _json(getattr(end, "value", None))
    return _Replayed(ending, found, value)


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
        rules=journal.rules,
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


def _of_live(journal: Journal, end: End | None, ending: str) -> Divergence | None:
    """Return the difference between a live run and the end of its replay."""
    unread = isinstance(end, Fail) and _shape(end.error)[0] == "DecodeError"
    got = _description(end, ending)
    if unread and journal.waiting_on is None:
        return Divergence(child=None, expected=READABLE, got=got)
    if journal.waiting_on is None:
        return None
    waits = f"the run waits for {_listed(journal.waiting_on)}"
    if ending not in ("waits", "works"):
        return Divergence(child=min(journal.waiting_on), expected=waits, got=got)
    # the journal of a resumed run may still end with a wait; its replay may wait for the same promises only
    unexpected = set(end.on) - set(journal.waiting_on) if isinstance(end, Suspend) else set()
    if unexpected and journal.state in _STOPPED:
        return Divergence(child=min(unexpected), expected=waits, got=got)
    return None


def _of_ended(journal: Journal, rows: list[Row], end: End | None, ending: str) -> Divergence | None:
    """Return the difference between the end of a run and the end of its replay."""
    if journal.state in _ENDED_FROM_OUTSIDE or _ended_while_waiting(rows):
        return None
    ours = getattr(end, "error" if ending == "failed" else "value", None)
    if ending == journal.state:
        comparable = _shape if ending == "failed" else _json
        if comparable(ours) == comparable(journal.outcome):
            return None
    return Divergence(
        child=None,
        expected=f"the workflow {journal.state}: {_outcome(journal)}",
        got=_description(end, ending),
    )


def _ended_while_waiting(rows: list[Row]) -> bool:
    """Return whether the promise was settled from outside: the code was waiting, and not resumed."""
    last = next((row.type for row in reversed(rows) if row.type in _WAITING), None)
    return last == RowType.EXECUTION_AWAITING


def _json(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text or "null")
    except msgspec.DecodeError:
        # written by a peer with another encoding
        return text


def _shape(error: str | None) -> tuple[Any, ...]:
    """Return class and message of an error and of its causes; equal errors have equal shapes."""
    record = _json(error)
    parts: list[Any] = []
    while isinstance(record, dict):
        parts += (record.get("type"), record.get("message"))
        record = record.get("cause")
    return tuple(parts) or (record,)


def _outcome(journal: Journal) -> str:
    return _error(journal.outcome) if journal.state == "failed" else _brief(journal.outcome)


def _description(end: End | None, ending: str) -> str:
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
    return f"the workflow {ending}"


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
