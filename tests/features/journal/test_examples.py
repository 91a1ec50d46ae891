"""Law: the three example journals of the published design can be kept, event for event, with the statuses
that it prints."""

from __future__ import annotations

import pytest

from tests.features.journal.keeper import Json, append, begin, entries, state
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask

Line = tuple[str, Json, str]

RETRIES = {"max_attempts": 3}
ORDER = {"number": 7}
APPROVAL = {"approved": True}
LATER = 1_800_000_060_000
FAILURE = {"kind": "Trap", "message": "the mail server hung up"}


def scheduled(child: str, name: str, input_: Json) -> Json:
    """Payload of an InvokeScheduled of a function."""
    return {
        "promise_id": child,
        "kind": "Function",
        "function_name": name,
        "input": input_,
        "retry_policy": RETRIES,
    }


def attempt(child: str, number: int = 1) -> Json:
    """Payload of an InvokeStarted."""
    return {"promise_id": child, "attempt": number}


def result(child: str, value: Json, number: int = 1) -> Json:
    """Payload of an InvokeCompleted."""
    return {"promise_id": child, "attempt": number, "result": value}


def waiting(kind: str, *children: str) -> Json:
    """Payload of an ExecutionAwaiting."""
    return {"waiting_on": list(children), "kind": {"tag": kind}}


FULL: list[Line] = [
    ("RandomGenerated", {"promise_id": "root.0", "value": 0x1A2B}, "running"),
    ("InvokeScheduled", scheduled("root.1", "fetch_user", {"id": 42}), "running"),
    ("ExecutionAwaiting", waiting("Single", "root.1"), "blocked"),
    ("InvokeStarted", attempt("root.1"), "blocked"),
    ("InvokeCompleted", result("root.1", {"name": "Ada"}), "blocked"),
    ("ExecutionResumed", {}, "running"),
    ("JoinSetCreated", {"join_set_id": "root.2"}, "running"),
    ("InvokeScheduled", scheduled("root.3", "send_email", {"to": "Ada"}), "running"),
    ("JoinSetSubmitted", {"join_set_id": "root.2", "promise_id": "root.3"}, "running"),
    ("InvokeScheduled", scheduled("root.4", "send_sms", {"to": "Ada"}), "running"),
    ("JoinSetSubmitted", {"join_set_id": "root.2", "promise_id": "root.4"}, "running"),
    ("ExecutionAwaiting", waiting("Any", "root.3", "root.4"), "blocked"),
    ("InvokeStarted", attempt("root.4"), "blocked"),
    ("InvokeCompleted", result("root.4", {"sent": "sms"}), "blocked"),
    ("ExecutionResumed", {}, "running"),
    (
        "JoinSetAwaited",
        {"join_set_id": "root.2", "promise_id": "root.4", "result": {"sent": "sms"}},
        "running",
    ),
    ("ExecutionAwaiting", waiting("Any", "root.3"), "blocked"),
    ("InvokeStarted", attempt("root.3"), "blocked"),
    (
        "InvokeRetrying",
        {"promise_id": "root.3", "failed_attempt": 1, "error": FAILURE, "retry_at": LATER},
        "blocked",
    ),
    ("InvokeStarted", attempt("root.3", 2), "blocked"),
    ("InvokeCompleted", result("root.3", {"sent": "mail"}, 2), "blocked"),
    ("ExecutionResumed", {}, "running"),
    (
        "JoinSetAwaited",
        {"join_set_id": "root.2", "promise_id": "root.3", "result": {"sent": "mail"}},
        "running",
    ),
    ("ExecutionCompleted", {"result": {"done": True}}, "completed"),
]

_ORDER: list[Line] = [
    ("InvokeScheduled", scheduled("root.0", "create_order", {"sku": "x"}), "running"),
    ("ExecutionAwaiting", waiting("Single", "root.0"), "blocked"),
    ("InvokeStarted", attempt("root.0"), "blocked"),
    ("InvokeCompleted", result("root.0", ORDER), "blocked"),
    ("ExecutionResumed", {}, "running"),
]
_DELIVERY: Json = {"signal_name": "user_approval", "payload": APPROVAL, "delivery_id": 1}
_RECEIPT: Json = {"promise_id": "root.1", **_DELIVERY}

BUFFERED: list[Line] = [
    *_ORDER,
    ("SignalDelivered", _DELIVERY, "running"),
    ("SignalReceived", _RECEIPT, "running"),
    ("ExecutionCompleted", {"result": "ok"}, "completed"),
]
BLOCKING: list[Line] = [
    *_ORDER,
    (
        "ExecutionAwaiting",
        {
            "waiting_on": ["root.1"],
            "kind": {"tag": "Signal", "name": "user_approval", "promise_id": "root.1"},
        },
        "blocked",
    ),
    ("SignalDelivered", _DELIVERY, "blocked"),
    ("SignalReceived", _RECEIPT, "blocked"),
    ("ExecutionResumed", {}, "running"),
    ("ExecutionCompleted", {"result": "ok"}, "completed"),
]


@pytest.mark.parametrize(
    "lines", [FULL, BUFFERED, BLOCKING], ids=["full", "buffered signal", "blocking signal"]
)
def test_an_example_journal(conn: Connection, clock: Clock, lines: list[Line]) -> None:
    """Each event is taken at its place, leads to the printed status, and is read back as it was written."""
    begin(conn, "root", parent_id=None, idempotency_key="k")
    for number, (event, payload, status) in enumerate(lines, start=1):
        answer = append(conn, "root", event, payload)
        assert (answer.seq, answer.status) == (number, status), event
        clock.advance(1)
    written = [(entry["type"], entry["payload"]) for entry in entries(conn, "root")]
    started = {"component_digest": "d", "input": "in", "parent_id": None, "idempotency_key": "k"}
    assert written == [("ExecutionStarted", started), *((event, payload) for event, payload, _ in lines)]
    assert state(conn, "root") == ({"tag": "Completed"}, 5 if lines is FULL else 2, len(lines) + 1)


def test_an_example_with_the_sender_outside(conn: Connection) -> None:
    """The blocking example comes out the same when somebody else sends the signal: only its receipt and the
    resume are the client's to write."""
    begin(conn, "root", parent_id=None, idempotency_key="k")
    for event, payload, _ in BLOCKING:
        if event == "SignalDelivered":
            assert ask(
                conn, ("select durable.signal('root', 'user_approval', '{\"approved\": true}')", ())
            ) == (1,)
        else:
            append(conn, "root", event, payload)
    written = [(entry["type"], entry["payload"]) for entry in entries(conn, "root")]
    assert written[1:] == [(event, payload) for event, payload, _ in BLOCKING]
