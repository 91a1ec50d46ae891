"""Law: a pin is the later forced result, or the first; pins of old inputs are listed (18, 33, 52)."""

from __future__ import annotations

from tests.calls.scene import Scene

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
