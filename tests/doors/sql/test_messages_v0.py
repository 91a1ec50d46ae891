"""Law: the older messages say invoke, resume and notify; they are offered, repeated and acknowledged as the
newer ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.protocol.v0_calls import callback, completion, creation, subscription
from tests.support.clock import Clock
from tests.support.verbs import Connection, acquire, ask, create, park, refusal

OFFER_MS = 5000


def messages(conn: Connection, address: str, limit: int = 100) -> list[dict[str, Any]]:
    """What waits for an address."""
    rows = conn.execute("select durable.messages_v0(%s, %s)", (address, limit)).fetchall()
    return [message for (message,) in rows]


def invoke(id_: str, counter: int = 1) -> dict[str, Any]:
    """The first dispatch of a task."""
    return {"type": "invoke", "task": {"id": id_, "counter": counter, "rootPromiseId": id_}}


def resume(id_: str, counter: int, *leaves: str) -> dict[str, Any]:
    """A dispatch after a wake."""
    task = {"id": id_, "counter": counter, "rootPromiseId": id_, "leafPromiseIds": list(leaves)}
    return {"type": "resume", "task": task}


def test_an_invoke(conn: Connection, clock: Clock) -> None:
    """A new task is offered as an invoke under its promise's id, again after a while, until somebody acquires
    it. Its counter is the version that it will have then."""
    ask(conn, creation("p", tags='{"resonate:invoke": "poll://g:w"}'))
    assert messages(conn, "g") == [invoke("p")]
    assert messages(conn, "g") == []
    clock.advance(OFFER_MS)
    assert messages(conn, "poll://any@g") == [invoke("p")]
    ask(conn, acquire("p", 0))
    clock.advance(OFFER_MS)
    assert messages(conn, "g") == []


def test_a_resume(conn: Connection, clock: Clock) -> None:
    """A woken task is offered as a resume at the receiver of its callback, with the promises that woke it as
    leaves, and with its raised counter."""
    ask(conn, creation("p", tags='{"resonate:invoke": "g"}'))
    ask(conn, acquire("p", 0))
    for leaf in ("y", "x"):
        ask(conn, creation(leaf))
        ask(conn, callback(f"c-{leaf}", leaf, "p", recv="poll://g2:w"))
    ask(conn, park("p", "x", "y"))
    assert messages(conn, "g2") == messages(conn, "g") == []
    for leaf in ("y", "x"):
        ask(conn, completion("resolve", leaf))
    assert messages(conn, "g") == []
    assert messages(conn, "g2") == [resume("p", 2, "x", "y")]
    clock.advance(OFFER_MS)
    assert messages(conn, "g2") == [resume("p", 2, "x", "y")]
    ask(conn, acquire("p", 1))
    ask(conn, ("select durable.task_release('p', 2)", ()))
    assert messages(conn, "g") == [invoke("p", 3)]


def test_a_notification(conn: Connection, clock: Clock) -> None:
    """A subscriber is told with the older record, again and again until it acknowledges."""
    ask(conn, creation("x", "k"))
    ask(conn, subscription("x", "poll://g:w"))
    record = ask(conn, completion("resolve", "x", "u"))[2]
    told = {"type": "notify", "promise": record, "address": "poll://uni@g/w"}
    assert messages(conn, "poll://any@g/w") == []
    assert messages(conn, "poll://uni@g/w") == [told]
    assert messages(conn, "poll://uni@g/w") == []
    clock.advance(OFFER_MS)
    assert messages(conn, "poll://uni@g/w") == [told]
    ask(conn, ("select durable.unblock_acknowledge('x', 'poll://uni@g/w')", ()))
    clock.advance(10 * OFFER_MS)
    assert messages(conn, "poll://uni@g/w") == []


def test_order_and_limit(conn: Connection, clock: Clock) -> None:
    """Tasks come before notifications, each kind at most as many as asked for, the rest at the next look."""
    for id_ in ("a", "b", "c"):
        ask(conn, create(id_, target="g"))
        ask(conn, creation(f"x-{id_}"))
        ask(conn, subscription(f"x-{id_}", "g"))
        ask(conn, completion("resolve", f"x-{id_}"))
    found = messages(conn, "g", 2) + messages(conn, "g", 2)
    assert [message["type"] for message in found] == ["invoke"] * 2 + ["notify"] * 2 + ["invoke", "notify"]
    tasks = [message["task"]["id"] for message in found if message["type"] == "invoke"]
    promises = [message["promise"]["id"] for message in found if message["type"] == "notify"]
    assert (sorted(tasks), sorted(promises)) == (["a", "b", "c"], ["x-a", "x-b", "x-c"])


def test_a_member_that_is_not_preferred_waits(conn: Connection, clock: Clock) -> None:
    """A resume that prefers a member who is there is not offered to another one until its time is over."""
    ask(conn, ("select durable.worker_hello_v1('w', '{g}', '{f}', '{1}', null)", ()))
    conn.execute("update durable._workers set present = true")
    ask(conn, creation("p", tags='{"resonate:invoke": "poll://g:w"}'))
    assert messages(conn, "poll://any@g/v") == []
    assert messages(conn, "poll://any@g/w") == [invoke("p")]


@pytest.mark.parametrize(("address", "limit"), [("a b", 1), (None, 1), ("g", 0), ("g", 1001), ("g", None)])
def test_malformed_requests(conn: Connection, address: str | None, limit: int | None) -> None:
    """An address that cannot be routed, and a limit of none or too many, are WF004."""
    assert refusal(conn, ("select durable.messages_v0(%s, %s)", (address, limit))) == "WF004"


def test_one_poll_gets_messages_to_member_and_group(conn: Connection, clock: Clock) -> None:
    """poll://g:w means that member to be told and that group with a preference to be resumed: one poll under
    this text brings both."""
    ask(conn, creation(id_="x"))
    ask(conn, subscription("x", "poll://g:w"))
    ask(conn, create("t", target="poll://g:w"))
    ask(conn, completion("resolve", "x"))
    assert [message["type"] for message in messages(conn, "poll://g:w")] == ["invoke", "notify"]
