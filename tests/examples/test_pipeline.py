"""The pipeline over our own sources: a second run runs nothing, a change runs what depends on it."""

from __future__ import annotations

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
    for name in ("values", "loop", "calls"):
        shutil.copytree(ROOT / "pyengine" / name, tmp_path / "copy" / name)
    return tmp_path / "copy"


def how_found(conn: psycopg.Connection[Any]) -> Counter[str]:
    """How the calls of the newest run were answered, by their records in the journal."""
    rows = conn.execute(
        "select j.value ->> 'at' from durable.runs r cross join lateral durable.journal(r.id) e "
        "cross join lateral (select e.data::jsonb as value) j"
    )
    return Counter(str(row[0]) for row in rows)


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
