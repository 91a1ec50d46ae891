"""Types of signals that are sent to many runs."""

from __future__ import annotations

from tests.core.sql.test_signal_types import hello
from tests.support.verbs import (
    Connection,
    ask,
    start,
)


def test_many_are_refused_one_by_one(conn: Connection) -> None:
    """signal_many refuses runs whose workflow does not receive the signal, and delivers to the others."""
    hello(conn, {"approve": {"type": "boolean"}})
    for id_, workflow in (("a", "w"), ("b", "other"), ("c", "w")):
        ask(conn, start(id_, workflow=workflow, any_workflow=True))
    call = "select id, outcome, delivery from durable.signal_many('{a,b,c,d}', %s, payloads => %s::jsonb[])"
    rows = conn.execute(call, ("approve", ["true", "1", "1", "1"])).fetchall()
    assert rows == [("a", "done", 1), ("b", "done", 1), ("c", "refused", None), ("d", "not_found", None)]
    rows = conn.execute(call, ("go", ["true", "1", "1", "1"])).fetchall()
    assert [row[1] for row in rows] == ["refused", "done", "refused", "not_found"]
    data = conn.execute("select name, data from durable._signals order by name, execution").fetchall()
    assert data == [("approve", "true"), ("approve", "1"), ("go", "1")]
