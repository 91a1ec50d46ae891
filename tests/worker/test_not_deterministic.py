"""Code that a replay cannot repeat, on a real database: what a halted run and a check of journals say."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from pyengine import App, DeterminismWarning, ctx
from pyengine.database.connection import Database
from pyengine.replay_check import replay_check
from tests.worker.test_replay_check import until


def stamping(dsn: str) -> App:
    """Return an app with a clock in its workflow, whose registration warned of it."""
    app = App(dsn)

    @app.step
    async def save(at: str) -> str:
        return at

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeterminismWarning)

        @app.workflow
        async def stamp() -> str:
            from datetime import datetime

            await save(datetime.now().isoformat())
            return await ctx.promise(str, name="go")

    assert len(caught) == 1
    return app


def test_a_clock_as_an_argument_and_another_worker(dsn: str) -> None:
    """After a worker has gone the next one halts the run, and says that the code is not deterministic, with
    both values, and where it reads the clock.
    """
    app = stamping(dsn)

    async def main() -> Any:
        async with app.client() as client:
            run = await client.start("stamp", id="r")
            async with app.worker():
                await until(run, "waiting")
            await client.promises.resolve("r.1", "x")
            async with app.worker():
                await until(run, "halted")
            return (await run.get()).problem

    problem = asyncio.run(main())
    assert problem["message"].startswith(
        "run r, child 0: the code is not deterministic: two replays of the same journal gave step save"
    )
    assert problem["got"] != problem["again"] and problem["got"].startswith('step save (input ["20')
    hint = problem["data"]["hint"]
    assert "calls datetime.now(): use ctx.now()" in hint and __file__ in hint
    (found,) = asyncio.run(replay_check(Database(dsn), app.registry)).breaks()
    assert found.first.again is not None and found.first.again.startswith("step save (input ")
