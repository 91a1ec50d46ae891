"""A value of a union comes back as the member that it was, whether or not JSON alone can tell the members."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.core.values.codec import Codec, type_codec
from pyengine.errors import DecodeError, EncodeError


class Colour(enum.Enum):
    RED = "red"


class Planet(enum.Enum):
    EARTH = (1.0, 2.0)
    MARS = (3.0, 4.0)


@dataclass(frozen=True)
class Refund:
    amount: int


@dataclass(frozen=True)
class Payment:
    amount: int
    card: str = "none"


@dataclass(frozen=True)
class Chargeback:
    amount: int


class Untagged(msgspec.Struct, frozen=True):
    amount: int


class Tagged(msgspec.Struct, frozen=True, tag="tagged", rename="camel"):
    the_amount: int
    of: Refund | Payment | None = None


class Keys(TypedDict):
    amount: int


class Point(NamedTuple):
    x: int
    y: Refund | Chargeback


class Identity:
    """Two of these are equal only if they are one."""


@dataclass(eq=False)
class Node:
    """It may hold itself, by way of a union."""

    name: str | date
    children: list[Node | Refund]

    def names(self) -> list[Any]:
        """What it is made of."""
        return [self.name, *(one.names() if isinstance(one, Node) else one for one in self.children)]


MANY = Refund | Payment | Chargeback | Untagged | Tagged | Keys | Point | Colour | Planet | date | str | None
VALUES: list[tuple[Any, Any]] = [
    (Refund(1), Refund | Payment),
    (Payment(1), Refund | Payment),
    (Chargeback(1), Refund | Chargeback),
    (Refund(1), Refund | Chargeback),
    (Untagged(1), Refund | Untagged),
    ({"amount": 1}, Refund | Keys),
    ({"amount": 1}, Refund | dict[str, int]),
    ({"$type": "Refund", "value": {"amount": 1}}, Refund | dict[str, Any]),
    (Tagged(1, Payment(2)), Tagged | Refund),
    (date(2026, 1, 1), date | str),
    ("2026-01-01", date | str),
    ("red", Colour | str),
    (Colour.RED, Colour | str),
    (Planet.MARS, Planet),
    (Planet.MARS, Planet | str),
    ("MARS", Planet | str),
    ({Planet.MARS: Refund(1)}, dict[Planet, Refund | Chargeback]),
    (b"ab", bytes | str),
    ("YWI=", bytes | str),
    (Decimal("1.5"), Decimal | str),
    ("1.5", Decimal | str),
    (UUID(int=1), UUID | str | int),
    (timedelta(1), timedelta | str),
    (datetime(2026, 1, 1, tzinfo=UTC), datetime | date),
    (date(2026, 1, 1), datetime | date),
    ([1], list[int] | tuple[int, ...]),
    ((1,), list[int] | tuple[int, ...]),
    ({1}, set[int] | list[int]),
    (Point(1, Chargeback(2)), Point | tuple[int, int]),
    ((1, 2), Point | tuple[int, int]),
    (5, float | int | date | str),
    (5.0, float | int | date | str),
    (True, bool | int | date | str),
    (None, Refund | Chargeback | None),
    ("b", Literal["a", "b"] | Colour),
    ([Refund(1), Chargeback(1), None], list[Refund | Chargeback | None]),
    ({date(2026, 1, 1): (Refund(1), "x")}, dict[date, tuple[Refund | Chargeback, date | str]]),
    ({Refund(1), Chargeback(1)}, set[Refund | Chargeback]),
    *(
        (one, MANY)
        for one in (Refund(1), Payment(1), Chargeback(1), Untagged(1), Tagged(1), Point(1, Refund(2)))
    ),
    *((one, MANY) for one in ({"amount": 1}, Colour.RED, Planet.EARTH, date(2026, 1, 1), "red", "x", None)),
]


@pytest.mark.parametrize(("value", "annotation"), VALUES)
def test_round_trip(value: Any, annotation: Any) -> None:
    """Each member comes back equal and of its own type, also where another would fit the same JSON."""
    codec = Codec()
    text = codec.encode(value, annotation, where="here")
    back = codec.decode(text, annotation, where="there")
    assert back == value and type(back) is type(value)
    assert codec.encode(back, annotation, where="here") == text
    # jsonb puts keys in another order
    shuffled = json.dumps(json.loads(text), sort_keys=True)
    assert codec.decode(shuffled, annotation, where="there") == value


def test_the_name_is_written_only_where_it_is_needed() -> None:
    """What JSON tells apart is plain JSON; of the rest the name of the member is written."""
    codec = Codec()
    for value, annotation, text in (
        (Refund(1), Refund | Payment, '{"amount":1}'),
        (Payment(1), Refund | Payment, '{"amount":1,"card":"none"}'),
        (Chargeback(1), Refund | Chargeback, '{"amount":1}'),
        (Refund(1), Refund | Chargeback, '{"$type":"Refund","value":{"amount":1}}'),
        ("x", date | str, '"x"'),
        ("2026-01-01", date | str, '{"$type":"str","value":"2026-01-01"}'),
    ):
        assert codec.encode(value, annotation, where="here") == text


def test_order_of_members() -> None:
    """The order in which a union names its members changes nothing: to Python they are one type."""
    first = Codec().encode(Refund(1), Chargeback | Refund, where="here")
    type_codec.__globals__["_cached_codec"].cache_clear()
    assert Codec().encode(Refund(1), Refund | Chargeback, where="here") == first


def test_written_by_hand() -> None:
    """People may write plain JSON, or name the member."""
    codec = Codec()
    assert codec.decode('{"amount": 1, "more": 2}', Refund | Payment, where="here") == Payment(1)
    assert codec.decode(
        '{"value": {"amount": 1}, "$type": "Refund"}', Chargeback | Refund, where="here"
    ) == Refund(1)
    with pytest.raises(DecodeError, match=r"fits none of Payment \| Refund \(Payment: .*amount"):
        codec.decode("{}", Refund | Payment, where="here")
    with pytest.raises(DecodeError, match=r"`\$\.value\.amount`"):
        codec.decode('{"$type": "Refund", "value": {"amount": "x"}}', Refund | Payment, where="here")


def test_a_class_that_holds_itself() -> None:
    """A class may hold itself through a union, and need not know how to compare itself."""
    codec, node = Codec(), Node("a", [Refund(1), Node(date(2026, 1, 1), [Node("2026-01-01", [])])])
    back = codec.decode(codec.encode(node, Node, where="here"), Node, where="there")
    assert back.names() == node.names()


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (5, Refund | Chargeback),
        (Payment("x"), Refund | Payment),  # type: ignore[arg-type]
        ([1, "x"], list[int] | list[str]),
        (Identity(), Refund | Identity),
        ({"amount": "x"}, Refund | Keys),
        (1.5, int | date | str),
    ],
)
def test_values_of_no_member_are_refused(value: Any, annotation: Any) -> None:
    """A value of no member is refused when it is written."""
    with pytest.raises(EncodeError, match="here"):
        Codec().encode(value, annotation, where="here")


PLAIN = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.sampled_from(["red", "MARS", "x"])
)
ANY = st.recursive(
    PLAIN
    | st.dates()
    | st.builds(Refund, st.integers(0, 2))
    | st.builds(Chargeback, st.integers(0, 2))
    | st.builds(Payment, st.integers(0, 2), st.sampled_from(["none", "x"]))
    | st.dates().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "amount"]), inner),
    max_leaves=6,
)
LEAF = date | str | int | float | bool | None | Refund | Chargeback | Payment


@dataclass
class Deep:
    value: LEAF | list[Deep] | dict[str, Deep]


def deep(value: Any) -> Deep:
    """Wrap each part of a value."""
    if isinstance(value, list):
        return Deep([deep(one) for one in value])
    return Deep({key: deep(one) for key, one in value.items()} if isinstance(value, dict) else value)


@given(ANY)
def test_any_value_of_a_wide_union(value: Any) -> None:
    """Whatever a wide union holds comes back the same, type by type."""
    codec, wrapped = Codec(), deep(value)
    back = codec.decode(codec.encode(wrapped, Deep, where="here"), Deep, where="there")
    assert repr(back) == repr(wrapped)
