"""What would not come back as it was is refused when it is written, by the name of its place."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest

from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.codec import Codec
from pyengine.errors import EncodeError, InvalidRequest

pydantic = pytest.importorskip("pydantic")
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_serializer, field_validator  # noqa: E402


class Socket:
    """An arbitrary class."""


class Wired(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    socket: Any = None
    wire: Socket | None = None


class Number(BaseModel):
    f: float = 0.0
    i: int = 0
    maybe: float | None = None
    any: Any = None
    text: str = ""
    raw: bytes = b""


class More(Number):
    extra: int = 0


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


class Hidden(BaseModel):
    a: int = Field(default=0, exclude=True)
    _b: int = PrivateAttr(default=0)


class Lossy(BaseModel):
    at: datetime = datetime(2026, 1, 1)
    word: str = ""

    @field_serializer("at")
    def day(self, at: datetime) -> str:
        """Leave the time out."""
        return f"{at:%Y-%m-%d}"

    @field_validator("word")
    @classmethod
    def longer(cls, word: str) -> str:
        """Change it at each reading."""
        return f"{word}!" if word else word


class Failing(BaseModel):
    a: int = 0

    @field_serializer("a")
    def fail(self, a: int) -> int:
        """Fail in its own way."""
        return {}[a]


class Loop(BaseModel):
    next: Any = None


class Node(msgspec.Struct):
    next: Node | None = None
    weight: float | None = None


@dataclass
class Holder:
    model: Number
    models: list[Number] = field(default_factory=list)
    thing: Any = None
    weight: float | None = None


@dataclass
class Special(Holder):
    more: int = 0


@dataclass
class Stubborn:
    a: int

    def __eq__(self, other: object) -> bool:
        return False


class Keys(TypedDict):
    a: int


class Point(NamedTuple):
    x: int


def looped() -> tuple[Loop, Node, list[Any]]:
    """Values that hold themselves."""
    loop, node, items = Loop(), Node(), []
    loop.next, node.next = loop, node
    items.append(items)
    return loop, node, items


def numbers() -> Iterator[int]:
    """A generator."""
    yield 1


LOOP, NODE, ITEMS = looped()
NAN, INF = float("nan"), float("inf")

REFUSED: list[tuple[Any, Any, str]] = [
    # what has no JSON
    (Wired(socket=Socket()), Wired, r"cannot be written.*Socket.* - at `\$\.socket`"),
    (Wired(wire=Socket()), Wired, r"cannot be written.*Socket.* - at `\$\.wire`"),
    ([Wired(), Wired(wire=Socket())], list[Wired], r"Socket.* - at `\$\[1\]\.wire`"),
    (Holder(Number(), thing={"a b": [1, Socket()]}), Holder, r"Socket cannot.*`\$\.thing\['a b'\]\[1\]`"),
    (Socket(), Socket, "here cannot be written as JSON: values of type Socket cannot be written"),
    (numbers(), Any, "generator"),
    (numbers(), list[int], "generator"),
    (range(3), list[int], "range"),
    (map(str, ()), Number, "map"),
    (lambda: 1, Any, "function"),
    (Failing(), Failing, "cannot be written"),
    (LOOP, Loop, "Circular reference|holds itself"),
    (NODE, Node, "holds itself"),
    (ITEMS, list[Any], "holds itself"),
    (Number(text="\ud800"), Number, "surrogate"),
    (Number(raw=b"\xff"), Number, "ser_json_bytes"),
    # what JSON cannot say
    (Number(f=NAN), Number, r"here holds NaN or Infinity, which JSON cannot say - at `\$\.f`"),
    (Number(maybe=INF), Number, r"NaN or Infinity.*`\$\.maybe`"),
    (Number(any=[1, -INF]), Number, r"NaN or Infinity.*`\$\.any\[1\]`"),
    ({"a": [Number(maybe=NAN)]}, dict[str, list[Number]], r"NaN or Infinity.*`\$\.a\[0\]\.maybe`"),
    (Node(Node(None, INF)), Node, r"NaN or Infinity.*`\$\.next\.weight`"),
    (Holder(Number(maybe=NAN)), Holder, r"NaN or Infinity.*`\$\.model\.maybe`"),
    (Holder(Number(), weight=NAN), Holder, r"NaN or Infinity.*`\$\.weight`"),
    (Number(text="a\0b"), Number, r"NUL character.*`\$\.text`"),
    ([Holder(Number(), [Number(text="\0")])], list[Holder], r"NUL.*`\$\[0\]\.models\[0\]\.text`"),
    # what would come back as something else
    (2**53 + 1, float, r"here \(9007199254740993\) would come back from the journal as 9007199254740992.0"),
    (Number.model_construct(f=2**53 + 1), Number, r"would come back .* - at `\$\.f`"),
    (Number.model_construct(i="5"), Number, r"\('5'\) would come back from the journal as 5 - at `\$\.i`"),
    (Number(any={1}), Number, r"would come back from the journal as \[1\] - at `\$\.any`"),
    (Number(any=Number()), Number, r"would come back .* - at `\$\.any`"),
    (More(extra=1), Number, "would come back"),
    (Holder(More(extra=1)), Holder, r"would come back .* - at `\$\.model`"),
    (Special(Number(), more=1), Holder, "would come back"),
    (Special(Number()), Holder, "would come back"),
    ([Number()], list, "would come back"),
    (Number(), Any, "would come back"),
    ({"a": Node()}, Any, r"would come back .* - at `\$\.a`"),
    (Hidden(a=1), Hidden, r"\(1\) would come back from the journal as 0 - at `\$\.a`"),
    (Lossy(at=datetime(2026, 1, 1, 1)), Lossy, r"at `\$\.at`"),
    (
        Lossy.model_construct(word="a"),
        Lossy,
        r"'a'\) would come back from the journal as 'a!' - at `\$\.word`",
    ),
    (SecretStr("x"), SecretStr, "would come back"),
    (Stubborn(1), Stubborn, r"Stubborn\(a=1\), a Stubborn\) would come back"),
    ((1, 2), Sequence[int], "would come back"),
    ((1, 2), list[int], "would come back"),
    ({"a": 1, "b": 2}, Keys, "would come back"),
    (Point(1), list[int], "would come back"),
    (namedtuple("Other", "x")(1), list, "would come back"),
    (datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=3208))), datetime, "would come back"),
    (Number(), Holder, "does not fit its annotation"),
    ({"f": 1.0}, Number, "here is a dict; pass an object of Number"),
    ("x", Number, "does not fit"),
    (0.1, Decimal, "would come back"),
]


@pytest.mark.parametrize(("value", "annotation", "says"), REFUSED)
def test_refused(value: Any, annotation: Any, says: str) -> None:
    """A value that cannot come back is an EncodeError that says what, where and why."""
    with pytest.raises(EncodeError, match=says) as caught:
        Codec().encode(value, annotation, where="here")
    assert caught.value.where == "here" and caught.value.message.startswith("here ")


@pytest.mark.parametrize(("value", "annotation", "says"), REFUSED)
def test_refused_as_argument(value: Any, annotation: Any, says: str) -> None:
    """An argument that cannot come back is refused by the name of its parameter, however it was given."""

    def fn(first: Any, second: Any = None) -> None: ...

    fn.__annotations__ = {"first": annotation, "second": annotation}
    for args, kwargs in (((value,), {}), ((), {"first": value}), ((value,), {"second": value})):
        with pytest.raises((EncodeError, InvalidRequest), match=r"argument '(first|second)'"):
            Signature(fn, "step fn").encode(args, kwargs)


ACCEPTED: list[tuple[Any, Any]] = [
    (Number(i=2**70, f=2.0**60, any=[2**64, -(2**63) - 1]), Number),
    (Number(i=2**53 + 1), Number),
    (Base64(raw=b"\xff\x00"), Base64),
    (Loop(next={"a": None}), Loop),
    (Node(Node(Node())), Node),
    (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("UTC")), datetime),
    (OrderedDict(a=1), dict[str, int]),
    (1, float),
    (Decimal("NaN"), Decimal),
    (Holder(Number(maybe=None), [Number()], {"a": None}), Holder),
]


@pytest.mark.parametrize(("value", "annotation"), ACCEPTED)
def test_accepted(value: Any, annotation: Any) -> None:
    """What comes back equal is not refused: large integers, other names of UTC, an OrderedDict."""
    codec = Codec()
    back = codec.decode(codec.encode(value, annotation, where="here"), annotation, where="there")
    if isinstance(value, datetime):
        assert back.timestamp() == value.timestamp()
    else:
        assert back == value or str(back) == str(value)


def test_the_way_out() -> None:
    """A refusal says what to do: annotate, declare, or leave it in the step."""
    for value, annotation, hint in (
        (Socket(), Any, "stay inside one step"),
        ((1, 2), Any, "annotate it with its exact type"),
        (Hidden(a=1), Hidden, "excluded or private"),
    ):
        with pytest.raises(EncodeError) as caught:
            Codec().encode(value, annotation, where="here")
        assert hint in str(caught.value.hint)


def test_private_attributes() -> None:
    """A private attribute that was changed would be lost; one as it was made is no hindrance."""
    model = Hidden()
    assert Codec().encode(model, Hidden, where="here") == "{}"
    model._b = 3
    with pytest.raises(EncodeError, match=r"\(3\) would come back from the journal as 0 - at `\$\._b`"):
        Codec().encode(model, Hidden, where="here")


def test_deep_values() -> None:
    """A value nested too deeply to be read is refused, not an error of the interpreter."""
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodeError, match="nested deeper than 500 levels"):
        Codec().encode(deep, Any, where="here")
