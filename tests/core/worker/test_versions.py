"""Several versions of a workflow, and several workers."""

from __future__ import annotations

import asyncio

import psycopg

from pyengine import App, ctx

Connection = psycopg.Connection[tuple[object, ...]]


def version_app(dsn: str, *versions: str) -> App:
    """One workflow in the versions given."""
    app = App(dsn)
    for one in versions:

        @app.workflow(name="go", version=one)
        async def go(text: str, version: str = one) -> str:
            await ctx.sleep(0.01)
            return f"{text} by {version}"

    return app


def test_a_worker_claims_only_versions_that_it_knows(dsn: str) -> None:
    """A run waits for a worker that knows its workflow and version."""
    old, new = version_app(dsn, "1"), version_app(dsn, "2")

    async def main() -> list[str]:
        async with new.client() as client, old.worker():
            second = await client.start("go", "second", version="2")
            first = await client.start("go", "first", version="1")
            results = [await first.result(timeout=20)]
            assert (await second.get()).state == "queued"
            async with new.worker():
                results.append(await second.result(timeout=20))
            return results

    assert asyncio.run(main()) == ["first by 1", "second by 2"]


def test_one_worker_may_know_both(dsn: str) -> None:
    """A process with both versions serves runs of both."""
    app = version_app(dsn, "1", "2")

    async def main() -> list[str]:
        async with app.worker(), app.client() as client:
            runs = [await client.start("go", "x", version=version) for version in ("1", "2", "1")]
            return [await run.result(timeout=20) for run in runs]

    assert asyncio.run(main()) == ["x by 1", "x by 2", "x by 1"]


def test_two_workers_share_the_work(dsn: str, conn: Connection) -> None:
    """Any number of workers serve one queue; every run is done once, and woken runs continue wherever there
    is room.
    """
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    @app.workflow
    async def go(n: int) -> int:
        first = await step(n)
        await ctx.sleep(0.01)
        return first + await step(1)

    async def main() -> list[int]:
        async with app.worker(concurrency=5), app.worker(concurrency=5), app.client() as client:
            runs = await asyncio.gather(*(client.start(go, n) for n in range(60)))
            return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert asyncio.run(main()) == [n + 1 for n in range(60)]
    assert conn.execute("select count(*) from durable._journal where type = 'step_completed'").fetchone() == (
        120,
    )


def test_cold_coroutines_are_replayed(dsn: str, conn: Connection) -> None:
    """Runs whose coroutine was not kept are replayed when they wake, as often as it takes."""
    conn.execute("select durable.set_setting('max_warm', '1')")
    app = App(dsn)

    @app.workflow
    async def go(n: int) -> list[float]:
        found = []
        for _ in range(5):
            await ctx.sleep(0.005)
            found.append(ctx.random())
        return found

    async def main() -> list[list[float]]:
        async with app.client() as client, app.worker():
            runs = [await client.start(go, n) for n in range(10)]
            return [await run.result(timeout=20) for run in runs]

    results = asyncio.run(main())
    assert all(len(set(one)) == 5 for one in results)


def test_a_warm_run_that_another_worker_continued_is_replayed(dsn: str) -> None:
    """A coroutine that is warm here but was continued elsewhere is not used again."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go() -> int:
        total = 0
        for n in range(20):
            total += await step(n)
            await ctx.sleep(0.003)
        return total

    async def main() -> list[int]:
        async with app.worker(), app.worker(), app.worker(), app.client() as client:
            runs = [await client.start(go) for _ in range(6)]
            return [await run.result(timeout=30) for run in runs]

    assert asyncio.run(main()) == [190] * 6


def test_the_digest_of_the_code_is_recorded(dsn: str, conn: Connection) -> None:
    """The head of a run says which code worked on it last."""
    app = version_app(dsn, "1")

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await (await client.start("go", "x")).result(timeout=20)

    asyncio.run(main())
    assert conn.execute("select octet_length(digest) from durable._executions").fetchall() == [(32,)]
