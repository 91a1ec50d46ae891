"""Handles that `ctx` returns to workflow code, and its logger.

Lives here: the types that people see; the objects are the replay machine's own (loop/awaitables.py). May
not: a decision. The theory: a handle has the id by which the run or promise is found everywhere, and it can
be awaited.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyengine.core.definitions.current_run import StepInfo, WorkflowRuntime

T_co = TypeVar("T_co", covariant=True)

_workflow_logger = logging.getLogger("pyengine.workflow")


class DurablePromise(Protocol[T_co]):
    """A promise that is settled from outside: pass its id on, await it for its value."""

    @property
    def id(self) -> str:
        """Its id: for `durable.resolve(id, ...)`, and of a child run its run id."""

    def done(self) -> bool:
        """Whether it is settled, according to this run's journal."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


class ChildRun(DurablePromise[T_co], Protocol[T_co]):
    """A child run: the promise of its result, whose id is the run id."""

    def cancel(self) -> bool:
        """Cancel it, and let awaits of it raise CancelledError once it has ended; false if it has ended.

        One that was started with `on_cancel="abandon"` goes on, and so does a detached one.
        """


if TYPE_CHECKING:
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    _LoggerAdapter = logging.LoggerAdapter


class RunLogger(_LoggerAdapter):
    """A logger that logs each message once: silent while replaying and while being evicted.

    Args:
        within: the run whose workflow code is running, if any.
        step: the attempt of a step that is running, if any.
    """

    def __init__(self, within: WorkflowRuntime | None, step: StepInfo | None) -> None:
        fields: dict[str, object] = {}
        if within is not None:
            run = within.run
            fields = {"run": run.id, "workflow": run.workflow, "queue": run.queue}
        elif step is not None:
            fields = {"run": step.run_id, "step": step.name, "attempt": step.attempt}
        super().__init__(_workflow_logger, fields)
        self._within = within

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging calls
        """Whether a message of this level would be logged now."""
        within = self._within
        is_silent = within is not None and (within.replaying or not within.alive)
        return not is_silent and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the fields of the run, or of the attempt, to the caller's own."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs
