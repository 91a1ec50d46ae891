"""A run that ends without receiving all signals that were sent to it."""

from __future__ import annotations

import asyncio

import psycopg

from pyengine import App, ctx

Connection = psycopg.Connection[tuple[object, ...]]


async def resolve(conn: Connection, id: str) -> None:
    """Resolve a promise as soon as it is there."""
    while not conn.execute("select from durable._promises where id = %s", (id,)).fetchall():
        await asyncio.sleep(0.005)
    conn.execute("select durable.resolve(%s, 'null')", (id,))


def leave_unread(dsn: str, conn: Connection, how: str) -> tuple[int, str]:
    """Let the run `r` end so: it `returns`, `fails`, or does so after it `begins again`; answers how many it
    left, and the sentence about it."""
    app = App(dsn)

    @app.workflow
    async def entity(left: int) -> str:
        await ctx.receive("request")
        await ctx.promise(None, name="go")
        if left:
            ctx.continue_as_new(left - 1)
        if how == "fails":
            raise ValueError("no")
        return "over"

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(entity, int(how == "begins again"), id="r")
            for _ in range(3):
                conn.execute("select durable.signal('r', 'request', '1')")
            await resolve(conn, "r.1")
            if how == "begins again":
                await resolve(conn, "r.3")
            await asyncio.wait([asyncio.ensure_future(run.result())])

    asyncio.run(main())
    unread = {"returns": 2, "fails": 2, "begins again": 1}[how]
    number = "a signal" if unread == 1 else f"{unread} signals"
    return unread, f"ended without receiving {number}: request ({unread})"
