"""Law: a run whose step has used up its attempts pauses, if its policy says so, and a resume gives the step
as many again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.clients import Client
from pyengine.core.client.run import Run
from pyengine.core.protocol.commands import Halt, Release
from pyengine.core.worker.run_state import Live
from pyengine.errors import RunCancelled, RunFailed
from tests.core.worker import run_stage
from tests.core.worker.run_stage import Stage
from tests.core.worker.test_retries import row_types

Connection = psycopg.Connection[tuple[object, ...]]
TWICE = Retry(max_attempts=2, initial="5ms", jitter=0, on_exhausted="pause")


def play(app: App, main: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test with a worker and a client."""

    async def go() -> None:
        async with app.client() as client, app.worker():
            await main(client)

    asyncio.run(asyncio.wait_for(go(), 60))


async def paused(run: Run[Any]) -> str:
    """Wait until a run is paused; answers why."""
    while (status := await run.get()).state != "paused":
        assert status.state not in ("failed", "halted"), status
        await asyncio.sleep(0.02)
    return str(status.problem["message"])


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_a_run_pauses_and_goes_on(dsn: str, conn: Connection, plain: bool) -> None:
    """The run is set aside with the reason; resumed it has two attempts more, and pauses again after them."""
    app = App(dsn)
    attempts: list[int] = []

    def pay(order: int) -> str:
        attempts.append(ctx.step.attempt)
        if len(attempts) < 6:
            raise OSError(f"no bank for order {order}")
        return "paid"

    async def pay_async(order: int) -> str:
        return pay(order)

    step: Any = app.step(retry=TWICE, name="pay")(pay if plain else pay_async)

    @app.workflow
    async def checkout(order: int) -> str:
        return str(await step(order))

    async def main(client: Client) -> None:
        run = await client.start(checkout, 7, id="order-7")
        for last in (2, 4):
            words = f"step pay failed in attempt {last}: OSError: no bank for order 7"
            assert await paused(run) == f"{words}; durable.resume(id) tries again"
            assert attempts == list(range(1, last + 1))
            await run.resume()
        assert await run.result(timeout=30) == "paid"

    play(app, main)
    assert attempts == [1, 2, 3, 4, 5, 6]
    assert row_types(conn) == ["first_attempt_failed", *["attempt_failed"] * 4, "last_attempt_completed"]


def test_other_steps_end_first(dsn: str) -> None:
    """A step that is under way is not cut off: it ends, is recorded, and does not run again."""
    app = App(dsn)
    calls: list[str] = []

    @app.step(retry=Retry(max_attempts=1, on_exhausted="pause"))
    async def breaks() -> str:
        calls.append("breaks")
        if len(calls) < 4:
            raise OSError("down")
        return "mended"

    @app.step
    async def slow(name: str) -> str:
        await asyncio.sleep(0.3)
        calls.append(name)
        return name

    async def both() -> str:
        return await slow("one") + await slow("two")

    @app.workflow
    async def work() -> list[str]:
        return list(await asyncio.gather(breaks(), both()))

    async def main(client: Client) -> None:
        run = await client.start(work)
        await paused(run)
        assert calls == ["breaks", "one", "two"]
        await run.resume()
        assert await run.result(timeout=30) == ["mended", "onetwo"]

    play(app, main)
    assert calls == ["breaks", "one", "two", "breaks"]


def test_signals_come_while_it_is_paused(dsn: str) -> None:
    """What is sent meanwhile is received after the resume."""
    app = App(dsn)
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=1, on_exhausted="pause"))
    async def breaks() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("down")

    @app.workflow
    async def work() -> str:
        await breaks()
        return str(await ctx.receive("word", str))

    async def main(client: Client) -> None:
        run = await client.start(work)
        await paused(run)
        await run.signal("word", "kept")
        await run.resume()
        assert await run.result(timeout=30) == "kept"

    play(app, main)


def test_a_paused_run_is_cancelled(dsn: str) -> None:
    """A request to cancel needs no resume."""
    app = App(dsn)
    undone: list[str] = []

    @app.step(retry=Retry(max_attempts=1, on_exhausted="pause"))
    async def breaks() -> None:
        raise OSError("down")

    @app.workflow
    async def work() -> None:
        try:
            await breaks()
        except asyncio.CancelledError:
            undone.append("yes")
            raise

    async def main(client: Client) -> None:
        run = await client.start(work)
        await paused(run)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=30)

    play(app, main)
    assert undone == ["yes"]


def test_an_error_that_is_final_fails(dsn: str) -> None:
    """What is not worth another attempt is raised in the workflow at once."""
    app = App(dsn)

    @app.step(retry=Retry(max_attempts=1, unless=(ValueError,), on_exhausted="pause"))
    async def breaks() -> None:
        raise ValueError("declined")

    @app.workflow
    async def work() -> None:
        await breaks()

    with pytest.raises(RunFailed, match="declined"):
        app.run(work)


# -- the worker's logic alone

patient = run_stage.app.step(retry=Retry(max_attempts=1, on_exhausted="pause"), name="patient")(
    run_stage.one.fn
)


@run_stage.app.workflow
async def beside_patient() -> list[int]:
    """A step that pauses its run, beside another."""
    return list(await asyncio.gather(patient(1), run_stage.one(2)))


def exhausted(stage: Stage) -> Any:
    """A run with a step that has used up its attempts, and another under way."""
    run = stage.claim("beside_patient")
    stage.end(run, 0, error='{"type": "OSError", "message": "down"}', retry_in_ms=0)
    assert isinstance(run.phase, Live) and list(run.phase.exhausted) == [0] and not run.phase.is_dirty
    return run


def test_the_pause_waits_until_nothing_is_under_way() -> None:
    """The other outcome is reported first; then the failure leaves together with the halt."""
    stage = Stage()
    run = exhausted(stage)
    stage.end(run, 1)
    report = stage.send(run)
    assert [one.child for one in report.outcomes] == [1] and report.end is None
    stage.post(stage.database.report(report))
    report = stage.send(run)
    assert [(one.child, one.retry_in_ms) for one in report.outcomes] == [(0, 0)]
    assert isinstance(report.end, Halt) and "OSError: down" in report.end.problem
    stage.post(stage.database.report(report))
    assert run.gone


def test_a_replay_keeps_the_pause() -> None:
    """A journal that is fetched meanwhile changes nothing: the attempt is not made again."""
    stage = Stage()
    run = exhausted(stage)
    stage.end(run, 1)
    stage.send(run)
    stage.stale(run)
    stage.fetched(run)
    assert isinstance(run.phase, Live) and not run.phase.attempts
    while not isinstance(run.report and run.report.end, Halt):
        report = stage.send(run)
        stage.post(stage.database.report(report)) if report.end is None else None
    assert run.report is not None and [one.child for one in run.report.outcomes] == [0]


def test_a_worker_that_stops_leaves_the_attempt_to_another() -> None:
    """What is not reported is not recorded: no run is set aside by half."""
    stage = Stage()
    run = exhausted(stage)
    run_stage.stopping(stage, run)
    assert isinstance(run.phase, Live) and not run.phase.exhausted
    assert not isinstance(run.phase.end, Halt | Release)
