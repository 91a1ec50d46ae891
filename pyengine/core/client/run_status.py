"""The state of a run, as a client sees it.

Lives here: `RunStatus`, a run as it is now, and how it is read from a row; and `RunMoment`, a run as it was.
May not: a query (run.py), why it waits (protocol/causes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from pyengine.core.values.codec import Codec
from pyengine.core.values.depth import read_plain
from pyengine.errors import DecodeError

ENDED = ("completed", "failed", "timed_out", "cancelled")
"""The states of runs that have ended."""

RunState: TypeAlias = Literal[
    "scheduled",
    "queued",
    "running",
    "waiting",
    "paused",
    "halted",
    "dead",
    "cancelling",
    "completed",
    "failed",
    "timed_out",
    "cancelled",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come, as it has set by `ctx.progress`.

    Args:
        done: how much is done.
        total: how much there is to do; None means unknown.
        note: what is being done.
    """

    done: float
    total: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCounts:
    """The child runs of a run, by what became of them.

    Args:
        total: all that were started.
        done: completed.
        failed: failed, timed out, or cancelled.
        running: not ended.
    """

    total: int
    done: int
    failed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as it is now.

    Args:
        id: run id.
        workflow: workflow name.
        version: workflow version.
        state: its state.
        queue: its queue.
        priority: smaller is claimed first.
        args: its arguments as plain JSON values.
        result: its result as a plain JSON value, once completed.
        error: its error, once it ended otherwise.
        problem: why it is paused, halted or dead.
        worker: the worker that has its lease.
        crashes: consecutive leases that ended with the loss of the worker.
        waits_for: what it waits for, by name: signals, rows, runs, promises, open steps.
        created_at: the instant of its start.
        settled_at: the instant of its end.
        deadline: the instant at which it times out.
        parent: id of the run that started it.
        key: its idempotency key.
        events: length of its journal.
        tags: its tags.
        progress: how far it has come; None if it has set no progress.
        values: its named values (`ctx.set`).
        children: its child runs; None in a list of runs, for which they are not counted.
    """

    id: str
    workflow: str
    version: str
    state: RunState
    queue: str | None
    priority: int | None
    args: Any
    result: Any
    error: BaseException | None
    problem: Any
    worker: str | None
    crashes: int | None
    waits_for: tuple[str, ...]
    created_at: datetime
    settled_at: datetime | None
    deadline: datetime | None
    parent: str | None
    key: str | None
    events: int
    tags: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    children: ChildCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoment:
    """A run as it was when its journal had so many events.

    Args:
        generation: the number of the journal, from 1; each continue-as-new begins the next.
        seq: number of events.
        at: instant of the last event.
        status: running, blocked, cancelling, completed, failed or cancelled.
        next_child: the next child number.
        waits_for: ids of the promises that it waited for.
        running: local steps that were not complete: name, child, attempt, state.
        children: by child number: kind, name, state, and value or error as plain JSON values.
        signals: by name: the numbers delivered and received.
    """

    generation: int
    seq: int
    at: datetime
    status: str
    next_child: int
    waits_for: tuple[str, ...]
    running: tuple[Mapping[str, Any], ...]
    children: Mapping[int, Mapping[str, Any]]
    signals: Mapping[str, Mapping[str, int]]


def read_status(row: Any, codec: Codec) -> RunStatus:
    """Return the status that a row of `durable.runs` describes."""

    def value(name: str) -> Any:
        return None if row[name] is None else read_plain(row[name])

    fields = dict(row) | {name: value(name) for name in ("args", "result", "problem", "tags")}
    fields["error"] = None if row["error"] is None else codec.decode_error(row["error"])
    fields["waits_for"] = tuple(row["waits_for"] or ())
    fields["children"] = None if row["children"] is None else ChildCounts(**value("children"))
    shown = value("progress") or {"done": None, "named": {}}
    fields["values"] = shown["named"]
    fields["progress"] = None
    if shown["done"] is not None:
        fields["progress"] = Progress(done=shown["done"], total=shown["total"], note=shown["note"])
    return RunStatus(**fields)


def read_moment(row: Any, decode: Callable[[str], Any] = msgspec.json.decode) -> RunMoment:
    """Return the moment that a row of `durable.as_of` describes.

    Args:
        row: the row, with JSON as text.
        decode: reads such a text.

    Raises:
        DecodeError: a value in it is nested too deeply to be read.
    """
    try:
        parts = [decode(row[name]) for name in ("running", "children", "signals")]
    except RecursionError:
        parts = []
    # `decode` may answer the text itself
    if not parts or any(isinstance(part, str) for part in parts):
        raise DecodeError("a value of this moment is nested too deeply to be read", where="children")
    running, children, signals = parts
    return RunMoment(
        generation=row["generation"],
        seq=row["seq"],
        at=row["at"],
        status=row["status"],
        next_child=row["next_child"],
        waits_for=tuple(row["waiting_on"]),
        running=tuple(running),
        children={int(child): one for child, one in children.items()},
        signals=signals,
    )
