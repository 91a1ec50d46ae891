"""Law: imports go one way, drivers stay where they belong, and SQL text stands in one place.

`RANKS` is the map of the package: a folder, or a file at the top, imports itself and what stands before it,
annotations included. What the house forbids beyond that stands in the tables below, with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

import pytest

from pyengine.core.sources import GROUPS
from tests.support.tree import Module, modules

# places of one rank do not import each other, except those of CHAINS: there a later one may import an earlier
RANKS: tuple[tuple[str, ...], ...] = (
    ("core.annotations",),
    ("errors", "core.sources", "core.passwords", "core.rules"),
    ("core.url_parameters",),
    ("core.servers",),
    ("core.process",),
    ("core.protocol", "core.values"),
    ("core.definitions",),
    ("core.loop",),
    ("core.replay",),
    ("core.workflow",),
    ("core.database",),
    ("core.client", "core.worker"),
    (
        *("features.compensation", "features.dependencies", "features.frameworks", "features.http"),
        "features.many_runs",
        *("features.progress", "features.promises", "features.remote", "features.removal"),
        *("features.schedules", "features.sql", "features.checks"),
    ),
    ("features.calls",),
    ("doors.admin", "doors.embedded", "doors.gateway", "doors.program"),
    ("context", "extensions", "clients", "app_runtime", "app_calls", "sync", "app"),
    ("doors.demo",),
    ("doors.cli", "__main__"),
)
CHAINS = {
    "context",
    "extensions",
    "clients",
    "app_runtime",
    "app_calls",
    "sync",
    "app",
    "doors.cli",
    "__main__",
}
# a driver, and the only places that may import it: a folder, or one module of it
DRIVERS: dict[str, tuple[str, ...]] = {
    "asyncpg": (
        *("core.database", "core.client.caller_connection", "features.checks.replay_check"),
        *("features.sql.sql_values", "features.sql.sql_step_runner", "features.sql.transaction_runner"),
    ),
    "psycopg": ("core.client.psycopg_transport", "doors.admin", "doors.cli", "doors.demo"),
    # whoever has a session of theirs has imported them
    "sqlalchemy": (),
    "django": (),
    "typer": ("doors.cli",),
    "rich": ("doors.cli", "features.progress.live_bar"),
    "platformdirs": ("doors.embedded",),
    "httpx": ("features.http.requests", "doors.gateway.courier.http_client"),
    "httpcore": ("doors.gateway.courier.http_client",),
    "uvloop": ("doors.program.foreground",),
    "starlette": ("doors.gateway",),
    "uvicorn": ("doors.gateway.http_server",),
    "jwt": ("doors.gateway.tokens",),
    "cryptography": ("doors.gateway.tokens",),
    "prometheus_client": ("doors.gateway.metrics",),
    "pytest": (),
    "hypothesis": (),
    "pglast": (),
    "testcontainers": (),
}
# places -> what they must not import: replay is a function of journal and code alone
PURE = {
    "core.replay": "asyncpg os random socket subprocess threading time",
    "errors core.sources core.protocol": "asyncio asyncpg random socket subprocess threading time",
    "core.values.codec core.values.exceptions": "asyncio asyncpg random socket subprocess threading time",
    "core.definitions.retry": "asyncio asyncpg random socket subprocess threading time",
    "core.client.client core.client.run clients sync": "asyncio",
    "core.database.error_mapping": "asyncio asyncpg psycopg",
    "doors.admin": (
        "asyncio pyengine.core.worker pyengine.core.client pyengine.core.database pyengine.doors.embedded"
    ),
}
SQL = re.compile(
    r"\s*(select\s.+\bfrom\b|select\s+\w+\.\w+\(|insert\s+into|update\s+\w+\.\w+|delete\s+from|"
    r"with\s+\w+\s+as\s*\(|"
    r"(un)?listen\s+\w+\s*$|notify\s+\w+\s*$|lock\s+table|create\s+(or\s+replace|table|schema))",
    re.I | re.S,
)
# what workers, clients and features call; the schema itself; people's views; tables of users
SQL_PLACES = re.compile(
    r"pyengine\.((core\.database|features\.\w+|doors\.gateway)\.statements|doors\.(admin|demo))\b"
)


PACKAGE = list(modules("pyengine"))
KNOWN = {module.dotted for module in PACKAGE}


def place(dotted: str) -> str:
    """The name that has a rank: ``pyengine.core.replay.machine`` -> ``core.replay``."""
    names = dotted.split(".")[1:]
    if names in ([group] for group in GROUPS):
        return ""
    return ".".join(names[: 2 if names and names[0] in GROUPS else 1])


def is_in(dotted: str, places: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or in one of these folders."""
    return any(f"{dotted}.".startswith(f"pyengine.{each}.") for each in places)


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, anywhere in it and for annotations too, with their lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            known = inner & KNOWN if node.module != "pyengine" else inner
            yield from ((name, node.lineno) for name in known or {node.module})


def goes_down(own: str, other: str) -> bool:
    """Whether one place may import another: itself, an earlier rank, or, in a chain, one before it."""
    ranks = {name: rank for rank, names in enumerate(RANKS) for name in names}
    if own == other or not other:
        return True
    if ranks[own] != ranks.get(other, 0):
        return ranks.get(other, 0) < ranks[own]
    names = RANKS[ranks[own]]
    return {own, other} <= CHAINS and names.index(other) < names.index(own)


def breaches(module: Module) -> list[str]:
    """What a module of the package imports against the law."""
    own = place(module.dotted)
    if own and not any(own in names for names in RANKS):
        return [f"{module.path}: has no rank in tests/style/test_imports.py"]
    found = []
    for name, line in imports(module):
        top = name.split(".")[0]
        where = f"{module.path}:{line}"
        # the surface of the package stands for what it exports: users' modules alone go by it
        if own and top == "pyengine" and name in KNOWN and not goes_down(own, place(name)):
            found.append(f"{where}: {own} imports {place(name)}, which does not stand before it")
        if top in DRIVERS and not is_in(module.dotted, DRIVERS[top]):
            found.append(f"{where}: {top} is for {', '.join(DRIVERS[top]) or 'tests'} only")
        for pure, forbidden in PURE.items():
            if is_in(module.dotted, tuple(pure.split())) and any(
                name == each or name.startswith(f"{each}.") for each in forbidden.split()
            ):
                found.append(f"{where}: {module.dotted} stays free of {name}")
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
        f"{module.path}:{node.lineno}: SQL text belongs in a module named statements: {node.value[:60]!r}"
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
    """No file imports itself through others, for annotations neither; and no folder."""
    files = {
        module.dotted: {name for name, _ in imports(module)} & KNOWN - {"pyengine"} for module in PACKAGE
    }
    del files["pyengine"]
    assert not cycles(files), "\n".join(cycles(files))
    folders: dict[str, set[str]] = {}
    for name, others in files.items():
        folders.setdefault(place(name), set()).update({place(other) for other in others} - {place(name)})
    assert not cycles(folders), "\n".join(cycles(folders))


def test_a_folder_can_be_looked_over() -> None:
    """At most 22 files, and a page that says what lives there and what may not."""
    for module in PACKAGE:
        if module.path.endswith("/__init__.py") and module.dotted != "pyengine":
            beside = [one for one in PACKAGE if one.dotted.rpartition(".")[0] == module.dotted]
            assert len(beside) <= 22, module.path
            words = ast.get_docstring(module.tree) or ""
            assert "ives here: " in words and "ay not: " in words, f"{module.path} has no page"


def test_sql_text_stands_in_one_place() -> None:
    """Only modules named statements, admin (people's views too) and the demonstration hold SQL text."""
    found = [text for module in PACKAGE if not SQL_PLACES.match(module.dotted) for text in sql_texts(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("core/values/codec", "from pyengine.core.replay.machine import Replay"),
        ("core/values/codec", "import asyncio"),
        ("core/values/codec", "from pyengine.core.protocol import journal"),
        ("core/replay/machine", "import asyncpg"),
        ("core/replay/machine", "def f():\n    import time"),
        ("core/replay/machine", "if TYPE_CHECKING:\n    from pyengine.context import ctx"),
        ("core/loop/event_loop", "from asyncpg import connect"),
        ("core/client/client", "from pyengine.core.worker import worker"),
        ("core/client/client", "import asyncio"),
        ("core/client/caller_connection", "import sqlalchemy"),
        ("core/worker/worker", "import psycopg"),
        ("app_runtime", "from pyengine.app import App"),
        ("app", "from pyengine.doors.cli import output"),
        ("doors/admin/x", "import asyncpg"),
        ("core/database/statements/procedures", "import platformdirs"),
        ("stranger", ""),
    ],
)
def test_the_check_of_imports_reports(name: str, text: str) -> None:
    """Each kind of forbidden import is found."""
    assert breaches(Module(path=f"pyengine/{name}.py", text=text))


def test_the_check_of_imports_lets_pass() -> None:
    """Earlier ranks, the own folder, the chain and own drivers are allowed."""
    text = "import msgspec\nfrom pyengine.errors import EngineError\nfrom pyengine.core.values import depth\n"
    assert breaches(Module(path="pyengine/core/values/codec.py", text=text)) == []
    assert breaches(Module(path="pyengine/doors/admin/x.py", text="import psycopg")) == []
    text = "from pyengine.app_runtime import AppRuntime\nfrom pyengine.core.worker import worker"
    assert breaches(Module(path="pyengine/app.py", text=text)) == []


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


def lists_of_names(package: Iterable[Module]) -> list[str]:
    """Modules below the hall that list their names; pages of folders may, for they only pass names on."""
    return [
        module.path
        for module in package
        if module.path.count("/") > 1
        and not module.path.endswith("/__init__.py")
        and re.search(r"^__all__\b", module.text, re.MULTILINE)
    ]


def test_only_the_hall_lists_its_names() -> None:
    """What another module uses has no underscore; a list beside that would be kept by nobody."""
    assert not lists_of_names(PACKAGE)
    listed = [Module(path=path, text="__all__ = []\n") for path in ("pyengine/x.py", "pyengine/core/x.py")]
    assert lists_of_names(listed) == ["pyengine/core/x.py"]


def test_the_package_imports_without_drivers_of_tests() -> None:
    """Nothing that only the tests need is imported by the package: every third-party name is a dependency."""
    known = {
        "asyncpg",
        "httpx",
        "msgspec",
        "platformdirs",
        "psycopg",
        "rich",
        "typer",
        "uvloop",
        "pyengine",
    }
    # the last one for type checkers only
    optional = {"pydantic", "starlette", "opentelemetry", "typing_extensions"}
    # of the extra `serve`
    optional |= {"uvicorn", "jwt", "cryptography", "prometheus_client", "httpcore"}
    # of the standard library, since Python 3.14
    optional |= {"annotationlib"}
    tops = {(name.split(".")[0], module.path) for module in PACKAGE for name, _ in imports(module)}
    strange = {pair for pair in tops if pair[0] not in known | optional | sys.stdlib_module_names}
    assert not strange
