"""The parsed source of the modules that functions are in.

Lives here: `source_of`, which finds a function in the source of its file. May not: the meaning of anything
in it (features/checks/names.py). Design: a file is parsed once, however many workflows it has;
`inspect.getsource` would read it again for each. A few files are kept, because modules register their
workflows one after the other.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Final, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_FILES_MAX: Final = 8
_SILENCE: Final = re.compile(r"#\s*durable:\s*ok\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The parsed source of a file.

    Args:
        file: its name.
        lines: its lines.
        functions: its functions, by the line of their first decorator or `def`.
        lambdas: its lambdas.
        top: what it binds at its top level, by name: plain functions, and values of variables.
    """

    file: str
    lines: list[str]
    functions: dict[int, FunctionNode]
    lambdas: list[ast.Lambda]
    top: dict[str, FunctionNode | ast.expr]

    def is_silenced(self, node: ast.expr | ast.stmt) -> bool:
        """Whether a line of an expression has the comment `# durable: ok`."""
        last = node.end_lineno or node.lineno
        return any(_SILENCE.search(line) for line in self.lines[node.lineno - 1 : last])


_sources: Final[dict[str, Source]] = {}


def source_of(function: FunctionType) -> tuple[Source, FunctionNode] | None:
    """Return the source of a function, and the function there; None if it cannot be had."""
    code = function.__code__
    source = _source(function)
    node = None if source is None else source.functions.get(code.co_firstlineno)
    return None if source is None or node is None or node.name != code.co_name else (source, node)


def lambda_source_of(function: FunctionType) -> tuple[Source, ast.Lambda] | None:
    """Return the source of a lambda, and the lambda there; None if it is not the only one of its line."""
    line, source = function.__code__.co_firstlineno, _source(function)
    found = [] if source is None else [one for one in source.lambdas if one.lineno == line]
    return (source, found[0]) if source is not None and len(found) == 1 else None


def _source(function: FunctionType) -> Source | None:
    file = function.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    source = _sources.get(file)
    if source is None or source.lines is not lines:
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
            # the last one is an error of Python 3.11, when several threads parse at once
            return None
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        functions, top = dict(_functions(tree)), dict(_top(tree))
        source = Source(file=file, lines=lines, functions=functions, lambdas=lambdas, top=top)
        if len(_sources) >= _FILES_MAX:
            del _sources[next(iter(_sources))]
        _sources[file] = source
    return source


def _functions(tree: ast.Module) -> Iterator[tuple[int, FunctionNode]]:
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield min([node.lineno, *(each.lineno for each in node.decorator_list)]), node


def _top(tree: ast.Module) -> Iterator[tuple[str, FunctionNode | ast.expr]]:
    for node in tree.body:
        if isinstance(node, FunctionNode):
            if not node.decorator_list:
                yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
