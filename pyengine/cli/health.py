"""What the commands tell of ``durable.health``: whether time passes in the database as it should.

Lives here: asking it, and what is said of rows that are not as they should be. May not: decide what is amiss;
that is the view's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

from pyengine.database.statements.procedures import HEALTH

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from pyengine.cli.output import Output

__all__ = ["health", "tell"]


def health(conn: Connection[TupleRow]) -> list[dict[str, Any]]:
    """Return the rows of ``durable.health``."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(HEALTH.sql.encode()).fetchall()


def tell(out: Output, rows: list[dict[str, Any]]) -> None:
    """Say which rows are not as they should be, and what to do."""
    for one in rows:
        if not one["ok"]:
            out.note(f"{one['what']}: {one['detail']}. {one['hint']}")
