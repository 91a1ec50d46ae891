"""Law: what is wrong with waiting for somebody else's promise is raised in the workflow's code, where it
awaits; code that catches it goes on, and a replay tells the same."""

from __future__ import annotations

import asyncio

import psycopg

from pyengine import App, AwaitCycle, NotFound, ctx
from pyengine.core.database.connection import Database
from pyengine.features.checks.replay_check import replay_check

Connection = psycopg.Connection[tuple[object, ...]]


def circling(dsn: str) -> App:
    """Workflows that wait for another run, or say why they cannot."""
    app = App(dsn)

    @app.workflow
    async def waiter(other: str) -> list[str]:
        try:
            value = await ctx.promise(id=other)
            return ["ended", *([value] if isinstance(value, str) else value)]
        except AwaitCycle as circle:
            await ctx.sleep(0.001)
            return [circle.message, *circle.path]
        except NotFound as missing:
            return [missing.message]

    @app.workflow
    async def parent() -> list[str]:
        return await waiter(ctx.run_id)

    @app.workflow
    async def detached() -> str:
        return ctx.start(waiter, ctx.run_id, detached=True).id

    return app


def replays(app: App, dsn: str) -> list[tuple[str, str, str | None]]:
    """Id, verdict and end of every run, replayed from its journal by code that knows nothing else."""
    report = asyncio.run(replay_check(Database(dsn), app.registry, finished=True))
    return sorted((one.id, one.verdict, one.ends) for one in report.runs)


def test_a_circle_of_runs(dsn: str, conn: Connection) -> None:
    """Of runs that wait for each other in a circle one is told, with the path, and all of them end."""
    app = circling(dsn)
    ring = {"a": "b", "b": "c", "c": "a"}

    async def main() -> dict[str, list[str]]:
        async with app.client() as client:
            runs = {one: await client.start("waiter", other, id=one) for one, other in ring.items()}
            async with app.worker():
                return {one: await run.result(timeout=60) for one, run in runs.items()}

    results = asyncio.run(main())
    (told,) = [one for one in ring if results[one][0] != "ended"]
    path = [told, ring[told], ring[ring[told]], told]
    assert results[told] == [f"{' -> '.join(path)} would wait for itself", *path]
    before = next(one for one in ring if ring[one] == told)
    assert results[before] == ["ended", *results[told]]
    assert conn.execute("select count(*) from durable._callbacks").fetchone() == (0,)
    assert replays(app, dsn) == [(one, "ok", "completed") for one in "abc"]


def test_a_promise_that_does_not_exist(dsn: str) -> None:
    """Waiting for nothing fails where it is awaited, not the run nor the turn of the others."""
    app = circling(dsn)

    async def main() -> list[list[str]]:
        async with app.client() as client:
            runs = [await client.start("waiter", f"no-{n}", id=f"r{n}") for n in range(20)]
            async with app.worker():
                return [await run.result(timeout=60) for run in runs]

    assert asyncio.run(main()) == [[f"There is no promise 'no-{n}' to wait for."] for n in range(20)]
    assert {verdict for _, verdict, _ in replays(app, dsn)} == {"ok"}


def test_a_child_that_would_wait_for_its_parent(dsn: str) -> None:
    """A child that its parent waits for is told; one that was started detached gets the result."""
    app = circling(dsn)

    async def main() -> tuple[list[str], list[str], str]:
        async with app.client() as client, app.worker():
            top = await client.start("parent", id="top")
            free = await client.start("detached", id="free")
            kid = await free.result(timeout=60)
            return await top.result(timeout=60), await client.run(kid).result(timeout=60), kid

    first, second, kid = asyncio.run(main())
    assert first == ["top.0 -> top -> top.0 would wait for itself", "top.0", "top", "top.0"]
    assert second == ["ended", kid]
