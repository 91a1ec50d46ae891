"""Texts that Postgres can store.

Lives here: `is_text`, for names and ids that people choose. May not: JSON (codec.py). Design: a text with a
NUL character or half of a surrogate pair cannot be sent, so it is refused where it is given; in a turn it
would cost the whole report.
"""

from __future__ import annotations

from typing import TypeGuard


def is_text(value: object, bytes_max: int | None = None) -> TypeGuard[str]:
    """Return whether a value is a text that can be stored.

    Args:
        value: any object.
        bytes_max: the most bytes, if they are limited; then it has one at least.
    """
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return False
    return bytes_max is None or 1 <= size <= bytes_max
