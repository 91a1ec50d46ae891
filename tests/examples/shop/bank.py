"""The bank of the example: it knows a charge by its Idempotency-Key, as real ones do."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header
from psycopg import AsyncConnection
from pydantic import BaseModel

from tests.examples.shop.app import URL, Receipt

TABLE = """
create table if not exists bank_charge (
  payment text primary key, order_id integer not null, amount integer not null,
  refunded boolean not null default false);
"""
api = FastAPI()


class Charge(BaseModel):
    """A payment that the shop asks for."""

    order: int
    amount: int


class Refund(BaseModel):
    """A payment to be given back."""

    payment: str


@api.post("/charges")
async def charge(asked: Charge, idempotency_key: Annotated[str, Header()]) -> Receipt:
    """Take the money, once for each key."""
    async with await AsyncConnection.connect(URL, autocommit=True) as conn:
        await conn.execute(TABLE)
        await conn.execute(
            "insert into bank_charge (payment, order_id, amount) values (%s, %s, %s) on conflict do nothing",
            (idempotency_key, asked.order, asked.amount),
        )
    return Receipt(payment=idempotency_key, amount=asked.amount)


@api.post("/refunds")
async def refund(asked: Refund) -> None:
    """Give the money back; again is no error."""
    async with await AsyncConnection.connect(URL, autocommit=True) as conn:
        await conn.execute("update bank_charge set refunded = true where payment = %s", (asked.payment,))
