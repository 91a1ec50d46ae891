"""How deep JSON may be nested.

Lives here: `is_deep`, which tells of a JSON text what the database asks of every payload (15_payloads).
Not here: a parser; it counts brackets.
"""

from __future__ import annotations

import re

__all__ = ["MAX_DEPTH", "is_deep"]

MAX_DEPTH = 500
"""Levels; readers fail at a thousand, mostly."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ROUND = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(sorted(set(range(256)) - set(b"[]{}")))


def is_deep(text: bytes) -> bool:
    """Return whether a JSON text is nested deeper than `MAX_DEPTH` levels."""
    # so many levels have so many brackets
    if len(text) <= 2 * MAX_DEPTH or text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRINGS.sub(b"", text).translate(_ROUND, _OTHERS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        # what has nothing in it goes: one level from within
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
