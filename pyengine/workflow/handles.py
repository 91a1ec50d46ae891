"""What `ctx` hands out: handles that workflow code awaits, and its logger.

What lives here: the types that people see; the objects are the replay machine's own (loop/awaitables.py).
What may not: a decision. The theory: a handle has an id, which is where everybody finds the thing, and it can
be awaited.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyengine.definitions.current_run import WorkflowRuntime

__all__ = ["ChildRun", "DurablePromise", "RunLogger"]

T_co = TypeVar("T_co", covariant=True)

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

    def __init__(self, within: WorkflowRuntime) -> None:
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
