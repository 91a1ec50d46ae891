"""The pipeline over our own sources: a second run runs nothing, a change runs what depends on it."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.examples.pipeline import sources
from tests.support.tree import ROOT


class Runs:
    """The bodies that have run since they were counted last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def taken(self) -> Counter[str]:
        """How often each ran."""
        found = Counter(self._path.read_text().split())
        self._path.write_text("")
        return found


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A log of the bodies."""
    path = tmp_path / "ran.log"
    monkeypatch.setenv("PIPELINE_LOG", str(path))
    return Runs(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a part of the package, to change."""
    for name in ("protocol", "loop"):
        shutil.copytree(ROOT / "pyengine/core" / name, tmp_path / "copy" / name)
    return tmp_path / "copy"


def why_it_ran(dsn: str, function: str) -> dict[str, Any]:
    """The answer of `durable.explain_miss` for the newest call of a function, in a scope without pins."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.scope_open('nobody')")
        conn.execute("select durable.call_invalidate(function => %s)", (function,))
        row = conn.execute(
            "select durable.explain_miss('nobody', c.function, array(select durable.node_literal(i) "
            "from unnest(c.inputs) with ordinality x (i, place) order by place)) "
            "from durable._calls c join durable._call_attempts a using (value_key) where c.function = %s "
            "order by a.created_at desc limit 1",
            (function,),
        ).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0]
    return found


def test_only_dependants_of_a_change_run(dsn: str, folder: Path, runs: Runs) -> None:
    """First everything, then nothing, then one file's digest and parse, its folder, the total, the report."""
    sources.app.use_database(dsn)
    paths = list(folder.rglob("*.py"))
    files, folders = len(paths), len({path.parent for path in paths})
    first = sources.app.run(sources.survey, str(folder))
    assert runs.taken() == {"digest": files, "parse": files, "aggregate": folders + 1, "report": 1}
    assert first["files"] == files
    assert sources.app.run(sources.survey, str(folder)) == first
    assert runs.taken() == {}

    changed = folder / "loop" / "futures.py"
    changed.write_text(changed.read_text() + "\n\ndef added_by_the_test() -> None:\n    pass\n")
    second = sources.app.run(sources.survey, str(folder))
    assert runs.taken() == {"digest": 1, "parse": 1, "aggregate": 2, "report": 1}
    assert (second["lines"], second["names"]) == (first["lines"] + 4, first["names"] + 1)

    # other bytes of which the same is parsed: behind that nothing runs but the report of the bytes
    changed.write_text(changed.read_text().replace("    pass\n", "    ...\n"))
    third = sources.app.run(sources.survey, str(folder))
    assert runs.taken() == {"digest": 1, "parse": 1, "report": 1}
    assert third["names"] == second["names"]

    # the report would run for one digest alone: that of the file that was changed, at its place
    found = why_it_ran(dsn, sources.report.function)
    assert (found["at"], found["reason"]) == ("started", "its results were invalidated")
    (difference,) = found["nearest"]["differences"]
    place = sorted(folder.rglob("*.py")).index(changed)
    assert (difference["what"], difference["path"]) == ("input 1", f"[{place}]")
    assert difference["asked"] == {"string": hashlib.sha256(changed.read_bytes()).hexdigest()}
