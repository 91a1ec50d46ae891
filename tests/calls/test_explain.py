"""Law: what a call would do, and why it would run, can be asked without running it."""

from __future__ import annotations

import json

from tests.calls.scene import F, Scene

OTHER = "dml+exec://fake/g"


def test_a_plan_starts_nothing(scene: Scene) -> None:
    """Three hits, one of them shared, a join, and two runs, of which one waits for its input."""
    for number in range(2):
        scene.begin([number])
    scene.run()
    scene.begin([2], scope="t")
    scene.run()
    running = scene.begin([3])
    nodes = [scene.literal(number).hex() for number in range(5)]
    calls = [{"function": F, "inputs": [node]} for node in nodes]
    calls.append({"function": OTHER, "inputs": [running["node"]]})
    before = scene.count("_call_attempts")
    planned = scene.all(
        "select place, at, reason from durable.call_plan('s', %s) order by place", json.dumps(calls)
    )
    assert [at for _, at, _ in planned] == [
        *("pinned_hit", "pinned_hit", "shared_hit", "joined", "started", "started")
    ]
    assert "running" in planned[-1][2]
    assert scene.count("_call_attempts") == before


def test_the_history_of_a_call(scene: Scene) -> None:
    """Every attempt, with its end and the scopes that waited."""
    node = bytes.fromhex(scene.begin()["node"])
    scene.begin(scope="t")
    scene.run({"message": "no"}, outcome="error")
    scene.one("select durable.call_retry('t', %s)", node)
    (document,) = scene.lease()
    scene.failed(document, "refused", retryable=False)
    rows = scene.all(
        "select generation, state, scopes, polls, error #>> '{data,code}' from durable.call_history(%s)", node
    )
    assert rows == [
        (0, "completed_error", ["s", "t"], 1, None),
        (1, "failed_terminal", ["t"], 1, "refused"),
    ]
