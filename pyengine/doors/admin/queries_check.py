"""The queries of ``pyengine check`` and of ``durable.health``.

Lives here: the check of everything in batches, the checks of one run and of recent changes, and whether all
goes its way. May not: print.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row, dict_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A part of the database that was checked, in a transaction of its own.

    Args:
        runs: number of runs.
        promises: number of promises.
        broken: the laws that are broken there: law, id, detail.
        more: position of the next portion; None after the last.
    """

    runs: int
    promises: int
    broken: list[dict[str, Any]]
    more: str | None


def portions(conn: Connection[TupleRow]) -> Iterator[Portion]:
    """Check everything, portion by portion."""
    text = (
        "select runs, promises, to_jsonb(broken) as broken, more::text from durable.check_portion(%s::jsonb)"
    )
    after = None
    while True:
        with conn.cursor(row_factory=class_row(Portion)) as cursor:
            (portion,) = cursor.execute(text, (after,)).fetchall()
        yield portion
        after = portion.more
        if after is None:
            return


def broken_laws(
    conn: Connection[TupleRow], id: str | None = None, since: str | None = None
) -> list[dict[str, Any]]:
    """Return the broken laws of one run and its children, of recent changes, or of everything."""
    text = "select law, id, detail from durable.check(%s, %s::interval) order by law, id"
    return conn.cursor(row_factory=dict_row).execute(text, (id, since)).fetchall()


def size(conn: Connection[TupleRow]) -> tuple[int, int]:
    """Return the approximate numbers of runs and promises, as of the last vacuum; 0 if unknown."""
    text = """select greatest(c.reltuples, 0)::bigint from pg_class c
              where c.oid in ('durable._executions'::regclass, 'durable._promises'::regclass)
              order by c.relname"""
    runs, promises = [int(count) for (count,) in conn.execute(text).fetchall()]
    return runs, promises


def health(conn: Connection[TupleRow]) -> list[dict[str, Any]]:
    """Return the rows of ``durable.health``."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("select subject, ok, detail, hint from durable.health").fetchall()
