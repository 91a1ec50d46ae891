"""Arguments and attributes of errors as plain JSON, and back as they were.

Lives here: `write_part` and `read_part`. May not: which parts an error has (error_access.py), what is made of
them (error_building.py). The theory: an error cannot be refused as a value can, and nobody declares what it
carries, so JSON that would come back as something else names its type: `{"$type": "bytes", "value": "aGk="}`.
A part that has no such form is replaced by its `repr` for people, and named in a list, so that it is not
taken for the original.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from pyengine.core.values.error_access import asked, class_name
from pyengine.core.values.pydantic_models import write_unknown

MAX_DEPTH = 8
# some hundred digits less than Python writes
_BITS_MAX = 13_000
_TYPE, _VALUE = "$type", "value"
DECLARED = "declared"
"""The type of a part that only the annotation of its attribute can read."""
_BYTES: tuple[type, ...] = (bytes, bytearray)
_LISTS: tuple[type, ...] = (tuple, set, frozenset)
_TEXTS: tuple[type, ...] = (Decimal, UUID, date, time, timedelta)

WriteError = Callable[[BaseException], dict[str, Any]]
ReadError = Callable[[Any], BaseException]


def clean(text: str) -> str:
    """Return the text without what Postgres cannot store: NUL and half surrogate pairs."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def shown(value: Any) -> str:
    """Return the `repr` of a value, whatever its class does."""
    return clean(asked(lambda: repr(value), f"<{class_name(type(value))}>"))


def declared(value: Any) -> Any:
    """Return a value of a declared attribute as JSON values.

    Raises:
        TypeError: it has no such form.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=write_unknown)


class PartWriter:
    """Writes the parts of one error.

    Args:
        write_error: returns the record of an error that is a part of this one.

    Attributes:
        lost: whether a part was replaced by its `repr` since this was set to False.
    """

    def __init__(self, write_error: WriteError | None) -> None:
        self._write_error = write_error
        self.lost = False

    def write(self, value: Any, depth: int = 0) -> Any:
        """Return a part as plain JSON."""
        kind = type(value)
        if value is None or kind is bool or (kind is float and math.isfinite(value)):
            return value
        if kind is int and is_writable(value):
            return value
        if kind is str and clean(value) == value:
            return value
        if depth < MAX_DEPTH:
            if kind is list:
                return [self.write(one, depth + 1) for one in value]
            if kind is dict:
                return self._dict(value, depth + 1)
            if kind in _LISTS:
                return self._typed(kind, [self.write(one, depth + 1) for one in value])
            if self._write_error is not None and issubclass(kind, BaseException):
                return {_TYPE: "error", _VALUE: self._write_error(value)}
        if kind in _BYTES:
            return self._typed(kind, base64.b64encode(value).decode())
        if kind is datetime:
            return self._datetime(value)
        if kind in _TEXTS and (kind is not time or value.tzinfo is None):
            return self._typed(kind, msgspec.to_builtins(value))
        if kind is float:
            return self._typed(kind, str(value))
        return self._derived(value)

    def _typed(self, kind: type, value: Any) -> dict[str, Any]:
        return {_TYPE: kind.__name__, _VALUE: value}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str and clean(key) == key for key in value) and _TYPE not in value:
            return {key: self.write(one, depth) for key, one in value.items()}
        return self._typed(
            dict, [[self.write(key, depth), self.write(one, depth)] for key, one in value.items()]
        )

    def _datetime(self, value: datetime) -> Any:
        zone = value.tzinfo
        if zone is None or type(zone) is type(UTC):
            return self._typed(datetime, [value.isoformat(), value.fold, None])
        if type(zone) is ZoneInfo and zone.key:
            return self._typed(datetime, [value.replace(tzinfo=None).isoformat(), value.fold, zone.key])
        return self._lose(value)

    def _derived(self, value: Any) -> Any:
        """Return what a subclass of text or number is written as: its text or number."""
        kind = type(value)
        if issubclass(kind, str):
            text = str.__str__(value)
            return text if clean(text) == text else self._lose(value)
        if issubclass(kind, int) and is_writable(int.__int__(value)):
            return int.__int__(value)
        return self.write(float.__float__(value)) if issubclass(kind, float) else self._lose(value)

    def _lose(self, value: Any) -> str:
        self.lost = True
        return shown(value)


def is_writable(value: int) -> bool:
    """Whether a number can be written in decimal: Python refuses more than some thousand digits."""
    return value.bit_length() <= _BITS_MAX


def is_declared(value: Any) -> bool:
    """Whether a part was written by the annotation of its attribute."""
    return isinstance(value, dict) and value.get(_TYPE) == DECLARED


def as_declared(value: Any) -> dict[str, Any]:
    """Return the form of a part that was written by the annotation of its attribute."""
    return {_TYPE: DECLARED, _VALUE: value}


def read_part(value: Any, read_error: ReadError) -> Any:
    """Return a part of an error that was written.

    Raises:
        ValueError: it has a type that is not known here.
    """
    if isinstance(value, list):
        return [read_part(one, read_error) for one in value]
    if not isinstance(value, dict):
        return value
    if _TYPE not in value:
        return {key: read_part(one, read_error) for key, one in value.items()}
    name, inner = value[_TYPE], value.get(_VALUE)
    if name == "error":
        return read_error(inner)
    if name == DECLARED:
        return inner
    found = _READERS.get(name)
    if found is None:
        raise ValueError(f"a part of an error of the type {name!r}")
    try:
        return found(read_part(inner, read_error) if isinstance(inner, list) else inner)
    except (TypeError, binascii.Error) as error:
        raise ValueError(str(error)) from error


def _read_datetime(found: list[Any]) -> datetime:
    text, fold, key = found
    read = datetime.fromisoformat(text)
    return read.replace(fold=fold) if key is None else read.replace(fold=fold, tzinfo=ZoneInfo(key))


_READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "float": float,
    "datetime": _read_datetime,
    **{
        kind.__name__: lambda text, kind=kind: msgspec.convert(text, kind)  # type: ignore[misc]
        for kind in _TEXTS
    },
}
