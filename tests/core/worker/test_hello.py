"""The shortest ways in: run, start, serve, and values that keep their types."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.errors import InvalidRequest, RunFailed, SchemaMismatch


def hello_app(dsn: str) -> App:
    """The application of the README."""
    app = App(dsn)

    @app.step
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.workflow
    async def hello(name: str) -> str:
        return await greet(name)

    return app


def test_app_run_returns_the_result(dsn: str) -> None:
    """`app.run` needs nothing but a database and returns what the workflow returned."""
    app = App(dsn)

    @app.workflow
    async def add(a: int, b: int = 2) -> int:
        return a + b

    assert app.run(add, 40) == 42
    assert app.run(add, 1, b=1) == 2


def test_a_worker_does_not_install_the_schema(empty_database: Callable[[], str]) -> None:
    """A worker on a database without a schema says what to type."""
    app = App(empty_database())

    async def main() -> None:
        async with app.worker():
            raise AssertionError("it started")

    with pytest.raises(SchemaMismatch, match=r"has no schema[^.]*\n[^.]*pyengine db init"):
        asyncio.run(main())


def test_start_in_one_place_serve_in_another(dsn: str) -> None:
    """A run that was started before there was a worker is found by the worker."""
    app = hello_app(dsn)

    async def main() -> str:
        async with app.client() as client:
            run = await client.start("hello", "world")
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == "hello world"


@dataclass
class Receipt:
    """A value with types that JSON does not have."""

    amount: Decimal
    day: date
    at: datetime
    tags: set[str]


def test_values_keep_their_types(dsn: str) -> None:
    """Arguments and results of steps and workflows come back as declared, in the workflow and in the
    client.
    """
    app = App(dsn)
    paid = Receipt(Decimal("1.50"), date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), {"b", "a"})

    @app.step
    async def charge(amount: Decimal) -> Receipt:
        assert type(amount) is Decimal
        return Receipt(amount, paid.day, paid.at, paid.tags)

    @app.workflow
    async def pay(amount: Decimal) -> Receipt:
        receipt = await charge(amount)
        assert receipt == paid
        return receipt

    assert app.run(pay, Decimal("1.50")) == paid


def test_sync_steps_run_in_threads_with_their_context(dsn: str) -> None:
    """A plain function runs outside the event loop's thread and sees which attempt it is."""
    app = App(dsn)
    seen: list[tuple[bool, str, int]] = []

    @app.step
    def where() -> str:
        seen.append(
            (threading.current_thread() is threading.main_thread(), ctx.step.run_id, ctx.step.attempt)
        )
        return ctx.step.idempotency_key

    @app.workflow
    async def ask() -> list[str]:
        return [await where(), await where()]

    first, second = app.run(ask)
    (on_main, run_id, attempt), _ = seen
    assert (on_main, attempt) == (False, 1)
    assert [first, second] == [f"{run_id}.0", f"{run_id}.1"]


def test_a_failed_run_tells_its_cause(dsn: str) -> None:
    """A step's error reaches the workflow as itself, and the caller as the cause of RunFailed."""
    app = App(dsn)

    @app.step
    async def fail() -> int:
        raise LookupError("nothing there")

    @app.workflow
    async def go() -> int:
        try:
            return await fail()
        except LookupError as error:
            raise ValueError("no luck") from error

    with pytest.raises(RunFailed, match="no luck") as failed:
        app.run(go)
    assert isinstance(failed.value.__cause__, ValueError)
    assert isinstance(failed.value.__cause__.__cause__, LookupError)


def test_an_argument_that_does_not_fit_is_refused_before_anything_is_recorded(
    dsn: str, conn: psycopg.Connection[tuple[int]]
) -> None:
    """Arguments that do not fit the signature are an InvalidRequest at the start, and no run exists."""
    app = hello_app(dsn)

    async def main() -> None:
        async with app.client() as client:
            with pytest.raises(InvalidRequest):
                await client.start("hello", "a", "b")

    asyncio.run(main())
    assert conn.execute("select count(*) from durable.runs").fetchone() == (0,)


def test_many_runs_side_by_side(dsn: str) -> None:
    """More runs than a worker has slots are all done."""
    app = App(dsn)

    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def four_times(n: int) -> int:
        return await double(await double(n))

    async def main() -> list[int]:
        async with app.worker(concurrency=7), app.client() as client:
            runs = await asyncio.gather(*(client.start(four_times, n) for n in range(60)))
            return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert asyncio.run(main()) == [4 * n for n in range(60)]
