"""The queries that list runs, and find ids by their parts.

Lives here: their SQL texts, on the public views of the schema. May not: print, or decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

from pyengine.doors.admin import conditions
from pyengine.doors.admin.conditions import Condition
from pyengine.doors.admin.queries import RUN_COLUMNS, STATES, Run

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

_FAILED = frozenset(("failed", "timed_out", "cancelled"))
_AFTER_ALL = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the runs of a list; None means any.

    Args:
        state: their state.
        workflow: their workflow.
        where: a condition on the columns of the view.
        roots_only: no child runs.
        before: only runs whose execution has a lower number.
        limit: the greatest number of runs.
    """

    state: str | None = None
    workflow: str | None = None
    where: Condition | None = None
    roots_only: bool = False
    before: int | None = None
    limit: int = 20

    @property
    def states(self) -> frozenset[str]:
        """The states that a run of the list can have."""
        known = frozenset(STATES) if self.state is None else frozenset((self.state,))
        return known if self.where is None else conditions.possible(self.where, "state", known)


def columns(conn: Connection[TupleRow]) -> dict[str, str]:
    """Return the columns of ``durable.runs``, with their types."""
    rows = conn.execute(
        """select a.attname, format_type(a.atttypid, null) from pg_attribute a
           where a.attrelid = 'durable.runs'::regclass and a.attnum > 0 and not a.attisdropped
           order by a.attnum"""
    ).fetchall()
    return {str(name): str(kind) for name, kind in rows}


def runs(conn: Connection[TupleRow], wanted: Filter) -> list[Run]:
    """Return the newest runs that pass the filter, newest first, from the views that find them."""
    order = "order by r.execution desc"
    if "completed" in wanted.states:
        sources, own_order = ["durable.newest r where true"], ""  # the view is ordered
    else:
        # one source for each state, because the index of the failed ones begins with it
        sources = [f"durable.failed r where r.state = '{one}'" for one in sorted(wanted.states & _FAILED)]
        sources += ["durable.live r where true"] if wanted.states - _FAILED or not sources else []
        own_order = order
    values: dict[str, Any] = {
        "state": wanted.state,
        "workflow": wanted.workflow,
        "roots_only": wanted.roots_only,
        "before": wanted.before,
        "limit": wanted.limit,
    }
    where = "" if wanted.where is None else f"and {conditions.sql(wanted.where, values)}"
    found = [
        f"""(select r.* from {source}
               and (%(state)s::text is null or r.state = %(state)s)
               and (%(workflow)s::text is null or r.workflow = %(workflow)s)
               and (%(before)s::bigint is null or r.execution < %(before)s)
               and not (%(roots_only)s and r.parent is not null)
               {where}
             {own_order} limit %(limit)s)"""
        for source in sources
    ]
    text = f"{RUN_COLUMNS} from ({' union all '.join(found)}) r {order} limit %(limit)s"
    with conn.cursor(row_factory=class_row(Run)) as cursor:
        return cursor.execute(text.encode(), values).fetchall()


def place(conn: Connection[TupleRow], id: str) -> int | None:
    """Return the position of a run in the list; None if there is no such run."""
    row = conn.execute("select execution from durable.runs where id = %s", (id,)).fetchone()
    return None if row is None else int(row[0])


def existing(conn: Connection[TupleRow], ids: Sequence[str], *, schedules: bool = False) -> set[str]:
    """Return those ids that a run or a promise has, or a schedule too."""
    text = "select p.id from durable._promises p where p.id = any (%(ids)s)"
    if schedules:
        text += " union all select s.id from durable._schedules s where s.id = any (%(ids)s)"
    return {str(id) for (id,) in conn.execute(text, {"ids": list(ids)}).fetchall()}


def ids_like(
    conn: Connection[TupleRow],
    head: str,
    tail: str = "",
    limit: int | None = None,
    *,
    promises: bool = False,
) -> list[str]:
    """Return the ids of runs that begin and end so, in their order.

    Without an end, the children of those that begin so are left out.

    Args:
        conn: the connection.
        head: the beginning.
        tail: the end.
        limit: the greatest number of ids.
        promises: the ids of promises too.
    """
    rows = conn.execute(
        """select p.id from durable._promises p
           where p.id >= %(head)s::text and p.id < %(head)s::text || %(after_all)s::text
             and (p.head is not null or %(promises)s)
             and length(p.id) >= length(%(head)s) + length(%(tail)s)
             and right(p.id, length(%(tail)s)) = %(tail)s
             and (%(tail)s <> '' or p.execution is null or length(%(head)s) > (
                    select length(o.id) from durable._executions o where o.execution = p.execution))
           order by p.id limit %(limit)s""",
        {"head": head, "tail": tail, "after_all": _AFTER_ALL, "promises": promises, "limit": limit},
    ).fetchall()
    return [str(id) for (id,) in rows]
