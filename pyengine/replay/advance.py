"""What one advance of a coroutine gives.

What lives here: `Advance`, the commands that the journal does not hold yet, the steps to execute, and how the
advance ended; `StepCall`, one step to execute. What may not: making them (machine.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from pyengine.definitions.definition import StepDef
from pyengine.protocol.commands import Command, End

__all__ = ["Advance", "StepCall"]


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A local step that the worker is to execute.

    Args:
        child: child number.
        step: its definition.
        args: positional arguments, read back from `param` (a copy, never the workflow's own objects).
        kwargs: keyword arguments, likewise.
        name: step name.
        hash: input hash.
        param: JSON text of the arguments.
        attempt: number of the attempt to make, counted from 1.
        failures: failed attempts that count for the retry policy.
        retry_at_ms: not before this epoch millisecond, or None.
        begun: the journal holds an open intent or start of this very attempt.
        interrupted: the previous attempt was cut off, which is no failure of the function.
        recorded_retry: JSON text of the policy that the journal holds for the step, which wins over that of
            the code; "" if it was begun without one, None if the journal does not know the step.
    """

    child: int
    step: StepDef
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    hash: str
    param: str
    attempt: int = 1
    failures: int = 0
    retry_at_ms: int | None = None
    begun: bool = False
    interrupted: bool = False
    recorded_retry: str | None = None


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since the last advance.

    Args:
        commands: to be recorded, in this order, in which the code did them.
        steps: local steps to execute once the commands are recorded.
        end: how the advance ended; None while local steps are outstanding, and while a cancelled run
            waits for anything in its clean-up, for it cannot be suspended any more.
        waiting_steps: local steps outstanding, new ones included, given-up ones not.
        given_up: steps handed out earlier whose result nobody wants any more; the worker may cancel them.
    """

    commands: tuple[Command, ...] = ()
    steps: tuple[StepCall, ...] = ()
    end: End | None = None
    waiting_steps: int = 0
    given_up: tuple[int, ...] = ()
