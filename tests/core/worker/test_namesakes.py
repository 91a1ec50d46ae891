"""A name is global in a database: two programs that use one are named; in one process it is refused."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import psycopg
import pytest

from pyengine import App, Workflow, ctx
from pyengine.errors import InvalidRequest

Connection = psycopg.Connection[tuple[object, ...]]

SOURCE = """
from pyengine import App

app = App({dsn!r})


@app.workflow
async def nightly({parameters}) -> str:
    return {result!r}
"""


def program(
    monkeypatch: pytest.MonkeyPatch, dsn: str, module: str, result: str, parameters: str = "n: int"
) -> App:
    """The app of a module of its own."""
    made = ModuleType(module)
    monkeypatch.setitem(sys.modules, module, made)
    exec(
        compile(SOURCE.format(dsn=dsn, result=result, parameters=parameters), f"{module}.py", "exec"),
        vars(made),
    )
    app: App = made.app
    return app


async def both(first: App, second: App) -> None:
    """Two workers, one after the other, side by side for a moment."""
    async with first.worker(), second.worker():
        pass


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said about names, without the id of the other worker."""
    found = [one for one in caplog.records if getattr(one, "event", "") == "workflow_namesake"]
    return [one.getMessage().replace(vars(one)["other_worker"], "W") for one in found]


def test_another_module_is_named(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker that comes second warns, and `durable.workflows` shows both while both are there."""
    first, second = (program(monkeypatch, dsn, name, name) for name in ("a", "b"))
    shown = []

    async def main() -> None:
        async with first.worker() as one, second.worker() as other:
            shown.append(conn.execute("select name, places from durable.workflows").fetchall())
            # a hello that is under way would come after the goodbye
            for heartbeat in (one._heartbeat, other._heartbeat):
                while heartbeat is None or heartbeat._again or heartbeat.present != one.database.hints:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert warnings(caplog) == [
        "workflow nightly version 1 is here b: nightly(n), and in worker W a: nightly(n); runs of that name "
        "get the one or the other, by chance. Give one of them another name= or version=; "
        "durable.workflows shows both"
    ]
    assert shown == [[("nightly", ["a: nightly(n)", "b: nightly(n)"])]]
    assert conn.execute("select places from durable.workflows").fetchall() == [([],)]


def test_other_parameters_are_named(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A parameter with another name, in the same module, as in a deploy that renames it."""
    first = program(monkeypatch, dsn, "a", "one")
    second = program(monkeypatch, dsn, "a", "other", "n: int, *, title: str = 'x'")
    asyncio.run(both(first, second))
    [message] = warnings(caplog)
    assert "here a: nightly(n, title=), and in worker W a: nightly(n);" in message


@pytest.mark.parametrize("change", ["none", "body"])
def test_a_rolling_deploy_is_no_warning(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """The same module with the same parameters is a change of code at most; the same code is none."""
    first = program(monkeypatch, dsn, "a", "one")
    second = program(monkeypatch, dsn, "a", "one" if change == "none" else "other")
    asyncio.run(both(first, second))
    assert warnings(caplog) == []


def test_the_same_code_run_as_a_script_is_no_warning(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`python jobs.py` and `pyengine worker jobs:app` are one program."""
    first = program(monkeypatch, dsn, "jobs", "one")
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/jobs.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(SOURCE.format(dsn=dsn, result="other", parameters="n: int"), "jobs.py", "exec"), vars(main))
    asyncio.run(both(first, vars(main)["app"]))
    assert warnings(caplog) == []


def two_apps(dsn: str) -> tuple[App, App, Workflow[[int], str], Workflow[[int], str]]:
    """Each has a workflow of the same name; the one of the first, and one of the second that awaits both."""
    sales, health = App(dsn), App(dsn)

    @sales.workflow(name="report")
    async def report(n: int) -> str:
        return "sales"

    @health.workflow(name="report")
    async def report_2(n: int) -> str:
        return "health"

    @health.workflow
    async def outer(n: int) -> str:
        return await report(n)

    @health.workflow
    async def started(n: int) -> str:
        await ctx.start(report, n)
        return "started"

    @health.workflow
    async def careful(n: int) -> str:
        try:
            return await report(n)
        except InvalidRequest:
            return await report_2(n)

    return sales, health, report, careful


@pytest.mark.parametrize("name", ["outer", "started"])
def test_a_namesake_of_another_app_is_refused(dsn: str, name: str) -> None:
    """It would have been run by the workflow of this App."""
    health = two_apps(dsn)[1]

    async def main() -> None:
        async with health.worker(), health.client() as client:
            with pytest.raises(Exception, match=r"'report' of .* belongs to another App, and this App has a"):
                await (await client.start(name, 1)).result(timeout=30)

    asyncio.run(main())


def test_a_refused_await_leaves_no_trace(dsn: str) -> None:
    """Code that catches it goes on, and its replay is the same."""
    _, health, _, careful = two_apps(dsn)
    assert health.run(careful, 1) == "health"


def test_a_start_of_a_namesake_is_refused(dsn: str) -> None:
    """A client knows its own workflows too."""
    _, health, report, _ = two_apps(dsn)

    async def main() -> None:
        async with health.client() as client:
            with pytest.raises(InvalidRequest, match="belongs to another App"):
                await client.start(report, 1)

    asyncio.run(main())


def test_a_workflow_of_another_app_that_is_unknown_here_is_a_child_run(dsn: str) -> None:
    """A worker of the other App executes it."""
    sales, _, report, _ = two_apps(dsn)
    other = App(dsn)

    @other.workflow
    async def asks(n: int) -> str:
        return await report(n)

    async def main() -> str:
        async with sales.worker(), other.worker(), other.client() as client:
            return await (await client.start(asks, 1)).result(timeout=30)

    assert asyncio.run(main()) == "sales"
