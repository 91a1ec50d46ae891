"""Law: Python values have datums that come back equal, and a value without one is refused with its place."""

from __future__ import annotations

import enum
import math
from collections import namedtuple
from decimal import Decimal
from typing import Any

import pytest

from pyengine.errors import DecodeError, EncodeError, PayloadTooLarge
from pyengine.features.calls.datums import Uri, datum_of, from_objects, from_tagged, value_of

Point = namedtuple("Point", "x y")
Colour = enum.IntEnum("Colour", "RED")
LOOP: list[Any] = []
LOOP.append({"again": LOOP})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63 - 1,
        1e16,
        5e-324,
        1e16 + 2,
        math.inf,
        b"\0\xff",
        "é",
        Uri("s3://b/k"),
        [1, [2.0, "x"]],
        {"a": 1, 2: [None], (1, (2,)): {3}},
        {1, "a", b"a", (1, 2), frozenset({3})},
    ],
)
def test_s37_a_value_comes_back(value: Any) -> None:
    """Equal, and of the same type."""
    back = value_of(datum_of(value))
    assert back == value and type(back) is type(value) and repr(sorted(map(repr, [back]))) is not None


def test_s37_floats_stay_floats() -> None:
    """Also where they are whole; NaN is one, zero has no sign."""
    assert len({datum_of(value).id for value in (1, 1.0, True, "1", b"1")}) == 5
    assert math.isnan(value_of(datum_of(math.nan))) and datum_of(-math.nan) == datum_of(math.nan)
    assert math.copysign(1, value_of(datum_of(-0.0))) == 1
    assert datum_of((1, 2)) == datum_of([1, 2]) and datum_of(bytearray(b"x")) == datum_of(b"x")
    assert datum_of("e\u0301") == datum_of("\u00e9")


@pytest.mark.parametrize(
    ("value", "where", "words"),
    [
        (2**63, "value", "64 bits"),
        ({"a": [1, -(2**63) - 1]}, "value['a'][1]", "64 bits"),
        (["a\0b"], "value[0]", "no NUL"),
        ({"k": "\ud800"}, "value['k']", "lone surrogate"),
        ({"\ud800": 1}, "value, key '\\ud800'", "lone surrogate"),
        ({"\u00e9": 1, "e\u0301": 2}, "value", "two keys"),
        ({"\u00e9", "e\u0301"}, "value", "two members"),
        ([Decimal(1)], "value[0]", "decimal.Decimal is no value"),
        ({"p": Point(1, 2)}, "value['p']", "Point is no value"),
        (Colour(1), "value", "Colour is no value"),
        ([object()], "value[0]", "builtins.object is no value"),
        (1j, "value", "complex is no value"),
        (LOOP, "value[0]['again']", "contains itself"),
    ],
)
def test_a_value_without_a_datum_is_refused(value: Any, where: str, words: str) -> None:
    """With its place within the whole, before anything is hashed."""
    with pytest.raises(EncodeError, match=words) as caught:
        datum_of(value)
    assert caught.value.where == where


def test_large_and_deep_values_are_refused() -> None:
    """1 MiB a scalar, 160 levels."""
    with pytest.raises(PayloadTooLarge) as caught:
        datum_of({"big": b"x" * (2**20 + 1)})
    assert (caught.value.where, caught.value.limit) == ("value['big']", 2**20)
    assert datum_of("é" * 2**19).sub == "string"
    deep: Any = None
    for _ in range(160):
        deep = [deep]
    assert value_of(datum_of(deep)) == deep
    with pytest.raises(EncodeError, match="nested deeper"):
        datum_of([deep])


@pytest.mark.parametrize(
    "text", ["a b:c", "x", "http://Host/", "http://h/%7E", "http://h/a/../b", "dml:x", "a:\u00e9"]
)
def test_a_uri_is_in_normal_form(text: str) -> None:
    """Uri.from_string makes it so."""
    with pytest.raises(EncodeError):
        Uri(text)
    if text not in ("x", "a b:c", "dml:x"):
        assert Uri(Uri.from_string(text)) == Uri.from_string(text)


@pytest.mark.parametrize("text", ["x", "a b:c", "dml:x", "http://h/\n", "http://h/\0", "a://h/\ud800"])
def test_a_text_that_is_no_uri_is_refused(text: str) -> None:
    """Nothing makes one of it."""
    with pytest.raises(EncodeError):
        Uri.from_string(text)


@pytest.mark.parametrize(
    "tagged",
    [
        {"map": [[{"i64": 1}, {"null": None}], [{"bool": True}, {"null": None}]]},
        {"set": [{"i64": 1}, {"f64": "1"}]},
        {"set": [{"map": []}]},
        {"map": [[{"list": [{"map": []}]}, {"null": None}]]},
    ],
)
def test_keys_that_python_has_not_are_refused(tagged: Any) -> None:
    """A dict cannot have 1 and True as two keys, nor a dict as one: no entry is lost without a word."""
    with pytest.raises(DecodeError):
        value_of(from_tagged(tagged))


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("-0.00", 0.0), ("0e-999", 0.0), ("5e-324", 5e-324), ("1e-400", None)]
)
def test_a_number_that_would_become_zero_is_refused(text: str, value: float | None) -> None:
    """As the database does it; a zero is one however it is written."""
    if value is None:
        with pytest.raises(DecodeError):
            from_tagged({"f64": text})
    else:
        assert value_of(from_tagged({"f64": text})) == value


def test_objects_are_put_parts_first_and_read_by_id() -> None:
    """Each once, and what is read is checked."""
    datum = datum_of({"a": [1, 2], "b": [1, 2], "c": 1})
    objects = datum.objects()
    assert len({each.id for each in objects}) == len(objects) == 7
    seen: set[bytes] = set()
    for each in objects:
        assert seen.issuperset(each.refs)
        seen.add(each.id)
    by_id = {each.id: each for each in objects}
    assert from_objects(datum.id, by_id) == datum
    del by_id[datum_of(2).id]
    with pytest.raises(DecodeError, match="missing"):
        from_objects(datum.id, by_id)
    with pytest.raises(DecodeError, match="not that of its content"):
        from_objects(datum_of(3).id, {datum_of(3).id: objects[0]})
