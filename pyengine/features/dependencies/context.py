"""The dependencies of the app in `ctx`.

Lives here: `ctx.deps`. May not: opening and closing them (dependencies/dependencies.py).
"""

from __future__ import annotations

from pyengine.core.definitions.current_run import scope
from pyengine.errors import InvalidRequest
from pyengine.features.dependencies.dependencies import Dependencies, current_dependencies


class ContextDependencies:
    """The part of `ctx` that gives steps what their app opened."""

    __slots__ = ()

    @property
    def deps(self) -> Dependencies:
        """The dependencies of the app, in steps: `ctx.deps.mail`, or `ctx.deps[Mail]` with its type.

        Raises:
            InvalidRequest: this is workflow code, or they are not open here.
        """
        if scope.get() is not None:
            raise InvalidRequest(
                "ctx.deps was used in workflow code",
                hint="in steps only: a replay could not repeat what they answer; settings may be arguments",
            )
        found = current_dependencies.get()
        if found is None:
            raise InvalidRequest(
                "ctx.deps was used where no dependencies are open",
                hint="a worker opens them for its steps; elsewhere: async with app.dependencies(): ...",
            )
        return found
