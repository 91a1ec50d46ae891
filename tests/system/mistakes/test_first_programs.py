"""Mistakes of first programs, and the sentences that answer them: where definitions stand, and on what."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pyengine import App, DeterminismWarning, Retry, Signal
from pyengine.core.definitions.current_run import StepInfo, current_step
from pyengine.core.definitions.refusals import not_a_workflow
from pyengine.core.definitions.registry import make_step, make_workflow
from pyengine.core.definitions.signatures import Signature
from pyengine.core.replay.divergence import hint_of
from pyengine.core.rules import DEFINITIONS_RULES
from pyengine.core.values.codec import Codec
from pyengine.core.values.error_records import public_headline
from pyengine.errors import EncodeError, InvalidRequest
from tests.core.replay.memory_run import MemoryRun, add, ship, workflow
from tests.system.mistakes.places import line_of


def define_step(app: App) -> Any:
    """A helper that workflow code calls."""

    @app.step
    async def charge() -> None: ...


def define_workflow(app: App) -> Any:
    @app.workflow
    async def refund() -> None: ...


def define_memo(app: App) -> Any:
    @app.memo(version="1")
    async def price() -> None: ...


def define_error(app: App) -> Any:
    @app.error
    class Declined(Exception): ...


@pytest.mark.parametrize(
    ("define", "what", "line"),
    [
        (define_step, "step 'charge'", "@app.step"),
        (define_workflow, "workflow 'refund', version '1',", "@app.workflow"),
        (define_memo, "memo 'price'", "@app.memo"),
        (define_error, "error 'define_error.<locals>.Declined'", "@app.error"),
    ],
)
def test_a_definition_inside_a_workflow(define: Callable[[App], Any], what: str, line: str) -> None:
    """The first run refuses it, and not only the second; runs that began by older rules go on."""

    @workflow
    async def shop() -> None:
        define(App())

    run = MemoryRun(shop)
    run.advance()
    place = f"{__file__}, line {line_of(define, line)}"
    assert run.error.args[0].startswith(f"{what} is defined in workflow code, at {place}: each run and each")
    assert "define it at the top level of the module" in str(run.error)
    older = MemoryRun(shop, rules=DEFINITIONS_RULES - 1)
    older.advance()
    assert older.value is None


def test_a_module_that_workflow_code_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are defined once, whoever imports it first."""
    text = """
        from pyengine import App

        app = App()

        def made():
            @app.step
            async def charge() -> None: ...

            return charge

        charge = made()
        """
    tmp_path.joinpath("steps_imported_late.py").write_text(textwrap.dedent(text), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    @workflow
    async def shop() -> str:
        from steps_imported_late import charge

        return str(charge.name)

    run = MemoryRun(shop)
    run.advance()
    del sys.modules["steps_imported_late"]
    assert run.value == "charge"


@pytest.mark.parametrize("kind", ["step", "workflow", "memo"])
def test_a_decorator_of_the_class(kind: str) -> None:
    """The definition is refused: the function would be `self`."""
    decorator: Any = getattr(App, kind)

    async def charge() -> None: ...

    with pytest.raises(InvalidRequest, match=f"^App.{kind} decorates charge, and App is the class") as caught:
        decorator(charge)
    assert caught.value.hint == f"app = App(), then @app.{kind}"


class Shop:
    """An object whose method is a workflow."""

    def __init__(self) -> None:
        self.total = 0

    async def checkout(self, price: int) -> int:
        """A workflow that keeps its state in the object."""
        self.total += price
        return self.total


def test_state_in_the_object_of_a_method() -> None:
    """The registration warns, and so a difference of two replays names the line."""
    app = App()
    with pytest.warns(DeterminismWarning, match=r"workflow shop\.checkout changes self\.total: a replay"):
        checkout = app.workflow(name="shop.checkout")(Shop().checkout)
    line = line_of(Shop.checkout, "self.total +=")
    assert f"{__file__}:{line} changes self.total: use a variable" in hint_of(
        checkout.definition, repeats=False
    )


def test_a_def_step_calls_a_step(caplog: pytest.LogCaptureFixture) -> None:
    """In its thread nothing can await the call, which is what the warning says."""
    before = current_step.set(StepInfo("run-1", 0, 1, "total"))
    try:
        for call in (add(1, 2), ship(1)):
            call.close()
    finally:
        current_step.reset(before)
    place = f"at {__file__}, line {line_of(test_a_def_step_calls_a_step, 'for call in')}"
    means = "the call gives a coroutine, and total is a `def` step, which cannot await it"
    assert [one.message.partition("; call it")[0] for one in caplog.records] == [
        f"step total calls step add {place}: {means}",
        f"step total calls workflow ship {place}: {means}",
    ]


@dataclass
class Payment:
    """A class that is declared."""

    amount: float


@dataclass
class CardPayment(Payment):
    """A class that is given."""

    card: str = ""


@dataclass
class Price:
    """A class that changes its fields when it is made, and so when it is read."""

    net: float

    def __post_init__(self) -> None:
        self.net *= 2


@pytest.mark.parametrize(
    ("declared", "value", "hint"),
    [
        (Payment, CardPayment(5, "1"), "declare what is given: CardPayment, or CardPayment | Payment"),
        (list[Payment], [CardPayment(5)], "declare what is given: CardPayment, or CardPayment | Payment"),
        (Price, Price(5), "reading calls Price.__post_init__ again"),
        (str, PurePosixPath("/a"), "pass str() of the PurePosixPath"),
        (Any, {"a": ValueError("a")}, "raise the ValueError, or pass its text: str(error)"),
        (Any, range(3), "pass list() of the range"),
        (Any, {1: 2}.values(), "pass list() of the dict_values"),
        (Any, (n for n in "ab"), "pass data; connections, files, generators"),
    ],
)
def test_values_that_cannot_be_recorded(declared: Any, value: Any, hint: str) -> None:
    """The hint is what to write, and the line of the log says that it leaves the message out."""
    codec = Codec()
    with pytest.raises(EncodeError) as caught:
        codec.encode(value, declared, where="the result of step pay")
    assert caught.value.hint is not None and caught.value.hint.startswith(hint)
    logged = public_headline(json.loads(codec.encode_error(caught.value)))
    begins = "EncodeError: the result of step pay: its message shows a value, and is not logged; hint: "
    assert logged.startswith(begins + hint)


def start_a_step() -> None:
    raise not_a_workflow(add, "ctx.start")


async def nightly() -> None:
    """A function that is no workflow yet."""


async def discounted(n: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
    """A function with a default that its annotation excludes."""


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: make_step(nightly, retry=5), "step nightly: retry is a", "retry=Retry(max_attempts=5)"),
        (lambda: make_workflow(nightly, retry="x"), "workflow nightly: retry", "retry=Retry(max_attempts=3)"),
        (lambda: Retry(only=("OSError",)), "Retry(only=...): 'OSError'", "the class: only=(OSError,)"),
        (
            lambda: Signal(Signal[bool]),
            "the name of a signal is a text",
            'a signal has a name: Signal[bool]("approve")',
        ),
        (
            lambda: App().schedule("0 3 * * *")(nightly),
            "nightly is no workflow",
            "@app.schedule(...) stands above",
        ),
        (
            start_a_step,
            "ctx.start takes a workflow, and add is a",
            "a workflow calls it: await add(...); to go on",
        ),
        (
            lambda: Signature(discounted, "step d").encode((None,), {}),
            "step d, argument 'n'",
            "declare it as ... | None",
        ),
    ],
)
def test_hints(call: Callable[[], Any], message: str, hint: str) -> None:
    """Each says what to write."""
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.message.startswith(message)
    assert caught.value.hint is not None and caught.value.hint.startswith(hint)
