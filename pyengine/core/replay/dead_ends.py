"""Errors of code that waits for something that cannot come.

Lives here: the errors. May not: finding out that it is so (machine.py).
"""

from __future__ import annotations

from pyengine.core.definitions.current_run import RunInfo
from pyengine.errors import EngineError, NotAwaitable


def in_transaction(run: RunInfo, transaction: str | None) -> NotAwaitable:
    """Return the error of code that waits for something else inside a transaction."""
    message = f"run {run.id}: {transaction} waits for something else"
    hint = "while it is open nothing else happens in the run: await its statements"
    return NotAwaitable(message, hint=hint)


def cancelled_often(run: RunInfo, times: int) -> NotAwaitable:
    """Return the error of code that goes on waiting however often it is cancelled."""
    message = f"run {run.id}: the workflow was cancelled {times} times and goes on waiting"
    return NotAwaitable(message, hint="let asyncio.CancelledError out; nothing it waits for can come")


def cancelled_itself(run: RunInfo) -> EngineError:
    """Return the error of code that raises CancelledError though nobody has cancelled the run."""
    return EngineError(f"run {run.id}: the workflow cancelled itself (asyncio.CancelledError)")


def nothing_pending(run: RunInfo) -> NotAwaitable:
    """Return the error of code that waits while nothing of its run is pending."""
    return NotAwaitable(
        f"run {run.id}: workflow {run.workflow} waits for something that can never happen",
        hint="nothing is pending that could end it; make locks, events and queues in the workflow",
    )
