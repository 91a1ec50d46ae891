"""Sentences for objects that are not what a decorator or a verb takes.

Lives here: `not_a_workflow` and `refuse_no_function`, which know the usual mistakes. May not: the checks of
options (registry.py). Each sentence names the object as the code has it, and what to write instead.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

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
        return InvalidRequest(
            f"{verb} takes a workflow, and {name} is a step", hint=f"a workflow calls it: await {name}(...)"
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


def refuse_no_function(fn: Any, kind: str) -> None:
    """Refuse an object that a decorator cannot make a step or workflow of.

    Args:
        fn: the object.
        kind: "step" or "workflow".

    Raises:
        InvalidRequest: it is a partial or a class.
    """
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


def _name(given: Any) -> str:
    name = getattr(given, "__name__", None)
    return name if isinstance(name, str) else repr(given)
