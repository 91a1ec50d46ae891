"""Steps that were called and have no result yet.

Lives here: `PendingStep`, the state of such a call, and the `StepCall` made of it for the worker. May not:
numbers (call_matcher.py), the attempts themselves (worker/step_runner.py).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from pyengine.core.definitions.definition import StepDef
from pyengine.core.replay.advance import StepCall
from pyengine.core.replay.history import NO_ATTEMPTS, Attempts


class PendingStep:
    """A step call without a result.

    Args:
        step: its definition.
        input_hash: of the call.
        packed: JSON text of its arguments.
        args: positional and keyword arguments decoded from `packed`; None if they were not decoded yet.
    """

    __slots__ = ("args", "hash", "packed", "step")

    def __init__(
        self,
        step: StepDef,
        input_hash: str,
        packed: bytes,
        args: tuple[tuple[Any, ...], dict[str, Any]] | None,
    ) -> None:
        self.step = step
        self.hash = input_hash
        self.packed = packed
        self.args = args

    def call(self, child: int, attempts: Attempts) -> StepCall:
        """Return the step for the worker to execute.

        Args:
            child: its number.
            attempts: the attempts that the journal holds.
        """
        step = self.step
        args, kwargs = self.args or step.signature.decode(self.packed)
        call = StepCall(
            child=child,
            step=step,
            args=args,
            kwargs=kwargs,
            name=step.name,
            hash=self.hash,
            param=self.packed.decode(),
        )
        return call if attempts is NO_ATTEMPTS else replace(call, **asdict(attempts))
