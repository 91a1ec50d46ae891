"""Law: a signal that no worker of the run's workflow receives is refused: by its name, with the nearest one,
by the JSON type of its payload, and by a missing key. Nothing is refused that is not known."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    dump,
    receive,
    refusal,
    report,
    send,
    take_turn,
)

OBJECT = {"type": "object", "required": ["ok", "by"]}
TYPES: dict[str, Any] = {
    "approve": {"type": "boolean"},
    "decline": OBJECT,
    "count": {"type": "integer"},
    "any": {},
    "both": {"anyOf": [{"$ref": "#/$defs/O"}, {"type": "null"}], "$defs": {"O": OBJECT}},
    "choice": {"enum": ["a", 1]},
    "listed": {"type": ["string", "null"]},
    "tree": {"$ref": "#/$defs/T", "$defs": {"T": {"oneOf": [{"$ref": "#/$defs/T"}, {"type": "string"}]}}},
}


def hello(
    conn: Connection,
    signals: dict[str, Any] | None,
    *,
    worker: str = "W",
    any: bool = False,
    version: str = "1",
) -> None:
    """Register a worker of workflow `w`; None: it says nothing about signals."""
    said = None if signals is None else json.dumps([{"types": signals, "any": any}])
    call = "select durable.worker_hello_v1(%s, '{default}', '{w}', array[%s], '{}', '{ab}', %s)"
    ask(conn, (call, (worker, version, said)))


def refused(conn: Connection, name: str, payload: str | None = "true") -> tuple[str, str, str]:
    """SQLSTATE, detail and hint with which a signal to `r` is refused; empty texts if it is delivered."""
    try:
        with conn.transaction():
            ask(conn, send("r", name, payload))
    except psycopg.Error as error:
        return error.sqlstate or "?", error.diag.message_primary or "", error.diag.message_hint or ""
    return "", "", ""


def test_an_unknown_name_is_refused_with_the_nearest(conn: Connection) -> None:
    """A typing error names the signal that was meant, and all that the workflow receives."""
    hello(conn, {"approve": {}, "decline": {}})
    begin_run(conn, "r")
    before = dump(conn, ["_signals", "_inboxes", "_journal"])
    assert refused(conn, "aprove") == (
        "WF001",
        "There is no signal of workflow w named 'aprove'.",
        "Did you mean 'approve'? It receives 'approve', 'decline'. "
        "Its code declares more: @app.workflow(signals=[...]), or any_signal=True.",
    )
    assert refused(conn, "xyz")[2].startswith("It receives 'approve', 'decline'. ")
    assert dump(conn, ["_signals", "_inboxes", "_journal"]) == before
    assert refused(conn, "approve") == ("", "", "")


def test_a_workflow_that_receives_none_refuses_all(conn: Connection) -> None:
    """A workflow whose code receives no signal says so."""
    hello(conn, {})
    begin_run(conn, "r")
    code, detail, hint = refused(conn, "go")
    assert (code, detail) == ("WF001", "There is no signal of workflow w named 'go'.")
    assert hint.startswith("It receives none. ")


@pytest.mark.parametrize(
    "registered",
    ["nothing", "other version", "no signals", "any signal", "another worker", "another worker says nothing"],
)
def test_a_name_that_may_be_received_is_delivered(conn: Connection, registered: str) -> None:
    """Of an unknown workflow, of one whose worker registered no signals, of one that receives any, and of one
    of whose workers one receives it, no name is refused."""
    if registered == "other version":
        hello(conn, {"approve": {}}, version="2")
    elif registered == "no signals":
        hello(conn, None)
    elif registered == "any signal":
        hello(conn, {"approve": {}}, any=True)
    elif registered.startswith("another"):
        hello(conn, {"go": {}} if registered == "another worker" else None, worker="other")
        hello(conn, {"approve": {}})
    begin_run(conn, "r")
    assert refused(conn, "go") == ("", "", "")


def test_a_worker_that_left_counts_no_more(conn: Connection) -> None:
    """What only a worker receives that is gone is refused; the last one that registered is remembered."""
    hello(conn, {"go": {}}, worker="other")
    hello(conn, {"approve": {}})
    begin_run(conn, "r")
    ask(conn, ("select durable.worker_bye_v1('other')", ()))
    assert refused(conn, "go")[0] == "WF001"
    ask(conn, ("select durable.worker_bye_v1('W')", ()))
    assert refused(conn, "go")[0] == "WF001"
    assert refused(conn, "approve") == ("", "", "")


def test_a_run_that_waits_for_a_name_gets_it(conn: Connection) -> None:
    """Code that receives a name that it did not register gets the signals that come from then on."""
    hello(conn, {"approve": {}})
    held = begin_run(conn, "r")
    assert refused(conn, "go")[0] == "WF001"
    take_turn(conn, "W", report(held, commands=[receive(0)]))
    assert refused(conn, "go") == ("", "", "")
    assert refused(conn, "go") == ("", "", "")


FITTING = [
    *(("approve", one) for one in ("true", "false")),
    *(("decline", one) for one in ('{"ok": null, "by": 1}', '{"ok": 1, "by": 2, "more": 3}')),
    *(("count", one) for one in ("1", "1.0", "1e999999999")),
    *(("any", one) for one in ("1", "null", None, '"\\u0000"')),
    *(("both", one) for one in ("null", None, '{"ok": 1, "by": 2}')),
    *(("choice", one) for one in ('"a"', "1", '"b"')),
    *(("listed", one) for one in ('"a"', "null")),
    *(("tree", one) for one in ('"a"', "1")),
]
FAULTS = [
    ("approve", "1", "is of type number, not boolean"),
    ("approve", None, "is of type null, not boolean"),
    ("decline", '"yes"', "is of type string, not object"),
    ("decline", '{"ok": true}', "lacks 'by'"),
    ("decline", "{}", "lacks 'ok', 'by'"),
    ("count", '"1"', "is of type string, not number"),
    ("both", "3", "is of type number, not null or object"),
    ("both", '{"by": 1}', "lacks 'ok'"),
    ("choice", "null", "is of type null, not number or string"),
    ("listed", "1", "is of type number, not null or string"),
]


@pytest.mark.parametrize(("name", "payload"), FITTING)
def test_a_payload_that_may_fit_is_delivered(conn: Connection, name: str, payload: str | None) -> None:
    """A payload of the type is taken, as far as SQL looks; a schema that refers to itself allows all."""
    hello(conn, TYPES)
    begin_run(conn, "r")
    assert refused(conn, name, payload) == ("", "", "")


@pytest.mark.parametrize(("name", "payload", "fault"), FAULTS)
def test_a_payload_of_another_type_is_refused(
    conn: Connection, name: str, payload: str | None, fault: str
) -> None:
    """Another JSON type and a missing key are refused, whether or not the run waits."""
    hello(conn, TYPES)
    held = begin_run(conn, "r")
    said = (
        "WF004",
        f"The payload of signal '{name}' to run 'r' {fault}.",
        f"select signals -> '{name}' from durable.workflows where name = 'w'",
    )
    assert refused(conn, name, payload) == said
    take_turn(conn, "W", report(held, commands=[receive(0, name)]))
    assert refused(conn, name, payload) == said


def test_a_type_of_another_worker_fits(conn: Connection) -> None:
    """While code of one version is replaced, each worker's type is taken."""
    hello(conn, {"go": {"type": "string"}}, worker="other")
    hello(conn, {"go": {"type": "boolean"}})
    begin_run(conn, "r")
    assert refused(conn, "go", "true") == refused(conn, "go", '"yes"') == ("", "", "")
    assert refused(conn, "go", "1")[0] == "WF004"


def test_a_second_delivery_is_not_checked(conn: Connection) -> None:
    """A signal that was delivered before its type was registered is answered as before."""
    begin_run(conn, "r")
    ask(conn, send("r", "go", "1", key="k"))
    hello(conn, {"go": {"type": "boolean"}})
    assert ask(conn, send("r", "go", "1", key="k"))[:2] == (1, False)
    assert refusal(conn, send("r", "go", "1", key="other")) == "WF004"


def test_people_see_them(conn: Connection) -> None:
    """The view of workflows shows names and schemas; of a worker that registered none it shows null."""
    hello(conn, {"approve": {"type": "boolean"}})
    query = "select signals, any_signal from durable.workflows"
    assert ask(conn, (query, ())) == ({"approve": {"type": "boolean"}}, False)
    hello(conn, {}, any=True)
    assert ask(conn, (query, ())) == ({}, True)
    hello(conn, None)
    assert ask(conn, (query, ())) == (None, True)


def test_the_verb_of_people_refuses_too(conn: Connection) -> None:
    """durable.signal says what signal_v1 says."""
    hello(conn, TYPES)
    begin_run(conn, "r")
    assert refusal(conn, ("select durable.signal('r', 'aprove')", ())) == "WF001"
    assert refusal(conn, ("select durable.signal('r', 'approve', '3')", ())) == "WF004"
    assert refusal(conn, ("select durable.signal('r', 'approve', 'true')", ())) == ""
