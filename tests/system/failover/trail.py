"""What tests ask afterwards: the trail of the steps, compared with the journals of a database.

What lives here: reading the file of job.py and the tables. What may not: assertions. A trace is a step that
ran; it is repeated if the journal had its result before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from pyengine.core.servers import libpq_url

RECORDED = """
select p.id, j.child, j.ts from durable._journal j join durable._promises p on p.head = j.execution
where durable._completes_step(j.type)
"""
HELD = """
select p.id, j.child from durable._journal j join durable._promises p on p.head = j.execution
join durable._journal s on s.execution = j.execution and s.child = j.child and durable._schedules_step(s.type)
where durable._holds_result(j.type) and s.name = any (%s)
"""
STEPS = ["note", "wobble", "slow", "large"]
LEDGER = "create table if not exists public.ledger (run text not null)"
TWICE = """
select r.id, count(l.run) from durable.runs r left join public.ledger l on l.run = r.id
where r.workflow = 'journey' and r.state = 'completed' group by r.id having count(l.run) <> 1
"""


def read(file: Path) -> list[list[Any]]:
    """The traces: run, child, step, process, time in ms."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def ask(dsn: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, if it has any."""
    with psycopg.connect(libpq_url(dsn), autocommit=True) as conn:
        cursor = conn.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def repeated(dsn: str, file: Path) -> list[list[Any]]:
    """Traces of steps whose result was recorded before."""
    recorded = {(run, child): ts for run, child, ts in ask(dsn, RECORDED)}
    return [each for each in read(file) if each[4] > recorded.get((each[0], each[1]), each[4])]


def missing(dsn: str, file: Path) -> set[tuple[str, int]]:
    """Recorded steps that left no trace."""
    return set(ask(dsn, HELD, STEPS)) - {(each[0], each[1]) for each in read(file)}  # type: ignore[arg-type]


def extra(dsn: str, file: Path) -> int:
    """Traces of steps that ran, and whose process or connection was lost before their result was recorded."""
    ran = [(each[0], each[1]) for each in read(file) if each[2] != "shaky"]
    return len(ran) - len(set(ran))


def unbalanced(dsn: str) -> list[tuple[Any, ...]]:
    """Completed journeys that have not exactly one row of the user's."""
    return ask(dsn, TWICE)


def broken_laws(dsn: str) -> list[tuple[Any, ...]]:
    """What durable.check() says."""
    return ask(dsn, "select * from durable.check()")


def results(dsn: str, runs: Sequence[str] = ()) -> dict[str, Any]:
    """Results of the completed runs."""
    found = ask(dsn, "select id, result from durable.runs where state = 'completed' and parent is null")
    return {run: result for run, result in found if not runs or run in runs}
