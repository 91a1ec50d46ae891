"""Law: a put is whole or not at all, the database computes ids, and what an object refers to is there."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.objects import call, dag, flaw, i64, literal, put
from tests.support.verbs import Connection, ask

ABSENT = bytes(31) + b"\1"


def count(conn: Connection) -> int:
    """Number of objects."""
    return int(ask(conn, ("select count(*) from durable._objects", ()))[0])


def test_equal_things_are_one_object(conn: Connection) -> None:
    """A second put changes nothing."""
    first = dag(conn, literal(conn, 1), a=literal(conn, 2))
    before = count(conn)
    assert dag(conn, literal(conn, 1), a=literal(conn, 2)) == first
    assert count(conn) == before == 5


@pytest.mark.parametrize(
    ("kind", "sub"),
    [
        ("node", "literal"),
        ("node", "import"),
        ("node", "call"),
        ("dag", ""),
        ("datum", "list"),
        ("exec", "ok"),
    ],
)
def test_refs_exist(conn: Connection, kind: str, sub: str) -> None:
    """Nothing refers to an object that is not there."""
    refs, names = [ABSENT] * (2 if kind == "exec" else 1), [""] if kind == "dag" else []
    assert flaw(conn, kind, sub, None, refs, names=names) == f"WF001 There is no object '{ABSENT.hex()}'."
    assert count(conn) == 0


def test_refs_are_of_their_kind(conn: Connection) -> None:
    """A list has datums, a call a URI and nodes, a DAG nodes, a tree DAGs."""
    datum, node = i64(conn, 1), literal(conn, 1)
    made = dag(conn, node)
    uri = put(conn, "datum", "uri", b"a:b")
    called = call(conn, node)
    for kind, sub, refs in (
        ("datum", "list", [node]),
        ("node", "literal", [node]),
        ("node", "import", [node]),
        ("node", "call", [datum]),
        ("node", "call", [uri, datum]),
        ("exec", "ok", [node, made]),
        ("exec", "ok", [called, node]),
        ("request", "", [node, datum]),
    ):
        assert "which is no " in flaw(conn, kind, sub, None, refs)
    assert "which is no node" in flaw(conn, "dag", "", None, [datum], names=[""])
    assert "which is no dag" in flaw(conn, "tree", "", None, [node], names=["a"])
    assert "which is no tree" in flaw(conn, "commit", "", bytes(4), [node])


def test_many_are_put_in_any_order(conn: Connection) -> None:
    """Objects of one put refer to each other, and the answer is in the order of the arguments."""
    text = """select durable._put_objects(array[
        row(null, 'node', 'literal', null, array[x.id], null)::durable._object,
        row(x.id, 'datum', 'bool', '\\x01', null, null)::durable._object,
        row(null, 'datum', 'bool', '\\x01', '{}', '{}')::durable._object])
      from (select durable._object_id('datum', 'bool', '\\x01', null, null) as id) x"""
    node, one, two = ask(conn, (text, ()))[0]
    assert one == two != node and count(conn) == 2


def test_one_wrong_object_takes_all_back(conn: Connection) -> None:
    """An id that is not that of its content is named, and nothing of the put is stored."""
    text = """select durable._put_objects(array[
        row(null, 'datum', 'bool', '\\x01', null, null)::durable._object,
        row(%s, 'datum', 'bool', '\\x00', null, null)::durable._object])"""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(text.encode(), (ABSENT,))
    assert caught.value.sqlstate == "WF004"
    assert f"not {ABSENT.hex()}" in str(caught.value.diag.message_primary) and count(conn) == 0


def test_an_old_object_is_used_again(conn: Connection, clock: Clock) -> None:
    """A put of what is there already counts as a use, at most one in half an hour."""
    text = "select count(*) from durable._object_uses"
    i64(conn, 1)
    clock.advance(1_800_000)
    i64(conn, 1)
    assert ask(conn, (text, ())) == (0,)
    for advance, uses in ((1, 1), (1_799_999, 1), (2, 2)):
        clock.advance(advance)
        i64(conn, 1)
        assert ask(conn, (text, ())) == (uses,)
