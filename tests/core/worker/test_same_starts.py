"""Law: the same call under the same id or key is the same run, however it is written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine import App, RunConflict

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
