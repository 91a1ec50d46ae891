"""What those who watch a run see of it, while it runs and after: progress, values, children."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine import App, ChildCounts, Client, Progress, Run, RunStatus, ctx, sync
from pyengine.core.protocol.turn import RunReport, encode_reports
from pyengine.errors import DecodeError, NotFound

Connection = psycopg.Connection[tuple[Any, ...]]


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[Client]:
    """A worker, and a client beside it."""
    async with app.worker(), app.client() as client:
        yield client


async def status_with(run: Run[Any], wanted: Callable[[RunStatus], object]) -> RunStatus:
    """Wait for a status."""
    async with asyncio.timeout(20):
        async for status in run.watch():
            if wanted(status):
                return status
    raise AssertionError("the run ended before")


def test_progress_is_seen_while_a_step_runs(dsn: str, conn: Connection) -> None:
    """Without a report of the step it is sent a moment later; after the end the last one stays. The journal
    has nothing of it.
    """
    app = App(dsn)
    go_on = asyncio.Event()

    @app.step
    async def work() -> int:
        await go_on.wait()
        return 1

    @app.workflow
    async def go() -> int:
        ctx.progress(1, 3, "working")
        ctx.set("stage", {"name": "first"})
        result = await work()
        ctx.progress(3, 3)
        return result

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go, id="r")
            status = await status_with(run, lambda one: one.progress is not None)
            assert status.progress == Progress(done=1, total=3, note="working")
            assert (status.values, status.state) == ({"stage": {"name": "first"}}, "running")
            go_on.set()
            assert await run.result(timeout=20) == 1
            status = await run.get()
            assert status.progress == Progress(done=3, total=3)
            assert await run.get("stage") == {"name": "first"}
            assert await run.get("other") is None
            assert [one.progress for one in await client.list()] == [status.progress]

    asyncio.run(main())
    events = conn.execute("select event from durable.journal_events where id = 'r' order by seq").fetchall()
    assert len(events) == 5 and ("RandomGenerated",) not in events
    assert conn.execute("select done, total from durable.progress").fetchall() == [(3, 3)]


def test_values_are_read_by_type(dsn: str) -> None:
    """Plain JSON, or the type that the reader names."""
    app = App(dsn)

    @dataclass
    class Basket:
        fruit: list[str]

    @app.workflow
    async def go() -> None:
        ctx.set("basket", Basket(["apple"]))

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go)
            await run.result(timeout=20)
            assert await run.get("basket") == {"fruit": ["apple"]}
            assert await run.get("basket", Basket) == Basket(["apple"])
            assert await client.get_value(run.id, "basket", Basket) == Basket(["apple"])
            with pytest.raises(DecodeError, match="the value basket of run"):
                await run.get("basket", int)
            with pytest.raises(NotFound):
                await client.run("nobody").get("basket")

    asyncio.run(main())


def test_a_run_without_progress_pays_nothing(dsn: str, conn: Connection) -> None:
    """Its reports are as long as before, and no row is written."""
    app = App(dsn)

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def go() -> int:
        return await work()

    assert app.run(go) == 1
    assert conn.execute("select count(*) from durable._progress").fetchone() == (0,)
    assert "progress" not in encode_reports([RunReport(1, "r", 1, 1)])


@pytest.mark.parametrize("in_thread", [False, True])
def test_steps_set_progress(dsn: str, in_thread: bool) -> None:
    """While they run, in a loop without a pause too; the last one before their end counts, and what the
    workflow sets after it replaces that.
    """
    app = App(dsn)
    go_on = threading.Event()

    def advance() -> None:
        for number in range(10_000):
            ctx.progress(number, 10_000, "a step")
        ctx.set("from", "the step")

    @app.step
    def blocking() -> None:
        advance()
        go_on.wait(20)
        ctx.progress(10_000, 10_000)

    @app.step
    async def awaiting() -> None:
        advance()
        await asyncio.to_thread(go_on.wait, 20)
        ctx.progress(10_000, 10_000)

    @app.workflow
    async def go(then: bool) -> None:
        ctx.progress(0, 1)
        await (blocking() if in_thread else awaiting())
        if then:
            ctx.progress(1, 1, "then")

    async def main() -> None:
        async with serving(app) as client:
            runs = [await client.start(go, then) for then in (False, True)]
            for run in runs:
                status = await status_with(run, lambda one: one.progress and one.progress.done == 9999)
                assert status.values == {"from": "the step"}
            go_on.set()
            await asyncio.gather(*(run.result(timeout=20) for run in runs))
            shown = [(await run.get()).progress for run in runs]
            assert shown == [Progress(done=10_000, total=10_000), Progress(done=1, total=1, note="then")]

    asyncio.run(main())


def test_what_others_set_outlives_a_replay(dsn: str, conn: Connection) -> None:
    """Another worker replays the run from its journal and reports what its code set; what SQL set since then
    stays.
    """
    app = App(dsn)

    @app.workflow
    async def go() -> str:
        ctx.progress(0, 10)
        ctx.set("stage", "waiting")
        ctx.set("mine", 1)
        await ctx.receive("go")
        ctx.set("mine", 2)
        await ctx.receive("end")
        return "done"

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go, id="r")
            await status_with(run, lambda one: one.state == "waiting")
            conn.execute("select durable.set_progress('r', 5, 10, 'by hand')")
            conn.execute("select durable.set_value('r', 'stage', '\"by hand\"')")
        async with serving(app) as client:
            await run_again(client)

    async def run_again(client: Client) -> None:
        run = client.run("r")
        await run.signal("go")
        status = await status_with(run, lambda one: one.values["mine"] == 2)
        assert status.progress == Progress(done=5, total=10, note="by hand")
        assert status.values == {"stage": "by hand", "mine": 2}
        await run.signal("end")
        assert await run.result(timeout=20) == "done"

    asyncio.run(main())


def test_a_fork_sets_its_values_again(dsn: str) -> None:
    """The replay of its copied journal reports what the code had set at that point."""
    app = App(dsn)

    @app.step
    async def work(number: int) -> int:
        return number

    @app.workflow
    async def go() -> None:
        for number in range(3):
            await work(number)
            ctx.progress(number + 1, 3)

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go)
            await run.result(timeout=20)
            fork = await run.fork()
            await fork.result(timeout=20)
            assert (await fork.get()).progress == (await run.get()).progress == Progress(done=3, total=3)

    asyncio.run(main())


def test_a_watch_ends_with_the_run(dsn: str) -> None:
    """It shows the present state, what changes, and the end; of a run that is not there, nothing."""
    app = App(dsn)
    seen: list[RunStatus] = []

    @app.step
    async def work(number: int) -> None:
        async with asyncio.timeout(20):
            while not any(one.progress and one.progress.done == number for one in seen):
                await asyncio.sleep(0.02)

    @app.workflow
    async def child(number: int) -> None:
        if number == 1:
            raise ValueError("one of them")

    @app.workflow
    async def go() -> None:
        await ctx.map(child, range(3), return_exceptions=True)
        for number in range(3):
            ctx.progress(number, 3)
            await work(number)

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go)
            async for status in run.watch():
                seen.append(status)
            assert seen[-1].state == "completed"
            assert seen[-1].children == ChildCounts(total=3, done=2, failed=1, running=0)
            assert {one.progress.done for one in seen if one.progress} == {0, 1, 2}
            assert [one.state async for one in run.watch()] == ["completed"]
            with pytest.raises(NotFound):
                await anext(aiter(client.watch("nobody")))

    asyncio.run(main())


def test_a_watch_asks_seldom(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hints come a watch of a run that does nothing asks a few times, and hears of the end at once."""
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        await ctx.receive("end")

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go)
            asked = 0
            inner = client.get

            async def counted(id: str) -> RunStatus:
                nonlocal asked
                asked += 1
                return await inner(id)

            monkeypatch.setattr(client, "get", counted)
            watching = asyncio.create_task(last_of(run))
            await asyncio.sleep(1.5)
            assert asked <= 8
            await run.signal("end")
            await run.result(timeout=20)
            assert (await asyncio.wait_for(watching, 20)).state == "completed"

    async def last_of(run: Run[Any]) -> RunStatus:
        return [status async for status in run.watch()][-1]

    asyncio.run(main())


def test_a_blocking_watch(dsn: str) -> None:
    """The client for blocking programs iterates as well."""
    app = App(dsn)

    @app.step
    async def work() -> None:
        await asyncio.sleep(0.5)

    @app.workflow
    async def go() -> str:
        ctx.set("stage", "working")
        await work()
        return "done"

    def watched(id: str) -> list[str]:
        with sync.Client(dsn) as client:
            states = [status.state for status in client.run(id).watch()]
            assert client.run(id).get("stage") == client.get_value(id, "stage") == "working"
            return states

    async def main() -> list[str]:
        async with serving(app) as client:
            run = await client.start(go)
            with ThreadPoolExecutor(1) as pool:
                return await asyncio.get_running_loop().run_in_executor(pool, watched, run.id)

    assert asyncio.run(main())[-1] == "completed"


def test_a_map_of_many_steps(dsn: str, conn: Connection) -> None:
    """A thousand items, no more at a time than allowed, under one lease; the run shows how far it is."""
    app = App(dsn)
    running = most = 0

    @app.step
    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    @app.workflow
    async def go() -> int:
        return sum(await ctx.map(work, range(1000), concurrency=50, progress=True))

    async def main() -> None:
        async with serving(app) as client:
            run = await client.start(go, id="r")
            assert await run.result(timeout=60) == sum(range(1000))
            assert (await run.get()).progress == Progress(done=1000, total=1000)

    asyncio.run(main())
    assert most == 50
    assert conn.execute("select task_version from durable._promises where id = 'r'").fetchone() == (1,)


def test_a_run_with_a_bar(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`progress` is an option, unless the workflow has a parameter of that name; without a terminal nothing
    is shown.
    """
    app = App(dsn)

    @app.workflow
    async def plain(number: int) -> int:
        ctx.progress(number, number)
        return number

    @app.workflow
    async def named(progress: bool) -> bool:
        return progress

    assert app.run(plain.bind(3), progress=True) == 3
    assert app.run(named, progress=False) is False
    assert app.run(named.bind(progress=False), progress=True) is False
    assert capsys.readouterr().err == ""
