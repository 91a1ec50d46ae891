"""The journal as people read it: the payloads of its events."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    broken,
    captured,
    done,
    report,
    take_turn,
    timer,
)


def test_payloads_of_events(conn: Connection, clock: Clock) -> None:
    """A logical event shows what happened: input, result, error, wait, instant."""
    held = begin_run(conn, "r", args='["in"]')
    commands = [timer(2, 70), captured(3, "0.25")]
    take_turn(conn, "W", report(held, outcomes=[done(0, '"out"'), broken(1)], commands=commands))
    ask(conn, ("select durable._settle_promise('r', 'resolved', '\"end\"', null)", ()))
    rows = conn.execute(
        "select event, payload, promise_id, name from durable.journal_events where id = 'r' order by seq"
    ).fetchall()
    seen = {(event, child): payload for event, payload, child, _ in rows}
    assert seen["ExecutionStarted", None]["input"] == ["in"]
    assert seen["InvokeCompleted", "r.0"] == {"result": "out"}
    assert seen["InvokeCompleted", "r.1"]["error"]["type"] == "Oops"
    assert seen["TimerScheduled", "r.2"] == {"duration": 70, "fire_at": clock.now_ms + 70}
    assert seen["RandomGenerated", "r.3"] == {"value": 0.25}
    assert seen["ExecutionCompleted", None] == {"result": "end"}
    assert {name for event, _, child, name in rows if child == "r.0" and event == "InvokeScheduled"} == {
        "step"
    }
