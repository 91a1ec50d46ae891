"""Where in a value something stands: its parts, with labels, and what differs between a value and its copy.

Lives here: walks through values of any library, for equality and for error messages. Not here:
writing and reading (codec.py, shapes.py). The theory: `==` decides whether a value came back, since
that is what users mean by equal, and it is fast. Only where `==` says no are two values compared part by
part: to name the place, and to forgive what `==` cannot see: classes without an `__eq__` of their own, and
times that their zone has twice. Labels are those of msgspec, `$.items[0].price`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

__all__ = ["at", "brief", "difference", "holds_non_finite", "parts", "place", "same"]

_LISTS = (list, tuple, set, frozenset)
_MAX_DEPTH = 100


def same(value: Any, back: Any) -> bool:
    """Tell whether two values are equal; an `__eq__` that fails says no."""
    try:
        return bool(value == back)
    except Exception:  # boundary to user code: __eq__ may do anything
        return False


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a value with their labels; None if it has none that are known."""
    cls = type(value)
    if isinstance(value, Mapping):
        return [(_key(key), part) for key, part in value.items()]
    if hasattr(cls, "_fields") and isinstance(value, tuple):
        return [(f".{name}", part) for name, part in zip(cls._fields, value, strict=False)]
    if isinstance(value, _LISTS):
        return [(f"[{n}]", part) for n, part in enumerate(value)]
    if isinstance(value, msgspec.Struct):
        return _attributes(value, value.__struct_fields__)
    if hasattr(cls, "__pydantic_fields__") and not hasattr(cls, "__dataclass_fields__"):
        return _model_parts(value)
    if dataclasses.is_dataclass(cls):
        return _attributes(value, tuple(one.name for one in dataclasses.fields(cls)))
    return None


def _key(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _attributes(value: Any, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]


def _model_parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a pydantic model: fields, extra fields, private attributes."""
    names = type(value).__pydantic_fields__
    found = [(f".{name}", part) for name, part in vars(value).items() if name in names]
    if [*names] == ["root"]:
        # what stands for itself has no label of its own
        return [("", part) for _, part in found]
    for more in (value.__pydantic_extra__, value.__pydantic_private__):
        found += [(_key(name), part) for name, part in (more or {}).items()]
    return found


def difference(value: Any, back: Any, path: str = "$") -> tuple[str, Any, Any] | None:
    """Return the first place where a copy differs, and what stands there on either side.

    Args:
        value: the original.
        back: its copy.
        path: where both stand.
    """
    if same(value, back) or _forgiven(value, back):
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
    # equal parts, yet not equal: so says an __eq__ that sees more than the parts, and it is believed
    believed = all_equal and "__eq__" in {name for one in type(value).__mro__[:-1] for name in vars(one)}
    return (path, value, back) if believed else None


def _forgiven(value: Any, back: Any) -> bool:
    if type(value) is not type(back):
        return False
    if isinstance(value, datetime):
        # a time that its zone has twice is equal to no time of another zone, not even to the same instant
        aware = value.tzinfo is not None and back.tzinfo is not None
        return aware and value.astimezone(UTC) == back.astimezone(UTC)
    # a Decimal may be NaN, and is written as the text that it is
    return (
        not same(value, value) and not same(back, back) and parts(value) is None and str(value) == str(back)
    )


def holds_non_finite(value: Any, depth: int = 0) -> bool:
    """Tell whether a value is or holds NaN or an infinity."""
    if value is None or isinstance(value, str | int | bytes):
        return False
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = parts(value)
    return depth < _MAX_DEPTH and any(holds_non_finite(part, depth + 1) for _, part in inner or ())


def place(value: Any, wrong: Callable[[Any], bool], path: str = "$", depth: int = 0) -> str:
    """Return the path of the innermost part that is wrong.

    Args:
        value: one that is wrong.
        wrong: tells whether a value, or a part of it, is.
        path: where the value stands.
        depth: how deep that is; the search ends at some depth.
    """
    inner = parts(value) if depth < _MAX_DEPTH else None
    for label, part in inner or ():
        if wrong(part):
            return place(part, wrong, path + label, depth + 1)
    return path


def at(path: str) -> str:
    """Return how an error says where; nothing for the whole value."""
    return "" if path == "$" else f" - at `{path}`"


def brief(value: Any) -> str:
    """Return a value as it is shown in an error."""
    try:
        text = repr(value)
    except Exception:  # boundary to user code: __repr__ may do anything
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
