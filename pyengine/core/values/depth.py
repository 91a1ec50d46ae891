"""The limit on the nesting of JSON.

Lives here: `is_deep`, the check that the database makes of every payload
(sql/logic/core/10_base/70_payloads.sql), and `read_plain`, which reads what was written without that check.
May not: a parser; it counts brackets.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_DEPTH = 500
"""Levels; many readers fail at a thousand."""

_STRINGS = re.compile(rb'"[^"]*"')
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_SIGNS = bytes(sorted(set(range(256)) - set(b'[]{}"')))


def is_deep(text: bytes) -> bool:
    """Return whether a JSON text is nested deeper than `MAX_DEPTH` levels."""
    # each level has a bracket
    if len(text) <= 2 * MAX_DEPTH or text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _brackets(text)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        # remove the innermost level
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def read_plain(text: str) -> Any:
    """Return a JSON text as a value, or the text itself if it is nested too deeply to be read."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        return text


def _brackets(text: bytes) -> bytes:
    """Return the brackets of a JSON text, as square ones, without those in strings.

    Every step but the last is one pass of a fast function, and the last finds strings with brackets only.
    """
    if b"\\" in text:
        # a string ends at a quote that is not escaped
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = text.translate(_AS_SQUARE, _NO_SIGNS)
    # an empty string, or the end of one and the beginning of the next, which become one
    signs = signs.replace(b'""', b"")
    return _STRINGS.sub(b"", signs) if b'"' in signs else signs
