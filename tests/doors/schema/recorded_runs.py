"""Recorded runs: their file, their rows in a database of 0.1.0, and their code.

Lives here: reading what recorder.py has written, loading it, cutting it off at each row, and defining its
workflows. May not: replaying (test_recorded_journals.py). Design: runs of several programs share a database,
so the numbers of their executions are moved apart; programs with the same run ids get another database. A run
that is cut off is a generation more of the run, with the rows up to there: it may have any number of them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from pyengine import App
from pyengine.core.definitions.registry import Registry
from pyengine.core.sources import found
from tests.doors.schema.recorder import TABLES

FOLDER = Path(__file__).parent / "recorded"
FIRST_STEP = "0001_initial"
Rows = dict[str, list[dict[str, Any]]]
# a journal is cut at each of its rows; a longer one at each of the first, and at some after them
_EACH, _MORE = 200, 10
_NUMBERS = ("execution", "previous", "head", "owner")
_PARTS = ("_journal", "_journal_values", "_inboxes", "_signals", "_join_sets", "_members")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The runs of one program, and its code.

    Args:
        name: the test that was recorded.
        code: the texts of its modules, by their names.
        environment: the variables that it reads.
        rows: rows of 0.1.0, by table.
        cuts: the numbers of the executions that were made by cutting one off.
    """

    name: str
    code: dict[str, str]
    environment: dict[str, str]
    rows: Rows
    cuts: set[int] = field(default_factory=set)

    @property
    def ids(self) -> set[str]:
        """The ids of its promises."""
        return {row["id"] for row in self.rows["_promises"]}

    @property
    def executions(self) -> list[int]:
        """The numbers of its executions."""
        return [row["execution"] for row in self.rows["_executions"]]


def recordings(path: Path) -> list[Recording]:
    """The recordings of a file, each journal whole and cut off, with numbers of their own."""
    found, first = [], 0
    for name, known in json.loads(gzip.decompress(path.read_bytes())).items():
        one = Recording(
            name=name,
            code=known["code"],
            environment=known["environment"],
            rows={
                table: [dict(zip(TABLES[table].split(", "), row, strict=True)) for row in rows]
                for table, rows in known["rows"].items()
            },
        )
        _move(one, first)
        _cut(one)
        first = max(one.executions)
        found.append(one)
    return found


def databases(all_of: list[Recording]) -> list[list[Recording]]:
    """The recordings by databases: in one of them no two have a promise of the same id."""
    shelves: list[tuple[set[str], list[Recording]]] = []
    for one in all_of:
        for ids, members in shelves:
            if not ids & one.ids:
                ids.update(one.ids)
                members.append(one)
                break
        else:
            shelves.append((set(one.ids), [one]))
    return [members for _, members in shelves]


def _move(one: Recording, by: int) -> None:
    for table in one.rows.values():
        for row in table:
            row.update({name: row[name] + by for name in _NUMBERS if row.get(name)})
    for row in one.rows["_journal"]:
        if row["type"] == "execution_completed" and "continued_as" in (
            data := json.loads(row["data"] or "{}")
        ):
            row["data"] = json.dumps({**data, "continued_as": data["continued_as"] + by})


def _cut(one: Recording) -> None:
    number = max(one.executions)
    parts = {table: _by_execution(one.rows[table]) for table in _PARTS}
    for head in list(one.rows["_executions"]):
        journal = sorted(parts["_journal"][head["execution"]], key=lambda row: row["seq"])
        later = range(len(journal) - 1, _EACH, -max(1, (len(journal) - _EACH) // _MORE))
        for place in (*range(1, min(_EACH, len(journal))), *later):
            number += 1
            one.cuts.add(number)
            one.rows["_executions"].append(_head(head, number, journal[place - 1], journal[place]["seq"]))
            one.rows["_journal"] += [{**row, "execution": number} for row in journal[:place]]
            for table in _PARTS[1:]:
                mine = parts[table].get(head["execution"], [])
                one.rows[table] += [{**row, "execution": number} for row in mine]


def _by_execution(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["execution"], []).append(row)
    return found


def _head(head: dict[str, Any], number: int, last: dict[str, Any], seq: int) -> dict[str, Any]:
    """The head of a run whose journal ends with a row: of the summary what a replay reads."""
    wait = json.loads(last["data"]) if last["type"] == "execution_awaiting" else {}
    return {
        **head,
        **{name: [] for name in ("open_steps", "open_attempts", "open_running", "reserved")},
        **dict.fromkeys(("key", "cancel_until", "suspend_seq", "problem")),
        "execution": number,
        "next_seq": seq,
        "status": "blocked" if wait else "running",
        "waiting_on": wait.get("on"),
        "wait_kind": wait.get("kind"),
        "wait_left": 1 if wait else None,
        "previous": head["previous"] and -number,
    }


def load(dsn: str, loaded: list[Recording]) -> None:
    """Make an empty database one of 0.1.0 that has these rows."""
    text = (found().migrations / f"{FIRST_STEP}.sql").read_bytes()
    with psycopg.connect(dsn) as conn:
        conn.execute(text)
        conn.execute(
            "insert into durable.migrations (id, name, sha256) values (1, %s, %s)",
            (FIRST_STEP, hashlib.sha256(text).hexdigest()),
        )
        for bucket in sorted({row["bucket"] for one in loaded for row in one.rows["_executions"]}):
            conn.execute("insert into durable._buckets (bucket) values (%s)", (bucket,))
            for table in ("_journal", "_journal_values"):
                conn.execute(
                    f"create table durable.{table}_{bucket} partition of durable.{table} "
                    f"for values in ({bucket})".encode()
                )
        for table, columns in TABLES.items():
            for one in loaded:
                conn.execute(
                    f"insert into durable.{table} ({columns}) select {columns} "
                    f"from jsonb_populate_recordset(null::durable.{table}, %s)".encode(),
                    (json.dumps(one.rows[table]),),
                )
        conn.execute("analyze")


def programs(one: Recording) -> Iterator[list[Registry]]:
    """The workflows of the modules of each program of a page or test, while it is the main module."""
    names = [name for name in one.code if not name.startswith("__main__")]
    for main in [[name] for name in one.code if name not in names] or [[]]:
        modules = {name: types.ModuleType(name.partition(" ")[0]) for name in names + main}
        with (
            mock.patch.dict(sys.modules, {module.__name__: module for module in modules.values()}),
            mock.patch.dict(os.environ, one.environment),
        ):
            for name, module in modules.items():
                exec(compile(one.code[name], f"<{name}>", "exec"), module.__dict__)
            values = [value for module in modules.values() for value in vars(module).values()]
            yield [value.registry for value in values if isinstance(value, App)]
