"""Calls whose values have one default more, or another one, than when their run recorded them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as model_dataclass

from pyengine.context import ctx
from pyengine.core.protocol.commands import Complete
from pyengine.core.protocol.journal import RowType
from pyengine.core.replay.advance import Advance
from pyengine.core.rules import RULES
from tests.core.replay.memory_run import MemoryRun, problem_of, step, workflow


@dataclass
class Plain:
    """A dataclass, and what becomes of it."""

    n: int


@dataclass
class Place:
    """A field of `PlainLater`, with defaults of its own."""

    shelf: int = 0


@dataclass
class PlainLater:
    """Defaults, and defaults that classes make."""

    n: int
    note: str = ""
    tags: list[str] = field(default_factory=list)
    place: Place = field(default_factory=Place)


class Packed(msgspec.Struct, rename="camel"):
    """A Struct whose fields have other names in JSON."""

    n: int


class PackedLater(msgspec.Struct, rename="camel"):
    """The same later."""

    n: int
    delivery_note: str = ""
    all_tags: list[str] = []


class Array(msgspec.Struct, array_like=True):
    """A Struct that is written as an array."""

    n: int


class ArrayLater(msgspec.Struct, array_like=True):
    """The same later."""

    n: int
    note: str = ""


class Pair(NamedTuple):
    """A NamedTuple."""

    n: int


class PairLater(NamedTuple):
    """The same later."""

    n: int
    note: str = ""


class Model(pydantic.BaseModel):
    """A model of pydantic."""

    n: int


class ModelLater(pydantic.BaseModel):
    """The same later, with an alias."""

    n: int
    note: str = pydantic.Field(default="", alias="remark")
    tags: list[str] = []
    place: Place = pydantic.Field(default_factory=Place)


@model_dataclass
class Checked:
    """A dataclass of pydantic."""

    n: int


@model_dataclass
class CheckedLater:
    """The same later."""

    n: int
    note: str = ""


KINDS = [
    (Plain, PlainLater),
    (Packed, PackedLater),
    (Array, ArrayLater),
    (Pair, PairLater),
    (Model, ModelLater),
    (Checked, CheckedLater),
]


def code(annotation: Any, *args: Any, child: bool = False, default: Any = None, **named: Any) -> Any:
    """Return a workflow that calls a step, or a child run, with these arguments."""

    async def charge(order: Any, express: Any = default, *, gift: bool = False) -> str:
        return "charged"

    charge.__annotations__ = {"order": annotation, "express": Any, "gift": bool, "return": str}
    callee: Any = workflow(charge) if child else step(charge)

    async def order() -> str:
        result: str = await callee(*args, **named)
        return result

    return workflow(order)


def goes_on(before: Any, after: Any, *, rules: int = 4) -> bool:
    """Whether a run that recorded a call of the old code goes on with the new code."""
    run = MemoryRun(before, rules=rules)
    run.complete(0, "charged")
    moves = run.cold(after)
    if moves.end == run.end == Complete(value='"charged"'):
        return True
    assert "journal" in problem_of(moves)["message"]
    return False


@pytest.mark.parametrize(("then", "now"), KINDS)
def test_a_new_field_with_a_default(then: Any, now: Any) -> None:
    """A run that began without it goes on, under older rules too, and so does one of the code that is rolled
    back; wherever the object is in the value."""
    for child in (False, True):
        old, new = code(then, then(n=1), child=child), code(now, now(n=1), child=child)
        assert goes_on(old, new)
        assert goes_on(old, new, rules=3)
        assert goes_on(new, old)
        assert not goes_on(old, code(now, now(n=2), child=child))
    inside = code(dict[str, list[then]], {"a": [then(n=1)]}), code(dict[str, list[now]], {"a": [now(n=1)]})
    assert goes_on(*inside)
    numbered = code(dict[int, list[then]], {3: [then(n=1)]}), code(dict[int, list[now]], {3: [now(n=1)]})
    assert goes_on(*numbered)
    either = code(then | int, then(n=1)), code(now | int, now(n=1))
    assert goes_on(*either)


def test_a_value_that_is_no_default_is_another_call() -> None:
    """A new field that the code fills is a change of the call; numbers that are equal may differ."""
    assert not goes_on(code(Plain, Plain(1)), code(PlainLater, PlainLater(1, "left")))
    assert not goes_on(code(PlainLater, PlainLater(1, "left")), code(PlainLater, PlainLater(1)))
    assert not goes_on(code(int, 1), code(int, 1, True, default=1))
    assert not goes_on(code(int, 1, 0.0, default=0.0), code(int, 1, -0.0, default=0.0))


@dataclass
class Slow:
    """A field with a default."""

    way: str = "post"


@dataclass
class Fast:
    """Another default."""

    way: str = "express"


def test_another_default_of_a_field() -> None:
    """What the code leaves to the default is the same call after a change of the default; so is a value that
    the code gives, and that was the default or has become it."""
    assert goes_on(code(Slow, Slow()), code(Fast, Fast()))
    for way in ("post", "express", "air"):
        assert goes_on(code(Slow, Slow(way)), code(Fast, Fast(way)))
    assert not goes_on(code(Slow, Slow()), code(Fast, Fast("air")))
    assert not goes_on(code(Slow, Slow()), code(Fast, Fast()), rules=3)


@pytest.mark.parametrize("child", [False, True])
def test_a_default_of_a_parameter_that_is_given(child: bool) -> None:
    """An argument that has its default may be left out, or be given, by position or by name."""
    forms = [
        code(int, 1, child=child, default=7),
        code(int, 1, 7, child=child, default=7),
        code(int, 1, express=7, child=child, default=7),
        code(int, order=1, gift=False, child=child, default=7),
    ]
    for before in forms:
        assert all(goes_on(before, after) for after in forms)
    assert not goes_on(forms[0], code(int, 1, 8, child=child, default=7))
    assert goes_on(forms[0], code(int, 1, child=child, default=8))


def test_older_rules_record_one_hash() -> None:
    """Only journals of rules 4 have the second hash, and only for calls that have a default in them."""

    def digits(call: Any, rules: int) -> int:
        run = MemoryRun(call, rules=rules)
        run.complete(0, "charged")
        (recorded,) = (row.hash for row in run.rows if row.type == RowType.STEP_COMPLETED)
        assert recorded is not None
        return len(recorded)

    with_default = code(PlainLater, PlainLater(1))
    assert (digits(with_default, 3), digits(with_default, 4)) == (16, 32)
    assert digits(code(Plain, Plain(1)), 4) == digits(code(Plain, Plain(1), default=3), 4) == 16


# --- the defaults of a run ----------------------------------------------------------------------------------

NOTHING: Any = object()


async def waits(*values: Any) -> list[Any]:
    """What a run does with its arguments: a call, a wait, and the result."""
    await take(values[0])
    return list(values)


@step
async def take(value: Any) -> None:
    """Its body never runs here."""


async def began(n: int, express: bool = False, *, note: str = "a", other: Any = NOTHING) -> list[Any]:
    """What a run begins with."""
    return await waits(n, express, note, other is NOTHING)


async def changed(n: int, express: bool = True, *, note: str = "b", other: Any = NOTHING) -> list[Any]:
    """Other defaults."""
    return await waits(n, express, note, other is NOTHING)


async def renamed(n: int, fast: bool = True) -> list[Any]:
    """Without parameters that were there, and with one that is new."""
    return await waits(n, fast)


async def positional(n: int, express: bool = True, /, note: str = "b") -> list[Any]:
    """Parameters that cannot be given by name."""
    return await waits(n, express, note)


async def gap(n: int, other: Any = NOTHING, more: int = 2, /) -> list[Any]:
    """One without a JSON form before one with."""
    return await waits(n, other is NOTHING, more)


async def alone(n: int) -> list[Any]:
    """None with a default."""
    return await waits(n)


def played(begins: Any, goes_on: Any, *args: Any, rules: int = RULES) -> Any:
    """What a run returns that began with one code and goes on with another."""
    run = MemoryRun(workflow(begins), *args, rules=rules)
    run.complete(min(run.open))
    return problem_or_value(run.cold(workflow(goes_on)))


def problem_or_value(moves: Advance) -> Any:
    """How a replay ended."""
    assert isinstance(moves.end, Complete), moves.end
    assert moves.commands == ()
    return msgspec.json.decode(moves.end.value)


def test_a_run_keeps_the_defaults_with_which_it_began() -> None:
    """Other defaults are for younger runs; what has no JSON form is that of the code."""
    began.__name__ = changed.__name__ = renamed.__name__ = positional.__name__ = alone.__name__ = "order"
    assert played(began, changed, 1) == [1, False, "a", True]
    assert played(began, positional, 1) == [1, False, "a"]
    assert played(gap, gap, 1) == [1, True, 2]
    assert played(changed, began, 1, False) == [1, False, "b", True]
    assert played(began, changed, 1, rules=3) == [1, True, "b", True]


def test_parameters_that_come_and_go() -> None:
    """A younger parameter has the default of the code; the record of one that is gone is passed over."""
    assert played(began, renamed, 1) == [1, True]
    assert played(alone, changed, 1) == [1, True, "b", True]
    assert played(began, alone, 1) == [1]


def test_a_run_that_waits_takes_no_default_later() -> None:
    """A run that began without a record and has made no call yet is not given one afterwards."""

    async def receives(n: int) -> Any:
        return await ctx.receive("go")

    async def later(n: int, express: bool = True) -> Any:
        return await ctx.receive("go")

    later.__name__ = receives.__name__
    run = MemoryRun(workflow(receives), 1)
    assert run.cold(workflow(later)).commands == ()
    assert MemoryRun(workflow(later), 1, True).warm.next_seq == run.warm.next_seq
