"""The extensions of a replay, which features fill.

Lives here: the forms in which the machine knows them. May not: a feature. Design: the part of `ctx` that is a
feature's makes its extension at first use and gives it to the run; a run that uses none has none. Those that
watch every run are given with its code.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, Protocol

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.loop.awaitables import Call
from pyengine.core.loop.futures import DeterministicTask
from pyengine.core.loop.several import WaitForSeveral


class Compensating(Protocol):
    """Undoes the work of code that failed or was cancelled."""

    def run(self, error: BaseException, *, left: bool) -> Coroutine[Any, Any, NoReturn]:
        """Undo it, and raise the error by which the code ended.

        Args:
            error: by which it ended.
            left: its tasks can end; those of code that was stopped never do.
        """
        ...


class UnawaitedCalls:
    """Finds calls and waits that no code awaits; by itself none."""

    def put_unread(self, unread: list[Call], call: Call) -> None:
        """Keep a call that is complete and that no code waited for, to see whether code reads it later."""

    def warn(
        self,
        run: RunInfo,
        pending: dict[int, Call],
        unread: Sequence[Call],
        waits: Sequence[WaitForSeveral],
        *,
        ended: bool,
    ) -> None:
        """Warn of each call that no code has waited for, nor can any more.

        Args:
            run: the run.
            pending: its calls that are not complete.
            unread: its calls that were complete before any code waited for them.
            waits: its waits for several calls that no code has awaited, in a list of their own.
            ended: its code has returned; else it is suspended.
        """

    def warn_of_tasks(self, run: RunInfo, tasks: Sequence[DeterministicTask]) -> None:
        """Warn of the tasks that are not done, and that nothing waits for, where the code has ended.

        Args:
            run: the run.
            tasks: its tasks that are not done.
        """

    def hint(self, error: BaseException) -> str | None:
        """Return the alternative, for an error of code that used a call in place of its result; else None."""
        return None


NO_SEARCH = UnawaitedCalls()
"""For a replay that looks for none."""
