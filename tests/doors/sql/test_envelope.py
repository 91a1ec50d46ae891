"""Law: on the wire every value of the engine is in the envelope of the SDKs, base64 of JSON, with errors in
their form; what a client wrote goes out as it came, and is decoded where our code or people read it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.envelope import make, say, settle
from tests.support.verbs import Connection, begin_run, complete, fail, report, take_turn


def packed(value: Any) -> str:
    """As an SDK packs a value."""
    return base64.b64encode(json.dumps(value).encode()).decode()


def wire(conn: Connection, id_: str) -> dict[str, Any]:
    """The promise as a client gets it."""
    return say(conn, "promise.get", id=id_).promise


def value_of(conn: Connection, id_: str) -> Any:
    """The value on the wire, decoded."""
    return json.loads(base64.b64decode(wire(conn, id_)["value"]["data"]))


def one(conn: Connection, text: str, *parameters: Any) -> Any:
    """The only value of a query."""
    row = conn.execute(text.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


def test_a_run_on_the_wire(conn: Connection) -> None:
    """Arguments and result are in the envelope, without the header that names our codec."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end=complete('{"sum": "é"}')))
    promise = wire(conn, "r")
    assert promise["param"] == {"data": packed([])}
    assert set(promise["value"]) == {"data"}
    assert value_of(conn, "r") == {"sum": "é"}


def test_a_failed_run_on_the_wire(conn: Connection) -> None:
    """Its error has class and message; what stands beside them stays here."""
    held = begin_run(conn, "r")
    error = {"type": "Boom", "message": "no luck", "traceback": "secret", "kind": "UserError"}
    take_turn(conn, "W", report(held, end=fail(json.dumps(error))))
    assert value_of(conn, "r") == {"__type": "error", "name": "Boom", "message": "no luck"}


def test_a_cancelled_run_on_the_wire(conn: Connection) -> None:
    """The value is an error, because an SDK shows its message only then."""
    conn.execute("select durable.start('w', id => 'r')")
    conn.execute("""select durable.cancel('r', '"enough"')""")
    assert wire(conn, "r")["state"] == "rejected_canceled"
    assert value_of(conn, "r") == {"__type": "error", "name": "Cancelled", "message": "enough"}


@pytest.mark.parametrize("data", [packed({"a": [1]}), '{"a": 1}', "words", "", "true", "1234"])
def test_what_a_client_wrote_goes_out_as_it_came(conn: Connection, data: str) -> None:
    """Whatever it is."""
    say(conn, "promise.create", id="p", timeoutAt=10**15, param={"data": data, "headers": {"h": "1"}})
    settle(conn, "p", data=data, headers={})
    promise = wire(conn, "p")
    assert promise["param"] == {"data": data, "headers": {"h": "1"}}
    assert promise["value"] == {"data": data, "headers": {}}


@pytest.mark.parametrize("verdict", ["resolve", "reject"])
def test_what_people_write_is_in_the_envelope(conn: Connection, verdict: str) -> None:
    """A promise of an SDK that is settled by psql."""
    make(conn, "p", external="true")
    said = {"type": "Declined", "message": "no"} if verdict == "reject" else {"paid": True}
    conn.execute(f"select durable.{verdict}('p', %s)".encode(), (json.dumps(said),))
    expected = {"__type": "error", "name": "Declined", "message": "no"} if verdict == "reject" else said
    assert value_of(conn, "p") == expected


def test_many_settled_at_once(conn: Connection) -> None:
    """The same of settle_many."""
    make(conn, "p", external="true")
    conn.execute("""select durable.settle_many('{p}', value => '"yes"')""")
    assert value_of(conn, "p") == "yes"


# what a client sent, and what our code and people read
READ: list[tuple[str | None, Any]] = [
    (None, None),
    ("", None),
    (packed("yes"), "yes"),
    (packed({"é": [1.5, None]}), {"é": [1.5, None]}),
    (packed(""), ""),
    ('{"a": 1}', {"a": 1}),
    ('"text"', "text"),
    ("words", "words"),
    ("aGVsbG8=", "aGVsbG8="),
    ("true", True),
    ("1234", 1234),
    ("12345678", 12345678),
    ("null", None),
    ("2026-11-25", "2026-11-25"),
    (base64.b64encode(b"\xff\xfe").decode(), base64.b64encode(b"\xff\xfe").decode()),
]


@pytest.mark.parametrize(("data", "expected"), READ)
def test_reading_a_value(conn: Connection, data: str | None, expected: Any) -> None:
    """Base64 of JSON is decoded, JSON stays, other text is a string; empty is null."""
    assert json.loads(one(conn, "select durable._from_envelope(%s)", data) or "null") == expected
    make(conn, "p", external="true")
    settle(conn, "p", **({} if data is None else {"data": data}))
    assert one(conn, "select value from durable.result('p')") == expected
    assert one(conn, "select value from durable.promises where id = 'p'") == expected


@pytest.mark.parametrize("value", ['{"a": 1}', "[]", '"x"', "-1.5", "0", "true", "false", "null"])
def test_no_envelope_is_put_into_another(conn: Connection, value: str) -> None:
    """Packing twice is packing once."""
    once = one(conn, "select durable._in_envelope(%s)", value)
    assert once == base64.b64encode(value.encode()).decode()
    assert one(conn, "select durable._in_envelope(%s)", once) == once


def test_a_long_value_has_no_line_breaks(conn: Connection) -> None:
    """PostgreSQL breaks base64 at 76 characters, and clients do not read that."""
    long = json.dumps("x" * 1000)
    assert one(conn, "select durable._in_envelope(%s)", long) == base64.b64encode(long.encode()).decode()


# an error of an SDK, and what a workflow of ours sees of it
ERRORS: list[tuple[Any, dict[str, Any]]] = [
    (
        {"__type": "error", "name": "TypeError", "message": "bad", "stack": "at x"},
        {
            "type": "TypeError",
            "message": "bad",
            "traceback": "at x",
            "kind": "UserError",
            "module": "resonate",
        },
    ),
    (
        {"__type": "error", "message": "bad", "__py_pickle": "gASV"},
        {"type": "Error", "message": "bad", "kind": "UserError", "module": "resonate"},
    ),
    (
        {
            "__type": "aggregate_error",
            "name": "AggregateError",
            "message": "two",
            "errors": [{"message": "a"}],
        },
        {
            "type": "AggregateError",
            "message": "two",
            "kind": "UserError",
            "module": "resonate",
            "data": [{"message": "a"}],
        },
    ),
    (
        "text",
        {
            "type": "Rejected",
            "message": "text",
            "kind": "Uncategorized",
            "module": "resonate",
            "data": "text",
        },
    ),
    ({"type": "Declined", "message": "no"}, {"type": "Declined", "message": "no"}),
]


@pytest.mark.parametrize(("sent", "seen"), ERRORS)
def test_reading_an_error(conn: Connection, sent: Any, seen: dict[str, Any]) -> None:
    """Name, message and stack; anything else is data."""
    make(conn, "p", external="true")
    settle(conn, "p", "rejected", data=packed(sent))
    assert one(conn, "select error from durable.result('p')") == seen


def test_an_error_without_a_value(conn: Connection) -> None:
    """The default of its state."""
    make(conn, "p", external="true")
    settle(conn, "p", "rejected_canceled", data="")
    assert one(conn, "select error ->> 'type' from durable.result('p')") == "Cancelled"
