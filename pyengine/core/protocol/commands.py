"""Records of a run report: commands of the code, outcomes of steps, and how the run leaves the worker.

Lives here: immutable records, written to a turn as they stand here. A `Command` becomes one row of the
journal; a `StepOutcome` is the result of one attempt of a step; an `Ending` is how a run leaves: completed,
failed, suspended, released. May not: a decision, a clock, I/O. On the wire `do` names the
kind of a record, and fields with their default are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec


class _Tagged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="do"):
    """A record whose kind is `do` on the wire."""


class RunChild(_Tagged, frozen=True, kw_only=True, tag="run", rename={"timeout_ms": "timeout"}):
    """Start a child run.

    Args:
        child: child number.
        name: workflow name.
        version: workflow version.
        queue: its queue; None means the parent's.
        hash: input hash.
        param: JSON text of the arguments.
        timeout_ms: its deadline, milliseconds from its start; None means none.
        detached: the parent cannot wait for it.
        abandon: the parent's cancellation does not reach it.
    """

    child: int
    name: str
    version: str
    queue: str | None = None
    hash: str
    param: str
    timeout_ms: int | None = None
    detached: bool = False
    abandon: bool = False


class CancelChild(_Tagged, frozen=True, kw_only=True, tag="cancel"):
    """Cancel a child run; its end comes as that of any child. It has no row: to ask twice changes nothing."""

    child: int


class StartTimer(_Tagged, frozen=True, kw_only=True, tag="timer", rename={"duration_ms": "duration"}):
    """Start a timer that fires `duration_ms` after the turn that records it.

    Args:
        child: child number.
        duration_ms: milliseconds until it fires.
        name: the signal for which a receive waits no longer, for people; None for a sleep.
    """

    child: int
    duration_ms: int
    name: str | None = None


class MakePromise(_Tagged, frozen=True, kw_only=True, tag="promise", rename={"timeout_ms": "timeout"}):
    """Create an external promise; `name` is a label, `param` the JSON schema of its value, if known."""

    child: int
    name: str
    timeout_ms: int | None = None
    param: str | None = None


class CallRemote(
    _Tagged, frozen=True, kw_only=True, tag="rpc", rename={"timeout_ms": "timeout", "target": "queue"}
):
    """Call a function of another language.

    Args:
        child: child number.
        name: name of the function.
        target: address of the processes that serve it.
        hash: input hash.
        param: JSON text of the call.
        timeout_ms: its deadline, milliseconds from its start; None means none.
    """

    child: int
    name: str
    target: str
    hash: str
    param: str
    timeout_ms: int | None = None


class AwaitRow(
    _Tagged, frozen=True, kw_only=True, tag="until", rename={"timeout_ms": "timeout", "key": "param"}
):
    """Wait for a row of a table.

    Args:
        child: child number.
        name: table and watch, "orders.paid".
        hash: input hash.
        key: JSON text of the key of the row.
        timeout_ms: limit of the wait, milliseconds; None means none.
    """

    child: int
    name: str
    hash: str
    key: str
    timeout_ms: int | None = None


class Captured(msgspec.Struct, frozen=True, kw_only=True, rename={"kind": "do"}):
    """A value that a replay must not compute again; `name` is the call that took it (now, uuid4)."""

    kind: Literal["random", "time"]
    child: int
    name: str
    value: str


class RolledBack(_Tagged, frozen=True, kw_only=True, tag="transaction"):
    """A transaction that was rolled back; `value` holds the outcomes of its statements for replays."""

    child: int
    name: str
    hash: str
    value: str


class Adopt(_Tagged, frozen=True, kw_only=True, tag="adopt"):
    """Wait for a promise that the run did not make; `name` is its id."""

    child: int
    name: str


class Receive(_Tagged, frozen=True, kw_only=True, tag="receive"):
    """Receive the next signal of this name under this number; its row is written when the signal comes."""

    child: int
    name: str


class MakeJoinSet(_Tagged, frozen=True, kw_only=True, tag="join_set"):
    """Make a join set."""

    child: int


class Submit(_Tagged, frozen=True, kw_only=True, tag="submit", rename={"join_set": "set"}):
    """Put a child into a join set; a local step has its `Intend` before this."""

    child: int
    join_set: int


class Take(_Tagged, frozen=True, kw_only=True, tag="take", rename={"join_set": "set"}):
    """Take the result of a completed member out of its join set."""

    child: int
    join_set: int


class Intend(_Tagged, frozen=True, kw_only=True, tag="intent"):
    """Record that the first attempt of a local step begins; `retry` is the JSON text of its retry policy."""

    child: int
    name: str
    hash: str
    param: str
    retry: str | None = None


Command: TypeAlias = (
    RunChild
    | CancelChild
    | StartTimer
    | MakePromise
    | CallRemote
    | AwaitRow
    | Captured
    | RolledBack
    | Adopt
    | Receive
    | MakeJoinSet
    | Submit
    | Take
    | Intend
)


class StepOutcome(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"retry_in_ms": "retry_in"},
    gc=False,
):
    """The result of one attempt of a local step; exactly one of value, error, begun is given.

    Args:
        child: child number.
        name: step name.
        hash: input hash.
        attempt: attempt number.
        value: JSON text of the result.
        error: JSON text of the error.
        retry_in_ms: with `error`: milliseconds until the next attempt; None means failed for good.
        begun: an intent: the attempt has begun and has no result yet.
        param: with `begun`: JSON text of the arguments.
        retry: JSON text of the retry policy, in the first of several outcomes of a step.
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


class Suspend(_Tagged, frozen=True, kw_only=True, tag="suspend"):
    """Wait until children complete: one of `on` (single, any, signal) or every one (all)."""

    on: tuple[int, ...]
    kind: WaitKind


class Complete(_Tagged, frozen=True, kw_only=True, tag="complete"):
    """The workflow returned; `value` is JSON text."""

    value: str


class Fail(_Tagged, frozen=True, kw_only=True, tag="fail"):
    """The workflow raised; `error` is JSON text."""

    error: str


class Halt(_Tagged, frozen=True, kw_only=True, tag="halt"):
    """Code and journal disagree; `problem` is JSON text, shown by the view `durable.runs`."""

    problem: str


class Refuse(_Tagged, frozen=True, kw_only=True, tag="refuse"):
    """The code cannot read arguments or recorded values, and ends by that.

    The database knows which code wrote them. If it was this one the run fails; else it does not fit this
    worker, and is left to one with that code, or halted.

    Args:
        error: JSON text of the error.
        problem: JSON text, as that of `Halt`.
    """

    error: str
    problem: str


class Cancelled(_Tagged, frozen=True, kw_only=True, tag="cancel"):
    """The workflow ended after a cancellation request and its clean-up."""


class ContinueAsNew(
    _Tagged,
    frozen=True,
    kw_only=True,
    tag="continue",
    rename={"children": "on", "retry_in_ms": "retry_in"},
):
    """The run goes on as a new execution with a journal of its own.

    Args:
        value: JSON text of its arguments.
        children: its first child number, then the numbers of receives whose signals came and were not read:
            the new execution receives these signals again.
        error: JSON text of the failure after which the run is tried again; it then receives every signal
            again. None for continue-as-new.
        retry_in_ms: with `error`: milliseconds until the next attempt.
        version: the version of the workflow with which it goes on, if it is another one.
    """

    value: str
    children: tuple[int, ...] = ()
    error: str | None = None
    retry_in_ms: int | None = None
    version: str | None = None


End: TypeAlias = Suspend | Complete | Fail | Halt | Refuse | Cancelled | ContinueAsNew


class Release(_Tagged, frozen=True, kw_only=True, tag="release", rename={"retry_in_ms": "retry_in"}):
    """Give the lease back; nothing claims the run for `retry_in_ms`, unless something it awaits resolves."""

    retry_in_ms: int


Ending: TypeAlias = End | Release

LAST = (Complete, Fail, Halt, Refuse, Cancelled)
"""After these a worker has nothing more to do with the run."""

_WITH_PARAM = (RunChild, CallRemote, Intend)
_WITH_VALUE = (Captured, RolledBack)
_WITH_TIMEOUT = (RunChild, MakePromise, CallRemote, AwaitRow)


def weight(commands: Iterable[Command], end: Ending | None) -> int:
    """Return the payload of commands and an ending, in bytes."""
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
            if isinstance(end, ContinueAsNew):
                size += text_bytes(end.error or "")
        case Refuse(error=error, problem=problem):
            size += text_bytes(error) + text_bytes(problem)
    return size


def text_bytes(text: str) -> int:
    """Return the length of a text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


def deadlines_ms(commands: Iterable[Command]) -> Iterator[int]:
    """Return the milliseconds until each deadline that these commands set."""
    for command in commands:
        if isinstance(command, StartTimer):
            yield command.duration_ms
        elif isinstance(command, CancelChild):
            yield 0  # a tick carries it out
        elif isinstance(command, _WITH_TIMEOUT) and command.timeout_ms is not None:
            yield command.timeout_ms
