"""The first form of recorded errors, which journals of version 0.1 have.

Lives here: how arguments and attributes were written then, and how an error is made of them. May not: the
present form (error_values.py, error_building.py). Design: a run that was born under the rules of then goes on
with it, since another class than the one that its code has caught would be another way to go. Whatever plain
JSON does not give back equal was replaced by its `repr`, and the error became a RemoteError.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, get_type_hints

import msgspec

from pyengine.core.annotations import annotated_names
from pyengine.core.values.error_access import RECORDED, arguments_of, asked, dict_of, is_a
from pyengine.core.values.error_values import clean, declared, is_writable, shown
from pyengine.core.values.pydantic_models import read_unknown
from pyengine.errors import EngineError

_DEPTH_MAX = 8


def own_arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an error."""
    # the second argument of a group is its members, which have a field of their own
    return arguments_of(error)[: 1 if is_a(error, BaseExceptionGroup) else None]


def declared_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that a class declares."""
    fields = getattr(cls, "__dataclass_fields__", ())
    return frozenset((*fields, *annotated_names(cls)))


def add_plain_parts(record: dict[str, Any], error: BaseException) -> bool:
    """Add arguments and attributes to a record; return whether a part of them was lost."""
    lossy: list[str] = []
    record["args"] = [plain(arg, lossy) for arg in own_arguments(error)]
    data = _attributes(error, lossy)
    if data:
        record["data"] = data
    return bool(lossy)


def rebuilt(
    cls: type[BaseException], record: dict[str, Any], members: list[BaseException]
) -> BaseException | None:
    """Return the error of a record; None if its class does not fit."""
    args, data = record.get("args", []), record.get("data") or {}
    if not isinstance(args, list) or not isinstance(data, dict):
        return None
    if "args" not in record and isinstance(record.get("message"), str):
        args = [record["message"]]
    try:
        if issubclass(cls, BaseExceptionGroup):
            return _group(cls, args, members)
        if cls.__module__ == "builtins":
            error = cls(*args)
            dict_of(error).update(data)
            return error
        return None if record.get("lossy") is True else _rebuild(cls, args, data)
    except (TypeError, ValueError, AttributeError, NameError, msgspec.ValidationError):
        return None


def _group(cls: type[BaseException], args: list[Any], members: list[BaseException]) -> BaseException | None:
    if cls not in (ExceptionGroup, BaseExceptionGroup) or not members:
        return None
    return BaseExceptionGroup(str(args[0]) if args else "", members)


def _rebuild(cls: type[BaseException], args: list[Any], data: dict[str, Any]) -> BaseException | None:
    """Allocate an exception and put its arguments and attributes back; its __init__ does not run."""
    base = next(one for one in cls.__mro__ if one.__module__ == "builtins")
    if cls.__new__ is not base.__new__ or "__setattr__" in cls.__dict__:
        return None
    if issubclass(cls, EngineError) and not data:
        # written by SQL, with a message only
        return cls(*args)
    hints = {name: hint for name, hint in get_type_hints(cls).items() if name in data}
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    for name, value in data.items():
        object.__setattr__(error, name, _read(value, hints.get(name)))
    required = getattr(cls, "__dataclass_fields__", {})
    return error if all(name in data or hasattr(cls, name) for name in required) else None


def _read(value: Any, hint: Any) -> Any:
    return value if hint is None else msgspec.convert(value, hint, str_keys=True, dec_hook=read_unknown)


def _attributes(error: BaseException, lossy: list[str]) -> dict[str, Any]:
    """Return the attributes of an error as plain JSON; declared ones are encoded by their type."""
    values = {name: one for name, one in dict_of(error).items() if name != RECORDED}
    fields = asked(lambda: frozenset(getattr(type(error), "__dataclass_fields__", ())), frozenset[str]())
    for name in fields - values.keys():
        value = asked(partial(getattr, error, name), fields)
        if value is not fields:
            values[name] = value
    declares = asked(lambda: declared_names(type(error)), frozenset[str]())
    data: dict[str, Any] = {}
    for name, value in values.items():
        if name in declares:
            value = asked(partial(declared, value), value)
        data[clean(str(name))] = plain(value, lossy)
    return data


def plain(value: Any, lossy: list[str], depth: int = 0) -> Any:
    """Return a plain JSON value; one that is none is replaced by its `repr` and listed in `lossy`."""
    if value is None or type(value) is bool or (type(value) is int and is_writable(value)):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is str and clean(value) == value:
        return value
    if type(value) in (list, tuple) and depth < _DEPTH_MAX:
        return [plain(one, lossy, depth + 1) for one in value]
    if type(value) is dict and depth < _DEPTH_MAX and all(type(key) is str for key in value):
        return {clean(key): plain(one, lossy, depth + 1) for key, one in value.items()}
    return _degraded(value, lossy)


def _degraded(value: Any, lossy: list[str]) -> str:
    lossy.append(type(value).__name__)
    return shown(value)
