"""What `app.run` does beside running: it installs the schema, and says why there is no result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.errors import EngineError, InvalidRequest

Connection = psycopg.Connection[tuple[object, ...]]


def test_app_run_installs_the_schema(empty_database: Callable[[], str]) -> None:
    """`app.run` on a database without a schema makes it."""
    app = App(empty_database())

    @app.workflow
    async def one() -> int:
        return 1

    assert app.run(one) == 1


def test_app_run_refuses_to_run_inside_a_loop(dsn: str) -> None:
    """`app.run` inside an event loop says what to use instead."""
    app = App(dsn)

    @app.workflow
    async def one() -> int:
        return 1

    async def main() -> None:
        with pytest.raises(InvalidRequest, match=r"app\.start"):
            app.run(one)

    asyncio.run(main())


def test_app_run_does_not_wait_for_a_resume(dsn: str) -> None:
    """It says that the run is paused, and how to see it."""
    app = App(dsn)

    @app.step(retry=Retry(max_attempts=1, on_exhausted="pause"))
    async def breaks() -> None:
        raise OSError("down")

    @app.workflow
    async def work() -> None:
        await breaks()

    with pytest.raises(EngineError, match=r"is paused: .*step breaks failed in attempt 1: OSError: down"):
        app.run(work)


def test_app_run_tells_that_its_run_is_halted(dsn: str, conn: Connection) -> None:
    """`app.run` does not wait for ever for a run that is set aside."""
    app = App(dsn)

    @app.step
    def set_aside() -> None:
        conn.execute("select durable.task_halt(%s)", (ctx.step.run_id,))

    @app.workflow
    async def go() -> None:
        await set_aside()

    with pytest.raises(EngineError, match=r"is halted.*by hand"):
        app.run(go)
