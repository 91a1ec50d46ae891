"""The orders of a shop: payment, approval, compensation, mail, a nightly report; docs/tutorial/shop.md.

Serve it with `pyengine worker tests.examples.shop.app:app`; web.py takes the orders.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from psycopg import AsyncConnection
from pydantic import BaseModel

from pyengine import App, Retry, Signal, ctx

URL = os.environ.get("PYENGINE_DATABASE_URL", "postgresql://localhost/shop")
BANK_URL = os.environ.get("BANK_URL", "http://127.0.0.1:8081")
APPROVAL_FROM = 1000
app = App(URL)


class Receipt(BaseModel):
    """The bank's answer to a payment."""

    payment: str
    amount: int


class Decision(BaseModel):
    """A person's decision about an order that is large."""

    approved: bool
    by: str


class NotApproved(Exception):
    """A person did not approve the order, or nobody answered in time."""


app.error(NotApproved)
approval = Signal[Decision]("approval")


# -- steps


@app.step(retry=Retry(max_attempts=8, initial="0.2s"))
async def mail(order: int, text: str) -> None:
    """Put a mail into the outbox, once for each step."""
    async with await AsyncConnection.connect(URL) as conn:
        await conn.execute(
            "insert into outbox (key, order_id, text) values (%s, %s, %s) on conflict do nothing",
            (ctx.step.idempotency_key, order, text),
        )


@app.step
async def sales(since: datetime, until: datetime) -> list[tuple[str, int]]:
    """The orders that were shipped in a period, by item."""
    async with await AsyncConnection.connect(URL) as conn:
        rows = await conn.execute(
            "select item, count(*) from orders where shipped_at >= %s and shipped_at < %s "
            "group by item order by item",
            (since, until),
        )
        return await rows.fetchall()


async def charge(order: int, amount: int) -> Receipt:
    """Charge the customer; the bank knows the attempts of one charge by their Idempotency-Key."""
    answer = await ctx.http("POST", f"{BANK_URL}/charges", json={"order": order, "amount": amount})
    return answer.json(Receipt)


async def refund(payment: str) -> None:
    """Give the money back."""
    await ctx.http("POST", f"{BANK_URL}/refunds", json={"payment": payment})


async def release(order: int, item: str) -> None:
    """Put the item back on the shelf."""
    async with ctx.transaction("release") as tx:
        await tx.execute("update stock set available = available + 1 where item = $1", item)
        await tx.execute("update orders set state = 'cancelled' where id = $1", order)


# -- workflows


@app.workflow
async def fulfil(order: int, item: str, amount: int) -> str:
    """Take the order from the shelf to the customer, or undo what was done."""
    async with ctx.transaction("reserve") as tx:
        left = await tx.fetchval(
            "update stock set available = available - 1 where item = $1 and available > 0 "
            "returning available",
            item,
        )
        if left is None:
            await tx.execute("update orders set state = 'sold out' where id = $1", order)
    if left is None:
        await mail(order, f"{item} is sold out")
        return "sold out"
    ctx.on_failure(release, order, item)

    receipt = await charge(order, amount)
    ctx.on_failure(refund, receipt.payment)

    if amount >= APPROVAL_FROM:
        await approved(order)

    async with ctx.transaction("ship") as tx:
        await tx.execute("update orders set state = 'shipped', shipped_at = now() where id = $1", order)
    await mail(order, f"{item} is on its way")
    return "shipped"


async def approved(order: int) -> None:
    """Wait until a person approves the order."""
    ctx.set("waits", "for approval")
    try:
        decision = await ctx.receive(approval, timeout=timedelta(days=2))
    except TimeoutError:
        raise NotApproved(f"order {order}: no answer within two days") from None
    finally:
        ctx.set("waits", None)
    if not decision.approved:
        await mail(order, "we cannot deliver this order")
        raise NotApproved(f"order {order}: refused by {decision.by}")


@app.schedule("0 3 * * *", timezone="Europe/Berlin")
@app.workflow
async def nightly_report(scheduled_at: datetime) -> str:
    """Report what was shipped in the day before."""
    sold = await sales(scheduled_at - timedelta(days=1), scheduled_at)
    text = ", ".join(f"{item}: {count}" for item, count in sold) or "nothing"
    await mail(0, f"shipped until {scheduled_at:%Y-%m-%d %H:%M}: {text}")
    return text
