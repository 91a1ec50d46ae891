"""The queries of ``pyengine why``.

Lives here: the causes of one wait, and the runs that wait, by cause. May not: print.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = ["Cause", "Group", "causes", "groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A row of ``durable.why``."""

    depth: int
    id: str
    cause: str
    sentence: str
    since: datetime | None
    until: datetime | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A row of ``durable.why_all``: runs that wait for the same.

    Args:
        cause: a code.
        name: what it is about: a signal, a step, a queue.
        runs: how many runs.
        oldest: since when the first of them waits.
        example: id of that run.
        sentence: why that run waits.
    """

    cause: str
    name: str | None
    runs: int
    oldest: datetime | None
    example: str
    sentence: str


def causes(conn: Connection[TupleRow], id: str) -> list[Cause]:
    """Return the causes of a wait, each followed by those of what it waits for."""
    text = "select depth, id, cause, sentence, since, until, details from durable.why(%s)"
    with conn.cursor(row_factory=class_row(Cause)) as cursor:
        return cursor.execute(text, (id,)).fetchall()


def groups(conn: Connection[TupleRow], limit: int) -> list[Group]:
    """Return what the runs that have not ended wait for, the most frequent cause first.

    Args:
        conn: the connection.
        limit: how many runs are looked at.
    """
    text = "select cause, name, runs, oldest, example, sentence from durable.why_all(%s)"
    with conn.cursor(row_factory=class_row(Group)) as cursor:
        return cursor.execute(text, (limit,)).fetchall()
