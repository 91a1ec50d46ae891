"""Unions whose members look alike in JSON, such as two dataclasses, or a date and a text.

Lives here: `UnionShape`. May not: the other shapes (shapes.py). The theory: a value is written as the plain
JSON of its member if that is decoded to the same value, and else with the member's name:
`{"$type": "Refund", "value": {...}}`. Decoding tries the members, narrow types first, and takes the first one
whose encoding is exactly this text; if there is none, the first that decodes it. Members are ordered by name:
`A | B` and `B | A` are the same type in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from pyengine.core.values.hints import bare, class_of
from pyengine.core.values.paths import difference
from pyengine.core.values.pydantic_models import is_constrained
from pyengine.core.values.shapes import PLAIN, Shape, Text, read_part
from pyengine.errors import recorded_module

_CANONICAL = msgspec.json.Encoder(order="sorted")
_NONE = type(None)
# in the repr of a function in annotation metadata
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# a class of the engine may move to another file; its recorded name must stay
_OURS = re.compile(r"\bpyengine(?:\.\w+)*\.(\w+)")


class _Tagged(msgspec.Struct, forbid_unknown_fields=True):
    type: str = msgspec.field(name="$type")
    value: msgspec.Raw


_read_tagged = msgspec.json.Decoder(_Tagged).decode


class UnionShape:
    """A union whose members look alike in JSON."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[Any, Shape]] = {}

    def fill(self, annotation: Any, shape: Callable[[Any], Shape]) -> None:
        """Set the members; after the constructor, since a union may hold itself."""
        members = [bare(one) if not is_constrained(one) else one for one in get_args(annotation)]
        for one in sorted(members, key=_breadth):
            name = _name(one)
            if name in self._members:
                name = f"{recorded_module(class_of(one))}.{name}"
            if name in self._members:
                raise TypeError(f"the union holds two types named {name}")
            self._members[name] = (class_of(one), shape(one))

    def write(self, value: Any) -> Any:
        """Return the JSON of a member, with its name if it would be decoded as another one."""
        cls = type(value)
        exact = [(name, shape) for name, (held, shape) in self._members.items() if held is cls]
        candidates = exact or [(name, shape) for name, (_, shape) in self._members.items()]
        for name, shape in candidates:
            text = PLAIN.encode(shape.write(value))
            # list[int] and list[str] are one class
            if len(exact) == 1 or _comes_back(value, shape, text):
                raw = msgspec.Raw(text)
                return raw if _comes_back(value, self, text) else {"$type": name, "value": raw}
        return value

    def read(self, text: Text) -> Any:
        """Return the value of a member."""
        tagged = self._tagged(text)
        if tagged is not None:
            return tagged[0]
        exact = _canonical(text)
        found: list[Any] = []
        problems: list[str] = []
        for name, (_, shape) in self._members.items():
            try:
                value = shape.read(text)
            except msgspec.ValidationError as error:
                problems.append(f"{name}: {error}")
                continue
            written = PLAIN.encode(shape.write(value))
            if written == exact or (len(written) == len(exact) and _canonical(written) == exact):
                return value
            found.append(value)
        if found:
            return found[0]
        raise msgspec.ValidationError(f"fits none of {' | '.join(self._members)} ({'; '.join(problems)})")

    def _tagged(self, text: Text) -> tuple[Any] | None:
        try:
            tagged = _read_tagged(text)
        except msgspec.ValidationError:
            return None
        if tagged.type not in self._members:
            return None
        return (read_part(self._members[tagged.type][1], tagged.value, ".value"),)


def _canonical(text: Text) -> bytes:
    return _CANONICAL.encode(msgspec.json.decode(text))


def _comes_back(value: Any, shape: Shape, text: bytes) -> bool:
    """Whether a text is decoded to the same value of the same type."""
    try:
        back = shape.read(text)
    except msgspec.DecodeError:
        return False
    return type(back) is type(value) and difference(value, back) is None


def _name(annotation: Any) -> str:
    """Return the name of a member, the same in every process."""
    if annotation is _NONE:
        return "null"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return _OURS.sub(r"pyengine.\1", _ADDRESS.sub("", str(annotation)))


def _breadth(annotation: Any) -> tuple[int, str]:
    """Return the sort key of a member: types that accept any text or number are last."""
    broad = {float: 1, str: 2, Any: 3}
    return (broad.get(annotation, 0) if annotation in list(broad) else 0, _name(annotation))
