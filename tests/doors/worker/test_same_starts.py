"""Law: the same call under the same id or key is the same run, however it is written."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest

from pyengine import App, RunConflict
from pyengine.sync import Client

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass
class Order:
    """An argument."""

    n: int


@dataclass
class OrderLater:
    """The same after a deploy."""

    n: int
    note: str = ""


def code(dsn: str, cls: Any) -> tuple[App, Any]:
    """Return an app, and its workflow that passes an order on to a child run."""
    app = App(dsn)

    async def pack(order: Any) -> int:
        number: int = order.n
        return number

    async def ship(order: Any, express: bool = False, *, gift: bool = False) -> int:
        result: int = await packs(cls(order.n))
        return result

    for one in (pack, ship):
        one.__annotations__["order"] = cls
    packs = app.workflow(pack)
    return app, app.workflow(ship)


def test_a_new_field_with_a_default_finds_the_run(dsn: str) -> None:
    """By id and by key; another value of the field is another call. The child run of new code has both hashes
    of its input."""

    async def main() -> None:
        app, ship = code(dsn, Order)
        async with app.client() as client:
            by_id, by_key = (
                await client.start(ship, Order(1), id="a"),
                await client.start(ship, Order(1), key="k"),
            )
        app, ship = code(dsn, OrderLater)
        async with app.worker(), app.client() as client:
            again = await client.start(ship, OrderLater(1), id="a")
            assert (again.id, again.created) == (by_id.id, False)
            assert (await client.start(ship, OrderLater(1), key="k")).id == by_key.id
            for other in (OrderLater(1, "left"), OrderLater(2)):
                with pytest.raises(RunConflict, match="'a' exists with another input"):
                    await client.start(ship, other, id="a")
            assert await again.result(timeout=20) == 1
            # the runs above are older than any worker, so they have the first rules
            assert await (await client.start(ship, OrderLater(3))).result(timeout=20) == 3

    asyncio.run(main())


def test_another_form_of_the_same_arguments_finds_the_run(dsn: str, conn: Connection) -> None:
    """By position or by name, with defaults or without, begun in SQL."""
    forms = ['[{"n": 1}]', '{"order": {"n": 1}}', '{"*": [{"n": 1}], "gift": false}', '[{"n": 1}, false]']
    for n, text in enumerate(forms):
        conn.execute("select durable.start('ship', %s, id => %s)", (text, f"r{n}"))
    app, ship = code(dsn, Order)
    calls = [ship.bind(Order(1)), ship.bind(order=Order(1), express=False), ship.bind(Order(1), gift=False)]

    async def main() -> None:
        async with app.client() as client:
            for n in range(len(forms)):
                runs = [await client.start(call, id=f"r{n}") for call in calls]
                assert [run.created for run in runs] == [False] * len(calls)
                with pytest.raises(RunConflict):
                    await client.start(ship.bind(Order(1), gift=True), id=f"r{n}")

    asyncio.run(main())


def test_the_same_start_in_a_transaction_of_the_caller_finds_the_run(dsn: str, conn: Connection) -> None:
    """With `conn=`, of asyncpg, psycopg and the blocking client, in each form, one run or many, by id and by
    key: the run is found, and the transaction goes on. Another call is RunConflict there too.
    """
    conn.execute("""select durable.start('ship', '{"order": {"n": 1}}', id => 'r')""")
    conn.execute("""select durable.start('ship', '{"*": [{"n": 1}], "gift": false}', key => 'k')""")
    app, ship = code(dsn, OrderLater)
    calls = [ship.bind(OrderLater(1)), ship.bind(order=OrderLater(1), gift=False)]
    names: list[dict[str, Any]] = [{"id": "r"}, {"key": "k"}]
    found: list[bool | None] = []

    async def play(own: Any) -> None:
        async with app.client() as client:
            for call, name in itertools.product(calls, names):
                found.append((await client.start(call, **name, conn=own)).created)
            many = await client.start_many(ship, calls * 2, ids=["r", "r", "n", None], conn=own)
            found.extend(run.created for run in many)
            # a run of this transaction is found in it too
            found.append((await client.start(ship, OrderLater(1), False, id="n", conn=own)).created)
            assert (await client.start(ship, OrderLater(2), conn=own)).created

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as theirs:
            await play(theirs)
            await theirs.rollback()
            async with app.client() as client:
                with pytest.raises(RunConflict, match="'r' exists with another input"):
                    await client.start(ship, OrderLater(2), id="r", conn=theirs)
            await theirs.rollback()
        other = await asyncpg.connect(dsn)
        async with other.transaction():
            await play(other)
        await other.close()

    asyncio.run(main())
    assert found == ([False] * 4 + [False, False, True, True, False]) * 2
    with Client(dsn, registry=app.registry) as blocking, psycopg.connect(dsn) as theirs:
        for call, name in itertools.product(calls, names):
            assert not blocking.start(call, **name, conn=theirs).created
