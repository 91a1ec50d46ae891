"""Code that a replay cannot repeat, on a real database: what a halted run and a check of journals say."""

from __future__ import annotations

import asyncio
import itertools
import logging
import warnings
from typing import Any

import pytest

from pyengine import App, DeterminismWarning, NondeterminismError, RunFailed, Workflow, ctx
from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.worker.run_manager import RunManager
from pyengine.features.checks.development import check_run
from pyengine.features.checks.replay_check import replay_check
from tests.features.worker.test_replay_check import until


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


def halted(workflow: str, first: App, second: App) -> Any:
    """Return the problem of the run "r": a worker of the first app began it and left it waiting for its
    call 1, and one of the second could not go on with it.
    """

    async def main() -> Any:
        async with first.client() as client:
            run = await client.start(workflow, id="r")
            async with first.worker():
                await until(run, "waiting")
            await client.promises.resolve("r.1", "x")
            async with second.worker():
                await until(run, "halted")
            return (await run.get()).problem

    return asyncio.run(main())


def test_a_clock_as_an_argument_and_another_worker(dsn: str) -> None:
    """After a worker has gone the next one halts the run, and says that the code is not deterministic, with
    both values, and where it reads the clock.
    """
    app = stamping(dsn)
    problem = halted("stamp", app, app)
    assert problem["message"].startswith(
        "run r, child 0: the code is not deterministic: two replays of the same journal gave step save"
    )
    assert problem["got"] != problem["again"] and problem["got"].startswith('step save (input ["20')
    hint = problem["data"]["hint"]
    assert "calls datetime.now(): use ctx.now()" in hint and __file__ in hint
    (found,) = asyncio.run(replay_check(Database(dsn), app.registry)).breaks()
    assert found.first.again is not None and found.first.again.startswith("step save (input ")


def test_an_old_side_with_the_recorded_value_needs_no_fork(dsn: str) -> None:
    """A halted run goes on by a resume where the mended code gives the value that it took; its step is not
    repeated. A new run takes the recorded clock.
    """
    app, mended = stamping(dsn), App(dsn)
    known: list[str] = []
    saved: list[str] = []

    @mended.step
    async def save(at: str) -> str:
        saved.append(at)
        return at

    @mended.workflow
    async def stamp() -> str:
        await save(ctx.now().isoformat() if ctx.patched("recorded-clock") else known[0])  # durable: ok
        return await ctx.promise(str, name="go")

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("stamp", id="r")
            async with app.worker():
                await until(run, "waiting")
            await client.promises.resolve("r.1", "x")
            async with app.worker():
                await until(run, "halted")
            known.append((await run.as_of()).children[0]["value"])
            await run.resume()
            async with mended.worker():
                assert await run.result(timeout="30s") == "x"
                assert saved == []
                fresh = await client.start("stamp", id="s")
                await until(fresh, "waiting")
                assert len(saved) == 1 and saved != known

    asyncio.run(main())


class SlowPool(ConnectionPool):
    """A pool whose answer comes when other code has run."""

    def __init__(self) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def rows(self, procedure: Procedure, *args: Any) -> list[Any]:
        """Return no rows, when told to."""
        self.asked.set()
        await self.answered.wait()
        return []


def test_prints_while_a_journal_is_read_are_not_muted(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the replay is muted: a program may print while its worker of development reads a journal."""

    async def main() -> None:
        pool = SlowPool()
        check = asyncio.create_task(check_run(pool, App().registry, "r"))
        await pool.asked.wait()
        print("a result")
        pool.answered.set()
        assert await check is None

    asyncio.run(main())
    assert capsys.readouterr().out == "a result\n"


numbers = itertools.count(1)


def counting(dsn: str) -> App:
    """Return an app whose code counts its own executions, in several places."""
    app = App(dsn)

    @app.step
    async def save(n: int) -> int:
        return n

    @app.workflow
    async def argument() -> int:
        return await save(next(numbers))  # durable: ok

    @app.workflow
    async def result() -> int:
        print("result ran")  # durable: ok
        await save(1)
        return next(numbers)  # durable: ok

    @app.workflow
    async def failure() -> int:
        raise ValueError(f"execution {next(numbers)}")  # durable: ok

    @app.workflow
    async def refused() -> int:
        try:
            return int(str(await save(1)) + "x")
        except ValueError as error:
            raise LookupError("no number") from error

    @app.workflow
    async def plain_failure() -> None:
        raise LookupError("nothing")

    @app.workflow
    async def parent() -> int:
        return await argument() - 1

    @app.workflow
    async def waits() -> int:
        first = await save(next(numbers))  # durable: ok
        await ctx.promise(str, name="go")
        return first

    @app.workflow
    async def generations(n: int = 0) -> int:
        await save(n)
        if n < 2:
            ctx.continue_as_new(n + 1)
        return n

    return app


def flow(app: App, name: str) -> Workflow[..., Any]:
    """Return a workflow of an app by its name."""
    return Workflow(app.registry.workflow(name))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("argument", "child 0: the code is not deterministic: two replays of the same journal gave step"),
        ("parent", ".0, child 0: the code is not deterministic: two replays of the same journal gave step"),
        ("result", ": the code is not deterministic: two replays of the same journal gave the workflow"),
    ],
)
def test_app_run_replays_what_it_ran(
    dsn: str, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`app.run` raises at home what would halt the run after a crash, in the run or in a child of it; nothing
    is printed twice.
    """
    app = counting(dsn)
    with pytest.raises(NondeterminismError) as caught:
        app.run(flow(app, name))
    error = caught.value
    assert says in error.message and error.got != error.again
    assert capsys.readouterr().out == ("result ran\n" if name == "result" else "")


def test_a_run_that_fails_keeps_its_error(dsn: str) -> None:
    """The error of the workflow is raised; that a replay fails otherwise is a note of it."""
    app = counting(dsn)
    with pytest.raises(RunFailed) as caught:
        app.run(flow(app, "failure"))
    note = caught.value.__notes__[-1]
    assert "two replays of the same journal gave the workflow failed: ValueError: execution" in note


@pytest.mark.parametrize("name", ["refused", "plain_failure"])
def test_a_failure_that_is_repeated_has_no_note(dsn: str, name: str) -> None:
    """The replay of a run that failed ends with the same error and causes: no note says otherwise."""
    app = counting(dsn)
    with pytest.raises(RunFailed) as caught:
        app.run(flow(app, name))
    assert isinstance(caught.value.__cause__, LookupError)
    assert "two replays" not in str(caught.value.__notes__)


def test_what_can_be_repeated_is_returned(dsn: str) -> None:
    """Every generation of a run is replayed, and nothing is found; the journal is as it was."""
    app = counting(dsn)
    assert app.run(flow(app, "generations")) == 2


def test_a_global_that_the_run_itself_changed(dsn: str) -> None:
    """Two replays agree, since the global changed once: the sentence does not speak of a deployment."""
    app = App(dsn)
    cache: list[int] = []

    @app.step
    async def load() -> int:
        return 7

    @app.workflow
    async def cached() -> int:
        if not cache:
            cache.append(await load())
        return cache[0]

    with pytest.raises(NondeterminismError) as caught:
        app.run(cached)
    error = caught.value
    assert error.again is None and "the code made no more calls: the workflow ended" in error.message
    assert error.hint == (
        "the code reads what has changed since it ran, such as a global or a closure: pass it as an "
        "argument, or read it in a step"
    )


def test_a_development_worker_replays_at_every_suspend(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """The difference is logged when the run suspends, once; with no coroutine kept, the run halts later."""
    app = counting(dsn)

    async def main() -> str:
        async with app.client() as client, app.worker(dev=True):
            run = await client.start("waits", id="r")
            while not caplog.records:
                await asyncio.sleep(0.01)
            assert (await run.get()).state == "waiting"
            await client.promises.resolve("r.1", "x")
            await until(run, "halted")
            other = await client.start("result", id="s")
            await other.result(timeout=20)
            return str((await run.get()).problem)

    caplog.set_level(logging.ERROR, "pyengine.app")
    assert "the code is not deterministic" in asyncio.run(main())
    first, last = (one for one in caplog.records if one.name == "pyengine.app")
    assert "run r, child 0: the code is not deterministic" in first.getMessage()
    assert "run s: the code is not deterministic" in last.getMessage()


def test_a_worker_reports_nothing_unless_asked(dsn: str) -> None:
    """The replays are for development: a plain worker observes nothing, and keeps coroutines."""
    app = counting(dsn)

    async def main() -> int:
        async with app.client() as client, app.worker() as worker:
            run = await client.start("waits", id="r")
            await until(run, "waiting")
            await client.promises.resolve("r.1", "x")
            result: int = await run.result(timeout=20)
            assert type(worker.parts.runs) is RunManager
            return result

    assert asyncio.run(main()) > 0
