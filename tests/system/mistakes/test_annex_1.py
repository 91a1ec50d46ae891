"""Typical mistakes of newcomers, and the sentences that answer them: one test or more for each row of the
list of mistakes, with its number in the name.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from pyengine import App, ctx
from pyengine.errors import EncodeError, ForbiddenInWorkflow, InvalidRequest, RemoteError, RunFailed
from pyengine.features.checks.unawaited import UNAWAITED
from tests.core.replay.memory_run import MemoryRun, add, greet, ship, step, workflow
from tests.system.mistakes.places import line_of

# -- row 7: a result without an annotation


@dataclass
class Receipt:
    """A result of a step."""

    a: int


def test_row_07_a_dataclass_without_an_annotation(dsn: str) -> None:
    """The hint is to annotate the return type, for the class that was returned, also inside a list."""
    app = App(dsn)

    charge = app.step(name="charge")(lambda depth: [Receipt(1)] if depth else Receipt(1))

    @app.workflow
    async def checkout(depth: int) -> Any:
        return await charge(depth)

    for depth in (0, 1):
        with pytest.raises(RunFailed) as caught:
            app.run(checkout, depth)
        error = caught.value.__cause__
        assert isinstance(error, EncodeError)
        assert "the result of step charge of run" in error.message
        assert error.hint is not None
        assert error.hint.startswith("annotate the return type, so that it declares Receipt")


# -- rows 8 to 10: forgotten awaits


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays look for calls that no code awaits, as those of an app do."""
    monkeypatch.setattr(MemoryRun, "unawaited", UNAWAITED)


def test_row_08_a_step_that_is_never_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """A warning with file and line when the run ends, whether the step has ended before or not; once."""

    async def forgets() -> str:
        greet("a")  # pending at the end
        return await greet("b")

    async def forgets_early() -> str:
        greet("a")  # done before the end
        return await greet("b")

    for code, last in ((forgets, 1), (forgets_early, 0), (forgets, 1)):
        run = MemoryRun(workflow(code))
        if last == 0:
            run.complete(0, "ignored")
        run.complete(1, "x")
        assert run.value == "x"
    lines = (line_of(forgets, "# pending at"), line_of(forgets_early, "# done before"))
    assert [one.message for one in caplog.records] == [
        f"run run-1: step greet was called at {__file__}, line {line}, and never awaited, so its result and "
        "its errors are lost; write `await greet(...)`"
        for line in lines
    ]
    fields = caplog.records[0].__dict__
    assert (fields["run"], fields["workflow"], fields["step"]) == ("run-1", "forgets", "greet")


def test_row_08_a_step_that_fails_and_is_never_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """The warning is about the forgotten await only."""

    async def forgets() -> str:
        _ = greet("a")
        await add(1, 2)
        return "done"

    run = MemoryRun(workflow(forgets))
    run.complete(0, error=ValueError("unseen"))
    run.complete(1, 3)
    run.warm.evict()
    assert run.value == "done"
    gc.collect()
    assert [one.__dict__.get("event") for one in caplog.records] == ["workflow_unawaited_call"]


def test_row_08_a_child_run_that_is_never_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """The warning comes when the run suspends, if nothing refers to the call any more."""

    async def forgets() -> str:
        ship(1)
        return await ctx.promise(str)

    async def awaits_later() -> str:
        later = ship(1)
        await ctx.promise(str)
        return await later

    async def starts() -> str:
        ctx.start(ship, 1)
        return await ctx.promise(str)

    MemoryRun(workflow(awaits_later))
    MemoryRun(workflow(starts))
    assert caplog.records == []
    MemoryRun(workflow(forgets))
    (record,) = caplog.records
    assert f"child run ship was called at {__file__}, line {line_of(forgets, 'ship(1)')}," in record.message
    advice = "write `await ship(...)`, or `ctx.start(ship, ..., detached=True)` if nothing waits for it"
    assert advice in record.message


def test_row_08_calls_that_were_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """No warning of a call that lost a race, was waited for in time only, or is awaited when it is done."""

    async def waits() -> list[str]:
        first = greet("a")
        await greet("b")
        one = await first
        await ctx.first(greet("c"), greet("d"))
        pair = [asyncio.create_task(greet(name)) for name in "ef"]
        await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        shielded = greet("g")
        try:
            async with asyncio.timeout(5):
                await asyncio.shield(shielded)
        except TimeoutError:
            pass
        task = asyncio.create_task(greet("h"))
        return [one, await task]

    run = MemoryRun(workflow(waits))
    for child in (0, 1, 2, 4):
        run.complete(child, "x")
    run.complete(7)  # the timeout
    run.complete(8, "y")
    assert run.value == ["x", "y"]
    assert caplog.records == []


def test_row_08_a_wait_that_is_never_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """Receives, sleeps and waits for several are told like steps, when the run ends or suspends."""
    instant = datetime(2100, 1, 1, tzinfo=UTC)

    async def forgets() -> str:
        ctx.receive("a", str)
        ctx.receive("b", str, timeout="7d")
        ctx.sleep("1m")
        ctx.sleep_until(instant)
        ctx.gather(greet("a"), greet("b"))
        ctx.first(greet("c"), greet("d"))
        ctx.map(greet, ["e", "f"])
        ctx.map(greet, ["g", "h"], concurrency=1)
        return "x"

    async def suspends() -> str:
        ctx.receive("a", str)  # dropped
        return await ctx.promise(str)

    async def awaits() -> list[Any]:
        either = await ctx.first(ctx.receive("a", str, timeout=9), ctx.sleep(1), ctx.promise(str))
        later = ctx.gather(greet("a"), greet("b"))
        await greet("c")
        return [*either, *await later]

    assert MemoryRun(workflow(forgets)).value == "x"
    MemoryRun(workflow(suspends))
    calls = [
        ("receive a", "ctx.receive(", '"a"'),
        ("receive b", "ctx.receive(", '"b"'),
        ("timer sleep", "ctx.sleep(", '"1m"'),
        ("timer sleep_until", "ctx.sleep_until(", "instant"),
        ("wait gather", "ctx.gather(", "greet"),
        ("wait first", "ctx.first(", "greet"),
        ("wait map", "ctx.map(", "greet, ["),
        ("wait map", "ctx.map(", 'greet, ["g"'),
    ]
    said = {one.message for one in caplog.records}
    assert said == {
        f"run run-1: {name} was called at {__file__}, line {line_of(forgets, spelled + rest)}, and never "
        f"awaited, so the run did not wait for it; write `await {spelled}...)`"
        for name, spelled, rest in calls
    } | {
        f"run run-1: receive a was called at {__file__}, line {line_of(suspends, 'dropped')}, and never "
        "awaited, so the run did not wait for it; write `await ctx.receive(...)`"
    }
    caplog.clear()
    run = MemoryRun(workflow(awaits))
    run.complete(3, "x")
    for child in (4, 5, 6):
        run.complete(child, "y")
    assert run.value == [2, "x", "y", "y"]
    assert caplog.records == []


def test_row_09_a_call_as_a_condition() -> None:
    """A call has no truth value before it is awaited, so `if ctx.receive(approve):` does not go on."""
    codes: dict[str, Callable[[], Any]] = {
        "step greet was called and not awaited: write `await greet(...)`": lambda: greet("a"),
        "child run ship was called and not awaited: write `await ship(...)`": lambda: ship(1),
        "receive a was called and not awaited: write `await ctx.receive(...)`": lambda: ctx.receive("a"),
        "receive b was called and not awaited: write `await ctx.receive(...)`": lambda: ctx.receive(
            "b", timeout=1
        ),
        "timer sleep was called and not awaited: write `await ctx.sleep(...)`": lambda: ctx.sleep(1),
        "promise was called and not awaited: write await before it": lambda: ctx.promise(bool),
        "ctx.gather was called and not awaited: write `await ctx.gather(...)`": lambda: ctx.gather(
            greet("a")
        ),
        "ctx.first was called and not awaited: write `await ctx.first(...)`": lambda: ctx.first(greet("a")),
        "ctx.map was called and not awaited: write `await ctx.map(...)`": lambda: ctx.map(
            greet, ["a", "b"], concurrency=1
        ),
    }
    for says, make in codes.items():

        async def decides(make: Callable[[], Any] = make) -> str:
            return "approved" if make() else "declined"

        assert str(MemoryRun(workflow(decides)).error) == says


def test_row_09_a_call_in_place_of_its_result() -> None:
    """Text, attributes and operators of a call say that it was not awaited."""

    async def as_text() -> str:
        return f"{greet('a')}"

    async def added() -> Any:
        return add(1, 2) + 1  # type: ignore[operator]

    async def attribute() -> Any:
        return greet("a").upper()  # type: ignore[attr-defined]

    assert str(MemoryRun(workflow(as_text)).error) == (
        "step greet was called and not awaited: write `await greet(...)`"
    )
    for code, says in (
        (added, "hint: a step or child run was called and not awaited: write await before the call"),
        (attribute, "hint: step greet was called and not awaited: write await before the call"),
    ):
        error = MemoryRun(workflow(code)).error
        assert error is not None and error.__notes__ == [says]


def test_row_10_a_call_as_a_result_or_an_argument() -> None:
    """The sentence names the call, its place in the value, and `await`."""

    async def returned() -> Any:
        return {"greeting": [greet("a")]}

    async def passed() -> str:
        return await greet(greet("a"))  # type: ignore[arg-type]

    error = MemoryRun(workflow(returned)).error
    assert isinstance(error, EncodeError)
    assert error.message == (
        "the result of workflow returned (run run-1) is <step greet, pending>, which was not awaited"
        " - at `$.greeting[0]`"
    )
    assert error.hint == "write await before the call, to get its result"
    error = MemoryRun(workflow(passed)).error
    assert isinstance(error, EncodeError)
    assert error.message == "argument 'name' of step greet is <step greet, pending>, which was not awaited"


# -- row 13: classes of errors inside functions


def test_row_13_a_local_class_of_an_error(dsn: str) -> None:
    """`except` catches it: a class that step and workflow refer to is registered with them."""
    app = App(dsn)

    class Declined(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(f"declined with {code}")
            self.code = code

    @app.step
    async def charge() -> None:
        raise Declined(7)

    @app.workflow
    async def checkout() -> int:
        try:
            await charge()
        except Declined as error:
            return error.code
        return 0

    assert app.run(checkout) == 7


def test_row_13_a_class_inside_the_step(dsn: str) -> None:
    """The registration warns of a class that no other code can catch."""
    app = App(dsn)
    with pytest.warns(
        UserWarning, match="step charge raises Declined, a class that it defines itself"
    ) as caught:

        @app.step
        async def charge() -> None:
            class Declined(Exception):
                pass

            raise Declined

    assert "it comes back from the journal as a RemoteError; define it at the top level" in str(
        caught[0].message
    )
    assert (caught[0].filename, caught[0].lineno) == (
        __file__,
        line_of(test_row_13_a_class_inside_the_step, "            class Declined"),
    )

    @app.workflow
    async def checkout() -> None:
        await charge()

    with pytest.raises(RunFailed, match=r"failed: .*Declined") as failed:
        app.run(checkout)
    assert isinstance(failed.value.__cause__, RemoteError)


# -- row 18: steps inside steps


def test_row_18_a_step_calls_a_step_or_a_workflow(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """It runs as a plain function, which is logged once, with file and line and what it means."""
    app = App(dsn)

    @app.step
    async def inner(x: int) -> int:
        return x

    @app.step
    def threaded(x: int) -> int:
        return x

    @app.workflow
    async def child(x: int) -> int:
        return await inner(x)

    @app.step
    async def outer(x: int) -> int:
        return await inner(x) + await inner(x) + await threaded(x) + await child(x)

    @app.workflow
    async def checkout() -> int:
        return await outer(1) + await outer(2)

    assert app.run(checkout) == 12
    texts = [one.message for one in caplog.records if one.name == "pyengine.steps"]
    at = f"at {__file__}, line {line_of(test_row_18_a_step_calls_a_step_or_a_workflow, 'await inner(x) + ')}"
    means = "runs again with each attempt of outer; call it from the workflow"
    recorded = "it is not recorded, not retried by itself, and"
    assert texts == [
        f"step outer calls step inner {at}: inside a step it is a plain function: {recorded} {means}",
        f"step outer calls step threaded {at}: inside a step it is a plain function: {recorded} {means}",
        f"step outer calls workflow child {at}: inside a step it is a plain function: it is no child run, "
        f"its steps are not recorded, and it {means}",
    ]


def test_row_10_a_task_that_is_never_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """A workflow that returns before its task is done says so once, with file and line; one that awaits it,
    or gave up waiting in ctx.first, says nothing."""

    async def helper() -> None:
        await greet("a")

    async def of_a_step() -> str:
        asyncio.create_task(greet("a"))  # noqa: RUF006
        return "done"

    async def of_a_helper() -> str:
        asyncio.create_task(helper())  # noqa: RUF006
        return "done"

    async def awaited() -> str:
        task = asyncio.create_task(helper())
        await asyncio.gather(task)
        return "done"

    async def lost_a_race() -> str:
        await ctx.first(helper(), ctx.sleep(0))
        return "done"

    for code, said in ((of_a_step, 1), (of_a_step, 0), (of_a_helper, 1), (awaited, 0), (lost_a_race, 0)):
        caplog.clear()
        run = MemoryRun(workflow(code))
        while run.open and not run.warm.finished:
            run.complete(max(run.open), "x")
        assert run.value == "done"
        told = [one.message for one in caplog.records if "nothing awaited it" in one.message]
        assert len(told) == said
        assert all("test_annex_1.py, line " in one and "the task of " in one for one in told)


# -- rows 19, 20, 22: I/O in a workflow


def test_row_19_httpx_in_a_workflow(dsn: str) -> None:
    """The sentence and its hint stand on top, though the error is inside an ExceptionGroup."""
    app = App(dsn)

    @app.workflow
    async def in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            group.create_task(asyncio.open_connection("localhost", 9))  # durable: ok

    @app.workflow
    async def fetches() -> str:
        async with httpx.AsyncClient() as client:  # durable: ok
            return (await client.get("http://localhost:9")).text

    for code in (in_group, fetches):
        with pytest.raises(RunFailed) as caught:
            app.run(code)
        first, second = caught.value.message.split("\n")[:2]
        assert "failed: ForbiddenInWorkflow: workflow code may not call loop." in first
        assert second.startswith("hint: use instead: ctx.http, or a step")


def test_row_19_httpx_and_its_connections() -> None:
    """The method of the loop that it ends in is named with its callers, and ctx.http."""

    async def fetches() -> None:
        async with httpx.AsyncClient() as client:
            await client.get("http://localhost:9")

    error = MemoryRun(workflow(fetches)).error
    assert isinstance(error, ForbiddenInWorkflow)
    assert "loop.getaddrinfo(), which clients of HTTP call: " in error.message
    assert error.hint is not None and error.hint.startswith("use instead: ctx.http, or a step")


def test_row_20_threads_in_a_workflow() -> None:
    """The call is named, and a step."""

    async def threads() -> None:
        await asyncio.to_thread(os.getpid)

    error = MemoryRun(workflow(threads)).error
    assert isinstance(error, ForbiddenInWorkflow)
    assert "workflow code may not call loop.run_in_executor(), which is asyncio.to_thread()," in error.message
    assert error.hint is not None and error.hint.startswith("use instead: a step")


@pytest.mark.parametrize("verb", ["app.start()", "app.run()", "client.start()"])
def test_row_22_a_verb_of_the_app_in_a_workflow(dsn: str, verb: str) -> None:
    """The sentence names `ctx.start`, or the child run."""
    app = App(dsn)

    @app.workflow
    async def child() -> int:
        return 1

    async def inside() -> None:
        if verb == "app.start()":
            await app.start(child)
        elif verb == "app.run()":
            app.run(child)
        else:
            await app.client().__aenter__()

    error = MemoryRun(workflow(inside)).error
    assert isinstance(error, ForbiddenInWorkflow) and error.hint is not None
    if verb == "client.start()":
        assert error.hint == "use instead: a step"
        return
    assert error.message.startswith(f"workflow code may not call {verb}: a replay would call it again")
    assert ("ctx.start(workflow, ...)" if verb == "app.start()" else "await child(...)") in error.hint


# -- rows 23, 24: no workflow


async def plain(a: int = 1) -> int:
    """A function without a decorator."""
    return a


def test_row_24_what_is_no_workflow(dsn: str) -> None:
    """A function, a partial, a coroutine, a step: each has its sentence, at each verb."""
    app = App(dsn)

    @app.workflow
    async def count(a: int = 1) -> int:
        return a

    @app.step
    async def one_step() -> None: ...

    cases: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: plain, "and plain is a plain function", "@app.workflow above async def plain(...)"),
        (lambda: functools.partial(count, 1), "not a partial of count", "{}(count, ...)"),
        (
            lambda: count(1),
            "not the coroutine that a call of count returned",
            "do not call it: {}(count, ...)",
        ),
        (lambda: one_step, "and one_step is a step", "await one_step(...)"),
        (lambda: 7, "not 7", "decorate an async function"),
    ]
    for make, says, hint in cases:
        with pytest.raises(InvalidRequest) as caught:
            app.run(make())
        assert caught.value.message == f"app.run takes a workflow, {says}"
        assert caught.value.hint is not None and hint.format("app.run") in caught.value.hint
        with pytest.raises(InvalidRequest, match=r"app\.start takes a workflow, "):
            asyncio.run(app.start(make()))

    async def starts() -> None:
        ctx.start(plain)  # type: ignore[call-overload]

    assert "ctx.start takes a workflow, and plain is a plain function" in str(
        MemoryRun(workflow(starts)).error
    )


def test_row_24_what_is_no_step() -> None:
    """A partial and a class are refused by the decorators."""
    for given, says in (
        (functools.partial(plain, 1), "a step is a function, not a partial of plain"),
        (Receipt, "a step is a function, not the class Receipt"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            step(given)
