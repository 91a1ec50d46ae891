"""Typical mistakes of newcomers that other tests have in detail, and the sentences that answer them: rows 2
to 4, 6, 8, 11, 12, 14, 15, 26, 27, 31 and 34 of the list. Rows 28 to 30 are in
tests/doors/cli/test_annex_1_cli.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pyengine import App, DeterminismWarning, ctx
from pyengine.errors import EncodeError, InvalidRequest, NotFound, RunFailed
from pyengine.features.checks.unawaited import UNAWAITED
from tests.core.replay.memory_run import MemoryRun, ship, workflow
from tests.features.worker.test_not_deterministic import halted, stamping
from tests.system.mistakes.places import line_of


def said(call: Callable[[], Any], error: type[Exception]) -> str:
    """Return the sentence and the hint of the error that a call raises, or that its run failed with."""
    with pytest.raises((error, RunFailed)) as caught:
        call()
    found = caught.value.__cause__ if isinstance(caught.value, RunFailed) else caught.value
    assert isinstance(found, error)
    return str(found)


def test_row_02_a_clock_as_an_argument_and_a_crash(dsn: str) -> None:
    """The halted run says that the code is not deterministic, shows both values, and where the clock is."""
    app = stamping(dsn)
    problem = halted("stamp", app, app)
    assert (
        "the code is not deterministic: two replays of the same journal gave step save" in problem["message"]
    )
    assert "calls datetime.now()" in str(problem)


@dataclass
class Order:
    """An argument."""

    number: int


def test_row_04_a_dict_for_a_dataclass(dsn: str) -> None:
    """The sentence names the argument, its type, and the class that is declared."""
    app = App(dsn)

    @app.step
    async def load() -> Order:
        return {"number": 1}  # type: ignore[return-value]

    @app.workflow
    async def fulfil(order: Order, orders: tuple[Order, ...] = ()) -> None:
        await load()

    given: Any = {"number": 1}
    assert said(lambda: app.run(fulfil, given), EncodeError) == (
        "argument 'order' of workflow fulfil is a dict; pass an object of Order\n"
        "hint: Order(**fields), since the code gets such an object from the journal"
    )
    assert "argument 'orders' of workflow fulfil is a dict; pass an object of Order - at `$[0]`" in said(
        lambda: app.run(fulfil, Order(1), (given,)), EncodeError
    )
    result = said(lambda: app.run(fulfil, Order(1)), EncodeError)
    assert "the result of step load" in result and "is a dict; return an object of Order" in result
    text: Any = "order-1"
    assert said(lambda: app.run(fulfil, text), InvalidRequest) == (
        "workflow fulfil, argument 'order': Expected `Order`, got `str`"
    )


def test_row_08_a_wait_that_nothing_refers_to(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive with a limit, lanes and waits for several are told when the run suspends, and not again at
    its end; nothing is told of one that a variable still has."""

    async def forgets() -> str:
        ctx.receive("a", str, timeout="7d")
        ctx.gather(ship(1), ship(2))
        ctx.first(ship(3), ship(4))
        ctx.map(ship, [5, 6])
        ctx.map(ship, [7, 8, 9], concurrency=2)
        return await ctx.promise(str)

    async def awaits_later() -> list[Any]:
        receive = ctx.receive("a", str, timeout="7d")
        waits: list[Any] = [ctx.gather(ship(1), ship(2)), ctx.first(ship(3)), ctx.map(ship, [5, 6])]
        lanes = ctx.map(ship, [7, 8, 9], concurrency=2)
        await ctx.promise(str)
        return [await receive, *[await one for one in waits], await lanes]

    monkeypatch.setattr(MemoryRun, "unawaited", UNAWAITED)
    MemoryRun(workflow(awaits_later))
    assert caplog.records == []
    run = MemoryRun(workflow(forgets))
    calls = ("ctx.receive(", "ctx.gather(", "ctx.first(", "ctx.map(ship, [5", "ctx.map(ship, [7")
    places = [line_of(forgets, call) for call in calls]
    told = sorted(int(one.message.split("line ")[1].split(",")[0]) for one in caplog.records)
    assert told == places
    run.complete(8, "x")  # the promise; the lanes begin their calls after it
    # that the code ends before its child runs is told elsewhere
    assert len([one for one in caplog.records if one.name == "pyengine.workflow"]) == len(places)


def test_row_25_a_transaction_without_async() -> None:
    """`with` in place of `async with` is told."""

    async def saves() -> None:
        with ctx.transaction() as tx:  # type: ignore[attr-defined]
            await tx.execute("select 1")

    error = MemoryRun(workflow(saves)).error
    assert isinstance(error, InvalidRequest) and error.message == "the transaction was entered by `with`"
    assert error.hint == "async with ctx.transaction() as tx: ..."


def test_row_11_a_mistyped_name_and_a_dataclass(dsn: str) -> None:
    """The name is what is wrong, not the argument."""
    app = App(dsn)

    @app.workflow
    async def fulfil(order: Order) -> None: ...

    async def start() -> None:
        async with app.client() as client:
            await client.start("fulfill", Order(1))

    assert said(lambda: asyncio.run(start()), NotFound) == (
        "no workflow is named 'fulfill'\nhint: did you mean 'fulfil'?"
    )


def test_row_03_a_sleep_that_blocks(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the code that blocks the event loop, and `def` steps."""
    app = App(dsn)

    @app.step
    async def culprit() -> None:
        time.sleep(2)

    @app.workflow
    async def go() -> None:
        await culprit()

    with caplog.at_level(logging.WARNING):
        app.run(go)
    (text,) = [one.getMessage() for one in caplog.records if "has been blocked" in one.getMessage()][:1]
    assert "in culprit" in text and "def" in text


def test_rows_04_and_06_values_that_are_no_data(dsn: str) -> None:
    """The argument, the step and the type are named, and what to do."""
    app = App(dsn)

    class Plain:
        """A class without declared fields."""

    @app.step
    async def charge(f: Any) -> Any:
        return Plain()

    @app.workflow
    async def pays(with_lambda: bool) -> None:
        await charge((lambda: 1) if with_lambda else 1)

    hint = "pass data; connections, files, generators and objects with behaviour stay inside one step"
    argument = said(lambda: app.run(pays, True), EncodeError)
    assert argument.startswith(
        "argument 'f' of step charge cannot be written as JSON: values of type function cannot be written"
    )
    result = said(lambda: app.run(pays, False), EncodeError)
    assert result.startswith("the result of step charge of run ") and "Plain cannot be written" in result
    assert argument.endswith(hint) and result.endswith(hint)


def test_row_11_a_step_outside_a_workflow() -> None:
    """It is the function that it is."""
    app = App()

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    assert asyncio.run(double(4)) == 8


def test_row_12_ctx_where_no_workflow_code_runs(dsn: str) -> None:
    """Outside and inside a step, each says what to use there."""
    app = App(dsn)

    @app.step
    async def waits() -> None:
        await ctx.sleep(1)

    @app.workflow
    async def go() -> None:
        await waits()

    hint = "\nhint: in workflow code only; here use asyncio.sleep()"
    outside = said(lambda: asyncio.run(ctx.sleep(1)), InvalidRequest)
    assert outside == "ctx.sleep() was used outside a workflow" + hint
    assert said(lambda: app.run(go), InvalidRequest) == "ctx.sleep() was used inside a step" + hint


def test_rows_14_and_15_functions_of_a_wrong_kind() -> None:
    """A generator is no step, and a plain function no workflow."""
    app = App()

    async def numbers() -> Any:
        yield 1

    def plain() -> None: ...

    assert said(lambda: app.step(numbers), InvalidRequest) == (
        "step numbers is a generator; return a list, or call one step for each item"
    )
    assert said(lambda: app.workflow(plain), InvalidRequest) == (  # type: ignore[call-overload]
        "workflow plain must be an async function\nhint: async def plain(...)"
    )


def test_row_26_run_inside_an_event_loop() -> None:
    """It names what works there, in a notebook too."""
    app = App()

    @app.workflow
    async def go() -> None: ...

    async def cell() -> None:
        app.run(go)

    assert said(lambda: asyncio.run(cell()), InvalidRequest) == (
        "app.run starts an event loop of its own and cannot be called inside one\n"
        "hint: use: async with app.worker(): run = await app.start(workflow, ...); await run"
    )


def test_row_27_code_that_was_changed(dsn: str) -> None:
    """The halted run says what the journal has, what the code has, and that it was changed."""

    def version(swapped: bool) -> App:
        app = App(dsn)

        @app.step
        async def charge() -> None: ...

        @app.step
        async def reserve() -> None: ...

        @app.workflow
        async def order() -> None:
            await (reserve if swapped else charge)()
            await ctx.promise(str, name="go")

        return app

    problem = halted("order", version(False), version(True))
    assert problem["message"].startswith("run r, child 0: the journal expects step charge ")
    assert "the code made step reserve (input [])" in problem["message"]
    assert "the code or its Python was changed after the run began" in str(problem)


def test_row_31_an_unknown_workflow(dsn: str) -> None:
    """The nearest name is proposed."""
    app = App(dsn)

    @app.workflow
    async def flow() -> None: ...

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await client.start("flowz")

    assert "no workflow 'flowz'" in (text := said(lambda: asyncio.run(main()), NotFound)) and "'flow'" in text


def test_row_34_nan_durations_and_policies(dsn: str) -> None:
    """Each says what it got and what it takes."""
    app = App(dsn)

    @app.step
    async def nothing() -> float:
        return float("nan")

    @app.workflow
    async def measures() -> None:
        await nothing()

    assert "holds NaN or Infinity, which JSON cannot say" in said(lambda: app.run(measures), EncodeError)

    with warnings.catch_warnings():
        warnings.simplefilter("error", DeterminismWarning)

        @app.workflow
        async def sleeps() -> None:
            await ctx.sleep("3 parsecs")

    assert said(lambda: app.run(sleeps), InvalidRequest).startswith(
        "ctx.sleep: '3 parsecs' is not a duration\nhint: write "
    )
    text = said(lambda: app.step(retry=5)(nothing.fn), InvalidRequest)  # type: ignore[call-overload]
    assert text == "step nothing: retry is a Retry(...), not 5\nhint: retry=Retry(max_attempts=5)"
