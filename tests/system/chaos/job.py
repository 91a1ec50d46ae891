"""The workflow that plays programs: an interpreter, run by real workers that are killed and frozen meanwhile.

Steps take random time, so branches overtake each other differently in every run. Nothing here asserts.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

from pyengine import App, JoinSet, Retry, RunCancelled, RunFailed, Signal, ctx
from tests.system.chaos.leases import BEGUN, Notes
from tests.system.chaos.plans import Node

app = App()
DELAY_S = 0.02
NOTES = Notes(path) if (path := os.environ.get(BEGUN)) else None


def begun() -> None:
    """Note that the body of a step has begun."""
    if NOTES is not None:
        NOTES.begun(ctx.step.run_id, ctx.step.name)


def played(workflow: str) -> None:
    """Note that the body of a workflow has begun, the first time or again."""
    if NOTES is not None:
        NOTES.begun(ctx.run_id, workflow)


@app.step
async def double(number: int) -> int:
    """An async step."""
    begun()
    await asyncio.sleep(random.random() * DELAY_S)
    return 2 * number + 1


@app.step
def double_in_thread(number: int) -> int:
    """A sync step."""
    begun()
    time.sleep(random.random() * DELAY_S)
    return 2 * number + 1


@app.step(retry=Retry(max_attempts=4, initial="5ms", backoff=1.0))
async def triple_at_last(number: int, failures: int) -> int:
    """A step whose first attempts fail. One that is cut off counts as one too, so it may fail less often."""
    begun()
    await asyncio.sleep(random.random() * DELAY_S)
    if ctx.step.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.step.attempt}")
    return 3 * number


@app.step
async def refuse(number: int) -> int:
    """A step that always fails."""
    begun()
    raise ValueError(str(number))


@app.step
async def weigh(chance: float) -> int:
    """A step whose input is a random number of the workflow: a replay that draws another one is found."""
    begun()
    return int(chance >= 1)


@app.step
async def dawdle(number: int) -> int:
    """A step that takes longer than anybody waits."""
    begun()
    await asyncio.sleep(3600)
    return number


@app.step
async def arrive() -> None:
    """What a run does first that will be cancelled."""
    begun()


@app.step
async def clean_up(number: int, chance: float) -> int:
    """What a cancelled run does before it ends."""
    begun()
    await asyncio.sleep(random.random() * DELAY_S)
    return number


@app.step
async def tidy_up(number: int) -> int:
    """What a branch does that is given up while its run goes on."""
    begun()
    await asyncio.sleep(random.random() * DELAY_S)
    return number


@app.workflow
async def play(program: Node) -> int:
    """Play a program."""
    played("play")
    return await perform(program)


@app.workflow
async def stumble(number: int) -> int:
    """A child that fails after a step."""
    played("stumble")
    await double(number)
    raise ValueError(str(number))


@app.workflow
async def doomed(number: int) -> int:
    """A child that waits for nothing until it is cancelled, and cleans up."""
    played("doomed")
    try:
        await double(number)
        await ctx.promise(int, name="never")
    except asyncio.CancelledError:
        async with ctx.shield():
            await clean_up(number, ctx.random())
        raise
    return 0


def call(node: Node) -> Any:
    """Make the one call that a node is."""
    match node:
        case ["step", number]:
            return double(number)
        case ["thread", number]:
            return double_in_thread(number)
        case ["flaky", number, failures]:
            return triple_at_last(number, failures)
        case ["fails", number]:
            return refuse(number)
        case ["promise", number]:
            return ctx.promise(int, name=str(number))
        case ["child", inner]:
            return ctx.start(play, inner)
        case ["childfail", number]:
            return ctx.start(stumble, number)
        case ["doomed", number]:
            return ctx.start(doomed, number)
    raise ValueError(f"no such call: {node!r}")


async def outcome(made: Any) -> int:
    """Await a call; failures are numbers too."""
    try:
        return int(await made)
    except ValueError as error:
        return -int(str(error))
    except RunCancelled:
        return 0
    except RunFailed as error:
        return -int(str(error.__cause__))


async def perform(node: Node) -> int:
    """Return the number that a node stands for."""
    match node:
        case ["sleep", ms]:
            await asyncio.sleep(ms / 1000)
            return 0
        case ["random"]:
            return await weigh(ctx.random())
        case ["late", name, ms]:
            try:
                await ctx.receive(Signal[int](name), timeout=ms / 1000)
            except TimeoutError:
                return 5
            return 0
        case ["signal", name, numbers]:
            total = 0
            for place in range(1, len(numbers) + 1):
                total += place * await ctx.receive(Signal[int](name))
            return total
        case ["write", number]:
            return await write(number)
        case ["undo", number]:
            return await undo(number)
        case ["doomed", number]:
            return await outcome(call(node)) + 7 * int(number)
        case ["seq", parts]:
            return sum([await perform(part) for part in parts])
        case ["gather", parts]:
            return sum(await asyncio.gather(*(perform(part) for part in parts)))
        case ["all", parts]:
            return sum(await ctx.gather(*(perform(part) for part in parts)))
        case ["group", parts]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(perform(part)) for part in parts]
            return sum(task.result() for task in tasks)
        case ["set", members, how]:
            return await drain(members, how)
        case ["torn", siblings, number]:
            return await tear(siblings, number)
        case ["aborted", siblings, how, number]:
            return await abort(siblings, how, number)
        case ["leave", inner, numbers]:
            return await leave(inner, numbers)
    return await outcome(call(node))


async def write(number: int) -> int:
    """Rows of the user's own, written with the journal row."""
    async with ctx.transaction("write") as tx:
        await tx.execute("insert into mark values ($1, $2)", ctx.run_id, ctx.random())
        await tx.execute("select pg_sleep($1)", random.random() * DELAY_S)
        return int(await tx.fetchval("select 2 * $1::integer + 1", number))


async def undo(number: int) -> int:
    """Rows that are taken back."""
    try:
        async with ctx.transaction("undo") as tx:
            await tx.execute("insert into mark values ($1, -1)", ctx.run_id)
            raise ValueError(str(number))
    except ValueError as error:
        return -int(str(error))


async def linger(node: Node) -> None:
    """Do what never ends by itself."""
    match node:
        case ["never", _]:
            await ctx.promise(int, name="never")
        case ["nap", number]:
            await ctx.sleep(86400 + number)
        case ["deaf", number]:
            await ctx.receive(Signal[int](f"never{number}"))
        case ["dawdle", number]:
            await dawdle(number)
        case ["tidy", number]:
            try:
                await ctx.promise(int, name="never")
            except asyncio.CancelledError:
                await tidy_up(number)
                raise


async def tear(siblings: list[Node], number: int) -> int:
    """A group one member of which fails beside the others, which are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in siblings:
                group.create_task(linger(one))
            group.create_task(refuse(number))
    except* ValueError as errors:
        (error,) = errors.exceptions
        failed = -int(str(error))
    return failed


async def abort(siblings: list[Node], how: str, number: int) -> int:
    """A gather that ends before its members: one of them fails, or it takes too long."""
    tasks = [asyncio.create_task(linger(one)) for one in siblings]
    try:
        async with asyncio.timeout(0.02 if how == "late" else None):
            await asyncio.gather(*tasks, *([refuse(number)] if how == "fails" else []))
    except (TimeoutError, ValueError):
        for task in tasks:
            # one that the timeout cancelled is tidying up, and may end that
            if not task.cancelling():
                task.cancel()
        await asyncio.wait(tasks)
    return -number


async def leave(inner: Node, numbers: list[int]) -> int:
    """Play until the run is cancelled, and clean up: one step, a pause, some steps at once."""
    try:
        await arrive()
        await perform(inner)
        await ctx.promise(int, name="never")
    except asyncio.CancelledError:
        async with ctx.shield():
            await clean_up(numbers[0], ctx.random())
            await asyncio.sleep(0.005)
            await asyncio.gather(*(clean_up(number, ctx.random()) for number in numbers[1:]))
        raise
    return 0


async def drain(members: list[Node], how: str) -> int:
    """Submit calls to a join set and take all results."""
    join_set: JoinSet = ctx.join_set()
    for member in members:
        join_set.submit(call(member))
    total = 0
    while len(join_set):
        if how == "all" or (how == "mixed" and len(join_set) < len(members)):
            break
        total += await outcome(join_set.next())
    if len(join_set):
        for made in await join_set.all(return_exceptions=True):
            total += await outcome(told(made))
    return total


async def told(made: Any) -> int:
    """Return a result that was handed out as a value, or raise it."""
    if isinstance(made, BaseException):
        raise made
    return int(made)
