"""Dependencies of steps beside their arguments: pools of connections, clients, settings.

Lives here: `Dependencies`, what `ctx.deps` is, and `open_dependencies`, which makes them from what an app was
given, and closes them. May not: workflow code, which could not repeat at a replay what they answer. Design: a
dependency is a value, or a function that makes it. A function with a `yield` closes it behind the `yield`, as
in FastAPI.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from pyengine.errors import InvalidRequest

T = TypeVar("T")


class Dependencies:
    """The dependencies of an app: `deps.mail` by name, `deps[Mail]` by class, which type checkers follow."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        """Return a dependency by name.

        Raises:
            AttributeError: there is none; the message lists similar names.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._values, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"App(deps=...) has {sorted(self._values)}"
            raise AttributeError(f"no dependency is named {name!r}; {known}") from None

    def __getitem__(self, cls: type[T]) -> T:
        """Return the only dependency that is an instance of a class.

        Raises:
            InvalidRequest: there is none, or there are several.
        """
        try:
            found = [name for name, value in self._values.items() if isinstance(value, cls)]
        except TypeError as error:
            raise InvalidRequest(
                f"ctx.deps[...]: {error}", hint="ctx.deps.name finds it by its name"
            ) from None
        if len(found) == 1:
            return cast("T", self._values[found[0]])
        given = ", ".join(f"{name}: {type(value).__name__}" for name, value in self._values.items())
        raise InvalidRequest(
            f"{len(found) or 'no'} dependencies are of class {cls.__qualname__}",
            hint=f"ctx.deps.name finds one by its name; App(deps=...) has {given or 'none'}",
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return f"<dependencies {', '.join(self._values) or 'none'}>"


current_dependencies: ContextVar[Dependencies | None] = ContextVar("pyengine_dependencies", default=None)
"""The dependencies that are open here, if any."""


def check_dependencies(provided: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what an app is given, by name.

    Raises:
        InvalidRequest: a name cannot be an attribute.
    """
    for name in provided or {}:
        if not str(name).isidentifier() or name.startswith("_"):
            raise InvalidRequest(
                f"App(deps=...): {name!r} is no name of a dependency", hint='deps={"mail": Mail(...)}'
            )
    return dict(provided or {})


@contextlib.asynccontextmanager
async def open_dependencies(provided: Mapping[str, Any]) -> AsyncIterator[Dependencies]:
    """Make dependencies, one after the other, and close them in the opposite order when the block ends.

    Args:
        provided: values, or functions that make them, by name.
    """
    async with contextlib.AsyncExitStack() as stack:
        values = {}
        for name, one in provided.items():
            try:
                values[name] = await _open(one, stack)
            except Exception as error:
                error.add_note(f"while the dependency {name!r} was made")
                raise
        yield Dependencies(values)


def _is_factory(one: Any) -> bool:
    return inspect.isroutine(one) or inspect.isclass(one) or isinstance(one, functools.partial)


async def _open(one: Any, stack: contextlib.AsyncExitStack) -> Any:
    """Return the value of a dependency, whose end is left to the stack.

    The code behind a `yield` runs whatever has ended the block: its error is not raised at the `yield`.
    """
    if not _is_factory(one):
        return one
    # a context manager of contextlib wraps the function with the yield
    plain = inspect.unwrap(one)
    if inspect.isasyncgenfunction(plain):
        begin: Callable[[], AbstractAsyncContextManager[Any]]
        begin = one if one is not plain else contextlib.asynccontextmanager(one)
        opening = begin()
        value = await opening.__aenter__()
        stack.push_async_callback(opening.__aexit__, None, None, None)
    elif inspect.isgeneratorfunction(plain):
        begin_plain: Callable[[], AbstractContextManager[Any]]
        begin_plain = one if one is not plain else contextlib.contextmanager(one)
        manager = begin_plain()
        value = manager.__enter__()
        stack.callback(manager.__exit__, None, None, None)
    else:
        value = one()
        if inspect.isawaitable(value):
            value = await value
    return value
