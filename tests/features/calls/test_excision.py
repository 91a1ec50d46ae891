"""Law: excised content is gone for ever, its id is never stored again, and readers are refused."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.objects import call, closure, dag, literal, put
from tests.support.verbs import Connection, ask

EXCISE = "select durable.object_excise(%s, %s)"


def secret(conn: Connection) -> bytes:
    """A text that is to be excised."""
    return put(conn, "datum", "string", b"secret")


def code(conn: Connection, text: str, *given: object) -> str:
    """SQLSTATE of a refused statement."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (text, given))
    return str(caught.value.sqlstate)


def test_s42_an_excised_result_is_a_miss(conn: Connection) -> None:
    """A DAG that reaches it is broken, its readers are refused, and the bytes are gone."""
    datum = secret(conn)
    made = dag(conn, put(conn, "node", "literal", None, [datum]))
    assert closure(conn, made) == "ok"
    assert ask(conn, (EXCISE, (datum, "a name"))) == (True,)
    assert ask(conn, (EXCISE, (datum, "again"))) == (False,)
    assert closure(conn, made) == closure(conn, datum) == "excised"
    for text in ("datum", "dag_value"):
        assert code(conn, f"select durable.{text}(%s)", datum if text == "datum" else made) == "WF015"
    stored = ask(conn, ("select scalar, reason, excision from durable._objects where id = %s", (datum,)))
    assert stored == (None, "a name", 1)


def test_what_was_excised_is_never_stored_again(conn: Connection) -> None:
    """Neither by itself nor as a part of something new."""
    datum = secret(conn)
    ask(conn, (EXCISE, (datum, "r")))
    assert code(conn, 'select durable.datum_put(\'{"string": "secret"}\')') == "WF015"
    assert code(conn, "select durable.literal('[\"secret\"]')") == "WF015"
    assert code(conn, "select durable.node_literal(%s)", datum) == "WF015"


def test_a_dag_is_excised_with_its_names(conn: Connection) -> None:
    """What it referred to stays, until it is collected."""
    node = literal(conn, 1)
    made = dag(conn, node, name=node)
    ask(conn, (EXCISE, (made, "r")))
    assert code(conn, "select durable.dag(%s)", made) == "WF015" and closure(conn, node) == "ok"


def test_structure_is_not_excised(conn: Connection) -> None:
    """Nodes, execs, trees and commits have no content of their own; an excision has a reason."""
    node = call(conn, literal(conn, 1))
    tree = put(conn, "tree")
    commit = put(conn, "commit", "", bytes(4), [tree])
    done = put(conn, "exec", "ok", None, [node, dag(conn, literal(conn, 2))])
    for each in (node, tree, commit, done):
        assert code(conn, EXCISE, each, "r") == "WF004"
    for reason in (None, "", "r" * 1001):
        assert code(conn, EXCISE, secret(conn), reason) == "WF004"
    assert code(conn, EXCISE, bytes(32), "r") == "WF001"


def test_excisions_are_numbered(conn: Connection) -> None:
    """In the order of their commits."""
    for number in range(1, 4):
        datum = put(conn, "datum", "string", str(number).encode())
        ask(conn, (EXCISE, (datum, "r")))
        assert ask(conn, ("select max(excision) from durable._objects", ())) == (number,)
