"""Paths within values: the parts of a value with their labels, and the first difference of a copy.

Lives here: walks through values of any library, for equality and for error messages, and the hints what to
write in place of a part. May not: encoding and decoding (codec.py, shapes.py). The theory: `==` decides
whether a value came back, since that is what users mean by equal, and it is fast. Only values that are not
`==` are compared part by part: to name the path, and to accept copies that `==` cannot recognise: classes
without an `__eq__`, and ambiguous times of a zone. Paths are written as msgspec does, `$.items[0].price`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

_LISTS = (list, tuple, set, frozenset)
_MAX_DEPTH = 100
PLAIN_JSON = "plain JSON (str keys, lists, numbers)"
"""Every annotation can read it."""


def same(value: Any, back: Any) -> bool:
    """Whether two values are equal; false if `__eq__` raises."""
    try:
        return bool(value == back)
    except BaseException:  # boundary to user code: __eq__ may do anything
        return False


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a value with their labels; None for an atom or an unknown class."""
    cls = type(value)
    if isinstance(value, Mapping):
        return [(key_label(key), part) for key, part in value.items()]
    if hasattr(cls, "_fields") and isinstance(value, tuple):
        return [(f".{name}", part) for name, part in zip(cls._fields, value, strict=False)]
    if isinstance(value, _LISTS):
        return [(f"[{n}]", part) for n, part in enumerate(value)]
    if isinstance(value, msgspec.Struct):
        return _attributes(value, value.__struct_fields__)
    if hasattr(cls, "__pydantic_fields__") and not hasattr(cls, "__dataclass_fields__"):
        return _model_parts(value)
    if hasattr(cls, "__attrs_attrs__"):
        return _attributes(value, tuple(one.name for one in cls.__attrs_attrs__))
    if dataclasses.is_dataclass(cls):
        return _attributes(value, tuple(one.name for one in dataclasses.fields(cls)))
    return None


def key_label(key: Any) -> str:
    """Return how a path names the value of a key."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _attributes(value: Any, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]


def _model_parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a pydantic model: fields, extra fields, private attributes."""
    names = type(value).__pydantic_fields__
    found = [(f".{name}", part) for name, part in vars(value).items() if name in names]
    if [*names] == ["root"]:
        # a root model is written as its root, which has no label
        return [("", part) for _, part in found]
    for more in (value.__pydantic_extra__, value.__pydantic_private__):
        found += [(key_label(name), part) for name, part in (more or {}).items()]
    return found


def difference(value: Any, back: Any, path: str = "$") -> tuple[str, Any, Any] | None:
    """Return the first path at which a copy differs, and both parts there; None if they are equal.

    Args:
        value: the original.
        back: its copy.
        path: their path.
    """
    if same(value, back) or _is_accepted(value, back):
        return None
    mine, theirs = parts(value), parts(back)
    named = dict(theirs or ())
    if type(value) is not type(back) or isinstance(value, set | frozenset):
        return path, value, back
    if mine is None or theirs is None or len(mine) != len(theirs):
        return path, value, back
    all_equal = True
    for label, part in mine:
        if label not in named:
            return path, value, back
        if not same(part, named[label]):
            all_equal = False
            found = difference(part, named[label], path + label)
            if found is not None:
                return found
    # all parts are equal, yet the values are not: an __eq__ of the class that compares more is right
    has_own = "__eq__" in {name for one in type(value).__mro__[:-1] for name in vars(one)}
    return (path, value, back) if all_equal and has_own else None


def _is_accepted(value: Any, back: Any) -> bool:
    if type(value) is not type(back):
        return False
    if isinstance(value, datetime):
        # an ambiguous time is equal to no time of another zone, not even to the same instant
        aware = value.tzinfo is not None and back.tzinfo is not None
        return aware and value.astimezone(UTC) == back.astimezone(UTC)
    # a Decimal may be NaN, which is written as its text
    return (
        not same(value, value) and not same(back, back) and parts(value) is None and str(value) == str(back)
    )


def holds_non_finite(value: Any, depth: int = 0) -> bool:
    """Whether a value is or holds NaN or an infinity."""
    if value is None or isinstance(value, str | int | bytes):
        return False
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = parts(value)
    return depth < _MAX_DEPTH and any(holds_non_finite(part, depth + 1) for _, part in inner or ())


def innermost(value: Any, wrong: Callable[[Any], bool], path: str = "$", depth: int = 0) -> tuple[str, Any]:
    """Return the path of the innermost wrong part, and the part.

    Args:
        value: a wrong value.
        wrong: whether a value or part is wrong.
        path: path of the value.
        depth: its depth; the search is limited.
    """
    inner = parts(value) if depth < _MAX_DEPTH else None
    for label, part in inner or ():
        if wrong(part):
            return innermost(part, wrong, path + label, depth + 1)
    return path, value


def place(value: Any, wrong: Callable[[Any], bool]) -> str:
    """Return the path of the innermost wrong part of a value."""
    return innermost(value, wrong)[0]


def at(path: str) -> str:
    """Return the suffix of an error that names a path; empty for the whole value."""
    return "" if path == "$" else f" - at `{path}`"


def brief(value: Any) -> str:
    """Return a value as errors show it, at most 60 characters."""
    try:
        text = repr(value)
    except BaseException:  # boundary to user code: __repr__ may do anything
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def instead_of_value(part: Any) -> str:
    """Return the hint for a value that has no JSON.

    Args:
        part: the innermost part of it that has none.
    """
    cls = type(part)  # isinstance would ask the object
    if issubclass(cls, os.PathLike):
        return f"pass str() of the {cls.__name__}, and make a path of it where it is used"
    if issubclass(cls, BaseException):
        return f"raise the {cls.__name__}, or pass its text: str(error)"
    if issubclass(cls, Iterable) and not (issubclass(cls, Mapping) or hasattr(cls, "close")):
        return f"pass list() of the {cls.__name__}"
    return "pass data; connections, files, generators and objects with behaviour stay inside one step"


def instead_of_type(value: Any, mine: Any, theirs: Any, declared: str) -> str:
    """Return the hint for a value that comes back otherwise than its annotation declares it.

    Args:
        value: the value.
        mine: the part that differs.
        theirs: what would come back of it.
        declared: the annotation.
    """
    if type(mine) is not type(theirs) and isinstance(mine, type(theirs)):
        base, given = type(theirs).__name__, type(mine).__name__
        return (
            f"declare what is given: {given}, or {given} | {base}; of {base} only its own fields are written"
        )
    if hasattr(type(value), "__post_init__"):
        name = type(value).__name__
        return (
            f"reading calls {name}.__post_init__ again, on the fields as they are written: it must leave "
            "them so; compute in a property, or in a function that makes the object"
        )
    return (
        f"what {declared} declares is written, and no more: declare all fields, none of them excluded or "
        "private, and let no validator change what was written"
    )
