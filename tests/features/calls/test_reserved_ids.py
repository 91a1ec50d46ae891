"""Law: the promises of attempts and claims are made by the engine alone. Their ids can be computed by
everybody, so every door by which a promise or a run gets an id refuses them, and stores nothing.
"""

from __future__ import annotations

import json

import pytest

from tests.features.calls.scene import Scene, refusal
from tests.support.clock import Clock
from tests.support.verbs import NEVER

HASH = "ab" * 32
RESERVED = [f"call:{HASH}", f"claim:{HASH}"]
FREE = ["call:1", f"call:{HASH.upper()}", f"call:{HASH}.0", f"call:{HASH}0", f"my.call:{HASH}"]
TARGET = json.dumps({"resonate:target": "poll://any@adapter:fake"})
DOORS = {
    "promise_create": ("select durable.promise_create(%s, %s, p_tags => %s)", NEVER, TARGET),
    "create_promise": ("select durable.create_promise(%s)",),
    "task_create": ("select durable.task_create(%s, %s, 'W', 1000, p_tags => %s)", NEVER, TARGET),
    "the older API": ("select durable.promise_create_v0(%s, null, null, null, %s)", NEVER),
    "start": ("select durable.start('w', '[]', id => %s)",),
    "start_many": ("select durable.start_many('w', '{[]}', ids => array[%s])",),
    "fork": ("select durable.fork('original', 1, new_id => %s)",),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("id_", RESERVED)
def test_a_reserved_id_is_refused(scene: Scene, door: str, id_: str) -> None:
    """WF004 with the id, and no promise; the same door takes ids that only look like it."""
    query, *parameters = DOORS[door]
    scene.one("select durable.start('w', '[]', id => 'original')")
    before = scene.count("_promises")
    refused = refusal(scene.conn, scene.one, query, id_, *parameters)
    assert refused.startswith("WF004") and id_ in refused
    assert scene.count("_promises") == before
    for other in FREE:
        assert refusal(scene.conn, scene.one, query, other, *parameters) == "none"
    assert scene.count("_promises") == before + len(FREE)


@pytest.mark.parametrize("id_", RESERVED)
def test_a_schedule_makes_no_promise_of_a_reserved_id(scene: Scene, clock: Clock, id_: str) -> None:
    """Its instants pass, as with every id that promise_create refuses."""
    scene.one("select durable.schedule_create('nightly', '* * * * *', %s, 60000)", id_)
    clock.advance(120_000)
    scene.one("select durable.tick_v1(100)")
    assert scene.count(f"_promises where id = '{id_}'") == 0
    assert scene.count("_schedules where last_run_at is not null") == 1


def test_nobody_stops_a_call_by_its_key(scene: Scene) -> None:
    """The promise of an attempt that is to come cannot be taken, and the one that is there cannot be had by
    creating it again."""
    with scene.conn.transaction(force_rollback=True):
        answer = scene.begin([1])
    create = "select durable.create_promise(%s)"
    assert refusal(scene.conn, scene.one, create, answer["promise"]).startswith("WF004")
    assert scene.begin([1])["at"] == "started"
    assert refusal(scene.conn, scene.one, create, answer["promise"]).startswith("WF004")
    assert scene.run() == ["completed_ok"]
