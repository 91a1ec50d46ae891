"""Law: the functions of the facade answer what the connectors of SDKs expect: envelopes and never an error,
tasks and notices by address, a wake-up when something is due, and ticks that are few and never fail."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pyengine.doors.admin import migrate
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Connection, acquire, ask, create, settle

TICK_MS = 200


@pytest.fixture
def facade(dsn: str, conn: Connection, clock: Clock) -> Connection:
    """A session of a database that has the facade; its clock stands still."""
    migrate.set_facade(dsn, True)
    return conn


@pytest.fixture
def ear(facade: Connection, direct: str) -> Iterator[Connection]:
    """A session that listens at the addresses of a group and of a member."""
    with psycopg.connect(direct, autocommit=True) as listener:
        for address in ("poll://any@g", "poll://uni@g/w"):
            listener.execute(f'listen "{channel(address)}"'.encode())
        yield listener


def channel(address: str) -> str:
    """The channel of an address, as connectors compute it."""
    return "resonate_q_" + hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()


def heard(listener: Connection, wait_s: float = 0.2) -> list[tuple[str, str]]:
    """What was heard: address and payload."""
    names = {channel(address): address for address in ("poll://any@g", "poll://uni@g/w")}
    return [(names[one.channel], one.payload) for one in listener.notifies(timeout=wait_s)]


def tick(conn: Connection) -> int:
    """A tick."""
    return int(ask(conn, ("select resonate.process_timeouts()", ()))[0])


def rpc(conn: Connection, kind: str, **data: Any) -> dict[str, Any]:
    """The answer to a request."""
    envelope = {"kind": kind, "head": {"corrId": "c", "version": "2026-04-01"}, "data": data}
    return dict(ask(conn, ("select resonate.resonate_rpc(%s::jsonb)", (json.dumps(envelope),)))[0])


def executes(conn: Connection, address: str, limit: int = 100) -> list[tuple[Any, ...]]:
    """Tasks for an address."""
    text = "select task_id, version from resonate.dequeue_execute(%s, %s)"
    return conn.execute(text.encode(), (address, limit)).fetchall()


def unblocks(conn: Connection, address: str) -> list[dict[str, Any]]:
    """Notices for an address."""
    rows = conn.execute("select promise from resonate.dequeue_unblock(%s, 100)", (address,)).fetchall()
    return [promise for (promise,) in rows]


def test_requests(facade: Connection) -> None:
    """The protocol's answers, and an envelope for what is no request or fails in the database."""
    answer = rpc(facade, "promise.create", id="p", timeoutAt=2**52, tags={})
    assert (answer["head"]["status"], answer["data"]["promise"]["id"]) == (200, "p")
    assert rpc(facade, "promise.get", id="q")["head"]["status"] == 404
    for text in ("null", "[]", "{}"):
        (answer,) = ask(facade, ("select resonate.resonate_rpc(%s::jsonb)", (text,)))
        assert answer["head"]["status"] == 400
    facade.execute("alter table durable._promises rename to _hidden")
    answer = rpc(facade, "promise.get", id="p")
    assert (answer["head"]["status"], answer["head"]["corrId"], answer["kind"]) == (500, "c", "promise.get")
    assert isinstance(answer["data"], str)
    facade.execute("alter table durable._hidden rename to _promises")


@pytest.mark.circles
def test_a_deadlock_is_tried_again(facade: Connection, stage: Stage) -> None:
    """A request that PostgreSQL gives up for a circle of locks is answered all the same."""
    ask(facade, create("b", target="g"))
    other, sdk = stage.player("other"), stage.player("sdk")
    # the session of the SDK finds the circle first
    other.do("set deadlock_timeout = '1min'").rows()
    sdk.do("set deadlock_timeout = '2s'").rows()
    other.begin()
    other.do("select from durable._tasks where id = 'b' for update").rows()
    request = {
        "kind": "promise.settle",
        "head": {"corrId": "c", "version": "2026-04-01"},
        "data": {"id": "b", "state": "resolved"},
    }
    waiting = sdk.do("select resonate.resonate_rpc(%s::jsonb) #>> '{head,status}'", (json.dumps(request),))
    assert waiting.blocked
    other.do("update durable._promises set external = external where id = 'b'").rows()
    other.rollback().rows()
    assert waiting.rows() == [("200",)]


def test_addresses(facade: Connection, clock: Clock) -> None:
    """A group has its tasks whatever member they prefer, a member its own; nothing else is handed out."""
    for id_, target in (("a", "g"), ("b", "poll://any@g/w"), ("c", "poll://uni@g/w"), ("d", "http://h/x")):
        ask(facade, create(id_, target=target))
    assert executes(facade, "poll://any@g", 1) + executes(facade, "poll://any@g") == [("a", 0), ("b", 0)]
    assert executes(facade, "poll://uni@g/w") == [("c", 0)]
    for address in ("http://h/x", "sql://a.b", "no address", None):
        assert executes(facade, str(address)) == [] == unblocks(facade, str(address))
    clock.advance(5000)
    ask(facade, acquire("a", 0))
    assert executes(facade, "poll://any@g") == [("b", 0)]


def test_notices(facade: Connection) -> None:
    """A settled promise once, in the form of the protocol; what SQL resolved is in the envelope of SDKs."""
    for id_ in ("x", "y"):
        ask(facade, create(id_, external="true"))
        rpc(facade, "promise.register_listener", awaited=id_, address="poll://uni@g/w")
    facade.execute("select durable.resolve('x', '7'), durable.reject('y')")
    found = unblocks(facade, "poll://uni@g/w")
    assert [(one["id"], one["state"]) for one in found] == [("x", "resolved"), ("y", "rejected")]
    assert found[0]["value"] == {"data": "Nw=="}
    assert unblocks(facade, "poll://uni@g/w") == []


def test_wake_ups(facade: Connection, ear: Connection) -> None:
    """One for each address and transaction when a task becomes due or a promise settles, none for other
    groups, for runs of the engine, or for what time makes due."""
    with facade.transaction():
        for n in range(3):
            ask(facade, create(f"t{n}", target="g"))
        ask(facade, create("other", target="h"))
    assert heard(ear) == [("poll://any@g", "execute")]
    ask(facade, create("own", target="poll://uni@g/w"))
    assert heard(ear) == [("poll://uni@g/w", "execute")]
    facade.execute("select durable.start('w', id => 'run', queue => 'g')")
    ask(facade, create("delayed", target="g", delay=str(2**52)))
    ask(facade, acquire("t0", 0))
    executes(facade, "poll://any@g")
    assert heard(ear) == []
    facade.execute("select durable.task_release('t0', 1)")
    assert heard(ear) == [("poll://any@g", "execute")]
    rpc(facade, "promise.register_listener", awaited="t1", address="poll://uni@g/w")
    ask(facade, settle("t1"))
    assert heard(ear) == [("poll://uni@g/w", "unblock")]


def test_ticks_are_few(facade: Connection, clock: Clock, direct: str) -> None:
    """One in 200 ms, for all workers together; a clock that was set back stops none."""
    ask(facade, create("p", timeout_at=clock.now_ms + 1, external="true"))
    assert tick(facade) == 0
    clock.advance(TICK_MS - 1)
    assert tick(facade) == 0
    clock.advance(1)
    with psycopg.connect(direct) as other:
        assert tick(other) == 1
        clock.advance(TICK_MS)
        ask(facade, create("q", timeout_at=clock.now_ms + 1, external="true"))
        clock.advance(TICK_MS)
        # the other one has not committed, and is not waited for
        assert tick(facade) == 0
    assert tick(facade) == 1
    facade.execute("update resonate._ticks set next_at = next_at + 100000")
    ask(facade, create("r", timeout_at=clock.now_ms + 1, external="true"))
    clock.advance(1)
    assert tick(facade) == 1
    facade.execute("delete from resonate._ticks")
    assert tick(facade) == 0


def test_a_tick_never_fails(facade: Connection, clock: Clock) -> None:
    """What goes wrong in it is for the log of the server; the next one comes after five seconds."""
    facade.execute("alter table durable._schedules rename to _hidden")
    assert tick(facade) == 0
    facade.execute("alter table durable._hidden rename to _schedules")
    ask(facade, create("p", timeout_at=clock.now_ms + 1, external="true"))
    clock.advance(4999)
    assert tick(facade) == 0
    clock.advance(1)
    assert tick(facade) == 1


def test_a_call_from_sql(facade: Connection, clock: Clock) -> None:
    """A promise that a function of an SDK can read, with the lineage of a root; again it is the same."""
    text = "select resonate.invoke('i', 'f', '[1, \"ü\"]', 'poll://any@g')"
    (promise,) = ask(facade, (text, ()))
    assert ask(facade, (text, ())) == (promise,)
    assert promise["timeoutAt"] == clock.now_ms + 86_400_000
    lineage = [promise["tags"][f"resonate:{name}"] for name in ("origin", "branch", "parent", "target")]
    assert lineage == ["i", "i", "i", "poll://any@g"]
    row = facade.execute("select durable._decoded(%s)", (promise["param"]["data"],)).fetchone()
    assert row == ({"func": "f", "args": [1, "ü"], "version": 1},)
    with pytest.raises(psycopg.Error) as caught:
        facade.execute("select resonate.invoke('j', 'f', '{}', 'poll://any@g')")
    assert caught.value.sqlstate == "WF004"
