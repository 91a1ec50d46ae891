"""The recorder of journals: a plugin of pytest that keeps what the runs of a test have written.

    python -m pytest -p tests.doors.schema.recorder --record tests/doors/schema/recorded/NAME.json.gz TESTS

Lives here: reading the rows of a database and the code that wrote them, and writing both to a file. May not:
loading them (recorded_runs.py). Design: a recording has its code with it, reduced to what defines workflows,
so a program that is rewritten later does not change what was recorded. Of each table it has the columns of
0.1.0. A test whose programs are no page of the documentation needs a line in MODULES.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.examples.pages import Page
from tests.support.cluster import Server, of_worker
from tests.support.tree import ROOT

MODULES = {
    "test_agent": ["tests.examples.agent.app"],
    "test_etl": ["tests.examples.etl.app"],
    "test_shop": ["tests.examples.shop.app"],
    "test_programs": ["tests.system.chaos.plans", "tests.system.chaos.job"],
}
TABLES = {
    "_promises": (
        "timeout_at, created_at, settled_at, execution, head, child, task_version, timer, external, id, "
        "state, tenant, target, param_headers, param_data, value_headers, value_data, tags, ikey_create, "
        "ikey_complete"
    ),
    "_executions": (
        "execution, previous, cancel_until, bucket, next_seq, next_child, first_child, cancel_seq, "
        "suspend_seq, wait_left, wait_kind, waiting_on, reserved, open_steps, open_attempts, open_running, "
        "id, status, written_by_client, abandoned, tenant, workflow, workflow_version, key, digest, problem"
    ),
    "_tasks": (
        "deadline, expires_at, retry_at, prefer_until, released_until, acquired_at, execution, owner, ttl, "
        "version, priority, crashes, attempt, releases, attempt_open, id, state, queue, workflow, "
        "workflow_version, pid, preference, recv, recv_headers, released_by"
    ),
    "_callbacks": "awaited_id, awaiter_id, id, timeout_at, child, recv, recv_headers",
    "_journal": "execution, ts, bucket, seq, child, attempt, type, name, input_hash, data",
    "_journal_values": "execution, bucket, hash, prefix, data",
    "_inboxes": "execution, delivered, received, receiver, name",
    "_signals": "execution, delivery, name, key, data",
    "_join_sets": "execution, child, closed",
    "_members": "execution, child, join_set, taken",
}
# what defines workflows; whatever else stands at the top of a program runs them
_DEFINITIONS = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
    *(ast.Assign, ast.AnnAssign),
)


def definitions(text: str) -> str:
    """A program without the statements that run something."""
    kept = []
    for statement in ast.parse(text).body:
        called = {ast.unparse(one.func) for one in ast.walk(statement) if isinstance(one, ast.Call)}
        registers = isinstance(statement, ast.Expr) and called <= {"app.error"}
        defines = isinstance(statement, _DEFINITIONS) and not called & {"app.run", "app.start"}
        if defines or registers:
            kept.append(ast.unparse(statement))
    return "\n".join(kept)


def rows(dsn: str) -> dict[str, list[list[Any]]]:
    """The rows of all runs of a database, by table."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = {}
        for table, columns in TABLES.items():
            query = f"select to_jsonb(x) from (select {columns} from durable.{table} order by 1, 2) x"
            names = columns.split(", ")
            found[table] = [[row[name] for name in names] for (row,) in conn.execute(query.encode())]
    return found


def code_of(request: pytest.FixtureRequest) -> dict[str, str]:
    """The modules of the programs of a test, in the order of their imports."""
    page = getattr(getattr(request.node, "callspec", None), "params", {}).get("page")
    if not isinstance(page, Page):
        paths = {name: ROOT / f"{name.replace('.', '/')}.py" for name in MODULES[Path(request.path).stem]}
        return {name: definitions(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    if "DeterminismWarning" in page.text:
        # it shows what a replay cannot repeat
        return {}
    blocks = [block for block in page.blocks if block.is_run and block.language == "python"]
    titled = {Path(block.title).stem: definitions(block.text) for block in blocks if block.title}
    others = [block.text for block in blocks if not block.title]
    return {**titled, **{f"__main__ {number}": definitions(text) for number, text in enumerate(others)}}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the recorder."""
    parser.addoption("--record", type=Path, required=True, help="the file for the journals of these tests")


@pytest.fixture(autouse=True)
def recording(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the runs of this test, after it and before its databases are emptied."""
    for name in request.fixturenames:
        if name != "recording":
            request.getfixturevalue(name)
    if "dsn" in request.fixturenames:
        dsn = request.getfixturevalue("direct")
    else:
        server: Server = request.getfixturevalue("server")
        dsn = server.dsn(of_worker("another_0"))
    variables = {"PYENGINE_DATABASE_URL": "postgresql://nowhere"}
    variables |= {name: os.environ[name] for name in ("BANK_URL", "MODEL_URL") if name in os.environ}
    yield
    code, found = code_of(request), rows(dsn)
    if any("App(" in text for text in code.values()) and found["_executions"]:
        kept = {"code": code, "environment": variables, "rows": found}
        keep(request.config.getoption("--record"), request.node.name, kept)


def keep(path: Path, name: str, recording: dict[str, Any]) -> None:
    """Add a recording to a file; one of the same name is replaced."""
    known = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    known[name] = recording
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
