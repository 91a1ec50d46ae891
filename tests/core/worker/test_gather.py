"""Steps side by side, and what replay makes of them."""

from __future__ import annotations

import asyncio
import random

import psycopg

from pyengine import App, ctx

Connection = psycopg.Connection[tuple[object, ...]]


def test_steps_of_a_gather_run_at_the_same_time(dsn: str) -> None:
    """All steps of a gather are under way together, and results come in the order of the call."""
    app = App(dsn)
    together = asyncio.Barrier(5)

    @app.step
    async def step(n: int) -> int:
        await together.wait()
        return n

    @app.workflow
    async def go() -> list[int]:
        return await asyncio.gather(*(step(n) for n in range(5)))

    assert app.run(go) == [0, 1, 2, 3, 4]


def test_branches_of_sequential_steps(dsn: str) -> None:
    """Branches whose steps finish in any order give the same result when they are replayed by another
    worker.
    """
    app = App(dsn)

    @app.step
    async def step(name: str) -> str:
        await asyncio.sleep(random.random() * 0.01)
        return name

    @app.workflow
    async def go() -> list[list[str]]:
        async def branch(name: str) -> list[str]:
            found = [await step(f"{name}{n}") for n in range(4)]
            await ctx.sleep(0.01)
            return [*found, await step(f"{name}-end")]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in "abc"]
        return [task.result() for task in tasks]

    async def main() -> list[list[str]]:
        async with app.client() as client:
            run = await client.start(go)
            # three workers in turn, so that most of it is replayed twice
            for _ in range(2):
                async with app.worker():
                    await asyncio.sleep(0.03)
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == [[*(f"{name}{n}" for n in range(4)), f"{name}-end"] for name in "abc"]


def test_first_leaves_the_others_running(dsn: str) -> None:
    """ctx.first gives the first result and its place; a step that nobody wants any more is cancelled at the
    end.
    """
    app = App(dsn)
    cancelled: list[str] = []

    @app.step
    async def quick() -> str:
        return "quick"

    @app.step
    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return "slow"

    @app.workflow
    async def go() -> tuple[int, str]:
        return await ctx.first(slow(), quick())

    assert app.run(go) == (1, "quick")
    assert cancelled == ["slow"]


def test_a_step_given_up_by_a_timeout_is_cancelled(dsn: str) -> None:
    """When workflow code stops waiting for a step, its body is cancelled and the run goes on."""
    app = App(dsn)
    cancelled: list[str] = []

    @app.step
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append("slow")

    @app.step
    async def after() -> str:
        return "after"

    @app.workflow
    async def go() -> str:
        try:
            async with asyncio.timeout(0.05):
                await slow()
        except TimeoutError:
            return await after()
        return "slow"

    assert app.run(go) == "after"
    assert cancelled == ["slow"]


def test_hundreds_of_steps_of_one_run(dsn: str, conn: Connection) -> None:
    """A wide gather of steps is recorded, each step once."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.step
    def in_thread(n: int) -> int:
        return n

    @app.workflow
    async def go() -> int:
        return sum(await asyncio.gather(*((step if n % 3 else in_thread)(n) for n in range(1500))))

    assert app.run(go) == sum(range(1500))
    assert conn.execute(
        "select count(*), count(distinct child) from durable._journal where type = 'step_completed'"
    ).fetchone() == (
        1500,
        1500,
    )


def test_captured_values_are_replayed(dsn: str) -> None:
    """Time, randomness and ids are the same for every worker that continues the run."""
    app = App(dsn)
    seen: list[tuple[str, float, str]] = []

    @app.workflow
    async def go() -> int:
        seen.append((ctx.now().isoformat(), ctx.random(), str(ctx.uuid4())))
        await ctx.receive("go on")
        return len(seen)

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(go)
            async with app.worker():
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.005)
            async with app.worker():
                await run.signal("go on")
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 2
    assert seen[0] == seen[1]
