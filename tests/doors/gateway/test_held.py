"""Law: a user's open transaction stops no gateway. What it has locked is left out or refused soon, everybody
else gets their messages meanwhile, and after the commit the rest comes, once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from math import inf
from typing import Any

import psycopg
import pytest

from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.gateway.backend import Backend
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.statements import gateway as messages
from pyengine.doors.gateway.streams.dialects import current
from pyengine.doors.gateway.streams.members import Member, Message
from pyengine.doors.gateway.streams.unblocks import Unblocks
from pyengine.features.calls.statements import push
from tests.conftest import Connection
from tests.doors.gateway.http_client import FAR, WAIT_S, Client, EventStream
from tests.doors.gateway.test_event_streams import offer_again, offered, some_members
from tests.doors.gateway.test_older import OlderClient, OlderStream
from tests.doors.gateway.test_push import report, unblocks
from tests.style.test_waits import DOORS
from tests.support.gateway import Gateway

HANDS = {
    "_promises": "id like '{}%'",
    "_tasks": "id like '{}%'",
    "_unblocks": "promise_id like '{}%'",
    "_hints": "true",
    "_site": "true",
    "settings": "true",
}


def id_of(message: dict[str, Any] | None) -> str:
    """The task or promise that a message is about."""
    assert message is not None
    data = message["data"]
    return str(data["task"]["id"] if message["kind"] == "execute" else data["promise"]["id"])


@pytest.mark.parametrize("table", HANDS)
def test_what_a_user_has_locked_stops_nobody_else(client: Client, house: str, table: str) -> None:
    """Work and reports of others come, and are acquired and ended; those that are held come afterwards."""
    group = f"held{table}"
    held, free = f"{group}-h", f"{group}-f"
    client.create(f"{held}-task", f"poll://any@{group}")
    report(client, f"{held}-over", f"poll://uni@{group}/a")
    with psycopg.connect(house) as user:
        rows = f"select from durable.{table} where {HANDS[table].format(held)} for update"
        assert user.execute(rows.encode()).rowcount
        with EventStream(client.url, group, "a") as stream:
            client.create(f"{free}-task", f"poll://any@{group}")
            report(client, f"{free}-over", f"poll://uni@{group}/a")
            found: set[str] = set()
            while not found >= {f"{free}-task", f"{free}-over"}:
                found.add(id_of(stream.next()))
            assert client.acquire(f"{free}-task")[0] == 200
            done = client.envelope("promise.settle", id=f"{free}-task", state="resolved")
            assert client.ask("task.fulfill", id=f"{free}-task", version=1, action=done)[0] == 200
            user.rollback()
            while not found >= {f"{held}-task", f"{held}-over"}:
                message = id_of(stream.next())
                assert message not in found
                found.add(message)


def test_every_statement_for_messages_is_known_to_wait_for_nobody() -> None:
    """What a gateway calls by itself is among the doors below which nothing waits."""
    procedures = [one for of in (messages, push) for one in vars(of).values() if isinstance(one, Procedure)]
    called = {name for one in procedures for name in re.findall(r"durable\.([a-z]\w+)\(", one.sql)}
    assert called - {"rpc"} <= set(DOORS)


def test_the_acknowledgment_of_a_report_that_is_held(dsn: str, direct: str, conn: Connection) -> None:
    """The others are acknowledged at once, this one after the commit, also when no stream is left; it is not
    sent again."""

    async def deliver(user: psycopg.Connection[Any]) -> list[Message]:
        database, members = Database(dsn), some_members()
        await database.open()
        link = ConnectionPool(database, "messages", 2)
        stream = members.join(Member("g", "a"), inf, inf)
        reports = Unblocks(link, members, Metrics(), dialect=current(None))
        running = asyncio.create_task(reports.poller.run())
        sent: list[Message] = []
        while len(sent) < 2:
            sent += stream.take()
            await asyncio.sleep(0.001)
        assert user.execute("select from durable._unblocks where promise_id = 'h' for update").rowcount == 1
        for message in sent:
            assert message.sent is not None
            message.sent()
        while unblocks(conn) == 2:
            await asyncio.sleep(0.001)
        members.leave(stream)
        user.rollback()
        while unblocks(conn):
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()
        return sent

    for promise in ("h", "f"):
        conn.execute(
            "select durable.rpc(x) from unnest(%s::jsonb[]) x",
            ([json.dumps(one) for one in requests(promise)],),
        )
    with psycopg.connect(direct) as user:
        sent = asyncio.run(asyncio.wait_for(deliver(user), WAIT_S))
    assert len(sent) == 2


def requests(promise: str) -> list[dict[str, Any]]:
    """The requests that make a promise, listen to it, and settle it."""
    head = {"corrId": "c", "version": "2026-04-01"}
    tags = {"resonate:external": "true"}
    return [
        {"kind": "promise.create", "head": head, "data": {"id": promise, "timeoutAt": FAR, "tags": tags}},
        {
            "kind": "promise.register_listener",
            "head": head,
            "data": {"awaited": promise, "address": "poll://uni@g/a"},
        },
        {"kind": "promise.settle", "head": head, "data": {"id": promise, "state": "resolved"}},
    ]


def test_a_task_that_could_not_be_acquired(dsn: str, direct: str, opened: Callable[..., Gateway]) -> None:
    """An acquire that is refused with 503 is no acquire: the task is offered again on the same stream."""
    offer_again(dsn, 200)
    gateway = opened()
    with Client(gateway.url) as client, EventStream(gateway.url, "g", "a") as stream:
        client.create("t", "poll://any@g")
        assert offered(stream.next()) == ("t", 0)
        with psycopg.connect(direct) as user:
            user.execute("select from durable._tasks for update")
            assert client.acquire("t")[0] == 503
        assert offered(stream.next()) == ("t", 0)
        assert client.acquire("t")[0] == 200


def test_a_task_that_could_not_be_claimed(dsn: str, direct: str, opened: Callable[..., Gateway]) -> None:
    """The same in the older API."""
    offer_again(dsn, 200)
    gateway = opened(older_port=0)
    with OlderClient(gateway.url) as older, OlderStream(gateway.older_url, "g", "a") as stream:
        older.create("t", "poll://any@g")
        first = stream.next()
        with psycopg.connect(direct) as user:
            user.execute("select from durable._tasks for update")
            assert older.claim("t")[0] == 503
        assert first is not None and stream.next() == first
        assert older.claim("t")[0] == 201


def test_a_request_behind_a_pooler(pooled: str, direct: str) -> None:
    """It waits for a user's row as long as elsewhere, and not until the gateway gives the database up."""

    async def ask() -> Refused:
        backend = Backend(Database(pooled), connections=1, max_waiting=1)
        await backend.open()
        try:
            create, _, settle = requests("h")
            assert (await backend.rpc(create["kind"], json.dumps(create)))["head"]["status"] == 200
            with psycopg.connect(direct) as user:
                user.execute("select from durable._promises for update")
                with pytest.raises(Refused) as refused:
                    await backend.rpc(settle["kind"], json.dumps(settle))
            assert (await backend.rpc(settle["kind"], json.dumps(settle)))["head"]["status"] == 200
            return refused.value
        finally:
            await backend.close()

    assert str(asyncio.run(ask())) == "the database is busy"
