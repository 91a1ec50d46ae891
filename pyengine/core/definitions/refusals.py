"""Sentences for objects that are not what a decorator or a verb takes.

Lives here: `not_a_workflow`, `refuse_class`, `refuse_no_function`, `hint_for_sync` and `name_options`, which
know the usual mistakes. May not: the checks of options (registry.py). Each sentence names the object as the
code has it, and what to write instead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, Protocol

from pyengine.errors import InvalidRequest


def not_a_workflow(given: Any, verb: str) -> InvalidRequest:
    """Return the error for an object that was given in place of a workflow.

    Args:
        given: the object.
        verb: the function that got it: "app.run".
    """
    if isinstance(given, functools.partial):
        name = _name(given.func)
        return InvalidRequest(
            f"{verb} takes a workflow, not a partial of {name}",
            hint=f"give the arguments to {verb}: {verb}({name}, ...)",
        )
    if inspect.iscoroutine(given):
        given.close()  # else Python warns that it was never awaited
        name = given.__name__
        return InvalidRequest(
            f"{verb} takes a workflow, not the coroutine that a call of {name} returned",
            hint=f"do not call it: {verb}({name}, ...)",
        )
    name = _name(given)
    definition = getattr(given, "definition", None)
    if definition is not None:
        meanwhile = f"; to go on meanwhile: asyncio.create_task({name}(...))" if verb == "ctx.start" else ""
        return InvalidRequest(
            f"{verb} takes a workflow, and {name} is a step",
            hint=f"a workflow calls it: await {name}(...){meanwhile}",
        )
    if inspect.isroutine(given):
        what = "method" if inspect.ismethod(given) else "function"
        return InvalidRequest(
            f"{verb} takes a workflow, and {name} is a plain {what}",
            hint=f"decorate it: @app.workflow above async def {name}(...)",
        )
    return InvalidRequest(
        f"{verb} takes a workflow, not {given!r}", hint="decorate an async function with @app.workflow"
    )


def name_options(error: InvalidRequest, given: Mapping[str, Any], verb: str, options: Iterable[str]) -> None:
    """Add the options of a verb to the error for arguments that do not fit: one of them may be misspelt.

    Args:
        error: the error.
        given: the arguments by name.
        verb: "a start", "app.run".
        options: the options that it has.
    """
    if given and error.takes is not None:
        error.hint = f"{error.hint}; options of {verb}: {', '.join(options)}"


class _Takes(Protocol):
    """A signature."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object: ...

    def takes(self, name: str) -> bool: ...


def bind_read(signature: _Takes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Bind recorded arguments. The message itself names those that are unknown and says what the function
    takes: of a run that fails by them nothing else is shown. Code that is replayed sees the message of
    `bind`, which stays as it is.

    Raises:
        InvalidRequest: they do not fit.
    """
    try:
        signature.bind(args, kwargs)
    except InvalidRequest as error:
        if error.takes is None:
            raise
        told = error.message
        unknown = [repr(name) for name in kwargs if not signature.takes(name) and repr(name) not in told]
        if unknown:
            told = f"{told}; there is no argument {', '.join(unknown)}"
        raise InvalidRequest(f"{told}; it takes {error.takes}", takes=error.takes) from None


def refuse_class(app: object, kind: str) -> None:
    """Refuse a decorator of the class App: the function that it decorates is its `self`.

    Args:
        app: the `self` of the decorator.
        kind: its name, such as "step".

    Raises:
        InvalidRequest: it is a function.
    """
    if inspect.isroutine(app):
        raise InvalidRequest(
            f"App.{kind} decorates {_name(app)}, and App is the class", hint=f"app = App(), then @app.{kind}"
        )


def refuse_no_function(fn: Any, kind: str) -> None:
    """Refuse an object that a decorator cannot make a step, workflow or memo of.

    Args:
        fn: the object.
        kind: "step", "workflow" or "memo".

    Raises:
        InvalidRequest: it is a call, a name, a partial, a class, another object that can be called, a context
            manager, or a cache of coroutines.
    """
    if inspect.iscoroutine(fn):
        fn.close()  # else Python warns that it was never awaited
        raise InvalidRequest(
            f"a {kind} is a function, not the coroutine that a call of {fn.__name__} returned",
            hint=f"do not call it: app.{kind}({fn.__name__})",
        )
    if isinstance(fn, str):
        raise InvalidRequest(
            f"a {kind} is a function, not the text {fn[:60]!r}",
            hint=f"a name is given as app.{kind}(name=...)",
        )
    if isinstance(fn, functools.partial):
        raise InvalidRequest(
            f"a {kind} is a function, not a partial of {_name(fn.func)}",
            hint="write a function that calls it: its name and its parameters are recorded",
        )
    if inspect.isclass(fn):
        raise InvalidRequest(
            f"a {kind} is a function, not the class {_name(fn)}",
            hint="write a function that makes the object",
        )
    if isinstance(given := getattr(fn, "fn", None), FunctionType):
        raise InvalidRequest(
            f"a {kind} is made of a function, and {_name(fn)} is {fn!r} already",
            hint=f"decorate {_name(given)} once; another name for it: app.{kind}(name=...)({_name(fn)}.fn)",
        )
    if callable(fn) and not inspect.isroutine(fn):
        raise InvalidRequest(
            f"a {kind} is a function, not an object of the class {_name(type(fn))}",
            hint=f'give its method: app.{kind}(name="{_name(type(fn)).lower()}")(object.__call__)',
        )
    code = getattr(fn, "__code__", None)
    # a function that a context manager decorates is `inner` there
    if code is not None and (code.co_filename, code.co_name) == (contextlib.__file__, "helper"):
        raise InvalidRequest(
            f"a {kind} cannot be a context manager, and {_name(fn)} is one: what it returns is not recorded",
            hint=f"open it inside a step: with {_name(fn)}(...): ...",
        )
    if hasattr(fn, "cache_info") and inspect.iscoroutinefunction(inspect.unwrap(fn)):
        raise InvalidRequest(
            f"a {kind} cannot be a cache of the async function {_name(fn)}: it would keep its coroutine, "
            "which can be awaited once",
            hint="leave functools.lru_cache out; app.memo shares results",
        )


def hint_for_sync(fn: Any, name: str) -> str:
    """Return the way out for a function that should be async and is not."""
    if inspect.iscoroutinefunction(inspect.unwrap(fn)):
        return (
            f"{name} is, the decorator between is not: write `async def wrapper(...): return await fn(...)` "
            "in it"
        )
    return f"async def {name}(...)"


def _name(given: Any) -> str:
    name = getattr(given, "__name__", None)
    return name if isinstance(name, str) else repr(given)
