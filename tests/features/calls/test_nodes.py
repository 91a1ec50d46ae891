"""Law: nodes and DAGs are put by one call each, and a name is no part of a node."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support.objects import URI, call, dag, i64, literal, put
from tests.support.verbs import Connection, ask


def test_a_call_is_known_before_it_runs(conn: Connection) -> None:
    """Its id is that of its function and its inputs, in their order."""
    one, two = literal(conn, 1), literal(conn, 2)
    assert call(conn, one, two) == call(conn, one, two) != call(conn, two, one)
    function = put(conn, "datum", "uri", URI.encode())
    assert call(conn, one) == put(conn, "node", "call", None, [function, one])


@pytest.mark.parametrize(
    "uri", ["", "sort", "dml+exec://Local/x", "dml+exec://local/%41", "a b:c", "x:\u00e9"]
)
def test_a_function_is_a_uri(conn: Connection, uri: str) -> None:
    """In normal form."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        call(conn, function=uri)
    assert caught.value.sqlstate == "WF004"


def test_literals_and_imports(conn: Connection) -> None:
    """A value and another DAG's root as nodes."""
    datum = i64(conn, 1)
    made = dag(conn, literal(conn, 1))
    assert ask(conn, ("select durable.node_literal(%s)", (datum,))) == (literal(conn, 1),)
    assert ask(conn, ("select durable.node_import(%s)", (made,))) == (
        put(conn, "node", "import", None, [made]),
    )


def test_a_dag_has_names_in_any_order(conn: Connection) -> None:
    """As an object of ids; what is no id is refused."""
    one, two = literal(conn, 1), literal(conn, 2)
    names = {"b": one.hex(), "a": two.hex()}
    assert ask(conn, ("select durable.dag_put(%s, %s)", (one, json.dumps(names)))) == (
        dag(conn, one, a=two, b=one),
    )
    for wrong in ({"a": "00"}, {"a": one.hex().upper()}, {"": one.hex()}, [one.hex()]):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, ("select durable.dag_put(%s, %s)", (one, json.dumps(wrong))))
        assert caught.value.sqlstate == "WF004"


def test_an_exec_has_a_dag_or_a_datum(conn: Connection) -> None:
    """A call gives a DAG, also if it failed; a builtin gives a datum."""
    made, called = dag(conn, literal(conn, 1)), call(conn)
    text = "select durable._put_exec(%s, %s, %s)"
    ok = ask(conn, (text, (called, "ok", made)))
    assert ok == ask(conn, (text, (called, "ok", made))) != ask(conn, (text, (called, "error", made)))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (text, (called, "ok", i64(conn, 1))))
    assert "A datum is no result of" in str(caught.value)
