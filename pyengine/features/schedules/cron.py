"""The flaws of a cron expression, as far as its text alone shows.

Lives here: `flaw_of`, so that an error stands at the decorator and not at the start of a worker. May not: the
instants of an expression; SQL computes them, and has the last word (sql/logic/features/75_schedules). Design:
what this refuses SQL refuses too; it passes some that SQL refuses, such as a day that never comes.
"""

from __future__ import annotations

import re
from typing import Final

HINT: Final = (
    "five fields, minute hour day month weekday, or six with the second first; names have three letters; "
    "L, W, # and H are not supported: look at the day in the workflow"
)
"""The forms that a schedule takes."""

_MONTHS: Final = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_NO_NAMES: Final[list[str]] = []
_FIELDS: Final = (
    ("second", 0, 59, _NO_NAMES),
    ("minute", 0, 59, _NO_NAMES),
    ("hour", 0, 23, _NO_NAMES),
    ("day of month", 1, 31, _NO_NAMES),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_WORDS: Final = frozenset(["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])
_ITEM: Final = re.compile(r"([*?]|[0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?(?:/[0-9]{1,4})?")
_BLANKS: Final = " \t\n\r"


def flaw_of(cron: str) -> str | None:
    """Return what is wrong with an expression, or None."""
    text = cron.strip(_BLANKS)
    if text.lower() in _WORDS:
        return None
    parts = re.split(f"[{_BLANKS}]+", text)
    if len(parts) not in (5, 6):
        return f"has {len(parts)} fields" if text else "is empty"
    for part, (field, low, high, names) in zip(parts, _FIELDS[-len(parts) :], strict=True):
        for item in part.split(","):
            match = _ITEM.fullmatch(item)
            if match is None or not all(_is_value(value, names) for value in match.groups()):
                return f"{field}: {item!r} is not understood"
            if not all(_is_within(value, low, high) for value in match.groups()):
                return f"{field}: {item!r} goes beyond {low} to {high}"
    return None


def _is_value(value: str | None, names: list[str]) -> bool:
    if value is None or value in ("*", "?") or value.upper() in names:
        return True
    return value.isascii() and value.isdecimal() and len(value) <= 3


def _is_within(value: str | None, low: int, high: int) -> bool:
    return value is None or not value.isdecimal() or low <= int(value) <= high
