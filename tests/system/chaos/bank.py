"""The bank: transfers between accounts in tables of the user's own, run by real workers that are killed and
frozen meanwhile. Nothing here asserts.
"""

from __future__ import annotations

import asyncio
import random

from pyengine import App, ctx

app = App()
DELAY_S = 0.02
TABLES = """
create table account (name text primary key, amount bigint not null check (amount >= 0));
create table entry (
  run text not null, leg text not null, account text not null references account, amount bigint not null);
create table receipt (run text not null, words text not null);
"""


class Insufficient(Exception):
    """The account does not hold that much."""


@app.step
async def check(account: str) -> str:
    """Something before the money moves."""
    await asyncio.sleep(random.random() * DELAY_S)  # durable: ok
    return account


@app.workflow
async def write_receipt(run: str, words: str) -> None:
    """Started with the money, in its transaction."""
    async with ctx.transaction("receipt") as tx:
        await tx.execute("insert into receipt (run, words) values ($1, $2)", run, words)


@app.workflow
async def transfer(source: str, target: str, amount: int) -> int:
    """Two legs, each in a transaction of its own, with a step between them; answers what is left."""
    run = ctx.run_id
    await check(source)
    try:
        async with ctx.transaction("debit") as tx:
            left: int = await tx.fetchval("select amount from account where name = $1 for update", source)
            await tx.execute("select pg_sleep($1)", random.random() * DELAY_S)  # durable: ok
            if left < amount:
                raise Insufficient(source)
            await tx.execute("update account set amount = amount - $2 where name = $1", source, amount)
            await tx.execute("insert into entry values ($1, 'debit', $2, $3)", run, source, -amount)
            await tx.start(write_receipt, run, f"{amount} from {source} to {target}", id=f"{run}-receipt")
    except Insufficient:
        return -1
    await check(target)
    async with ctx.transaction("credit") as tx:
        await tx.execute("insert into entry values ($1, 'credit', $2, $3)", run, target, amount)
        await tx.execute("select pg_sleep($1)", random.random() * DELAY_S)  # durable: ok
        await tx.execute("update account set amount = amount + $2 where name = $1", target, amount)
    return left - amount


@app.workflow
async def one_entry() -> str:
    """One leg."""
    async with ctx.transaction("entry") as tx:
        await tx.execute("insert into entry values ($1, 'entry', 'a0', 1)", ctx.run_id)
    return "done"
