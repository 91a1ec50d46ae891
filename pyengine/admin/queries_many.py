"""What the command line asks the database about many runs or promises at once, in SQL.

Lives here: every SQL text of the verbs for many, one function each, as queries.py has the others. May not:
print, or decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg.rows import class_row, scalar_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = [
    "PORTION",
    "Matching",
    "Told",
    "cancel_many",
    "matching",
    "pause_many",
    "resume_many",
    "settle_many",
    "signal_many",
]

PORTION = 1000
"""Runs of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Which runs are meant; None means any. Instants are any text that Postgres takes for one."""

    workflow: str | None
    state: str | None
    tags: str | None
    started_after: str | None
    started_before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one id."""

    id: str
    outcome: str
    state: str | None


def matching(conn: Connection[TupleRow], wanted: Matching) -> list[str]:
    """Return the ids of all runs that match and have not ended."""
    found: list[str] = []
    while True:
        with conn.cursor(row_factory=scalar_row) as cursor:
            page = cursor.execute(
                """select durable.matching_runs(workflow => %s, state => %s, tags => %s::jsonb,
                          started_after => %s::timestamptz, started_before => %s::timestamptz,
                          after => %s, at_most => %s)""",
                (
                    wanted.workflow,
                    wanted.state,
                    wanted.tags,
                    wanted.started_after,
                    wanted.started_before,
                    found[-1] if found else "",
                    PORTION,
                ),
            ).fetchone()
        found += page or []
        if len(page or []) < PORTION:
            return found


def signal_many(
    conn: Connection[TupleRow], ids: list[str], name: str, payload: str, key: str | None
) -> list[Told]:
    """Send a signal to these runs; state tells its number."""
    return _told(
        conn,
        """select id, outcome, delivery::text as state
           from durable.signal_many(%s, name => %s, payload => %s::jsonb, dedup => %s)""",
        (ids, name, payload, key),
    )


def cancel_many(
    conn: Connection[TupleRow], ids: list[str], reason: str | None, grace_ms: int | None, *, force: bool
) -> list[Told]:
    """Cancel these runs and their child runs; without a grace, with the one of the settings."""
    return _told(
        conn,
        """select id, outcome, state
           from durable.cancel_many(%s, reason => to_jsonb(%s::text),
                                    grace => %s::bigint * interval '1 millisecond', force => %s)""",
        (ids, reason, grace_ms, force),
    )


def pause_many(conn: Connection[TupleRow], ids: list[str]) -> list[Told]:
    """Set these runs aside."""
    return _told(conn, "select id, outcome, state from durable.pause_many(%s)", (ids,))


def resume_many(conn: Connection[TupleRow], ids: list[str]) -> list[Told]:
    """Let these runs go on."""
    return _told(conn, "select id, outcome, state from durable.resume_many(%s)", (ids,))


def settle_many(conn: Connection[TupleRow], ids: list[str], verdict: str, value: str) -> list[Told]:
    """Resolve or reject these promises."""
    return _told(
        conn,
        "select id, outcome, state from durable.settle_many(%s, verdict => %s, value => %s::jsonb)",
        (ids, verdict, value),
    )


def _told(conn: Connection[TupleRow], text: str, values: tuple[object, ...]) -> list[Told]:
    with conn.cursor(row_factory=class_row(Told)) as cursor:
        return cursor.execute(text.encode(), values).fetchall()
