"""Law: the envelope answers each request as the protocol's tables say, in the shapes of the wire; what it
refuses it refuses with a status and a text; what the database itself refuses it passes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.envelope import (
    VERSION,
    Json,
    Said,
    acquire,
    envelope,
    fence,
    make,
    raw,
    say,
    send,
    settle,
    suspend,
    tags,
    take,
)
from tests.support.verbs import NEVER, Connection

MAKE = {"id": "n", "timeoutAt": NEVER}
SETTLE = {"id": "x", "state": "resolved"}
TAKE = {"id": "n", "timeoutAt": NEVER, "tags": tags(target="g")}
AWAIT = {"awaited": "x", "awaiter": "t"}
SCHEDULE = {"id": "s", "cron": "0 * * * *", "promiseId": "{{.id}}.{{.timestamp}}", "promiseTimeout": 1000}
# two of them fill a page
LARGE = "x" * (5 * 2**20)
HEARTBEAT = {"pid": "P", "tasks": [{"id": "t", "version": 1}]}


def act(kind: str, data: Json, **more: Any) -> Json:
    """A nested request."""
    return {**envelope(kind, data), **more}


# what may be asked when promise x, tasks t (held by P at 1), o (pending), h (halted) and schedule s exist
ASKED: dict[str, Json] = {
    "promise.get": {"id": "x"},
    "promise.create": MAKE,
    "promise.settle": SETTLE,
    "promise.register_callback": AWAIT,
    "promise.register_listener": {"awaited": "x", "address": "poll://any@g"},
    "promise.search": {},
    "task.get": {"id": "t"},
    "task.create": {"pid": "P", "ttl": 9, "action": act("promise.create", TAKE)},
    "task.acquire": {"id": "o", "version": 0, "pid": "P", "ttl": 9},
    "task.release": {"id": "t", "version": 1},
    "task.suspend": {"id": "t", "version": 1, "actions": [act("promise.register_callback", AWAIT)]},
    "task.fulfill": {"id": "t", "version": 1, "action": act("promise.settle", {**SETTLE, "id": "t"})},
    "task.fence": {"id": "t", "version": 1, "action": act("promise.create", MAKE)},
    "task.heartbeat": HEARTBEAT,
    "task.halt": {"id": "t"},
    "task.continue": {"id": "h"},
    "task.search": {},
    "schedule.get": {"id": "s"},
    "schedule.create": {**SCHEDULE, "id": "s2"},
    "schedule.delete": {"id": "s"},
    "schedule.search": {},
}
KEYS: dict[str, set[str]] = {
    "promise.search": {"promises"},
    "task.get": {"task"},
    "task.create": {"task", "promise", "preload"},
    "task.acquire": {"task", "promise", "preload"},
    "task.fulfill": {"promise"},
    "task.fence": {"action", "preload"},
    "task.search": {"tasks"},
    "schedule.get": {"schedule"},
    "schedule.create": {"schedule"},
    "schedule.search": {"schedules"},
}


@pytest.fixture
def world(conn: Connection, clock: Clock) -> Connection:
    """One object of each kind."""
    make(conn, "x", external="true")
    take(conn, "t")
    make(conn, "o", target="g")
    make(conn, "h", target="g")
    say(conn, "task.halt", id="h")
    send(conn, "schedule.create", SCHEDULE)
    return conn


def nulls(value: Any) -> Iterator[Any]:
    """Everything in a document that is null."""
    if value is None:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nulls(inner)


@pytest.mark.parametrize("kind", ASKED)
def test_every_operation_answers(world: Connection, kind: str) -> None:
    """Kind and corrId come back, with the version and status 200; data has what its kind has, and no null."""
    answer = raw(world, envelope(kind, ASKED[kind], corrId="mine", auth="secret"))
    assert answer["kind"] == kind
    assert answer["head"] == {"corrId": "mine", "status": 200, "version": VERSION}
    expected = KEYS.get(kind, {"promise"} if kind.startswith("promise.") else set())
    assert set(answer["data"]) == expected
    assert not list(nulls(answer))
    assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("request_", "kind", "corr"),
    [
        (None, "unknown", "0"),
        ([], "unknown", "0"),
        ("promise.get", "unknown", "0"),
        ({}, "unknown", "0"),
        ({"kind": "promise.get"}, "promise.get", "0"),
        ({"kind": 3, "head": {"corrId": "a"}, "data": {}}, "unknown", "a"),
        ({"kind": "", "head": {"corrId": "a", "version": VERSION}, "data": {}}, "unknown", "a"),
        ({"head": {"corrId": "a", "version": VERSION}, "data": {}}, "unknown", "a"),
        ({"kind": "promise.get", "head": [], "data": {"id": "x"}}, "promise.get", "0"),
        ({"kind": "promise.get", "head": {"version": VERSION}, "data": {"id": "x"}}, "promise.get", "0"),
        (envelope("promise.get", {"id": "x"}, corrId=7), "promise.get", "0"),
        (envelope("promise.get", {"id": "x"}, corrId=None), "promise.get", "0"),
        (envelope("promise.get", {"id": "x"}, version="2025-01-15"), "promise.get", "c1"),
        (envelope("promise.get", {"id": "x"}, version=None), "promise.get", "c1"),
        (envelope("promise.get", "x"), "promise.get", "c1"),
        (envelope("promise.get", [{"id": "x"}]), "promise.get", "c1"),
        (envelope("promise.get", None), "promise.get", "c1"),
        ({"kind": "promise.get", "head": {"corrId": "c1", "version": VERSION}}, "promise.get", "c1"),
        (envelope("promise.destroy", {"id": "x"}), "promise.destroy", "c1"),
        (envelope("Promise.get", {"id": "x"}), "Promise.get", "c1"),
        (envelope("debug.travel", {}), "debug.travel", "c1"),
    ],
)
def test_malformed_requests(world: Connection, request_: Any, kind: str, corr: str) -> None:
    """400 with a text, and with the kind and corrId that could be recovered."""
    answer = raw(world, request_)
    assert (answer["kind"], answer["head"]) == (kind, {"corrId": corr, "status": 400, "version": VERSION})
    assert isinstance(answer["data"], str) and answer["data"].endswith(".")


def test_no_request_at_all(conn: Connection) -> None:
    """Even a null is answered."""
    row = conn.execute("select durable.rpc(null)").fetchone()
    assert row is not None
    assert row[0]["head"]["status"] == 400


def mended(data: Json, path: str, value: Any) -> Json:
    """A copy of the data with one member changed; `...` takes it out. The path goes into nested actions."""
    copy: Json = json.loads(json.dumps(data))
    place: Any = copy
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copy


TEXTS = (..., None, "", 7, {}, ["x"])
INSTANTS = (..., None, "7", 7.5, -1, NEVER + 1, 10**30, True, {})
VERSIONS = INSTANTS
SPANS = (*INSTANTS, 0)
STRINGS = (7, "x", [], {"a": 1}, {"a": None}, {"a": {}})
PAYLOADS = (7, "x", [], {"data": 7}, {"data": {}}, {"headers": 7}, {"headers": {"a": 1}})
ACTIONS = (..., None, 7, "x", [], {})
VERDICTS = (*TEXTS, "pending", "rejected_timedout", "RESOLVED", "done")
WRONG: list[tuple[str, str, tuple[Any, ...]]] = [
    ("promise.get", "id", TEXTS),
    ("promise.create", "id", (*TEXTS, "i" * 513)),
    ("promise.create", "timeoutAt", INSTANTS),
    ("promise.create", "param", PAYLOADS),
    ("promise.create", "tags", STRINGS),
    ("promise.settle", "id", TEXTS),
    ("promise.settle", "state", VERDICTS),
    ("promise.settle", "value", PAYLOADS),
    ("promise.register_callback", "awaited", (*TEXTS, "t")),
    ("promise.register_callback", "awaiter", (*TEXTS, "x")),
    ("promise.register_listener", "awaited", TEXTS),
    ("promise.register_listener", "address", (*TEXTS, "no where", "ftp://g")),
    ("promise.search", "state", (7, "", "rejected_somehow")),
    ("promise.search", "tags", STRINGS),
    ("promise.search", "limit", ("7", 0, 1001, 1.5, -1)),
    ("promise.search", "cursor", (7, "", {})),
    ("task.get", "id", TEXTS),
    ("task.create", "pid", TEXTS),
    ("task.create", "ttl", SPANS),
    ("task.create", "action", ACTIONS),
    ("task.create", "action.kind", (..., "promise.settle", 7)),
    ("task.create", "action.head", (7, "x")),
    ("task.create", "action.data", ACTIONS),
    ("task.create", "action.data.id", TEXTS),
    ("task.create", "action.data.timeoutAt", INSTANTS),
    ("task.create", "action.data.tags", (..., {}, *STRINGS)),
    ("task.acquire", "id", TEXTS),
    ("task.acquire", "version", VERSIONS),
    ("task.acquire", "pid", TEXTS),
    ("task.acquire", "ttl", SPANS),
    ("task.release", "id", TEXTS),
    ("task.release", "version", VERSIONS),
    ("task.suspend", "id", (*TEXTS, "o")),
    ("task.suspend", "version", VERSIONS),
    ("task.suspend", "actions", (*ACTIONS, [7], [[]])),
    ("task.suspend", "actions.0.kind", (..., "promise.settle")),
    ("task.suspend", "actions.0.data", ACTIONS),
    ("task.suspend", "actions.0.data.awaited", (*TEXTS, "t")),
    ("task.suspend", "actions.0.data.awaiter", (*TEXTS, "o")),
    ("task.fulfill", "id", (*TEXTS, "o")),
    ("task.fulfill", "version", VERSIONS),
    ("task.fulfill", "action", ACTIONS),
    ("task.fulfill", "action.kind", (..., "promise.create")),
    ("task.fulfill", "action.data.id", (*TEXTS, "o")),
    ("task.fulfill", "action.data.state", VERDICTS),
    ("task.fence", "id", (*TEXTS, "n")),
    ("task.fence", "version", VERSIONS),
    ("task.fence", "action", ACTIONS),
    ("task.fence", "action.kind", (..., "promise.get", "promise.settled", 7)),
    ("task.fence", "action.data.id", (*TEXTS, "t")),
    ("task.fence", "action.data.timeoutAt", INSTANTS),
    ("task.heartbeat", "pid", TEXTS),
    ("task.heartbeat", "tasks", (..., None, 7, "x", {}, [7], [[]], [{}])),
    ("task.heartbeat", "tasks.0.id", TEXTS),
    ("task.heartbeat", "tasks.0.version", VERSIONS),
    ("task.halt", "id", TEXTS),
    ("task.continue", "id", TEXTS),
    ("task.search", "state", (7, "", "done")),
    ("task.search", "limit", ("7", 0, 1001)),
    ("schedule.get", "id", TEXTS),
    ("schedule.create", "id", TEXTS),
    ("schedule.create", "cron", (*TEXTS, "* * * *", "whenever")),
    ("schedule.create", "promiseId", TEXTS),
    ("schedule.create", "promiseTimeout", INSTANTS),
    ("schedule.create", "promiseParam", PAYLOADS),
    ("schedule.create", "promiseTags", STRINGS),
    ("schedule.create", "timezone", (7, "", "Mars/Olympus")),
    ("schedule.delete", "id", TEXTS),
    ("schedule.search", "tags", STRINGS),
    ("schedule.search", "limit", (0, 1001)),
]


EVERYTHING = "select p::text from durable.promises p union all select t::text from durable.tasks t order by 1"


@pytest.mark.parametrize(
    ("kind", "path", "values"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_malformed(world: Connection, kind: str, path: str, values: tuple[Any, ...]) -> None:
    """Of each member every value of a wrong type or out of its bounds is 400, whatever is stored."""
    before = world.execute(EVERYTHING).fetchall()
    for value in values:
        said = send(world, kind, mended(ASKED[kind], path, value))
        assert (said.status, type(said.data)) == (400, str), (value, said)
    assert world.execute(EVERYTHING).fetchall() == before


def test_optional_members_may_be_null(conn: Connection) -> None:
    """A null for an optional member is the same as leaving it out."""
    data = {**MAKE, "param": None, "tags": None}
    assert send(conn, "promise.create", data).promise["param"] == {}
    settled = send(
        conn, "promise.settle", {"id": "n", "state": "resolved", "value": {"data": None, "headers": None}}
    )
    assert settled.promise["value"] == {}
    assert send(conn, "promise.search", {"state": None, "limit": None, "cursor": None}).status == 200


def test_a_promise_on_the_wire(conn: Connection, clock: Clock) -> None:
    """Its record has exactly the members that it has values for; payloads are opaque texts."""
    param = {"data": '{"not": json', "headers": {"codec": "x"}}
    made = say(conn, "promise.create", id="p", timeoutAt=NEVER, param=param, tags={"a": "b"})
    pending = {
        "id": "p",
        "state": "pending",
        "param": param,
        "value": {},
        "tags": {"a": "b"},
        "timeoutAt": NEVER,
        "createdAt": clock.now_ms,
    }
    assert made == Said(status=200, data={"promise": pending})
    assert say(conn, "promise.get", id="p") == made
    clock.advance(5)
    settled = {**pending, "state": "rejected", "value": {"data": ""}, "settledAt": clock.now_ms}
    assert settle(conn, "p", "rejected", data="").promise == settled
    assert settle(conn, "p", "resolved", data="late").promise == settled


def test_a_task_on_the_wire(conn: Connection, clock: Clock) -> None:
    """ttl and pid are there while it is acquired, and resumes is a count."""
    taken = take(conn, "t", ttl=70)
    assert taken.task == {"id": "t", "state": "acquired", "version": 1, "resumes": 0, "ttl": 70, "pid": "P"}
    assert taken.promise["state"] == "pending"
    assert taken.data["preload"] == []
    for name in ("x", "y"):
        make(conn, name, external="true")
    assert suspend(conn, "t", 1, "x", "y") == Said(status=200, data={})
    suspended = {"id": "t", "state": "suspended", "version": 1, "resumes": 0}
    assert say(conn, "task.get", id="t").task == suspended
    settle(conn, "x")
    settle(conn, "y")
    assert say(conn, "task.get", id="t").task == {**suspended, "state": "pending", "resumes": 2}
    assert acquire(conn, "t", 1).task["version"] == 2


def test_a_schedule_on_the_wire(conn: Connection, clock: Clock) -> None:
    """Its record; a time zone, which the protocol does not know, is told unless it is UTC."""
    param = {"data": "d", "headers": {"h": "1"}}
    made = send(conn, "schedule.create", {**SCHEDULE, "promiseParam": param, "promiseTags": tags(target="g")})
    hour = 3_600_000
    assert made.data["schedule"] == {
        **SCHEDULE,
        "promiseParam": param,
        "promiseTags": tags(target="g"),
        "createdAt": clock.now_ms,
        "nextRunAt": (clock.now_ms // hour + 1) * hour,
    }
    assert say(conn, "schedule.get", id="s") == made
    assert send(conn, "schedule.create", {**SCHEDULE, "cron": "1 1 1 1 1"}) == made
    other = send(conn, "schedule.create", {**SCHEDULE, "id": "s2", "timezone": "Europe/Berlin"})
    assert other.data["schedule"]["timezone"] == "Europe/Berlin"
    assert say(conn, "schedule.delete", id="s") == Said(status=200, data={})
    assert [say(conn, f"schedule.{verb}", id="s").status for verb in ("get", "delete")] == [404, 404]


def test_suspend_says_go_on(conn: Connection) -> None:
    """Something awaited is settled: status 300 with the preload; the lease stays as it is."""
    take(conn, "t")
    make(conn, "x", external="true")
    settle(conn, "x")
    assert suspend(conn, "t", 1, "x") == Said(status=300, data={"preload": []})
    assert say(conn, "task.get", id="t").task["state"] == "acquired"


def test_preload(conn: Connection) -> None:
    """Who takes a task gets the other promises of its branch, by id; so does a go-on; a fence has none."""
    for name in ("t.2", "t.1"):
        make(conn, name, branch="t", external="true")
    tagged = {"id": "t", "timeoutAt": NEVER, "tags": tags(target="g", branch="t")}
    taken = say(conn, "task.create", pid="P", ttl=9, action=act("promise.create", tagged))
    assert [each["id"] for each in taken.data["preload"]] == ["t.1", "t.2"]
    fenced = fence(conn, "t", 1, "promise.settle", id="t.1", state="resolved", value={"data": "1"})
    assert fenced.data["preload"] == []
    preload = suspend(conn, "t", 1, "t.1").data["preload"]
    assert [each["state"] for each in preload] == ["resolved", "pending"]
    say(conn, "task.release", id="t", version=1)
    assert acquire(conn, "t", 1).data["preload"] == preload


def test_a_fence_answers_what_the_inner_request_got(conn: Connection) -> None:
    """The inner answer is an envelope of its own: its status, the corrId it came with, and its data."""
    take(conn, "t")
    made = fence(conn, "t", 1, "promise.create", id="n", timeoutAt=NEVER)
    assert made.status == 200
    action = made.data["action"]
    assert (action["kind"], action["head"]) == (
        "promise.create",
        {"corrId": "inner", "status": 200, "version": VERSION},
    )
    assert action["data"] == {"promise": say(conn, "promise.get", id="n").promise}
    ended = fence(
        conn, "t", 1, "promise.settle", id="n", state="resolved", value={"data": "1", "headers": {"a": "b"}}
    )
    assert ended.data["action"]["data"]["promise"]["value"] == {"data": "1", "headers": {"a": "b"}}
    again = fence(conn, "t", 1, "promise.settle", id="n", state="rejected")
    assert again.data["action"]["data"] == ended.data["action"]["data"]


def test_a_fence_around_a_promise_that_is_not_there(conn: Connection, clock: Clock) -> None:
    """The holder is told 404 inside a 200; who does not hold the lease is told of the lease only."""
    take(conn, "t", ttl=10)
    missing = fence(conn, "t", 1, "promise.settle", id="nothing", state="resolved")
    inner = missing.data["action"]
    assert (missing.status, inner["head"]["status"]) == (200, 404)
    assert inner["data"] == "There is no promise 'nothing'."
    assert fence(conn, "t", 2, "promise.settle", id="nothing", state="resolved").status == 409
    assert fence(conn, "none", 1, "promise.settle", id="nothing", state="resolved").status == 404
    assert fence(conn, "t", 2, "promise.create", id="n", timeoutAt=NEVER).status == 409
    assert say(conn, "promise.get", id="n").status == 404


def test_a_nested_head_is_not_looked_at(conn: Connection) -> None:
    """Clients leave it empty; the inner answer then bears the outer corrId."""
    take(conn, "t")
    action = {"kind": "promise.create", "data": MAKE}
    answer = raw(conn, envelope("task.fence", {"id": "t", "version": 1, "action": action}))
    assert answer["data"]["action"]["head"]["corrId"] == "c1"
    empty = {**action, "head": {"corrId": "", "version": ""}}
    answer = raw(conn, envelope("task.fence", {"id": "t", "version": 1, "action": empty}))
    assert answer["data"]["action"]["head"] == {"corrId": "", "status": 200, "version": VERSION}


def test_a_version_that_no_task_can_have(conn: Connection) -> None:
    """It is well-formed up to 2^53 - 1, and nobody has it."""
    make(conn, "t", target="g")
    assert [acquire(conn, "t", version).status for version in (2**31, NEVER)] == [409, 409]
    assert acquire(conn, "none", NEVER).status == 404
    assert acquire(conn, "t", 0, ttl=2**31 - 1).status == 200


@pytest.mark.parametrize("kind", ["promise", "task", "schedule"])
def test_pages(conn: Connection, kind: str) -> None:
    """Pages follow each other by id; the last one has no cursor, and a cursor past the end finds nothing."""
    ids = [f"{n:02}" for n in range(7)]
    for name in reversed(ids):
        if kind == "schedule":
            send(conn, "schedule.create", {**SCHEDULE, "id": name})
        else:
            make(conn, name, target="g")
    seen: list[list[str]] = []
    cursor = None
    while True:
        page = say(conn, f"{kind}.search", limit=3, cursor=cursor).data
        seen.append([each["id"] for each in page[f"{kind}s"]])
        cursor = page.get("cursor")
        if cursor is None:
            break
    assert seen == [ids[:3], ids[3:6], ids[6:]]
    assert say(conn, f"{kind}.search", limit=7).data.keys() == {f"{kind}s"}
    assert say(conn, f"{kind}.search", cursor="99").data == {f"{kind}s": []}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["promise", "schedule"])
def test_pages_of_large_ones(conn: Connection, kind: str) -> None:
    """A page ends with the promise, or the schedule, that makes it large, whatever its limit; the next one
    goes on behind it, and no cursor leads behind the last one."""
    for name in "abcde":
        if kind == "schedule":
            say(conn, "schedule.create", **{**SCHEDULE, "id": name, "promiseParam": {"data": LARGE}})
        else:
            say(conn, "promise.create", id=name, timeoutAt=NEVER, param={"data": LARGE})

    def page(limit: int, cursor: str | None) -> tuple[list[str], str | None]:
        found = say(conn, f"{kind}.search", limit=limit, cursor=cursor).data
        return [each["id"] for each in found[f"{kind}s"]], found.get("cursor")

    assert page(100, None) == (["a", "b"], "b")
    assert page(2, "b") == (["c", "d"], "d")
    assert page(1, "a") == (["b"], "b")
    assert page(100, "c") == (["d", "e"], None)
    assert page(100, "d") == (["e"], None)


def test_search_narrows(conn: Connection, clock: Clock) -> None:
    """By state as it is now, and by tags that are all there."""
    make(conn, "a", clock.now_ms + 10, external="true")
    say(conn, "promise.create", id="b", timeoutAt=NEVER, tags={"k": "1", "l": "2"})
    say(conn, "promise.create", id="c", timeoutAt=NEVER, tags={"k": "1"})
    take(conn, "d")

    def found(kind: str, **wanted: Any) -> list[str]:
        return [each["id"] for each in say(conn, f"{kind}.search", **wanted).data[f"{kind}s"]]

    assert found("promise", state="pending") == ["a", "b", "c", "d"]
    clock.advance(10)
    assert found("promise", state="pending") == ["b", "c", "d"]
    assert found("promise", state="rejected_timedout") == ["a"]
    assert found("promise", tags={"k": "1"}) == ["b", "c"]
    assert found("promise", tags={"k": "1", "l": "2"}) == ["b"]
    assert found("task", state="acquired") == ["d"]
    assert found("task", state="halted") == []


RAISING = (
    "create or replace function durable.promise_get(p_id text) returns durable.promise_record "
    "language plpgsql "
    "as $$ begin raise exception 'What and which.' using errcode = '{}', hint = 'next'; end $$"
)


def test_every_code_has_its_status(conn: Connection) -> None:
    """Each SQLSTATE of ours is answered with the status of durable.error_codes(), and says what and which."""
    codes = conn.execute("select code, status from durable.error_codes()").fetchall()
    for code, status in codes:
        conn.execute(RAISING.format(code).encode())
        assert say(conn, "promise.get", id="x") == Said(status=status, data="What and which.")


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03", "57014", "22003"])
def test_database_errors_are_raised(conn: Connection, code: str) -> None:
    """A deadlock, a serialization failure, a fault of ours: the caller learns it and may call again."""
    conn.execute(RAISING.format(code).encode())
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        say(conn, "promise.get", id="x")
    assert caught.value.sqlstate == code


def test_a_refusal_leaves_nothing(conn: Connection) -> None:
    """What was done before the refusal is undone, in the same transaction, which goes on."""
    take(conn, "t")
    make(conn, "x", external="true")
    assert fence(conn, "t", 9, "promise.create", id="n", timeoutAt=NEVER).status == 409
    assert suspend(conn, "t", 1, "x", "none").status == 422
    assert [each["id"] for each in say(conn, "promise.search").data["promises"]] == ["t", "x"]
    assert say(conn, "task.get", id="t").task["state"] == "acquired"


@pytest.mark.parametrize("kind", ["start", "stop", "reset", "tick", "snap"])
def test_debug_operations_are_off(world: Connection, kind: str) -> None:
    """An ordinary installation has none: 403."""
    said = send(world, f"debug.{kind}", {"time": 1})
    assert (said.status, said.data) == (403, f"debug.{kind} is switched off here.")
    assert say(world, "promise.get", id="x").status == 200


@pytest.mark.parametrize("time", [1, "nonsense", -5])
def test_the_clock_cannot_be_set(conn: Connection, clock: Clock, time: object) -> None:
    """An ordinary installation gives no heed to resonate:debug_time, nor to the setting that carries it."""
    conn.execute("select set_config('durable.now_ms', '1', true)")
    made = send(conn, "promise.create", MAKE, **{"resonate:debug_time": time})
    assert made.promise["createdAt"] == clock.now_ms
