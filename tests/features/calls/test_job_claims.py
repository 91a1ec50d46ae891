"""Law: one orchestrator owns the job of a key, a takeover keeps it, the old owner is fenced (19 to 21)."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tests.features.calls.scene import MAKE_PROMISE, Scene, refusal
from tests.support.clock import Clock

KEY = bytes(range(32))


def acquire(scene: Scene, owner: str, ttl: int = 10_000) -> dict[str, Any]:
    """Ask for the claim."""
    answer: dict[str, Any] = scene.one("select durable.claim_acquire(%s, %s, %s)", KEY, owner, ttl)
    return answer


def test_s19_ten_race_and_one_owns(dsn: str, open_scene: Scene) -> None:
    """The others follow with the same submit token, and see the job once it is recorded."""
    scene = open_scene
    barrier = threading.Barrier(10)
    answers: list[dict[str, Any]] = []

    def race(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            barrier.wait()
            answers.append(acquire(Scene(conn), f"o{number}"))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["role"] for each in answers) == ["follower"] * 9 + ["owner"]
    assert {each["submit_token"] for each in answers} == {KEY.hex()}
    assert scene.one("select durable.claim_submitted(%s, 1, 'batch', 'job-1')", KEY) == "job-1"
    assert acquire(scene, "late")["job"] == "job-1"


def test_s20_a_stale_owner_is_taken_over(scene: Scene, clock: Clock) -> None:
    """The job is reused, and the old owner's writes are refused."""
    first = acquire(scene, "a")
    assert (first["role"], first["version"], first["took_over"]) == ("owner", 1, False)
    scene.one("select durable.claim_submitted(%s, 1, 'batch', 'job-1')", KEY)
    clock.advance(10_000)
    second = acquire(scene, "b")
    assert (second["role"], second["version"], second["took_over"], second["job"]) == (
        "owner",
        2,
        True,
        "job-1",
    )
    for write in (
        "select durable.claim_submitted(%s, 1, 'batch', 'job-2')",
        "select durable.claim_refresh(%s, 1)",
        "select durable.claim_release(%s, 1)",
        "select durable.claim_done(%s, 1, 'ok', sha256(''))",
    ):
        assert refusal(scene.conn, scene.one, write, KEY).startswith("WF002")
    assert acquire(scene, "a")["role"] == "follower"


def test_s20_a_takeover_after_the_sweep(scene: Scene, clock: Clock) -> None:
    """The tick that takes the lease away changes nothing for the next owner."""
    acquire(scene, "a")
    clock.advance(10_000)
    scene.one("select durable.tick_v1(100)")
    assert scene.one("select state from durable.claims") == "free"
    second = acquire(scene, "b")
    assert (second["role"], second["version"], second["took_over"]) == ("owner", 2, True)


def test_s21_the_successor_submits_with_the_same_token(scene: Scene, clock: Clock) -> None:
    """A backend that knows the token has one job."""
    jobs: dict[str, str] = {}

    def submit(token: str) -> str:
        return jobs.setdefault(token, f"job-{len(jobs)}")

    submit(acquire(scene, "a")["submit_token"])  # and dies before it records the job
    clock.advance(10_000)
    second = acquire(scene, "b")
    assert second["job"] is None
    job = submit(second["submit_token"])
    assert (
        scene.one("select durable.claim_submitted(%s, %s, 'batch', %s)", KEY, second["version"], job)
        == "job-0"
    )
    assert len(jobs) == 1


def test_the_owner_renews_and_counts(scene: Scene, clock: Clock) -> None:
    """The same owner may ask again; empty polls are counted in the claim."""
    acquire(scene, "a")
    clock.advance(9_000)
    again = acquire(scene, "a")
    assert (again["role"], again["version"]) == ("owner", 1)
    clock.advance(9_000)
    counts = [
        scene.one("select durable.claim_refresh(%s, 1, %s)", KEY, is_empty)
        for is_empty in (True, True, False, True)
    ]
    assert counts == [1, 2, 0, 1]
    clock.advance(9_000)
    assert acquire(scene, "b")["role"] == "follower"


def test_the_first_job_counts(scene: Scene, clock: Clock) -> None:
    """Whoever records another job, the owner or its successor, is answered the first one and uses that."""
    acquire(scene, "a")
    submitted = "select durable.claim_submitted(%s, %s, 'batch', %s)"
    assert scene.one(submitted, KEY, 1, "job-1") == "job-1"
    assert scene.one(submitted, KEY, 1, "job-2") == "job-1"
    clock.advance(10_000)
    acquire(scene, "b")
    assert scene.one(submitted, KEY, 2, "job-3") == "job-1"
    assert acquire(scene, "c")["job"] == "job-1"


def test_ten_race_for_a_stale_claim(dsn: str, open_scene: Scene) -> None:
    """One of them takes it over, at the next version; the others follow that one."""
    acquire(open_scene, "gone", 1)
    while open_scene.one("select expires_at > durable._now_ms() from durable._tasks"):
        pass
    barrier = threading.Barrier(10)
    answers: list[dict[str, Any]] = []

    def race(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            barrier.wait()
            answers.append(acquire(Scene(conn), f"o{number}", 60_000))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["role"] for each in answers) == ["follower"] * 9 + ["owner"]
    assert {each["version"] for each in answers} == {2}
    assert open_scene.one("select takeovers from durable._claims") == 1


def test_claims_of_other_keys_do_not_wait(dsn: str, open_scene: Scene) -> None:
    """While one session makes a claim and has not committed, another key is claimed at once."""
    with psycopg.connect(dsn) as conn:
        assert acquire(Scene(conn), "a")["role"] == "owner"
        open_scene.conn.execute("set lock_timeout = '1 s'")
        claim = "select durable.claim_acquire(%s, 'b', 60000)"
        assert open_scene.one(claim, bytes(32))["role"] == "owner"
        assert refusal(open_scene.conn, open_scene.one, claim, KEY).startswith("55P03")


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_claim_ends_with_either_outcome(scene: Scene, outcome: str) -> None:
    """A job that failed ends its claim like one that succeeded, and nobody submits it again."""
    acquire(scene, "a")
    scene.one("select durable.claim_done(%s, 1, %s, sha256('r'))", KEY, outcome)
    answer = acquire(scene, "b")
    assert (answer["role"], answer["value"]["outcome"]) == ("settled", outcome)


def test_a_settled_claim_answers_its_result(scene: Scene) -> None:
    """Everybody who asks later gets it."""
    acquire(scene, "a")
    scene.one("select durable.claim_done(%s, 1, 'ok', sha256('r'))", KEY)
    answer = acquire(scene, "b")
    assert (answer["role"], answer["value"]["outcome"], answer["version"]) == ("settled", "ok", None)
    assert scene.one("select state from durable.claims") == "settled"


def test_a_released_claim_is_free_at_once(scene: Scene) -> None:
    """The next one has a higher version."""
    acquire(scene, "a")
    scene.one("select durable.claim_release(%s, 1)", KEY)
    assert (acquire(scene, "b")["role"], acquire(scene, "b")["version"]) == ("owner", 2)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("select durable.claim_acquire(%s, '', 1000)", "WF004"),
        ("select durable.claim_acquire(%s, 'a', 0)", "WF004"),
        ("select durable.claim_submitted(%s, 1, 'b', 'j')", "WF001"),
        ("select durable.claim_submitted(%s, 1, '', 'j')", "WF004"),
        ("select durable.claim_done(%s, 1, 'fine', sha256(''))", "WF004"),
    ],
)
def test_bad_claims_are_refused(scene: Scene, statement: str, code: str) -> None:
    """Nothing is written."""
    assert refusal(scene.conn, scene.one, statement, KEY).startswith(code)
    assert scene.count("_claims") == 0


def test_a_claim_promise_of_somebody_else(scene: Scene) -> None:
    """One that was made by hand: nobody gets the claim, and no error of another kind."""
    scene.one(MAKE_PROMISE, "claim:" + KEY.hex())
    assert refusal(scene.conn, acquire, scene, "a").startswith("WF003")
