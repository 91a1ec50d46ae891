"""The queries of ``pyengine call``.

Lives here: its SQL texts, one function each, on the public views and functions of the schema. May not: print,
or decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import Error
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow


def _rows(conn: Connection[TupleRow], text: str, *values: Any) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(text.encode(), values).fetchall()


def _scalar(conn: Connection[TupleRow], text: str, *values: Any) -> Any:
    row = conn.execute(text.encode(), values).fetchone()
    return None if row is None else row[0]


def attempts(
    conn: Connection[TupleRow], scope: str | None, function: str | None, limit: int, *, live: bool
) -> list[dict[str, Any]]:
    """Return attempts of calls by scope, newest first."""
    return _rows(
        conn,
        "select c.node, c.scope, c.function, c.state, c.generation, c.started_at, "
        "c.ended_at, c.exec, c.error #>> '{data,code}' as code, c.name "
        "from durable.calls c "
        "where (%s::text is null or c.scope = %s) and (%s::text is null or starts_with(c.function, %s)) "
        "and (not %s or c.ended_at is null) order by c.started_at desc, c.node, c.scope limit %s",
        scope,
        scope,
        function,
        function,
        live,
        limit,
    )


def nodes_like(conn: Connection[TupleRow], prefix: str) -> list[str]:
    """Return call nodes whose ids begin so, a few."""
    rows = _rows(
        conn,
        "select x.node from (select distinct c.node from durable.calls c "
        "union select a.node from durable.call_attempts a "
        "union select p.node from durable.pins p) x where starts_with(x.node, %s) "
        "order by 1 limit 5",
        prefix,
    )
    return [row["node"] for row in rows]


def node(conn: Connection[TupleRow], id: str) -> dict[str, Any] | None:
    """Return a call: its function, and its input nodes with those values that are literals."""
    rows = _rows(
        conn,
        "select o.id as node, f.value ->> 'uri' as function, coalesce((select jsonb_agg(jsonb_build_object("
        "'node', i.id, 'kind', n.sub, 'value', case when n.sub = 'literal' "
        "then durable.datum(decode(n.refs[1], 'hex')) end) order by i.place) "
        "from unnest(o.refs[2:]) with ordinality i (id, place) join durable.objects n on n.id = i.id), '[]') "
        "as inputs from durable.objects o join durable.objects f on f.id = o.refs[1] "
        "where o.id = %s and o.kind = 'node' and o.sub = 'call'",
        id,
    )
    return rows[0] if rows else None


def pins(conn: Connection[TupleRow], id: str) -> list[dict[str, Any]]:
    """Return what scopes have pinned for a call."""
    return _rows(
        conn,
        "select p.scope, p.exec, p.status, p.result as dag, p.version, "
        "p.pinned_at, exists (select from durable.stale_pins s where s.scope = p.scope and s.node = p.node) "
        "as stale from durable.pins p where p.node = %s order by p.pinned_at desc",
        id,
    )


def value(conn: Connection[TupleRow], dag: str, scope: str) -> tuple[Any, str | None]:
    """Return the value of a DAG in a scope, with its types. Without one, return None and the reason: a result
    within it is missing or was excised.
    """
    try:
        with conn.transaction():
            return _scalar(conn, "select durable.dag_value(decode(%s, 'hex'), %s)", dag, scope), None
    except Error as error:
        if error.sqlstate not in ("WF014", "WF015"):
            raise
        return None, error.diag.message_primary


def history(conn: Connection[TupleRow], id: str) -> list[dict[str, Any]]:
    """Return every attempt of a call, oldest first."""
    return _rows(
        conn,
        "select h.generation, h.state, encode(h.exec, 'hex') as exec, h.scopes, h.polls, "
        "h.error #>> '{data,code}' as code, h.error ->> 'message' as message, h.started_at, h.ended_at, "
        "encode(h.execution_key, 'hex') as execution_key from durable.call_history(decode(%s, 'hex')) h",
        id,
    )


def unserved(conn: Connection[TupleRow], id: str) -> str | None:
    """Return the name under which a call waits for a worker, if no worker has it; None otherwise."""
    found: str | None = _scalar(
        conn,
        "select substr(t.queue, 9) from durable.call_attempts a join durable.tasks t on t.id = a.promise "
        "where a.node = %s and a.ended_at is null "
        "and not exists (select from durable.workers w where t.queue = any (w.queues)) limit 1",
        id,
    )
    return found


def explain(conn: Connection[TupleRow], scope: str, id: str) -> dict[str, Any]:
    """Return why a call would run in a scope now."""
    found: dict[str, Any] = _scalar(
        conn,
        "select durable.explain_miss(%s, f.value ->> 'uri', array(select decode(i.id, 'hex') "
        "from unnest(o.refs[2:]) with ordinality i (id, place) order by i.place)) "
        "from durable.objects o join durable.objects f on f.id = o.refs[1] where o.id = %s",
        scope,
        id,
    )
    return found


def plan(conn: Connection[TupleRow], scope: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what calls would find; their arguments are put in this transaction, which is rolled back."""
    return _rows(
        conn,
        "select p.place, encode(p.node, 'hex') as node, p.at, p.reason from durable.call_plan(%s, "
        "(select jsonb_agg(c.one || jsonb_build_object('inputs', coalesce(c.one -> 'inputs', (select "
        "coalesce(jsonb_agg(encode(durable.literal(a.value), 'hex') order by a.place), '[]') "
        "from jsonb_array_elements(c.one -> 'args') with ordinality a (value, place)))) order by c.place) "
        "from jsonb_array_elements(%s) with ordinality c (one, place))) p",
        scope,
        Jsonb(calls),
    )


def retry(conn: Connection[TupleRow], scope: str, id: str) -> dict[str, Any]:
    """Run a call again."""
    found: dict[str, Any] = _scalar(conn, "select durable.call_retry(%s, decode(%s, 'hex'))", scope, id)
    return found


def cancel(conn: Connection[TupleRow], scope: str, id: str) -> str:
    """Give a call up in a scope; return cancelled, left or not_running."""
    return str(_scalar(conn, "select durable.call_cancel(%s, decode(%s, 'hex'))", scope, id))


def invalidate(conn: Connection[TupleRow], function: str) -> int:
    """Share no result of a function any more; return how many calls had one."""
    return int(_scalar(conn, "select durable.call_invalidate(function => %s)", function))
