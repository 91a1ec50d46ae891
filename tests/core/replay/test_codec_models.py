"""Models of every library come back as the same type with an equal value, alone and inside one another."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest

from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.codec import Codec, input_hash, type_codec
from pyengine.errors import DecodeError, EncodeError, InvalidRequest

pydantic = pytest.importorskip("pydantic")
from pydantic import BaseModel, Field, HttpUrl, PositiveInt, RootModel, computed_field  # noqa: E402

ROOT = Path(__file__).parents[3]
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = 7


class Size(enum.IntEnum):
    BIG = 3


class Level(enum.StrEnum):
    HIGH = "high"


class Everything(BaseModel):
    """One field of each kind."""

    at: datetime
    day: date
    clock: time
    took: timedelta
    price: Decimal
    key: UUID
    raw: bytes
    colours: set[Colour]
    levels: frozenset[Level]
    pair: tuple[int, str]
    many: tuple[Size, ...]
    kind: Literal["a", "b"] = "a"
    maybe: Colour | None = None
    either: int | str = 0
    by_size: dict[Size, list[Decimal]] = Field(default_factory=dict)


class Aliased(BaseModel, frozen=True):
    user_id: int = Field(alias="userId")
    name: str = Field(validation_alias="fullName", serialization_alias="displayName")


class Strict(BaseModel, strict=True, extra="forbid"):
    at: datetime
    ids: tuple[UUID, ...]
    words: set[str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        """Something that is written for people only."""
        return len(self.ids)


class Open(BaseModel, extra="allow"):
    a: int


class Ids(RootModel[list[UUID]]):
    pass


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = None


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    lives: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@pydantic.dataclasses.dataclass
class Booking:
    nights: int = Field(gt=0)
    guests: list[str] = Field(default_factory=list)
    proof: bytes = b""


@dataclass
class Order:
    """A plain dataclass with fields of other libraries."""

    buyer: Aliased
    pages: list[Page[Tree]]
    pet: Pet
    booking: Booking | None = None
    note: str | None = None


class Shipped(msgspec.Struct, frozen=True, tag="shipped"):
    order: Tree
    when: datetime


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    order: Tree


class Box(msgspec.Struct, Generic[T]):
    value: T
    others: list[T] = []


@dataclass(frozen=True)
class Pair(Generic[T]):
    left: T
    right: T


class Options(TypedDict):
    tree: Tree
    booking: NotRequired[Booking]


class Named(NamedTuple):
    tree: Tree
    colours: frozenset[Colour] = frozenset()


EVERYTHING = Everything(
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2))),
    day=date(2026, 1, 2),
    clock=time(1, 2, 3, 4),
    took=timedelta(days=-3, microseconds=1),
    price=Decimal("1.10"),
    key=UUID(int=7),
    raw=b"raw",
    colours={Colour.RED, Colour.BLUE},
    levels=frozenset({Level.HIGH}),
    pair=(1, "x"),
    many=(Size.BIG, Size.BIG),
    by_size={Size.BIG: [Decimal(1)]},
)
TREE = Tree(name="a", children=[Tree(name="b", children=[Tree(name="c")])])
CAT, DOG = Cat(lives=9), Dog(lives=1)
BOOKING = Booking(nights=2, guests=["x"], proof=b"ab")
BUYER = Aliased(userId=2**70, fullName="x")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (EVERYTHING, Everything),
    (BUYER, Aliased),
    (Strict(at=NOON, ids=(UUID(int=1),), words={"b", "a"}), Strict),
    (Open(a=1, b=[2, {"c": None}]), Open),
    (Ids([UUID(int=3)]), Ids),
    (Page[Tree](items=[TREE]), Page[Tree]),
    (Page[int](items=[2**64]), Page[int]),
    (TREE, Tree),
    (CAT, Pet),
    ([CAT, DOG], list[Pet]),
    (BOOKING, Booking),
    ({1: BOOKING}, dict[int, Booking]),
    (5, PositiveInt),
    (HttpUrl("https://example.org/a"), HttpUrl),
    (Order(BUYER, [Page(items=[TREE])], DOG, BOOKING), Order),
    ([Order(BUYER, [], CAT)], list[Order]),
    (Shipped(TREE, NOON), Shipped | Lost),
    (Lost(TREE), Shipped | Lost),
    (Box(TREE, [TREE]), Box[Tree]),
    (Box({Colour.RED}), Box[set[Colour]]),
    (Box(BOOKING, [BOOKING]), Box[Booking]),
    (Pair(CAT, DOG), Pair[Cat | Dog]),
    (Pair(date(2026, 1, 1), "2026-01-01"), Pair[date | str]),
    ({"tree": TREE}, Options),
    ({"tree": TREE, "booking": BOOKING}, Options),
    (Named(TREE, frozenset(Colour)), Named),
    (None, Tree | None),
    (TREE, Tree | None),
    ((TREE, [CAT], {"a": DOG}), tuple[Tree, list[Cat], dict[str, Dog]]),
    ({3: TREE, 1: TREE}, dict[int, Tree]),
    ({Colour.RED: {date(2026, 1, 1)}}, dict[Colour, set[date]]),
    ({frozenset({3, 1}), frozenset({2})}, set[frozenset[int]]),
    (frozenset({BUYER}), frozenset[Aliased]),
    ({Pair(1, 2), Pair(2, 1)}, set[Pair[int]]),
    (("a", None, TREE), tuple[str, None, Tree]),
    ((CAT, DOG, CAT), tuple[Cat | Dog, ...]),
]


@pytest.mark.parametrize(("value", "annotation"), ROUND_TRIPS)
def test_round_trip(value: Any, annotation: Any) -> None:
    """What is declared comes back equal, of its own type, and is written alike once more."""
    codec = Codec()
    text = codec.encode(value, annotation, where="here")
    back = codec.decode(text, annotation, where="there")
    assert back == value and type(back) is type(value)
    assert codec.encode(back, annotation, where="here") == text


@pytest.mark.parametrize(("value", "annotation"), ROUND_TRIPS)
def test_round_trip_as_argument(value: Any, annotation: Any) -> None:
    """An argument comes back as itself, given by place or by name, next to one of another kind."""

    def fn(value: Any, words: Any, *more: Any) -> None: ...

    fn.__annotations__ = {"value": annotation, "words": set[str], "more": annotation}
    signature = Signature(fn, "step fn")
    for args, kwargs in (((value, {"b", "a"}, value), {}), ((value,), {"words": {"x"}})):
        back = signature.decode(signature.encode(args, kwargs))
        assert back == ((*args, *kwargs.values()), {})


def test_names_and_aliases() -> None:
    """Models are written by field name, complete, and read by field name or alias."""
    codec = Codec()
    assert codec.encode(BUYER, Aliased, where="here") == '{"name":"x","user_id":1180591620717411303424}'
    for text in ('{"userId": 1, "fullName": "x"}', '{"user_id": 1, "fullName": "x"}'):
        assert codec.decode(text, Aliased, where="here") == Aliased(userId=1, fullName="x")
    assert codec.encode(Page[int](items=[]), Page[int], where="here") == '{"items":[],"next":null}'


HASHED = """
from enum import Enum
from pydantic import BaseModel
from pyengine.core.values.codec import input_hash
from pyengine.core.definitions.signatures import Signature
Name = Enum("Name", {f"n{n}": f"v{n}" for n in range(30)})
class Inner(BaseModel, frozen=True):
    names: frozenset[Name]
class Outer(BaseModel):
    inner: dict[str, set[Inner]]
def f(a: Outer, b: set[Name], c: dict[int, set[str]]) -> None: ...
inner = {Inner(names=frozenset(list(Name)[n:])) for n in range(9)}
args = (Outer(inner={"b": inner, "a": set()}), set(Name), {2: {one.value for one in Name}, 1: set()})
print(input_hash("f", Signature(f, "step f").pack(args, {})))
"""


def test_models_hash_alike_in_every_process() -> None:
    """Sets inside models, and sets of what has no order, are written in order under every hash seed."""
    seen = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", HASHED],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        seen.add(done.stdout)
    assert len(seen) == 1 and len(seen.pop()) == 17


WITHOUT = """
import sys
from dataclasses import dataclass
import pyengine
from pyengine.core.values.codec import Codec
from pyengine.core.values.exceptions import ExceptionCodec
@dataclass
class Plain:
    a: set[int] | list[int]
codec = Codec()
assert codec.decode(codec.encode(Plain({1}), Plain, where="x"), Plain, where="x") == Plain({1})
try:
    codec.encode(object(), where="x")
except pyengine.EngineError:
    ExceptionCodec().encode(ValueError(object()))
print(sorted(name for name in sys.modules if name.startswith("pydantic")))
"""


def test_pydantic_is_never_imported() -> None:
    """The package does its work without loading pydantic, so it need not be installed."""
    environment = {"PYTHONPATH": str(ROOT)}
    options = {"env": environment, "capture_output": True, "text": True, "check": True, "timeout": 60}
    assert subprocess.run([sys.executable, "-c", WITHOUT], **options).stdout == "[]\n"


def test_an_old_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pydantic that cannot read names and aliases alike is refused with the version that can."""
    monkeypatch.setattr(pydantic, "VERSION", "2.10.6")
    model = pydantic.create_model("model", a=(int, ...))
    with pytest.raises(DecodeError, match=r"2\.11 or newer"):
        type_codec(model)


@pytest.mark.parametrize(
    ("text", "annotation", "says"),
    [
        ('{"kind": "cat"}', Cat, "lives: Field required"),
        ('{"name": 5}', Tree, "name: Input should be a valid string"),
        ('[{"name": "a"}, {"name": null}]', list[Tree], r"name: .* - at `\$\[1\]`"),
        ('{"a": {"kind": "cow"}}', dict[str, Pet], r"cow.* - at `\$\[\.\.\.\]`"),
        ('{"nights": 0}', Booking, "nights: Input should be greater than 0"),
        ("-1", PositiveInt, "greater than 0"),
        (
            '{"left": {"kind": "cow"}, "right": null}',
            Pair[Cat | Dog],
            r"fits none of Cat \| Dog .*`\$\.left`",
        ),
        ('{"tree": {"name": "a"}, "booking": 5}', Options, r"at `\$\.booking`"),
        ("[", Tree, "JSON"),
        ('[{"left": 1}]', list[Pair[date | str]], r"at `\$\[0\]\.left`"),
    ],
)
def test_invalid_recorded_values(text: str, annotation: Any, says: str) -> None:
    """A recorded value that does not fit says what and where, and what to do."""
    with pytest.raises(DecodeError, match=says) as caught:
        Codec().decode(text, annotation, where="the result of step charge")
    assert caught.value.message.startswith("the result of step charge does not fit its annotation")
    assert caught.value.hint is not None and "default" in caught.value.hint


def test_wrong_arguments() -> None:
    """Arguments that people write are validated, and the error names the parameter."""

    def book(guest: Aliased, nights: PositiveInt, pets: list[Pet]) -> None: ...

    signature = Signature(book, "step book")
    given = '[{"userId": 1, "fullName": "x"}, 3, [{"kind": "dog", "lives": 1}]]'
    assert signature.decode(given)[0] == (Aliased(userId=1, fullName="x"), 3, [DOG])
    for text, says in (
        ('[{"userId": 1}, 3, []]', "argument 'guest': .*fullName: Field required"),
        ('{"nights": 0, "guest": {"userId": 1, "fullName": "x"}, "pets": []}', "'nights': .*greater than 0"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            signature.decode(text)


def test_a_failing_validator_is_an_invalid_value() -> None:
    """Whatever users' code raises while a value is read becomes an error of that value."""

    class Odd(BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def check(cls, a: int) -> int:
            """Fail in its own way."""
            return {1: 1}[a]

    for annotation, text in ((Odd, '{"a": 2}'), (list[Odd], '[{"a": 2}]'), (Fussy, '{"a": 2}')):
        with pytest.raises(DecodeError, match="KeyError: 2"):
            Codec().decode(text, annotation, where="here")


@dataclass
class Fussy:
    a: int

    def __post_init__(self) -> None:
        raise KeyError(self.a)


def test_compiled_once() -> None:
    """An annotation is compiled once, also one that has no hash."""
    for annotation in (list[Pet], Order, Annotated[int, {"a": 1}], list[Annotated[Cat | Dog, {"a": 1}]]):
        assert type_codec(annotation) is type_codec(annotation)


def test_a_model_may_be_defined_late() -> None:
    """A model whose building was put off is built at its first use."""

    class Late(BaseModel, defer_build=True):
        words: set[str]

    late = Late(words={"b", "a", "c"})
    assert Codec().encode([late], list[Late], where="here") == '[{"words":["a","b","c"]}]'


def test_the_hash_of_a_call_stays() -> None:
    """Text and hash of a call with models are what they were when it was recorded."""

    def send(tree: Tree, when: datetime) -> None: ...

    packed = Signature(send, "step send").pack((TREE.children[0], NOON), {})
    assert packed == b'[{"children":[{"children":[],"name":"c"}],"name":"b"},"2026-01-01T12:00:00Z"]'
    assert input_hash("send", packed) == "f4ec2685b0637d46"


@dataclass
class Cached:
    """A dataclass with what `==` does not see."""

    a: int
    note: float | None = field(default=None, compare=False)


def test_nan_in_fields_that_equality_ignores() -> None:
    """NaN is refused also in a field that takes no part in `==`."""
    with pytest.raises(EncodeError, match=r"NaN or Infinity.*\$\.note"):
        Codec().encode(Cached(1, float("nan")), Cached, where="here")
