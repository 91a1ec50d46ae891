"""A value comes back as what it was, or is refused with advice; to be equal is not enough."""

from __future__ import annotations

import array
import collections
import contextlib
import enum
import fractions
import http
import ipaddress
import pathlib
import re
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pydantic
import pytest

from pyengine.context import ctx
from pyengine.core.client.arguments import Target, input_of
from pyengine.core.definitions.registry import Registry, make_step
from pyengine.core.definitions.signatures import Signature
from pyengine.core.protocol.commands import Complete, Fail
from pyengine.core.values.codec import Codec
from pyengine.core.values.hints import has_fields
from pyengine.errors import DecodeError, EncodeError, InvalidRequest
from tests.core.replay.memory_run import MemoryRun, workflow
from tests.support.tree import ROOT

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Items(list[int]):
    pass


class Table(dict[str, int]):
    pass


class Pair(tuple[int, ...]):
    pass


class Raw(bytes):
    pass


class Instant(datetime):
    pass


class Day(date):
    pass


class Amount(Decimal):
    pass


class Word(str, enum.Enum):  # noqa: UP042
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Ratio(float, enum.Enum):
    HALF = 0.5


class Colour(enum.Enum):
    RED = 1


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int = 1


@dataclass
class Item:
    price: int = 1


@dataclass
class Special(Item):
    more: int = 2


@dataclass
class Holder:
    value: Any


@dataclass
class Box(Generic[T]):
    value: T
    more: Any = None


@dataclass
class Event:
    at: datetime


@dataclass
class Scored:
    score: float
    more: dict  # type: ignore[type-arg]


class Knot(pydantic.BaseModel):
    name: str = "a"
    parent: Any = pydantic.Field(default=None, exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Knot) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]


class Model(pydantic.BaseModel, extra="allow"):
    at: datetime | None
    later: list[datetime] = []
    any: Any = None


VALUES: list[Any] = [
    *(Text("x"), Number(1), Real(1.5), Items([1]), Table(a=1), Pair((1,)), Raw(b"x"), Amount("1")),
    *(Instant(2026, 1, 1), Day(2026, 1, 1), Word.A, Level.LOW, Name.A, Ratio.HALF, Colour.RED),
    *(Mode.READ | Mode.WRITE, http.HTTPStatus.OK, Point(), Item(), Special(), Holder(Level.LOW)),
    *(collections.defaultdict(int, a=1), collections.OrderedDict(a=1), collections.Counter(a=1)),
    *(collections.deque([1]), collections.ChainMap({"a": 1}), types.MappingProxyType({"a": 1})),
    *({1: 2}, {True: 1}, {None: 1}, {1.5: 1}, {(1,): 1}, {"1": 1}, {"a": [Level.LOW]}, [Table(a=1)]),
    *(
        -0.0,
        [-0.0],
        float("nan"),
        float("inf"),
        True,
        [True, 1],
        1.0,
        10**30,
        -(2**63),
        2**64,
        None,
        "",
        {},
        [],
    ),
    *(Decimal("1.10"), Decimal("1E+2"), Decimal("-0"), Decimal("NaN"), Decimal("Infinity")),
    *(fractions.Fraction(1, 3), 1j, datetime(2026, 10, 25, 2, 30, fold=1), datetime(2026, 1, 1)),
    *(datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    *(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
    *(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2, seconds=30))), date(2026, 1, 1), time(1, 2)),
    *(time(1, 2, tzinfo=UTC), time(1, 2, fold=1), time(1, 2, tzinfo=BERLIN)),
    *(timedelta(days=-1, microseconds=1), b"x", bytearray(b"x"), array.array("i", [1]), range(3), (1, 2)),
    *({1, 2}, frozenset({1}), [(1, 2)], iter([1]), uuid.UUID(int=1), pathlib.Path("x"), re.compile("x")),
    *(ipaddress.ip_address("127.0.0.1"), ..., NotImplemented, int, len, "\ud800", "a\0", "\xe9"),
]


def alike(value: Any, back: Any) -> bool:
    """Whether a copy is the same in everything that code can see."""
    if type(value) is not type(back):
        return False
    if has_fields(type(value)) and not isinstance(value, tuple):
        return all(map(alike, vars(value).values(), vars(back).values()))
    if isinstance(value, list | tuple):
        return len(value) == len(back) and all(map(alike, value, back))
    if isinstance(value, dict):
        return all(map(alike, value, back)) and all(map(alike, value.values(), back.values()))
    if isinstance(value, datetime | time) and value.tzinfo is None:
        return value == back  # `fold` is lost: decisions/0124
    return repr(value) == repr(back)


def forms(value: Any) -> list[tuple[Any, Any]]:
    """A value without a declared type and as one of its own, alone and in what holds others."""
    of = type(value)
    return [
        (value, Any),
        (value, of),
        (value, of | None),
        ([value], list[Any]),
        ([value], list[of]),  # type: ignore[valid-type]
        (Holder(value), Holder),
        ({"key": value}, dict),
        ({"key": [value]}, dict[str, Any]),
    ]


def by_codec(value: Any, annotation: Any) -> Any:
    """A result, a signal, the answer to a promise."""
    text = Codec().encode(value, annotation, where="the result of step pay")
    return Codec().decode(text, annotation, where="the result")


def by_signature(value: Any, annotation: Any) -> Any:
    """An argument."""

    def pay(amount: Any) -> None: ...

    pay.__annotations__ = {"amount": annotation, "return": None}
    signature = Signature(pay, "step pay")
    return signature.decode(signature.encode((value,), {}))[0][0]


@pytest.mark.parametrize("door", [by_codec, by_signature])
def test_the_same_or_refused(door: Callable[[Any, Any], Any]) -> None:
    """Results, signals, answers and arguments are what they were, or are refused."""
    assert len(VALUES) >= 80
    became = collections.Counter[str]()
    for value in VALUES:
        for given, annotation in forms(value):
            try:
                back = door(given, annotation)
            except (EncodeError, DecodeError, InvalidRequest):
                became["refused"] += 1
            else:
                assert alike(given, back), (given, annotation, back)
                became["same"] += 1
    assert min(became.values()) > 100, became


def label(value: Any) -> str:
    """What the page calls a value."""
    of = type(value)
    if issubclass(of, enum.Enum):
        return "enums"
    if of is Holder:
        return "a dataclass whose field of type `Any` holds an enum"
    if has_fields(of):
        return "NamedTuples" if issubclass(of, tuple) else "dataclasses"
    if of.__module__ == __name__:
        return "classes derived from `str`, `int`, `list`, `datetime` and the like"
    if of is float and value - value != 0:
        return "`nan` and infinity"
    if of is str and not value.isprintable():
        return "texts with NUL or half of a surrogate pair"
    if of is dict and not all(isinstance(key, str) for key in value):
        return "`dict` with keys that are no texts"
    if of in (dict, list) and repr(value)[2:-2] not in repr([{}, [], "'1': 1", -0.0, [True, 1]]):
        return "`dict` and `list` that hold such"
    if isinstance(value, datetime | time) and isinstance(value.tzinfo, ZoneInfo):
        return "times in a zone"
    if isinstance(value, datetime) and value.tzinfo and value.tzinfo.utcoffset(value).total_seconds() % 60:  # type: ignore[union-attr]
        return "times whose offset has seconds"
    return f"`{of.__name__.removeprefix('Posix')}`"


def _rank(label: str) -> tuple[bool, str]:
    return label[0] != "`", label.lower()


def rows() -> list[str]:
    """The table of the page."""
    found: dict[tuple[str, str], set[str]] = {}
    for value in VALUES:
        outcomes = []
        for annotation in (Any, type(value)):
            try:
                by_codec(value, annotation)
                outcomes.append("kept")
            except (EncodeError, DecodeError, InvalidRequest):
                outcomes.append("refused")
        found.setdefault((outcomes[0], outcomes[1]), set()).add(label(value))
    return [f"| {', '.join(sorted(found[key], key=_rank))} | {key[0]} | {key[1]} |" for key in sorted(found)]


def test_the_table_of_the_page() -> None:
    """The page says of each value what becomes of it."""
    page = (ROOT / "docs/how-to/values.md").read_text(encoding="utf-8")
    assert "\n".join(rows()) + "\n" in page, "\n".join(rows())


def test_what_is_declared_comes_back() -> None:
    """A declared type is what the code gets, from whatever is one of it: no subclass of it is refused."""
    for value, annotation in (
        (Level.LOW, int),
        (Name.A, str),
        (1, float),
        (Items([1]), list),
        (collections.Counter(a=1), dict[str, int]),
        (Scored(1, {"a": 1}), Scored),
        ({Level.LOW}, set[int]),
        (Box([1]), Box[Annotated[list[int], {"unhashable": 1}]]),
    ):
        assert by_codec(value, annotation) == by_signature(value, annotation) == value


def test_what_is_not_declared_is_named() -> None:
    """The refusal says which class is lost, where, and what to do."""
    for value, annotation, says in (
        (Level.LOW, Any, "holds a Level, and a int would"),
        ({"a": [Table(a=1)]}, dict, r"Table.* - at `\$\.a\[0\]`"),
        ({Name.A: 1}, dict, "holds a Name, and a str"),
        ({Level.LOW}, set, "holds a Level"),
        (Holder(Name.A), Holder, r"Name.* - at `\$\.value`"),
        (Scored(0.5, {"a": Level.LOW}), Scored, r"Level.* - at `\$\.more\.a`"),
        (Model(at=None, any=Level.LOW), Model, r"Level.* - at `\$\.any`"),
        ([Model(at=None, more=Level.LOW)], list[Model], r"Level.* - at `\$\[0\]\.more`"),
    ):
        with pytest.raises(EncodeError, match=says) as refused:
            by_codec(value, annotation)
        assert "annotate it" in str(refused.value.hint)


def test_a_value_that_holds_itself() -> None:
    """In a field that is not written: the search for what is lost ends."""
    node = Knot()
    node.parent = node
    assert by_codec(node, Knot) == by_signature(node, Knot) == node


def test_a_zone_is_told() -> None:
    """A time in a zone is refused wherever it stands, with the way out; fixed offsets are the same again."""
    at = datetime(2026, 10, 24, 9, tzinfo=BERLIN)
    for value, annotation in (
        (at, datetime),
        (at.timetz(), time),
        ([at], list[datetime]),
        ({at: 1}, dict[datetime, int]),
        ({at}, set[datetime]),
        (Event(at), Event),
        (Model(at=at), Model),
        (Model(at=None, later=[at]), Model),
        (Model(at=at), Model | None),
    ):
        for door in (by_codec, by_signature):
            with pytest.raises(EncodeError, match=r"in Europe/Berlin, of which only the offset") as refused:
                door(value, annotation)
            assert "astimezone(UTC)" in str(refused.value.hint)
    for zone in (UTC, ZoneInfo("UTC"), ZoneInfo("Etc/UTC"), timezone(timedelta(hours=2), "CEST")):
        for value, annotation in ((at.astimezone(zone), datetime), (Model(at=at.astimezone(zone)), Model)):
            assert by_codec(value, annotation) == by_signature(value, annotation) == value


@make_step
async def opening(at: datetime | None = None, level: Any = None) -> datetime:
    """A step that is not executed."""
    raise AssertionError


@workflow
async def remind(zoned: bool = True) -> datetime:
    at = datetime(2026, 10, 24, 9, tzinfo=BERLIN if zoned else UTC)
    ctx.set("at", at)
    with contextlib.suppress(EncodeError):
        ctx.set("loss", float("nan"))
    await opening(at)
    return at


def test_older_runs_go_on() -> None:
    """A run that was born under older rules may pass and return what is only equal; a younger one may not."""
    assert isinstance(MemoryRun(remind).end, Fail)
    old = MemoryRun(remind, rules=3)
    old.complete(0, "2026-10-24T09:00:00+02:00")
    assert isinstance(old.end, Complete) and old.end.value == '"2026-10-24T09:00:00+02:00"'
    assert old.cold().end == old.end


def test_what_is_shown_is_json() -> None:
    """`ctx.set` shows anything as JSON; what JSON cannot say is refused, for it would be null."""
    codec = Codec()
    shown = codec.write_only([Item(), (1, 2), Level.LOW, datetime(2026, 1, 1)], "the value x")
    assert shown == '[{"price":1},[1,2],1,"2026-01-01T00:00:00"]'
    for value in (float("nan"), [float("inf")], Holder({"a": -float("inf")})):
        with pytest.raises(EncodeError, match="holds NaN or Infinity"):
            codec.write_only(value, "the value x")
        assert "null" in codec.write_only(value, "the value x", exact=False)


@dataclass
class Cached:
    """Its equality leaves a field out."""

    n: int
    seen: Any = field(default=None, compare=False)


@pytest.mark.parametrize("seen", [{1: 2}, [{(1, 2)}]])
def test_what_an_equality_leaves_out(seen: Any) -> None:
    """It may come back in another form, with which nothing corresponds."""

    default = Cached(1, seen)

    async def takes(it: Cached = default) -> None:
        pass

    assert Codec().encode(Cached(1, {1: 2}), Cached, where="it") == '{"n":1,"seen":{"1":2}}'
    signature = Signature(takes, "step takes")
    signature.encode((Cached(1, {1: 2}),), {})
    assert [*signature.defaults] == ["it"]


def test_arguments_of_a_name_that_is_not_known_here() -> None:
    """They are plain JSON there, and what is equal to that is taken."""
    registry = Registry()
    registry.add_workflow(remind)
    target = Target(definition=None, by_name=True, name="other", queue=None, version="1", timeout_ms=None)
    given = (collections.OrderedDict(a=Level.LOW),)
    assert input_of(Codec(), registry, target, given, {}) == '[{"a":1}]'
