"""Law: what a session or the driver has cached of the schema is no fault of a run, and a value that Python
has no form for is an error at the statement that returned it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker, ctx
from pyengine.errors import EncodeError

app = App()


@app.workflow
async def pay() -> int:
    """Adds one to the account, and answers the balance before."""
    async with ctx.transaction() as tx:
        row = await tx.fetchrow("select * from account where id = 1 for update")
        await tx.execute("update account set balance = balance + 1 where id = 1")
    assert row is not None
    return int(row["balance"])


@app.workflow
async def corners() -> int:
    """Reads composites, whose form the driver keeps."""
    async with ctx.transaction() as tx:
        rows = await tx.fetch("select place from corner")
    return len(rows)


async def _all_well(client: Client, workflow: Any, count: int = 12) -> None:
    runs = [await client.start(workflow) for _ in range(count)]
    for run in runs:
        await run.result(timeout=30)


DDL = [
    "alter table account add column note text",
    "alter table account alter column balance type bigint",
    "alter table account drop column kind",
]


def test_a_changed_table_fails_no_transaction(dsn: str) -> None:
    """Plans that a connection has prepared are stale after DDL: each transaction completes, each once."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table account (id int primary key, balance int, kind text default 'a')")
        conn.execute("insert into account values (1, 0)")

        async def main() -> None:
            async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
                await _all_well(client, pay)
                for statement in DDL:
                    conn.execute(statement)
                    await _all_well(client, pay)

        asyncio.run(main())
        balance = conn.execute("select balance from account").fetchone()
        assert balance == (12 * (1 + len(DDL)),)


def test_a_changed_type_fails_no_transaction(dsn: str) -> None:
    """The driver keeps the form of a composite type; a row of the changed type is read all the same."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create type spot as (x int)")
        conn.execute("create table corner (place spot)")
        conn.execute("insert into corner values (row(7))")

        async def main() -> None:
            async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
                await _all_well(client, corners)
                conn.execute("alter type spot add attribute y text")
                await _all_well(client, corners)

        asyncio.run(main())


@app.workflow(any_signal=True)
async def odd_value(query: str, how: str) -> str:
    """Reads a value that Python has no form for, and goes on in the same transaction."""
    async with ctx.transaction() as tx:
        said = ""
        try:
            if how == "fetch":
                await tx.fetch(query)
            else:
                await tx.fetchval(query)
        except EncodeError as error:
            said = str(error)
        left = await tx.fetchval("select 5")
    await ctx.receive("go")
    return f"{said} {left}"


VALUES = [
    "'0044-03-15 BC'::date",
    "'20000-01-01'::timestamptz",
    "'24:00'::time",
    "array['24:00'::time]",
    "daterange('0044-03-15 BC', null)",
]


@pytest.mark.parametrize("how", ["fetch", "fetchval"])
def test_a_value_that_python_lacks_is_an_error_at_its_statement(dsn: str, how: str) -> None:
    """Live and in a replay the code sees an error that says what to do, and the transaction goes on."""

    async def main() -> None:
        async with Client(dsn, registry=app.registry) as client:
            async with Worker(app.registry, dsn):
                runs = [await client.start(odd_value, f"select {value}", how) for value in VALUES]
                for run in runs:
                    while (await run.get()).state != "waiting":
                        await asyncio.sleep(0.01)
            for run in runs:
                await run.signal("go", None)
            async with Worker(app.registry, dsn):
                for run in runs:
                    said = await run.result(timeout=30)
                    assert "cast it in the statement" in said and said.endswith(" 5")

    asyncio.run(main())


@app.workflow
async def uncaught() -> None:
    """Does not expect it."""
    async with ctx.transaction() as tx:
        await tx.fetchval("select '24:00'::time")


def test_a_value_that_python_lacks_fails_the_run(dsn: str) -> None:
    """A run that does not handle the error fails, as for any other error; it is not halted."""

    async def main() -> None:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(uncaught)
            with pytest.raises(Exception, match="failed") as failed:
                await run.result(timeout=30)
            assert isinstance(failed.value.__cause__, EncodeError)

    asyncio.run(main())
