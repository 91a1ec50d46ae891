"""Law: people and workers can release, wake, cancel, retry and invalidate (scenarios 16, 24, 31, 41)."""

from __future__ import annotations

from tests.features.calls.scene import Scene
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


CANCEL = "select durable.call_cancel('s', %s)"
LEAVE = "select durable.call_cancel('s', %s, %s)"


def test_s31_a_step_ends_only_its_own_wait(scene: Scene) -> None:
    """Two runs call the same node in one scope: the attempt ends with the wait of the last step."""
    answers = [scene.begin(step_id=step) for step in ("run1.1", "run2.1")]
    node = bytes.fromhex(answers[0]["node"])
    assert [answer["at"] for answer in answers] == ["started", "joined"]
    assert scene.one(LEAVE, node, "run1.1") == "left"
    assert [scene.one(LEAVE, node, step) for step in ("run1.1", "run3.1")] == ["not_running"] * 2
    assert scene.promise(answers[0])[0] == "pending"
    # a step that asks again waits again
    assert scene.begin(step_id="run1.1")["at"] == "joined"
    assert scene.one(LEAVE, node, "run2.1") == "left"
    assert scene.one(LEAVE, node, "run1.1") == "cancelled"
    assert scene.promise(answers[0])[0] == "rejected_canceled"
    assert scene.begin(step_id="run2.1")["at"] == "aborted"


def test_s31_a_step_leaves_its_scope_last(scene: Scene) -> None:
    """While another scope waits the attempt goes on, and is not pinned where nothing waits any more."""
    scene.begin(step_id="run1.1")
    answer = scene.begin(scope="t", step_id="run2.1")
    node = bytes.fromhex(answer["node"])
    assert scene.one(LEAVE, node, "run2.1") == "not_running"
    assert scene.one(LEAVE, node, "run1.1") == "left"
    assert scene.run() == ["completed_ok"]
    assert scene.all("select scope from durable._pins") == [("t",)]


def test_s31_only_a_person_ends_the_wait_of_callers_without_a_step(scene: Scene) -> None:
    """A cancel that names no step ends all waits of the scope."""
    answer = scene.begin(step_id="run1.1")
    scene.begin()
    scene.begin(step_id="run2.1")
    node = bytes.fromhex(answer["node"])
    assert [scene.one(LEAVE, node, step) for step in ("run1.1", "run2.1")] == ["left", "left"]
    assert scene.promise(answer)[0] == "pending"
    assert scene.one("select durable.call_cancel('s', %s)", node) == "cancelled"
    assert scene.promise(answer)[0] == "rejected_canceled"


MADE = """
select a.deadline - a.created_at, c.salt, a.share, a.budget, durable.datum(q.refs[2]) #>> '{map,0,0,string}'
from durable._call_attempts a
join durable._calls c using (value_key) left join durable._objects q on q.id = a.request_id
order by a.generation desc limit 1"""


def test_a_retry_is_made_as_the_call_was(scene: Scene, clock: Clock) -> None:
    """Time limit, request, salt and sharing are those of the newest attempt, also after a cancel."""
    request = {"queue": "large", "retries": 5, "ignored": {"level": 1.0}}
    answer = scene.begin(timeout="1 hour", request=request, salt="x", share=False)
    node = bytes.fromhex(answer["node"])
    made = scene.all(MADE)
    assert made[0][:4] == (3_600_000, "x", False, 5)
    for end in (lambda: scene.run({"message": "no"}, outcome="error"), lambda: scene.one(CANCEL, node)):
        (document,) = scene.lease()
        assert document["request"] == request
        scene.pending(document, poll_after_ms=0)
        end()
        clock.advance(1_000)
        assert scene.one("select durable.call_retry('s', %s)", node)["at"] == "started"
        assert scene.all(MADE) == made
    scene.one(CANCEL, node)
    scene.lease()  # the cancellation
    scene.one("select durable.call_retry('s', %s, request => '{}')", node)
    (document,) = scene.lease()
    assert document["request"] == {} and document["deadline_ms"] is not None


def test_a_retry_forgets_a_request_that_was_excised(scene: Scene) -> None:
    """It is made without one."""
    node = bytes.fromhex(scene.begin(request={"queue": "large"})["node"])
    scene.run({"message": "no"}, outcome="error")
    scene.one("select durable.object_excise(request_id, 'a name') from durable._call_attempts")
    assert scene.one("select durable.call_retry('s', %s)", node)["at"] == "started"
    assert scene.lease()[0]["request"] is None


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
