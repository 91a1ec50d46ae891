"""Law: the older API shows promises in the older shape, knows the older names of tags, searches by patterns,
and refuses what is malformed before it looks at anything."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.doors.protocol.v0_calls import callback, completion, creation, stored, subscription
from tests.doors.protocol.v0_table import CREATE, VERBS
from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    ask,
    begin_run,
    begun,
    create,
    done,
    fail,
    refusal,
    report,
    take_turn,
)
from tests.support.verbs import settle as settle_now


def test_the_record(conn: Connection, clock: Clock) -> None:
    """A promise is shown in the older shape, and what it does not have is left out."""
    born = clock.now_ms
    bare = ask(conn, creation("bare", data=None, headers=None, tags="{}", timeout_at=born + 9))[2]
    assert bare == {
        "id": "bare",
        "state": "PENDING",
        "timeout": born + 9,
        "tags": {},
        "param": {},
        "value": {},
        "createdOn": born,
    }
    ask(conn, creation("full", "k", tags='{"a": "b"}'))
    clock.advance(3)
    full = ask(conn, completion("cancel", "full", "u", headers='{"why": "so"}'))[2]
    assert full == {
        "id": "full",
        "state": "REJECTED_CANCELED",
        "timeout": NEVER,
        "tags": {"a": "b"},
        "param": {"headers": {"for": "param"}, "data": "param"},
        "value": {"headers": {"why": "so"}, "data": "value"},
        "idempotencyKeyForCreate": "k",
        "idempotencyKeyForComplete": "u",
        "createdOn": born,
        "completedOn": born + 3,
    }
    assert ask(conn, ("select * from durable.promise_read_v0('full')", ())) == (200, "OK", full)


def test_an_error_for_older_sdks(conn: Connection) -> None:
    """It has its message where 0.5 and 0.6 look, and where 0.4 does."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=fail('{"type": "Boom", "message": "no luck"}')))
    text = "select durable._wire_v0(promise) #>> '{value,data}' from durable.promise_read_v0('r')"
    assert json.loads(base64.b64decode(ask(conn, (text, ()))[0])) == {
        "__error__": "no luck",
        "__type": "resonate.errors.ResonateError",
        "attributes": {"msg": "no luck", "code": "UNKNOWN"},
    }


def test_read(conn: Connection, clock: Clock) -> None:
    """Reading answers what is there now, settled first if its deadline has passed, or that there is none."""
    assert ask(conn, ("select * from durable.promise_read_v0('p')", ())) == (404, "not found", None)
    ask(conn, creation("p", timeout_at=clock.now_ms + 5))
    assert ask(conn, ("select promise ->> 'state' from durable.promise_read_v0('p')", ())) == ("PENDING",)
    clock.advance(5)
    found = ask(conn, ("select promise ->> 'state' from durable.promise_read_v0('p')", ()))
    assert found == ("REJECTED_TIMEDOUT",) == (stored(conn, "p") or ())[:1]


def test_older_names_of_tags(conn: Connection, clock: Clock) -> None:
    """invoke, timeout and root mean target, timer and origin here; nowhere else, and answers have the tags
    that were given. A root that the id does not begin with can be no origin."""
    tags = {"resonate:invoke": "poll://g:w", "resonate:root": "p", "resonate:timeout": "false"}
    record = ask(conn, creation("p", tags=json.dumps(tags)))[2]
    assert record["tags"] == tags
    stored_tags = "select tags from durable._promises where id = %s"
    added = {"resonate:target": "poll://g:w", "resonate:origin": "p"}
    assert ask(conn, (stored_tags, ("p",))) == (tags | added,)
    assert ask(conn, ("select queue, preference from durable._tasks where id = 'p'", ())) == ("g", "w")
    for id_, root, origin in (
        ("p.1.2", "p", "p"),
        ("p:1", "p", "p"),
        ("p1", "p", None),
        ("p.3", "p.3", "p.3"),
    ):
        told = ask(conn, creation(id_, tags=json.dumps({"resonate:root": root})))[2]["tags"]
        assert told == {"resonate:root": root}
        (found,) = ask(conn, (stored_tags, (id_,)))
        assert found.get("resonate:origin") == origin
    ask(conn, creation("timer", tags='{"resonate:timeout": "true"}', timeout_at=clock.now_ms + 1))
    both = '{"resonate:invoke": "old", "resonate:target": "new"}'
    assert ask(conn, creation("both", tags=both))[2]["tags"] == json.loads(both)
    clock.advance(1)
    found = ask(conn, ("select promise ->> 'state' from durable.promise_read_v0('timer')", ()))
    assert found == ("RESOLVED",)
    newer = ("select durable.promise_create('q', %s, p_tags => %s::jsonb)", (NEVER, json.dumps(tags)))
    ask(conn, newer)
    assert ask(conn, ("select target from durable._promises where id = 'q'", ())) == (None,)


@pytest.mark.parametrize("id_", ["own-id", "fib-1.2", "fib-1"])
def test_a_parent_is_a_remark(conn: Connection, id_: str) -> None:
    """Older SDKs let a child have an id of its own, and name its parent and its root: answers and claims tell
    both, and no rule of the present tags reads them."""
    tags = {"resonate:root": "fib-1", "resonate:parent": "fib-1", "resonate:invoke": "poll://any@g"}
    assert ask(conn, creation(id_, tags=json.dumps(tags)))[2]["tags"] == tags
    claimed = ask(conn, ("select * from durable.task_claim_v0(%s, 1, 'p', 60000)", (id_,)))
    assert claimed[0] == 201
    assert ask(conn, ("select promise -> 'tags' from durable.promise_read_v0(%s)", (id_,))) == (tags,)


def test_headers_of_a_receiver_in_a_tag(conn: Connection) -> None:
    """An http receiver in resonate:invoke gets its headers with each offer, as that of a callback does."""
    receiver = {"type": "http", "data": {"url": "https://hook.example/x", "headers": {"X-Seed": "000"}}}
    ask(conn, creation("p", tags=json.dumps({"resonate:invoke": json.dumps(receiver)})))
    offer = "select headers from durable.task_offer_many(array['https://hook.example/x'], array[1])"
    assert ask(conn, (offer, ())) == ({"X-Seed": "000"},)
    conn.execute("update durable._tasks set retry_at = 0")
    one = "select headers from durable.task_offer('https://hook.example/x')"
    assert ask(conn, (one, ())) == ({"X-Seed": "000"},)


def test_a_completion_ends_the_task(conn: Connection) -> None:
    """Completing a targeted promise fulfils its task; nobody can take it afterwards."""
    ask(conn, creation("p", tags='{"resonate:invoke": "g"}'))
    assert ask(conn, completion("reject", "p", "u"))[0] == 201
    assert ask(conn, ("select (durable.task_get('p')).state", ())) == ("fulfilled",)


def test_both_apis_see_one_promise(conn: Connection) -> None:
    """A promise of one API is one of the other: the newer has no keys, so older requests never match them."""
    ask(conn, create("new", external="true"))
    assert ask(conn, creation("new", "k"))[:2] == (409, "already pending")
    ask(conn, settle_now("new"))
    assert ask(conn, completion("resolve", "new", "k"))[:2] == (403, "already resolved")
    ask(conn, creation("old", "k"))
    ask(conn, completion("resolve", "old", "u", data="7"))
    assert ask(conn, settle_now("old", "8")) == ("resolved", "7")


def test_steps_of_runs(conn: Connection) -> None:
    """A local step is a promise that can be read, and that nobody outside creates or completes."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0, "5"), begun(1)]))
    found = ask(conn, ("select promise from durable.promise_read_v0('r.0')", ()))[0]
    assert (found["state"], found["value"]) == ("RESOLVED", {"data": "5"})
    assert ask(conn, completion("reject", "r.0", "k"))[:2] == (403, "already resolved")
    assert ask(conn, completion("reject", "r.1", "k"))[:2] == (403, "completed by its run alone")
    assert refusal(conn, creation("r.2", "k")) == "WF004"


def test_cancelling_a_run(conn: Connection) -> None:
    """To cancel a run is a request; no other completion from outside ends it."""
    begin_run(conn, "r")
    for verb in ("resolve", "reject"):
        assert ask(conn, completion(verb, "r", "u"))[:2] == (403, "completed by its run alone")
    answer = ask(conn, completion("cancel", "r", "u"))
    assert (answer[0], answer[2]["state"]) == (201, "PENDING")
    assert ask(conn, ("select state from durable.runs where id = 'r'", ())) == ("cancelling",)


# -- what is malformed

MALFORMED = {
    "create: no id": creation(None),
    "create: empty id": creation(""),
    "create: long id": creation("x" * 513),
    "create: no timeout": creation("p", timeout_at=None),
    "create: negative timeout": creation("p", timeout_at=-1),
    "create: no strict": creation("p", strict=None),
    "create: empty key": creation("p", ""),
    "create: long key": creation("p", "k" * 513),
    "create: headers are an array": creation("p", headers="[]"),
    "create: header is no string": creation("p", headers='{"a": ["b"]}'),
    "create: no tags": creation("p", tags=None),
    "create: tags are an array": creation("p", tags="[]"),
    "create: tag is no string": creation("p", tags='{"resonate:invoke": 1}'),
    "create: older target cannot be routed": creation("p", tags='{"resonate:invoke": "a b"}'),
    **{
        f"{verb}: {name}": completion(verb, **arguments)
        for verb in VERBS
        if verb != CREATE
        for name, arguments in {
            "no id": {"id_": None},
            "empty id": {"id_": ""},
            "no strict": {"id_": "p", "strict": None},
            "empty key": {"id_": "p", "key": ""},
            "long key": {"id_": "p", "key": "k" * 513},
            "headers are a text": {"id_": "p", "headers": '"a"'},
            "header is null": {"id_": "p", "headers": '{"a": null}'},
        }.items()
    },
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_errors(conn: Connection, name: str) -> None:
    """WF004, whether the promise exists or not; nothing was written."""
    assert refusal(conn, MALFORMED[name]) == "WF004"
    ask(conn, creation("p"))
    before = stored(conn, "p")
    assert refusal(conn, MALFORMED[name]) == "WF004"
    assert stored(conn, "p") == before


def test_a_payload_over_the_limit(conn: Connection) -> None:
    """The limit of payloads holds at this door too."""
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    ask(conn, creation("p"))
    assert refusal(conn, creation("q", data="x" * 2001)) == "WF008"
    assert refusal(conn, completion("resolve", "p", data="x" * 2001)) == "WF008"


# -- search


def search(conn: Connection, **arguments: Any) -> list[str]:
    """Ids on one page."""
    named = ", ".join(f"p_{name} => %s" for name in arguments)
    values = [json.dumps(each) if isinstance(each, dict) else each for each in arguments.values()]
    found = ask(conn, (f"select promises from durable.promise_search_v0({named})", tuple(values)))[0]
    return [record["id"] for record in found]


@pytest.fixture
def library(conn: Connection, clock: Clock) -> Connection:
    """Promises in every state, two of them past a deadline that nobody has seen."""
    soon = clock.now_ms + 100
    for id_, tags in (("a.pending", {"kind": "x"}), ("b.pending", {"kind": "x", "size": "1"})):
        ask(conn, creation(id_, tags=json.dumps(tags)))
    for verb in ("resolve", "reject", "cancel"):
        ask(conn, creation(f"a.{verb}", tags='{"kind": "y"}'))
        ask(conn, completion(verb, f"a.{verb}"))
    ask(conn, creation("a.late", timeout_at=soon))
    ask(conn, creation("a.timer", timeout_at=soon, tags='{"resonate:timeout": "true"}'))
    ask(conn, creation("a_100%"))
    clock.advance(100)
    return conn


SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({}, "a.cancel a.late a.pending a.reject a.resolve a.timer a_100% b.pending"),
    ({"id": "*"}, "a.cancel a.late a.pending a.reject a.resolve a.timer a_100% b.pending"),
    ({"id": "a.*"}, "a.cancel a.late a.pending a.reject a.resolve a.timer"),
    ({"id": "*.pending"}, "a.pending b.pending"),
    ({"id": "a*e*"}, "a.cancel a.late a.pending a.reject a.resolve a.timer"),
    ({"id": "a.pending"}, "a.pending"),
    ({"id": "a"}, ""),
    ({"id": "a_*"}, "a_100%"),
    ({"id": "a%"}, ""),
    ({"id": "*%"}, "a_100%"),
    ({"id": "a\\*"}, ""),
    ({"state": "PENDING"}, "a.pending a_100% b.pending"),
    ({"state": "RESOLVED"}, "a.resolve a.timer"),
    ({"state": "REJECTED"}, "a.cancel a.late a.reject"),
    ({"state": "REJECTED_CANCELED"}, "a.cancel"),
    ({"state": "REJECTED_TIMEDOUT"}, "a.late"),
    ({"tags": {"kind": "x"}}, "a.pending b.pending"),
    ({"tags": {"kind": "x", "size": "1"}}, "b.pending"),
    ({"tags": {"kind": "y"}, "state": "REJECTED", "id": "a.*"}, "a.cancel a.reject"),
    ({"tags": {"kind": "z"}}, ""),
    ({"limit": 2}, "a.cancel a.late"),
    ({"limit": 2, "cursor": "a.late"}, "a.pending a.reject"),
    ({"cursor": "zzz"}, ""),
    ({"cursor": "a.timer", "id": "a.*"}, ""),
]


@pytest.mark.parametrize(("arguments", "found"), SEARCHES, ids=map(repr, range(len(SEARCHES))))
def test_search(library: Connection, arguments: dict[str, Any], found: str) -> None:
    """Ids fit the pattern, in which only the star is special; the state is the one of now, and rejected is
    every failure; tags are contained; the order is that of the ids."""
    assert search(library, **arguments) == found.split()


def test_search_settles_expired_promises_it_returns(library: Connection) -> None:
    """What a search calls timed out is stored as that."""
    assert (stored(library, "a.late") or ())[0] == "PENDING"
    search(library, state="REJECTED")
    assert (stored(library, "a.late") or ())[0] == "REJECTED_TIMEDOUT"
    assert (stored(library, "a.timer") or ())[0] == "PENDING"


def test_pages(library: Connection) -> None:
    """The cursor leads through all pages, each promise once, and is null at the end."""
    seen: list[str] = []
    cursor = None
    for _ in range(5):
        call = ("select * from durable.promise_search_v0(p_limit => 3, p_cursor => %s)", (cursor,))
        records, cursor = ask(library, call)
        seen += [record["id"] for record in records]
        if cursor is None:
            break
    assert seen == search(library)


def test_pages_of_large_promises(conn: Connection) -> None:
    """A page ends with the promise that makes it large, and has a cursor."""
    for name in "abc":
        ask(conn, creation(name, data="x" * (5 * 2**20)))
    ids = "jsonb_path_query_array(promises, '$[*].id')"
    call = f"select {ids}, cursor from durable.promise_search_v0(p_cursor => %s)"
    pages = [ask(conn, (call, (cursor,))) for cursor in ("", "b", "c")]
    assert pages == [(["a", "b"], "b"), (["c"], None), ([], None)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"state": "pending"},
        {"state": "TIMEDOUT"},
        {"state": ""},
        {"limit": 0},
        {"limit": 1001},
        {"limit": None},
        {"id": ""},
        {"id": None},
        {"tags": None},
        {"tags": "[]"},
    ],
    ids=repr,
)
def test_search_refuses_what_is_malformed(conn: Connection, arguments: dict[str, Any]) -> None:
    """An unknown state, an empty pattern or a page of no or too many promises is WF004."""
    named = ", ".join(f"p_{name} => %s" for name in arguments)
    call = (f"select * from durable.promise_search_v0({named})", tuple(arguments.values()))
    assert refusal(conn, call) == "WF004"


# -- one instant for each operation


def creeping_clock(conn: Connection) -> int:
    """A clock that goes on by a millisecond whenever it is read; what it says now."""
    conn.execute("create sequence public.creeping start 1800000000000")
    conn.execute(
        "create or replace function durable._now_ms() returns bigint language sql volatile "
        "as $$ select nextval('public.creeping') $$"
    )
    return int(ask(conn, ("select durable._now_ms()", ()))[0])


@pytest.mark.parametrize("margin_ms", range(1, 7))
def test_an_operation_has_one_instant(conn: Connection, margin_ms: int) -> None:
    """However close a deadline is, an answer fits one instant: born dead or pending, registered and pending
    or completed and not registered, done in time or judged as timed out."""
    now_ms = creeping_clock(conn)
    record = ask(conn, creation("p", timeout_at=now_ms + margin_ms))[2]
    assert (record["state"] == "PENDING") == (record["createdOn"] < record["timeout"])
    ask(conn, create("t", target="g"))
    for id_, call in {
        "c": callback(awaited="c"),
        "s": subscription("s"),
        "r": completion("resolve", "r"),
    }.items():
        assert ask(conn, creation(id_, timeout_at=NEVER))[0] == 201
        now_ms = int(ask(conn, ("select durable._now_ms()", ()))[0])
        conn.execute("update durable._promises set timeout_at = %s where id = %s", (now_ms + margin_ms, id_))
        status, _, *_, record = ask(conn, call)
        late = record["state"] == "REJECTED_TIMEDOUT"
        assert status == (200 if late else 201)
        waits = (
            "select awaited_id from durable._callbacks union all select awaited_id from durable._listeners"
        )
        assert conn.execute(waits.encode()).fetchall() == ([(id_,)] if id_ != "r" and not late else [])
        conn.execute("delete from durable._callbacks")
        conn.execute("delete from durable._listeners")
