"""Waiting for time and for promises."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg

from pyengine import App, ctx

Connection = psycopg.Connection[tuple[object, ...]]


def test_sleep_holds_nothing(dsn: str, conn: Connection) -> None:
    """A sleeping run has no lease; the worker that made the timer wakes for it."""
    app = App(dsn)

    @app.workflow
    async def nap() -> float:
        before = ctx.now()
        await ctx.sleep(1)
        return (ctx.now() - before).total_seconds()

    async def main() -> float:
        async with app.worker(), app.client() as client:
            run = await client.start(nap)
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.005)
            assert conn.execute(
                "select count(*) from durable._tasks where state = 'acquired'"
            ).fetchone() == (0,)
            return await run.result(timeout=20)

    assert asyncio.run(main()) >= 1


def test_asyncio_timeouts_are_durable_timers(dsn: str) -> None:
    """asyncio.sleep, asyncio.timeout and wait_for work in a workflow."""
    app = App(dsn)

    @app.workflow
    async def go() -> list[str]:
        said = []
        await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(3600)
        except TimeoutError:
            said.append("timeout")
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            said.append("wait_for")
        return said

    assert app.run(go) == ["timeout", "wait_for"]


def test_a_timer_beside_a_running_step(dsn: str) -> None:
    """A run that holds its lease for a step notices meanwhile that a timer fired."""
    app = App(dsn)
    fired = asyncio.Event()

    @app.step
    async def long() -> str:
        await fired.wait()
        return "step"

    @app.step
    async def note() -> str:
        fired.set()
        return "timer"

    @app.workflow
    async def go() -> list[str]:
        async def branch() -> str:
            await ctx.sleep(0.05)
            return await note()

        return await asyncio.gather(long(), branch())

    assert app.run(go) == ["step", "timer"]


def test_sleep_until(dsn: str) -> None:
    """sleep_until takes an instant; one in the past does not wait."""
    app = App(dsn)

    @app.workflow
    async def go() -> bool:
        until = ctx.now() + timedelta(milliseconds=50)
        await ctx.sleep_until(until)
        await ctx.sleep_until(datetime(2001, 1, 1, tzinfo=UTC))
        return ctx.now() >= until

    assert app.run(go) is True


def test_many_timers_fire(dsn: str) -> None:
    """Runs that sleep for different times all wake."""
    app = App(dsn)

    @app.workflow
    async def nap(n: int) -> int:
        await ctx.sleep(0.002 * (n % 40))
        return n

    async def main() -> list[int]:
        async with app.worker(), app.client() as client:
            runs = await asyncio.gather(*(client.start(nap, n) for n in range(80)))
            return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert asyncio.run(main()) == list(range(80))


def test_a_promise_is_resolved_from_sql(dsn: str, conn: Connection) -> None:
    """A promise waits for anybody who speaks SQL, and its value has the declared type."""
    app = App(dsn)

    @app.workflow
    async def ask() -> str:
        answer = ctx.promise(dict[str, int], name="answer")
        value = await answer
        return f"{value['n'] + 1}"

    async def main() -> str:
        async with app.worker(), app.client() as client:
            run = await client.start(ask)
            while not (await run.get()).waits_for:
                await asyncio.sleep(0.005)
            assert (await run.get()).waits_for == ("promise answer [0]",)
            conn.execute("select durable.resolve(%s, '{\"n\": 41}')", (f"{run.id}.0",))
            return await run.result(timeout=20)

    assert asyncio.run(main()) == "42"


def test_a_promise_with_a_timeout_raises_timeout_error(dsn: str) -> None:
    """A promise that nobody settles in time is a TimeoutError in the workflow."""
    app = App(dsn)

    @app.workflow
    async def ask() -> str:
        try:
            return await ctx.promise(str, timeout="30ms")
        except TimeoutError:
            return "nobody"

    assert app.run(ask) == "nobody"


def test_a_run_with_a_timeout_times_out(dsn: str) -> None:
    """A run past its deadline has ended, whatever it was doing."""
    from pyengine import RunTimedOut

    app = App(dsn)

    @app.workflow(deadline="80ms")
    async def nap() -> None:
        await ctx.sleep("1h")

    async def main() -> str:
        async with app.worker(), app.client() as client:
            try:
                await (await client.start(nap)).result(timeout=20)
            except RunTimedOut as error:
                return str(error)
            return "no"

    assert "did not end before its deadline" in asyncio.run(main())


def test_a_delayed_start_waits(dsn: str) -> None:
    """A run with a delay is scheduled until its time has come, and then found without a hint."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 1

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(go, delay="1s")
            assert (await run.get()).state == "scheduled"
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 1
