"""Law: a pin is the later forced result, or the first; pins of old inputs are listed (18, 33, 52)."""

from __future__ import annotations

from tests.features.calls.scene import Scene, refusal

OTHER = "dml+exec://fake/g"


def test_s33_another_result_of_an_input_makes_a_pin_stale(scene: Scene) -> None:
    """It is still served, listed as stale, and a forced run has a key of its own."""
    inner = bytes.fromhex(scene.begin()["node"])
    scene.run(7)
    outer = scene.begin([inner], function=OTHER)
    scene.run("of 7")
    assert scene.count("stale_pins") == 0
    scene.begin(cache="force", step_id="w.0")
    scene.run(8)
    hit = scene.begin([inner], function=OTHER)
    assert (hit["at"], hit["dag"]) == ("pinned_hit", scene.dag("of 7").hex())
    stale = scene.all("select scope, node, input_node from durable.stale_pins")
    assert stale == [("s", outer["node"], inner.hex())]
    forced = scene.begin([inner], function=OTHER, cache="force", step_id="w.1")
    assert (forced["at"], forced["generation"]) == ("started", 0)
    scene.run("of 8")
    assert scene.count("stale_pins") == 0
    assert scene.begin([inner], function=OTHER)["dag"] == scene.dag("of 8").hex()


def test_s52_forced_steps_keep_their_own_results(scene: Scene) -> None:
    """They end in the other order, and the pin is the later one."""
    for step in ("w.0", "w.1"):
        scene.begin(cache="force", step_id=step)
    documents = {each["generation"]: each for each in scene.lease()}
    scene.done(documents[1], "second")
    scene.done(documents[0], "first")
    for step, value in (("w.0", "first"), ("w.1", "second")):
        answer = scene.begin(cache="force", step_id=step)
        assert (answer["at"], answer["dag"]) == ("step_hit", scene.dag(value).hex())
    assert scene.begin()["dag"] == scene.dag("first").hex()


def test_s18_the_same_result_is_the_same_execution(scene: Scene) -> None:
    """Two attempts, one record, one pin."""
    scene.begin()
    scene.run(7)
    scene.begin(cache="force", step_id="w.0")
    scene.run(7)
    assert scene.count("_call_attempts where exec_id is not null") == 2
    assert scene.count("_objects where kind = 'exec'") == 1
    assert scene.one("select version from durable._pins") == 1


def test_s42_an_excised_result(scene: Scene) -> None:
    """Elsewhere it is a miss; in the scope that pinned it an error, which a retry mends."""
    answer = scene.begin()
    scene.run(7)
    scene.one("select durable.object_excise(%s, 'a secret')", scene.dag(7))
    assert scene.begin(scope="t")["at"] == "started"
    scene.run(8)
    assert refusal(scene.conn, scene.begin).startswith("WF015")
    again = scene.one("select durable.call_retry('s', %s)", bytes.fromhex(answer["node"]))
    assert again["at"] == "started"
    scene.run(9)
    assert scene.begin()["dag"] == scene.dag(9).hex()


def test_a_pin_is_set_by_hand(scene: Scene) -> None:
    """Only where the scope has what the caller expects; an old result can be put back."""
    node = bytes.fromhex(scene.begin()["node"])
    scene.run(7)
    scene.begin(cache="force", step_id="w.0")
    scene.run(8)
    newer, older = (
        bytes(row[0]) for row in scene.all("select exec_id from durable._pin_log order by version desc")
    )
    set_pin = "select durable.pin_set('s', %s, %s, %s)"
    assert scene.one(set_pin, node, older, None) is False
    assert scene.one(set_pin, node, older, older) is False
    assert scene.one(set_pin, node, older, newer) is True
    assert scene.begin()["dag"] == scene.dag(7).hex()
    assert scene.one(set_pin, node, older, older) is True
    assert scene.one("select max(version) from durable._pin_log") == 3
    assert scene.one("select durable.pin_set('t', %s, %s)", node, older) is True
    assert refusal(scene.conn, scene.one, set_pin, node, node, older).startswith("WF001")
    assert refusal(scene.conn, scene.one, set_pin, scene.literal(1), older, None).startswith("WF004")


def test_a_scope_that_was_dropped_begins_again(scene: Scene) -> None:
    """Its new pins are no conflict with its old history."""
    scene.begin()
    scene.run()
    scene.one("select durable.scope_drop('s')")
    scene.scope("s")
    assert scene.begin()["at"] == "shared_hit"
