"""Law: what is an object in JSON is read, all else is refused, and nothing is made of a large text that is
refused."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from pyengine.doors.gateway.json_object import read_object

MANY = 200_000


def texts(many: int) -> dict[str, bytes]:
    """Texts that are no object, each with so many small values."""
    lists = b"[]," * many
    return {
        "cut off": b'{"a": [' + lists,
        "no UTF-8": b'{"a": [' + lists + b'"\xff"]}',
        "half a letter": b'{"a": [' + lists + b'"\\ud800"]}',
        "more behind it": b'{"a": [' + lists + b"0]}x",
        "no object": b"[" + lists + b"0]",
        "nested": b'{"a": ' + b"[" * many,
    }


@pytest.mark.parametrize("kind", texts(0))
@pytest.mark.parametrize("many", [3, MANY])
def test_what_is_no_object(kind: str, many: int) -> None:
    """Small or large; a large one takes no more memory than a few of its copies."""
    text = texts(many)[kind]
    tracemalloc.start()
    try:
        assert read_object(text) is None
        assert many < MANY or tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("many", [3, MANY])
def test_an_object(many: int) -> None:
    """It is read as any reader of JSON does; while a large one is made, the collector rests."""
    text = b'{"a": [' + b"[]," * many + b'"\xc3\xa4"], "a": {"b": 1.5, "c": null}, "d": ["\\ud83d\\ude00"]}'
    before = sum(each["collections"] for each in gc.get_stats())
    found = read_object(text)
    assert sum(each["collections"] for each in gc.get_stats()) < before + 10
    assert gc.isenabled()
    assert found == json.loads(text)
