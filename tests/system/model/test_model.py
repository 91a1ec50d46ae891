"""Law: the model is the protocol's tables of operations, row by row; it answers in the protocol's shape; it
is a pure function."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from tests.system.model import machine, programs
from tests.system.model.addresses import canonical, queue
from tests.system.model.programs import LENGTH, START
from tests.system.model.rows import (
    EXTERNAL,
    HELD,
    READY,
    ROWS,
    TASK,
    TIMER,
    G,
    acquire,
    born,
    callback,
    create,
    fence,
    image,
    listener,
    play,
    settle,
    suspend,
    task,
    tick,
)
from tests.system.model.state import Json, State

TREE = {"resonate:branch": "a"}
BIRTHS = {("pending", 0), ("acquired", 1), ("fulfilled", 0)}
WRONG: dict[str, list[Json]] = {
    "promise.create": [
        {"timeoutAt": 1},
        {"id": "", "timeoutAt": 1},
        {"id": "a\0", "timeoutAt": 1},
        {"id": "a" * 513, "timeoutAt": 1},
        {"id": "a"},
        {"id": "a", "timeoutAt": -1},
        {"id": "a", "timeoutAt": 1.5},
        {"id": "a", "timeoutAt": "1"},
        {"id": "a", "timeoutAt": True},
        {"id": "a", "timeoutAt": 2**53},
        {"id": "a", "timeoutAt": 1, "tags": []},
        {"id": "a", "timeoutAt": 1, "tags": {"x": 1}},
        {"id": "a", "timeoutAt": 1, "param": "x"},
        {"id": "a", "timeoutAt": 1, "param": {"data": 1}},
        {"id": "a", "timeoutAt": 1, "param": {"headers": {"x": 1}}},
        *(
            {"id": "a.b", "timeoutAt": 9, "tags": {f"resonate:{name}": text for name, text in tags.items()}}
            for tags in (
                {"target": ""},
                {"target": "poll://"},
                {"target": "ftp://x"},
                {"delay": "5"},
                {"target": "g", "delay": "x"},
                {"target": "g", "delay": "-5"},
                {"target": "g", "delay": "9"},
                {"origin": "b"},
                {"branch": "a."},
                {"parent": "a.b.c"},
                {"origin": "a", "parent": "b"},
            )
        ),
    ],
    "promise.settle": [{"id": "a"}, {"id": "a", "state": "pending"}, {"id": "", "state": "resolved"}],
    "promise.register_callback": [{"awaited": "a"}, {"awaited": "", "awaiter": "b"}],
    "promise.register_listener": [{"awaited": "a"}, {"awaited": "a", "address": "a b"}],
    "promise.search": [{"limit": 0}, {"limit": 1001}, {"state": "done"}, {"tags": {"x": 1}}, {"cursor": 1}],
    "task.get": [{}, {"id": 1}],
    "task.create": [
        {"pid": "p", "ttl": 1},
        {"pid": "", "ttl": 1, "action": {"kind": "promise.create", "data": create(0, "a", TASK)[2]}},
        {"pid": "p", "ttl": 0, "action": {"kind": "promise.create", "data": create(0, "a", TASK)[2]}},
        {"pid": "p", "ttl": 1, "action": {"kind": "promise.settle", "data": settle(0, "a")[2]}},
    ],
    "task.acquire": [
        {"id": "a", "version": -1, "pid": "p", "ttl": 1},
        {"id": "a", "version": 0, "pid": "", "ttl": 1},
        {"id": "a", "version": 0, "pid": "x" * 513, "ttl": 1},
        {"id": "a", "version": 0, "pid": "p", "ttl": 0},
    ],
    "task.release": [{"id": "a"}, {"version": 0}],
    "task.suspend": [{"id": "a", "version": 0}, {"id": "a", "version": 0, "actions": [1]}],
    "task.fulfill": [{"id": "a", "version": 0}, {"id": "a", "version": 0, "action": {"data": {}}}],
    "task.fence": [{"id": "a", "version": 0}, {"id": "a", "version": 0, "action": {"kind": "task.get"}}],
    "task.heartbeat": [
        {"pid": "p"},
        {"pid": "p", "tasks": [{"id": "a"}]},
        {"tasks": [{"id": "a", "version": 0}]},
    ],
    "task.search": [{"limit": 0}, {"state": "resolved"}],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    """Status and effect of every row of the tables of operations; a refused request changes nothing."""
    before, asked, status, lines = ROWS[name]
    stored, _ = play(before)
    state, answer = play([*before, asked])
    assert answer.get("status", 200) == status, answer
    assert image(state) == (image(stored) if lines is None else lines)
    if status >= 400:
        assert state is not stored
        assert state.key() == stored.key()
        assert isinstance(answer["data"], str)


@pytest.mark.parametrize("kind", WRONG)
def test_malformed(kind: str) -> None:
    """What is malformed is 400 whatever is stored."""
    stored = [play([])[0], play([create(0, "a", TASK), create(0, "b")])[0]]
    for data in WRONG[kind]:
        for state in stored:
            assert machine.step(state, {"kind": kind, "data": data}, 1)[1]["status"] == 400, data


def test_timer_with_a_target() -> None:
    """A timer with a target is refused in the strict profile; else its deadline resolves it."""
    asked = create(0, "a", TASK | TIMER)
    assert play([asked], "strict")[1]["status"] == 400
    assert play([born(0, "a", TASK | TIMER)], "strict")[1]["status"] == 400
    assert image(play([asked, tick(100)])[0]) == {"a resolved at 100", "task a fulfilled 0"}
    assert play([asked, (50, "task.offer", {"queue": "g", "limit": 1})])[1]["data"] == {"tasks": []}


@pytest.mark.parametrize(
    "asked", [callback(1, "a", "w"), listener(1, "a", "poll://any@g"), suspend(1, "w", 1, "a")]
)
def test_waiting_for_what_is_internal(asked: Any) -> None:
    """The strict profile refuses to wait for an internal promise; the compatible one makes it external."""
    before = [create(0, "a", until=50), create(0, "w", TASK), acquire(0, "w", ttl=99)]
    assert play([*before, asked], "strict")[1]["status"] == 422
    state, answer = play([*before, asked])
    assert answer["status"] == 200
    assert state.promises["a"].external
    assert "a rejected_timedout at 50" in image(machine.sweep(state, 50)[0])
    late = (50, *asked[1:])
    assert not play([*before, late])[0].promises["a"].external


def test_wire_records() -> None:
    """Records leave out what they do not have, and never tell of waiters or of a task's instants."""
    moves = [create(0, "w", TASK, param={"headers": {"h": "1"}, "data": "x"}), create(0, "x", EXTERNAL)]
    state, answer = play([*moves, acquire(1, "w")])
    assert answer["data"] == {
        "task": {"id": "w", "state": "acquired", "version": 1, "resumes": 0, "pid": "p", "ttl": 10},
        "promise": {
            "id": "w",
            "state": "pending",
            "param": {"headers": {"h": "1"}, "data": "x"},
            "value": {},
            "tags": {"resonate:target": "g"},
            "timeoutAt": 100,
            "createdAt": 0,
        },
        "preload": [],
    }
    _, answer = machine.step(state, {"kind": "promise.settle", "data": settle(2, "x")[2]}, 2)
    assert answer["data"]["promise"]["settledAt"] == 2
    state, answer = play(
        [*moves, acquire(1, "w"), callback(2, "x", "w"), settle(2, "x"), task(3, "get", "w")]
    )
    assert answer["data"]["task"]["resumes"] == 1


def test_preload() -> None:
    """A preload is every other promise of the branch, by id, as it is now."""
    mates = [
        create(0, "a.2", TREE),
        create(0, "a.1", TREE, until=5),
        create(0, "b", {"resonate:branch": "b"}),
    ]
    state, answer = play([create(0, "a", TASK | TREE), *mates, acquire(6, "a")])
    preload = answer["data"]["preload"]
    assert [(each["id"], each["state"]) for each in preload] == [
        ("a.1", "rejected_timedout"),
        ("a.2", "pending"),
    ]
    assert "a.1 pending" in image(state)


def test_fenced_answers() -> None:
    """What the inner request of a fence got stands inside the answer, also that there is no such promise."""
    _, answer = play([*HELD, fence(2, "w", 1, settle(2, "x", value={"data": "1"}))])
    inner = answer["data"]["action"]
    assert (inner["kind"], inner["status"]) == ("promise.settle", 200)
    assert inner["data"]["promise"]["value"] == {"data": "1"}
    _, answer = play([*HELD, fence(2, "w", 1, settle(2, "z"))])
    assert answer["data"]["action"]["status"] == 404
    assert answer["status"] == 200


def test_searches() -> None:
    """A search filters by the state of now, in the order of ids; the cursor is there only if more follows."""
    many = [create(0, f"p{number}", TASK, until=5 + number) for number in range(4)]

    def found(kind: str, **data: object) -> tuple[list[str], str | None]:
        answer = play([*many, (6, f"{kind}.search", data)])[1]["data"]
        return [each["id"] for each in answer[f"{kind}s"]], answer.get("cursor")

    assert found("promise", state="pending") == (["p2", "p3"], None)
    assert found("promise", state="rejected_timedout") == (["p0", "p1"], None)
    assert found("promise", limit=2) == (["p0", "p1"], "p1")
    assert found("promise", limit=2, cursor="p1") == (["p2", "p3"], None)
    assert found("promise", tags={"resonate:target": "h"}) == ([], None)
    assert found("task", state="fulfilled", limit=1) == (["p0"], "p0")
    assert found("task", state="pending", cursor="p2") == (["p3"], None)


def test_delivery() -> None:
    """An unblock comes again, each time after twice the time, until it is acknowledged."""
    claim = (3, "unblock.claim", {"address": None, "ttl": 10})
    state, answer = play([*READY, listener(0, "x"), settle(1, "x"), claim])
    assert [message[:3] for message in answer["data"]["messages"]] == [["x", G, 1]]
    for now, attempts in ((12, []), (13, [2]), (32, []), (33, [3])):
        state, answer = machine.step(state, {"kind": claim[1], "data": claim[2]}, now)
        assert [message[2] for message in answer["data"]["messages"]] == attempts
    known = {"kind": "unblock.acknowledge", "data": {"promiseId": "x", "address": G}}
    state, answer = machine.step(state, known, 99)
    assert answer["data"] == {"known": True}
    assert machine.step(state, known, 99)[1]["data"] == {"known": False}


def test_addresses() -> None:
    """Old forms and new ones have one spelling; what cannot be routed has none."""
    spellings = {
        "g": G,
        "poll://g": G,
        "poll://any@g": G,
        "poll://g/u": "poll://any@g/u",
        "poll://g:u": "poll://any@g/u",
        "poll://uni@g/u": "poll://uni@g/u",
        "https://h/x": "https://h/x",
    }
    assert {given: canonical(given) for given in spellings} == spellings
    assert canonical("poll://g:u", listener=True) == "poll://uni@g/u"
    for unknown in (
        "",
        "a b",
        "poll://",
        "poll://uni@g",
        "poll://any@",
        "poll://g/",
        "ftp://x",
        "a:b",
        "a/b",
        1,
    ):
        assert canonical(unknown) is None, unknown
    assert [queue(each) for each in ("poll://any@g/u", "poll://uni@g/u", "http://h")] == [
        "g",
        "poll://uni@g/u",
        "http://h",
    ]


def test_pure(seed: int) -> None:
    """A step changes nothing it was given, gives the same twice, and equal states have equal keys."""
    rng = Random(seed)
    state, now = State(), START
    for _ in range(400):
        step = programs.read(rng.randbytes(LENGTH), state, now)
        if step is None or step.request is None:
            now = step.now if step else now
            continue
        before, request = copy.deepcopy(state), copy.deepcopy(step.request)
        once, again = (machine.step(state, step.request, now) for _ in range(2))
        assert (state, step.request) == (before, request)
        assert once == again
        assert (once[0].key() == state.key()) == (once[0] == state)
        state = once[0]


def laws(state: State, now: int) -> dict[str, bool]:
    """What must hold of every state."""
    live = {id_ for id_, each in state.promises.items() if each.state == "pending" and each.timeout_at > now}
    tasks = state.tasks.values()
    waiting = [awaited for awaited, _ in (*state.callbacks, *state.listeners)]
    return {
        "a task for each target": {id_ for id_, each in state.promises.items() if each.target}
        == set(state.tasks),
        "settled is fulfilled": all(
            (state.promises[each.id].state == "pending") == (each.state != "fulfilled") for each in tasks
        ),
        "lease if acquired": all(
            (each.state == "acquired") == (None not in (each.pid, each.ttl, each.expires_at))
            for each in tasks
        ),
        "retry if pending": all((each.state == "pending") == (each.retry_at is not None) for each in tasks),
        "the parked have no wake reasons": not any(
            each.resumes for each in tasks if each.state in ("suspended", "fulfilled")
        ),
        "the suspended wait": {each.id for each in tasks if each.state == "suspended"} & live
        <= {awaiter for _, awaiter in state.callbacks},
        "waiting for what is open": all(
            state.promises[each].state == "pending" and state.promises[each].external for each in waiting
        ),
        "awaiters have tasks": all(awaiter in state.tasks for _, awaiter in state.callbacks),
        "deadline verdicts": all(
            each.state == ("resolved" if each.timer else "rejected_timedout") and each.value.wire() == {}
            for each in state.promises.values()
            if each.settled_at == each.timeout_at
        ),
        "messages of what is settled": all(
            state.promises[id_].state != "pending" for id_, _ in state.unblocks
        ),
    }


def steps_are_lawful(before: State, after: State, now: int) -> dict[str, bool]:
    """What must hold of every step."""
    pairs = [(each, after.tasks[id_]) for id_, each in before.tasks.items()]
    taken = [(old, new) for old, new in pairs if new.state == "acquired" and old.state != "acquired"]
    born = [new for id_, new in after.tasks.items() if id_ not in before.tasks]
    return {
        "settled stays": all(
            after.promises[id_] == each for id_, each in before.promises.items() if each.state != "pending"
        ),
        "born once": all(
            (after.promises[id_].tags, after.promises[id_].timeout_at, after.promises[id_].created_at)
            == (each.tags, each.timeout_at, each.created_at)
            for id_, each in before.promises.items()
        ),
        "the version rises on acquisition": all(
            new.version - old.version == ((old, new) in taken) for old, new in pairs
        ),
        "acquired from pending": all(
            old.state == "pending" and new.expires_at == now + (new.ttl or 0) and not new.resumes
            for old, new in taken
        ),
        "suspended from acquired": all(
            old.state in ("acquired", "suspended") for old, new in pairs if new.state == "suspended"
        ),
        "pending from now": all(
            new.retry_at == now for old, new in pairs if new.state == "pending" and old.state != "pending"
        ),
        "woken for a reason": all(
            new.resumes for old, new in pairs if (old.state, new.state) == ("suspended", "pending")
        ),
        "callbacks end with a settlement": all(
            after.promises[awaited].state != "pending" for awaited, _ in before.callbacks - after.callbacks
        ),
        "listeners become messages": {(id_, address) for id_, address in before.listeners - after.listeners}
        <= set(after.unblocks),
        "born": all((each.state, each.version) in BIRTHS for each in born),
    }


@pytest.mark.parametrize("profile", ["compatible", "strict"])
def test_lawful(seed: int, profile: str) -> None:
    """Every state and every step of random programs keeps the laws of the protocol."""
    rng = Random(seed)
    for _ in range(60):
        state, now = State(profile=profile), START
        for _ in range(50):
            step = programs.read(rng.randbytes(LENGTH), state, now)
            if step is None:
                continue
            now, before = step.now, state
            if step.tick:
                state, _, _ = machine.sweep(state, now)
            elif step.request is not None:
                state, _ = machine.step(state, step.request, now)
            kept = {**laws(state, now), **steps_are_lawful(before, state, now)}
            assert all(kept.values()), (step, [law for law, holds in kept.items() if not holds])
