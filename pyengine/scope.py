"""Where code runs: inside a workflow, inside a step, or outside both.

What lives here: the two context variables that tell, and the protocol of what a workflow offers to the calls
inside it. What may not: an implementation; that is the replay machine's (matching.py), behind the protocol so
that steps and `ctx` need not import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from uuid import UUID

from pyengine.model import RunInfo, StepInfo

if TYPE_CHECKING:
    from pyengine.codec import TypeCodec
    from pyengine.registry import StepDef, WorkflowDef
    from pyengine.transaction import Transaction

__all__ = ["Scope", "current_step", "scope"]


class Scope(Protocol):
    """What a workflow that is being driven by its journal offers to the calls inside it."""

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

    def adopt(self, annotation: Any, promise_id: str) -> Any: ...

    def receive(self, name: str, codec: TypeCodec, timeout_ms: int | None) -> Coroutine[Any, Any, Any]: ...

    def join_set(self) -> Any: ...

    def transaction(self, name: str, timeout_ms: int) -> AbstractAsyncContextManager[Transaction]: ...

    def shield(self, timeout_s: float | None) -> AbstractAsyncContextManager[None]: ...

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn: ...

    def patched(self, change: str) -> bool: ...

    def sleep(self, duration_ms: int) -> Coroutine[Any, Any, Any]: ...

    def sleep_until(self, epoch_ms: int) -> Coroutine[Any, Any, Any]: ...

    def time_ms(self) -> int: ...

    def random(self) -> float: ...

    def uuid4(self) -> UUID: ...

    def gather(
        self, awaitables: tuple[Awaitable[Any], ...], *, return_exceptions: bool
    ) -> Awaitable[list[Any]]: ...

    def first(self, awaitables: tuple[Awaitable[Any], ...]) -> Awaitable[tuple[int, Any]]: ...

    def as_completed(self, awaitables: tuple[Awaitable[Any], ...]) -> Iterator[Coroutine[Any, Any, Any]]: ...


scope: ContextVar[Scope | None] = ContextVar("pyengine_scope", default=None)
"""The run whose workflow code is running here, if any."""

current_step: ContextVar[StepInfo | None] = ContextVar("pyengine_current_step", default=None)
"""The attempt of a step that is running here, if any; set by the worker."""
