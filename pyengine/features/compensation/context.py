"""The part of `ctx` about failures: compensations.

Lives here: `ctx.on_failure`. May not: a decision; it asks the run that the code belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

from pyengine.core.replay.call_matcher import matcher_within
from pyengine.errors import InvalidRequest
from pyengine.features.compensation.compensation import compensations_of

P = ParamSpec("P")


class ContextFailures:
    """The part of `ctx` about failures."""

    __slots__ = ()

    def on_failure(self, undo: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a step if the run fails or is cancelled: `ctx.on_failure(refund, payment)`.

        The calls are made after the code has ended, the last one registered first, in a shield. One that
        fails does not stop the others; the run then fails with `CompensationFailed`. They are not made if
        the code catches its error and returns, if the run continues as new, if it is cancelled by force, and
        once its deadline or the grace of a cancellation is over.

        Args:
            undo: a step, a workflow, or an async function that calls some.
            args: its arguments; those of a step or workflow are copied now.
            kwargs: arguments by name.

        Raises:
            InvalidRequest: the arguments do not fit its signature.
            EncodeError: an argument cannot be recorded.
        """
        matcher = matcher_within("on_failure()", "try and except")
        if not callable(undo):
            raise InvalidRequest(
                f"ctx.on_failure takes a step, not {undo!r}", hint="ctx.on_failure(refund, payment)"
            )
        compensations_of(matcher).add(undo, args, kwargs, exact=matcher.run.exact)
