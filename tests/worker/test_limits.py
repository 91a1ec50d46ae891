"""What is too large, too slow or refused: it is cut, divided or given back, and nothing stalls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from pyengine import App, Worker, ctx
from pyengine.connection import Database
from pyengine.errors import EngineError, PayloadTooLarge, RunFailed, Unavailable
from pyengine.model import Captured, Complete, Fact, Row, RunChild, RunInfo, Suspend
from pyengine.registry import Registry
from pyengine.replay import Replay
from pyengine.runs import TURN_BYTES_MAX, HeldRun, RunQueue
from pyengine.turn import Answer, Bundle, Identity, Turns
from tests.support.turns import Send, carries, intercept

Connection = psycopg.Connection[tuple[object, ...]]


def big_app(dsn: str) -> App:
    """Workflows that are too large in one place each, where 2000 bytes are allowed."""
    app = App(dsn)

    @app.step
    async def echo(text: str) -> int:
        return len(text)

    @app.step
    async def make(size: int) -> str:
        return "x" * size

    @app.step
    async def fail(size: int) -> str:
        raise LookupError("x" * size)

    @app.workflow
    async def result() -> str:
        return "x" * 5000

    @app.workflow
    async def step_result() -> str:
        return await make(5000)

    @app.workflow
    async def step_input() -> int:
        return await echo("x" * 5000)

    @app.workflow
    async def step_error() -> str:
        return await fail(5000)

    @app.workflow
    async def child(text: str) -> int:
        return len(text)

    @app.workflow
    async def child_input() -> int:
        return await child("x" * 5000)

    @app.workflow
    async def caught() -> str:
        try:
            return await make(5000)
        except PayloadTooLarge:
            return await make(1500)

    return app


@pytest.mark.parametrize("name", ["result", "step_result", "step_input", "child_input"])
def test_what_is_over_the_set_limit_fails_the_run(dsn: str, conn: Connection, name: str) -> None:
    """The setting payload_max_bytes holds for results, step results and inputs: PayloadTooLarge, once."""
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    with pytest.raises(RunFailed) as failed:
        big_app(dsn).run(name)
    assert isinstance(failed.value.__cause__, PayloadTooLarge)
    assert failed.value.__cause__.limit == 2000
    made = conn.execute("select count(*) from durable._journal where type in ('L', 'f')").fetchone()
    assert made == (0,)


def test_an_error_over_the_set_limit_is_cut(dsn: str, conn: Connection) -> None:
    """An error that is larger than payload_max_bytes is recorded all the same, cut."""
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    with pytest.raises(RunFailed, match=r"\[cut: it had ") as failed:
        big_app(dsn).run("step_error")
    assert isinstance(failed.value.__cause__, LookupError)


def test_a_large_payload_is_reported(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """A workflow may go on after a result that was too large; what is over payload_warn_bytes is logged,
    with step and run.
    """
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    conn.execute("select durable.set_setting('payload_warn_bytes', '1000')")
    with caplog.at_level(logging.WARNING, "pyengine.codec"):
        assert big_app(dsn).run("caught") == "x" * 1500
    run_id = conn.execute("select id from durable.runs").fetchone()
    assert run_id is not None
    places = [vars(record)["where"] for record in caplog.records if record.message == "payload.large"]
    assert f"the result of step make of run {run_id[0]}" in places


def quiet_run() -> HeldRun:
    """A run that was not advanced."""
    registry = Registry()

    async def go() -> None:
        await ctx.sleep(1)

    app = App("postgresql://nowhere", name="x") if False else None
    assert app is None
    workflow = registry_workflow(registry, go)
    info = RunInfo(id="r", execution=1, version=1, workflow="go", started_at_ms=0)
    return HeldRun(info, Replay(workflow, info, lambda: 0, None, None))
