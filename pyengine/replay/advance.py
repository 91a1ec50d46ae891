"""The result of one advance of a coroutine.

Lives here: `Advance`: the commands that the journal does not hold yet, the steps to execute, and how the
advance ended; `StepCall`: one step to execute. May not: making them (machine.py).
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
        args: positional arguments, decoded from `param` (a copy, never the workflow's own objects).
        kwargs: keyword arguments, likewise.
        name: step name.
        hash: input hash.
        param: JSON text of the arguments.
        attempt: number of the attempt to make, counted from 1.
        failures: failed attempts that count for the retry policy.
        retry_at_ms: not before this epoch millisecond, or None.
        begun: the journal holds an open intent or start of this very attempt.
        interrupted: the previous attempt was cut off by a crash, which does not count as a failure.
        recorded_retry: JSON text of the retry policy in the journal, which wins over that of the code; "" if
            the step was begun without one, None if the journal holds no row of the step.
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
    """The result of one advance: everything new since the last one.

    Args:
        commands: to be recorded, in the order of the code.
        steps: local steps to execute once the commands are recorded.
        end: how the advance ended; None while local steps are open, and while the clean-up of a cancelled
            run waits, since such a run is not suspended any more.
        given_up: child numbers of steps handed out earlier whose calls were cancelled; the worker may cancel
            their attempts.
    """

    commands: tuple[Command, ...] = ()
    steps: tuple[StepCall, ...] = ()
    end: End | None = None
    given_up: tuple[int, ...] = ()
