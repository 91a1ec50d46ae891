"""Values survive the journal or are refused by name: none changes silently between a run and its replay."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from dataclasses import InitVar, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.codec import Codec, input_hash, type_codec
from pyengine.errors import DecodeError, EncodeError, InvalidRequest, PayloadTooLarge

ROOT = Path(__file__).parents[3]


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    tags: frozenset[str] = frozenset()


@dataclass
class Once:
    """What it is made of is not kept."""

    seed: InitVar[int]


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict):
    deep: bool
    path: list[str]


class Packed(msgspec.Struct):
    items: list[Item]
    when: datetime | None = None


ROUND_TRIPS: list[tuple[Any, Any]] = [
    ("text äöü \U0001f600 \\u0000", str),
    (2**70, int),
    (-1.5e300, float),
    (1, float),
    (None, None),
    (True, bool),
    (b"\x00\xff", bytes),
    (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), datetime),
    (date(2026, 1, 2), date),
    (timedelta(days=1, microseconds=1), timedelta),
    (Decimal("1.10"), Decimal),
    (UUID(int=5), UUID),
    (Colour.RED, Colour),
    ((1, "a"), tuple[int, str]),
    ({3, 1, 2}, set[int]),
    ({1: "a"}, dict[int, str]),
    ([{"a": [1, None]}], list[dict[str, list[int | None]]]),
    (Item("x", Decimal("9.90"), frozenset("abc")), Item),
    ([Point(1, 2.0)], list[Point]),
    ({"deep": True, "path": ["a"]}, Options),
    (Packed(items=[Item("a", Decimal(1))], when=datetime(2026, 1, 1)), Packed),
    ("a", Literal["a", "b"]),
    ({"plain": [1, 2.5, "x", None, True]}, Any),
    ([1], list),
]


@pytest.mark.parametrize(("value", "annotation"), ROUND_TRIPS)
def test_round_trip(value: Any, annotation: Any) -> None:
    """What is declared comes back equal and of its own type."""
    codec = Codec()
    text = codec.encode(value, annotation, where="here")
    back = codec.decode(text, annotation, where="there")
    assert back == value
    assert isinstance(value, int) or type(back) is type(value)


def test_pydantic_models() -> None:
    """Models of pydantic come back as themselves, nested or not, if it is installed."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("model", n=(int, ...), at=(datetime, ...))
    codec, value = Codec(), model(n=1, at=datetime(2026, 1, 1, tzinfo=UTC))
    for wrapped, annotation in ((value, model), ([value], list[model]), ({"a": value}, dict[str, model])):
        text = codec.encode(wrapped, annotation, where="here")
        assert codec.decode(text, annotation, where="there") == wrapped
    with pytest.raises(DecodeError, match="n"):
        codec.decode('{"n": "x"}', model, where="there")


@pytest.mark.parametrize(
    ("value", "annotation", "says"),
    [
        ((1, 2), Any, r"\(1, 2\)\) would come back from the journal as \[1, 2\]"),
        ({1: 2}, Any, "would come back"),
        ([{1, 2}], list, "would come back"),
        (datetime(2026, 1, 1), Any, "would come back"),
        (Item("x", Decimal(1)), Any, "would come back"),
        (b"ab", Any, "would come back"),
        (float("nan"), float, "NaN"),
        ([1.0, float("inf")], list[float | None], "NaN or Infinity"),
        (Packed(items=[], when=None), list, "does not fit"),
        ({"a": float("-inf")}, Any, "NaN or Infinity"),
        ("a\x00b", str, "NUL"),
        ("\ud800", str, "surrogate"),
        (5, str, "int and does not fit its annotation str"),
        (object(), Any, "object"),
        (complex(1, 2), complex, "complex"),
        ({(1, 2): 3}, dict[tuple[int, int], int], "here"),
    ],
)
def test_refusals(value: Any, annotation: Any, says: str) -> None:
    """What would not come back is refused, named by its place."""
    with pytest.raises(EncodeError, match=says) as caught:
        Codec().encode(value, annotation, where="here")
    assert caught.value.where == "here" and "here" in caught.value.message


def test_backslash_before_u0000_is_no_nul() -> None:
    """Text that merely spells an escape is not mistaken for a NUL."""
    for text in ("\\u0000", "\\\\u0000", "C:\\u0000"):
        assert Codec().encode(text, str, where="here")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_plain_json_round_trips(value: Any) -> None:
    """Every plain JSON value comes back equal without any annotation."""
    codec = Codec()
    assert codec.decode(codec.encode(value, where="here"), where="there") == value


def test_decode_error_names_the_place() -> None:
    """A text that does not fit, or is no JSON, says where."""
    for text in ('"x"', "{", "[1]"):
        with pytest.raises(DecodeError, match="result of step charge"):
            Codec().decode(text, int, where="result of step charge")


def test_unsupported_annotation() -> None:
    """An annotation that can never be read back is refused when it is first used."""
    for annotation in (Once, list[Once], Once | Item, {"a": 1}):
        with pytest.raises(DecodeError, match="not supported"):
            type_codec(annotation)


def test_sizes(caplog: pytest.LogCaptureFixture) -> None:
    """Large is logged, too large is refused with size and limit."""
    codec = Codec(warn_bytes=10, max_bytes=20)
    codec.encode("x" * 12, str, where="here")
    assert [record.message[:21] for record in caplog.records] == ["here is 14 bytes long"]
    with pytest.raises(PayloadTooLarge) as caught:
        codec.encode("ä" * 12, str, where="here")
    assert (caught.value.size, caught.value.limit, caught.value.where) == (26, 20, "here")


def test_input_hash() -> None:
    """The hash is a function of name and text, and of nothing else."""
    assert input_hash("greet", '["a"]') == input_hash("greet", b'["a"]')
    assert len(input_hash("greet", "[]")) == 16
    assert len({input_hash(name, text) for name in ("a", "b", "a\0") for text in ("[]", "[1]")}) == 6


HASHED = """
from pyengine.core.values.codec import input_hash
from pyengine.core.definitions.signatures import Signature
def f(tags: set[str], more: dict[str, frozenset[str]]) -> None: ...
words = [str(n) for n in range(30)]
print(input_hash("f", Signature(f, "step f").pack((set(words), {"a": frozenset(words)}), {})))
"""


def test_sets_hash_alike_in_every_process() -> None:
    """Sets are written sorted: the same call has the same input hash under every hash seed."""
    seen = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", HASHED],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def sample(a: int, b: str = "b", *rest: float, c: Item | None = None, **extra: bool) -> None:
    """A function with every kind of parameter."""


SAMPLE = Signature(sample, "step sample")
ITEM = Item("x", Decimal(1))


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1,), {}, "[1]"),
        ((1, "x"), {}, '[1,"x"]'),
        ((1, "x", 1.5, 2.5), {}, '[1,"x",1.5,2.5]'),
        ((), {"a": 1}, "[1]"),
        ((), {"b": "x", "a": 1}, '[1,"x"]'),
        ((1,), {"c": None}, '{"a":1,"c":null}'),
        ((1,), {"yes": True}, '{"a":1,"yes":true}'),
        ((1, "x", 1.5), {"c": ITEM}, '{"a":1,"b":"x","c":{"name":"x","price":"1","tags":[]},"rest":[1.5]}'),
    ],
)
def test_calls(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    """An array if all bound arguments are positional, else an object by name; both bind to the same call."""
    import inspect
    import json

    written = SAMPLE.encode(args, kwargs)
    assert json.loads(written) == json.loads(text)
    signature = inspect.signature(sample)
    back = SAMPLE.decode(written)
    assert signature.bind(*back[0], **back[1]) == signature.bind(*args, **kwargs)


def test_a_misspelt_argument_is_named() -> None:
    """Beside the one that is missing, which is all that Python says."""

    async def pay(order: int) -> None: ...

    with pytest.raises(InvalidRequest) as caught:
        Signature(pay, "workflow pay").decode('{"ordr": 1}')
    told = "missing a required argument: 'order'; there is no argument 'ordr'; it takes (order: "
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "missing a required argument: 'a'"),
        ('["x"]', "argument 'a': Expected `int`, got `str`"),
        ('[1, "b", "x"]', r"argument 'rest\[0\]': Expected `float`"),
        ('{"a": 1, "c": {"name": 1}}', "argument 'c'"),
        ('{"a": 1, "yes": 3}', "argument 'yes'"),
        ('{"b": "x"}', r"missing a required argument: 'a'; it takes \(a: "),
        ("5", "must be a JSON array or object"),
        ("[1", "must be a JSON array or object"),
    ],
)
def test_wrong_calls(text: str, says: str) -> None:
    """Wrong arguments name the function and the parameter."""
    with pytest.raises(InvalidRequest, match=says) as caught:
        SAMPLE.decode(text)
    assert "step sample" in caught.value.message


def test_unknown_name_and_too_many() -> None:
    """Names and numbers of arguments are checked by the signature."""

    def short(name: str) -> str:
        return name

    signature = Signature(short, "workflow short")
    assert signature.decode('{"name": "world"}') == ((), {"name": "world"})
    for text in ('{"nam": "world"}', '["a", "b"]'):
        with pytest.raises(InvalidRequest, match="workflow short"):
            signature.decode(text)
    for args, kwargs in ((("a", "b"), {}), ((), {"nam": "x"}), ((5,), {}), ((), {})):
        with pytest.raises(InvalidRequest, match="workflow short"):
            signature.encode(args, kwargs)
    with pytest.raises(EncodeError, match="argument 'name' of workflow short"):
        signature.encode((object(),), {})


def test_unresolvable_annotation() -> None:
    """A type that is not defined at the top level of the module is an error with the way out."""

    def broken(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    with pytest.raises(InvalidRequest, match=r"step broken.*Missing"):
        Signature(broken, "step broken").encode((1,), {})


def test_positional_only() -> None:
    """Positional-only parameters may be named in JSON, and stay positional in the call."""

    def divided(a: int, b: int, /, c: int = 1) -> None: ...

    signature = Signature(divided, "step divided")
    assert signature.decode('{"a": 1, "b": 2, "c": 3}') == ((1, 2), {"c": 3})
    assert signature.encode((1, 2), {"c": 3}) == "[1,2,3]"
