"""Law: people and workers can release, wake, cancel, retry and invalidate (scenarios 16, 24, 31, 41)."""

from __future__ import annotations

from tests.calls.scene import Scene
from tests.support.clock import Clock

OTHER = "dml+exec://fake/g"


def tick(scene: Scene) -> None:
    """Let time do what it does."""
    while scene.one("select durable.tick_v1(500)")["more"]:
        pass


def test_s16_a_retry_replaces_a_failed_result(scene: Scene, clock: Clock) -> None:
    """Both executions stay, and the log has both pins."""
    answer = scene.begin()
    node = bytes.fromhex(answer["node"])
    scene.run({"message": "no"}, outcome="error")
    clock.advance(1)
    again = scene.one("select durable.call_retry('s', %s)", node)
    assert (again["at"], again["generation"]) == ("started", 1)
    assert scene.run(7) == ["completed_ok"]
    assert scene.begin()["status"] == "ok"
    assert scene.count("_objects where kind = 'exec'") == 2 and scene.count("_call_attempts") == 2
    logged = scene.all("select version, prev_exec is null from durable._pin_log order by id")
    assert logged == [(1, True), (2, False)]
    states = scene.all("select state from durable.call_history(%s)", node)
    assert states == [("completed_error",), ("completed_ok",)]


def test_a_retry_joins_what_is_under_way(scene: Scene) -> None:
    """Two people who retry at once get one run."""
    node = bytes.fromhex(scene.begin()["node"])
    scene.run({"message": "no"}, outcome="error")
    answers = [scene.one("select durable.call_retry('s', %s)", node)["at"] for _ in range(2)]
    assert answers == ["started", "joined"]
    assert scene.run() == ["completed_ok"]


def test_s24_another_worker_runs_what_one_cannot(scene: Scene, clock: Clock) -> None:
    """A release counts as nothing."""
    answer = scene.begin()
    (document,) = scene.lease("A")
    key, version = bytes.fromhex(document["execution_key"]), document["version"]
    assert scene.one("select durable.call_release_v1(%s, %s, 'not_served')", key, version) == "released"
    assert scene.all("select worker from durable._adapters") == []
    assert scene.one("select failures from durable._call_attempts") == 0
    (document,) = scene.lease("B")
    assert scene.done(document) == "completed_ok"
    assert scene.state(answer) == "completed_ok"


def test_s24_an_adapter_that_nobody_serves(scene: Scene, clock: Clock) -> None:
    """After the grace time the attempt is given up, and the error lists what is served."""
    answer = scene.begin()
    scene.lease("A", ["other"])
    clock.advance(599_000)
    scene.lease("A", ["other"])
    assert scene.one("select durable.call_sweep_v1()") == {"closed": 0, "adapter_not_found": 0}
    clock.advance(1_000)
    assert scene.one("select durable.call_sweep_v1()") == {"closed": 0, "adapter_not_found": 1}
    state, error = scene.promise(answer)
    assert (state, error["data"]["code"]) == ("rejected", "adapter_not_found")
    assert "other" in error["message"]
    assert scene.begin()["generation"] == 1


def test_s31_the_last_waiter_cancels(scene: Scene) -> None:
    """With another one left the attempt goes on."""
    answer = scene.begin()
    scene.begin(scope="t")
    node = bytes.fromhex(answer["node"])
    scene.pending(scene.lease()[0], "job-1", poll_after_ms=0)
    assert scene.one("select durable.call_cancel('s', %s)", node) == "left"
    assert scene.promise(answer)[0] == "pending"
    assert scene.one("select durable.call_cancel('t', %s)", node) == "cancelled"
    assert scene.promise(answer)[0] == "rejected_canceled"
    (document,) = scene.lease()
    assert (document["op"], document["token"]) == ("cancel", "job-1")
    assert scene.one("select durable.call_cancel('t', %s)", node) == "not_running"
    assert scene.begin()["generation"] == 1


def test_s41_a_wake_polls_at_once(scene: Scene, clock: Clock) -> None:
    """The time that it would have waited for is harmless; a wake during a poll is not lost."""
    answer = scene.begin()
    key = bytes.fromhex(answer["execution_key"])
    scene.pending(scene.lease()[0], "t1", poll_after_ms=3_600_000)
    assert scene.lease() == []
    assert scene.one("select durable.call_wake(%s)", key) is True
    (document,) = scene.lease()
    assert scene.one("select durable.call_wake(%s)", key) is True
    scene.pending(document, "t2", poll_after_ms=3_600_000)
    (document,) = scene.lease()
    scene.done(document)
    assert scene.one("select durable.call_wake(%s)", key) is False
    clock.advance(3_600_000)
    tick(scene)
    assert scene.lease() == []


def test_an_invalidated_result_is_not_shared(scene: Scene) -> None:
    """The next scope runs, also while an attempt from before goes on; pins stay."""
    scene.begin()
    scene.run(7)
    assert scene.one("select durable.call_invalidate(function => 'dml+exec://fake/f')") == 1
    assert scene.begin(scope="s")["at"] == "pinned_hit"
    assert scene.begin(scope="t")["at"] == "started"
    assert scene.one("select durable.call_invalidate('dml+exec://fake/f')") == 1
    assert scene.begin(scope="u")["at"] == "started"
    assert scene.run(8) == ["completed_ok", "completed_ok"]
    assert scene.one("select durable.call_invalidate('dml+exec://fake/none')") == 0
