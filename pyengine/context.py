"""`ctx`: what workflow code gets from the engine.

What lives here: the object that people import, typed and documented. What may not: a decision; every method
hands over to the run that the code belongs to (scope.py). Workflow code takes time, randomness, ids and waits
from here and from nowhere else, because a replay must find them again. Outside a workflow the methods raise
`InvalidRequest` and say what to use there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Generator, Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, overload
from uuid import UUID

from pyengine.errors import InvalidRequest
from pyengine.model import StepInfo
from pyengine.registry import Workflow
from pyengine.retry import Duration, optional_duration, parse_duration
from pyengine.scope import Scope, current_step, scope

__all__ = ["ChildRun", "Context", "DurablePromise", "RunLogger", "ctx"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_workflow_logger = logging.getLogger("pyengine.workflow")


class ChildRun(Protocol[T_co]):
    """A child run: await it for its result."""

    @property
    def id(self) -> str:
        """Its run id."""

    def done(self) -> bool:
        """Whether it has ended, as far as this run has seen."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


class DurablePromise(Protocol[T_co]):
    """A promise that somebody outside settles: hand out its id, await it for its value."""

    @property
    def id(self) -> str:
        """What `durable.resolve(id, ...)` takes."""

    def done(self) -> bool:
        """Whether it is settled, as far as this run has seen."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


if TYPE_CHECKING:
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    _LoggerAdapter = logging.LoggerAdapter


class RunLogger(_LoggerAdapter):
    """A logger that says each thing once: silent while replaying and while being thrown away."""

    def __init__(self, within: Scope) -> None:
        run = within.run
        super().__init__(_workflow_logger, {"run_id": run.id, "workflow": run.workflow})
        self._within = within

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging calls
        """Whether a message of this level would be said now."""
        return self._within.alive and not self._within.replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add run id and workflow to the caller's own fields."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def _within(method: str, instead: str) -> Scope:
    within = scope.get()
    if within is not None:
        return within
    where = "inside a step" if current_step.get() is not None else "outside a workflow"
    raise InvalidRequest(f"ctx.{method} was used {where}", hint=f"in workflow code only; here use {instead}")


class Context:
    """What workflow code gets from the engine; use the module's `ctx`."""

    __slots__ = ()

    @property
    def run_id(self) -> str:
        """Id of the run that this code belongs to, in a workflow or a step."""
        step = current_step.get()
        return step.run_id if step is not None else _within("run_id", "the id that app.start returned").run.id

    @property
    def workflow(self) -> str:
        """Name of the workflow."""
        return _within("workflow", "the workflow's name").run.workflow

    @property
    def step(self) -> StepInfo:
        """Inside a step: run id, child number, attempt, and an idempotency key.

        Raises:
            InvalidRequest: no step is running here.
        """
        info = current_step.get()
        if info is None:
            where = "outside a step" if scope.get() is None else "in workflow code"
            raise InvalidRequest(
                f"ctx.step was used {where}", hint="it says which attempt of which step is running"
            )
        return info

    @property
    def log(self) -> RunLogger:
        """A logger that is silent while replaying."""
        return RunLogger(_within("log", "logging.getLogger"))

    @property
    def replaying(self) -> bool:
        """Whether the run was past this point before; for tracing only, never decide by it."""
        return _within("replaying", "nothing: only workflow code is replayed").replaying

    # -- time and randomness

    def now(self) -> datetime:
        """Return the time (UTC), the same at every replay."""
        return _EPOCH + timedelta(milliseconds=_within("now()", "datetime.now(timezone.utc)").time_ms())

    def random(self) -> float:
        """Return a random number, 0 <= x < 1, the same at every replay."""
        return _within("random()", "random.random()").random()

    def uuid4(self) -> UUID:
        """Return a random UUID, the same at every replay."""
        return _within("uuid4()", "uuid.uuid4()").uuid4()

    def sleep(self, duration: Duration) -> Coroutine[None, None, None]:
        """Wait durably; it costs nothing meanwhile.

        Args:
            duration: "30s", "1d", seconds, or a timedelta.
        """
        return _within("sleep()", "asyncio.sleep()").sleep(parse_duration(duration, what="ctx.sleep"))

    def sleep_until(self, instant: datetime) -> Coroutine[None, None, None]:
        """Wait durably until an instant.

        Args:
            instant: with a time zone; one that has passed does not wait.
        """
        within = _within("sleep_until()", "asyncio.sleep()")
        if instant.tzinfo is None:
            raise InvalidRequest(
                "ctx.sleep_until: the instant has no time zone", hint="datetime(..., tzinfo=timezone.utc)"
            )
        return within.sleep_until(-((_EPOCH - instant) // timedelta(milliseconds=1)))

    # -- promises and child runs

    @overload
    def promise(
        self, type: type[T], *, timeout: Duration | None = None, name: str = ""
    ) -> DurablePromise[T]: ...
    @overload
    def promise(
        self, type: Any = Any, *, timeout: Duration | None = None, name: str = ""
    ) -> DurablePromise[Any]: ...
    def promise(
        self, type: Any = Any, *, timeout: Duration | None = None, name: str = ""
    ) -> DurablePromise[Any]:
        """Make a promise that somebody outside settles.

        Args:
            type: type of its value.
            timeout: awaiting it raises TimeoutError if it is not settled by then; None means no limit.
            name: a label for people.
        """
        within = _within("promise()", "the SQL function durable.create_promise")
        timeout_ms = optional_duration(timeout, what="ctx.promise")
        return cast("DurablePromise[Any]", within.make_promise(type, timeout_ms=timeout_ms, name=name))

    def start(
        self,
        workflow: Workflow[..., T],
        *args: Any,
        queue: str | None = None,
        timeout: Duration | None = None,
        detached: bool = False,
        **kwargs: Any,
    ) -> ChildRun[T]:
        """Start a child run without waiting for it; await the handle for its result.

        Args:
            workflow: what to run.
            args: its arguments.
            queue: queue of the child; the workflow's own or the parent's by default.
            timeout: its deadline; the workflow's own by default.
            detached: nothing of this run waits for it, and it outlives this run.
            kwargs: its arguments by name, except queue, timeout and detached, which can only go by position.

        Raises:
            InvalidRequest: the arguments do not fit its signature.
        """
        within = _within("start()", "app.start()")
        if not isinstance(workflow, Workflow):
            raise InvalidRequest(
                f"ctx.start takes a workflow, not {workflow!r}", hint="steps are called: await step(...)"
            )
        return cast(
            "ChildRun[T]",
            within.call_workflow(
                workflow.definition,
                args,
                kwargs,
                queue=queue,
                timeout_ms=optional_duration(timeout, what="ctx.start"),
                detached=detached,
            ),
        )

    # -- waits

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...
    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> Awaitable[tuple[A, B, C]]: ...
    @overload
    def gather(
        self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /
    ) -> Awaitable[tuple[A, B, C, D]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: Literal[False] = ...
    ) -> Awaitable[list[T]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: bool
    ) -> Awaitable[list[T | BaseException]]: ...
    def gather(self, *awaitables: Awaitable[Any], return_exceptions: bool = False) -> Awaitable[Any]:
        """Wait for all of these and return their results as a list, in the order given.

        Unlike `asyncio.gather` it always waits for every one, then raises the first error in that order; and
        a run that waits for many children or promises is woken once, not once for each.

        Args:
            awaitables: steps, child runs, promises, sleeps, coroutines.
            return_exceptions: put errors in the list instead of raising.
        """
        within = _within("gather()", "asyncio.gather()")
        return within.gather(awaitables, return_exceptions=return_exceptions)

    def first(self, *awaitables: Awaitable[T]) -> Awaitable[tuple[int, T]]:
        """Wait for any of these and return (its index, its result); the others go on.

        Raises:
            InvalidRequest: nothing was given.
        """
        within = _within("first()", "asyncio.wait()")
        if not awaitables:
            raise InvalidRequest("ctx.first: nothing was given to wait for")
        return within.first(awaitables)

    def as_completed(self, *awaitables: Awaitable[T]) -> Iterator[Coroutine[None, None, T]]:
        """Iterate over awaitables of results, in the order in which they complete."""
        return _within("as_completed()", "asyncio.as_completed()").as_completed(awaitables)


ctx = Context()
"""What workflow code gets from the engine."""
