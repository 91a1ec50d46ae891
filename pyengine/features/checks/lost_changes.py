"""The objects of a module that a step changes and that its workflow therefore must not read.

Lives here: `changed_by`, which finds the lists, dicts and sets that a function changes and has not made, and
`changed_variable`, the variable whose object an expression changes. May not: the workflow that reads them
(hazards.py). The theory: a step runs once, in one process. A replay takes its result from the journal and
does not run it, so in another process its changes are not there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pyengine.core.definitions.function_source import source_of
from pyengine.features.checks import rules
from pyengine.features.checks.names import Names, closure_of


def changed_by(function: FunctionType) -> Iterator[Any]:
    """Return the objects of the module, and of functions around it, that a function changes."""
    found = source_of(function)
    if found is None:
        return
    source, node = found
    names = Names(source, node, function.__globals__, closure_of(function))
    for each in ast.walk(node):
        root = changed_variable(each)
        if root is not None:
            meaning = names.resolve(root)
            if meaning.kind in ("mutable", "set"):
                yield meaning.value


def changed_variable(node: ast.AST) -> ast.Name | None:
    """Return the variable whose object, or a part of it, an expression changes."""
    match node:
        case ast.Call(func=ast.Attribute(value=changed, attr=method)) if method in rules.MUTATING_METHODS:
            root: ast.expr = changed
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            root = node.value
        case _:
            return None
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    return root if isinstance(root, ast.Name) else None
