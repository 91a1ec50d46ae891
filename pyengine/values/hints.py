"""What an annotation is made of: the types of a class's fields, and what msgspec would get wrong.

Lives here: looking at annotations. Not here: writing and reading values (shapes.py). The
theory: msgspec is fast and reads nearly every annotation as people mean it. `is_native` tells the rest
apart: unions of which JSON cannot tell the members, sets whose items msgspec cannot put in order, dataclasses
and constraints of pydantic, and whatever holds one of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Hashable, Iterable, Mapping, MutableSet, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from pyengine.values.pydantic_models import is_constrained, is_model, is_special

__all__ = [
    "SETS",
    "bare",
    "class_of",
    "field_types",
    "has_fields",
    "identity",
    "is_blind",
    "is_named_tuple",
    "is_native",
]

SETS = (set, frozenset, Set, MutableSet)
# alone in a set, values of these have an order that msgspec finds
_ORDERED = (str, int, float, bool, bytes, datetime, date, time, timedelta, Decimal, UUID)


def class_of(annotation: Any) -> Any:
    """Return the class of an annotation: itself, or what is subscripted."""
    return get_origin(annotation) or annotation


def is_named_tuple(cls: Any) -> bool:
    """Tell whether a class is a NamedTuple."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def has_fields(cls: Any) -> bool:
    """Tell whether a class has annotated fields that msgspec reads."""
    if not isinstance(cls, type):
        return False
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or _is_tuple_or_dict(cls)


def _is_tuple_or_dict(cls: type) -> bool:
    return is_named_tuple(cls) or typing.is_typeddict(cls)


def is_blind(annotation: Any) -> bool:
    """Tell whether `==` may overlook a field of a value: a class says so, or has an `__eq__` of its own.

    Raises:
        NameError: an annotation of a field cannot be resolved.
    """
    return "blind" in _looked(annotation)


def _overlooks(cls: type) -> bool:
    if dataclasses.is_dataclass(cls) and not all(one.compare for one in dataclasses.fields(cls)):
        return True
    owner, found = next((one, vars(one)["__eq__"]) for one in cls.__mro__ if "__eq__" in vars(one))
    library = owner.__module__.split(".")[0]
    # what dataclasses generate has no file
    generated = getattr(getattr(found, "__code__", None), "co_filename", "") == "<string>"
    return not generated and library not in ("builtins", "msgspec", "pydantic")


def bare(annotation: Any) -> Any:
    """Return an annotation without what says nothing about its values: aliases, NewType, Required, notes."""
    while True:
        origin = get_origin(annotation)
        wraps = origin is Annotated and not is_constrained(annotation)
        if wraps or origin in (typing.Required, typing.NotRequired, typing.Final):
            annotation = get_args(annotation)[0]
        elif hasattr(origin, "__value__"):
            # type Pair[T] = tuple[T, T], subscripted
            annotation = _bound(origin.__value__, dict(zip(origin.__type_params__, get_args(annotation))))  # noqa: B905
        elif hasattr(annotation, "__value__") and hasattr(annotation, "__type_params__"):
            annotation = annotation.__value__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation


def field_types(annotation: Any) -> dict[str, Any]:
    """Return the annotation of each field of a class, with type variables put in.

    Raises:
        NameError: one cannot be resolved.
    """
    cls = class_of(annotation)
    hints = get_type_hints(cls, include_extras=True)
    bindings: dict[type, dict[Any, Any]] = {}
    _bind(annotation, {}, bindings)
    owners: dict[str, type] = {}
    for base in reversed(cls.__mro__):
        owners |= dict.fromkeys(inspect.get_annotations(base), base)
    return {
        name: _bound(hint, bindings.get(owners.get(name, cls), {}))
        for name, hint in hints.items()
        if get_origin(hint) is not typing.ClassVar and hint is not typing.ClassVar
    }


def _bind(annotation: Any, outer: dict[Any, Any], bindings: dict[type, dict[Any, Any]]) -> None:
    """Note what each class of a hierarchy has in the place of its type variables."""
    cls = class_of(annotation)
    given = [_bound(one, outer) for one in get_args(annotation)]
    own = dict(zip(getattr(cls, "__parameters__", ()), given, strict=False))
    bindings[cls] = own
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        if isinstance(class_of(base), type) and class_of(base) not in (object, typing.Generic):
            _bind(base, own, bindings)


def _bound(hint: Any, variables: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    names = getattr(hint, "__parameters__", ()) if get_args(hint) else ()
    return hint[tuple(variables.get(one, Any) for one in names)] if names else hint


def is_native(annotation: Any) -> bool:
    """Tell whether msgspec can write and read an annotation alone, with a hook for models.

    Raises:
        NameError: an annotation of a field cannot be resolved.
    """
    found = _looked(annotation)
    if "other" in found or {"ordered", "keys"} <= found:
        return False
    try:
        msgspec.json.Decoder(annotation)
    except TypeError as error:
        return "unions may not" not in str(error) and "unions containing" not in str(error)
    except RecursionError:
        # an alias that names itself: type Json = dict[str, Json] | list[Json] | str
        return False
    return True


def identity(annotation: Any) -> Hashable:
    """Return what stands for an annotation in a set or dict; notes in `Annotated` may have no hash."""
    try:
        hash(annotation)
    except TypeError:
        return repr(annotation)
    return typing.cast("Hashable", annotation)


def _looked(annotation: Any) -> set[str]:
    found: set[str] = set()
    _look(annotation, found, set())
    return found


def _look(annotation: Any, found: set[str], seen: set[Hashable]) -> None:
    """Note what an annotation holds.

    "other" is not for msgspec alone; nor are both "ordered", what is written in order, and "keys" that are no
    text, since what is written in order has none. "blind" is what may have fields that `==` overlooks.
    """
    if is_constrained(annotation):
        found.add("other")
        return
    annotation = bare(annotation)
    cls, key = class_of(annotation), identity(annotation)
    if cls is Literal or key in seen:
        return
    seen.add(key)
    if isinstance(cls, type):
        if is_special(cls) or (is_model(cls) and dataclasses.is_dataclass(cls)):
            found.add("other")
        elif is_model(cls):
            found.add("ordered")
            return
        elif issubclass(cls, Enum) and not _is_plain_enum(cls):
            found.add("other")
        elif has_fields(cls):
            found |= {"blind"} if _overlooks(cls) else set()
            _look_all(field_types(annotation).values(), found, seen)
    args = get_args(annotation)
    if cls in SETS:
        found.add("ordered")
        if args and bare(args[0]) not in _ORDERED:
            found.add("other")
    elif cls is dict or (isinstance(cls, type) and issubclass(cls, Mapping)):
        found |= {"keys"} if args and bare(args[0]) is not str else set()
    _look_all(args, found, seen)


def _is_plain_enum(cls: type[Enum]) -> bool:
    kinds = {str if isinstance(one.value, str) else type(one.value) for one in cls}
    return kinds <= {str} or kinds <= {int}


def _look_all(annotations: Iterable[Any], found: set[str], seen: set[Hashable]) -> None:
    for one in annotations:
        _look(one, found, seen)
