"""The queries of ``pyengine schedules``.

Lives here: `schedules`. May not: the form of the answer (cli/schedules.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

_SCHEDULES = """
select s.id, s.state, s.cron, s.timezone, s.workflow, s.version, s.queue, s.target, s.args, s.deadline,
       s.priority, s.tags, s.declared,
       case when s.state = 'active' then array(select durable.next_instants(s.id, %(count)s)) else '{}' end
         as next,
       s.last_at, s.last_id, s.paused_at, s.created_at
from durable.schedules s
where %(workflow)s::text is null or s.workflow = %(workflow)s
order by s.next_at nulls last, s.id
"""


def schedules(conn: Connection[TupleRow], workflow: str | None, count: int) -> list[dict[str, Any]]:
    """Return all schedules, those that come next first.

    Args:
        conn: the connection.
        workflow: only schedules of this workflow.
        count: how many of the next instants of each.
    """
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_SCHEDULES.encode(), {"workflow": workflow, "count": count}).fetchall()
