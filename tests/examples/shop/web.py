"""The shop's HTTP service: it takes orders and decisions.

Run it with `uvicorn tests.examples.shop.web:api`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from psycopg import AsyncConnection
from pydantic import BaseModel

from tests.examples.shop.app import URL, Decision, app, approval, fulfil

TABLES = """
create table if not exists stock (item text primary key, available integer not null check (available >= 0));
create table if not exists orders (
  id integer generated always as identity primary key, item text not null, amount integer not null,
  state text not null default 'placed', shipped_at timestamptz);
create table if not exists outbox (key text primary key, order_id integer not null, text text not null);
"""


class NewOrder(BaseModel):
    """What a customer asks for."""

    item: str
    amount: int


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    """Make the tables. Workers are processes of their own."""
    async with await AsyncConnection.connect(URL) as conn:
        await conn.execute(TABLES)
    yield
    await app.close()


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place(wanted: NewOrder) -> dict[str, int | str]:
    """Place an order: its row and its run are one commit."""
    async with await AsyncConnection.connect(URL) as conn:
        added = await conn.execute(
            "insert into orders (item, amount) values (%s, %s) returning id", (wanted.item, wanted.amount)
        )
        [(order,)] = await added.fetchall()
        run = await app.start(fulfil, order, wanted.item, wanted.amount, id=f"order-{order}", conn=conn)
    return {"order": order, "run": run.id}


@api.post("/orders/{order}/decision", status_code=202)
async def decide(order: int, decision: Decision) -> None:
    """Hand in a person's decision; once for each person."""
    async with app.client() as client:
        await client.run(f"order-{order}").signal(approval, decision, dedup=decision.by)


@api.delete("/orders/{order}", status_code=202)
async def cancel(order: int) -> None:
    """Cancel an order; what was done for it is undone."""
    async with app.client() as client:
        await client.run(f"order-{order}").cancel()


@api.get("/orders/{order}")
async def show(order: int) -> dict[str, str | None]:
    """Show where an order stands."""
    async with await AsyncConnection.connect(URL) as conn:
        found = await conn.execute("select state from orders where id = %s", (order,))
        row = await found.fetchone()
    if row is None:
        raise HTTPException(404)
    async with app.client() as client:
        run = client.run(f"order-{order}")
        return {"state": row[0], "run": (await run.get()).state, "waits": await run.get("waits", str)}
