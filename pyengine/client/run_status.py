"""Where a run stands, as a client sees it.

What lives here: `RunStatus`, a run as it is now, and `RunMoment`, as it was. What may not: asking the
database for them (run.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

__all__ = ["RunMoment", "RunState", "RunStatus"]


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
class RunStatus:
    """A run as it is now.

    Args:
        id: run id.
        workflow: workflow name.
        version: workflow version.
        state: where it stands.
        queue: its queue.
        priority: smaller is claimed first.
        args: its arguments as plain JSON values.
        result: its result as a plain JSON value, once completed.
        error: its error, once it ended otherwise.
        problem: why it is paused, halted or dead.
        worker: who works on it.
        crashes: workers lost with it in a row.
        waits_for: ids of what it waits for.
        created_at: when it was started.
        settled_at: when it ended.
        deadline: when it times out.
        parent: id of the run that started it.
        key: its idempotency key.
        events: length of its journal.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoment:
    """A run as it was when its journal had so many events.

    Args:
        generation: which of its journals that was, from 1; more than one if it continued as new.
        seq: events there were.
        at: instant of the last of them.
        status: running, blocked, cancelling, completed, failed or cancelled.
        next_child: the child number that came next.
        waits_for: ids of what it waited for.
        running: local steps that were not complete: name, child, attempt, state.
        children: by child number: kind, name, state, and value or error as plain JSON values.
        signals: by name: how many were delivered and received.
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
