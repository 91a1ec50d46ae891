"""Law: a fork and a look back at a run with calls follow its journal, and a fork goes on with its results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pyengine import CallAborted, ctx
from tests.features.calls.test_call_in_workflow import Lab


@pytest.fixture
def lab(dsn: str) -> Lab:
    """Memo functions on a database of their own."""
    made = Lab(dsn)

    @made.app.memo(version="1")
    async def add(parts: list[float]) -> float:
        """Their sum."""
        made.ran["add"] += 1
        return sum(parts)

    made.add = add  # type: ignore[attr-defined]
    return made


@pytest.fixture
def rows(dsn: str) -> Callable[..., list[Any]]:
    """Asks the database of the test."""

    def ask(query: str, *values: Any) -> list[Any]:
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute(query.encode(), values).fetchall()

    return ask


async def live(run: Any) -> None:
    """Wait until the run waits."""
    while (await run.as_of()).status != "blocked":
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_a_fork_at_every_position(lab: Lab, rows: Callable[..., list[Any]], every: int) -> None:
    """By default at every third. It has the same values, and results of the copy are inputs of later calls.
    Nothing runs again except a forced call that the copy has not."""

    @lab.app.workflow
    async def go() -> list[Any]:
        one = ctx.call(lab.double, 1.0)
        await one
        two = ctx.call(lab.double, one)
        forced = await ctx.call(lab.slow, 1, cache=False)
        total = ctx.call(lab.add, [one, two])  # type: ignore[attr-defined]
        return [await two, await total, forced]

    async def body() -> list[Any]:
        lab.delays = [0.01] * 100
        async with lab.app.worker():
            run = await lab.app.start(go)
            first = await run.result()
            ((events,),) = rows("select next_seq from durable._executions where id = %s", run.id)
            found = []
            for seq in range(1, events, every):
                fork = await run.fork(seq=seq)
                found.append(await fork.result())
            return [first, found, [await run.as_of(seq=seq) for seq in range(1, events)]]

    first, found, moments = lab.run(body)
    assert first == [4.0, 6.0, 1]
    assert {tuple(each[:2]) for each in found} == {(4.0, 6.0)}
    # the forced call runs once for each fork from before it
    forced = [each[2] for each in found]
    before = sum(number > 1 for number in forced)
    assert forced == [*range(2, before + 2), *[1] * (len(forced) - before)]
    assert (lab.ran["double"], lab.ran["add"], lab.ran["slow"]) == (2, 1, before + 1)
    waits = [moment.waits_for for moment in moments if moment.status == "blocked"]
    assert waits and all(waits)
    states = [[child["state"] for child in moment.children.values()] for moment in moments]
    assert any("pending" in each for each in states) and states[0] == []


def test_a_large_result_of_the_copy(lab: Lab) -> None:
    """Its record is stored apart from the journal's row, and is read there."""

    @lab.app.memo(version="1")
    async def big(n: int) -> str:
        """A long text."""
        lab.ran["big"] += 1
        return "x" * n

    @lab.app.memo(version="1")
    async def length(text: str) -> int:
        """How long it is."""
        return len(text)

    @lab.app.workflow
    async def go() -> int:
        one = ctx.call(big, 30_000)
        await one
        await ctx.receive("go on", type=int)
        return await ctx.call(length, one)

    async def body() -> int:
        async with lab.app.worker():
            run = await lab.app.start(go)
            while 2 not in (await run.as_of()).children:
                await asyncio.sleep(0.02)
            await live(run)
            fork = await run.fork()
            await fork.signal("go on", 1)
            await run.signal("go on", 1)
            await run.result()
            return await fork.result()

    assert lab.run(body) == 30_000
    assert lab.ran["big"] == 1


def test_a_fork_of_a_run_that_waits(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Both wait for the one attempt; a fork from before the call joins it too."""

    @lab.app.workflow
    async def go() -> int:
        return await ctx.call(lab.slow, 1)

    async def body() -> list[Any]:
        lab.delays = [1.0]
        async with lab.app.worker():
            run = await lab.app.start(go)
            await live(run)
            forks = [await run.fork(), await run.fork(seq=1)]
            return [await each.result() for each in (run, *forks)]

    assert lab.run(body) == [1, 1, 1]
    assert rows("select count(*) from durable._call_attempts") == [(1,)]


def test_a_fork_of_a_call_that_was_given_up(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """With the end in the copy it is given up as well; without it, it runs."""

    @lab.app.workflow
    async def go() -> str:
        try:
            return str(await ctx.call(lab.slow, 1))
        except CallAborted as error:
            return error.code

    async def body() -> list[Any]:
        lab.delays = [30.0, 0.01]
        async with lab.app.worker():
            run = await lab.app.start(go)
            await live(run)
            ((scope, node),) = rows("select scope, decode(node, 'hex') from durable.calls")
            assert rows("select durable.call_cancel(%s, %s)", scope, node) == [("cancelled",)]
            first = await run.result()
            after, before = await run.fork(), await run.fork(seq=1)
            return [first, await after.result(), await before.result()]

    assert lab.run(body) == ["cancelled", "cancelled", "2"]


def test_a_fork_of_a_run_whose_result_was_excised(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """The recorded value stays with the journal; a call after the copy misses, and runs."""

    @lab.app.workflow
    async def go() -> list[int]:
        one = await ctx.call(lab.slow, 1)
        await ctx.receive("go on", type=int)
        return [one, await ctx.call(lab.slow, 1)]

    async def body() -> list[int]:
        lab.delays = [0.01, 0.01]
        async with lab.app.worker():
            run = await lab.app.start(go)
            while not rows("select from durable._pins"):
                await asyncio.sleep(0.02)
            await live(run)
            ((dag,),) = rows("select refs[2] from durable._objects where kind = 'exec'")
            rows("select durable.object_excise(%s, 'a secret')", dag)
            fork = await run.fork()
            await fork.signal("go on", 1)
            await run.cancel()
            return await fork.result()

    assert lab.run(body) == [1, 2]
