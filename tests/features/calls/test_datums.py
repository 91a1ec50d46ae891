"""Law: a value travels with its type, comes back equal, and a wrong one is refused with its place."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import psycopg
import pytest

from pyengine.features.calls.datums import datum_of, value_of
from tests.support.objects import flaw
from tests.support.objects import put as put_object
from tests.support.verbs import Connection, ask

PUT = "select durable.datum_put(%s::jsonb)"
SAME = [
    '{"null": null}',
    '{"bool": false}',
    '{"i64": -9223372036854775808}',
    '{"i64": 9223372036854775807}',
    '{"f64": "NaN"}',
    '{"f64": "-Infinity"}',
    '{"f64": "1e+16"}',
    '{"f64": "5e-324"}',
    '{"f64": "-2.2250738585072014e-308"}',
    '{"f64": "1.7976931348623157e+308"}',
    '{"f64": "0.1"}',
    '{"f64": "0"}',
    '{"bytes": "AAEC/w=="}',
    '{"string": ""}',
    '{"uri": "s3://bucket/a?b=%C3%A9"}',
    '{"list": [{"i64": 2}, {"i64": 1}, {"i64": 2}]}',
    '{"list": []}',
    '{"map": []}',
    '{"map": [[{"string": "a"}, {"list": [{"set": []}]}]]}',
]
WRONG = [
    ('{"i64": 9223372036854775808}', "$: 9223372036854775808 is outside the range of i64"),
    ('{"list": [{"i64": "-9223372036854775809"}]}', "$[0]: "),
    ('{"i64": 1.5}', "$: 1.5 is no i64"),
    ('{"i64": true}', "$: true is no i64"),
    ('{"f64": "1e999"}', "is outside the range of f64"),
    ('{"f64": "nan"}', "is no f64"),
    ('{"bool": "true"}', "is no bool"),
    ('{"null": 0}', "is no null"),
    ('{"string": 5}', "a string is written as a text"),
    ('{"bytes": "?"}', "bytes are written in base64"),
    ('{"uri": "http://Host/"}', "a URI is in the normal form"),
    ('{"uri": "dml://list/construct"}', "URIs of the scheme dml are reserved"),
    ('{"text": "a"}', "is no value with its type"),
    ('{"i64": 1, "f64": "1"}', "is no value with its type"),
    ("5", "is no value with its type"),
    ('{"list": {}}', "is no value with its type"),
    ('{"map": [[{"i64": 1}]]}', "is no value with its type"),
    ('{"map": [[{"string": "a"}, {"list": [{"x": 1}]}]]}', "$[0].value[0]: "),
    ('{"map": [[{"x": 1}, {"i64": 1}]]}', "$[0].key: "),
    ('{"set": [{"i64": 1}, {"i64": 1}]}', "$: two members of a set are equal"),
    ('{"set": [{"string": "\\u00e9"}, {"string": "e\\u0301"}]}', "$: two members of a set are equal"),
    (
        '{"map": [[{"string": "\\u00e9"}, {"i64": 1}], [{"string": "e\\u0301"}, {"i64": 2}]]}',
        "two members of a map",
    ),
]


def put(conn: Connection, value: str) -> bytes:
    """The id of a value that is written with its types."""
    return bytes(ask(conn, (PUT, (value,)))[0])


@pytest.mark.parametrize("value", SAME)
def test_a_value_comes_back(conn: Connection, value: str) -> None:
    """As it was put."""
    text = ask(conn, ("select durable.datum(%s)::text", (put(conn, value),)))[0]
    assert json.loads(text) == json.loads(value)


@pytest.mark.parametrize(("value", "words"), WRONG)
def test_a_wrong_value_is_refused(conn: Connection, value: str, words: str) -> None:
    """With the place of what is wrong, and nothing is put."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        put(conn, value)
    assert caught.value.sqlstate == "WF004" and words in str(caught.value.diag.message_primary)
    assert ask(conn, ("select count(*) from durable._objects", ())) == (0,)


def test_order_counts_where_it_means_something(conn: Connection) -> None:
    """A list is its order; sets and maps have none."""
    assert put(conn, '{"list": [{"i64": 1}, {"i64": 2}]}') != put(conn, '{"list": [{"i64": 2}, {"i64": 1}]}')
    assert put(conn, '{"set": [{"i64": 1}, {"i64": 2}]}') == put(conn, '{"set": [{"i64": 2}, {"i64": 1}]}')
    pairs = '[{"string": "a"}, {"i64": 1}]', '[{"string": "b"}, {"i64": 2}]'
    one, two = (put(conn, f'{{"map": [{first}, {second}]}}') for first, second in (pairs, pairs[::-1]))
    assert one == two


def test_types_tell_values_apart(conn: Connection) -> None:
    """1, 1.0, true and "1" are four values, and each zero of a float is one."""
    values = [
        '{"i64": 1}',
        '{"f64": 1}',
        '{"bool": true}',
        '{"string": "1"}',
        '{"bytes": "MQ=="}',
        '{"null": null}',
    ]
    assert len({put(conn, value) for value in values}) == len(values)
    assert put(conn, '{"f64": "-0.0"}') == put(conn, '{"f64": 0}')
    assert put(conn, '{"string": "e\\u0301"}') == put(conn, '{"string": "\\u00e9"}')
    every_kind = '{"map": [[{"i64": 1}, {"i64": 0}], [{"f64": 1}, {"i64": 0}], [{"bool": true}, {"i64": 0}]]}'
    assert len(ask(conn, ("select durable.datum(%s)", (put(conn, every_kind),)))[0]["map"]) == 3


def test_large_and_deep_values_are_refused(conn: Connection) -> None:
    """A scalar of more than 1 MiB belongs elsewhere; JSON has 500 levels at most."""
    for value, code in (
        (json.dumps({"string": "x" * 1048577}), "WF008"),
        ('{"list": [' * 260 + '{"null": null}' + "]}" * 260, "WF004"),
    ):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            put(conn, value)
        assert caught.value.sqlstate == code
    put(conn, json.dumps({"string": "x" * 1048576}))
    put(conn, '{"list": [' * 240 + '{"null": null}' + "]}" * 240)


@pytest.mark.parametrize(
    ("plain", "typed"),
    [
        ("5", {"i64": 5}),
        ("5.0", {"f64": "5"}),
        ("1e16", {"i64": 10**16}),
        ("null", {"null": None}),
        ('["a", {"b": true}]', {"list": [{"string": "a"}, {"map": [[{"string": "b"}, {"bool": True}]]}]}),
    ],
)
def test_plain_json_is_a_literal(conn: Connection, plain: str, typed: dict[str, Any]) -> None:
    """A number with a point is a float; an object is a map with texts as keys."""
    datum = put(conn, json.dumps(typed))
    node = ask(conn, ("select durable.node_literal(%s)", (datum,)))
    assert ask(conn, ("select durable.literal(%s::jsonb)", (plain,))) == node


def test_an_object_that_is_no_datum_has_no_value(conn: Connection) -> None:
    """Neither has one that is not there."""
    node = ask(conn, ("select durable.literal('1')", ()))[0]
    for id_, code in ((node, "WF004"), (bytes(32), "WF001")):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, ("select durable.datum(%s)", (id_,)))
        assert caught.value.sqlstate == code


def test_a_dag_is_read_with_its_names(conn: Connection) -> None:
    """Its value, its named nodes, and the value through imports."""
    node = ask(conn, ("select durable.literal('{\"rows\": [1, 2.5]}')", ()))[0]
    called = ask(conn, ("select durable.node_call('a:b', array[%s])", (node,)))[0]
    names = json.dumps({"call": called.hex()})
    made = ask(conn, ("select durable.dag_put(%s, %s)", (node, names)))[0]
    read = ask(conn, ("select durable.dag(%s)", (made,)))[0]
    assert read["value"] == {"value": {"rows": [1, 2.5]}} and read["root"] == node.hex()
    assert read["nodes"] == {"call": {"node": called.hex(), "call": "a:b", "inputs": [node.hex()]}}
    imported = ask(conn, ("select durable.node_import(%s)", (made,)))[0]
    outer = ask(conn, ("select durable.dag_put(%s)", (imported,)))[0]
    assert ask(conn, ("select durable.dag_value(%s)", (outer,))) == ask(
        conn, ("select durable.dag_value(%s)", (made,))
    )
    unfinished = ask(conn, ("select durable.dag_put(%s)", (called,)))[0]
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, ("select durable.dag_value(%s)", (unfinished,)))
    assert caught.value.sqlstate == "WF014"


# of the last two Unicode 14 does not know the last mark, which belongs before the other one
TEXTS = ["e\u0301", "a\u0315\u0300", "a\u1dc4\U00010efd", "\u0430\u1dc4\U00010efe"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_has_the_form_of_whoever_normalizes_it(conn: Connection, text: str) -> None:
    """Python and database each use the Unicode that they have, and take what it does not know as it is. A
    text in the form of the other one is refused, with the reason: no law names what is stored (executor 7).
    """
    here = str(ask(conn, ("select normalize(%s, nfc)", (text,)))[0])
    there = unicodedata.normalize("NFC", text)
    assert put(conn, json.dumps({"string": text})) == put_object(conn, "datum", "string", here.encode())
    assert value_of(datum_of(text)) == there
    for form in {here, there, text}:
        found = flaw(conn, "datum", "string", form.encode())
        assert ("a text is in Unicode form NFC" in found) if form != here else not found
    assert ask(conn, ("select count(*) from durable.check()", ())) == (0,)
