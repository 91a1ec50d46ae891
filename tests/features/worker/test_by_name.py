"""Law: by name, and for a promise, an object and the JSON of its type are the same to starts, signals and
answers; what fits no type is refused where it is given."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from pyengine import App, Client, ctx
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.codec import Codec
from pyengine.errors import DecodeError, EncodeError, InvalidRequest, RunFailed


@dataclass
class Order:
    """An argument, a payload and an answer."""

    number: int


def app_of(dsn: str) -> App:
    """Three workflows, which give back what they got."""
    app = App(dsn)

    @app.workflow
    async def takes(order: Order, others: list[Order]) -> list[int]:
        return [one.number for one in (order, *others)]

    @app.workflow
    async def receives() -> int:
        return (await ctx.receive("order", type=Order)).number

    @app.workflow
    async def asks() -> int:
        return (await ctx.promise(Order, name="answer")).number

    @app.workflow
    async def sends(id: str) -> None:
        async with ctx.transaction() as tx:
            await tx.signal(f"{id}-receives", "order", Order(6))
            await tx.resolve(f"{id}-asks.0", Order(7))
            await tx.start("takes", Order(8), [], id=f"{id}-takes")

    return app


def test_objects_and_json_are_alike(dsn: str) -> None:
    """Both start the same runs, are received and answer, from a client that knows the code and from one that
    does not; a list of objects needs a client that knows it.
    """
    app = app_of(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client, Client(dsn) as stranger:
            for order in (Order(1), {"number": 1}):
                assert await (await client.start("takes", order, [{"number": 2}, {"number": 3}])) == [1, 2, 3]
                assert await (await client.start("takes", order=order, others=[Order(2)])) == [1, 2]
                assert await (await stranger.start("takes", order, [])) == [1]
                assert await (await stranger.start("takes", order=order, others=[])) == [1]
                for one in (client, stranger):
                    run = await one.start("receives")
                    await run.signal("order", order)
                    assert await run == 1
                    run = await one.start("asks")
                    while (await run.get()).state != "waiting":
                        await asyncio.sleep(0.005)
                    await one.promises.resolve(f"{run.id}.0", order)
                    assert await run == 1
            with pytest.raises(InvalidRequest, match="missing required field `number`"):
                await client.start("takes", {"nmuber": 1}, [])

    asyncio.run(main())


def test_an_answer_is_held_to_the_type_that_waits(dsn: str) -> None:
    """An answer of another JSON type, or without a key, is refused at the door; one that is wrong deeper down
    raises DecodeError where it is awaited, with the answer to blame, not the code, and code may ask again.
    """
    app = App(dsn)

    @app.workflow
    async def asks() -> str:
        try:
            await ctx.promise(Order, name="answer")
        except DecodeError as error:
            first = f"{error.message}|{error.hint}"
        return f"{first}|{(await ctx.promise(Order, name='answer')).number}"

    async def main() -> str:
        async with app.worker(dev=True), app.client() as client:
            run = await client.start(asks, id="r")
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.005)
            for wrong in ("seven", {"nmuber": 7}):
                with pytest.raises(InvalidRequest, match=r"The answer to promise 'r\.0' "):
                    await client.promises.resolve("r.0", wrong)
            await client.promises.resolve("r.0", {"number": "seven"})
            while (await run.get()).waits_for != ("promise answer [1]",):
                await asyncio.sleep(0.005)
            await client.promises.resolve("r.1", {"number": 7})
            return await run.result()

    said, hint, number = asyncio.run(main()).split("|")
    assert said.startswith("the answer to promise answer (r.0) does not fit its annotation Order: ")
    assert hint.startswith("whoever answered gave another value")
    assert number == "7"


def test_an_answer_that_nobody_catches_is_no_fault_of_the_code(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of development does not take the answer of somebody else for a difference of the code."""
    app = App(dsn)

    @app.step
    async def first() -> None: ...

    @app.workflow
    async def asks() -> int:
        await first()
        return (await ctx.promise(Order, name="answer")).number

    async def main() -> None:
        async with app.worker(dev=True), app.client() as client:
            run = await client.start(asks, id="r")
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.005)
            await client.promises.resolve("r.1", {"number": "seven"})
            with pytest.raises(RunFailed):
                await run.result()

    asyncio.run(main())
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert "the journal expects" not in errors[0]


def test_from_a_transaction(dsn: str) -> None:
    """A transaction of a workflow signals, answers and starts by name with objects too."""
    app = app_of(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            waiting = [await client.start(name, id=f"r-{name}") for name in ("receives", "asks")]
            for one in waiting:
                while (await one.get()).state != "waiting":
                    await asyncio.sleep(0.005)
            await (await client.start("sends", "r"))
            assert [await one.result() for one in waiting] == [6, 7]
            assert await client.run("r-takes").result() == [8]

    asyncio.run(main())


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), (1, 2), {1: Order(1)}])
def test_other_values_need_a_type(value: Any) -> None:
    """What has no fields would come back as something else where nobody declares its type; the hint says what
    can be given instead.
    """
    with pytest.raises(EncodeError) as caught:
        Codec({}).encode_undeclared(value, where="the value")
    assert "JSON" in (caught.value.hint or "JSON")
    assert "annotate" not in (caught.value.hint or "")


def test_the_text_of_a_call_is_one() -> None:
    """The JSON of an argument gives the text that its object gives, by position and by name."""

    def takes(order: Order, when: datetime, *more: Order, flag: bool = False) -> None: ...

    signature = Signature(takes, "workflow takes")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    text = signature.encode((Order(1), when, Order(2)), {})
    assert signature.encode_json(({"number": 1}, "2026-01-01T00:00:00Z", {"number": 2}), {}) == text
    named = signature.encode((Order(1), when), {"flag": True})
    assert signature.encode_json(({"number": 1}, when), {"flag": True}) == named
    for wrong in (({"number": "x"}, when), ({"number": 1}, 7)):
        with pytest.raises((EncodeError, InvalidRequest)):
            signature.encode_json(wrong, {})
