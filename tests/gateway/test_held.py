"""Law: a user's open transaction stops no gateway. What it has locked is left out or refused soon, everybody
else gets their messages meanwhile, and after the commit the rest comes, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pyengine.database.connection import Database
from pyengine.gateway.backend import Backend
from pyengine.gateway.envelope import Refused
from tests.gateway.http_client import FAR, Client, Poll
from tests.gateway.test_legacy import Legacy, LegacyPoll
from tests.gateway.test_poll import offer_again, offered
from tests.support.gateway import Gateway


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
    with Client(gateway.url) as client, Poll(gateway.url, "g", "a") as stream:
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
    gateway = opened(legacy_port=0)
    with Legacy(gateway.url) as legacy, LegacyPoll(gateway.legacy_url, "g", "a") as stream:
        legacy.create("t", "poll://any@g")
        first = stream.next()
        with psycopg.connect(direct) as user:
            user.execute("select from durable._tasks for update")
            assert legacy.claim("t")[0] == 503
        assert first is not None and stream.next() == first
        assert legacy.claim("t")[0] == 201


def test_a_request_behind_a_pooler(pooled: str, direct: str) -> None:
    """It waits for a user's row as long as elsewhere, and not until the gateway gives the database up."""

    async def ask() -> Refused:
        backend = Backend(Database(pooled), connections=1, max_waiting=1)
        await backend.open()
        try:
            create, _, settle = requests("h")
            assert (await backend.rpc(create))["head"]["status"] == 200
            with psycopg.connect(direct) as user:
                user.execute("select from durable._promises for update")
                with pytest.raises(Refused) as refused:
                    await backend.rpc(settle)
            assert (await backend.rpc(settle))["head"]["status"] == 200
            return refused.value
        finally:
            await backend.close()

    assert str(asyncio.run(ask())) == "the database is busy"
