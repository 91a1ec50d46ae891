"""Exception classes that are defined inside functions.

Lives here: those that a step or workflow refers to, so that they can be registered, and the warning about
those that only the function itself can refer to. May not: registering (registry.py). The theory: an error is
read back by module and name of its class. A class inside a function cannot be found that way, so it would
come back as a RemoteError, which `except` of the class passes by.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from pyengine.core.definitions.function_source import source_of


def local_errors(fn: Callable[..., Any]) -> Iterator[type[BaseException]]:
    """Return the exception classes of an enclosing function that a function refers to."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            found = cell.cell_contents
        except ValueError:
            continue  # it is assigned later
        if isinstance(found, type) and issubclass(found, BaseException) and "<locals>" in found.__qualname__:
            yield found


def warn_of_inner_errors(fn: Callable[..., Any], subject: str) -> None:
    """Warn of each exception class that a function defines in its own body and raises.

    Args:
        fn: the function.
        subject: its name in the warning, e.g. "step charge".
    """
    found = source_of(fn) if isinstance(fn, FunctionType) else None
    if found is None:
        return
    source, node = found
    classes = {each.name: each for each in ast.walk(node) if isinstance(each, ast.ClassDef)}
    if not classes:
        return
    raised = {_raised(each) for each in ast.walk(node) if isinstance(each, ast.Raise)}
    for name in sorted(raised & classes.keys()):
        module = getattr(fn, "__globals__", {})
        warnings.warn_explicit(
            f"{subject} raises {name}, a class that it defines itself: no other code can catch it, because "
            "it comes back from the journal as a RemoteError; define it at the top level of the module",
            UserWarning,
            source.file,
            classes[name].lineno,
            module=module.get("__name__"),
            registry=module.setdefault("__warningregistry__", {}),
        )


def _raised(node: ast.Raise) -> str:
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return error.id if isinstance(error, ast.Name) else ""
