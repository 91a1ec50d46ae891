"""The records that pass between the journal, the replay machine and the worker.

What lives here: immutable facts with their units in their names, and nothing that acts. What may not: a
decision, a clock, I/O. A run is a journal (`Row`) that a coroutine is driven by; driving it yields `Moves`:
what the journal does not hold yet (`acts`, one row each), local steps to execute (`StepCall`), and how the
advance ended (`Suspend`, `Complete`, `Fail`, `Halt`, or not at all while local steps are outstanding). What
the worker learns from executing a step is a `Fact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from pyengine.registry import StepDef

__all__ = [
    "ALLOCATING",
    "RESOLVING",
    "ROW_WIDTH",
    "Act",
    "Adopt",
    "Cancelled",
    "Captured",
    "Complete",
    "ContinueAsNew",
    "End",
    "Fact",
    "Fail",
    "Halt",
    "Intend",
    "MakeJoinSet",
    "MakePromise",
    "Moves",
    "Receive",
    "RolledBack",
    "Row",
    "RunChild",
    "RunInfo",
    "StartTimer",
    "StepCall",
    "StepInfo",
    "StepToken",
    "Submit",
    "Suspend",
    "Take",
    "WaitKind",
]

ROW_WIDTH: Mapping[str, int] = MappingProxyType(
    {"L": 3, "E": 3, "f": 3, "l": 2, "t": 2, "k": 2, "K": 2, "D": 2}
    | dict.fromkeys("SCFYQosrceIXbidTZnmgvjuaAW", 1)
)
"""How many of the twenty logical events a row of each type stands for."""

ALLOCATING = frozenset("LEfloIXTnmvj")
"""Row types that carry a child number for the first time."""

RESOLVING = frozenset("LEcekKdDZv")
"""Row types that complete a child."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One journal row as the turn returns it: an array in this order.

    Args:
        seq: logical number of its first event.
        type: the letter of its type.
        child: child number, or None for events of the run itself.
        attempt: attempt number of a step, counted from 1; number of the delivery of a signal (`g`, `v`);
            number of the join set (`u`, `a`).
        name: step, workflow, promise or signal name.
        hash: 16 hex digits of the input hash.
        data: JSON text; its meaning depends on the type.
        ok: for `d` and `D`: whether the child's promise was resolved; true for `v`.
    """

    seq: int
    type: str
    child: int | None = None
    attempt: int | None = None
    name: str | None = None
    hash: str | None = None
    data: str | None = None
    ok: bool | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which run this is.

    Args:
        id: run id, which is its promise id.
        execution: its number in the database.
        version: version of the lease (fencing token).
        workflow: workflow name.
        workflow_version: workflow version.
        param: JSON text of the arguments.
        started_at_ms: epoch milliseconds of the first event; virtual time 0.
        queue: its queue.
        crashes: how many workers died with it.
        first_child: its first child number; after a continue-as-new its predecessors used those below.
    """

    id: str
    execution: int
    version: int
    workflow: str
    workflow_version: str = "1"
    param: str = "[]"
    started_at_ms: int = 0
    queue: str = "default"
    crashes: int = 0
    first_child: int = 0


class StepToken:
    """Whether the outcome of an attempt is still wanted; read in the thread of the step.

    Attributes:
        cancelled: set, once and for good, in the worker's thread.
    """

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt of which step is being executed (`ctx.step`)."""

    run_id: str
    child: int
    attempt: int
    name: str
    token: StepToken = msgspec.field(default_factory=StepToken)

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the outcome any more: the call was given up or timed out, the run was
        cancelled or has ended, its lease was lost, the worker stops. A plain `def` step cannot be stopped
        from outside; one that takes long looks here and returns.
        """
        return self.token.cancelled

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of this call, for APIs that take one."""
        return f"{self.run_id}.{self.child}"


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
    """Record that the first attempt of a local step begins; `retry` is its policy, as facts tell it."""

    child: int
    name: str
    hash: str
    param: str
    retry: str | None = None


Made: TypeAlias = RunChild | StartTimer | MakePromise | Adopt | Receive | MakeJoinSet
Act: TypeAlias = Made | Captured | RolledBack | Submit | Take | Intend


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A local step that the worker is to execute.

    Args:
        child: child number.
        step: its definition.
        args: positional arguments, read back from `param` (a copy, never the workflow's own objects).
        kwargs: keyword arguments, likewise.
        name: step name.
        hash: input hash.
        param: JSON text of the arguments.
        attempt: number of the attempt to make, counted from 1.
        failures: failed attempts that count for the retry policy.
        retry_at_ms: not before this epoch millisecond, or None.
        begun: the journal holds an open intent or start of this very attempt.
        interrupted: the previous attempt was cut off, which is no failure of the function.
        recorded_retry: JSON text of the policy that the journal holds for the step, which wins over that of
            the code; "" if it was begun without one, None if the journal does not know the step.
    """

    child: int
    step: StepDef
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    hash: str
    param: str
    attempt: int = 1
    failures: int = 0
    retry_at_ms: int | None = None
    begun: bool = False
    interrupted: bool = False
    recorded_retry: str | None = None


class Fact(
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


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since the last advance.

    Args:
        acts: to be recorded, in this order, in which the code did them.
        steps: local steps to execute once the acts are recorded.
        end: how the advance ended; None while local steps are outstanding, and while a cancelled run
            waits for anything in its clean-up, for it cannot be suspended any more.
        waiting_steps: local steps outstanding, new ones included, given-up ones not.
        given_up: steps handed out earlier whose result nobody wants any more; the worker may cancel them.
    """

    acts: tuple[Act, ...] = ()
    steps: tuple[StepCall, ...] = ()
    end: End | None = None
    waiting_steps: int = 0
    given_up: tuple[int, ...] = ()
