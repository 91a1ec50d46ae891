"""Programs that use all of asyncio which a workflow may use; as a script it prints a digest of what they did.

Their durable calls complete in an order that is mixed but fixed. The digest must be the same in every
process: it depends neither on PYTHONHASHSEED nor on addresses, nor on whether asyncio runs in C (``--pure``
takes the C part of asyncio away). The script imports the loop alone, not the drivers of the package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":
    package = sys.modules["pyengine"] = ModuleType("pyengine")
    package.__path__ = [str(Path(__file__).parents[3] / "pyengine")]
if "--pure" in sys.argv:
    sys.modules["_asyncio"] = None  # type: ignore[assignment]

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from tests.core.replay.loop_driver import Driver, traced

Trace = list[Any]
Program = Callable[[Driver, Trace], Coroutine[Any, Any, Any]]

_branch: ContextVar[str] = ContextVar("branch", default="root")


async def steps(driver: Driver, trace: Trace, name: str, count: int = 3) -> str:
    """Some durable calls, one after the other."""
    _branch.set(name)
    for number in range(count):
        trace.append((name, number, await driver.step(), _branch.get()))
    return name


async def gathering(driver: Driver, trace: Trace) -> None:
    """Branches of sequential steps inside gather, one of them shielded, one failing."""

    async def failing() -> None:
        await driver.step()
        raise ValueError("failing")

    branches = [steps(driver, trace, f"g{n}") for n in range(20)]
    trace.append(await asyncio.gather(*branches, asyncio.shield(steps(driver, trace, "shielded"))))
    both = await asyncio.gather(failing(), steps(driver, trace, "x"), return_exceptions=True)
    trace.append([str(each) for each in both])
    trace.append(_branch.get())


async def grouping(driver: Driver, trace: Trace) -> None:
    """A TaskGroup whose members are cancelled, which it does in the order of a set."""

    async def member(name: str) -> None:
        try:
            await steps(driver, trace, name, 5)
        finally:
            trace.append(("left", name, await driver.step()))

    async def failing() -> None:
        await driver.step()
        raise LookupError("member")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(member(f"m{number}"))
            group.create_task(failing())
    except* LookupError as errors:
        trace.append([str(each) for each in errors.exceptions])


async def waiting(driver: Driver, trace: Trace) -> None:
    """Loops over the sets that asyncio.wait returns, and starts new work from them."""
    pending = {asyncio.create_task(steps(driver, trace, f"w{n}", n % 4 + 1)) for n in range(40)}
    spawned = 0
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        trace.append([task.get_name() for task in pending])
        for task in done:
            trace.append((task.get_name(), task.result()))
            if spawned < 10:
                spawned += 1
                pending.add(asyncio.create_task(steps(driver, trace, f"again{spawned}", 1)))
    tasks = [asyncio.create_task(steps(driver, trace, f"c{n}", 1)) for n in range(20)]
    await asyncio.wait(tasks)
    for next_done in asyncio.as_completed(tasks):
        trace.append(await next_done)
    trace.append([task.get_name() for task in asyncio.all_tasks()])


async def queueing(driver: Driver, trace: Trace) -> None:
    """Producers and consumers over a Queue, a Lock, a Semaphore, an Event and a Condition."""
    queue: asyncio.Queue[str] = asyncio.Queue(maxsize=3)
    lock, semaphore, event = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    condition = asyncio.Condition(lock)

    async def produce(name: str) -> None:
        async with semaphore:
            for _ in range(4):
                await queue.put(f"{name}:{await driver.step()}")
        event.set()

    async def consume(name: str) -> None:
        await event.wait()
        while True:
            item = await queue.get()
            async with lock:
                trace.append((name, item, await driver.step()))
                condition.notify()
            queue.task_done()

    producers = [asyncio.create_task(produce(f"p{n}")) for n in range(5)]
    event.set()
    consumers = [asyncio.create_task(consume(f"c{n}")) for n in range(3)]
    await asyncio.gather(*producers)
    await queue.join()
    async with condition:
        trace.append("notified")
    for consumer in consumers:
        consumer.cancel()
    trace.append([type(each).__name__ for each in await asyncio.gather(*consumers, return_exceptions=True)])


async def timing(driver: Driver, trace: Trace) -> None:
    """Timeouts that fire and that do not, sleeps, and an async generator that is left open."""

    async def ticks() -> AsyncIterator[int]:
        try:
            for number in range(10):
                await asyncio.sleep(0.25)
                yield number
        finally:
            trace.append(("ticks closed", await driver.step()))

    loop = asyncio.get_running_loop()
    for seconds in (0.5, 2.0):
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(1)
                trace.append(("slept", loop.time()))
        except TimeoutError:
            trace.append(("timed out", loop.time()))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(driver.step(), timeout=0.1)
    async for number in ticks():
        trace.append((number, loop.time()))
        if number == 2:
            break
    sleeps = {asyncio.create_task(asyncio.sleep(n, n)) for n in range(12)}
    done, pending = await asyncio.wait(sleeps, timeout=5)
    trace.append([[task.result() for task in done], [task.get_name() for task in pending], loop.time()])
    await asyncio.sleep(0)


PROGRAMS: tuple[Program, ...] = (gathering, grouping, waiting, queueing, timing)


def play(program: Program, name: str = "run-1") -> Trace:
    """Run a program to its end; what completes next is chosen by arithmetic."""
    driver, trace = traced(name)
    task = driver.start(lambda: program(driver, trace))
    choice = 7
    while not task.done():
        choice = (choice * 1103515245 + 12345) % 2**31
        numbers = [number for number, call in driver.calls.items() if not call.done()]
        if numbers:
            driver.complete(numbers[choice // 7 % len(numbers)], choice % 1000)
        else:
            driver.fire_next()
    task.result()
    trace.append([each.message for each in driver.loop.unhandled])
    trace.append((driver.timers.delays_s, driver.timers.cancelled))
    driver.loop.close()
    return trace


def digest() -> str:
    """Return one digest of what all programs did."""
    return hashlib.sha256(repr([play(program) for program in PROGRAMS]).encode()).hexdigest()


if __name__ == "__main__":
    print(digest())
