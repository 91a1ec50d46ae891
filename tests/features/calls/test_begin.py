"""Law: a call runs once for everybody who asks, and its result is seen through pins only (1 to 5, 14, 15, 34,
35, 48, 49).
"""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from tests.features.calls.scene import Scene, refusal
from tests.support.clock import Clock

OTHER = "dml+exec://fake/g"


def test_s01_done_at_the_first_poll(scene: Scene) -> None:
    """Execution, pin and settlement come together."""
    answer = scene.begin()
    assert (answer["at"], answer["generation"], answer["status"]) == ("started", 0, None)
    assert scene.promise(answer) == ("pending", None)
    (document,) = scene.lease()
    assert document["token"] is None and document["execution_key"] == answer["execution_key"]
    assert scene.done(document) == "completed_ok"
    state, value = scene.promise(answer)
    assert (state, value["status"], value["dag"]) == ("resolved", "ok", scene.dag(7).hex())
    assert scene.one("select encode(exec_id, 'hex') from durable._pins where scope = 's'") == value["exec"]
    assert scene.count("_objects where kind = 'exec'") == 1
    assert scene.count("_tasks where queue = 'adapter:fake'") == 0


def test_s02_the_same_call_again_is_a_hit(scene: Scene) -> None:
    """The scope answers, and nothing runs."""
    scene.begin()
    scene.run()
    answer = scene.begin()
    assert (answer["at"], answer["status"], answer["dag"]) == ("pinned_hit", "ok", scene.dag(7).hex())
    assert answer["promise"] is None
    assert scene.lease() == [] and len(scene.polls) == 1


def test_a_pinned_hit_writes_nothing(open_scene: Scene) -> None:
    """It locks no row either, so there is no transaction id, nothing to commit, and nobody to wait for."""
    scene, number = open_scene, open_scene.literal(1)
    scene.begin([number])
    scene.run()
    with scene.conn.transaction():
        assert scene.begin([number])["at"] == "pinned_hit"
        assert scene.one("select pg_current_xact_id_if_assigned()") is None
        scene.literal(1)
        assert scene.one("select pg_current_xact_id_if_assigned()") is not None, "a put locks what is there"


def test_s03_two_scopes_share_one_attempt(scene: Scene) -> None:
    """Both get the result pinned by the same settlement."""
    first, second = scene.begin(scope="s"), scene.begin(scope="t")
    assert (first["at"], second["at"]) == ("started", "joined")
    assert first["promise"] == second["promise"]
    assert scene.run() == ["completed_ok"]
    pinned = scene.all("select scope, exec_id from durable._pins order by scope")
    assert [scope for scope, _ in pinned] == ["s", "t"] and pinned[0][1] == pinned[1][1]
    assert len(scene.polls) == 1


def test_s04_twenty_connections_start_once(dsn: str, open_scene: Scene) -> None:
    """One of them starts, the others join."""
    scene = open_scene
    barrier = threading.Barrier(20)
    answers: list[str] = []

    def call(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            mine = Scene(conn)
            barrier.wait()
            answers.append(mine.begin(scope="stu"[number % 3])["at"])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["joined"] * 19 + ["started"]
    assert scene.run() == ["completed_ok"]
    assert scene.count("_pins") == 3


def test_s05_a_third_scope_takes_the_shared_result(scene: Scene) -> None:
    """A hit pins; a strict scope runs for itself."""
    scene.begin()
    scene.run()
    answer = scene.begin(scope="t")
    assert (answer["at"], answer["dag"]) == ("shared_hit", scene.dag(7).hex())
    assert scene.begin(scope="t")["at"] == "pinned_hit"
    strict = scene.begin(scope="u", cache="scope")
    assert (strict["at"], strict["generation"]) == ("started", 1)
    assert scene.run(8) == ["completed_ok"]
    assert scene.begin(scope="u")["dag"] == scene.dag(8).hex()
    assert scene.begin(scope="s")["dag"] == scene.dag(7).hex()


def test_another_route_to_the_same_values_shares(scene: Scene) -> None:
    """A call of a call shares with a call of the value of that call, under a node of its own."""
    inner = scene.begin()
    scene.run(7)
    by_call = scene.begin([bytes.fromhex(inner["node"])], function=OTHER)
    by_value = scene.begin([7], function=OTHER, scope="t")
    assert by_call["node"] != by_value["node"]
    assert (by_call["at"], by_value["at"]) == ("started", "joined")
    scene.run(9)
    pinned = scene.all("select node_id, exec_id from durable._pins where scope in ('s', 't') order by scope")
    assert len({exec_id for _, exec_id in pinned}) == 3
    assert scene.begin([7], function=OTHER, scope="s")["at"] == "shared_hit"


def test_s14_a_failed_result_is_a_value(scene: Scene) -> None:
    """It resolves the promise and is pinned in its scope."""
    answer = scene.begin()
    assert scene.run({"message": "no"}, outcome="error") == ["completed_error"]
    state, value = scene.promise(answer)
    assert (state, value["status"]) == ("resolved", "error")
    again = scene.begin()
    assert (again["at"], again["status"], again["exec"]) == ("pinned_hit", "error", value["exec"])
    assert len(scene.polls) == 1


def test_s15_a_failed_result_is_shared_on_request_only(scene: Scene) -> None:
    """Another scope runs again, unless it asks for failures."""
    scene.begin()
    scene.run({"message": "no"}, outcome="error")
    assert scene.begin(scope="t", cache_errors=True)["at"] == "shared_hit"
    assert scene.begin(scope="u")["at"] == "started"


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"function": "dml+exec://Bad/f"}, "WF013", "No adapter"),
        ({"function": "dml+exec://../../bin/sh"}, "WF013", "No adapter"),
        ({"function": "dml+exec://-bad/f"}, "WF013", "No adapter"),
        ({"function": "s3://spark/job"}, "WF013", "No adapter"),
        ({"function": "not a uri"}, "WF013", "No adapter"),
        ({"scope": "nowhere"}, "WF001", "scope"),
        ({"cache": "maybe"}, "WF004", "cache"),
        ({"cache": "force"}, "WF004", "step"),
        ({"inputs": [b"\0" * 32]}, "WF001", "object"),
        ({"inputs": [b"\0"]}, "WF004", ""),
        ({"timeout": "-1 s"}, "WF004", "timeout"),
        ({"request": {"retries": -1}}, "WF004", "retries"),
        ({"salt": None}, "WF004", "salt"),
    ],
)
def test_s35_bad_calls_are_refused(scene: Scene, options: dict[str, object], code: str, text: str) -> None:
    """Nothing is started."""
    answer = refusal(scene.conn, scene.begin, **options)
    assert answer.startswith(code) and text in answer, answer
    assert scene.count("_call_attempts") == 0 and scene.count("_calls") == 0


def test_s34_an_input_needs_a_value(scene: Scene) -> None:
    """Pending, failed and given up inputs are named with their state."""
    inner = bytes.fromhex(scene.begin()["node"])
    assert "running" in refusal(scene.conn, scene.begin, [inner], function=OTHER)
    assert "never called" in refusal(scene.conn, scene.begin, [inner], function=OTHER, scope="t")
    scene.run({"message": "no"}, outcome="error")
    answer = refusal(scene.conn, scene.begin, [inner], function=OTHER)
    assert answer.startswith("WF014") and "failed" in answer


def test_s48_a_salt_is_a_cache_of_its_own(scene: Scene) -> None:
    """The result of one tenant is never served to another."""
    scene.begin(salt="a")
    scene.run()
    assert scene.begin(scope="t", salt="b")["at"] == "started"
    assert scene.begin(scope="u", salt="a")["at"] == "shared_hit"


def test_s49_calls_that_do_not_share_run_each_for_itself(scene: Scene) -> None:
    """Twice at once is two runs, and nobody else gets a result."""
    answers = [scene.begin(share=False) for _ in range(2)]
    assert [each["at"] for each in answers] == ["started", "started"]
    assert scene.run() == ["completed_ok", "completed_ok"]
    assert scene.begin(scope="t")["at"] == "started"


def test_an_old_result_is_no_hit(scene: Scene, clock: Clock) -> None:
    """max_age passes over shared results that ended too long ago."""
    scene.begin()
    scene.run()
    clock.advance(60_000)
    assert scene.begin(scope="t", max_age="59 s")["at"] == "started"
    assert scene.begin(scope="u", max_age="61 s")["at"] == "shared_hit"


def test_a_route_serves_other_schemes(scene: Scene) -> None:
    """The longest prefix counts."""
    scene.one("select durable.call_route('s3://', 'other')")
    scene.one("select durable.call_route('s3://spark/', 'fake')")
    assert scene.begin(function="s3://spark/job")["at"] == "started"
    assert scene.lease()[0]["function"] == "s3://spark/job"
    scene.begin(function="s3://else/job")
    assert scene.lease(adapters=["other"])[0]["adapter"] == "other"


def test_the_request_is_an_object_of_its_own(scene: Scene) -> None:
    """It is part of no node and no key: another request joins the same attempt, and the first one counts."""
    first = scene.begin(request={"queue": "gpu"})
    assert scene.count("_objects where kind = 'request'") == 1
    second = scene.begin(scope="t", request={"queue": "cpu"})
    assert (second["at"], second["node"]) == ("joined", first["node"])
    assert second["execution_key"] == first["execution_key"]
    assert scene.lease()[0]["request"] == {"queue": "gpu"}


def test_a_call_of_a_client_costs_the_same_in_a_large_scope(scene: Scene) -> None:
    """It puts nothing for the pins of its scope, and the transaction around it keeps its lock_timeout."""
    scene.begin()
    scene.run()
    scene.conn.execute(
        "insert into durable._pins (pinned_at, version, scope, node_id, exec_id) "
        "select 0, 1, 's', sha256(n::text::bytea), p.exec_id from durable._pins p, generate_series(1, 200) n"
    )
    scene.conn.execute("set local lock_timeout = '7s'")
    scene.conn.execute("set local track_functions = 'all'")
    puts = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = '_put_objects'"
    for number, options in enumerate([{"retry_errors": True}, {"retry_errors": False}, {}]):
        before = scene.one(puts)
        inputs = json.dumps([{"datum": {"i64": number}}])
        scene.one(
            "select durable.call_v1(%s, %s, %s, null, 'on')",
            OTHER,
            inputs,
            json.dumps({"scope": "s", **options}),
        )
        assert scene.one(puts) - before < 5
        assert scene.one("show lock_timeout") == "7s"
    scene.conn.execute("delete from durable._pins where pinned_at = 0")
