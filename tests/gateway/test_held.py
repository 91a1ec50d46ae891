"""Law: a user's open transaction stops no gateway. What it has locked is left out or refused soon, everybody
else gets their messages meanwhile, and after the commit the rest comes, once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine.database.connection import Database
from pyengine.gateway.backend import Backend
from pyengine.gateway.envelope import Refused
from tests.gateway.http_client import FAR


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
