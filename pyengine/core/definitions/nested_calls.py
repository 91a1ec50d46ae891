"""Steps and workflows that are called inside a step.

Lives here: the warning about them. May not: a refusal, because such a call does what it looks like: it runs
the function. It is not recorded, though, which is easily overlooked, so each pair of callables is reported
once in a process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final, Literal

from pyengine.core.definitions.current_run import current_step

logger = logging.getLogger("pyengine.steps")

_MEANS: Final = {
    "step": "it is not recorded, not retried by itself, and runs again with each attempt of {outer}",
    "workflow": "it is no child run, its steps are not recorded, and it runs again with each attempt of "
    "{outer}",
}
_CANNOT_AWAIT: Final = (
    "the call gives a coroutine, and {outer} is a `def` step, which cannot await it; call it from the "
    "workflow, or make {outer} `async def` and await it: it is a plain function there, and not recorded"
)
_PAIRS_MAX: Final = 10_000

_reported: Final[set[tuple[str, str]]] = set()


def warn_of_nested(kind: Literal["step", "workflow"], name: str) -> None:
    """Warn of a call that is made inside a step; its caller's caller is the code that makes it.

    Args:
        kind: kind of the callable.
        name: its name.
    """
    step = current_step.get()
    if step is None or (step.name, name) in _reported:
        return
    if len(_reported) >= _PAIRS_MAX:
        _reported.clear()
    _reported.add((step.name, name))
    caller = sys._getframe(2)
    means = f"inside a step it is a plain function: {_MEANS[kind]}; call it from the workflow"
    logger.warning(
        f"step {step.name} calls {kind} {name} at {caller.f_code.co_filename}, line {caller.f_lineno}: "
        + (means if _may_await() else _CANNOT_AWAIT).format(outer=step.name),
        extra={
            "event": "step_nested_call",
            "run": step.run_id,
            "step": step.name,
            "attempt": step.attempt,
        },
    )


def _may_await() -> bool:
    """Whether the code runs in a loop; that of a `def` step has a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
