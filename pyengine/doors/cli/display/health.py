"""The output of ``durable.health``, which checks that ticks, partitions and snapshots are on time.

Lives here: reading the view, and a message for each row that is not ok. May not: decide; the view does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

from pyengine.core.database.statements.procedures import HEALTH

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from pyengine.doors.cli.output import Output


def health(conn: Connection[TupleRow]) -> list[dict[str, Any]]:
    """Return the rows of ``durable.health``."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(HEALTH.sql.encode()).fetchall()


def print_problems(out: Output, rows: list[dict[str, Any]]) -> None:
    """Print the rows that are not ok, with advice."""
    for one in rows:
        if not one["ok"]:
            out.remark(f"{one['subject']}: {one['detail']}. {one['hint']}")
