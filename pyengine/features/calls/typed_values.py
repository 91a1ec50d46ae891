"""Values of annotated functions as plain data, which has datums, and back as the annotated type.

Lives here: `ValueType`, the two directions for one annotation. May not: datums (datums.py), or which
functions have annotations (functions.py). The theory: annotations mean what they mean for steps. Values that
msgspec reads alone are taken apart here, part by part, so bytes, sets, NaN and whole numbers keep their
types; other values, such as models of pydantic, have the JSON form that a journal would have. Identity is
that of the value that comes back: for a `float` an argument of 1 is 1.0. A value that would not come back
equal is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from pyengine.core.definitions.current_run import scope
from pyengine.core.values.codec import UNWRITABLE, TypeCodec, pack_value, type_codec
from pyengine.core.values.likeness import refuse_zone
from pyengine.core.values.paths import at, brief, difference
from pyengine.core.values.pydantic_models import is_model, read_unknown, write_unknown
from pyengine.core.values.shape_builder import shape_of
from pyengine.errors import DecodeError, EncodeError
from pyengine.features.calls.inputs import encode_value

_AS_TEXT = (datetime, date, time, timedelta, Decimal, UUID)
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, ValueError, TypeError, RecursionError)


class ValueType:
    """The values of one annotation.

    Args:
        codec: the codec of the annotation.
    """

    __slots__ = ("_codec", "_is_any", "_is_json")

    def __init__(self, codec: TypeCodec) -> None:
        self._codec = codec
        self._is_any = codec.annotation is Any
        self._is_json = shape_of(codec.annotation) is not None

    def encode(self, value: Any, where: str) -> dict[str, Any]:
        """Return a value as JSON with its types.

        Args:
            value: a value of the annotation; without one, plain data.
            where: which value it is, for errors.

        Raises:
            EncodeError: it does not fit the annotation, would not come back equal, or has no datum.
            PayloadTooLarge: a text or bytes with more than 1 MiB.
        """
        if self._is_any:
            return encode_value(value, where)
        plain = self._json(value, where) if self._is_json else self._plain(value, where)
        run = scope.get()
        if self._codec.overlooks and (run is None or run.run.exact):
            refuse_zone(value, where)
        return encode_value(plain, where)

    def decode(self, plain: Any, where: str) -> Any:
        """Return the value that plain data stands for.

        Raises:
            DecodeError: it does not fit the annotation.
        """
        if self._is_any:
            return plain
        try:
            return self._codec.unpack(msgspec.json.encode(plain)) if self._is_json else self._read(plain)
        except _UNREADABLE as error:
            raise DecodeError(
                f"{where} does not fit its annotation {_shown(self._codec)}: {error}",
                where=where,
                hint="it was recorded when the code declared another type: raise the version of the memo",
            ) from error

    def _json(self, value: Any, where: str) -> Any:
        packed = pack_value(self._codec, value, where)
        _, back = self._codec.check(value, packed, where)
        return msgspec.json.decode(self._codec.pack(back))

    def _plain(self, value: Any, where: str) -> Any:
        try:
            plain = _plain(value)
        except UNWRITABLE as error:
            reason = "it contains itself" if isinstance(error, RecursionError) else str(error)
            raise EncodeError(f"{where} is no value of a call: {reason}", where=where) from error
        try:
            back = self._read(plain)
        except _UNREADABLE as error:
            raise EncodeError(
                f"{where} is a {type(value).__name__} and does not fit its annotation "
                f"{_shown(self._codec)}: {error}",
                where=where,
            ) from None
        found = difference(value, back)
        if found is not None:
            path, mine, theirs = found
            raise EncodeError(
                f"{where} would come back as another value: {brief(mine)}, a {type(mine).__name__}, "
                f"as {brief(theirs)}, a {type(theirs).__name__}{at(path)}",
                where=where,
                hint="annotate it with its exact type, or pass plain data (dict, list, str, numbers)",
            )
        return _plain(back)

    def _read(self, plain: Any) -> Any:
        return msgspec.convert(plain, self._codec.annotation, dec_hook=_read_part)


def _plain(value: Any) -> Any:
    """Return a value in which records, enumerations and times are plain data; others stay as they are."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _AS_TEXT):
        return msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {_hashable(key): _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return {_hashable(one) for one in value}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if is_model(type(value)):
        return write_unknown(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names if hasattr(value, name)}
    return value


def _plain_struct(value: msgspec.Struct) -> Any:
    config = value.__struct_config__
    fields = [(one.encode_name, getattr(value, one.name)) for one in msgspec.structs.fields(type(value))]
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return [*tag, *(_plain(one) for _, one in fields)]
    written = {} if config.tag is None else {config.tag_field: config.tag}
    return written | {name: _plain(one) for name, one in fields if one is not msgspec.UNSET}


def _hashable(value: Any) -> Any:
    """Return a key or a member as plain data, which Python can hash."""
    plain = _plain(value)
    return tuple(_hashable(one) for one in plain) if isinstance(plain, list) else plain


def _read_part(annotation: Any, value: Any) -> Any:
    """Read a part whose type msgspec does not know: a Uri, or a model of pydantic."""
    if isinstance(annotation, type) and isinstance(value, annotation):
        return value
    return read_unknown(annotation, value)


def _shown(codec: TypeCodec) -> str:
    annotation = codec.annotation
    name = annotation.__qualname__ if isinstance(annotation, type) else None
    return name or str(annotation).replace("typing.", "")


ANY = ValueType(type_codec(Any))
"""Values without an annotation: plain data, which comes back as it is."""
