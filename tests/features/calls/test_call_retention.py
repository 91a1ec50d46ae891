"""Law: what nobody can ask for any more is removed: attempts after their promises, scopes after their runs,
the beginnings of histories, idle claims, old snapshots, unused objects; and a pin loses nothing that it
refers to.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.calls.scene import F, Scene, refusal
from tests.support.clock import Clock
from tests.support.verbs import begin_run, complete, report, take_turn

DAY = 86_400_000
HOUR = 3_600_000
PURGE = "select removed, more from durable.calls_purge(%s, %s, %s::jsonb)"
TABLES = (
    *("_objects", "_object_uses", "_closures", "_refs", "_pins", "_pin_log", "_calls", "_call_attempts"),
    *("_call_waiters", "_call_steps", "_call_polls", "_claims"),
)


def purge(scene: Scene, age: str = "30 days", most: int = 1000) -> int:
    """How many rows purges of calls remove, until there are no more."""
    (part,) = scene.all(PURGE, age, most, None)
    removed = int(part[0])
    while part[1] is not None:
        (part,) = scene.all(PURGE, age, most, json.dumps(part[1]))
        removed += int(part[0])
    return removed


def pass_days(scene: Scene, clock: Clock, days: int) -> None:
    """Let time pass; then purge what is 30 days old, runs and promises first."""
    clock.advance(days * DAY)
    scene.one("select count(*) from durable.purge('30 days')")
    purge(scene)


def sweep(scene: Scene, clock: Clock) -> None:
    """Ticks, until all sweeps of retention have come to their ends."""
    scene.one("select durable.tick_v1(500)")
    scene.conn.execute("update durable._retention set due_at = 0")
    for _ in range(200):
        clock.advance(100)
        scene.one("select durable.tick_v1(500)")
        if scene.count("_retention where due_at < durable._now_ms() + 60000") == 0:
            return
    raise AssertionError("the sweeps do not come to an end")


def tables(scene: Scene) -> dict[str, int]:
    """Rows of the tables of calls that have any."""
    counts = {table: scene.count(table) for table in TABLES}
    return {table: count for table, count in counts.items() if count}


def call_of(scene: Scene, step: str, value: int = 1, **options: Any) -> dict[str, Any]:
    """A call that a step makes."""
    answer: dict[str, Any] = scene.one(
        "select durable.call_v1(%s, %s, %s, %s, null)",
        F,
        json.dumps([{"datum": {"i64": value}}]),
        json.dumps(options),
        step,
    )
    return answer


def gave_up(scene: Scene, value: object = 1) -> dict[str, Any]:
    """A call that was given up."""
    answer = scene.begin([value])
    assert scene.failed(scene.lease()[0], "refused", retryable=False) == "failed_terminal"
    return answer


def test_an_attempt_goes_after_its_promise(scene: Scene, clock: Clock) -> None:
    """With its waiters and polls. Its key is not used again as long as the promise is remembered."""
    answer = gave_up(scene)
    clock.advance(31 * DAY)
    assert purge(scene) == 0 and scene.state(answer) == "failed_terminal"
    pass_days(scene, clock, 0)
    assert [scene.count(f"_call_{name}") for name in ("attempts", "waiters", "polls")] == [0, 0, 0]
    again = gave_up(scene)
    assert again["generation"] == 1
    pass_days(scene, clock, 31)
    assert scene.count("_call_attempts") == 0 and scene.count("_calls") == 1
    clock.advance(91 * DAY)
    sweep(scene, clock)
    assert scene.count("_calls") == 0
    assert scene.begin()["execution_key"] == answer["execution_key"]


def test_a_running_attempt_stays(scene: Scene, clock: Clock) -> None:
    """However old it is."""
    answer = scene.begin()
    pass_days(scene, clock, 400)
    assert scene.state(answer) == "poll_adapter" and scene.run() == ["completed_ok"]


def test_the_newest_shared_result_stays(scene: Scene, clock: Clock) -> None:
    """Older ones go, and so does a failure that was followed by a result; no pin keeps them."""
    scene.begin()
    scene.run({"message": "no"}, outcome="error")
    for number in range(2):
        scene.begin(cache="force", step_id=f"x{number}")
        scene.run(number)
    scene.one("select durable.scope_drop('s')")
    pass_days(scene, clock, 31)
    assert scene.all("select generation from durable._call_attempts") == [(2,)]
    hit = scene.begin(scope="t")
    assert (hit["at"], hit["dag"]) == ("shared_hit", scene.dag(1).hex())
    scene.one("select durable.call_invalidate(function => %s)", F)
    scene.one("select durable.scope_drop('t')")
    pass_days(scene, clock, 0)
    assert scene.count("_call_attempts") == 0


def test_shared_results_go_by_their_setting(scene: Scene, clock: Clock) -> None:
    """Once no scope has them."""
    scene.one("select durable.set_setting('call_results_days', '40')")
    scene.begin()
    scene.run()
    scene.one("select durable.scope_drop('s')")
    pass_days(scene, clock, 31)
    assert scene.count("_call_attempts") == 1
    pass_days(scene, clock, 10)
    assert scene.count("_call_attempts") == 0


def test_a_pin_loses_nothing(scene: Scene, clock: Clock) -> None:
    """The attempt that it came from, its request, its entry in the log, its result and its inputs' stay."""
    scene.one("select durable.set_setting('call_results_days', '1')")
    inner = bytes.fromhex(scene.begin()["node"])
    scene.run(7)
    request = {"queue": "spot"}
    scene.begin(cache="force", step_id="x0", request=request)
    scene.run(8)
    outer = scene.begin([inner], function="dml+exec://fake/g", request=request)
    scene.run(9)
    before = scene.all("select * from durable._scope_execs('s') order by node")
    assert all(row[2] is not None for row in before) and len(before) == 2
    pass_days(scene, clock, 31)
    sweep(scene, clock)
    assert scene.all("select * from durable._scope_execs('s') order by node") == before
    assert [row[0] for row in scene.all("select version from durable._pin_log order by id")] == [2, 1]
    assert scene.all("select generation from durable._call_attempts order by value_key") != []
    assert scene.begin([inner], function="dml+exec://fake/g")["at"] == "pinned_hit"
    states = scene.all("select state from durable.call_history(%s)", bytes.fromhex(outer["node"]))
    assert states == [("completed_ok",)]
    assert scene.one("select durable.dag_value(%s)", scene.dag(9)) == {"i64": 9}


def test_a_history_loses_its_beginning(scene: Scene, clock: Clock) -> None:
    """What is young stays, and the entry of the present pin."""
    scene.begin()
    scene.run(0)
    for number in range(1, 4):
        clock.advance(10 * DAY)
        scene.begin(cache="force", step_id=f"x{number}")
        scene.run(number)
    versions = "select version from durable._pin_log order by id"
    purge(scene, "15 days", most=1)
    assert [row[0] for row in scene.all(versions)] == [3, 4]
    purge(scene, "0")
    assert [row[0] for row in scene.all(versions)] == [4]
    scene.one("select durable.scope_drop('s')")
    clock.advance(1)
    purge(scene, "0")
    assert scene.all(versions) == []


def test_a_removed_run_takes_its_scope_along(scene: Scene, clock: Clock) -> None:
    """Pins, history, steps and attempts; what people named stays."""
    held = begin_run(scene.conn, "r")
    forced = call_of(scene, "r.0", cache="force")
    named = call_of(scene, "r.1", 2, scope="mine", share=False)
    assert (forced["scope"], named["scope"]) == ("r", "mine")
    scene.run()
    assert call_of(scene, "r.2")["at"] == "pinned_hit"
    take_turn(scene.conn, "W", report(held, end=complete()))
    clock.advance(31 * DAY)
    assert purge(scene) == 0 and scene.count("_refs where name = 'r'") == 1
    scene.one("select durable.call_invalidate(function => %s)", F)
    pass_days(scene, clock, 0)
    assert scene.all("select name from durable._refs where name in ('r', 'mine')") == [("mine",)]
    assert scene.count("_call_steps") == 0
    assert {row[0] for row in scene.all("select scope from durable._pin_log")} == {"mine"}
    assert scene.all("select distinct scope from durable._call_waiters") == [("mine",)]


def test_a_scope_of_people_with_the_name_of_a_run_stays(scene: Scene, clock: Clock) -> None:
    """They opened it first."""
    scene.scope("r")
    held = begin_run(scene.conn, "r")
    call_of(scene, "r.0")
    scene.run()
    take_turn(scene.conn, "W", report(held, end=complete()))
    pass_days(scene, clock, 31)
    assert scene.count("_pins where scope = 'r'") == 1


def test_the_scope_of_a_removed_run_waits_for_its_calls(scene: Scene, clock: Clock) -> None:
    """A result comes after the run is gone: it is pinned, shared, and then the scope goes."""
    held = begin_run(scene.conn, "r")
    call_of(scene, "r.0")
    take_turn(scene.conn, "W", report(held, end=complete()))
    pass_days(scene, clock, 31)
    assert scene.count("_refs where name = 'r'") == 1 and scene.count("_call_steps") == 1
    assert scene.run() == ["completed_ok"]
    purge(scene)
    assert scene.count("_refs where name = 'r'") == 0 and scene.count("_call_steps") == 0
    assert scene.begin()["at"] == "shared_hit"


def test_steps_of_nobody_go_by_their_age(scene: Scene, clock: Clock) -> None:
    """And may force once more then."""
    for number in range(2):
        scene.begin([number], cache="force", step_id=f"x{number}")
        scene.run(number)
        clock.advance(20 * DAY)
    pass_days(scene, clock, 0)
    assert scene.all("select step_id from durable._call_steps") == [("x1",)]
    assert scene.begin([0], cache="force", step_id="x0")["at"] == "started"


def test_claims_end(scene: Scene, clock: Clock) -> None:
    """Settled ones after their promise, idle ones by their age; one that is owned, and one of a running call
    stay."""
    answer = scene.begin(["runs"])
    keys = [bytes.fromhex(answer["execution_key"]), *(number.to_bytes(32, "big") for number in range(3))]
    for key in keys:
        scene.one("select durable.claim_acquire(%s, 'o', %s)", key, 400 * DAY if key == keys[3] else 1000)
    scene.one("select durable.claim_done(%s, 1, 'ok', sha256('r'))", keys[1])
    clock.advance(31 * DAY)
    while scene.one("select durable.tick_v1(500)")["more"]:
        pass
    pass_days(scene, clock, 0)
    left = {bytes(row[0]) for row in scene.all("select execution_key from durable._claims")}
    assert left == {keys[0], keys[3]}
    assert scene.one(f"select state from durable._promises where id = 'claim:{keys[2].hex()}'") == (
        "rejected_canceled"
    )
    assert refusal(scene.conn, scene.one, "select durable.claim_acquire(%s, 'o', 1000)", keys[2]).startswith(
        "WF003"
    )
    pass_days(scene, clock, 31)
    assert scene.count("_promises where id like 'claim:%'") == 2


def test_a_claim_that_was_settled_by_hand_ends(scene: Scene, clock: Clock) -> None:
    """Its promise is removed like others, no law is broken then, and the claim follows."""
    key = bytes(32)
    scene.one("select durable.claim_acquire(%s, 'o', 1000)", key)
    scene.conn.execute("select durable.reject(%s, '1')", ("claim:" + key.hex(),))
    assert scene.one("select state from durable.claims") == "settled"
    clock.advance(DAY)
    scene.conn.execute("select durable.purge('1 hour')")
    assert scene.count("_promises where id like 'claim:%'") == 0 and scene.count("_claims") == 1
    assert scene.all("select * from durable.check()") == []
    sweep(scene, clock)
    assert scene.count("_claims") == 0
    claim = "select durable.claim_acquire(%s, 'o', 1000)"
    assert refusal(scene.conn, scene.one, claim, key).startswith("WF003")


def test_snapshots_go_after_a_day(scene: Scene, clock: Clock) -> None:
    """One that an attempt reads stays until that has ended."""
    refs = [scene.one("select ref from durable.snapshot_create('s')") for _ in range(2)]
    scene.begin()
    scene.conn.execute("update durable._call_attempts set ref_name = %s", (refs[0],))
    sweep(scene, clock)
    assert scene.count("_refs where kind = 'exec'") == 2
    clock.advance(DAY)
    sweep(scene, clock)
    assert scene.all("select name from durable._refs where kind = 'exec'") == [(refs[0],)]
    scene.run()
    sweep(scene, clock)
    assert scene.count("_refs where kind = 'exec'") == 0


def test_a_poll_with_a_hundred_newer_ones_is_forgotten(scene: Scene) -> None:
    """So an attempt that is polled for weeks has a bounded history, and its number of polls is right."""
    answer = scene.begin()
    for number in range(105):
        (document,) = scene.lease()
        scene.pending(document, f"t{number}", poll_after_ms=0)
    numbers = scene.all("select min(seq), max(seq), count(*) from durable._call_polls")
    assert numbers == [(6, 105, 100)]
    assert scene.all("select polls from durable.call_attempts") == [(105,)]
    assert answer["at"] == "started"


def test_a_tick_collects_what_is_unused(scene: Scene, clock: Clock) -> None:
    """Once a day, unless the setting says never."""
    scene.literal("unused")
    clock.advance(2 * DAY)
    scene.one("select durable.set_setting('unused_objects_days', '0')")
    sweep(scene, clock)
    assert scene.count("_objects where sub = 'string'") == 1
    scene.one("select durable.set_setting('unused_objects_days', '1')")
    sweep(scene, clock)
    assert scene.count("_objects where sub = 'string'") == 0
    assert scene.count("_retention where subject = 'objects' and due_at > durable._now_ms() + 80000000") == 1


def test_a_long_chain_is_collected_in_portions(scene: Scene, clock: Clock) -> None:
    """A portion takes along at most ten times what it looks at, and some; the next one has the rest."""
    scene.literal(list(range(3000)))
    scene.conn.execute("update durable._objects set created_at = 1 where kind = 'node'")
    clock.advance(DAY + 1)
    assert scene.one("select removed from durable.objects_collect('1 day', 1)") == 2002
    while scene.one("select removed from durable.objects_collect('1 day')"):
        pass
    assert scene.count("_objects where kind = 'datum'") == 0


@pytest.mark.parametrize(
    "given",
    [
        ("-1 day", 1, None),
        (None, 1, None),
        ("1 day", 0, None),
        ("1 day", 1, '{"stage": "x", "after": ""}'),
        ("1 day", 1, '{"stage": "attempts", "after": "zz"}'),
        ("1 day", 1, '{"stage": "pins", "after": "-"}'),
        ("1 day", 1, '{"stage": "steps"}'),
    ],
)
def test_a_wrong_purge_is_refused(scene: Scene, given: tuple[object, ...]) -> None:
    """Before anything is removed."""
    assert refusal(scene.conn, scene.all, PURGE, *given).startswith("WF004")


def test_a_purge_of_everything_leaves_nothing(scene: Scene, clock: Clock) -> None:
    """Calls of every kind end, their scopes are dropped, all is purged and collected: no row is left."""
    scene.one("select durable.set_setting('call_results_days', '1')")
    held = begin_run(scene.conn, "r")
    call_of(scene, "r.0")
    scene.run({"message": "no"}, outcome="error")
    call_of(scene, "r.1", cache="force")
    call_of(scene, "r.2", 2, scope="mine", share=False)
    call_of(scene, "r.3", 2)
    for document in scene.lease():
        scene.pending(document, poll_after_ms=0)
    scene.run()
    take_turn(scene.conn, "W", report(held, end=complete()))
    gave_up(scene, "no")
    scene.begin(["dead"], timeout="1 minute")
    scene.begin(["dead"], scope="t")
    scene.pending(scene.lease()[0])
    scene.begin(["hit"], request={"queue": "spot"})
    scene.run()
    scene.begin(["hit"], scope="t", step_id="x")
    scene.one("select durable.builtin('list/construct', array[durable.literal('1')], 's')")
    scene.one("select commit_id from durable.scope_open('main', 'head')")
    scene.one("select commit_id from durable.scope_open('of main', base => 'main')")
    scene.one("select durable.scope_commit('of main', durable.literal('[1, {\"a\": 2}]'), 'x')")
    scene.one("select ref from durable.snapshot_create('s')")
    scene.one("select durable.claim_acquire(sha256('x'), 'o', 1000)")
    clock.advance(2 * DAY)
    while scene.one("select durable.tick_v1(500)")["more"]:
        pass
    scene.one("select durable.call_sweep_v1()")
    for name in ("s", "t", "u", "mine", "of main", "main"):
        assert scene.one("select durable.scope_drop(%s)", name) is True
    assert set(tables(scene)) >= set(TABLES) - {"_closures", "_object_uses"}
    for _ in range(2):  # a claim ends, then its promise, then its key
        clock.advance(DAY)
        scene.one("select count(*) from durable.purge('0')")
        purge(scene, "0")
    clock.advance(91 * DAY)
    for _ in range(2):
        sweep(scene, clock)
        clock.advance(2 * DAY)
    assert tables(scene) == {}
