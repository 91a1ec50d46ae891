"""Law: a value of an annotation comes back equal and of its type, or is refused with its place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from pyengine.core.values.codec import type_codec
from pyengine.errors import DecodeError, EncodeError
from pyengine.features.calls.datums import Uri, from_tagged, value_of
from pyengine.features.calls.typed_values import ANY, ValueType


class Colour(Enum):
    """Members that are texts."""

    RED = "red"


class Level(IntEnum):
    """Members that are integers."""

    HIGH = 3


class Mixed(Enum):
    """Members that go by name."""

    ONE = 1
    TWO = "two"


class Place(NamedTuple):
    """A tuple with names."""

    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Order:
    """A record with every kind of part."""

    id: UUID
    price: Decimal
    at: datetime
    colour: Colour = Colour.RED
    tags: frozenset[str] = frozenset()
    data: bytes = b""
    where: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class Refund:
    """One of two records that a union holds."""

    id: int


@dataclass(frozen=True)
class Payment:
    """The other one."""

    id: int


class Point(msgspec.Struct, frozen=True, tag="p"):
    """A Struct with a tag."""

    x: int
    far: float = 1.5


class Options(TypedDict):
    """A dict with known keys."""

    deep: dict[int, bytes]


class Model(pydantic.BaseModel):
    """A model of pydantic."""

    n: int = pydantic.Field(gt=0)
    at: date = date(2026, 1, 31)


ORDER = Order(
    id=UUID(int=5),
    price=Decimal("1.50"),
    at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    tags=frozenset({"a", "b"}),
    data=b"\x00\xff",
    where=[Place(1, 2.0)],
)


def kind(annotation: Any) -> ValueType:
    """The values of an annotation."""
    return ValueType(type_codec(annotation))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**62),
        (float, math.inf),
        (bytes, b"\x00"),
        (Uri, Uri("s3://a/b")),
        (list[Uri], [Uri("s3://a/b")]),
        (str | None, None),
        (datetime, ORDER.at),
        (date, date(2026, 1, 31)),
        (timedelta, timedelta(seconds=1.5)),
        (Decimal, Decimal("0.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Mixed, Mixed.TWO),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[int, bytes], {1: b"x"}),
        (set[int], {1, 2}),
        (frozenset[tuple[int, str]], frozenset({(1, "a"), (2, "b")})),
        (tuple[int, str], (1, "a")),
        (Place, Place(1, 2.0)),
        (Order, ORDER),
        (list[Order], [ORDER]),
        (dict[str, Order], {"a": ORDER}),
        (Refund | Payment, Payment(1)),
        (list[Refund | Payment], [Payment(1), Refund(1)]),
        (Point, Point(1)),
        (Options, {"deep": {1: b"x"}}),
        (Model, Model(n=1)),
        (list[Model], [Model(n=2)]),
        (dict[str, Any], {"a": [1, 2.5, b"x", {"b": None}]}),
    ],
)
def test_it_comes_back(annotation: Any, value: Any) -> None:
    """Equal, and of its type."""
    tagged = kind(annotation).encode(value, "argument")
    back = kind(annotation).decode(value_of(from_tagged(tagged)), "argument")
    assert (back, type(back)) == (value, type(value))


def test_nan_comes_back() -> None:
    """It is the one value that does not equal itself."""
    tagged = kind(list[float]).encode([math.nan], "argument")
    assert math.isnan(kind(list[float]).decode(value_of(from_tagged(tagged)), "argument")[0])


def test_parts_keep_their_types() -> None:
    """Bytes are bytes and sets are sets; what has no datum is text; a record is a map of its fields."""
    found = value_of(from_tagged(kind(Order).encode(ORDER, "argument")))
    assert found == {
        "id": str(ORDER.id),
        "price": "1.50",
        "at": "2026-01-31T12:00:00Z",
        "colour": "red",
        "tags": {"a", "b"},
        "data": b"\x00\xff",
        "where": [[1, 2.0]],
    }


def test_identity_is_that_of_the_annotation() -> None:
    """An integer for a float is a float; the order of keys and members does not matter."""
    assert kind(float).encode(1, "n") == kind(float).encode(1.0, "n") == {"f64": "1.0"}
    assert kind(int).encode(1, "n") == ANY.encode(1, "n") == {"i64": 1}
    first, second = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert kind(dict[str, int]).encode(first, "n") == kind(dict[str, int]).encode(second, "n")


class Opaque:
    """What is no data."""


@pytest.mark.parametrize(
    ("annotation", "value", "parts"),
    [
        (int, "1", ("n is a str", "annotation int")),
        (list[int], (1, 2), ("n would come back", "tuple", "list")),
        (list[Any], [[ORDER]], ("n would come back", "Order", "$[0][0]")),
        (dict[str, Any], {"a": Opaque()}, ("Opaque is no value of a call",)),
        (Opaque, Opaque(), ("Opaque is no value of a call",)),
        (Any, ORDER, ("Order is no value of a call",)),
        (Any, {"a": {1: [Opaque()]}}, ("n['a'][1][0]",)),
        (list[int], [2**63], ("n[0]", "64 bits")),
        (Refund | Payment, Payment(1 << 70), ("64 bits",)),
        (list[Refund | Payment | float], [math.nan], ("NaN",)),
        (Model, Model.model_construct(n=-1), ("greater than 0",)),
        (set[str], {"é", "e\u0301"}, ("two members of the set are equal",)),
    ],
)
def test_what_would_not_come_back_is_refused(annotation: Any, value: Any, parts: tuple[str, ...]) -> None:
    """The message says which value, where in it, and the hint what to do."""
    with pytest.raises(EncodeError) as found:
        kind(annotation).encode(value, "n")
    for part in parts:
        assert part in found.value.message


def test_a_cycle_is_refused() -> None:
    """It has no identity."""
    value: list[Any] = []
    value.append(value)
    for annotation in (Any, list[Any]):
        with pytest.raises(EncodeError, match="contains itself"):
            kind(annotation).encode(value, "n")


def test_a_result_of_older_code_is_named() -> None:
    """What was recorded under another annotation says so, and the way out is a new version."""
    with pytest.raises(DecodeError, match="the result of f does not fit its annotation") as found:
        kind(Order).decode({"id": 5}, "the result of f")
    assert found.value.hint is not None
    assert "version" in found.value.hint
