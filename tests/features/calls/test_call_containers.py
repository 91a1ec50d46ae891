"""Law: a list, set or map that holds calls is the builtin that constructs it, so a result can be followed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyengine.features.calls.inputs import NodeSource, encode_input, pending_nodes, resolved_input
from tests.features.calls.scene import F, Scene, refusal

G = "dml+exec://fake/g"
CALL = 'select durable.call_v1(%s, %s, \'{"scope": "s"}\', null, null)'


class Ended(NodeSource):
    """A call that has ended.

    Args:
        node: id of its node.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    @property
    def node(self) -> str:
        """Its id."""
        return self._node

    def done(self) -> bool:
        """It has."""
        return True

    async def settled(self) -> None:
        """Nothing to wait for."""


def called(scene: Scene, number: int, value: Any) -> Ended:
    """A call that gave a value."""
    node = scene.begin([number])["node"]
    scene.run(value)
    return Ended(node)


def ask(scene: Scene, *values: Any) -> dict[str, Any]:
    """Call with Python values, as clients do."""
    inputs = json.dumps([resolved_input(encode_input(value, "input")) for value in values])
    answer: dict[str, Any] = scene.one(CALL, G, inputs)
    return answer


def read(scene: Scene, answer: dict[str, Any]) -> Any:
    """The values that the adapter is given."""
    return scene.one("select durable.call_inputs_v1(%s)", bytes.fromhex(answer["execution_key"]))


def shape(scene: Scene, node: bytes) -> Any:
    """A node as function and inputs, to its literals."""
    found = scene.one("select durable._node_json(%s)", node)
    if "inputs" not in found:
        return found["value"]
    name = found.get("builtin") or found.get("call")
    return (name, *(shape(scene, bytes.fromhex(each)) for each in found["inputs"]))


def test_a_container_keeps_the_way_back(scene: Scene) -> None:
    """To the calls within, at any depth; the value is what it always was."""
    one = called(scene, 1, "a")
    answer = ask(scene, [one, [2, {"k": one}], [3]])
    assert read(scene, answer) == [
        {
            "list": [
                {"string": "a"},
                {"list": [{"i64": 2}, {"map": [[{"string": "k"}, {"string": "a"}]]}]},
                {"list": [{"i64": 3}]},
            ]
        }
    ]
    _, outer = shape(scene, bytes.fromhex(answer["node"]))
    inner = ("dml://map/construct", "k", (F, 1))
    assert outer == ("dml://list/construct", (F, 1), ("dml://list/construct", 2, inner), [3])
    assert scene.count("_pins where scope = 's'") == 4
    assert ask(scene, [one, [2, {"k": one}], [3]])["at"] == "joined"


def test_a_container_without_calls_is_a_literal(scene: Scene) -> None:
    """With the id that it always had, and one value key with a builtin of the same value."""
    one = called(scene, 1, "a")
    plain, built = ask(scene, ["a", 2]), ask(scene, [one, 2])
    assert plain["node"] == scene.begin([["a", 2]], function=G)["node"]
    assert built["node"] != plain["node"] and built["execution_key"] == plain["execution_key"]
    assert built["at"] == "joined"


def test_members_of_sets_and_maps_have_no_order(scene: Scene) -> None:
    """Neither in the identity of the node nor in the order in which they are awaited."""
    one, two = called(scene, 1, "a"), called(scene, 2, "b")
    assert ask(scene, {1, one, two})["node"] == ask(scene, {two, one, 1})["node"]
    assert ask(scene, {"x": one, "y": 2})["node"] == ask(scene, {"y": 2, "x": one})["node"]
    assert ask(scene, [one, two])["node"] != ask(scene, [two, one])["node"]
    members = [encode_input(given, "x") for given in ({"b", two, one, "a"}, {one, "a", "b", two})]
    assert [list(pending_nodes(each)) for each in members] == [[one, two], [one, two]]
    assert resolved_input(members[0]) == resolved_input(members[1])


def test_equal_members(scene: Scene) -> None:
    """A set of calls with one value has that value once; keys that are equal are refused."""
    one, two = called(scene, 1, "a"), called(scene, 2, "a")
    assert read(scene, ask(scene, {one, two, "b"}))[0]["set"].count({"string": "a"}) == 1
    twice = [{"map": [[{"string": "k"}, {"node": each.node}] for each in (one, two)]}]
    assert refusal(scene.conn, scene.one, CALL, G, json.dumps(twice)).startswith("WF014")


def test_another_result_of_a_member_is_another_value(scene: Scene) -> None:
    """The builtin follows what is pinned; the result of before stays pinned until it is run again."""
    one = called(scene, 1, "old")
    before = ask(scene, [one])
    scene.run("of old")
    scene.begin([1], cache="force", step_id="w.0")
    scene.run("new")
    hit = ask(scene, [one])
    assert (hit["at"], hit["value"]) == ("pinned_hit", {"string": "of old"})
    again = scene.one("select durable.call_retry('s', %s)", bytes.fromhex(before["node"]))
    assert again["at"] == "started" and read(scene, again) == [{"list": [{"string": "new"}]}]
    scene.run("of new")
    assert ask(scene, [one])["value"] == {"string": "of new"}
    assert scene.count("stale_pins") == 0


def test_another_scope_runs_the_builtin_for_itself(scene: Scene) -> None:
    """Once the calls within have results there."""
    one = called(scene, 1, "a")
    node = bytes.fromhex(ask(scene, [one])["node"])
    built = bytes(scene.one("select refs[2] from durable._objects where id = %s", node))
    assert refusal(scene.conn, scene.begin, [built], function=G, scope="t").startswith("WF014")
    assert scene.begin([1], scope="t")["at"] == "shared_hit"
    assert scene.begin([built], function=G, scope="t")["node"] == node.hex()


@pytest.mark.parametrize("given", [{}, {"list": 1}, {"set": {"a": 1}}, {"map": [1]}, [1], 1, None])
def test_a_malformed_input_is_refused(scene: Scene, given: Any) -> None:
    """Nothing is stored."""
    assert refusal(scene.conn, scene.one, CALL, G, json.dumps([given])).startswith("WF004")


def test_a_commit_of_a_container(scene: Scene) -> None:
    """Its root is the builtin, and its value can be read."""
    one = called(scene, 1, "a")
    root = json.dumps(resolved_input(encode_input([one, 2], "root")))
    commit = scene.one("select durable.call_commit_v1('s', %s, 'both')", root)
    tree = scene.one("select refs[1] from durable._objects where id = %s", bytes.fromhex(commit))
    made = scene.one("select refs[1] from durable._objects where id = %s", tree)
    assert scene.one("select durable.dag_value(%s, 's')", made) == {"list": [{"string": "a"}, {"i64": 2}]}
