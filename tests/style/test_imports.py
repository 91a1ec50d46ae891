"""Law: imports go one way, drivers stay where they belong, and SQL text stands in one place.

The layers are the map of the package: a module may import its own layer and the ones before it. Imports for
annotations only (under TYPE_CHECKING) are free. What the house forbids beyond the layers stands in the
tables below, with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import pytest

from tests.support.tree import Module, modules

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "sqlstates", "sources", "passwords", "depth"),
    (
        *(
            "model",
            "retry",
            "queues",
            "trouble",
            "slots",
            "scope",
            "failures",
            "forbidden",
            "history",
            "binaries",
            "postmaster",
        ),
        *("loop_parts", "shields"),
        *("values_hints", "values_paths", "values_pydantic", "values_shapes", "values_tree", "values_unions"),
    ),
    (
        *("codec", "signatures", "registry", "threads", "embedded", "admin", "promise_records"),
        *("http_records", "http", "signals", "sql_errors", "sql_steps"),
    ),
    ("loop", "waits", "ctx_handles", "ctx_waits", "ctx_sql", "context"),
    (
        *("ledger", "captures", "inboxes", "join_sets", "outcomes", "matching", "cancelling", "replay"),
        *("open_steps", "judging", "transaction_values", "transaction_log", "transaction"),
    ),
    (
        "procedures",
        "sessions",
        "procedures_promises",
        "procedures_many",
        "procedures_sql",
        "procedures_sessions",
        "answers",
        "connection",
        "link_pool",
        "listen",
    ),
    (
        *(
            "wire",
            "acts",
            "turn",
            "blocked",
            "resting",
            "runs",
            "reporting",
            "early",
            "steps",
            "holding",
            "keeping",
            "heartbeat",
        ),
        *("housekeeping", "exchange"),
        *("results", "promises", "handle", "steering", "steering_many", "replay_check", "committing"),
        *("callers", "asking", "blocking", "sql_door", "serving"),
    ),
    ("worker", "client", "sync"),
    ("place", "foreground"),
    ("app",),
    ("cli", "demo", "gateway", "courier", "testing"),
    ("__main__",),
)
ASYNC_DOORS = (
    *(
        "connection",
        "sessions",
        "listen",
        "turn",
        "heartbeat",
        "housekeeping",
        "committing",
        "transaction_values",
    ),
    *("worker", "callers", "replay_check", "app", "testing", "sql_door"),
)
# package -> the only modules that may import it
DRIVERS: dict[str, tuple[str, ...]] = {
    "asyncpg": ASYNC_DOORS,
    "psycopg": ("admin", "cli", "demo", "blocking"),
    # whoever has a session of theirs has imported them
    "sqlalchemy": (),
    "django": (),
    "sqlglot": ("admin",),
    "typer": ("cli",),
    "rich": ("cli",),
    "platformdirs": ("embedded",),
    "httpx": ("http",),
    "uvloop": ("worker", "app", "cli"),
    "pytest": (),
    "hypothesis": (),
    "pglast": (),
    "testcontainers": (),
}
# modules -> what they must not import: replay is a function of journal and code alone
PURE = {
    "replay matching history ledger captures inboxes join_sets outcomes cancelling": (
        "asyncpg os random socket subprocess threading time"
    ),
    "errors model codec failures retry sources": "asyncio asyncpg random socket subprocess threading time",
    "client sync": "asyncio pyengine.worker pyengine.turn pyengine.replay",
    "answers": "asyncio asyncpg psycopg",
    "admin": "asyncpg asyncio pyengine.worker pyengine.client pyengine.procedures pyengine.embedded",
}
# who may import these: they are for users, or the end of the line
LAST = {"testing": (), "cli": ("__main__", "demo")}
SQL = re.compile(
    r"\s*(select\s.+\bfrom\b|select\s+\w+\.\w+\(|insert\s+into|update\s+\w+\.\w+|delete\s+from|"
    r"with\s+\w+\s+as\s*\(|"
    r"(un)?listen\s+\w+\s*$|notify\s+\w+\s*$|lock\s+table|create\s+(or\s+replace|table|schema))",
    re.I | re.S,
)
# what workers and clients call; the schema itself; people's views on the command line; a user's own tables
SQL_PLACES = ("pyengine.procedures", "pyengine.admin", "pyengine.cli.queries", "pyengine.demo")


PACKAGE = modules("pyengine")
KNOWN = {module.dotted for module in PACKAGE}


def unit(dotted: str) -> str:
    """The part of a dotted name that has a layer: ``pyengine.admin.lint`` -> ``admin``."""
    return dotted.split(".")[1] if dotted.count(".") else ""


def imports(module: Module, *, lazy: bool = True) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, with their lines; without ``lazy`` only those of its own import."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(module.tree):
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            skipped |= set(ast.walk(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {inner for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(module.tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            known = inner & KNOWN if node.module != "pyengine" else inner
            yield from ((name, node.lineno) for name in known or {node.module})


def breaches(module: Module) -> list[str]:
    """What a module of the package imports against the law."""
    own = unit(module.dotted)
    ranks = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
    found = []
    if own and own not in ranks:
        found.append(f"{module.path}: has no layer in tests/style/test_imports.py")
    for name, line in imports(module):
        top, other = name.split(".")[0], unit(name) if name.startswith("pyengine.") else ""
        where = f"{module.path}:{line}"
        if other and own and ranks.get(other, 0) > ranks.get(own, 99):
            found.append(f"{where}: {own} imports {other}, a later layer")
        if other in LAST and own not in (other, *LAST[other]):
            found.append(f"{where}: nobody imports {other}")
        if top in DRIVERS and own not in DRIVERS[top]:
            found.append(f"{where}: {top} is for {', '.join(DRIVERS[top]) or 'tests'} only")
        for pure, forbidden in PURE.items():
            if own in pure.split() and any(
                name == each or name.startswith(f"{each}.") for each in forbidden.split()
            ):
                found.append(f"{where}: {own} stays free of {name}")
    return found


def sql_texts(module: Module) -> list[str]:
    """Strings that are SQL and no docstring."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        f"{module.path}:{node.lineno}: SQL text belongs in procedures.py: {node.value[:60]!r}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if SQL.match(node.value)
    ]


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import themselves through others, as readable chains."""
    found = []
    for start in sorted(graph):
        stack = [(start, (start,))]
        seen: set[str] = set()
        while stack:
            name, chain = stack.pop()
            for other in sorted(graph.get(name, ())):
                if other == start:
                    found.append(" -> ".join((*chain, start)))
                elif other not in seen and other in graph:
                    seen.add(other)
                    stack.append((other, (*chain, other)))
    return found


@pytest.mark.parametrize("module", PACKAGE, ids=lambda module: module.dotted)
def test_imports_keep_the_layers(module: Module) -> None:
    """A module imports only earlier layers and the drivers that are for it."""
    found = breaches(module)
    assert not found, "\n".join(found)


def test_no_cycles() -> None:
    """No module imports itself through others while it is being imported."""
    graph = {module.dotted: {name for name, _ in imports(module, lazy=False)} for module in PACKAGE}
    assert not cycles(graph), "\n".join(cycles(graph))


def test_sql_text_stands_in_one_place() -> None:
    """Only procedures.py, admin, cli/queries.py (people's views) and the demonstration hold SQL text."""
    found = [
        text for module in PACKAGE if not module.dotted.startswith(SQL_PLACES) for text in sql_texts(module)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("codec", "from pyengine.replay import Replay"),
        ("codec", "import asyncio"),
        ("replay", "import asyncpg"),
        ("replay", "def f():\n    import time"),
        ("loop", "from asyncpg import connect"),
        ("client", "from pyengine import worker"),
        ("client", "import asyncio"),
        ("callers", "import sqlalchemy"),
        ("worker", "import psycopg"),
        ("worker", "import pyengine.testing"),
        ("app", "from pyengine.cli import main"),
        ("admin/x", "import asyncpg"),
        ("procedures", "import sqlglot.expressions"),
        ("stranger", ""),
    ],
)
def test_the_check_of_imports_reports(name: str, text: str) -> None:
    """Each kind of forbidden import is found."""
    assert breaches(Module(path=f"pyengine/{name}.py", text=text))


def test_the_check_of_imports_lets_pass() -> None:
    """Earlier layers, own drivers and imports for annotations are allowed."""
    text = "from typing import TYPE_CHECKING\nimport msgspec\nfrom pyengine.errors import EngineError\n"
    text += "if TYPE_CHECKING:\n    from pyengine.worker import Worker\n"
    assert breaches(Module(path="pyengine/codec.py", text=text)) == []
    assert breaches(Module(path="pyengine/admin/x.py", text="import psycopg, sqlglot")) == []


def test_the_check_of_cycles_reports() -> None:
    """A cycle over two modules is found, a diamond is none."""
    assert cycles({"a": {"b"}, "b": {"a"}})
    assert not cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()})


def test_the_check_of_sql_text_reports() -> None:
    """A query in a string is found, a docstring and a message with the word select are not."""
    bad = 'def f() -> str:\n    return "select id from durable.runs"\n'
    good = 'def f() -> str:\n    """select id from durable.runs"""\n    return "select a run, then read it"\n'
    assert sql_texts(Module(path="pyengine/x.py", text=bad))
    assert not sql_texts(Module(path="pyengine/x.py", text=good))


def test_the_package_imports_without_drivers_of_tests() -> None:
    """Nothing that only the tests need is imported by the package: every third-party name is a dependency."""
    known = {
        "asyncpg",
        "httpx",
        "msgspec",
        "platformdirs",
        "psycopg",
        "rich",
        "sqlglot",
        "typer",
        "uvloop",
        "pyengine",
    }
    optional = {"pydantic", "starlette", "uvicorn", "opentelemetry"}
    tops = {(name.split(".")[0], module.path) for module in PACKAGE for name, _ in imports(module)}
    strange = {pair for pair in tops if pair[0] not in known | optional | sys.stdlib_module_names}
    assert not strange
