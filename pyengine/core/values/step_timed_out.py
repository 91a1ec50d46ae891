"""The timeout of a step, as workflows catch it.

Lives here: `StepTimedOut`. May not: other errors (errors.py). Design: `except TimeoutError` catches it, as it
catches the timeout of everything else that a workflow waits for. It is a class of its own because runs of
version 0.1 go on with an error that no such clause has caught.
"""

from __future__ import annotations

from typing import Any

from pyengine.errors import StepTimeout


class StepTimedOut(StepTimeout, TimeoutError):
    """A step took longer than its timeout."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _timed_out, (self.args, vars(self))


def _timed_out(args: tuple[Any, ...], attributes: dict[str, Any]) -> StepTimedOut:
    error = StepTimedOut(*args)
    vars(error).update(attributes)
    return error


# journals, logs and users know one name
StepTimedOut.__name__ = StepTimedOut.__qualname__ = "StepTimeout"
