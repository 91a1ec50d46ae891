"""Child runs: awaited, started, failing, detached, on other queues."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pyengine import App, RunFailed, RunTimedOut, ctx

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_child_run_is_awaited_like_a_step(dsn: str, conn: Connection) -> None:
    """A workflow called inside a workflow is a run of its own with the next child number as its id."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n + 1

    @app.workflow
    async def child(n: int) -> int:
        return await step(n) * 10

    @app.workflow
    async def parent() -> list[int]:
        return [await step(0), await child(1), await step(2)]

    assert app.run(parent) == [1, 20, 3]
    rows = conn.execute("select id, parent from durable.runs order by id").fetchall()
    (root, _), (second, its_parent) = rows
    assert (second, its_parent) == (f"{root}.1", root)


def test_an_id_is_a_place_in_the_tree(dsn: str, conn: Connection) -> None:
    """An id is that of the run above and the number of the call; every run counts its calls from 0."""
    app = App(dsn)

    @app.workflow
    async def leaf() -> float:
        return ctx.random()

    @app.workflow
    async def branch() -> list[float]:
        return [ctx.now().timestamp(), await leaf()]

    @app.workflow
    async def root() -> list[list[float]]:
        return [await branch(), await branch()]

    app.run(root)
    captured = "select promise_id from durable.journal_events where event ~ 'TimeRecorded|RandomGenerated'"
    runs = [str(id_) for (id_,) in conn.execute("select id from durable.runs").fetchall()]
    values = [str(id_) for (id_,) in conn.execute(captured).fetchall()]
    top = len(min(runs, key=len))
    assert {id_[top:] for id_ in runs} == {"", ".0", ".1", ".0.1", ".1.1"}
    assert {id_[top:] for id_ in values} == {".0.0", ".1.0", ".0.1.0", ".1.1.0"}


def test_grandchildren(dsn: str) -> None:
    """Runs nest; every level suspends and is woken by the one below."""
    app = App(dsn)

    @app.workflow
    async def factorial(n: int) -> int:
        return 1 if n <= 1 else n * await factorial(n - 1)

    assert app.run(factorial, 7) == 5040


def test_the_error_of_a_child_is_the_cause(dsn: str) -> None:
    """A child that fails raises RunFailed in its parent, with the child's own error as the cause."""
    app = App(dsn)

    @app.workflow
    async def child() -> None:
        raise LookupError("gone")

    @app.workflow
    async def parent() -> str:
        try:
            await child()
        except RunFailed as error:
            return f"{type(error.__cause__).__name__}: {error.__cause__}"
        return "no error"

    assert app.run(parent) == "LookupError: gone"


def test_start_returns_a_handle_and_waits_for_nobody(dsn: str) -> None:
    """Children that were started run side by side; their handles are awaited later, in any order."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        await ctx.sleep(0.01 * (3 - n))
        return n

    @app.workflow
    async def parent() -> list[int]:
        handles = [ctx.start(child, n) for n in range(3)]
        return [await handle for handle in reversed(handles)]

    assert app.run(parent) == [2, 1, 0]


def test_a_detached_child_outlives_its_parent(dsn: str) -> None:
    """A detached child is not waited for, and goes on when its parent has ended."""
    app = App(dsn)
    release = asyncio.Event()

    @app.step
    async def wait() -> str:
        await release.wait()
        return "done"

    @app.workflow
    async def child() -> str:
        return await wait()

    @app.workflow
    async def parent() -> str:
        return ctx.start(child, detached=True).id

    async def main() -> str:
        async with app.worker(), app.client() as client:
            child_id = await (await client.start(parent)).result(timeout=20)
            release.set()
            return await client.run(child_id, child).result(timeout=20)

    assert asyncio.run(main()) == "done"


def test_a_child_with_a_timeout_times_out(dsn: str) -> None:
    """A child past its deadline raises RunTimedOut in its parent."""
    app = App(dsn)

    @app.workflow
    async def child() -> None:
        await ctx.sleep("1h")

    @app.workflow
    async def parent() -> str:
        try:
            await ctx.start(child, timeout="50ms")
        except RunTimedOut:
            return "timed out"
        return "ended"

    assert app.run(parent) == "timed out"


def test_a_child_on_another_queue_is_run_by_the_worker_of_that_queue(dsn: str, conn: Connection) -> None:
    """Parent and child may be served by different workers."""
    app = App(dsn)

    @app.workflow(queue="far")
    async def child() -> int:
        return 5

    @app.workflow
    async def parent() -> int:
        return await child()

    async def main() -> int:
        async with app.worker(queues=["default"]), app.worker(queues=["far"]), app.client() as client:
            return await (await client.start(parent)).result(timeout=20)

    assert asyncio.run(main()) == 5
    assert conn.execute("select queue from durable.runs where parent is not null").fetchall() == [("far",)]


def test_fan_out_and_in_wakes_the_parent_once(dsn: str, conn: Connection) -> None:
    """ctx.gather over children is one wait for all of them."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        return n

    @app.workflow
    async def parent() -> int:
        return sum(await ctx.gather(*(child(n) for n in range(50))))

    assert app.run(parent) == 1225
    waits = conn.execute("select count(*) from durable._journal where type = 'execution_awaiting'").fetchone()
    assert waits == (1,)


def test_a_parent_that_catches_goes_on(dsn: str) -> None:
    """A failed child leaves its siblings alone."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @app.workflow
    async def parent() -> list[str]:
        results = await asyncio.gather(*(child(n) for n in range(3)), return_exceptions=True)
        return [type(one).__name__ for one in results]

    assert app.run(parent) == ["int", "RunFailed", "int"]


def test_arguments_that_do_not_fit_fail_the_caller(dsn: str) -> None:
    """A child called with wrong arguments is never started."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        return n

    @app.workflow
    async def parent() -> int:
        return await child("x", "y")  # type: ignore[arg-type, call-arg]

    with pytest.raises(RunFailed, match="child"):
        app.run(parent)
