"""Retries of a whole workflow: the same run, a new journal, at most so many times."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, RunCancelled, RunFailed, ctx
from tests.core.worker.test_continue import generations

Connection = psycopg.Connection[tuple[object, ...]]
SOON = Retry(max_attempts=3, initial="10ms", jitter=0)


class Boom(Exception):
    """What the workflows here fail with."""


def history(conn: Connection, id: str = "r") -> list[Any]:
    """Attempt, status and message of each journal of a run."""
    return conn.execute(
        "select attempt, status, error ->> 'message' from durable.generations(%s)", (id,)
    ).fetchall()


def test_a_failed_run_begins_again(dsn: str, conn: Connection) -> None:
    """Under the same id, with the same arguments; its steps run again under new numbers, and the journals of
    the failed attempts stay.
    """
    app = App(dsn)
    keys: list[str] = []

    @app.step
    async def note(n: int) -> int:
        keys.append(ctx.step.idempotency_key)
        return n

    @app.workflow(retry=SOON)
    async def shaky(n: int) -> list[int]:
        await note(n)
        if ctx.attempt < 3:
            raise Boom(f"attempt {ctx.attempt}")
        return [n, ctx.attempt]

    async def main() -> list[int]:
        async with app.client() as client, app.worker():
            return await (await client.start(shaky, 7, id="r")).result(timeout=20)

    assert asyncio.run(main()) == [7, 3]
    assert keys == ["r.0", "r.1", "r.2"]
    failed = ["execution_started", "step_completed", "execution_failed"]
    assert generations(conn) == [failed, failed, [*failed[:2], "execution_completed"]]
    assert history(conn) == [(1, "failed", "attempt 1"), (2, "failed", "attempt 2"), (3, "completed", None)]
    events = conn.execute("select event, payload from durable.generation_events('r', 2)").fetchall()
    assert events[-1][0] == "ExecutionFailed" and "attempt 2" in str(events[-1][1])


def test_the_last_failure_is_the_runs(dsn: str, conn: Connection) -> None:
    """After max_attempts the run fails with the error of the last one."""
    app = App(dsn)

    @app.workflow(retry=SOON)
    async def doomed() -> None:
        raise Boom(f"attempt {ctx.attempt}")

    async def main() -> None:
        async with app.client() as client, app.worker():
            with pytest.raises(RunFailed, match="attempt 3"):
                await (await client.start(doomed, id="r")).result(timeout=20)

    asyncio.run(main())
    assert [row[:2] for row in history(conn)] == [(1, "failed"), (2, "failed"), (3, "failed")]


def test_not_every_error_is_worth_another_attempt(dsn: str, conn: Connection) -> None:
    """The policy decides by the class of the error, as for a step."""
    app = App(dsn)

    @app.workflow(retry=Retry(max_attempts=5, initial="10ms", unless=(ValueError,)))
    async def picky(wrong: bool) -> None:
        raise ValueError("wrong") if wrong or ctx.attempt > 1 else Boom("try again")

    async def main() -> None:
        async with app.client() as client, app.worker():
            for wrong in (True, False):
                with pytest.raises(RunFailed, match="wrong"):
                    await (await client.start(picky, wrong, id=f"r{wrong}")).result(timeout=20)

    asyncio.run(main())
    assert [len(history(conn, f"r{wrong}")) for wrong in (True, False)] == [1, 2]


def test_every_signal_comes_again(dsn: str, conn: Connection) -> None:
    """Those that the failed attempt received, those that it did not, and later ones, in their order."""
    app = App(dsn)

    @app.workflow(retry=SOON)
    async def receives() -> list[int]:
        found = [await ctx.receive("n", type=int) for _ in range(2)]
        if ctx.attempt == 1:
            raise Boom
        return [*found, await ctx.receive("n", type=int)]

    async def main() -> list[int]:
        async with app.client() as client, app.worker():
            run = await client.start(receives, id="r")
            for n in (1, 2):
                await run.signal("n", n)
            while len(history(conn)) < 2:
                await asyncio.sleep(0.01)
            await run.signal("n", 3)
            return await run.result(timeout=20)

    assert asyncio.run(main()) == [1, 2, 3]


def test_it_waits_as_its_policy_says(dsn: str, conn: Connection) -> None:
    """Between two attempts the run is scheduled and costs nothing; a cancellation ends it then."""
    app = App(dsn)

    @app.workflow(retry=Retry(initial="1h", max_delay="2h", jitter=0))
    async def patient() -> None:
        raise Boom("later")

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(patient, id="r")
            while (await run.get()).state != "scheduled":
                await asyncio.sleep(0.01)
            (wait,) = conn.execute(
                "select extract(epoch from not_before - now()) from durable.live"
            ).fetchone()  # type: ignore[misc]
            assert 3500 < wait <= 3600  # type: ignore[operator]
            await run.cancel("enough")
            with pytest.raises(RunCancelled):
                await run.result(timeout=20)

    asyncio.run(main())


def test_a_child_is_tried_again(dsn: str, conn: Connection) -> None:
    """Its parent waits for the outcome of all attempts."""
    app = App(dsn)

    @app.workflow(retry=SOON)
    async def child() -> int:
        if ctx.attempt < 2:
            raise Boom
        return ctx.attempt

    @app.workflow
    async def parent() -> int:
        return await child()

    async def main() -> int:
        async with app.client() as client, app.worker():
            return await (await client.start(parent, id="r")).result(timeout=20)

    assert asyncio.run(main()) == 2
    assert len(history(conn, "r.0")) == 2


def test_app_run_replays_every_attempt(dsn: str) -> None:
    """The journals of all attempts are replayed at the end, and agree with the code."""
    app = App(dsn)

    @app.workflow(retry=SOON)
    async def shaky() -> int:
        if ctx.attempt < 2:
            raise Boom
        return ctx.attempt

    assert app.run(shaky) == 2
