"""The batch queries of the command line: verbs for many runs or promises.

Lives here: their SQL texts, one function each, in the form of queries.py. May not: print, or decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg.rows import class_row, scalar_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = [
    "BATCH",
    "Outcome",
    "cancel_many",
    "matching",
    "pause_many",
    "resume_many",
    "settle_many",
    "signal_many",
]

BATCH = 1000
"""The largest number of runs in one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome for one id."""

    id: str
    outcome: str
    state: str | None


def matching(conn: Connection[TupleRow], **options: str | None) -> list[str]:
    """Return the ids of all matching runs that have not ended.

    Args:
        conn: the connection.
        options: workflow, state, tags as JSON, started_after, started_before (any text that Postgres reads as
            an instant); None means any.
    """
    ids: list[str] = []
    while True:
        with conn.cursor(row_factory=scalar_row) as cursor:
            page = cursor.execute(
                """select durable.matching_runs(workflow => %(workflow)s, state => %(state)s,
                          tags => %(tags)s::jsonb, started_after => %(started_after)s::timestamptz,
                          started_before => %(started_before)s::timestamptz,
                          after => %(after)s, at_most => %(at_most)s)""",
                {**options, "after": ids[-1] if ids else "", "at_most": BATCH},
            ).fetchone()
        ids += page or []
        if len(page or []) < BATCH:
            return ids


def signal_many(
    conn: Connection[TupleRow], ids: list[str], name: str, payload: str, key: str | None
) -> list[Outcome]:
    """Send a signal to these runs; the state of an outcome is the signal's number."""
    return _outcomes(
        conn,
        """select id, outcome, delivery::text as state
           from durable.signal_many(%s, name => %s, payload => %s::jsonb, dedup => %s)""",
        (ids, name, payload, key),
    )


def cancel_many(
    conn: Connection[TupleRow], ids: list[str], reason: str | None, grace_ms: int | None, *, force: bool
) -> list[Outcome]:
    """Cancel these runs and their child runs; without a grace, with the one of the settings."""
    return _outcomes(
        conn,
        """select id, outcome, state
           from durable.cancel_many(%s, reason => to_jsonb(%s::text),
                                    grace => %s::bigint * interval '1 millisecond', force => %s)""",
        (ids, reason, grace_ms, force),
    )


def pause_many(conn: Connection[TupleRow], ids: list[str]) -> list[Outcome]:
    """Pause these runs."""
    return _outcomes(conn, "select id, outcome, state from durable.pause_many(%s)", (ids,))


def resume_many(conn: Connection[TupleRow], ids: list[str]) -> list[Outcome]:
    """Continue these runs."""
    return _outcomes(conn, "select id, outcome, state from durable.resume_many(%s)", (ids,))


def settle_many(conn: Connection[TupleRow], ids: list[str], state: str, value: str) -> list[Outcome]:
    """Resolve or reject these promises."""
    return _outcomes(
        conn,
        "select id, outcome, state from durable.settle_many(%s, verdict => %s, value => %s::jsonb)",
        (ids, state, value),
    )


def _outcomes(conn: Connection[TupleRow], text: str, values: tuple[object, ...]) -> list[Outcome]:
    with conn.cursor(row_factory=class_row(Outcome)) as cursor:
        return cursor.execute(text.encode(), values).fetchall()
