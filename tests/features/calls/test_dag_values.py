"""Law: a DAG has one value in a scope, for readers, calls that import it and the check of a result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.calls.scene import F, Scene, refusal
from tests.support.clock import Clock

G = "dml+exec://fake/g"
VALUE = "select durable.dag_value(%s, %s)"


def dag_of(scene: Scene, root: bytes) -> bytes:
    """A DAG with this root."""
    return bytes(scene.one("select durable.dag_put(%s)", root))


def done_with(made: bytes) -> dict[str, str]:
    """The report of a program that answers with a DAG."""
    return {"class": "done", "outcome": "ok", "result": made.hex()}


def plan_of(scene: Scene) -> str:
    """The plan of one call."""
    return json.dumps([{"function": F, "inputs": [scene.literal(1).hex()]}])


def imported(scene: Scene, made: bytes) -> bytes:
    """The node that stands for a DAG."""
    return bytes(scene.one("select durable.node_import(%s)", made))


def flaw(scene: Scene, made: bytes, scope: str) -> str | None:
    """Why it can be no result of a call of this scope."""
    with scene.conn.transaction(force_rollback=True):
        waiting = bytes.fromhex(scene.begin(["waiting"], scope=scope)["execution_key"])
        found: str | None = scene.one("select durable._result_flaw(%s, %s)", waiting, made)
    return found


def read(scene: Scene, made: bytes, scope: str = "s") -> Any:
    """Its value as a reader has it, after a call that imports it was given the same."""
    value = scene.one(VALUE, made, scope)
    begun = scene.begin([imported(scene, made)], function=G, scope=scope)
    given = scene.one("select durable.call_inputs_v1(%s)", bytes.fromhex(begun["execution_key"]))
    assert given == [value] and flaw(scene, made, scope) is None
    return value


def refused(scene: Scene, made: bytes, scope: str = "s") -> tuple[str, str]:
    """How a reader and a call that imports it are refused; it is no result of a call either."""
    assert flaw(scene, made, scope) is not None
    reader = refusal(scene.conn, scene.one, VALUE, made, scope)
    caller = refusal(scene.conn, scene.begin, [imported(scene, made)], function=G, scope=scope)
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
    """It has the datum that the scope has pinned."""
    built = scene.one(
        "select durable.builtin('list/construct', %s, 's')", [scene.literal(1), scene.literal(2)]
    )
    assert read(scene, dag_of(scene, bytes.fromhex(built["node"]))) == {"list": [{"i64": 1}, {"i64": 2}]}


def test_a_root_that_is_a_call(scene: Scene, clock: Clock) -> None:
    """It has none until the call has a result in the scope, then the one that is pinned."""
    begun = scene.begin()
    made = dag_of(scene, bytes.fromhex(begun["node"]))
    assert refused(scene, made) == ("WF014", "WF014")
    scene.run({"message": "no"}, outcome="error")
    assert refused(scene, made) == ("WF014", "WF014")
    for number, value in enumerate((7, 8)):
        scene.begin(cache="force", step_id=f"w.{number}")
        assert scene.run(value) == ["completed_ok"]
        clock.advance(1)
        assert scene.one(VALUE, made, "s") == {"i64": value}
    assert read(scene, made) == {"i64": 8}


def test_s48_a_private_result_is_read_in_its_scope_only(scene: Scene) -> None:
    """Neither a reader, nor a call that imports it, nor a program that answers with it gets it elsewhere."""
    private = scene.begin(share=False)
    made = dag_of(scene, bytes.fromhex(private["node"]))
    assert scene.run("SECRET") == ["completed_ok"]
    assert read(scene, made) == {"string": "SECRET"}
    assert refused(scene, made, "t") == ("WF014", "WF014")
    assert refusal(scene.conn, scene.one, "select durable.dag_value(%s)", made).startswith("WF014")
    scene.run()
    scene.begin([2], scope="t")
    (document,) = scene.lease()
    assert scene.report(document, **done_with(made)) == "failed_terminal"


def test_another_salt_is_another_result(scene: Scene) -> None:
    """The node of both is one, and each scope reads its own."""
    for scope in ("s", "t"):
        made = dag_of(scene, bytes.fromhex(scene.begin(scope=scope, salt=scope)["node"]))
        assert scene.run(scope) == ["completed_ok"]
    assert [read(scene, made, scope) for scope in ("s", "t")] == [{"string": "s"}, {"string": "t"}]


@pytest.mark.parametrize("other", [{"salt": "b"}, {"share": True}, {"max_age": "1 s"}])
def test_a_scope_has_one_result_of_a_node(scene: Scene, clock: Clock, other: dict[str, Any]) -> None:
    """Whatever salt, share and age a later call of the scope asks for; they count between scopes."""
    scene.begin(salt="a", share=False)
    assert scene.run("of a") == ["completed_ok"]
    clock.advance(5_000)
    assert scene.begin(**{"salt": "a", "share": False, **other})["at"] == "pinned_hit"
    assert scene.begin(**{"salt": "a", "share": False, "scope": "t", **other})["at"] == "started"


def test_s45_an_exec_of_an_adapter_counts_for_nothing(scene: Scene) -> None:
    """It comes as an object with a report, before the call that it claims has run, and stays an object."""
    victim = bytes(scene.one("select durable.node_call(%s, %s)", F, [scene.literal(5)]))
    made, forged = dag_of(scene, victim), scene.dag("FORGED")
    scene.begin(function=G)
    (document,) = scene.lease()
    execution = {"kind": "exec", "sub": "ok", "refs": [victim.hex(), forged.hex()]}
    execution["id"] = bytes(
        scene.one("select durable._object_id('exec', 'ok', null, %s, '{}')", [victim, forged])
    ).hex()
    report = {"class": "done", "outcome": "ok", "value": {"i64": 1}, "objects": [execution]}
    assert scene.report(document, **report) == "completed_ok"
    assert scene.count(f"_objects where id = '\\x{execution['id']}'") == 1
    assert refused(scene, made) == ("WF014", "WF014")
    scene.begin([5])
    assert scene.run("TRUE") == ["completed_ok"]
    assert read(scene, made) == {"string": "TRUE"}


def test_a_run_after_an_excision_gives_the_value_back(scene: Scene) -> None:
    """As the hint of the refusal says."""
    node = bytes.fromhex(scene.begin()["node"])
    made = dag_of(scene, node)
    scene.run("bad")
    scene.one("select durable.object_excise(%s, 'a secret')", scene.dag("bad"))
    assert refused(scene, made) == ("WF015", "WF014")
    scene.one("select durable.call_retry('s', %s)", node)
    assert scene.run("good") == ["completed_ok"]
    assert read(scene, made) == {"string": "good"}


def test_a_call_can_answer_with_a_dag_of_a_call(scene: Scene) -> None:
    """As a function that ends with a call of another. Scopes with a result of that call share it."""
    inner = scene.begin([1], function=G)
    scene.run(9)
    scene.begin()
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(inner["node"]))
    assert (
        scene.report(document, **{"class": "done", "outcome": "ok", "result": made.hex()}) == "completed_ok"
    )
    assert scene.one("select at from durable.call_plan('t', %s)", plan_of(scene)) == "started"
    scene.begin([1], function=G, scope="t")
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
    assert refusal(scene.conn, scene.begin).startswith("WF015")
    assert scene.begin(scope="t")["at"] == "started"


def test_a_scope_that_joined_and_cannot_read_the_result(scene: Scene) -> None:
    """The answer is a DAG of a call that the first scope has a result of, and the second one has not.

    Nothing is pinned there. Its step and its client are told to call again, which runs.
    """
    inner = scene.begin([1], function=G)
    scene.run(9)
    scene.begin(step_id="r.1")
    joined = scene.begin(scope="t", step_id="w.1")
    assert joined["at"] == "joined"
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(inner["node"]))
    assert scene.report(document, **done_with(made)) == "completed_ok"
    assert scene.one(
        "select array_agg(scope order by scope) from durable._pins where node_id = %s",
        bytes.fromhex(joined["node"]),
    ) == ["s"]
    result = "select durable.call_result_v1(%s, %s, %s)"
    ended = scene.one(result, joined["execution_key"], joined["node"], "t")
    assert (ended["status"], ended["error"]["code"]) == ("aborted", "result_unreadable")
    assert scene.one(result, joined["execution_key"], joined["node"], "s")["value"] == {"i64": 9}
    again = scene.begin(scope="t", step_id="w.1")
    assert (again["at"], again["error"]["data"]["code"]) == ("aborted", "result_unreadable")
    assert scene.begin(step_id="r.1")["at"] == "step_hit"
    assert scene.begin()["at"] == "pinned_hit" and scene.begin(scope="t")["at"] == "started"
    assert scene.run(10) == ["completed_ok"]
    found = scene.begin(scope="t")
    assert found["at"] == "pinned_hit" and bytes.fromhex(found["dag"]) == scene.dag(10)


def test_calls_that_answer_with_each_other(scene: Scene) -> None:
    """Once the pin of the inner one is replaced so, neither has a value; the next call runs."""
    one = dag_of(scene, bytes.fromhex(scene.begin()["node"]))
    scene.run(9)
    other = dag_of(scene, bytes.fromhex(scene.begin(function=G)["node"]))
    (document,) = scene.lease()
    assert scene.report(document, **done_with(one)) == "completed_ok"
    scene.begin(cache="force", step_id="w.1")
    (document,) = scene.lease()
    assert scene.report(document, **done_with(other)) == "completed_ok"
    assert refused(scene, one) == refused(scene, other) == ("WF014", "WF014")
    assert scene.begin()["at"] == "started" and scene.run(1) == ["completed_ok"]
    assert read(scene, other) == {"i64": 1}


def test_a_call_that_answers_with_itself(scene: Scene) -> None:
    """Such a result has no value."""
    begun = scene.begin()
    (document,) = scene.lease()
    made = dag_of(scene, bytes.fromhex(begun["node"]))
    report = {"class": "done", "outcome": "ok", "result": made.hex()}
    assert scene.report(document, **report) == "failed_terminal"
    assert scene.state(begun) == "failed_terminal"
