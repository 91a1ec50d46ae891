"""The run, and the attempt of a step, that the running code belongs to.

Lives here: `RunInfo` and `StepInfo`, the two context variables that hold the current ones, and the protocol
`WorkflowRuntime` of the calls that workflow code makes. May not: its implementation, which is the replay
machine's (replay/call_matcher.py), so that steps and `ctx` need not import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol
from uuid import UUID

import msgspec

from pyengine.core.definitions.definition import StepDef, WorkflowDef
from pyengine.core.rules import EXACT_VALUES_RULES, RULES
from pyengine.core.values.codec import TypeCodec
from pyengine.errors import ForbiddenInWorkflow, InvalidRequest


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a run and its lease.

    Args:
        id: run id, which is its promise id.
        execution: its number in the database.
        version: version of the lease (fencing token).
        workflow: workflow name.
        workflow_version: workflow version.
        param: JSON text of the arguments.
        started_at_ms: epoch milliseconds of the first event; virtual time 0.
        queue: its queue.
        crashes: number of workers that died while they had it.
        first_child: its first child number; above 0 after a continue-as-new or a failed attempt.
        attempt: which attempt of the run this is; above 1 if the workflow has a retry policy.
        rules: the rules by which its journal is replayed.
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
    attempt: int = 1
    rules: int = RULES

    @property
    def exact(self) -> bool:
        """Whether its values must come back as what they are, and not only equal."""
        return self.rules >= EXACT_VALUES_RULES


class StepToken(msgspec.Struct, eq=False, kw_only=True):
    """Whether the outcome of an attempt is still needed; read in the thread of the step.

    Args:
        cancelled: set once, in the worker's thread.
        looked: the step asks for it: a thread that does may end in an orderly way.
    """

    cancelled: bool = False
    looked: bool = False


class StepReporter(Protocol):
    """Takes what steps show to those who watch their run, in any thread."""

    def set_progress(self, step: StepInfo, done: float, total: float | None, note: str | None) -> None: ...

    def set_value(self, step: StepInfo, name: str, value: Any) -> None: ...


class StepInfo(msgspec.Struct, frozen=True):
    """The attempt of a step that is being executed (`ctx.step`)."""

    run_id: str
    child: int
    attempt: int
    name: str
    execution: int = 0
    token: StepToken = msgspec.field(default_factory=StepToken)
    reporter: StepReporter | None = None
    exact: bool = True

    @property
    def cancelled(self) -> bool:
        """Whether the outcome is not needed any more: the call was cancelled or timed out, the run was
        cancelled or has ended, its lease was lost, the worker stops. A plain `def` step cannot be stopped
        from outside; a long one checks this and returns.
        """
        self.token.looked = True
        return self.token.cancelled

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of this call, for APIs that take one."""
        return f"{self.run_id}.{self.child}"


class RecordedValues(Protocol):
    """Values that a replay finds again."""

    def time_ms(self) -> int: ...

    def random(self) -> float: ...

    def randint(self, low: int, high: int) -> int: ...

    def choice(self, count: int) -> int: ...

    def shuffle_seed(self) -> int: ...

    def uuid4(self) -> UUID: ...

    def uuid7(self) -> UUID: ...

    def patched(self, change: str) -> bool: ...


class WorkflowRuntime(Protocol):
    """Receives the calls that the code of one run makes."""

    @property
    def values(self) -> RecordedValues: ...

    @property
    def run(self) -> RunInfo: ...

    @property
    def alive(self) -> bool: ...

    @property
    def replaying(self) -> bool: ...

    def call_step(
        self, step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]: ...

    def call_workflow(
        self,
        workflow: WorkflowDef,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        queue: str | None = None,
        timeout_ms: int | None = None,
        detached: bool = False,
        abandon: bool = False,
    ) -> Any: ...

    def make_promise(
        self, annotation: Any, *, timeout_ms: int | None, name: str, key: str | None = None
    ) -> Any: ...

    def call_remote(
        self, name: str, *, target: str, param: str, annotation: Any, timeout_ms: int | None
    ) -> Any: ...

    def adopt(self, annotation: Any, promise_id: str) -> Any: ...

    def receive(self, name: str, codec: TypeCodec, timeout_ms: int | None) -> Coroutine[Any, Any, Any]: ...

    def join_set(self) -> Any: ...

    def shield(self, timeout_s: float | None) -> AbstractAsyncContextManager[None]: ...

    def continue_as_new(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], version: WorkflowDef | None = None
    ) -> NoReturn: ...

    def sleep(self, duration_ms: int) -> Coroutine[Any, Any, Any]: ...

    def sleep_until(self, epoch_ms: int) -> Coroutine[Any, Any, Any]: ...

    def set_progress(self, done: float, total: float | None, note: str | None) -> None: ...

    def set_value(self, name: str, value: Any) -> None: ...

    def gather(
        self,
        awaitables: tuple[Awaitable[Any], ...],
        *,
        return_exceptions: bool,
        mapped: list[tuple[bool, Any]] | None = None,
    ) -> Awaitable[list[Any]]: ...

    def first(self, awaitables: tuple[Awaitable[Any], ...]) -> Awaitable[tuple[int, Any]]: ...

    def as_completed(self, awaitables: tuple[Awaitable[Any], ...]) -> Iterator[Coroutine[Any, Any, Any]]: ...


scope: ContextVar[WorkflowRuntime | None] = ContextVar("pyengine_scope", default=None)
"""The run whose workflow code is running, if any."""

current_step: ContextVar[StepInfo | None] = ContextVar("pyengine_current_step", default=None)
"""The attempt of a step that is running, if any; set by the worker."""


def within_run(method: str, instead: str) -> WorkflowRuntime:
    """Return the run whose workflow code is running.

    Args:
        method: method of `ctx`, for the error.
        instead: the alternative elsewhere, for the error.

    Raises:
        InvalidRequest: this is no workflow code.
    """
    within = scope.get()
    if within is not None:
        return within
    where = "inside a step" if current_step.get() is not None else "outside a workflow"
    raise InvalidRequest(f"ctx.{method} was used {where}", hint=f"in workflow code only; here use {instead}")


def refuse_in_workflow(method: str, instead: str) -> None:
    """Refuse a call that belongs to other code than that of a workflow.

    Args:
        method: the call, for the error.
        instead: the alternative, for the error.

    Raises:
        ForbiddenInWorkflow: this is workflow code.
    """
    within = scope.get()
    if within is not None:
        raise ForbiddenInWorkflow(
            f"workflow code may not call {method}: a replay would call it again (run {within.run.id!r})",
            hint=f"use instead: {instead}",
        )
