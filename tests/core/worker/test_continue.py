"""Continue-as-new: the same run, a new journal."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.process import clock
from pyengine.errors import RunFailed
from tests.core.worker.test_cancelling import cancel, cancelled
from tests.core.worker.test_signals import signal, waits
from tests.support.turns import Send, intercept

Connection = psycopg.Connection[tuple[object, ...]]


def generations(conn: Connection, run_id: str = "r") -> list[Any]:
    """Row types of each generation's journal, first to last."""
    return [
        row[0]
        for row in conn.execute(
            "select array_agg(j.type::text order by j.seq) from durable._executions h "
            "join durable._journal j using (execution) where h.id = %s "
            "group by h.execution order by h.execution",
            (run_id,),
        )
    ]


def test_a_run_goes_on_with_new_arguments(dsn: str, conn: Connection) -> None:
    """Each generation has a journal of its own; id, promise and child numbers go on, and the last one's
    result is the run's. The first one was started without an argument, so its journal keeps the default.
    """
    app = App(dsn)
    keys: list[str] = []

    @app.step
    async def note(n: int) -> int:
        keys.append(ctx.step.idempotency_key)
        return n

    @app.workflow
    async def count(n: int, total: int = 0) -> int:
        total += await note(n)
        if n < 3:
            ctx.continue_as_new(n + 1, total=total)
        return total

    async def main() -> int:
        async with app.client() as client, app.worker():
            return await (await client.start(count, 1, id="r")).result(timeout=20)

    assert asyncio.run(main()) == 6
    assert generations(conn) == [
        ["execution_started", "random_generated", "step_completed", "execution_completed"],
        ["execution_started", "step_completed", "execution_completed"],
        ["execution_started", "step_completed", "execution_completed"],
    ]
    assert keys == ["r.1", "r.2", "r.3"]
    assert conn.execute("select count(*) from durable.runs").fetchone() == (1,)


def test_signals_are_carried_over(dsn: str, conn: Connection) -> None:
    """What was sent and not received yet is received by the next generation, in the order of sending."""
    app = App(dsn)

    @app.workflow
    async def go(found: list[int]) -> list[int]:
        found = [*found, await ctx.receive("n", type=int)]
        if len(found) < 3:
            ctx.continue_as_new(found)
        return [*found, await ctx.receive("n", type=int)]

    async def main() -> list[int]:
        async with app.client() as client:
            run = await client.start(go, [], id="r")
            for n in (1, 2, 3):
                signal(conn, "n", n)
            async with app.worker():
                await waits(run)
                signal(conn, "n", 4)
                return await run.result(timeout=20)

    assert asyncio.run(main()) == [1, 2, 3, 4]
    assert len(generations(conn)) == 3


@pytest.mark.parametrize("moment", ["before", "in the gap"])
def test_a_signal_that_nobody_looked_at_is_carried_over(dsn: str, conn: Connection, moment: str) -> None:
    """A signal that came for a receive that was given up, even right before the turn that continues, is the
    first one that the next generation receives.
    """
    app = App(dsn)
    given_up, sent = asyncio.Event(), []

    @app.step
    async def pause() -> None:
        given_up.set()
        while moment == "before" and "signal_received" not in generations(conn)[0]:
            await asyncio.sleep(0.005)

    @app.workflow
    async def go(first: bool) -> list[Any]:
        if first:
            with pytest.raises(TimeoutError):
                await ctx.receive("word", timeout=0.02)
            await pause()
            ctx.continue_as_new(False)
        return [await ctx.receive("word"), await ctx.receive("word")]

    async def watch(send: Send, arguments: tuple[Any, ...]) -> Any:
        if moment == "in the gap" and not sent and any('"continue"' in str(one) for one in arguments):
            sent.append(signal(conn, "word", "first"))
        return await send()

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            run = await client.start(go, True, id="r")
            await given_up.wait()
            if moment == "before":
                signal(conn, "word", "first")
            while len(generations(conn)) < 2:
                await asyncio.sleep(0.005)
            signal(conn, "word", "second")
            return await run.result(timeout=20)

    undo = intercept(watch)
    try:
        assert asyncio.run(main()) == ["first", "second"]
    finally:
        undo()


def test_another_worker_takes_the_next_generation(dsn: str, conn: Connection) -> None:
    """Nothing of an earlier generation is needed to go on, and a replay begins with the last one."""
    app = App(dsn)
    ran: list[int] = []

    @app.step
    async def note(n: int) -> int:
        ran.append(n)
        return n

    @app.workflow
    async def go(n: int) -> int:
        await note(n)
        if n < 2:
            ctx.continue_as_new(n + 1)
        await ctx.receive("go on")
        await note(99)
        return n

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(go, 0, id="r")
            async with app.worker():
                await waits(run)
            async with app.worker():
                signal(conn, "go on")
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 2
    assert ran == [0, 1, 2, 99]


def test_a_later_generation_can_be_cancelled(dsn: str, conn: Connection) -> None:
    """A request reaches the run as it is now."""
    app = App(dsn)

    @app.workflow
    async def go(n: int) -> None:
        if n < 2:
            ctx.continue_as_new(n + 1)
        await ctx.sleep("1h")

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, 0, id="r")
            await waits(run)
            cancel(conn, "r")
            await cancelled(run)

    asyncio.run(main())
    assert generations(conn)[-1] == [
        *("execution_started", "timer_scheduled", "execution_awaiting"),
        *("cancel_requested", "execution_cancelled"),
    ]


def test_a_parent_waits_for_the_last_generation(dsn: str, conn: Connection) -> None:
    """To its parent a child run that continues is one child."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        if n < 3:
            ctx.continue_as_new(n + 1)
        return n

    @app.workflow
    async def parent() -> int:
        return await child(0)

    assert app.run(parent) == 3
    (run_id,) = conn.execute("select id from durable.runs where parent is null").fetchone() or ("",)
    assert len(generations(conn, f"{run_id}.0")) == 4


def test_wrong_arguments_are_refused(dsn: str) -> None:
    """Arguments that do not fit the workflow are an error of the call; the run does not continue."""
    app = App(dsn)

    @app.workflow
    async def go(n: int) -> None:
        ctx.continue_as_new(n, n, n)

    with pytest.raises(RunFailed):
        app.run(go, 1)


def test_a_run_goes_on_as_another_version(dsn: str, conn: Connection) -> None:
    """The next generation has the code of that version, and waits for a worker that has it; what was a run
    of the first version is one of the second, in its task, its head and `durable.runs`.
    """
    old, new = App(dsn), App(dsn)

    other = App(dsn)

    @other.workflow(name="poll", version="2")
    async def later(cursor: int, *, fast: bool = False) -> str:
        raise AssertionError("the old worker does not have it")

    @old.workflow(name="poll")
    async def poll(cursor: int) -> str:
        ctx.continue_as_new(later.bind(cursor + 1, fast=True))

    @new.workflow(name="poll", version="2")
    async def polls(cursor: int, *, fast: bool = False) -> str:
        if cursor < 3:
            ctx.continue_as_new(cursor + 1, fast=fast)
        return f"{cursor} {fast}"

    async def main() -> str:
        async with old.client() as client:
            async with old.worker():
                run = await client.start(poll, 1, id="r")
                while (await run.get()).version != "2":
                    await clock.sleep(0.01)
                assert (await run.get()).state == "queued"
            async with new.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == "3 True"
    rows = conn.execute("select workflow_version from durable._executions where id = 'r' order by execution")
    assert [row[0] for row in rows] == ["1", "2", "2"]
    assert conn.execute("select version from durable.runs where id = 'r'").fetchone() == ("2",)
