"""Compensations: the calls that a run makes, in reverse order, if it fails or is cancelled.

Lives here: `Compensations`, those that the code of one run has registered with `ctx.on_failure`. May not:
when they begin (replay/machine.py). Design: a compensation is a call like any other, with a number of its
own, made after the code has ended; so a replay makes it again at the same place. The calls are made in a
shield, because they are needed most when the run is being cancelled. One that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast

from pyengine.core.definitions.registry import Step, Workflow
from pyengine.core.loop.shield import ShieldScope
from pyengine.core.replay.call_matcher import CallMatcher
from pyengine.core.rules import CHILDREN_RULES
from pyengine.core.values.error_access import class_name
from pyengine.core.values.error_describing import error_message
from pyengine.errors import EngineError


class CompensationFailed(EngineError):
    """A run failed or was cancelled, and undoing what it had done failed too; its own error is the cause."""

    is_final = True


class Compensations:
    """The compensations of one run.

    Args:
        matcher: its calls.
    """

    def __init__(self, matcher: CallMatcher) -> None:
        self._matcher = matcher
        self._stack: list[tuple[Callable[..., Awaitable[Any]], tuple[Any, ...], dict[str, Any]]] = []

    def add(
        self,
        undo: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        exact: bool = True,
    ) -> None:
        """Register a call; arguments of a step or workflow are checked and copied now (`Signature.check`).

        Raises:
            InvalidRequest: the arguments do not fit its signature.
            EncodeError: an argument cannot be recorded.
        """
        if isinstance(undo, Step | Workflow):
            signature = undo.definition.signature
            packed = signature.pack(args, kwargs)
            _, args, kwargs = signature.check(args, kwargs, packed, exact=exact)
        self._stack.append((undo, args, kwargs))

    async def run(self, error: BaseException, *, left: bool) -> NoReturn:
        """End the other tasks of the run, make the calls, and raise the error by which its code ended.

        Args:
            error: by which its code ended.
            left: its tasks can end; those of code that was stopped never do.

        Raises:
            CompensationFailed: one of the calls failed; the error is its cause.
        """
        failed: list[tuple[str, BaseException]] = []
        # what the shield defers is raised when it is left; the run ends anyway
        with contextlib.suppress(asyncio.CancelledError):
            async with ShieldScope(None):
                await self._end_work(left=left)
                while self._stack:
                    undo, args, kwargs = self._stack.pop()
                    try:
                        await undo(*args, **kwargs)
                    except (Exception, asyncio.CancelledError) as problem:  # boundary to user code
                        failed.append((_name(undo), problem))
        if failed:
            raise CompensationFailed(_message(error, failed)) from error
        raise error

    async def _end_work(self, *, left: bool) -> None:
        """Cancel the tasks and child runs that the code has left behind, and wait for their end: nothing may
        go forward while it is undone.
        """
        current = asyncio.current_task()
        tasks = [one for one in self._matcher.loop.pending_tasks if left and one is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # after the tasks: their own clean-up may wait for steps and child runs
        if self._matcher.run.rules >= CHILDREN_RULES:
            self._matcher.give_steps_up()
        if self._matcher.children is not None:
            await asyncio.gather(*self._matcher.children.end_all(), return_exceptions=True)


def compensations_of(matcher: CallMatcher) -> Compensations:
    """Return the compensations of a run, which are made at their first use."""
    found = matcher.compensations
    if not isinstance(found, Compensations):
        found = matcher.compensations = Compensations(matcher)
    return found


def _name(undo: Callable[..., Any]) -> str:
    return cast("str", getattr(undo, "name", None) or getattr(undo, "__name__", None) or repr(undo))


def _message(error: BaseException, failed: list[tuple[str, BaseException]]) -> str:
    listed = "; ".join(
        f"{name}: {class_name(type(problem))}: {error_message(problem)}" for name, problem in failed
    )
    return f"after {class_name(type(error))}: {error_message(error)}, a compensation failed: {listed}"
