"""A run that does not fit the code of a worker is left to a worker with its own code, or waits for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pyengine import App, Signal, ctx
from pyengine.core.definitions import definition

Connection = psycopg.Connection[tuple[object, ...]]
RUNS = 6
go = Signal[int]("go")


def old_code(dsn: str) -> App:
    """The code before a change."""
    app = App(dsn)

    @app.workflow
    async def order(number: int) -> str:
        return f"old {await ctx.receive(go)}"

    return app


def new_code(dsn: str) -> App:
    """The same workflow, patched."""
    app = App(dsn)

    @app.step
    async def mark(number: int) -> None: ...

    @app.workflow
    async def order(number: int) -> str:
        if ctx.patched("more"):
            await mark(number)
        return f"new {await ctx.receive(go)}"

    return app


def renamed(dsn: str, parameter: str) -> App:
    """A workflow whose one parameter has this name."""
    app = App(dsn)
    if parameter == "subject":

        @app.workflow(name="mail")
        async def mail(address: str, subject: str = "News") -> str:
            return f"{subject} to {address}"
    else:

        @app.workflow(name="mail")
        async def mail(address: str, title: str = "News") -> str:
            return f"{title} to {address}"

    return app


def retyped(dsn: str, type: type[Any]) -> App:
    """A workflow that reads the result of its step by this type."""
    app = App(dsn)
    if type is str:

        @app.step(name="count")
        async def count() -> str:
            return "many"

        @app.workflow(name="order")
        async def order(number: int) -> str:
            text: str = await count()
            return f"{text} {await ctx.receive(go)}"
    else:

        @app.step(name="count")
        async def count_2() -> int:
            return 1

        @app.workflow(name="order")
        async def order_2(number: int) -> str:
            return f"{await count_2() + 1} {await ctx.receive(go)}"

    return app


def states(conn: Connection) -> dict[Any, Any]:
    """How many runs are in each state."""
    return dict(conn.execute("select state, count(*) from durable.runs group by 1").fetchall())  # type: ignore[arg-type]


async def until(conn: Connection, expected: dict[str, int]) -> None:
    """Wait until runs are in these states."""
    async with asyncio.timeout(60):
        while states(conn) != expected:
            await asyncio.sleep(0.05)


async def begun_by(app: App, conn: Connection) -> None:
    """Runs that this code began and that wait for a signal; its worker is gone."""
    async with app.worker(), app.client() as client:
        for number in range(RUNS):
            await client.start("order", number, id=f"o{number}")
        await until(conn, {"waiting": RUNS})


async def wake(app: App) -> None:
    """Send what they wait for."""
    async with app.client() as client:
        for number in range(RUNS):
            await client.run(f"o{number}").signal(go, number)


Programs = Callable[[str], App]
TWO = pytest.mark.parametrize(
    ("own", "other"),
    [
        pytest.param(new_code, old_code, id="patched"),
        pytest.param(lambda dsn: retyped(dsn, str), lambda dsn: retyped(dsn, int), id="retyped"),
    ],
)


@TWO
def test_runs_wait_for_their_code(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, own: Programs, other: Programs
) -> None:
    """Taken back for a while, runs that had gone on with the new code are halted, and go on by themselves
    when it is there again; the log of the worker says what they are.
    """

    async def main() -> None:
        await begun_by(own(dsn), conn)
        async with other(dsn).worker():
            await wake(other(dsn))
            await until(conn, {"halted": RUNS})
        async with own(dsn).worker():
            await until(conn, {"completed": RUNS})

    asyncio.run(main())
    assert states(conn) == {"completed": RUNS}


@TWO
def test_both_codes_are_there(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, own: Programs, other: Programs
) -> None:
    """Whoever claims them first, each run ends by its own code, and none is halted."""
    conn.execute("select durable.set_setting('prefer_ms', '0')")
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        await begun_by(own(dsn), conn)
        async with other(dsn).worker(), own(dsn).worker():
            await wake(own(dsn))
            await until(conn, {"completed": RUNS})

    asyncio.run(main())
    assert not [one for one in caplog.records if getattr(one, "event", "") == "run_halted"]


def test_queued_runs_whose_parameter_was_renamed(dsn: str, conn: Connection) -> None:
    """Started by name for the code that was there, they halt under the new one and complete under the old."""

    async def main() -> None:
        async with renamed(dsn, "subject").worker():
            pass
        for number in range(RUNS):
            arguments = '{"address": "x@example.org", "subject": "Hi"}'
            conn.execute("select durable.start('mail', %s, id => %s)", (arguments, f"s{number}"))
        async with renamed(dsn, "title").worker():
            await until(conn, {"halted": RUNS})
            # started for this code, it is wrong, and fails as ever
            conn.execute("select durable.start('mail', %s, id => 'wrong')", (arguments,))
            await until(conn, {"halted": RUNS, "failed": 1})
        async with renamed(dsn, "subject").worker():
            await until(conn, {"completed": RUNS, "failed": 1})

    asyncio.run(main())


def adding(dsn: str, given: list[float]) -> App:
    """A workflow that records what its Python makes of the same source."""
    app = App(dsn)

    @app.step
    async def note(total: float) -> None: ...

    @app.workflow
    async def order(number: int) -> str:
        await note(sum(given))
        return f"{await ctx.receive(go)}"

    return app


def test_another_python(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A halt names the Python that drove the run before it blames the code, and the run goes on by itself at
    a worker of its Python."""

    def python(version: str) -> None:
        monkeypatch.setattr(definition, "THIS_PYTHON", version)

    async def main() -> None:
        python("3.11")
        await begun_by(adding(dsn, [0.1] * 10), conn)
        python("3.14")
        async with adding(dsn, [1.0]).worker():
            await wake(adding(dsn, [1.0]))
            await until(conn, {"halted": RUNS})

    asyncio.run(main())
    problems = conn.execute("select distinct problem::jsonb from durable._executions").fetchall()
    for (problem,) in problems:
        assert problem["message"].startswith(
            "Python 3.14 does not do what Python 3.11 did with the same source of the workflow: run o"
        )
        assert problem["data"]["hint"] == "a worker with Python 3.11 can end this run"
    (why,) = conn.execute("select string_agg(sentence, '') from durable.why('o0')").fetchone() or ("",)
    assert "Python 3.14 does not do" in str(why) and ", Python 3.11), and goes on by itself then" in str(why)

    async def mended() -> None:
        python("3.11")
        async with adding(dsn, [0.1] * 10).worker():
            await until(conn, {"completed": RUNS})

    asyncio.run(mended())
