"""The ledger of the specifications as its tables have it, and the names that exist in the sources."""

from __future__ import annotations

import ast
import functools
import importlib
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.tree import ROOT

FILES = sorted((ROOT / "tests/ledger").glob("*.toml"))
KINDS = {"must", "should", "rule", "transition", "invariant", "definition"}
_CREATED = re.compile(
    r"^create (?:or replace )?(?:unlogged )?(?:unique )?"
    r"(?:function|procedure|table|type|domain|view|index|trigger|aggregate) (?:durable\.)?(\w+)",
    re.M,
)
_ROUTINE = re.compile(r"^create or replace (?:function|procedure) durable\.(\w+)", re.M)
_PART = re.compile(r"^  (?:constraint )?(\w+)", re.M)

Row = dict[str, Any]


def numbers(lines: Any) -> set[int]:
    """The lines that a number, a range as text, or a list of them means."""
    if isinstance(lines, list):
        return set().union(*map(numbers, lines))
    if isinstance(lines, int):
        return {lines}
    first, _, last = lines.partition("-")
    return set(range(int(first), int(last or first) + 1))


def parts_of(path: Path) -> dict[str, Any]:
    """The tables of one file: ``seed`` and ``row``."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def specifications() -> dict[str, tuple[Row, list[Row]]]:
    """Each specification by its number: its table ``seed``, and its rows from all of its files."""
    found: dict[str, tuple[Row, list[Row]]] = {}
    for path in FILES:
        seed, rows = found.setdefault(path.stem[:3], ({}, []))
        tables = parts_of(path)
        seed.update(tables.get("seed", {}))
        rows.extend(tables.get("row", []))
    return found


def flaws(number: str, row: Row) -> Iterator[str]:
    """What is wrong with the form of a row."""
    allowed = {"id", "kind", "line", "says", "function", "test", "ruling", "missing"}
    if unknown := row.keys() - allowed:
        yield f"has no such key: {', '.join(sorted(unknown))}"
    if not str(row.get("id", "")).startswith(f"{number}."):
        yield "has an id that does not begin with its specification"
    if row.get("kind") not in KINDS:
        yield f"is of no known kind: {row.get('kind')}"
    if "missing" in row:
        yield f"is missing: {row['missing']}"
    if not row.get("says"):
        yield "says nothing"
    if not row.get("line"):
        yield "has no line"
    if not row.get("ruling") and not (row.get("function") and row.get("test")):
        yield "has neither function and test nor a ruling"
    if bool(row.get("function")) != bool(row.get("test")):
        yield "has a function without a test, or a test without a function"


def drawn(seed: int, count: int = 10) -> list[Row]:
    """Rows drawn at random among those that name a function of the schema or of the package, to be broken by
    hand: the function is changed so that the sentence is false, and a test of the row must fail.
    """
    texts = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "sql/logic").rglob("*.sql")))
    routines = {f"durable.{name}" for text in texts for name in _ROUTINE.findall(text)}
    rows = [row for _, rows in specifications().values() for row in rows]
    able = [
        row
        for row in rows
        if any(name in routines or name.startswith("pyengine.") for name in row.get("function", ()))
    ]
    return random.Random(seed).sample(sorted(able, key=lambda row: str(row["id"])), count)


@functools.cache
def sql_names() -> dict[str, set[str]]:
    """Everything that ``sql/`` creates, by name, with its constraints and columns."""
    names: dict[str, set[str]] = {}
    for path in sorted((ROOT / "sql").rglob("*.sql")):
        text = path.read_text(encoding="utf-8")
        for created in _CREATED.finditer(text):
            body = text[created.end() : text.find(";\n", created.end())]
            names.setdefault(created[1], set()).update(_PART.findall(body))
    return names


def exists(name: str) -> bool:
    """Whether a function, table or Python object of this name is in the sources."""
    first, *rest = name.split(".")
    if first == "durable":
        known = sql_names()
        return bool(rest) and rest[0] in known and all(part in known[rest[0]] for part in rest[1:])
    for length in range(len(rest) + 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join([first, *rest][:length]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(first):
                raise  # of something that the package needs, which says nothing about this name
            continue
        for part in rest[length - 1 :]:
            if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, part, None)
        return True
    return False


@functools.cache
def tests_in(path: str) -> set[str]:
    """The names of the test functions of a file; none if there is no such file."""
    if not (ROOT / path).is_file():
        return set()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")}


def is_test(name: str) -> bool:
    """Whether ``tests/path/test_x.py::test_name`` is a test; a value of its parameters stands in its file."""
    path, _, test = name.partition("::")
    test, _, values = test.removesuffix("]").partition("[")
    return test in tests_in(path) and all(
        value in (ROOT / path).read_text(encoding="utf-8") for value in values.split("-")
    )
