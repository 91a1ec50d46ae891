"""Whether a value is large, before it is written down.

Lives here: `LARGE_BYTES`, `is_large`. May not: limits on values (codec.py). Design: most values are a number,
a short text or a few of them, which a look at their class shows. Of others the parts are counted until they
are too many, so a large value costs no more than one that is nearly large.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LARGE_BYTES = 256 << 10
"""A value of so many bytes or more is written, checked and sent beside everything else."""

_PARTS_MAX = 2000
_TEXTS = (str, bytes, bytearray, memoryview)
_LISTS = (list, tuple, set, frozenset)
_SMALL = frozenset({int, float, bool, complex, type(None)})


def is_large(value: Any) -> bool:
    """Whether the JSON text of a value may have `LARGE_BYTES` or more, or takes as long to write.

    An object that hides what it has is taken for small.
    """
    kind = type(value)
    if kind in _SMALL:
        return False
    if kind is str:
        return len(value) >= LARGE_BYTES
    try:
        return _outgrows(value)
    except BaseException:  # boundary to user code: its classes may do anything
        return False


def _outgrows(value: Any) -> bool:
    size, parts, left = 0, 1, [value]
    while left:
        one = left.pop()
        if isinstance(one, _TEXTS):
            size += len(one)
            if size >= LARGE_BYTES:
                return True
        elif type(one) not in _SMALL:
            inside, count = _parts(one)
            parts += count
            if parts > _PARTS_MAX:
                return True
            left += inside
    return False


def _parts(value: Any) -> tuple[Iterable[Any], int]:
    """Return the parts of a value, and how many it has, which is known before they are looked at."""
    if isinstance(value, _LISTS):
        return value, len(value)
    if isinstance(value, dict):
        return (part for pair in value.items() for part in pair), 2 * len(value)
    fields = getattr(value, "__dict__", None)
    inside = list(fields.values()) if isinstance(fields, dict) else []
    names = getattr(type(value), "__struct_fields__", None) or getattr(type(value), "__slots__", ())
    if isinstance(names, tuple):
        inside += [getattr(value, name, None) for name in names]
    return inside, len(inside)
