"""The queries of ``pyengine why``.

Lives here: the causes of one wait, and the runs that wait, by cause. May not: print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg.rows import class_row

from pyengine.protocol.causes import Cause, CauseGroup

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = ["causes", "groups"]


def causes(conn: Connection[TupleRow], ids: Sequence[str]) -> dict[str, list[Cause]]:
    """Return by id the causes of waits, each followed by those of what it waits for."""
    text = """select u.id, w.depth, w.id, w.cause, w.sentence, w.since, w.until, w.details
              from unnest(%s::text[]) with ordinality as u (id, n)
              cross join lateral durable.why(u.id) with ordinality
                as w (depth, id, cause, sentence, since, until, details, place)
              order by u.n, w.place"""
    found: dict[str, list[Cause]] = {id: [] for id in ids}
    for asked, depth, id, cause, sentence, since, until, details in conn.execute(text, (list(ids),)):
        found[asked].append(
            Cause(
                depth=depth,
                id=id,
                cause=cause,
                sentence=sentence,
                since=since,
                until=until,
                details=details,
            )
        )
    return found


def groups(conn: Connection[TupleRow], limit: int) -> list[CauseGroup]:
    """Return what the runs that have not ended wait for, the most frequent cause first.

    Args:
        conn: the connection.
        limit: how many runs are looked at.
    """
    text = "select cause, name, runs, oldest, example, sentence from durable.why_all(%s)"
    with conn.cursor(row_factory=class_row(CauseGroup)) as cursor:
        return cursor.execute(text, (limit,)).fetchall()
