"""Law: each file belongs to a part of the house, no part grows unseen, and the core needs no other part.

A file belongs to a part by its place. `parts.toml` has the most code lines that each part may have; a code
line has code on it: blank lines, comments and docstrings are none.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyengine.core.sources import GROUPS
from tests.style.lint.hooks import hooks_in
from tests.style.lint.inventory import of_schema
from tests.style.test_imports import KNOWN, imports
from tests.support.tree import ROOT, Module, files, modules, schema

# a room of a group; rooms of SQL have numbers, which say their order
ROOM = re.compile(rf"(?:pyengine|sql/logic)/({'|'.join(GROUPS)})/(?:\d+_)?(\w+)")
MAP: dict[str, Any] = tomllib.loads((Path(__file__).parent / "parts.toml").read_text(encoding="utf-8"))
PARTS: dict[str, dict[str, int]] = {
    **{f"{group}.{name}": part for group in GROUPS[1:] for name, part in MAP[group].items()},
    **{name: MAP[name] for name in ("core", "hall")},
}
SOURCES = [
    path for path in files() if path.startswith(("pyengine/", "sql/")) and path.endswith((".py", ".sql"))
]
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def part_of(path: str) -> str:
    """The core, a feature, a door, or the hall, in which an app is put together from them."""
    if found := ROOM.match(path):
        return "core" if found[1] == "core" else f"{found[1]}.{found[2]}"
    if path.startswith("sql/"):
        folder = path.split("/")[1]
        return "core" if folder in ("state", "logic") else f"doors.{folder}"
    return "core" if path == "pyengine/errors.py" else "hall"


def python_lines(text: str) -> int:
    """Code lines of a Python file."""
    documents: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            documents |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documents)


def sql_lines(text: str) -> int:
    """Code lines of a SQL file; what COMMENT ON says is documentation."""
    lines, documents = 0, False
    for line in text.splitlines():
        documents = documents or line.startswith("comment on ")
        if not documents and line.strip() and not line.lstrip().startswith("--"):
            lines += 1
        documents = documents and not line.endswith(";")
    return lines


@cache
def sizes() -> Counter[tuple[str, str]]:
    """Code lines of each part in each language."""
    found: Counter[tuple[str, str]] = Counter()
    for path in SOURCES:
        text = (ROOT / path).read_text(encoding="utf-8")
        kind, lines = ("python", python_lines(text)) if path.endswith(".py") else ("sql", sql_lines(text))
        found[part_of(path), kind] += lines
    return found


def grown(found: Mapping[tuple[str, str], int], parts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Parts that have more code lines than they may."""
    return [
        f"{name} has {lines} code lines of {kind}, {parts.get(name, {}).get(kind, 0)} allowed"
        for (name, kind), lines in sorted(found.items())
        if lines > parts.get(name, {}).get(kind, 0)
    ]


def python_arrows(package: Iterable[Module]) -> set[str]:
    """Imports of the core that lead out of it, as ``worker.worker -> definitions.schedules``."""
    found = set()
    for module in package:
        if part_of(module.path) == "core":
            for name, _ in imports(module):
                if name in KNOWN and part_of(_path_of(name)) != "core":
                    found.add(f"{_short(module.dotted)} -> {_short(name)}")
    return found


def sql_arrows() -> set[str]:
    """Functions of the core that call one of a feature or a door, as ``_tick -> _fire_schedules``."""
    parts: dict[str, str] = {}
    for one in (*schema().routines, *(item for item in schema().items if item.kind == "view")):
        # the clock of a test database is defined once more: a name belongs to its first file
        parts.setdefault(one.name, part_of(f"sql/{one.statement.file.name}"))
    found = set()
    for name, statement, tokens in schema().bodies():
        if part_of(f"sql/{statement.file.name}") == "core":
            for index in range(len(tokens)):
                callee = of_schema(tokens, index)
                if parts.get(callee, "core") != "core":
                    found.add(f"{name} -> {callee}")
    return found


def _path_of(dotted: str) -> str:
    path = dotted.replace(".", "/")
    return f"{path}.py" if f"{path}.py" in SOURCES else f"{path}/__init__.py"


def _short(dotted: str) -> str:
    return dotted.removeprefix("pyengine.")


def test_each_part_has_files() -> None:
    """The map names no part that is gone."""
    gone = set(PARTS) - {name for name, _ in sizes()}
    assert not gone, gone


def test_no_part_grows_unseen() -> None:
    """A part that must have more lines gets a larger number, with the reason in the commit."""
    assert not grown(sizes(), PARTS), "\n".join(grown(sizes(), PARTS))


def test_the_core_needs_no_feature() -> None:
    """The core imports no feature and no door, and its functions call none of theirs."""
    assert not python_arrows(modules("pyengine"))
    assert not sql_arrows()


def test_hooks_are_of_the_core() -> None:
    """A hook is defined and called in the core, and replaced outside of it."""
    called = {
        of_schema(tokens, index)
        for _, statement, tokens in schema().bodies()
        if part_of(f"sql/{statement.file.name}") == "core"
        for index in range(len(tokens))
    }
    texts = (ROOT / "pyengine/core/database/statements/procedures.py").read_text(encoding="utf-8")
    found = list(hooks_in(schema()))
    assert found
    for hook, replaced in found:
        assert part_of(f"sql/{hook.statement.file.name}") == "core"
        assert hook.name in called or hook.name in texts, f"nothing asks {hook.name}"
        places = [f"sql/{one.statement.file.name}" for one in replaced]
        assert "core" not in [part_of(place) for place in places], f"{hook.name} is replaced in {places}"


def test_lines_of_code_are_counted() -> None:
    """Neither comments nor docstrings nor blank lines are code; a text over two lines is two."""
    assert (
        python_lines('"""Page."""\n\nx = 1  # why\n\n\ndef f():\n    """Says."""\n    return """a\nb"""\n')
        == 4
    )
    text = "-- why\ncreate table durable._t (\n  id text\n);\ncomment on table durable._t is\n  'Things.';\n"
    assert sql_lines(text) == 3


def test_growth_is_reported() -> None:
    """One line more than allowed is found, and a language that a part has no number for."""
    parts = {"core": {"python": 2}}
    assert grown({("core", "python"): 2}, parts) == []
    assert len(grown({("core", "python"): 3, ("core", "sql"): 1}, parts)) == 2
