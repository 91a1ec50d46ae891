"""Our workflows that are measured, as a user would write them. Their bodies do no work of their own; each has
a twin of the same name in the file of every system that can have one. `pyengine worker bench.workflows:app`
serves them."""

from __future__ import annotations

import asyncio
import time

from pyengine import App, Signal, ctx

app = App()
go = Signal[dict[str, int]]("go")


@app.step
async def tick(number: int) -> dict[str, int]:
    """A step that costs nothing but its record."""
    return {"number": number}


@app.step
async def stamp(number: int) -> float:
    """A step that records when it ran, in seconds of the worker's clock."""
    return time.monotonic()


@app.step
async def tenth_of_a_second(number: int) -> dict[str, int]:
    """A step that has something to wait for, so that a worker can be killed meanwhile."""
    await asyncio.sleep(0.1)
    return {"number": number}


def tenths(stamps: list[float]) -> list[float]:
    """Milliseconds a step in the first and in the last tenth of a run, from the instants of its steps."""
    tenth = max(len(stamps) // 10, 1)
    last = len(stamps) - 1
    return [
        (stamps[tenth] - stamps[0]) * 1000 / tenth,
        (stamps[last] - stamps[last - tenth]) * 1000 / tenth,
    ]


@app.workflow
async def noop(number: int) -> dict[str, int]:
    """A run without steps."""
    return {"number": number}


@app.workflow
async def few_steps(count: int) -> dict[str, int]:
    """As many steps as asked for, one after the other."""
    return {"number": sum([(await tick(index))["number"] for index in range(count)])}


@app.workflow
async def echo(payload: str) -> int:
    """A run without steps, whose arguments have a size."""
    return len(payload)


@app.workflow
async def ten_steps(number: int) -> dict[str, int]:
    """Ten steps, one after the other."""
    total = number
    for index in range(10):
        total += (await tick(index))["number"]
    return {"number": total}


@app.workflow
async def fan_out(width: int) -> dict[str, int]:
    """As many child runs as asked for, awaited together."""
    found = await ctx.gather(*(noop(index) for index in range(width)))
    return {"number": sum(one["number"] for one in found)}


@app.workflow
async def signalled(number: int) -> dict[str, int]:
    """A run that waits for one signal."""
    return await ctx.receive(go)


@app.workflow
async def long(steps: int) -> list[float]:
    """Steps one after the other; answers what one cost, early and late."""
    return tenths([await stamp(index) for index in range(steps)])


@app.workflow
async def long_wait(steps: int) -> int:
    """Steps one after the other, then a signal: what is left to do then is a replay."""
    for index in range(steps):
        await tick(index)
    await ctx.receive(go)
    return steps


@app.step
async def since(asked: float) -> float:
    """Milliseconds since an instant."""
    return (time.time() - asked) * 1000


@app.workflow
async def arrived(asked: float) -> float:
    """A run that returns the time from its start to its first turn."""
    return await since(asked)


@app.workflow
async def naps(count: int) -> list[float]:
    """A step and a durable sleep of 20 ms, again and again."""
    stamps = []
    for index in range(count):
        stamps.append(await stamp(index))
        await ctx.sleep(0.02)
    return tenths(stamps)


@app.workflow
async def napping(steps: int, every: int) -> int:
    """Steps one after the other; a durable nap after so many of them."""
    total = 0
    for index in range(steps):
        total += (await tick(index))["number"]
        if index % every == every - 1:
            await ctx.sleep(0.001)
    return total


@app.workflow(any_signal=True)
async def slow(number: int) -> dict[str, int]:
    """Ten steps of a tenth of a second each."""
    for index in range(10):
        await tenth_of_a_second(index)
    return {"number": number}


@app.step
async def rest(seconds: float) -> float:
    """A step that only takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@app.workflow
async def held(times: int, seconds: float) -> int:
    """A run that its worker never releases, so that its lease is renewed."""
    for _ in range(times):
        await rest(seconds)
    return times
