"""Law: SQL and Python compute the same ids, for every published vector and for values drawn at random."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.errors import DecodeError, EncodeError
from pyengine.features.calls.datums import Uri, datum_of, from_tagged, to_tagged, value_of
from pyengine.features.calls.identity import (
    NewObject,
    check_name,
    execution_key,
    is_normal_uri,
    normalized_uri,
    value_key,
)
from tests.support.verbs import Connection, ask

VECTORS: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parent / "vectors.json").read_text())


def name(vector: dict[str, Any]) -> str:
    """A vector in the name of its test."""
    return str(vector.get("name") or vector["text"][:30])


def in_sql(conn: Connection, value: object) -> str:
    """The id that the database gives a value with its types."""
    return bytes(ask(conn, ("select durable.datum_put(%s::jsonb)", (json.dumps(value),)))[0]).hex()


@pytest.mark.parametrize("vector", VECTORS["values"], ids=name)
def test_s36_a_value_has_one_id(conn: Connection, vector: dict[str, Any]) -> None:
    """In Python, in SQL and in the file; and it comes back with it."""
    datum = from_tagged(vector["value"])
    assert datum.id.hex() == in_sql(conn, vector["value"]) == vector["id"]
    assert from_tagged(to_tagged(datum)).id == datum.id
    assert from_tagged(ask(conn, ("select durable.datum(%s)", (datum.id,)))[0]).id == datum.id


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=name)
def test_s36_a_wrong_value_is_refused_by_both(conn: Connection, vector: dict[str, Any]) -> None:
    """Neither side gives it an id."""
    with pytest.raises(DecodeError):
        from_tagged(vector["value"])
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        in_sql(conn, vector["value"])
    assert caught.value.sqlstate == "WF004"


@pytest.mark.parametrize("vector", VECTORS["objects"], ids=name)
def test_s36_an_object_has_one_id(conn: Connection, vector: dict[str, Any]) -> None:
    """Nodes, DAGs, trees, commits, execs and requests too."""
    scalar = None if vector["scalar"] is None else bytes.fromhex(vector["scalar"])
    refs = tuple(map(bytes.fromhex, vector["refs"]))
    made = NewObject(vector["kind"], vector["sub"], scalar, refs, tuple(vector["names"]))
    given = (made.kind, made.sub, scalar, list(refs), list(made.names))
    text = "select durable._object_id(%s, %s, %s, %s::bytea[], %s::text[])"
    assert made.id.hex() == bytes(ask(conn, (text, given))[0]).hex() == vector["id"]


def test_the_objects_of_the_file_can_be_put(conn: Connection) -> None:
    """All of them are lawful, and refer to each other and to its values."""
    for vector in VECTORS["values"]:
        in_sql(conn, vector["value"])
    rows = [
        (
            bytes.fromhex(each["id"]),
            each["kind"],
            each["sub"],
            None if each["scalar"] is None else bytes.fromhex(each["scalar"]),
            list(map(bytes.fromhex, each["refs"])),
            each["names"],
        )
        for each in VECTORS["objects"]
    ]
    one = "row(%s::bytea, %s::text, %s::text, %s::bytea, %s::bytea[], %s::text[])::durable._object"
    text = f"select durable._put_objects(array[{', '.join([one] * len(rows))}])"
    assert ask(conn, (text, tuple(part for row in rows for part in row)))[0] == [row[0] for row in rows]


@pytest.mark.parametrize("vector", VECTORS["names"], ids=lambda vector: f"{len(vector['text'])} characters")
def test_s36_names_have_a_limit(conn: Connection, vector: dict[str, Any]) -> None:
    """255 bytes of UTF-8 in form NFC."""
    text = """select durable.dag_put(x.node, jsonb_build_object(%s::text, encode(x.node, 'hex')))
              from (select durable.literal('1') as node) x"""
    if vector["normal"] is None:
        with pytest.raises(EncodeError):
            check_name(vector["text"])
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, (text, (vector["text"],)))
        assert caught.value.sqlstate == "WF004"
    else:
        assert check_name(vector["text"]) == vector["normal"]
        stored = "select names[2] from durable._objects where id = %s"
        assert ask(conn, (stored, ask(conn, (text, (vector["text"],))))) == (vector["normal"],)


@pytest.mark.parametrize("vector", VECTORS["uris"], ids=name)
def test_s36_uris_have_a_normal_form(conn: Connection, vector: dict[str, Any]) -> None:
    """Both sides see which one is in it, and Python makes it."""
    text, normal = vector["text"], vector["normal"]
    assert normalized_uri(text) == normalized_uri(normal) == normal
    for each in (text, normal):
        assert (
            ask(conn, ("select durable._is_uri(%s)", (each,))) == (is_normal_uri(each),) == (each == normal,)
        )


@pytest.mark.parametrize(
    "vector", VECTORS["keys"], ids=lambda vector: f"{vector['salt']}-{vector['generation']}"
)
def test_s36_keys_are_derived(conn: Connection, vector: dict[str, Any]) -> None:
    """Value keys from salt, function and values; execution keys from value key and generation."""
    function, inputs = bytes.fromhex(vector["function"]), [*map(bytes.fromhex, vector["inputs"])]
    key = value_key(vector["salt"], function, inputs)
    given = (vector["salt"].encode(), [function, *inputs])
    assert ask(conn, ("select durable._object_id('key', 'value', %s, %s::bytea[], null)", given)) == (key,)
    own = execution_key(key, vector["generation"])
    text = "select durable._object_id('key', 'exec', int4send(%s), array[%s::bytea], null)"
    assert ask(conn, (text, (vector["generation"], key))) == (own,)
    assert (key.hex(), own.hex()) == (vector["value_key"], vector["execution_key"])
    for scope in (None, "s", ""):
        named = (vector["salt"], scope, function, inputs)
        assert ask(conn, ("select durable._value_key(%s, %s, %s, %s::bytea[])", named)) == (
            value_key(vector["salt"], function, inputs, scope),
        )


def draw(chance: random.Random, depth: int) -> Any:
    """A value of any type."""
    kind = chance.randrange(8 if depth == 0 else 12)
    if kind < 8:
        return (
            None,
            chance.random() < 0.5,
            chance.choice([chance.randrange(-(2**63), 2**63), chance.randrange(-3, 4)]),
            chance.choice(
                [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-320, 308), 0.0, -0.0, math.nan, -math.inf]
            ),
            chance.randbytes(chance.randrange(5)),
            "".join(
                chance.choice("aé\u0301\u0323\u1100\u1161\U0001d15e/%\n") for _ in range(chance.randrange(6))
            ),
            Uri.from_string(
                f"x://{chance.choice('aBc')}/" + chance.choice(["é", "a b", "../c", "%7e%2F", "?q#f"])
            ),
            float(chance.randrange(-3, 4)),
        )[kind]
    members = [draw(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind < 10:
        return members
    keys = [draw(chance, 0) for _ in members]
    unequal = {datum_of(key).id: key for key in keys}.values()
    return set(unequal) if kind == 10 else dict(zip(unequal, members, strict=False))


def test_random_values_have_one_id(conn: Connection, seed: int) -> None:
    """Values of all types, nested: both sides give each the same id, and Python reads it back."""
    chance = random.Random(seed)
    for _ in range(300):
        value = draw(chance, 3)
        datum = datum_of(value)
        assert datum.id.hex() == in_sql(conn, to_tagged(datum)), f"seed {seed}: {value!r}"
        back = from_tagged(ask(conn, ("select durable.datum(%s)", (datum.id,)))[0])
        assert back.id == datum.id, f"seed {seed}: {value!r}"
        assert datum_of(value_of(back)).id == datum.id, f"seed {seed}: {value!r}"
