"""Steps that are recorded before they run, and what a cut-off attempt means for them."""

from __future__ import annotations

import asyncio
import json

import psycopg

from pyengine import App, Retry, StepInterrupted, ctx
from tests.core.worker.test_retries import row_types

Connection = psycopg.Connection[tuple[object, ...]]


def test_an_intent_is_in_the_journal_before_the_body_runs(dsn: str, conn: Connection) -> None:
    """With intent=True the body finds its own intent row committed, with its arguments and its policy."""
    app = App(dsn)

    @app.step(intent=True, retry=Retry(max_attempts=7, initial="9s", only=(OSError,)))
    def look(word: str) -> list[str]:
        return [
            *row_types(conn),
            *[str(row[0]) for row in conn.execute("select data from durable._journal where child = 0")],
        ]

    @app.workflow
    async def go() -> list[str]:
        return await look("x")

    kind, data = app.run(go)
    assert kind == "step_started"
    assert json.loads(data) == {
        "input": ["x"],
        "retry": {
            "max_attempts": 7,
            "initial_ms": 9000,
            "backoff": 2.0,
            "max_delay_ms": 300_000,
            "jitter": 0.2,
            "only": ["builtins.OSError"],
        },
    }
    assert row_types(conn) == ["step_started", "open_step_completed"]


def test_intents_and_retries_alternate(dsn: str, conn: Connection) -> None:
    """Every attempt of an intent step has its begin and its end."""
    app = App(dsn)

    @app.step(intent=True, retry=Retry(max_attempts=3, initial="1ms"))
    async def second() -> int:
        if ctx.step.attempt == 1:
            raise OSError
        return ctx.step.attempt

    @app.workflow
    async def go() -> int:
        return await second()

    assert app.run(go) == 2
    assert row_types(conn) == [
        *("step_started", "open_attempt_failed", "attempt_started", "open_step_completed"),
    ]


def test_a_step_that_takes_long_gets_an_intent(dsn: str, conn: Connection) -> None:
    """A step still running after a second can be seen in the journal, and ends as usual."""
    app = App(dsn)

    @app.step
    async def slow() -> list[str]:
        while not row_types(conn):
            await asyncio.sleep(0.05)
        return row_types(conn)

    @app.workflow
    async def go() -> list[str]:
        return await slow()

    assert app.run(go) == ["step_started"]
    assert row_types(conn) == ["step_started", "open_step_completed"]


def test_a_run_that_lost_its_worker_says_what_it_begins(dsn: str, conn: Connection) -> None:
    """Until a step has ended, those of a run whose worker was lost are in the journal before their bodies
    run: `why` names the one with which the next worker is lost, also if it never lets anything be reported.
    """
    app = App(dsn)

    @app.step
    async def first() -> list[str]:
        return row_types(conn)

    @app.step
    async def second() -> list[str]:
        return row_types(conn, 1)

    @app.workflow
    async def go() -> list[list[str]]:
        return [await first(), await second()]

    async def main() -> list[list[str]]:
        async with app.client() as client:
            run = await client.start(go)
            conn.execute("update durable._tasks set crashes = 1")
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == [["step_started"], []]
    assert row_types(conn) == ["step_started", "open_step_completed"]


def interrupted_app(dsn: str, began: list[int]) -> App:
    """One step of each kind that is stopped in its first attempt."""
    app = App(dsn)

    @app.step(on_interrupt="fail")
    async def once() -> str:
        began.append(ctx.step.attempt)
        await asyncio.sleep(60)
        return "never"

    @app.step(intent=True)
    async def again() -> str:
        began.append(ctx.step.attempt)
        if ctx.step.attempt == 1:
            await asyncio.sleep(60)
        return f"attempt {ctx.step.attempt}"

    @app.workflow
    async def careful() -> str:
        try:
            return await once()
        except StepInterrupted as error:
            return error.message

    @app.workflow
    async def careless() -> str:
        return await again()

    return app


def stop_in_the_middle(dsn: str, app: App, workflow: str, began: list[int]) -> str:
    """Stop a worker while the step runs, let a second one finish, and return the result."""

    async def main() -> str:
        async with app.client() as client:
            run = await client.start(workflow)
            async with app.worker(grace="100ms"):
                while not began:
                    await asyncio.sleep(0.005)
            async with app.worker():
                result: str = await run.result(timeout=20)
                return result

    return asyncio.run(main())


def test_on_interrupt_fail_does_not_run_twice(dsn: str, conn: Connection) -> None:
    """A step with on_interrupt="fail" that was cut off is not run again: StepInterrupted."""
    began: list[int] = []
    result = stop_in_the_middle(dsn, interrupted_app(dsn, began), "careful", began)
    assert "was cut off in attempt 1" in result
    assert began == [1]
    assert row_types(conn) == ["step_started", "open_attempt_failed", "last_attempt_failed"]


def test_other_steps_run_again_after_an_interrupt(dsn: str, conn: Connection) -> None:
    """An interrupt is no failure of the function: without any retry policy the attempt is made again."""
    began: list[int] = []
    result = stop_in_the_middle(dsn, interrupted_app(dsn, began), "careless", began)
    assert result == "attempt 2"
    assert began == [1, 2]
    assert row_types(conn) == [
        *("step_started", "open_attempt_failed", "attempt_started", "open_step_completed"),
    ]
