"""Calls of steps and child runs that no code awaits.

Lives here: which calls of a run nothing has waited for, the warning about them, and the hint for code that
used a call in place of its result. May not: calls that were begun on purpose without a wait, by `ctx.start`,
which have no `made_at`. The theory: a forgotten `await` leaves a call that was pending, or complete, while no
callback was on it. Code may still await it later if it refers to it, so before the end of a run only those
count that nothing refers to. A place in the code is reported once in a process, however many runs pass it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Final

from pyengine.definitions.current_run import RunInfo
from pyengine.loop.awaitables import Call, UnreadCall
from pyengine.values.exceptions import only_error
from pyengine.values.tracebacks import is_ours

__all__ = ["misused_call_hint", "put_unread", "warn_of_unawaited"]

logger = logging.getLogger("pyengine.workflow")

# the collection that has the call, and the argument of the count itself
_REFERENCES_OF_OURS: Final = 2
_PLACES_MAX: Final = 10_000

_reported: Final[set[tuple[CodeType, int]]] = set()


def put_unread(unread: list[Call], call: Call) -> None:
    """Keep a call that is complete and that no code waited for, to see whether code reads it later."""
    if getattr(call, "made_at", None) is not None:
        call.__class__ = UnreadCall
        unread.append(call)


def warn_of_unawaited(run: RunInfo, pending: dict[int, Call], unread: list[Call], *, ended: bool) -> None:
    """Warn of each call that no code has waited for, nor can any more.

    Args:
        run: the run.
        pending: its calls that are not complete.
        unread: its calls that were complete before any code waited for them.
        ended: its code has returned; else it is suspended.
    """
    for call in (*_pending(pending, ended=ended), *_unread(unread, ended=ended)):
        made_at, call.made_at = call.made_at, None
        if made_at is None or made_at in _reported:
            continue
        if len(_reported) >= _PLACES_MAX:
            _reported.clear()
        _reported.add(made_at)
        name, instead = call.name, f"`await {call.name}(...)`"
        if call.kind == "child run":
            instead += f", or `ctx.start({name}, ...)` if nothing waits for it"
        logger.warning(
            f"run {run.id}: {call.kind} {name} was called{_place(made_at)} and never awaited, so its result "
            f"and its errors are lost; write {instead}",
            extra={
                "event": "workflow_unawaited_call",
                "run": run.id,
                "workflow": run.workflow,
                "queue": run.queue,
                "step": name,
            },
        )


def _pending(pending: dict[int, Call], *, ended: bool) -> Iterator[Call]:
    for child in list(pending):
        if ended or sys.getrefcount(pending[child]) <= _REFERENCES_OF_OURS:
            call = pending[child]
            if getattr(call, "made_at", None) is not None and not (call.done() or call._callbacks):
                yield call


def _unread(unread: list[Call], *, ended: bool) -> Iterator[Call]:
    for number in range(len(unread)):
        if ended or sys.getrefcount(unread[number]) <= _REFERENCES_OF_OURS:
            yield unread[number]


def _place(made_at: tuple[CodeType, int]) -> str:
    """Return file and line of a call; nothing if it was made by the package."""
    code, instruction = made_at
    if is_ours(code.co_filename):
        return ""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return f" at {code.co_filename}, line {next(lines, code.co_firstlineno)},"


def misused_call_hint(error: BaseException) -> str | None:
    """Return the alternative, for an error of code that used a call in place of its result; else None."""
    error = only_error(error) or error
    if not (isinstance(error, TypeError | AttributeError) and "'Call'" in str(error)):
        return None
    call = getattr(error, "obj", None)
    name = f"{call.kind} {call.name}" if isinstance(call, Call) else "a step or child run"
    return f"hint: {name} was called and not awaited: write await before the call"
