"""The limit on the nesting of JSON.

Lives here: `is_deep`, the check that the database makes of every payload (sql/logic/10_base/70_payloads.sql).
May not: a parser; it counts brackets.
"""

from __future__ import annotations

import re

__all__ = ["MAX_DEPTH", "is_deep"]

MAX_DEPTH = 500
"""Levels; many readers fail at a thousand."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


def is_deep(text: bytes) -> bool:
    """Return whether a JSON text is nested deeper than `MAX_DEPTH` levels."""
    # each level has a bracket
    if len(text) <= 2 * MAX_DEPTH or text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRINGS.sub(b"", text).translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        # remove the innermost level
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
