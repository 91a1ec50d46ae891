"""Models go through a run and its replay: arguments, results, child runs, promises and signals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest

from pyengine.context import ctx
from pyengine.core.definitions.registry import make_step, make_workflow
from pyengine.core.definitions.signals import Signal
from pyengine.core.protocol.commands import Complete, Halt, RunChild
from pyengine.core.values.codec import Codec
from pyengine.core.values.exceptions import ExceptionCodec
from pyengine.errors import DecodeError, EncodeError
from tests.core.replay.memory_run import MemoryRun, workflow

pydantic = pytest.importorskip("pydantic")
from pydantic import BaseModel, Field  # noqa: E402


class Line(BaseModel, frozen=True):
    sku: str
    price: Decimal
    tags: frozenset[str] = frozenset()


class Order(msgspec.Struct):
    lines: list[Line]
    due: date | str


class Yes(BaseModel):
    say: Literal["yes"] = "yes"


class No(BaseModel):
    say: Literal["no"] = "no"
    reason: str


Answer = Annotated[Yes | No, Field(discriminator="say")]


@dataclass(frozen=True)
class Paid:
    amount: Decimal


@dataclass(frozen=True)
class Owed:
    amount: Decimal


class Declined(Exception):
    """An error that carries a model."""

    line: Line

    def __init__(self, line: Line) -> None:
        super().__init__(line.sku)
        self.line = line


approve = Signal[Answer]("approve")


@make_step
async def charge(order: Order, by: Paid | Owed | None = None) -> Paid | Owed:
    """A step whose result JSON alone cannot tell."""
    return Paid(sum((line.price for line in order.lines), Decimal(0)))


@make_workflow
async def ship(order: Order, lines: set[Line]) -> dict[str, Line]:
    """A child run that takes and gives models."""
    return {line.sku: line for line in lines}


A, B = Line(sku="a", price=Decimal("1.50"), tags=frozenset({"x", "y"})), Line(sku="b", price=Decimal(2))
seen: list[Any] = []


@make_workflow
async def sell(order: Order, on: date) -> tuple[Paid | Owed, Answer]:
    """A run in which everything is a model."""
    paid = await charge(order, by=Owed(Decimal(1)))
    shipped = await ship(order, set(order.lines))
    line = await ctx.promise(Line | None)
    answer = await ctx.receive(approve)
    seen.append([order, on, paid, shipped, line, answer])  # durable: ok
    return paid, answer


def text(value: Any, annotation: Any) -> Any:
    """The JSON of a value, as a run in memory takes it."""
    return json.loads(Codec().encode(value, annotation, where="here"))


def test_models_go_through_a_run() -> None:
    """What code gets has the declared types, live and in a replay of the journal alone."""
    seen.clear()
    order = Order([A, B], "2026-01-01")
    run = MemoryRun(sell, text(order, Order), "2026-01-02")
    run.complete(0, text(Owed(Decimal("3.50")), Paid | Owed))
    assert isinstance(run.commands[0], RunChild)
    args = ship.definition.signature.decode(run.commands[0].param)
    assert args == ((order, {A, B}), {})
    run.complete(1, text({"a": A}, dict[str, Line]))
    run.complete(2, text(B, Line))
    run.send("approve", {"say": "no", "reason": "late"})
    assert isinstance(run.end, Complete)
    result = [Owed(Decimal("3.50")), No(reason="late")]
    assert sell.definition.signature.result.unpack(run.end.value) == tuple(result)
    again = run.cold()
    assert again.end == run.end and not again.commands
    assert seen == [[order, date(2026, 1, 2), result[0], {"a": A}, B, result[1]]] * 2
    assert [type(one) for one in seen[1]] == [Order, date, Owed, dict, Line, No]


def test_another_value_is_another_call() -> None:
    """A model that differs in one field is another call: the replay halts and shows both."""
    price = [Decimal(1)]

    async def code() -> Any:
        return await charge(Order([Line(sku="a", price=price[0])], "x"))

    run = MemoryRun(workflow(code))
    run.complete(0, text(Paid(Decimal(1)), Paid | Owed))
    assert run.cold().end == run.end
    price[0] = Decimal(2)
    assert isinstance(run.cold().end, Halt)


def test_a_recorded_value_that_does_not_fit() -> None:
    """A result that was recorded for other code is a DecodeError in the code that awaits it."""

    async def code() -> str:
        try:
            await ship(Order([], "x"), set())
        except DecodeError as error:
            return str(error)
        return "nothing"

    run = MemoryRun(workflow(code))
    run.complete(0, {"a": {"sku": "a"}})
    for words in ("child run ship", "run-1", "price: Field required", "`$[...]`"):
        assert words in run.value


def test_refused_calls_record_nothing() -> None:
    """A call whose argument would not come back is refused before it takes a number."""

    class Special(Line):
        more: int = 0

    async def code() -> Any:
        with pytest.raises(EncodeError, match=r"argument 'order' of step charge .*`\$\.lines\[0\]`"):
            await charge(Order([Special(sku="a", price=Decimal(1))], "x"))
        return await charge(Order([], "x"))

    assert [call.child for call in MemoryRun(workflow(code)).moves.steps] == [0]


def test_errors_carry_models() -> None:
    """A declared attribute of an error comes back as the model that it was."""
    failures = ExceptionCodec()
    back = failures.decode(failures.encode(Declined(A)))
    assert type(back) is Declined and back.line == A
