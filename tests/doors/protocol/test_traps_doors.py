"""Law: what is malformed is refused at the door, whatever is stored; where specification and server disagree
our ruling holds, in the profile that it concerns.

One test for each row of the catalogue of tags and doors, and for each row of the list of disagreements. They
share a database: each runs in a transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.doors.protocol.test_traps import PROFILES, TIMED_OUT, count, offered, play, state, told
from tests.support.clock import Clock
from tests.support.envelope import (
    Json,
    Said,
    acquire,
    envelope,
    fence,
    make,
    say,
    send,
    settle,
    suspend,
    tags,
    take,
)
from tests.support.laboratory import ClockInside, transaction_of
from tests.support.verbs import NEVER, Connection, refusal, tick

MINUTE = 60_000
STRICT = ("strict", 400)
COMPATIBLE = ("compatible", 200)


@pytest.fixture
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty."""
    with transaction_of(request) as connection:
        yield connection


@pytest.fixture
def clock(conn: Connection) -> Clock:
    """The database's clock, standing still until the test moves it, for this transaction."""
    return ClockInside(conn)


def task_with(conn: Connection, named: Json, timeout_at: int = NEVER) -> Said:
    """task.create of task n with these tags."""
    action = envelope("promise.create", {"id": "n", "timeoutAt": timeout_at, "tags": named})
    return say(conn, "task.create", pid="P", ttl=1000, action=action)


def schedule(conn: Connection, template: str, named: Json, timeout: int = 10**9) -> Said:
    """schedule.create, every minute."""
    data: dict[str, Any] = {"id": "s", "cron": "* * * * *", "promiseId": template, "promiseTimeout": timeout}
    return send(conn, "schedule.create", {**data, "promiseTags": named})


@pytest.fixture
def at_every_door(conn: Connection) -> Any:
    """What the four doors that create promises answer to these tags and this deadline; a fence says it inside
    or outside."""
    take(conn, "t")

    def ask(named: Json, timeout_at: int = NEVER) -> dict[str, int]:
        promise = {"id": "p", "timeoutAt": timeout_at, "tags": named}
        fenced = fence(conn, "t", 1, "promise.create", **{**promise, "id": "f"})
        if fenced.status == 200:
            fenced = Said(status=fenced.data["action"]["head"]["status"], data=fenced.data["action"]["data"])
        return {
            "promise.create": send(conn, "promise.create", promise).status,
            "task.fence": fenced.status,
            "task.create": task_with(conn, named, timeout_at).status,
            "schedule.create": schedule(conn, "{{.id}}.{{.timestamp}}", named).status,
        }

    return ask


# tags and doors


@PROFILES
@pytest.mark.parametrize(
    "target", ["", " ", "no where", "ftp://host/path", "gcps://project/topic", "poll://", "a@b"]
)
def test_a_target_that_cannot_be_routed(
    conn: Connection, at_every_door: Any, target: str, profile: str
) -> None:
    """400 at every door: its task would be offered to nobody."""
    play(conn, profile)
    assert set(at_every_door(tags(target=target)).values()) == {400}
    assert count(conn, "_promises") == 1


@pytest.mark.parametrize("door", ["promise.create", "task.fence", "schedule"])
def test_a_delay_is_honoured_on_every_way_in(conn: Connection, clock: Clock, door: str) -> None:
    """The task is not offered before the instant, and is from then on."""
    clock.set(clock.now_ms // MINUTE * MINUTE)
    until = clock.now_ms + 10 * MINUTE
    named = tags(target="slow", delay=str(until))
    data = {"id": "p", "timeoutAt": NEVER, "tags": named}
    if door == "promise.create":
        assert send(conn, "promise.create", data).status == 200
    elif door == "task.fence":
        take(conn, "t")
        assert fence(conn, "t", 1, "promise.create", **data).status == 200
    else:
        assert schedule(conn, "p", named).status == 200
        clock.advance(MINUTE)
        tick(conn)
    assert count(conn, "_tasks where id = 'p' and state = 'pending'") == 1
    clock.set(until - 1)
    assert offered(conn, "slow") == []
    clock.set(until)
    assert offered(conn, "slow") == [("p", 0)]


@pytest.mark.parametrize("delay", ["", "soon", "-1", "1.5", "1e3", " 7", "7 ", "0x7", "٣", "9" * 40])
def test_a_malformed_delay(conn: Connection, at_every_door: Any, delay: str) -> None:
    """400: not a number, not read as far as it goes, not an error of the database."""
    answers = at_every_door(tags(target="g", delay=delay))
    assert {answers[door] for door in ("promise.create", "task.fence", "task.create")} == {400}


def test_a_delay_without_a_target_or_up_to_the_deadline(conn: Connection, clock: Clock) -> None:
    """400: nothing would ever be delayed, or the task could never run."""
    due = clock.now_ms + 10
    for delay, status in ((due, 400), (due + 1, 400), (due - 1, 200)):
        assert make(conn, f"p{delay}", due, target="g", delay=str(delay)).status == status
    assert make(conn, "q", due, delay="5").status == 400


def test_a_task_created_by_its_worker_has_no_delay(conn: Connection) -> None:
    """400: it is held from birth."""
    assert task_with(conn, tags(target="g", delay="5")).status == 400


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_lease_of_no_length(conn: Connection, ttl: int) -> None:
    """400: it would have ended when it was granted, and two could hold the task in one instant."""
    make(conn, "t", target="g")
    assert acquire(conn, "t", 0, ttl=ttl).status == 400
    assert take(conn, "n", ttl=ttl).status == 400


def test_an_offer_that_comes_again_at_once(conn: Connection) -> None:
    """A retry time of 0 is refused: the sweep would spin."""
    assert refusal(conn, ("select durable.set_setting('retry_offer_ms', '0')", ())) == "WF004"


@pytest.mark.parametrize("verdict", ["pending", TIMED_OUT, "cancelled", "RESOLVED"])
def test_a_verdict_that_is_not_for_clients(conn: Connection, verdict: str) -> None:
    """400 before 404 and 409, at all three doors: timeouts cannot be forged."""
    take(conn, "t")
    assert settle(conn, "nothing", verdict).status == 400
    assert fence(conn, "t", 7, "promise.settle", id="nothing", state=verdict).status == 400
    action = envelope("promise.settle", {"id": "none", "state": verdict})
    assert say(conn, "task.fulfill", id="none", version=1, action=action).status == 400


@PROFILES
def test_one_awaited_twice_in_a_suspend(conn: Connection, profile: str) -> None:
    """400 (the server says 200)."""
    play(conn, profile)
    make(conn, "x", external="true")
    take(conn, "t")
    assert suspend(conn, "t", 1, "x", "x").status == 400


def test_nobody_awaits_or_fences_himself(conn: Connection) -> None:
    """400: a deadlock by construction, or a way around task.fulfill."""
    take(conn, "t")
    assert suspend(conn, "t", 1, "t").status == 400
    assert say(conn, "promise.register_callback", awaited="t", awaiter="t").status == 400
    assert fence(conn, "t", 1, "promise.settle", id="t", state="resolved").status == 400
    assert fence(conn, "t", 1, "promise.create", id="t", timeoutAt=NEVER).status == 400
    assert fence(conn, "none", 1, "promise.settle", id="none", state="resolved").status == 400


@PROFILES
def test_an_action_on_another_object(conn: Connection, profile: str) -> None:
    """A suspend for another awaiter, a fulfil of another promise: 400 (the specification ignores it)."""
    play(conn, profile)
    make(conn, "x", external="true")
    for name in ("t", "other"):
        take(conn, name)
    foreign = envelope("promise.register_callback", {"awaited": "x", "awaiter": "other"})
    assert say(conn, "task.suspend", id="t", version=1, actions=[foreign]).status == 400
    verdict = envelope("promise.settle", {"id": "other", "state": "resolved"})
    assert say(conn, "task.fulfill", id="t", version=1, action=verdict).status == 400
    assert (state(conn, "t"), state(conn, "other")) == ("acquired", "acquired")


@pytest.mark.parametrize(("profile", "status"), [STRICT, COMPATIBLE])
def test_a_timer_with_a_target(conn: Connection, at_every_door: Any, profile: str, status: int) -> None:
    """Strict: 400 at every door, schedules too. Compatible: accepted everywhere."""
    play(conn, profile)
    answers = at_every_door(tags(timer="true", target="g"))
    assert answers == dict.fromkeys(answers, status)


def test_a_timer_with_a_target_is_resolved_by_its_deadline(conn: Connection, clock: Clock) -> None:
    """In the compatible profile it is a timer all the same, and its task is fulfilled with it."""
    make(conn, "p", clock.now_ms + 10, timer="true", target="g")
    clock.advance(10)
    tick(conn)
    assert (say(conn, "promise.get", id="p").promise["state"], state(conn, "p")) == ("resolved", "fulfilled")


@pytest.mark.parametrize("kind", ["promise.settel", "promise.get", "task.fulfill", "", "settle"])
def test_a_fence_around_something_else(conn: Connection, kind: str) -> None:
    """400: a word that is mistyped settles nothing."""
    take(conn, "t")
    make(conn, "x")
    assert fence(conn, "t", 1, kind, id="x", state="resolved").status == 400
    assert say(conn, "promise.get", id="x").promise["state"] == "pending"


def test_no_id_overwrites_anothers_messages(conn: Connection) -> None:
    """Messages are keyed by promise and address, not by a text made of both."""
    make(conn, "x", external="true")
    make(conn, "x:notify:http://h/p", target="g")
    make(conn, "x:notify", external="true")
    say(conn, "promise.register_listener", awaited="x", address="http://h/p")
    say(conn, "promise.register_listener", awaited="x:notify", address="http://h/p")
    settle(conn, "x")
    settle(conn, "x:notify")
    assert [promise for promise, _, _ in told(conn)] == ["x", "x:notify"]
    assert offered(conn) == [("x:notify:http://h/p", 0)]


def test_a_schedule_whose_ids_do_not_change(conn: Connection, clock: Clock) -> None:
    """Allowed, and it fires once: every later instant finds the first promise."""
    clock.set(clock.now_ms // MINUTE * MINUTE)
    assert schedule(conn, "once", tags(target="g")).status == 200
    for _ in range(3):
        clock.advance(MINUTE)
        tick(conn)
    assert [each["id"] for each in say(conn, "promise.search").data["promises"]] == ["once"]
    assert offered(conn) == [("once", 0)]


# where specification and server disagree


@pytest.mark.parametrize("door", ["register_callback", "register_listener", "suspend"])
@pytest.mark.parametrize(("profile", "status"), [("strict", 422), COMPATIBLE])
def test_waiting_for_what_is_internal(conn: Connection, door: str, profile: str, status: int) -> None:
    """Strict: 422 at the three doors, as specified. Compatible: 200, as the server does."""
    play(conn, profile)
    take(conn, "t")
    make(conn, "inside")
    said = {
        "register_callback": lambda: say(conn, "promise.register_callback", awaited="inside", awaiter="t"),
        "register_listener": lambda: say(
            conn, "promise.register_listener", awaited="inside", address="poll://any@g"
        ),
        "suspend": lambda: suspend(conn, "t", 1, "inside"),
    }[door]()
    assert said.status == status


@PROFILES
def test_waiting_for_what_does_not_exist(conn: Connection, profile: str) -> None:
    """404 where it is the first object of the request, 422 where it is the second."""
    play(conn, profile)
    take(conn, "t")
    make(conn, "x", external="true")
    assert say(conn, "promise.register_callback", awaited="none", awaiter="t").status == 404
    assert say(conn, "promise.register_callback", awaited="x", awaiter="none").status == 422
    assert say(conn, "promise.register_callback", awaited="t", awaiter="x").status == 422
    assert say(conn, "promise.register_listener", awaited="none", address="poll://any@g").status == 404
    assert suspend(conn, "t", 1, "x", "none").status == 422
    assert count(conn, "_callbacks") == 0


@PROFILES
@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("poll://any@g", 200),
        ("poll://uni@g/id", 200),
        ("https://host/path", 200),
        ("gcps://project/topic", 400),
        ("mailto:someone", 400),
        ("poll://uni@g", 400),
    ],
)
def test_listeners_at_any_address(conn: Connection, address: str, status: int, profile: str) -> None:
    """What can be routed is accepted in its canonical form, what cannot is 400 before 404."""
    play(conn, profile)
    make(conn, "x", external="true")
    assert say(conn, "promise.register_listener", awaited="x", address=address).status == status
    missing = say(conn, "promise.register_listener", awaited="none", address=address).status
    assert missing == (404 if status == 200 else 400)
    if status == 200:
        assert count(conn, "_listeners where address = durable._canonical_address(address)") == 1


@PROFILES
def test_awaiting_across_origins(conn: Connection, profile: str) -> None:
    """200: trees may wait for each other (the server says 400)."""
    play(conn, profile)
    make(conn, "one", external="true", origin="one")
    make(conn, "two", target="g", origin="two")
    assert say(conn, "promise.register_callback", awaited="one", awaiter="two").status == 200
    acquire(conn, "two", 0)
    assert suspend(conn, "two", 1, "one").status == 200


@PROFILES
def test_heartbeats(conn: Connection, clock: Clock, profile: str) -> None:
    """Tasks of several origins are renewed together; what is not held is passed over."""
    play(conn, profile)
    for name in ("one", "two.1"):
        take(conn, name, ttl=10)
    clock.advance(9)
    beaten = [{"id": "one", "version": 1}, {"id": "two.1", "version": 1}, {"id": "none", "version": 3}]
    assert say(conn, "task.heartbeat", pid="P", tasks=beaten) == Said(status=200, data={})
    assert say(conn, "task.heartbeat", pid="Q", tasks=beaten[:1]).status == 200
    assert count(conn, f"_tasks where expires_at = {clock.now_ms + 10}") == 2


@PROFILES
def test_searches_are_served(conn: Connection, profile: str) -> None:
    """200 for all three (the specification says 501)."""
    play(conn, profile)
    assert [say(conn, f"{kind}.search").status for kind in ("promise", "task", "schedule")] == [200] * 3


def test_a_heartbeat_after_the_deadline(conn: Connection, clock: Clock) -> None:
    """Ignored; the task is fulfilled."""
    take(conn, "t", clock.now_ms + 10, ttl=1000)
    clock.advance(10)
    assert say(conn, "task.heartbeat", pid="P", tasks=[{"id": "t", "version": 1}]).status == 200
    assert say(conn, "task.get", id="t").task == {"id": "t", "state": "fulfilled", "version": 1, "resumes": 0}


def test_a_callback_on_a_settled_promise_wakes_nobody(conn: Connection) -> None:
    """A suspended awaiter stays as it is (the server makes it pending): the caller has the answer."""
    for name in ("x", "y"):
        make(conn, name, external="true")
    take(conn, "t")
    suspend(conn, "t", 1, "y")
    settle(conn, "x")
    assert say(conn, "promise.register_callback", awaited="x", awaiter="t").promise["state"] == "resolved"
    assert say(conn, "task.get", id="t").task == {"id": "t", "state": "suspended", "version": 1, "resumes": 0}


@pytest.mark.parametrize("tag", ["external", "timer"])
def test_a_listener_on_a_promise_without_a_task_is_told_of_its_deadline(
    conn: Connection, clock: Clock, tag: str
) -> None:
    """One unblock, with the verdict of the deadline (the server sends none)."""
    make(conn, "x", clock.now_ms + 10, **{tag: "true"})
    say(conn, "promise.register_listener", awaited="x", address="poll://any@g")
    clock.advance(10)
    tick(conn)
    tick(conn)
    assert told(conn) == [("x", "poll://any@g", "resolved" if tag == "timer" else TIMED_OUT)]


def test_creating_a_task_for_a_promise_without_one(conn: Connection) -> None:
    """422 if the promise that exists has no target, 400 if the request names none."""
    make(conn, "n")
    assert task_with(conn, tags(target="g")).status == 422
    assert task_with(conn, {}).status == 400
