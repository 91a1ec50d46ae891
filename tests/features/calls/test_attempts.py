"""Law: an attempt survives its workers and the loss of its rows, and gives up only where it must (6 to 8,
10, 11, 17, 30, 32, 40, 51).
"""

from __future__ import annotations

import pytest

from tests.features.calls.scene import MAKE_PROMISE, TTL_MS, Scene, refusal
from tests.support.clock import Clock

OTHER = "dml+exec://fake/g"


def tick(scene: Scene) -> None:
    """Let time do what it does."""
    while scene.one("select durable.tick_v1(500)")["more"]:
        pass


def give_up(scene: Scene) -> None:
    """Let what is due fail for good."""
    for document in scene.lease():
        assert scene.failed(document, "refused", retryable=False) == "failed_terminal"


def test_s06_the_newest_token_goes_into_the_next_poll(scene: Scene, clock: Clock) -> None:
    """Between two polls there is no lease, and nothing is recorded."""
    scene.begin()
    for token in ("t1", "t2", "t2", "t3"):
        (document,) = scene.lease()
        assert scene.pending(document, token, poll_after_ms=1000) == "poll_adapter"
        assert scene.one("select state from durable._tasks where queue = 'adapter:fake'") == "pending"
        assert scene.count("_objects where kind = 'exec'") == 0
        assert scene.lease() == []
        clock.advance(1000)
    (document,) = scene.lease()
    assert [each["token"] for each in scene.polls] == [None, "t1", "t2", "t2", "t3"]
    assert scene.done(document) == "completed_ok"
    assert scene.count("_call_polls where class = 'pending'") == 4


def test_s07_a_report_of_a_lost_lease_is_refused(scene: Scene, clock: Clock) -> None:
    """The worker that took over decides."""
    scene.begin()
    (stalled,) = scene.lease("A")
    clock.advance(TTL_MS)
    tick(scene)
    (taken,) = scene.lease("B")
    assert taken["version"] == stalled["version"] + 1
    assert refusal(scene.conn, scene.pending, stalled, "old").startswith("WF002")
    assert scene.pending(taken, "new", poll_after_ms=0) == "poll_adapter"
    assert refusal(scene.conn, scene.done, stalled).startswith("WF002")
    (document,) = scene.lease("B")
    assert document["token"] == "new"
    assert scene.done(document) == "completed_ok"
    assert scene.count("_objects where kind = 'exec'") == 1


def lose_leases(scene: Scene, clock: Clock, number: int) -> None:
    """Lose so many leases in a row: at first others poll at once, later after a growing pause."""
    for lost in range(number):
        (document,) = scene.lease("A")
        assert "lost" not in document
        clock.advance(TTL_MS)
        tick(scene)
        if lost:
            assert scene.lease("B") == []
            clock.advance(2_000 * 2 ** (lost - 1))


def test_lost_leases_use_the_budget(scene: Scene, clock: Clock) -> None:
    """A lease that is lost during a poll counts like a failure, until an answer comes. Once they are too many
    the next worker is asked not to poll."""
    answer = scene.begin(request={"retries": 2})
    lose_leases(scene, clock, 2)
    (document,) = scene.lease("B")
    assert "lost" not in document
    assert scene.pending(document, "t1", poll_after_ms=0) == "poll_adapter"
    lose_leases(scene, clock, 3)
    (document,) = scene.lease("B")
    assert document["lost"] == 3
    assert scene.failed(document, "retry_budget_exhausted", retryable=False) == "failed_terminal"
    assert scene.state(answer) == "failed_terminal"
    assert scene.begin()["generation"] == 1


def test_s08_a_worker_dies_between_done_and_pin(scene: Scene, clock: Clock) -> None:
    """Nothing is visible, a caller joins, and the next worker goes on with the stored outcome."""
    scene.begin()
    (document,) = scene.lease("A")
    assert scene.done(document, integrate=False) == "integrate_ok"
    assert scene.count("_pins") == 0
    assert scene.begin(scope="t")["at"] == "joined"
    clock.advance(TTL_MS)
    tick(scene)
    (document,) = scene.lease("B")
    assert (document["phase"], document["result"]) == ("integrate_ok", scene.dag(7).hex())
    assert scene.integrate(document) == "completed_ok"
    assert scene.count("_pins") == 2 and scene.count("_objects where kind = 'exec'") == 1
    assert len(scene.polls) == 1


def test_s10_the_budget_of_failures(scene: Scene, clock: Clock) -> None:
    """Three are tried again, the fourth gives up with the last cause; the next call is a new generation."""
    answer = scene.begin(request={"retries": 3})
    waits = []
    for number in range(4):
        (document,) = scene.lease()
        state = scene.failed(document, f"throttled{number}")
        if number < 3:
            assert (state, scene.state(answer)) == ("retry_wait", "retry_wait")
            waits.append(
                scene.one("select retry_at from durable._tasks where queue = 'adapter:fake'") - clock.now_ms
            )
            clock.advance(waits[-1])
    assert waits == [1000, 2000, 4000]
    assert scene.state(answer) == "failed_terminal"
    state, error = scene.promise(answer)
    assert (state, error["type"], error["data"]["code"]) == (
        "rejected",
        "CallAborted",
        "retry_budget_exhausted",
    )
    assert error["data"]["cause"] == {"code": "throttled3", "message": "throttled3!"}
    assert scene.count("_pins") == 0 and scene.count("_objects where kind = 'exec'") == 0
    assert scene.begin()["generation"] == 1


def test_s11_the_budget_counts_failures_in_a_row(scene: Scene, clock: Clock) -> None:
    """A good poll sets it back; the deadline ends what goes on for ever."""
    answer = scene.begin(request={"retries": 3}, timeout="10 minutes")
    while scene.state(answer) != "failed_terminal":
        for document in scene.lease():
            number = len(scene.polls) % 3
            scene.pending(document) if number == 0 else scene.failed(document)
        clock.advance(5_000)
        tick(scene)
    assert len(scene.polls) > 30
    assert scene.promise(answer)[0] == "rejected_timedout"


def test_s17_a_forced_step_runs_once(scene: Scene) -> None:
    """Its replay finds its own attempt; another step has its own."""
    scene.begin()
    scene.run()
    forced = scene.begin(cache="force", step_id="w.0")
    assert (forced["at"], forced["generation"]) == ("started", 1)
    again = scene.begin(cache="force", step_id="w.0")
    assert (again["at"], again["execution_key"]) == ("joined", forced["execution_key"])
    assert scene.run(8) == ["completed_ok"]
    again = scene.begin(cache="force", step_id="w.0")
    assert (again["at"], again["dag"]) == ("step_hit", scene.dag(8).hex())
    assert scene.lease() == []
    other = scene.begin(cache="force", step_id="w.1")
    assert (other["at"], other["generation"]) == ("started", 2)


def test_a_step_makes_one_call(scene: Scene) -> None:
    """The same step id for another call is refused."""
    scene.begin(step_id="w.0")
    assert refusal(scene.conn, scene.begin, [2], step_id="w.0").startswith("WF004")


def test_a_step_keeps_its_hit(scene: Scene) -> None:
    """Also after the scope has another result."""
    scene.begin()
    scene.run(7)
    assert scene.begin(step_id="w.0")["at"] == "pinned_hit"
    scene.begin(cache="force", step_id="w.1")
    scene.run(8)
    assert scene.begin(step_id="w.0")["dag"] == scene.dag(7).hex()
    assert scene.begin()["dag"] == scene.dag(8).hex()


def test_s30_the_deadline_passes_while_polling(scene: Scene, clock: Clock) -> None:
    """The late report is refused, the row closed, its job cancelled; the next call starts again."""
    answer = scene.begin(timeout="1 minute")
    (document,) = scene.lease()
    scene.pending(document, "job-1", poll_after_ms=59_000)
    clock.advance(59_000)
    (document,) = scene.lease()
    clock.advance(1_000)
    assert refusal(scene.conn, scene.done, document).startswith("WF002")
    tick(scene)
    assert scene.promise(answer)[0] == "rejected_timedout"
    assert refusal(scene.conn, scene.done, document).startswith("WF002")
    assert scene.begin()["generation"] == 1
    assert scene.one("select durable.call_sweep_v1()")["closed"] == 1
    error = scene.one("select error from durable.call_attempts where generation = 0")
    assert error["data"]["code"] == "deadline"
    cancels = [each for each in scene.lease() if each["op"] == "cancel"]
    assert [each["token"] for each in cancels] == ["job-1"]
    assert [each for each in scene.lease() if each["op"] == "cancel"] == []


def test_s32_a_caller_that_stops_waiting_changes_nothing(scene: Scene) -> None:
    """A later call joins the same attempt."""
    first = scene.begin()
    later = scene.begin()
    assert (later["at"], later["promise"]) == ("joined", first["promise"])


def test_s40_the_key_survives_the_loss_of_all_attempts(scene: Scene) -> None:
    """After the restore of an old backup the same call has the same key, so its claim is followed."""
    answer = scene.begin()
    scene.lease()
    claim = scene.one("select durable.claim_acquire(%s, 'o', 60000)", bytes.fromhex(answer["execution_key"]))
    key = bytes.fromhex(answer["execution_key"])
    scene.one("select durable.claim_submitted(%s, %s, 'batch', 'job-1')", key, claim["version"])
    for table in ("_calls", "_call_attempts", "_call_waiters", "_call_polls"):
        scene.conn.execute(f"delete from durable.{table}".encode())
    scene.conn.execute("delete from durable._tasks where id = %s", (answer["promise"],))
    scene.conn.execute("delete from durable._promises where id = %s", (answer["promise"],))
    again = scene.begin()
    assert (again["at"], again["execution_key"]) == ("started", answer["execution_key"])
    claim = scene.one("select durable.claim_acquire(%s, 'p', 60000)", key)
    assert (claim["role"], claim["job"]) == ("follower", "job-1")


def test_s51_a_given_up_step_stays_so(scene: Scene) -> None:
    """Its replay starts nothing; the next step starts the next generation."""
    scene.begin(step_id="w.0")
    give_up(scene)
    for _ in range(2):
        answer = scene.begin(step_id="w.0")
        assert (answer["at"], answer["error"]["data"]["code"]) == ("aborted", "refused")
    assert scene.lease() == []
    answer = scene.begin(step_id="w.1")
    assert (answer["at"], answer["generation"]) == ("started", 1)


# -- what is no attempt


def test_a_promise_for_an_adapter_is_no_attempt(scene: Scene) -> None:
    """One that was made under a reserved id, past the doors that refuse it: no worker gets it, nor does it
    take the place of an attempt."""
    make = MAKE_PROMISE.replace('"resonate:external": "true"', '"resonate:target": "poll://any@adapter:fake"')
    with scene.conn.transaction(force_rollback=True):
        assert scene.one(make, "call:" + "ab" * 32) is True
        assert scene.lease() == []
        answer = scene.begin()
        (document,) = scene.lease(most=1)
        assert document["execution_key"] == answer["execution_key"]
        assert scene.count("_tasks where state = 'pending'") == 1


@pytest.mark.parametrize("op", ["poll", "cancel"])
def test_an_attempt_without_a_document_is_left_out(scene: Scene, op: str) -> None:
    """Its call was deleted by hand. The other one is polled, or cancelled, as ever."""
    with scene.conn.transaction(force_rollback=True):
        broken, answer = scene.begin([1]), scene.begin([2])
        for document in scene.lease():
            scene.pending(document, "t", poll_after_ms=0)
        for each in (broken, answer) if op == "cancel" else ():
            scene.one("select durable.call_cancel('s', %s)", bytes.fromhex(each["node"]))
        key = scene.one(
            "select value_key from durable._call_attempts order by execution_key = %s desc",
            bytes.fromhex(broken["execution_key"]),
        )
        scene.conn.execute("delete from durable._calls where value_key = %s", (key,))
        assert [(each["op"], each["execution_key"]) for each in scene.lease()] == [
            (op, answer["execution_key"])
        ]
