"""The parts of a value that are there only because a field has a default.

Lives here: `without_defaults`, the JSON form of a value less the fields that have their default, and
`is_default`. May not: a call, a hash, a text. Design: a class may get a field with a default, or another
default, while runs have recorded what its objects looked like before. Without such fields the form is the
same before and after. It is only compared, never read back. Only what is certain is left out: a
default that a function makes is not asked for, since that function is code of users.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from pyengine.core.values.pydantic_models import is_model

_EMPTY = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)
_NONE = object()


class _Field(NamedTuple):
    """A field of a class.

    Args:
        name: its attribute.
        key: its name in JSON.
        default: its default, or `_NONE`.
        factory: the class that makes its default, or None.
    """

    name: str
    key: str
    default: Any
    factory: Any


def has_defaults(cls: Any) -> bool:
    """Return whether a class has fields with defaults."""
    return any(one.default is not _NONE or one.factory is not None for one in _fields(cls))


@lru_cache(maxsize=4096)
def _fields(cls: type) -> tuple[_Field, ...]:
    """Return the fields of a class, in their order; none of what is no class of data."""
    if is_model(cls):
        found = getattr(cls, "__pydantic_fields__", {})
        return tuple(_field(name, name, one.default, one.default_factory) for name, one in found.items())
    if issubclass(cls, msgspec.Struct):
        parts = msgspec.structs.fields(cls)
        return tuple(_field(one.name, one.encode_name, one.default, one.default_factory) for one in parts)
    if dataclasses.is_dataclass(cls):
        own = dataclasses.fields(cls)
        return tuple(_field(one.name, one.name, one.default, one.default_factory) for one in own)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        known = getattr(cls, "_field_defaults", {})
        return tuple(_Field(name, name, known.get(name, _NONE), None) for name in cls._fields)
    return ()


def _field(name: str, key: str, default: Any, factory: Any) -> _Field:
    # each library has a class of its own for "there is none": of pydantic, msgspec and dataclasses
    if default is msgspec.NODEFAULT or default is dataclasses.MISSING or _is_undefined(default):
        default = _NONE
    return _Field(name, key, default, factory if isinstance(factory, type) else None)


def _is_undefined(default: Any) -> bool:
    return type(default).__name__ == "PydanticUndefinedType"


def is_default(value: Any, default: Any) -> bool:
    """Return whether a value is a default: equal, of its type, and looking like it.

    Numbers may be equal and look otherwise, as 1.0 and 1.00 of Decimal.
    """
    if value is default:
        return True
    if type(value) is not type(default):
        return False
    try:
        return bool(value == default) and repr(value) == repr(default)
    except Exception:  # boundary to user code: __eq__ may do anything
        return False


def without_defaults(value: Any, written: Any) -> Any:
    """Return the JSON form of a value without the fields that have their default.

    Args:
        value: the value.
        written: its JSON form, as msgspec decodes it; it is changed.
    """
    cls: Any = type(value)
    fields = _fields(cls)
    if fields:
        return _of_object(value, fields, written)
    if isinstance(value, Mapping) and isinstance(written, dict):
        named = _by_written_key(value)
        return {key: without_defaults(named.get(key), one) for key, one in written.items()}
    if isinstance(value, list | tuple) and isinstance(written, list) and len(value) == len(written):
        return [without_defaults(part, one) for part, one in zip(value, written, strict=True)]
    return written


def _by_written_key(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a dict by the texts that its keys have in JSON; without what has none."""
    if all(type(key) is str for key in value):
        return value
    found = {}
    for key, part in value.items():
        with contextlib.suppress(TypeError, ValueError):
            found[next(iter(msgspec.json.decode(msgspec.json.encode({key: None}))))] = part
    return found


def _of_object(value: Any, fields: tuple[_Field, ...], written: Any) -> Any:
    if isinstance(written, list):
        # a NamedTuple, or a Struct that is written as an array: only its end may be missing
        if len(written) != len(fields):
            return written
        parts = [_part(value, field, one) for field, one in zip(fields, written, strict=True)]
        while parts and parts[-1] is _NONE:
            parts.pop()
        return [one if part is _NONE else part for part, one in zip(parts, written, strict=False)]
    if not isinstance(written, dict):
        return written
    known = {field.key: field for field in fields}
    found = {key: _part(value, known[key], one) if key in known else one for key, one in written.items()}
    return {key: part for key, part in found.items() if part is not _NONE}


def _part(value: Any, field: _Field, written: Any) -> Any:
    """Return the JSON form of a field's value without defaults; `_NONE` if it is the default itself."""
    one = getattr(value, field.name, _NONE)
    if field.default is not _NONE and is_default(one, field.default):
        return _NONE
    if field.factory in _EMPTY and type(one) is field.factory and not one:
        return _NONE
    part = without_defaults(one, written)
    # an object all of whose fields have their default
    return _NONE if part == {} and type(one) is field.factory else part
