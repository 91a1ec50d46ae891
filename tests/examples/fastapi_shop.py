"""A FastAPI shop with a worker in its process; docs/how-to/fastapi.md.

Run it with `uvicorn tests.examples.fastapi_shop:api`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import Column, ForeignKey, Table, Text, make_url, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pyengine import App, Conflict, EngineError, InvalidRequest, NotFound

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")
engine = create_async_engine(make_url(URL).set(drivername="postgresql+asyncpg"))
new_session = async_sessionmaker(engine, expire_on_commit=False)
app = App(URL)


# -- tables


class Base(DeclarativeBase):
    """The shop's tables."""


# the engine's own: its key, for the foreign key, and its view, to join with
Table("_promises", Base.metadata, Column("id", Text(collation="C"), primary_key=True), schema="durable")
runs = Table("runs", Base.metadata, Column("id", Text), Column("state", Text), schema="durable")


class Stock(Base):
    """What is left of an item."""

    __tablename__ = "stock"

    item: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class Order(Base):
    """An order, and the run that fulfils it."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(
        Text(collation="C"), ForeignKey("durable._promises.id", ondelete="SET NULL"), index=True
    )


# -- what happens to an order


@app.step
async def pack(order: int) -> str:
    """Put the order into a parcel."""
    return f"parcel {order}"


@app.workflow
async def fulfil(order: int) -> str:
    """Pack the order."""
    return await pack(order)


# -- the service


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Serve workflows for as long as requests are served."""
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all, tables=[Stock.__table__, Order.__table__])
    async with app.worker():
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)
STATUS: dict[type, int] = {NotFound: 404, Conflict: 409, InvalidRequest: 422}


@api.exception_handler(NotFound)
@api.exception_handler(Conflict)
@api.exception_handler(InvalidRequest)
async def refuse(request: Request, error: EngineError) -> JSONResponse:
    """Answer a request that the engine refused; a subclass has the status of its class."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return JSONResponse({"detail": error.message}, status)


async def session() -> AsyncIterator[AsyncSession]:
    """A session for each request."""
    async with new_session() as opened:
        yield opened


Session = Annotated[AsyncSession, Depends(session)]


class NewOrder(BaseModel):
    """What a customer asks for."""

    item: str


@api.post("/orders", status_code=201)
async def place(wanted: NewOrder, session: Session) -> dict[str, str | int]:
    """Place an order: the order, the run that fulfils it and the stock change together, or none of them."""
    async with session.begin():
        order = Order(item=wanted.item)
        session.add(order)
        await session.flush()
        run = await app.start(fulfil, order.id, id=f"order-{order.id}", conn=session)
        order.run_id = run.id
        taken = await session.execute(
            update(Stock).where(Stock.item == wanted.item, Stock.left > 0).values(left=Stock.left - 1)
        )
        if not taken.rowcount:
            raise HTTPException(409, f"no {wanted.item} left")  # the run was never started
    return {"order": order.id, "run": run.id}


@api.get("/orders/{order_id}")
async def show(order_id: int, session: Session) -> dict[str, str]:
    """Show an order and where its run stands, by one query with a join."""
    found = await session.execute(
        select(Order.item, runs.c.state).join(runs, runs.c.id == Order.run_id).where(Order.id == order_id)
    )
    row = found.one_or_none()
    if row is None:
        raise HTTPException(404)
    return {"item": row.item, "state": row.state}


@api.get("/orders/{order_id}/run")
async def stand(order_id: int) -> dict[str, str | list[str]]:
    """Show the state of an order's run, and the reasons why it waits."""
    async with app.client() as client:
        run = client.run(f"order-{order_id}")
        status = await run.get()
        return {"state": status.state, "why": [cause.sentence for cause in await run.why()]}


@api.post("/orders/{order_id}/redrive", status_code=202)
async def redrive(order_id: int) -> None:
    """Let the run of an order go on that was set aside because its workers crashed."""
    async with app.client() as client:
        await client.run(f"order-{order_id}").redrive()


@api.get("/orders/{order_id}/parcel")
async def parcel(order_id: int) -> str:
    """Wait for the parcel of an order."""
    async with app.client() as client:
        return await client.run(f"order-{order_id}", fulfil).result(timeout="30s")
