"""Law: the code of today replays the journals that earlier code wrote.

The rows stand in recorded/, from the programs of the documentation, of tests/examples and of
tests/system/chaos. A database of 0.1.0 loads them, is migrated to this version, and is read as replay-check
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.rows import class_row

from pyengine.core.protocol.journal import RowType
from pyengine.doors.admin import migrate
from pyengine.features.checks.compatibility import Finding, Journal
from pyengine.features.checks.replay_check import check_journals
from tests.doors.schema.recorded_runs import FOLDER, Recording, databases, load, programs, recordings

JOURNALS = (
    "select execution, id, workflow, version, param, started_at, queue, first_child, state, outcome, "
    "waiting_on, rules, rows::text as rows from durable.journals_v1(%s)"
)


def read(conn: psycopg.Connection[tuple[object, ...]], one: Recording) -> list[Journal]:
    """The journals of a recording. Those that were cut off are runs that have not ended."""
    journals = conn.cursor(row_factory=class_row(Journal)).execute(JOURNALS, (one.executions,)).fetchall()
    return [
        msgspec.structs.replace(found, state="running", outcome=None)
        if found.execution in one.cuts
        else found
        for found in journals
    ]


def findings(journals: list[Journal], one: Recording) -> list[Finding]:
    """What the code of a recording makes of journals, each replayed by the module that has its workflow."""
    by_module = [check_journals(journals, registry) for known in programs(one) for registry in known]
    return [
        min(found, key=lambda one: ("ok", "diverged", "unknown").index(one.verdict))
        for found in zip(*by_module, strict=True)
    ]


def replayed(loaded: list[Recording], dsn: str) -> Iterator[tuple[Recording, list[Finding]]]:
    """Load recordings into an empty database, migrate it, and replay them."""
    load(dsn, loaded)
    migrate.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        for one in loaded:
            yield one, findings(read(conn, one), one)


# started by a name for which the program has no code: functions of the database, a queue without workers
WITHOUT_CODE = {"sql://bank.report", "sql://bank.transfer", "sql://report.square", "hello"}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name.partition(".")[0])
def test_recorded_journals_replay(path: Path, empty_database: Callable[[], str]) -> None:
    """Each journal, whole and cut off at each row, replays without a difference after all migrations."""
    for shelf in databases(recordings(path)):
        for one, found in replayed(shelf, empty_database()):
            assert [(one.name, each) for each in found if each.divergence is not None] == []
            assert len(found) == len(one.executions) > len(one.cuts)
            assert {each.workflow for each in found if each.verdict == "unknown"} <= WITHOUT_CODE


def test_the_recordings_have_every_event() -> None:
    """The recorded runs have rows of each type that programs write, and runs in every state."""
    known = [one for path in FOLDER.iterdir() for one in recordings(path)]
    types = {row["type"] for one in known for row in one.rows["_journal"]}
    assert types == {row.value for row in RowType} - {RowType.STEP_SCHEDULED.value}
    assert {row["status"] for one in known for row in one.rows["_executions"]} == {
        *("running", "blocked", "completed", "failed", "cancelled")
    }
    assert sum(bool(row["previous"]) for one in known for row in one.rows["_executions"]) > 5
    assert sum(len(one.rows["_journal_values"]) for one in known) > 0


def test_changed_code_is_found(empty_database: Callable[[], str]) -> None:
    """A workflow that was changed since it was recorded diverges, in each journal that has come so far."""
    known = {one.name: one for path in FOLDER.iterdir() for one in recordings(path)}
    recorded = known["test_the_page_runs[docs/tutorial/survive-a-crash.md]"]
    text = recorded.code["shop"]
    assert text.count("await charge(") == 1
    changed = replace(recorded, code={"shop": text.replace("await charge(", "await ctx.sleep(1) or charge(")})
    ((_, found),) = replayed([changed], empty_database())
    verdicts = [each.verdict for each in found]
    assert verdicts.count("diverged") > 1
