"""The result of one advance of a coroutine.

Lives here: `Advance`: the commands that the journal does not hold yet, the steps to execute, and how the
advance ended; `StepCall`: one step to execute. May not: making them (machine.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from pyengine.core.definitions.definition import StepDef
from pyengine.core.protocol.commands import Command, End
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.replay.history import Attempts


class StepCall(Attempts, frozen=True, kw_only=True):
    """A local step that the worker is to execute: which one, and the attempts that precede this one.

    Args:
        child: child number.
        step: its definition.
        args: positional arguments, decoded from `param` (a copy, never the workflow's own objects).
        kwargs: keyword arguments, likewise.
        name: step name.
        hash: input hash.
        param: JSON text of the arguments.

    The others are those of `Attempts`.
    """

    child: int
    step: StepDef
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    hash: str
    param: str


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one advance: everything new since the last one.

    Args:
        commands: to be recorded, in the order of the code.
        steps: local steps to execute once the commands are recorded.
        end: how the advance ended; None while local steps are open, and while the clean-up of a cancelled
            run waits, since such a run is not suspended any more.
        given_up: child numbers of steps handed out earlier whose calls were cancelled; the worker may cancel
            their attempts.
        progress: what the code has set for those who watch the run, if anything.
    """

    commands: tuple[Command, ...] = ()
    steps: tuple[StepCall, ...] = ()
    end: End | None = None
    given_up: tuple[int, ...] = ()
    progress: ProgressReport | None = None
