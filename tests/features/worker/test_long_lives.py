"""Chains of detached runs: a link is forked, and what has ended is removed."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from pyengine import App, ctx
from tests.system.crash.processes import until

Connection = psycopg.Connection[tuple[Any, ...]]


def test_a_chain_is_forked_and_removed(dsn: str, conn: Connection) -> None:
    """A fork of the link before one with a short id begins nothing again, and knows what its origin began;
    each part of the chain that has ended can be removed."""
    app, told, generations = App(dsn), dict[int, str](), 60

    @app.workflow
    async def poll(n: int) -> str:
        if n < generations:
            told[n + 1] = ctx.start(poll, n + 1, detached=True).id
        return told.get(n + 1, "")

    async def play() -> None:
        async with app.worker(), app.client() as client:
            await client.start(poll, 0, id="poll")
            ended = "select count(*) = %s from durable.runs where state = 'completed'"
            await asyncio.to_thread(until, dsn, ended, generations + 1)
            last = max(n for n, id_ in told.items() if "." not in id_)
            conn.execute("select durable.fork(%s, new_id => 'fork')", (told[last - 1],))
            await asyncio.to_thread(until, dsn, ended, generations + 2)
            assert await client.run("fork").result() == told[last]

    asyncio.run(play())
    free = conn.execute("select count(*) from durable.runs where parent is null").fetchone()
    assert free is not None and free[0] > 2
    assert conn.execute("select runs from durable.purge(interval '0')").fetchone() == free
    assert conn.execute("select count(*) from durable._promises").fetchone() == (0,)
