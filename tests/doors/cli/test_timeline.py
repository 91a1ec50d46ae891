"""How the events of a journal read, one line for each thing that happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from pyengine.doors.admin import queries
from pyengine.doors.cli.display import timeline

BEGAN = datetime(2025, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of the view."""

    seq: int
    event: str
    child: int | None = None
    name: str | None = None
    payload: Any = None
    attempt: int | None = None
    at: datetime = BEGAN


def told(*events: tuple[str, int | None, str | None, Any]) -> list[str]:
    """The lines of some events that happened one after the other."""
    made = [
        Event(seq=n, event=kind, child=child, name=name, payload=payload, at=BEGAN + timedelta(seconds=n))
        for n, (kind, child, name, payload) in enumerate(events)
    ]
    return [f"{line.text} {line.value}".strip() for line in timeline.lines(made)]


def test_signals_and_join_sets_are_readable() -> None:
    """Signals have their names and payloads, members of join sets the number of their set."""
    member = {"join_set_id": "a.1", "promise_id": "a.2"}
    assert told(
        ("SignalDelivered", None, "go", {"signal_name": "go", "payload": {"ok": True}, "delivery_id": 1}),
        ("SignalReceived", 0, "go", {"signal_name": "go", "payload": {"ok": True}, "delivery_id": 1}),
        ("JoinSetCreated", 1, None, {"join_set_id": "a.1"}),
        ("InvokeScheduled", 2, "ship", {"kind": "Function", "input": [1]}),
        ("JoinSetSubmitted", 2, None, member),
        ("JoinSetAwaited", 2, None, member | {"result": 1}),
    ) == [
        'signal go came {"ok": true}',
        'signal go [0] received {"ok": true}',
        "join set [1]",
        "child run ship [2] started [1]",
        "child run ship [2] put into join set [1]",
        "child run ship [2] taken from join set [1]",
    ]


def test_a_timeout_is_named_by_its_signal() -> None:
    """The timer of a receive says which signal it waits for; a sleep has no name."""
    week = {"duration": 7 * 86_400_000, "fire_at": 0}
    assert told(
        ("TimerScheduled", 3, "approve", week),
        ("TimerScheduled", 4, None, week),
        ("TimerFired", 3, None, None),
        ("TimerFired", 4, None, None),
    ) == [
        "timeout of signal approve [3] for 7d 0h",
        "sleep [4] for 7d 0h",
        "timeout of signal approve [3] over",
        "sleep [4] over",
    ]


def test_calls_are_named_and_marked() -> None:
    """A call that had a result is a hit, one that waits for somebody's attempt has joined it, else it ran."""
    uri = "dml+exec://batch/train"
    begun = {"node": "ab" * 32, "promise": "call:1", "function": uri, "status": None}
    hit = {
        "node": "cd" * 32,
        "promise": "call:2",
        "function": uri + "?source=1",
        "name": "fit",
        "status": "ok",
    }
    assert told(
        ("InvokeScheduled", 0, "durable.call_v1", {"kind": "Local"}),
        ("InvokeCompleted", 0, "durable.call_v1", {"result": begun | {"at": "started"}}),
        ("InvokeScheduled", 1, "call:1", {"kind": "External"}),
        ("InvokeCompleted", 2, "durable.call_result_v1", {"result": begun | {"status": "error"}}),
        ("InvokeCompleted", 3, "durable.call_v1", {"result": begun | {"at": "joined"}}),
        ("InvokeCompleted", 4, "durable.call_v1", {"result": hit | {"at": "shared_hit"}}),
        ("InvokeCompleted", 5, "durable.call_value_v1", {"result": {"i64": 1}}),
        ("InvokeCompleted", 6, "durable.call_v1", {"error": {"type": "NoRoute", "message": "x"}}),
    ) == [
        "call batch/train [0] started",
        "call batch/train [0] ran abababababab",
        "attempt of call batch/train [1] started",
        "result of call batch/train [2] error abababababab error",
        "call batch/train [3] joined abababababab",
        "call fit [4] hit cdcdcdcdcdcd ok",
        'value of a call [5] done {"i64": 1}',
        "call [6] failed NoRoute: x",
    ]


def test_waits_and_captured_values() -> None:
    """A wait names the numbers and whether all or any of them end it; captured values are shown."""
    assert told(
        ("ExecutionAwaiting", None, None, {"waiting_on": ["a.b.3"], "kind": {"tag": "Single"}}),
        ("ExecutionAwaiting", None, None, {"waiting_on": ["a.1", "a.2"], "kind": {"tag": "All"}}),
        ("ExecutionAwaiting", None, None, {"waiting_on": ["a.4"], "kind": {"tag": "Signal", "name": "go"}}),
        ("TimeRecorded", 5, "now", {"time": 17}),
        ("RandomGenerated", 6, "random", {"value": 0.5}),
        ("CancelRequested", None, None, {"reason": "late"}),
    ) == [
        "waits for [3]",
        "waits for all of [1], [2]",
        "waits for signal go [4]",
        "time [5] 17",
        "random value [6] 0.5",
        'cancel requested {"reason": "late"}',
    ]


def test_the_view_has_the_columns_of_lines(conn: psycopg.Connection[Any], player: Any) -> None:
    """What the database answers reads the same way: a wait for a child, and a signal."""
    conn.execute("select durable.start('order', '[1]', id => 'a')")
    (task,) = player.claim("order")
    commands = [
        {"do": "promise", "child": 0, "name": "go"},
        {"do": "time", "child": 1, "name": "now", "value": "17"},
    ]
    player.report(task, commands=commands)
    player.report(task, end={"do": "suspend", "on": [0], "kind": "single"})
    conn.execute("select durable.signal('a', 'ping', '[1]')")
    lines = [f"{line.text} {line.value}".strip() for line in timeline.lines(queries.events(conn, "a"))]
    assert lines == [
        "started with [1]",
        "promise go [0] started",
        "time [1] 17",
        "waits for [0]",
        "signal ping came [1]",
    ]
