"""Sentences that got lost on their way to the user: a mistake is answered by one that says what to write."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from pyengine import App, Retry, Signal, ctx
from pyengine.core.definitions.current_run import StepInfo, current_step
from pyengine.errors import Conflict, InvalidRequest, NotFound, RunConflict, RunFailed
from tests.core.replay.memory_run import MemoryRun, add, greet, workflow
from tests.support.tree import ROOT

go = Signal[int]("go")


def waiting(dsn: str) -> App:
    """An app with a workflow that receives a signal."""
    app = App(dsn)

    @app.workflow
    async def wait(n: int) -> int:
        return await ctx.receive(go) + n

    return app


def test_errors_of_the_database_begin_with_their_sentence(dsn: str) -> None:
    """Not with the name of their kind, which their class is already; the log has that line alone."""
    app = waiting(dsn)

    async def main() -> list[Exception]:
        said: list[Exception] = []
        async with app.worker(), app.client() as client:
            run = await client.start("wait", 1, id="order")
            await run.signal(go, 1)
            assert await run.result() == 2
            for call in (
                client.run("nobody").signal(go, 1),
                run.signal(go, 1),
                client.start("wait", 2, id="order"),
            ):
                try:
                    await call
                except Exception as error:
                    said.append(error)
        return said

    said = asyncio.run(main())
    assert [(type(one), str(one).splitlines()[0]) for one in said] == [
        (NotFound, "There is no promise 'nobody'."),
        (Conflict, "Run 'order' has ended; nobody would receive signal 'go'."),
        (RunConflict, "Run 'order' exists with another input."),
    ]
    assert "detail:" not in "".join(map(str, said))


def test_the_driver_says_which_argument_is_wrong(dsn: str) -> None:
    """Its own errors have no fields of the server, and their text is all that there is."""
    app = App(dsn)

    @app.workflow
    async def pay() -> None:
        async with ctx.transaction() as tx:
            await tx.execute("select $1::int", "x")

    with pytest.raises(RunFailed, match="invalid input for query argument \\$1: 'x'") as failed:
        app.run(pay)
    assert isinstance(failed.value.__cause__, asyncpg.DataError)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": "high"}, "start does not take 'high' as its priority: a whole number is expected"),
        ({"id": 7}, "start does not take 7 as its id: a text is expected, not int"),
        ({"key": 7}, "start does not take 7 as its key: a text is expected, not int"),
        ({"idd": "x"}, "options of a start: id, key, queue, version, delay, timeout, priority, tags, conn"),
    ],
)
def test_an_option_of_a_start_is_named(dsn: str, options: dict[str, Any], says: str) -> None:
    """By its name, not by its place in a function of the database; one that is misspelt gets the list."""

    async def main() -> None:
        app = waiting(dsn)
        async with app.client() as client:
            await client.start("wait", 1, **options)

    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(main())
    assert says in str(refused.value)


def test_a_block_that_is_not_opened_says_so() -> None:
    """app.client(), app.worker() and app.dependencies() are opened by `async with`."""
    app = App("postgresql://127.0.0.1:1/x")
    with pytest.raises(AttributeError, match=r"async with app\.client\(\) as client:"):
        app.client().start  # noqa: B018
    with pytest.raises(AttributeError, match=r"async with app\.worker\(\) as worker:"):
        app.worker().stop  # noqa: B018
    with pytest.raises(TypeError, match=r"not by await: async with app\.dependencies\(\) as dependencies:"):
        app.dependencies().__await__()


async def looped() -> None:
    for _ in greet("you"):  # type: ignore[attr-defined]
        pass


async def looped_async() -> None:
    async for _ in greet("you"):  # type: ignore[attr-defined]
        pass


async def unpacked() -> None:
    _, _ = greet("you")  # type: ignore[misc]


async def gathered() -> None:
    await asyncio.gather([add(1, 2), add(3, 4)])  # type: ignore[call-overload]


@pytest.mark.parametrize("code", [looped, looped_async, unpacked])
def test_a_call_is_no_iterable(code: Callable[[], Any]) -> None:
    """The loop would begin with the call in place of its first element."""
    error = MemoryRun(workflow(code)).error
    assert isinstance(error, TypeError)
    assert str(error) == "step greet was called and not awaited: write `await greet(...)`"


def test_gather_takes_awaitables_one_by_one(dsn: str) -> None:
    """A list of them has no place in a dict; asyncio's sentence says no more."""
    app = App(dsn)
    with pytest.raises(RunFailed) as failed:
        app.run(app.workflow(gathered))
    notes = getattr(failed.value.__cause__, "__notes__", [])
    assert "hint: gather takes awaitables one by one: asyncio.gather(*calls)" in notes


def test_a_function_is_decorated_once() -> None:
    """A workflow of a step said that the step is no async function, though it is."""
    app = App("postgresql://127.0.0.1:1/x")

    @app.step
    async def pay() -> None: ...

    @app.workflow
    async def shop() -> None: ...

    for made in (lambda: app.workflow(pay), lambda: app.step(shop), lambda: app.step(pay)):
        with pytest.raises(InvalidRequest, match="is made of a function, and "):
            made()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"initial": "1d", "max_delay": "6h"}, "no delay is longer than max_delay, '6h'"),
        ({"initial": "1w", "max_delay": "6d"}, "no delay is longer than max_delay, '6d'"),
        ({"max_attempts": "3"}, "a whole number of at least 1, or None"),
        ({"max_attempts": 2.5}, "a whole number of at least 1, or None"),
        ({"backoff": "2"}, "a factor of at least 1"),
        ({"jitter": "0.1"}, "a share between 0 and 1"),
        ({"initial": "1000000000w"}, "too long"),
    ],
)
def test_a_policy_that_would_not_be_kept_is_refused(options: dict[str, Any], says: str) -> None:
    """A first delay of a day was cut to five minutes without a word (C081)."""
    with pytest.raises(InvalidRequest, match=says):
        Retry(**options)
    assert Retry(initial="1d", max_delay="1d") == Retry(initial="1d")


def test_a_line_for_the_log_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """In a step it has the attempt in its fields, outside it is a plain logger (D057)."""
    with caplog.at_level(logging.WARNING, "pyengine.workflow"):
        ctx.log.warning("outside")
        token = current_step.set(StepInfo(run_id="run-9", child=4, attempt=2, name="charge"))
        try:
            ctx.log.warning("inside", extra={"own": 1})
        finally:
            current_step.reset(token)
    outside, inside = (vars(record) for record in caplog.records)
    assert (outside["message"], outside["filename"]) == ("outside", "test_sentences.py")
    assert (inside["run"], inside["step"], inside["attempt"], inside["own"]) == ("run-9", "charge", 2, 1)


def test_messages_of_the_log_are_sentences() -> None:
    """A plain handler prints nothing else: the name of an event stands in the field `event`."""
    verbs = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    words = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {text.value}"
        for path in (ROOT / "pyengine").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in verbs
        for text in call.args[:2]
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        if " " not in text.value and "%" not in text.value
    ]
    assert words == []
