"""Law: a call of a workflow to a function of another language is a child of its run that any client of the
protocol serves; its result or error comes back as one of ours."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.envelope import acquire, envelope, say
from tests.support.verbs import (
    HASH,
    Connection,
    Held,
    ask,
    begin_run,
    cancel,
    claim,
    complete,
    events_of,
    report,
    run,
    suspend,
    take_turn,
    task_of,
)


def packed(value: Any) -> str:
    """As an SDK packs a value."""
    return base64.b64encode(json.dumps(value).encode()).decode()


def rpc(child: int, target: str = "poll://any@g", **more: Any) -> dict[str, Any]:
    """The command of a call."""
    param = json.dumps({"func": "f", "args": [1], "version": 1})
    return {"do": "rpc", "child": child, "name": "f", "queue": target, "hash": HASH, "param": param, **more}


def calling(conn: Connection, *commands: dict[str, Any], id_: str = "r") -> Held:
    """A run that waits for calls."""
    held = begin_run(conn, id_)
    answer = take_turn(conn, "W", report(held, commands=list(commands)))
    children = [command["child"] for command in commands]
    kind = "single" if len(children) == 1 else "all"
    take_turn(conn, "W", report(held, end=suspend(*children, kind=kind), seen=answer.next_of(held)))
    return held


def fulfill(conn: Connection, id_: str, state: str, value: Any, version: int = 1) -> None:
    """A client ends the task."""
    action = envelope("promise.settle", {"id": id_, "state": state, "value": {"data": packed(value)}})
    assert say(conn, "task.fulfill", id=id_, version=version, action=action).status == 200


def answer_of(conn: Connection) -> tuple[Any, bool]:
    """The last row that the run gets, decoded: the value or error, and whether it is a value."""
    row = claim(conn, "W", "q-r").rows[-2]
    return json.loads(row[6]), row[7]


def test_a_call_is_a_child_that_clients_serve(conn: Connection) -> None:
    """The promise has what an SDK would give it; a client gets its task, and the value comes back decoded."""
    calling(conn, rpc(0))
    promise = say(conn, "promise.get", id="r.0").promise
    assert json.loads(base64.b64decode(promise["param"]["data"])) == {"func": "f", "args": [1], "version": 1}
    names = ("scope", "target", "origin", "branch", "parent")
    assert [promise["tags"][f"resonate:{name}"] for name in names] == [
        "global",
        "poll://any@g",
        "r",
        "r.0",
        "r",
    ]
    assert conn.execute("select id, version from durable.task_offer('g')").fetchall() == [("r.0", 0)]
    assert acquire(conn, "r.0", 0, pid="P").status == 200
    fulfill(conn, "r.0", "resolved", {"sum": 3})
    assert answer_of(conn) == ({"sum": 3}, True)
    assert "InvokeStarted" in events_of(conn, "r")


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (
            {"__type": "error", "name": "TypeError", "message": "bad", "stack": "at x"},
            {
                "type": "TypeError",
                "module": "resonate",
                "message": "bad",
                "kind": "UserError",
                "traceback": "at x",
            },
        ),
        (
            "text",
            {
                "type": "Rejected",
                "module": "resonate",
                "message": "text",
                "kind": "Uncategorized",
                "data": "text",
            },
        ),
    ],
)
def test_an_error_comes_back(conn: Connection, sent: Any, seen: Any) -> None:
    """By its name, as an error without a class of ours."""
    calling(conn, rpc(0))
    acquire(conn, "r.0", 0, pid="P")
    fulfill(conn, "r.0", "rejected", sent)
    assert answer_of(conn) == (seen, False)


def test_nobody_serves_the_group(conn: Connection, clock: Clock) -> None:
    """The deadline is the answer."""
    calling(conn, rpc(0, timeout=50))
    clock.advance(50)
    ask(conn, ("select durable.tick()", ()))
    error, ok = answer_of(conn)
    assert (error["type"], ok) == ("Timeout", False)


def test_a_worker_that_is_lost(conn: Connection, clock: Clock) -> None:
    """Its task is offered again; the journal of the run has both attempts."""
    calling(conn, rpc(0))
    acquire(conn, "r.0", 0, pid="P", ttl=50)
    clock.advance(50)
    ask(conn, ("select durable.tick()", ()))
    acquire(conn, "r.0", 1, pid="Q")
    fulfill(conn, "r.0", "resolved", 1, 2)
    assert answer_of(conn) == (1, True)
    assert events_of(conn, "r").count("InvokeStarted") == 2


def test_a_cancelled_run_ends_its_calls(conn: Connection) -> None:
    """The client is fenced; the call says why."""
    calling(conn, rpc(0), rpc(1, "poll://any@h"))
    acquire(conn, "r.0", 0, pid="P")
    ask(conn, cancel("r", '"enough"'))
    for id_ in ("r.0", "r.1"):
        promise = say(conn, "promise.get", id=id_).promise
        assert promise["state"] == "rejected_canceled"
        value = json.loads(base64.b64decode(promise["value"]["data"]))
        assert value == {"__type": "error", "name": "Cancelled", "message": "enough"}
    assert say(conn, "task.release", id="r.0", version=1).status == 409


def test_a_call_that_a_client_cancels(conn: Connection) -> None:
    """It is cancelled for the run."""
    calling(conn, rpc(0))
    say(conn, "promise.settle", id="r.0", state="rejected_canceled", value={"data": ""})
    error, ok = answer_of(conn)
    assert (error["type"], error.get("module"), ok) == ("Cancelled", None, False)


def test_a_call_of_a_published_workflow(conn: Connection) -> None:
    """It is a child with a journal, and its origin is the caller's."""
    conn.execute("select durable.publish('w', 'g', 'f')")
    calling(conn, rpc(0))
    child = claim(conn, "W", "g")
    assert child.id == "r.0"
    take_turn(conn, "W", report(child, end=complete('"done"')))
    assert answer_of(conn) == ("done", True)


def test_a_call_of_a_service(conn: Connection) -> None:
    """A function of the database under its own address."""
    conn.execute("create function public.next(n integer) returns integer language sql as 'select n + 1'")
    conn.execute("select durable.serve('public.next(integer)')")
    calling(conn, rpc(0, "sql://public.next"))
    conn.execute("select durable.serve_v1(n.id) from durable.next_service_v1() n")
    assert answer_of(conn) == (2, True)


def test_a_run_in_the_tree_of_a_client(conn: Connection) -> None:
    """Its calls have the origin of whoever began it."""
    conn.execute("select durable.publish('w', 'default', 'f')")
    param = {"data": packed({"func": "f", "args": [], "version": 1})}
    tags = {"resonate:target": "poll://any@default", "resonate:origin": "root", "resonate:branch": "root:1"}
    say(conn, "promise.create", id="root:1", timeoutAt=10**15, param=param, tags=tags)
    held = claim(conn, "W", "default")
    take_turn(conn, "W", report(held, commands=[rpc(0)]))
    assert say(conn, "promise.get", id="root:1.0").promise["tags"]["resonate:origin"] == "root"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (rpc(0, "no where"), "child 0: 'no where' is no address"),
        (rpc(0, timeout=0), "child 0: a timeout is more than 0"),
    ],
)
def test_a_call_that_cannot_be_made(conn: Connection, wrong: dict[str, Any], why: str) -> None:
    """It halts its run; the others of the turn go on."""
    held, other = begin_run(conn, "r"), begin_run(conn, "s")
    take_turn(conn, "W", report(held, commands=[wrong]), report(other, commands=[run(0)]))
    task = task_of(conn, "r")
    assert task is not None and task[0] == "halted"
    problem = conn.execute("select problem ->> 'message' from durable.runs where id = 'r'").fetchone()
    assert problem == (why,)
    assert task_of(conn, "s.0") is not None


def test_a_fork_makes_an_open_call_again(conn: Connection) -> None:
    """With its own id, for the same address; the original goes on with its own."""
    calling(conn, rpc(0))
    conn.execute("select durable.fork('r', new_id => 'f', seq => 2)")
    promise = say(conn, "promise.get", id="f.0").promise
    assert promise["tags"]["resonate:origin"] == "f"
    rows = conn.execute("select id from durable.task_offer('g') order by 1").fetchall()
    assert rows == [("f.0",), ("r.0",)]
