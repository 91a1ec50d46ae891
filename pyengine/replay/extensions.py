"""The extensions of a replay, which features fill.

Lives here: the forms in which the machine knows them. May not: a feature. Design: the part of `ctx` that is a
feature's makes its extension at first use and gives it to the run; a run that uses none has none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol

__all__ = ["Compensating"]


class Compensating(Protocol):
    """Undoes the work of code that failed or was cancelled."""

    def run(self, error: BaseException, *, left: bool) -> Coroutine[Any, Any, NoReturn]:
        """Undo it, and raise the error by which the code ended.

        Args:
            error: by which it ended.
            left: its tasks can end; those of code that was stopped never do.
        """
        ...
