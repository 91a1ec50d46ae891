"""What a coroutine asks for, what became of its steps, and how its run leaves the worker.

What lives here: immutable records with their units in their names: a `Command` becomes one row of the
journal, a `StepOutcome` is what an attempt of a step gave, an `Ending` is how a run leaves (completed,
failed, suspended, given back). What may not: a decision, a clock, I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "Adopt",
    "Cancelled",
    "Captured",
    "Command",
    "Complete",
    "ContinueAsNew",
    "End",
    "Ending",
    "Fail",
    "Halt",
    "Intend",
    "MakeJoinSet",
    "MakePromise",
    "Receive",
    "Release",
    "RolledBack",
    "RunChild",
    "StartTimer",
    "StepOutcome",
    "Submit",
    "Suspend",
    "Take",
    "WaitKind",
    "deadlines_ms",
    "text_bytes",
    "weight",
]


class RunChild(msgspec.Struct, frozen=True, kw_only=True):
    """Start a child run. `queue` None means the parent's queue; `timeout_ms` None means no deadline;
    `abandon`: the parent's cancellation does not reach it.
    """

    child: int
    name: str
    version: str
    queue: str | None
    hash: str
    param: str
    timeout_ms: int | None
    detached: bool
    abandon: bool = False


class StartTimer(msgspec.Struct, frozen=True, kw_only=True):
    """Start a timer that fires `duration_ms` after the turn that records it."""

    child: int
    duration_ms: int


class MakePromise(msgspec.Struct, frozen=True, kw_only=True):
    """Create an external promise. `name` is a label; with a `key` (JSON text) it is the watch of that row."""

    child: int
    name: str
    timeout_ms: int | None
    key: str | None = None
    hash: str | None = None


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a replay must not compute again; `name` is the call that took it (now, random, uuid4)."""

    child: int
    kind: Literal["random", "time"]
    name: str
    value: str


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that left nothing but what its statements answered, which a replay must find again."""

    child: int
    name: str
    hash: str
    value: str


class Adopt(msgspec.Struct, frozen=True, kw_only=True):
    """Wait for a promise that the run did not make; `name` is its id."""

    child: int
    name: str


class Receive(msgspec.Struct, frozen=True, kw_only=True):
    """Receive the next signal of this name under this number; no row stands for it until it came."""

    child: int
    name: str


class MakeJoinSet(msgspec.Struct, frozen=True, kw_only=True):
    """Make a join set."""

    child: int


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Put a child into a join set; one that is a local step has its `Intend` before this."""

    child: int
    join_set: int


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """Take the result of a completed member out of its join set."""

    child: int
    join_set: int


class Intend(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the first attempt of a local step begins; `retry` is its policy, as outcomes tell it."""

    child: int
    name: str
    hash: str
    param: str
    retry: str | None = None


Made: TypeAlias = RunChild | StartTimer | MakePromise | Adopt | Receive | MakeJoinSet
Command: TypeAlias = Made | Captured | RolledBack | Submit | Take | Intend


class StepOutcome(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"retry_in_ms": "retry_in"},
    gc=False,
):
    """What became of one attempt of a local step; exactly one of value, error, begun is given.

    It is written to a turn as it stands here.

    Args:
        child: child number.
        name: step name.
        hash: input hash.
        attempt: attempt number.
        value: JSON text of the result.
        error: JSON text of the error.
        retry_in_ms: with `error`: tried again after this many milliseconds; None means failed for good.
        begun: an intent: the attempt has begun and has no outcome yet.
        param: with `begun`: JSON text of the arguments.
        retry: with the first row about the step, if that is not its last: JSON text of its retry policy.
    """

    child: int
    name: str
    hash: str
    attempt: int
    value: str | None = None
    error: str | None = None
    retry_in_ms: int | None = None
    begun: bool = False
    param: str | None = None
    retry: str | None = None


WaitKind: TypeAlias = Literal["single", "any", "all", "signal"]


class Suspend(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do until children resolve: one of `on` (single, any, signal) or every one (all)."""

    on: tuple[int, ...]
    kind: WaitKind


class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow returned; `value` is JSON text."""

    value: str


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow raised; `error` is JSON text."""

    error: str


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """Code and journal disagree; `problem` is JSON text, shown by the view `durable.runs`."""

    problem: str


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow ended because somebody had asked it to, after its clean-up."""


class ContinueAsNew(msgspec.Struct, frozen=True, kw_only=True):
    """The run goes on as a new execution with a journal of its own.

    Args:
        value: JSON text of its arguments.
        next_child: where its child numbers go on.
        kept: numbers of receives whose signals came and were never looked at; they are sent on.
    """

    value: str
    next_child: int
    kept: tuple[int, ...] = ()


End: TypeAlias = Suspend | Complete | Fail | Halt | Cancelled | ContinueAsNew


_WITH_PARAM = (RunChild, Intend)


_WITH_VALUE = (Captured, RolledBack)


_WITH_TIMEOUT = (RunChild, MakePromise)


def weight(commands: Iterable[Command], end: Ending | None) -> int:
    """Return how many bytes of payload commands and an ending carry."""
    size = 0
    for command in commands:
        if isinstance(command, _WITH_PARAM):
            size += text_bytes(command.param)
        elif isinstance(command, _WITH_VALUE):
            size += text_bytes(command.value)
    match end:
        case None:
            pass
        case Complete(value=text) | ContinueAsNew(value=text) | Fail(error=text) | Halt(problem=text):
            size += text_bytes(text)
    return size


def text_bytes(text: str) -> int:
    """Return how many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode())


def deadlines_ms(commands: Iterable[Command]) -> Iterator[int]:
    """Return in how many milliseconds what a coroutine made is due."""
    for command in commands:
        if isinstance(command, StartTimer):
            yield command.duration_ms
        elif isinstance(command, _WITH_TIMEOUT) and command.timeout_ms is not None:
            yield command.timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give the task back; nobody is to take it before `retry_in_ms`, unless something it waits for
    resolves.
    """

    retry_in_ms: int = 0


Ending: TypeAlias = End | Release
