"""Calls and waits that no code awaits.

Lives here: which calls of a run nothing has waited for, the warning about them, and the hint for code that
used a call in place of its result. May not: calls that were begun on purpose without a wait, by `ctx.start`,
which have no `made_at`. The theory: a forgotten `await` leaves a call that was pending, or complete, while no
callback was on it. Code may still await it later if it refers to it, so before the end of a run only those
count that nothing refers to but the engine. A place in the code is reported once in a process, however many
runs pass it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, Final

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.loop.awaitables import Call, ReceiveCall, TimedReceive, UnreadCall
from pyengine.core.loop.futures import DeterministicTask
from pyengine.core.loop.several import WaitForSeveral
from pyengine.core.replay.extensions import UnawaitedCalls
from pyengine.core.values.error_describing import only_error
from pyengine.core.values.tracebacks import is_ours

logger = logging.getLogger("pyengine.workflow")

# the collection that has the call, and the argument of the count itself
_REFERENCES_OF_OURS: Final = 2
# its receive and its timer, the callbacks on both, and the argument
_REFERENCES_TO_A_LIMIT: Final = 5
# two lists of waits, and the argument
_REFERENCES_TO_A_WAIT: Final = 3
_PLACES_MAX: Final = 10_000
# where asyncio refuses a lock that another loop has used
_BIND: Final = getattr(getattr(asyncio.Lock, "_get_loop", None), "__code__", ...)

_reported: Final[set[tuple[CodeType, int]]] = set()


class _Unawaited(UnawaitedCalls):
    """Finds them by what refers to them."""

    def put_unread(self, unread: list[Call], call: Call) -> None:
        """Keep a call that is complete and that no code waited for, to see whether code reads it later."""
        if getattr(call, "made_at", None) is not None:
            if not isinstance(call, ReceiveCall):  # a receive notices it by itself
                call.__class__ = UnreadCall
            unread.append(call)

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
        calls: list[Call | WaitForSeveral] = [*_pending(pending, ended=ended), *_unread(unread, ended=ended)]
        for call in (*calls, *_waits(waits, ended=ended)):
            made_at, call.made_at = call.made_at, None
            if made_at is None or not _is_first_report(made_at):
                continue
            name, instead = call.name, f"`await {call.spelling}`"
            if call.kind == "child run":
                instead += f", or `ctx.start({name}, ..., detached=True)` if nothing waits for it"
            means = "the run did not wait for it"
            if call.kind in ("step", "child run"):
                means = "its result and its errors are lost"
            logger.warning(
                f"run {run.id}: {call.kind} {name} was called{_place(made_at)} and never awaited, "
                f"so {means}; write {instead}",
                extra={
                    "event": "workflow_unawaited_call",
                    "run": run.id,
                    "workflow": run.workflow,
                    "queue": run.queue,
                    "step": name,
                },
            )

    def warn_of_tasks(self, run: RunInfo, tasks: Sequence[DeterministicTask]) -> None:
        """Warn of the tasks that are not done, and that nothing waits for, where the code has ended.

        Args:
            run: the run.
            tasks: its tasks that are not done.
        """
        for task in tasks:
            coro: Any = task.get_coro()
            made_at = getattr(coro, "made_at", None)
            if (frame := getattr(coro, "cr_frame", None)) is not None:
                made_at = (frame.f_code, frame.f_lasti)
            if made_at is None or task.goes_on or task._callbacks:
                continue
            if not (place := _place(made_at)) or not _is_first_report(made_at):
                continue  # without a place it is a task of ours
            name = getattr(coro, "__qualname__", "") or getattr(coro, "name", "")
            logger.warning(
                f"run {run.id}: the task of {name}{place.rstrip(',')} was not done when the workflow ended, "
                "and nothing awaited it, so the rest of it is lost; write `await task`, or begin it in an "
                "asyncio.TaskGroup",
                extra={
                    "event": "workflow_unawaited_task",
                    "run": run.id,
                    "workflow": run.workflow,
                    "queue": run.queue,
                },
            )

    def hint(self, error: BaseException) -> str | None:
        """Return the alternative, for an error of code that used a call in place of its result; else None."""
        error = only_error(error) or error
        if isinstance(error, TypeError) and _raised_in(error) is asyncio.gather.__code__:
            return "hint: gather takes awaitables one by one: asyncio.gather(*calls)"
        if isinstance(error, RuntimeError) and _raised_in(error) is _BIND:
            return "hint: make locks, events and queues in the workflow: each run has its own loop"
        if not (isinstance(error, TypeError | AttributeError) and "Call'" in str(error)):
            return None
        call = getattr(error, "obj", None)
        name = f"{call.kind} {call.name}" if isinstance(call, Call) else "a step or child run"
        return f"hint: {name} was called and not awaited: write await before the call"


def _is_first_report(place: tuple[CodeType, int]) -> bool:
    """Whether a place in the code is reported for the first time."""
    if place in _reported:
        return False
    if len(_reported) >= _PLACES_MAX:
        _reported.clear()
    _reported.add(place)
    return True


def _raised_in(error: BaseException) -> CodeType | None:
    """Return the code that raised an error."""
    code = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
    return code


def _pending(pending: dict[int, Call], *, ended: bool) -> Iterator[Call]:
    for child in list(pending):
        if ended or _is_dropped(pending, child):
            call = pending[child]
            if getattr(call, "made_at", None) is not None and not (call.done() or call.awaited):
                yield call


def _is_dropped(pending: dict[int, Call], child: int) -> bool:
    """Whether only the engine refers to a call; no variable here does."""
    if isinstance(getattr(pending[child], "collector", None), TimedReceive):
        return sys.getrefcount(pending[child].collector) <= _REFERENCES_TO_A_LIMIT
    # the inbox of a receive refers to it too
    return sys.getrefcount(pending[child]) <= _REFERENCES_OF_OURS + isinstance(pending[child], ReceiveCall)


def _unread(unread: Sequence[Call], *, ended: bool) -> Iterator[Call]:
    for number in range(len(unread)):
        if ended or sys.getrefcount(unread[number]) <= _REFERENCES_OF_OURS:
            yield unread[number]


def _waits(waits: Sequence[WaitForSeveral], *, ended: bool) -> Iterator[WaitForSeveral]:
    for number in range(len(waits)):
        if ended or sys.getrefcount(waits[number]) <= _REFERENCES_TO_A_WAIT + waits[number].references:
            yield waits[number]


def _place(made_at: tuple[CodeType, int]) -> str:
    """Return file and line of a call; nothing if it was made by the package."""
    code, instruction = made_at
    if is_ours(code.co_filename):
        return ""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return f" at {code.co_filename}, line {next(lines, code.co_firstlineno)},"


UNAWAITED = _Unawaited()
"""For a replay; it reports a place in the code once in a process."""
