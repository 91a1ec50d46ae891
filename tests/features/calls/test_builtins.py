"""Law: builtins run at once, in the database, and each run is recorded as an exec."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from pyengine.features.calls.datums import Datum, datum_of, from_tagged, to_tagged, value_of
from tests.support.verbs import Connection, ask


def node_of(conn: Connection, datum: Datum) -> bytes:
    """The node of a value."""
    put = ask(conn, ("select durable.datum_put(%s::jsonb)", (json.dumps(to_tagged(datum)),)))[0]
    return bytes(ask(conn, ("select durable.node_literal(%s)", (put,)))[0])


def in_sql(conn: Connection, name: str, inputs: Sequence[Datum], scope: str | None = None) -> dict[str, Any]:
    """What the database answers."""
    nodes = [node_of(conn, each) for each in inputs]
    answer: dict[str, Any] = ask(conn, ("select durable.builtin(%s, %s::bytea[], %s)", (name, nodes, scope)))[
        0
    ]
    return answer


@pytest.mark.parametrize(
    ("name", "inputs", "result"),
    [
        ("list/construct", [1, "a", 1], [1, "a", 1]),
        ("list/construct", [], []),
        ("list/append", [[1], 2, 3], [1, 2, 3]),
        ("list/concat", [[1], [], [2, 1]], [1, 2, 1]),
        ("list/get", [[5, 6], 0], 5),
        ("list/get", [[5, 6], -1], 6),
        ("list/length", [[5, 6]], 2),
        ("set/construct", [1, 2, 1], {1, 2}),
        ("set/union", [{1}, {2, 1}], {1, 2}),
        ("set/contains", [{1}, True], False),
        ("set/contains", [{1}, 1], True),
        ("set/length", [{1, 2}], 2),
        ("map/construct", ["a", 1, 2, None], {"a": 1, 2: None}),
        ("map/construct", [], {}),
        ("map/set", [{"a": 1, "b": 2}, "a", 3], {"a": 3, "b": 2}),
        ("map/set", [{}, "a", 3], {"a": 3}),
        ("map/get", [{"a": [1]}, "a"], [1]),
        ("map/contains", [{"a": 1}, "b"], False),
        ("map/keys", [{"a": 1}], ["a"]),
        ("map/length", [{"a": 1}], 1),
    ],
)
def test_a_builtin_gives_its_value(conn: Connection, name: str, inputs: list[Any], result: Any) -> None:
    """The datum of the value that the same function has in Python."""
    answer = in_sql(conn, f"dml://{name}", [datum_of(each) for each in inputs])
    assert (answer["status"], answer["datum"]) == ("ok", datum_of(result).id.hex())


@pytest.mark.parametrize(
    ("name", "inputs", "kind"),
    [
        ("list/get", [[5, 6], 2], "IndexError"),
        ("list/get", [[5, 6], -3], "IndexError"),
        ("list/get", [[5], 2**63 - 1], "IndexError"),
        ("map/get", [{"a": 1}, "b"], "KeyError"),
        ("map/construct", ["a"], "ValueError"),
        ("map/construct", ["a", 1, "a", 2], "ValueError"),
        ("list/get", [[5]], "TypeError"),
        ("list/get", [[5], 1, 2], "TypeError"),
        ("list/get", [[5], "0"], "TypeError"),
        ("list/concat", [[1], {1}], "TypeError"),
        ("list/append", [], "TypeError"),
    ],
)
def test_a_failure_is_a_result(conn: Connection, name: str, inputs: list[Any], kind: str) -> None:
    """With a datum that describes it."""
    answer = in_sql(conn, name, [datum_of(each) for each in inputs])
    assert answer["status"] == "error"
    tagged = ask(conn, ("select durable.datum(%s::bytea)", (bytes.fromhex(answer["datum"]),)))[0]
    described = value_of(from_tagged(tagged))
    assert (described["type"], described["origin"]) == (kind, "dml") and name in described["message"]


def test_a_builtin_is_recorded_and_pinned(conn: Connection) -> None:
    """As an exec of its node; its value is one for calls that come after."""
    ask(conn, ("select durable.scope_open('s')", ()))
    one = in_sql(conn, "list/construct", [datum_of(1), datum_of(2)], "s")
    assert in_sql(conn, "list/construct", [datum_of(1), datum_of(2)], "s") == one
    assert ask(conn, ("select node, exec from durable.exec_map where ref = 's'", ())) == (
        one["node"],
        one["exec"],
    )
    place = node_of(conn, datum_of(1))
    text = "select durable.builtin('list/get', array[%s, %s]::bytea[], 's')"
    two = ask(conn, (text, (bytes.fromhex(one["node"]), place)))[0]
    assert two["datum"] == datum_of(2).id.hex()
    assert ask(conn, ("select count(*) from durable.execs where call = 'builtin'", ())) == (2,)


def test_unknown_builtins_and_inputs_are_refused(conn: Connection) -> None:
    """Nothing is recorded."""
    nowhere = "select durable.builtin('list/length', array[durable.node_call('a:b', '{}')])"
    for text, code in (
        ("select durable.builtin('list/sort', '{}')", "WF013"),
        (nowhere, "WF014"),
        ("select durable.builtin('list/construct', '{}', 'nowhere')", "WF001"),
        ("select durable.node_call('dml://list/construct', '{}')", "WF004"),
    ):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, (text, ()))
        assert caught.value.sqlstate == code
