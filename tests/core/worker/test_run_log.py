"""The log of a worker about its runs: which records there are, their fields, and that no value is in them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import psycopg
import pytest

from pyengine import App, Run, RunFailed, ctx

Connection = psycopg.Connection[tuple[object, ...]]
# each execution of the workflow below takes the next one
secrets = itertools.count(1)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and event of the records about runs, in their order."""
    records = [one.__dict__ | {"level": one.levelname} for one in caplog.records]
    return [(one["level"], one["event"]) for one in records if str(one.get("event")).startswith("run_")]


async def until(run: Run[Any], state: str) -> None:
    """Wait until a run is in this state."""
    while (await run.get()).state != state:
        await asyncio.sleep(0.005)


def resolve(conn: Connection, id: str) -> None:
    """Complete a promise from outside."""
    conn.execute("select durable.resolve(%s, '\"x\"')", (id,))


def test_the_life_of_a_run(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """A line at INFO when it begins, suspends, goes on and ends, with run, workflow and queue."""
    caplog.set_level(logging.INFO)
    app = App(dsn)

    @app.workflow(queue="shop")
    async def waits() -> str:
        return await ctx.promise(str, name="go")

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(waits, id="r")
            await until(run, "waiting")
            resolve(conn, "r.0")
            assert await run == "x"

    asyncio.run(main())
    assert events(caplog) == [
        ("INFO", "run_began"),
        ("INFO", "run_suspended"),
        ("INFO", "run_resumed"),
        ("INFO", "run_completed"),
    ]
    record = next(one for one in caplog.records if one.__dict__.get("event") == "run_began")
    assert (record.name, record.message) == ("pyengine.runs", "run r of waits begins")
    fields = record.__dict__
    assert (fields["run"], fields["workflow"], fields["queue"]) == ("r", "waits", "shop")


def test_a_halt_shows_no_values(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """The problem of a halted run has the inputs of both sides; its record in the log has not."""
    app = App(dsn)

    @app.step
    async def save(token: str) -> str:
        return token

    @app.workflow
    async def stamps() -> str:
        await save(f"secret-{next(secrets)}")  # durable: ok
        return await ctx.promise(str, name="go")

    async def main() -> Any:
        async with app.client() as client:
            run = await client.start(stamps, id="r")
            async with app.worker():
                await until(run, "waiting")
            resolve(conn, "r.1")
            async with app.worker():
                await until(run, "halted")
            return (await run.get()).problem

    problem = asyncio.run(main())
    assert "secret-" in problem["message"]
    assert events(caplog) == [("ERROR", "run_halted")]
    record = next(one for one in caplog.records if one.__dict__.get("event") == "run_halted")
    assert record.message.startswith("run r of stamps is halted: NondeterminismError at child 0: take time,")
    assert record.message.endswith("; type: pyengine show r")
    assert not any("secret-" in str(one.__dict__) for one in caplog.records)


def test_a_refused_value_is_not_shown(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """The sentence about a value that cannot be recorded shows a part of it, except in the log; so does that
    of an error that it caused.
    """
    app = App(dsn)

    token = app.step(name="token")(lambda: ("the secret",))

    @app.workflow
    async def wraps() -> None:
        try:
            await token()
        except Exception as error:
            raise LookupError("no token") from error

    with pytest.raises(RunFailed) as caught:
        app.run(wraps)
    assert "the secret" in str(caught.value.__notes__)
    attempt, run = (one.message for one in caplog.records if "event" in one.__dict__)
    assert "failed in attempt 1: EncodeError: the result of step token of run " in attempt
    assert ": annotate the return type, so that it declares tuple" in attempt
    assert "of wraps failed: LookupError: EncodeError: the result of step token of run" in run
    assert not any("the secret" in str(one.__dict__) for one in caplog.records)


def test_a_program_keeps_its_logging(dsn: str) -> None:
    """Neither import nor worker adds a handler, or changes a level."""

    def state() -> tuple[Any, ...]:
        named = {name: logging.getLogger(name) for name in logging.root.manager.loggerDict}
        ours = {name: (one.handlers, one.level) for name, one in named.items() if name.startswith("pyengine")}
        assert ours and set(map(str, ours.values())) == {"([], 0)"}
        return list(logging.root.handlers), logging.root.level, logging.lastResort

    before = state()
    app = App(dsn)

    @app.workflow
    async def one() -> int:
        return 1

    assert app.run(one) == 1
    assert state() == before
