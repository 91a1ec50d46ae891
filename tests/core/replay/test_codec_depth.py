"""What is nested too deep is refused when it is written, in words; what has many brackets is not.
Rows that hold it all the same are read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pyengine.core.client.run_status import read_moment
from pyengine.core.definitions.signatures import Signature
from pyengine.core.protocol.causes import read_cause
from pyengine.core.values.codec import Codec
from pyengine.core.values.depth import MAX_DEPTH, is_deep, read_plain
from pyengine.core.values.error_records import read_record
from pyengine.errors import DecodeError, EncodeError


def nested(levels: int) -> Any:
    """Lists and objects by turns."""
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def height(value: Any) -> int:
    """Levels of a value, by walking it."""
    levels, inner = 0, [value]
    while inner := [each for each in inner if isinstance(each, dict | list)]:
        levels += 1
        inner = [part for each in inner for part in (each.values() if isinstance(each, dict) else each)]
    return levels


def anything(value: Any) -> None:
    """Takes anything."""


WAYS: dict[str, tuple[Callable[[Any], str], int]] = {
    "a result": (lambda value: Codec().encode(value, where="the result of step charge"), 0),
    "an annotated one": (lambda value: Codec().encode(value, list[Any] | dict[str, Any], where="it"), 0),
    "an argument": (lambda value: Signature(anything, subject="workflow w").encode((value,), {}), 1),
    "an argument by name": (
        lambda value: Signature(anything, subject="workflow w").encode((), {"value": value}),
        1,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 800, 990, 5_000, 100_000])
def test_too_deep_values_raise_an_encode_error(way: str, levels: int) -> None:
    """No RecursionError: an EncodeError that says how deep a payload may be."""
    write, _ = WAYS[way]
    with pytest.raises(EncodeError, match=f"nested deeper than {MAX_DEPTH} levels"):
        write(nested(levels))


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_itself_is_taken(way: str) -> None:
    """So many levels are written, and come back."""
    write, more = WAYS[way]
    assert height(json.loads(write(nested(MAX_DEPTH - more)))) == MAX_DEPTH


def test_errors_with_any_content_are_encoded() -> None:
    """An error that carries what is too deep is cut, and its text can be stored."""
    for levels in (MAX_DEPTH, 900, 5_000):
        error = ValueError("deep", nested(levels))
        error.about = nested(levels)  # type: ignore[attr-defined]
        text = Codec().encode_error(error)
        assert not is_deep(text.encode())
        assert json.loads(text)["type"] == "ValueError"


def test_it_is_as_deep_as_a_walk_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting brackets and walking the value agree, with brackets and quotes in its texts."""
    lot = random.Random(20)
    monkeypatch.setattr("pyengine.core.values.depth.MAX_DEPTH", 4)
    found = set()
    for _ in range(2_000):
        value = made(lot, lot.randint(0, 7))
        deep = height(value) > 4
        found.add(deep)
        assert is_deep(json.dumps(value, ensure_ascii=False).encode()) is deep
    assert found == {True, False}


def test_texts_without_brackets_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds strings, with a call for each, is given only what is left when plain ones are gone: so a
    large value costs a few passes of fast functions.
    """
    given = []

    class Strings:
        def sub(self, by: bytes, text: bytes) -> bytes:
            given.append(text)
            return by

    monkeypatch.setattr("pyengine.core.values.depth._STRINGS", Strings())
    rows = [{"id": n, "name": 'a "quoted" \\ name\n', "": ""} for n in range(1_000)]
    assert not is_deep(json.dumps(rows).encode())
    assert not given
    is_deep(json.dumps([*rows, "a [ here"]).encode())
    assert given == [b"[" + b"[]" * 1_000 + b'"["]']


def made(lot: random.Random, levels: int) -> Any:
    """A value of at most so many levels."""
    if levels == 0:
        return lot.choice([1, None, "[[[[[[[[", '}"{"[', "\\\\", '\\"[', "ü[é", "\n["])
    parts = [made(lot, lot.randint(0, levels - 1)) for _ in range(lot.randint(0, 2))]
    if lot.random() < 0.5:
        return [*parts, made(lot, levels - 1)]
    return {f'[{number}"': part for number, part in enumerate([*parts, made(lot, levels - 1)])}


DEEP = "[" * 100_000 + "]" * 100_000
ROW: dict[str, Any] = {"depth": 0, "id": "r", "cause": "retry", "sentence": "", "since": None, "until": None}
MOMENT: dict[str, Any] = {"running": "[]", "children": "{}", "signals": "{}"}


def unable(text: str) -> Any:
    """Answers the text, as a reader with a bound of its own does."""
    return text


@pytest.mark.parametrize("decode", [msgspec.json.decode, unable])
def test_deep_details_of_a_cause_stay_a_text(decode: Callable[[str], Any]) -> None:
    """Why a run waits is told, whatever it has failed with."""
    details = f'{{"error": {DEEP}}}'
    assert read_cause({**ROW, "details": details}, decode).details == {"text": details}


def test_deep_values_of_a_run_stay_texts() -> None:
    """The status of a run has them as they are written; so have lines about an error."""
    assert read_plain(DEEP) == read_record(DEEP) == DEEP
    assert read_plain('{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("decode", [msgspec.json.decode, unable])
def test_a_deep_moment_raises_a_decode_error(decode: Callable[[str], Any]) -> None:
    """A state as of an instant says in words that it cannot be read."""
    with pytest.raises(DecodeError, match="nested too deeply"):
        read_moment({**MOMENT, "children": f'{{"1": {DEEP}}}'}, decode)
