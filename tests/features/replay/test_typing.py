"""Steps and workflows keep the types of the functions they wrap, as mypy sees them."""

from __future__ import annotations

import pytest

from tests.support.typed import wrong_lines

SAMPLE = """
from __future__ import annotations

import asyncio
from typing import assert_type

from pyengine.context import ctx
from pyengine.core.replay.join_sets import JoinSet
from pyengine.core.definitions.registry import make_step, make_workflow
from pyengine.core.definitions.signals import Signal

approve = Signal[int]("approve")


@make_step
async def greet(name: str, times: int = 1) -> str:
    return name * times


@make_step
def count(text: str) -> int:
    return len(text)


class Shop:
    async def charge(self, amount: int) -> str:
        return str(amount)


charge = make_step(Shop().charge, name="charge")


@make_workflow
async def child(n: int) -> list[str]:
    return [await greet("x", n)]


@make_workflow
async def parent(name: str) -> int:
    text = await greet(name, times=2)
    assert_type(text, str)
    assert_type(await count(text), int)
    assert_type(await child(3), list[str])
    handle = ctx.start(child, 3)
    assert_type(handle.id, str)
    assert_type(await handle, list[str])
    promise = ctx.promise(int, timeout="1h")
    assert_type(await promise, int)
    a, b = await ctx.gather(greet("a"), count("b"))
    assert_type(a, str)
    assert_type(b, int)
    assert_type(await ctx.gather(*[greet(str(n)) for n in range(3)]), list[str])
    assert_type(await ctx.map(greet, ["a", "b"], concurrency=2), list[str])
    assert_type(await ctx.map(child, range(3), concurrency=None, progress=True), list[list[str]])
    assert_type(await ctx.map(count, ["a"], return_exceptions=True), list[int | BaseException])
    ctx.progress(1, 2.5, "half")
    ctx.set("stage", {"name": "a"})
    assert_type(await ctx.first(greet("a"), greet("b")), tuple[int, str])
    for one in ctx.as_completed(greet("a"), greet("b")):
        assert_type(await one, str)
    task = asyncio.create_task(greet("t"))
    assert_type(await task, str)
    x, y = await asyncio.gather(greet("a"), count("b"))
    assert_type(x, str)
    assert_type(y, int)
    await asyncio.wait_for(ctx.sleep("1s"), 2)
    assert_type(await ctx.receive(approve), int)
    assert_type(await ctx.receive(Signal("approve", str), timeout=5), str)
    assert_type(await ctx.receive("approve", type=int), int)
    assert_type(await ctx.promise(int, id="foreign"), int)
    tasks: JoinSet[str] = ctx.join_set()
    step = tasks.submit(greet("a"))
    assert_type(await step, str)
    assert_type(await tasks.next(), str)
    assert_type(await tasks.all(), list[str])
    assert_type(await charge(3), str)
    assert_type(ctx.choice([1, 2]) + ctx.randint(1, 6), int)
    assert_type(ctx.choice("ab"), str)
    assert_type(ctx.deps[Shop], Shop)
    async with ctx.shield("5s"):
        assert_type(ctx.patched("p"), bool)
    if len(tasks) > 7:
        ctx.continue_as_new("again")
    return len(text)
"""

MODELS = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar, assert_type

import msgspec
from pydantic import BaseModel, Field

from pyengine.context import ctx
from pyengine.core.definitions.registry import make_step, make_workflow
from pyengine.core.definitions.signals import Signal

T = TypeVar("T")


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Page(BaseModel, Generic[T]):
    items: list[T]


class Shipped(msgspec.Struct, tag=True):
    pet: Cat


@dataclass
class Lost:
    pets: set[str]


approve = Signal[Page[Cat]]("approve")


@make_step
async def find(page: Page[Cat], pet: Pet) -> Page[Cat]:
    return page


@make_step
def ship(pets: list[Cat | Dog]) -> Shipped | Lost | None:
    return None


@make_workflow
async def sell(pet: Pet) -> Cat | Dog:
    page = await find(Page(items=[Cat()]), pet)
    assert_type(page, Page[Cat])
    assert_type(page.items, list[Cat])
    assert_type(await ship([Cat(), Dog()]), Shipped | Lost | None)
    assert_type(await ctx.start(sell, pet), Cat | Dog)
    assert_type(await ctx.promise(Page[Dog]), Page[Dog])
    assert_type(await ctx.receive(approve), Page[Cat])
    return pet
"""

WRONG = """
from pyengine.context import ctx
from pyengine.core.definitions.registry import make_step, make_workflow


@make_step
async def greet(name: str) -> str:
    return name


@make_workflow
async def hello(name: str) -> int:
    await greet(5)
    await greet()
    number: int = await greet("x")
    ctx.start(greet, "x")
    await ctx.map(greet, [1, 2])
    ctx.progress("half")
    return number
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The lines in which mypy --strict finds errors, in one run."""
    pytest.importorskip("mypy")
    return wrong_lines(tmp_path_factory.mktemp("typing"), {"kept": SAMPLE, "models": MODELS, "wrong": WRONG})


def test_types_are_preserved(judged: dict[str, list[int]]) -> None:
    """await greet("x") is a str, a gather is a tuple of its members' types, a handle knows its result."""
    assert judged["kept"] == []


def test_types_of_models_are_preserved(judged: dict[str, list[int]]) -> None:
    """Models, generic ones and unions of them keep their types through steps, runs, promises and signals."""
    pytest.importorskip("pydantic")
    assert judged["models"] == []


def test_wrong_calls_are_found(judged: dict[str, list[int]]) -> None:
    """Wrong arguments and wrong results are errors of the type checker, each on its line."""
    assert judged["wrong"] == [13, 14, 15, 16, 17, 18]
