"""Law: the core works without features and doors: its tests pass in a copy that has neither.

The copy has the core's code, its SQL and its tests, and a hall of its own (`support/core_hall.py`). With
`--full` all of them run, else a part that takes seconds; none is left out.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from pyengine.core.sources import GROUPS, Sources
from pyengine.doors.admin import migrate
from tests.support.cluster import Server, create_database, drop_database
from tests.support.core_fixtures import TEMPLATE
from tests.support.tree import ROOT

FOLDERS = ("pyengine/core", "sql/state", "sql/logic/core", "sql/logic/99_entry_points", "migrations")
# the client's records of runs, which tests ask whether a run has ended, come from these views, and the core's
# SQL calls none of them; `core_hall.sql` stands for the functions of features that they name
READ = (
    "sql/logic/doors/90_read/05_waits.sql",
    "sql/logic/doors/90_read/10_views.sql",
    "sql/logic/doors/90_read/12_replay_check.sql",
)
FILES = ("pyengine/__init__.py", "pyengine/errors.py", "pyengine/py.typed", "tests/conftest.py", *READ)
# helpers of the tests, which import nothing of the package, and a page that a test reads
HELPERS = (
    "tests/support",
    "tests/style/lint",
    "tests/system/crash/processes.py",
    "tests/system/failover/cable.py",
    "docs/explanation/how-a-run-travels.md",
    "docs/reference/faults.md",
)
HALL = {
    "tests/support/core_hall.py": "pyengine/app.py",
    "tests/support/core_hall_asks.py": "pyengine/asks.py",
    "tests/support/core_hall.sql": "sql/logic/features/10_hall.sql",
    "tests/support/core_fixtures.py": "tests/core/conftest.py",
}
DOORS_OF_HALL = {"clients": "Client", "context": "ctx"}
FEW = (
    *(
        "replay/test_replay_table.py",
        "replay/test_loop.py",
        "replay/test_registry.py",
        "replay/test_traps.py",
    ),
    *("sql/test_start.py", "sql/test_turn.py", "sql/test_signals.py", "worker/test_children.py"),
    *("worker/test_dispatcher.py", "worker/test_gather.py"),
)
FOREIGN = (
    "pyengine.features",
    "pyengine.doors",
    "pyengine.sync",
    "tests.features",
    "tests.doors",
    "tests.system",
)
LEAST_OF_FEW, LEAST_OF_ALL = 320, 3500
# a run that hangs ends, and its test fails
WAIT_S = 3600
SETTINGS = """
[pytest]
pythonpath = .
addopts = --strict-markers --import-mode=importlib -p no:asyncio -p no:anyio -p no:cacheprovider
filterwarnings =
    error::pytest.PytestUnraisableExceptionWarning
    error::pytest.PytestUnhandledThreadExceptionWarning
markers =
    full
    fast
    unlawful
    circles
    new_database
    session
"""


def lay(folder: Path, path: str, to: str | None = None) -> None:
    """Copy a file or a folder of this repository."""
    target = folder / (to or path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / path).is_dir():
        shutil.copytree(ROOT / path, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(ROOT / path, target)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A house that has nothing but the core, and its tests."""
    for path in (*FOLDERS, *FILES, *HELPERS, "tests/core"):
        lay(tmp_path, path)
    for path, to in HALL.items():
        lay(tmp_path, path, to)
    for module, name in DOORS_OF_HALL.items():
        (tmp_path / f"pyengine/{module}.py").write_text(f"from pyengine.app import {name} as {name}\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    assert not any((tmp_path / "pyengine" / group).exists() for group in GROUPS[1:])
    return tmp_path


@pytest.fixture
def prepared(house: Path, quiet: Server) -> Iterator[str]:
    """URL of a database with the SQL of that house, on a server of its own."""
    with psycopg.connect(quiet.dsn(quiet.maintenance_dbname), autocommit=True) as conn:
        create_database(conn, "core")
        migrate.install(
            quiet.dsn("core"), sources=Sources(sql=house / "sql", migrations=house / "migrations")
        )
        yield quiet.dsn("core")
        drop_database(conn, "core")


def run_tests(house: Path, prepared: str, *which: str) -> tuple[int, str]:
    """Run tests of the house in a process of their own: how many passed, and what they told. One that hangs
    is the last that has no outcome."""
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-c", "pytest.ini", *which]
    environment = {**os.environ, TEMPLATE: prepared, "PYTHONPATH": ""}
    log = house / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=house, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    told = log.read_text()[-20_000:]
    passed = re.search(r"(\d+) passed", told)
    return int(passed[1]) if process.returncode == 0 and passed else 0, told


def test_the_tests_of_the_core_pass_alone(house: Path, prepared: str, request: pytest.FixtureRequest) -> None:
    """No module, function or view of a feature or a door is missed."""
    is_full = request.config.getoption("--full")
    which = ["tests/core"] if is_full else [f"tests/core/{name}" for name in FEW]
    passed, told = run_tests(house, prepared, *which)
    print(f"{passed} tests of {', '.join(which)}")
    assert passed >= (LEAST_OF_ALL if is_full else LEAST_OF_FEW), told


def foreign(source: str) -> set[str]:
    """Modules that a test of the core imports, and that the copy has not."""
    names = {name for node in ast.walk(ast.parse(source)) for name in imported(node)}
    helpers = {path.removesuffix(".py").replace("/", ".") for path in HELPERS}
    return {
        name
        for name in names
        if name.startswith(FOREIGN) and not any(name.startswith(helper) for helper in helpers)
    }


def imported(node: ast.AST) -> list[str]:
    """The modules of an import, and what it takes from one, which may be a module too."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []


def test_tests_of_the_core_import_the_core() -> None:
    """None imports what the copy has not, so that none is left out there."""
    sources = {path: path.read_text() for path in (ROOT / "tests/core").rglob("*.py")}
    assert len(sources) > 100
    assert {str(path): found for path, source in sources.items() if (found := foreign(source))} == {}


def test_an_import_of_a_feature_is_found() -> None:
    """Self-test, also within a function; a helper of the copy is none."""
    source = (
        "def f():\n    import pyengine.features.sql.context\nfrom tests.system.crash.processes import stop\n"
        "from pyengine import App, doors\n"
    )
    assert foreign(source) == {"pyengine.features.sql.context", "pyengine.doors"}


def test_a_core_that_needs_a_feature_fails(house: Path) -> None:
    """Self-test: a module of the core that imports one breaks the tests that use it."""
    module = house / "pyengine/core/loop/futures.py"
    module.write_text(module.read_text() + "\nimport pyengine.features.checks.names\n")
    passed, told = run_tests(house, "", "tests/core/replay/test_loop.py")
    assert passed == 0 and "No module named 'pyengine.features'" in told
