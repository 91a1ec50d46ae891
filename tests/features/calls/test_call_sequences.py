"""Law: no sequence of public calls makes a wrong pin, loses a waiter or leaves an attempt without an end.

Each test is the smallest case of a sequence that did, or could.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest

from tests.features.calls.scene import F, Scene, refusal
from tests.features.calls.test_call_races import scene_of, together
from tests.support.clock import Clock

G = "dml+exec://fake/g"


def other_node(scene: Scene, value: Any) -> bytes:
    """A node with the value of a literal, and another id."""
    return bytes(scene.one("select durable.node_import(%s)", scene.dag(value)))


def test_a_step_that_asks_again_after_its_scope_has_left(scene: Scene) -> None:
    """It waits again: its scope is pinned, with an execution of its own node."""
    scene.begin([1])
    node = other_node(scene, 1)
    joined = scene.begin([node], scope="t", step_id="w.0")
    assert scene.one("select durable.call_cancel('t', %s)", bytes.fromhex(joined["node"])) == "left"
    assert scene.begin([node], scope="t", step_id="w.0")["at"] == "joined"
    assert scene.run() == ["completed_ok"]
    hit = scene.begin([node], scope="t")
    assert hit["at"] == "pinned_hit" and hit["exec"] == scene.begin([node], scope="t", step_id="w.0")["exec"]


def test_the_same_result_of_other_inputs_is_not_stale(scene: Scene) -> None:
    """A forced run that comes out the same has used the new input; its pin says so, at the same version."""
    inner = bytes.fromhex(scene.begin([1])["node"])
    scene.run(7)
    outer = scene.begin([inner], function=G)
    scene.run("same")
    scene.begin([1], cache="force", step_id="w.0")
    scene.run(8)
    assert scene.count("stale_pins") == 1
    scene.one("select durable.call_retry('s', %s)", bytes.fromhex(outer["node"]))
    scene.run("same")
    assert scene.count("stale_pins") == 0
    node = bytes.fromhex(outer["node"])
    assert scene.one("select version from durable._pins where node_id = %s", node) == 1


def test_a_waiter_that_asks_again_has_the_inputs_of_now(scene: Scene) -> None:
    """Its input was run again with the same value while it waited."""
    inner = bytes.fromhex(scene.begin([1])["node"])
    scene.run(7, outcome="ok")
    scene.begin([inner], function=G)
    named = bytes(
        scene.one(
            "select durable.dag_put(%s, %s)", scene.literal(7), json.dumps({"step": scene.literal(3).hex()})
        )
    )
    scene.begin([1], cache="force", step_id="w.0")
    (document,) = [each for each in scene.lease() if each["function"] == F]
    scene.report(document, **{"class": "done", "outcome": "ok", "result": named.hex()})
    assert scene.begin([inner], function=G)["at"] == "joined"
    scene.conn.execute(
        "update durable._tasks set retry_at = 0, state = 'pending', pid = null, ttl = null,"
        " expires_at = null where state = 'acquired'"
    )
    assert scene.run("of 7") == ["completed_ok"]
    assert scene.count("stale_pins") == 0


def test_a_promise_that_is_resolved_by_hand(scene: Scene, clock: Clock) -> None:
    """It gives the attempt up: nothing is pinned, the next call runs, and no law is broken."""
    answer = scene.begin()
    (document,) = scene.lease()
    scene.one('select durable.resolve(%s, \'{"exec": "x"}\')', answer["promise"])
    assert scene.all("select * from durable.check()") == []
    assert refusal(scene.conn, scene.done, document)[:5] in ("WF002", "WF003")
    again = scene.begin()
    assert (again["at"], again["generation"]) == ("started", 1)
    scene.one("select durable.call_sweep_v1()")
    ended = scene.one("select durable.call_result_v1(%s, %s, 's')", answer["execution_key"], answer["node"])
    assert (ended["status"], ended["error"]["code"]) == ("aborted", "settled_by_hand")
    assert scene.count("_pins") == 0


def test_an_excised_result_that_comes_again(scene: Scene) -> None:
    """A retry that gives it again is given up, and one with another result mends the scope."""
    node = bytes.fromhex(scene.begin()["node"])
    scene.run(7)
    excised = scene.dag(7)
    scene.one("select durable.object_excise(%s, 'a secret')", excised)
    scene.one("select durable.call_retry('s', %s)", node)
    (document,) = scene.lease()
    report = {"class": "done", "outcome": "ok"}
    assert refusal(scene.conn, scene.report, document, **report, value={"i64": 7}).startswith("WF015")
    assert scene.report(document, **report, result=excised.hex()) == "failed_terminal"
    assert refusal(scene.conn, scene.begin).startswith("WF015")
    again = scene.one("select durable.call_retry('s', %s)", node)
    assert (again["at"], again["generation"]) == ("started", 2)
    assert scene.run(8) == ["completed_ok"]
    assert scene.begin()["dag"] == scene.dag(8).hex()


def test_one_step_of_two_sessions_makes_one_call(dsn: str, open_scene: Scene) -> None:
    """The second one is refused as a step that made another call, once the first has committed."""
    found: list[str] = []
    with psycopg.connect(dsn) as first, scene_of(dsn) as second:
        Scene(first).begin([1], cache="force", step_id="w.0")

        def other() -> None:
            found.append(refusal(second.conn, second.begin, [2], cache="force", step_id="w.0"))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.3)
        first.commit()
        thread.join()
    assert found[0].startswith("WF004"), found
    assert open_scene.count("_call_attempts") == 1


@pytest.mark.parametrize("rounds", [30])
def test_builtins_of_one_scope_are_pinned_in_one_order(dsn: str, open_scene: Scene, rounds: int) -> None:
    """Sessions that call with the same containers, in other orders and depths, do not stop each other."""
    scene = open_scene
    one, two = (bytes.fromhex(scene.begin([number])["node"]) for number in (1, 2))
    scene.run(7)

    def lists(order: int, number: int) -> list[dict[str, Any]]:
        a = {"list": [{"node": one.hex()}, {"datum": {"i64": number}}]}
        b = {"list": [{"node": two.hex()}, {"datum": {"i64": number}}]}
        nested = {"list": [a, b]}
        return [[a, b, nested], [nested, b, a], [b, nested], [a]][order]

    def caller(order: int) -> None:
        with scene_of(dsn) as session:
            for number in range(rounds):
                text = 'select durable.call_v1(%s, %s, \'{"scope": "s"}\', null, null)'
                session.one(text, f"{G}/{order}", json.dumps(lists(order, number)))

    together(*(lambda order=order: caller(order) for order in range(4)))  # type: ignore[misc]
    assert scene.count("_pins where scope = 's'") == 2 + 3 * rounds
