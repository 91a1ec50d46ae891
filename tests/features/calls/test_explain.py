"""Law: what a call would do, and why it would run, can be asked without running it."""

from __future__ import annotations

import json
from typing import Any

from tests.features.calls.scene import F, Scene
from tests.support.clock import Clock

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


def why(scene: Scene, value: object, **options: object) -> dict[str, Any]:
    """Why a call of that value would run."""
    named = {"scope": "s", "function": F, "inputs": [scene.literal(value)], **options}
    text = ", ".join(f"{name} => %s" for name in named)
    answer: dict[str, Any] = scene.one(f"select durable.explain_miss({text})", *named.values())
    return answer


def test_a_miss_names_the_nearest_call_down_to_the_datum(scene: Scene) -> None:
    """The path leads to the value that differs."""
    scene.begin([{"rows": [1, 2, 3], "name": "a"}])
    scene.begin([{"rows": [9], "name": "b"}])
    scene.run()
    answer = why(scene, {"rows": [1, 5, 3], "name": "a"})
    assert (answer["at"], answer["reason"]) == ("started", "never called with these values")
    assert answer["nearest"]["differences"] == [
        {"what": "input 1", "path": '["rows"][1]', "recorded": {"i64": 2}, "asked": {"i64": 5}}
    ]
    assert scene.count("_call_attempts") == 2


def test_a_miss_for_want_of_an_input(scene: Scene) -> None:
    """An input that was never called in the scope is the reason, and no error."""
    node = bytes.fromhex(scene.begin([1], scope="t")["node"])
    answer = why(scene, None, inputs=[node])
    assert (answer["at"], answer["nearest"]) == ("started", None)
    assert "it was never called in this scope" in answer["reason"]
    assert scene.count("_call_attempts") == 1


def test_a_miss_names_function_and_salt(scene: Scene) -> None:
    """Options of the URI and the salt are parts of the key."""
    scene.begin([1], function=F + "?v=1")
    scene.run()
    answer = why(scene, 1, function=F + "?v=2", salt="x")
    assert answer["nearest"]["differences"] == [
        {"what": "function", "recorded": F + "?v=1", "asked": F + "?v=2"},
        {"what": "salt", "recorded": "", "asked": "x"},
    ]
    assert why(scene, 1, function=OTHER)["nearest"] is None


def test_reasons_of_a_miss(scene: Scene, clock: Clock) -> None:
    """A call with these values was made, and its result does not count."""
    scene.begin([1], scope="t")
    assert why(scene, 1)["at"] == "joined"
    scene.failed(scene.lease()[0], "refused", retryable=False)
    assert why(scene, 1)["reason"] == "the last attempt was given up: refused"
    scene.begin([1], scope="t")
    scene.run({"message": "no"}, outcome="error")
    assert why(scene, 1)["reason"] == "its last result is a failure, which is not shared"
    scene.begin([2], scope="t")
    scene.run()
    assert why(scene, 2)["at"] == "shared_hit"
    assert why(scene, 2, scope="t")["at"] == "pinned_hit"
    assert why(scene, 2, cache="scope")["reason"] == "results of other scopes are not asked for"
    clock.advance(60_000)
    assert why(scene, 2, max_age="30 s")["reason"] == "its result is too old"
    scene.one("select durable.call_invalidate(%s)", F)
    assert why(scene, 2)["reason"] == "its results were invalidated"
