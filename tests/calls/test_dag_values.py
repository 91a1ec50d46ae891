"""Law: a DAG has one value, for readers, for calls that import it and for the check of a result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.calls.scene import F, Scene, refusal
from tests.support.clock import Clock

G = "dml+exec://fake/g"


def dag_of(scene: Scene, root: bytes) -> bytes:
    """A DAG with this root."""
    return bytes(scene.one("select durable.dag_put(%s)", root))


def imported(scene: Scene, made: bytes) -> bytes:
    """The node that stands for a DAG."""
    return bytes(scene.one("select durable.node_import(%s)", made))


def read(scene: Scene, made: bytes) -> Any:
    """Its value as a reader has it, after a call that imports it was given the same."""
    value = scene.one("select durable.dag_value(%s)", made)
    begun = scene.begin([imported(scene, made)], function=G)
    given = scene.one("select durable.call_inputs_v1(%s)", bytes.fromhex(begun["execution_key"]))
    assert given == [value] and scene.one("select durable._result_flaw(%s)", made) is None
    return value


def refused(scene: Scene, made: bytes) -> tuple[str, str]:
    """How a reader and a call that imports it are refused; it is no result of a call either."""
    assert scene.one("select durable._result_flaw(%s)", made) is not None
    reader = refusal(scene.conn, scene.one, "select durable.dag_value(%s)", made)
    caller = refusal(scene.conn, scene.begin, [imported(scene, made)], function=G)
    return reader[:5], caller[:5]


@pytest.mark.parametrize("through", [0, 1, 3])
def test_a_root_that_is_a_value(scene: Scene, through: int) -> None:
    """Also through DAGs that it imports."""
    made = scene.dag(5)
    for _ in range(through):
        made = dag_of(scene, imported(scene, made))
    assert read(scene, made) == {"i64": 5}


def test_names_do_not_count(scene: Scene) -> None:
    """The root is the value, whatever nodes have names, and whatever those are."""
    names = {name: scene.literal(other).hex() for name, other in (("a", 1), ("root", 2), ("z", 3))}
    made = bytes(scene.one("select durable.dag_put(%s, %s)", scene.literal(5), json.dumps(names)))
    assert read(scene, made) == {"i64": 5}


def test_a_root_that_is_a_builtin(scene: Scene) -> None:
    """It has the datum of its exec."""
    built = scene.one("select durable.builtin('list/construct', %s)", [scene.literal(1), scene.literal(2)])
    assert read(scene, dag_of(scene, bytes.fromhex(built["node"]))) == {"list": [{"i64": 1}, {"i64": 2}]}


def test_a_root_that_is_a_call(scene: Scene, clock: Clock) -> None:
    """It has none until the call has a result, then the first one, also after a second run."""
    begun = scene.begin()
    made = dag_of(scene, bytes.fromhex(begun["node"]))
    assert refused(scene, made) == ("WF014", "WF014")
    scene.run({"message": "no"}, outcome="error")
    assert refused(scene, made) == ("WF014", "WF014")
    for number, value in enumerate((7, 8)):
        scene.begin(cache="force", step_id=f"w.{number}")
        assert scene.run(value) == ["completed_ok"]
        clock.advance(1)
    assert read(scene, made) == {"i64": 7}


def test_a_call_can_answer_with_a_dag_of_a_call(scene: Scene) -> None:
    """As a function does that ends with a call of another; its callers read the value of that."""
    inner = scene.begin([1], function=G)
    scene.run(9)
    scene.begin()
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(inner["node"]))
    assert (
        scene.report(document, **{"class": "done", "outcome": "ok", "result": made.hex()}) == "completed_ok"
    )
    answer = scene.one(
        'select durable.call_v1(%s, %s, \'{"scope": "t"}\', null, null)',
        F,
        json.dumps([{"datum": {"i64": 1}}]),
    )
    assert (answer["at"], answer["value"]) == ("shared_hit", {"i64": 9})


def test_a_root_whose_result_was_excised(scene: Scene) -> None:
    """Its readers are refused, and what it was the result of is a miss."""
    inner = scene.begin([1], function=G)
    scene.run(9)
    scene.begin()
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(inner["node"]))
    scene.report(document, **{"class": "done", "outcome": "ok", "result": made.hex()})
    scene.one("select durable.object_excise(%s, 'a secret')", scene.dag(9))
    assert refused(scene, made) == ("WF015", "WF014")
    assert scene.one("select durable.closure_status(%s)", made) == "excised"
    assert scene.begin(scope="t")["at"] == "started"


def test_a_call_that_answers_with_itself(scene: Scene) -> None:
    """Such a result has no value."""
    begun = scene.begin()
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(begun["node"]))
    report = {"class": "done", "outcome": "ok", "result": made.hex()}
    assert scene.report(document, **report) == "failed_terminal"
    assert scene.state(begun) == "failed_terminal"
