"""Law: the views of objects show ids in hexadecimal digits and values as people read them."""

from __future__ import annotations

from tests.support.objects import URI, call, dag, literal, put
from tests.support.verbs import Connection, ask


def test_objects_show_their_values(conn: Connection) -> None:
    """Of datums that have no parts."""
    node = literal(conn, 5)
    rows = conn.execute("select kind, sub, value, refs from durable.objects order by kind").fetchall()
    datum = rows[1][3][0]
    assert rows == [("datum", "i64", 5, []), ("node", "literal", None, [datum])] and len(node.hex()) == len(
        datum
    )


def test_execs_show_function_and_status(conn: Connection) -> None:
    """A node that failed and was tried again has two."""
    node, result = call(conn, literal(conn, 1)), dag(conn, literal(conn, 2))
    for status in ("ok", "error"):
        put(conn, "exec", status, None, [node, result])
    rows = conn.execute("select node, function, status, result from durable.execs order by status").fetchall()
    assert rows == [(node.hex(), URI, status, result.hex()) for status in ("error", "ok")]
    assert ask(conn, ("select count(*) from durable.exec_map", ())) == (0,)
