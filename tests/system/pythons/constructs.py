"""Workflows that are begun on one Python and replayed on another: one for each construct of asyncio, and one
for each kind of value. Each does its part, waits for a signal, and does it again.

    python constructs.py begin SUFFIX     starts each once, until all of them wait
    python constructs.py hello            one run of two steps, and what it returns
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import enum
import random
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pyengine import App, Workflow, ctx

app = App()


class Colour(enum.StrEnum):
    """A kind of value."""

    RED = "red"


@dataclass
class Order:
    """A kind of value."""

    n: int
    price: decimal.Decimal
    made: datetime.datetime
    tags: list[str] = field(default_factory=list)
    id: uuid.UUID | None = None


@app.step
async def note(text: str) -> str:
    """What is done."""
    return text


@app.step
async def refuse(text: str) -> str:
    """What fails."""
    raise ValueError(text)


@app.step
async def order(n: int) -> Order:
    """What makes values."""
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    return Order(n, decimal.Decimal("1.50"), moment, ["a", "ß"], uuid.UUID(int=n))


@app.workflow
async def child(n: int) -> int:
    """What others start."""
    return n + 1


async def gather_errors() -> Any:
    return [str(one) for one in await asyncio.gather(note("a"), refuse("c"), return_exceptions=True)]


async def group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(two("a"))
        tasks.create_task(two("b"))


async def failing_group() -> None:
    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tidy())
            tasks.create_task(refuse("x"))


async def nested_groups() -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(group())
        async with asyncio.TaskGroup() as inner:
            inner.create_task(two("c"))


async def timeout() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await ctx.sleep("1h")


async def timeout_around_a_group() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01), asyncio.TaskGroup() as tasks:
            tasks.create_task(tidy())
            tasks.create_task(two("a"))


async def wait_for_beside_others() -> None:
    await asyncio.gather(asyncio.wait_for(two("a"), 60), two("b"))
    with contextlib.suppress(TimeoutError):
        await asyncio.gather(asyncio.wait_for(tidy(), 0.01), two("c"))


async def wait_for_a_place() -> None:
    places = asyncio.Semaphore(1)

    async def takes(name: str) -> None:
        try:
            await asyncio.wait_for(places.acquire(), 0.01)
        except TimeoutError:
            await note(f"{name} gave up")
            return
        await ctx.sleep(0.05)
        await note(name)
        places.release()

    await asyncio.gather(*(takes(name) for name in "abc"))


async def wait_first() -> None:
    tasks = [asyncio.create_task(two("a")), asyncio.create_task(tidy())]
    _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def as_completed() -> None:
    for one in asyncio.as_completed([asyncio.create_task(two(name)) for name in "ab"]):
        await note(f"first {await one}")


async def event() -> None:
    flag = asyncio.Event()

    async def waits() -> None:
        await flag.wait()
        await note("seen")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(waits())
        await note("set")
        flag.set()


async def queue() -> None:
    items: asyncio.Queue[int] = asyncio.Queue(maxsize=1)

    async def fills() -> None:
        for n in range(3):
            await items.put(n)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fills())
        for _ in range(3):
            await note(f"got {await items.get()}")


async def lock() -> None:
    mine = asyncio.Lock()

    async def holds(name: str) -> None:
        async with mine:
            await two(name)

    await asyncio.gather(holds("a"), holds("b"))


async def semaphore() -> None:
    places = asyncio.Semaphore(2)

    async def takes(name: str) -> None:
        async with places:
            await two(name)

    await asyncio.gather(*(takes(name) for name in "abc"))


async def condition() -> None:
    ready = asyncio.Condition()

    async def waits(name: str) -> None:
        async with ready:
            await ready.wait()
        await note(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(waits("a"))
        tasks.create_task(waits("b"))
        await note("now")
        async with ready:
            ready.notify_all()


async def barrier() -> None:
    gate = asyncio.Barrier(2)

    async def meets(name: str) -> None:
        await two(name)
        await gate.wait()
        await note(f"{name} met")

    await asyncio.gather(meets("a"), meets("b"))


async def shield() -> None:
    inner = asyncio.create_task(two("a"))
    outer = asyncio.shield(inner)
    outer.cancel()
    await note(await inner)


async def generator() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            for n in range(9):
                await note(f"make {n}")
                yield n
        finally:
            await note("closed")

    async with contextlib.aclosing(numbers()) as found:
        async for n in found:
            if n == 1:
                break


async def generators_left_open() -> None:
    async def numbers() -> AsyncIterator[str]:
        try:
            yield await note("made")
        finally:
            await note("closed")

    async for _ in numbers():
        break
    async for _ in numbers():
        break


async def stack() -> None:
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(note, "undo a")
        await note("do a")


async def yields() -> None:
    async def turns(name: str) -> None:
        for _ in range(2):
            await asyncio.sleep(0)
            await note(name)

    await asyncio.gather(turns("a"), turns("b"))


async def timers() -> None:
    await asyncio.gather(ctx.sleep(0.02), ctx.sleep(0.01), note("a"))


async def children() -> None:
    assert await asyncio.gather(child(1), child(2)) == [2, 3]


async def values() -> None:
    made = await order(3)
    assert made.price == decimal.Decimal("1.50") and made.tags == ["a", "ß"]
    await note(f"{made.n} {Colour.RED} {Colour.RED!r} {made.id} {made.made:%c}")


async def chances() -> None:
    drawn = [ctx.random(), random.Random(7).random(), *random.Random(7).sample(range(9), 4)]
    items = list(range(5))
    ctx.shuffle(items)
    ids = [ctx.uuid4(), ctx.uuid7()]
    await note(f"{drawn} {ids} {ctx.randint(1, 6)} {ctx.choice('abc')} {items} {ctx.now()}")


async def two(name: str) -> str:
    await note(f"{name} 1")
    return await note(f"{name} 2")


async def tidy() -> None:
    try:
        await ctx.sleep("1h")
    finally:
        async with ctx.shield():
            await note("tidied")


PARTS = (
    *(gather_errors, group, failing_group, nested_groups, timeout, timeout_around_a_group, wait_first),
    *(wait_for_beside_others, wait_for_a_place, generators_left_open),
    *(as_completed, event, queue, lock, semaphore, condition, barrier, shield, generator, stack, yields),
    *(timers, children, values, chances),
)


def _workflow(part: Any) -> Workflow[..., None]:
    async def run() -> None:
        await part()
        waiting.add(part.__name__)  # durable: ok
        await ctx.receive("go")
        await part()

    return app.workflow(name=part.__name__)(run)


# of the runs that this process began
waiting: set[str] = set()
WORKFLOWS = [_workflow(part) for part in PARTS]


async def begin(suffix: str) -> None:
    """Start each of them once, and return when all wait for their signal."""
    async with app.worker(), app.client() as client:
        for one in WORKFLOWS:
            run = await client.start(one, id=f"{one.name}-{suffix}")
            async with asyncio.timeout(60):
                while not ((state := (await run.get()).state) == "waiting" and one.name in waiting):
                    if state == "failed":
                        await run.result()
                    await asyncio.sleep(0.01)


async def hello() -> str:
    """Return what a run of two steps returns."""
    async with app.worker(), app.client() as client:
        run = await client.start(greet, "world")
        return await run.result(timeout=30)


@app.workflow
async def greet(name: str) -> str:
    """Two steps."""
    return f"{await note('hello')} {await note(name)}"


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        asyncio.run(begin(sys.argv[2]))
    else:
        print(asyncio.run(hello()))
