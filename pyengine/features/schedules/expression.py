"""The form of a schedule's expressions, checked where code writes them.

Lives here: `check_expression`. May not: instants; SQL computes them, and refuses the rest
(sql/logic/features/75_schedules). Design: what this refuses SQL refuses too, so an
error names the decorator instead of the start of a worker. A test holds the two together.
"""

from __future__ import annotations

import re

from pyengine.errors import InvalidRequest

_MONTHS = [
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
]
_WEEKDAYS = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _WEEKDAYS),
)
_WORDS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_ITEM = re.compile(r"(?P<low>[*?]|[0-9]+|[a-z]+)(-(?P<high>[0-9]+|[a-z]+))?(/[0-9]{1,4})?", re.ASCII)
_LAST_DAY = re.compile(r"l(-([0-9]|[12][0-9]|30))?", re.ASCII)
_NTH_WEEKDAY = re.compile(r"([0-7]|[a-z]{3,9})(l|#[1-5])", re.ASCII)
_WORKDAY = re.compile(r"(l|[0-9]{1,2})w", re.ASCII)
_JENKINS = re.compile(r"h($|[(/])", re.ASCII)
_SPACES = re.compile(r"[ \t\n\r]+")


def check_expression(text: str) -> None:
    """Refuse what cannot be an expression of a schedule: cron, "every ...", "at ...", or several with ";".

    Raises:
        InvalidRequest: it names the part that is wrong.
    """
    parts = [one.strip() for one in text.split(";")]
    if len(parts) > 1 and "" in parts:
        raise InvalidRequest(f"cron {text!r}: one of the expressions is empty")
    for one in parts:
        words = _SPACES.split(one)
        # an interval is read by the server alone
        if words[0].lower() in ("every", "at") or (len(words) == 1 and one.lower() in _WORDS):
            continue
        _check_cron(one, words)


def _check_cron(text: str, words: list[str]) -> None:
    if text.startswith("@") and len(words) < 5:
        raise InvalidRequest(
            f"cron {text!r} is none of {', '.join(_WORDS)}",
            hint="an interval is written without @: every 90 minutes",
        )
    if len(words) == 7:
        raise InvalidRequest(
            f"cron {text!r} has a year, the seventh field, which is not understood",
            hint="write six fields, and the begin and the end of the schedule",
        )
    if len(words) not in (5, 6):
        raise InvalidRequest(
            f"cron {text!r} has {len(words)} fields",
            hint="five (minute hour day month weekday), or six with the second first; "
            'also "every 90 minutes", "at 2026-03-01 09:00", "@daily"',
        )
    for word, (field, low, high, names) in zip(reversed(words), reversed(_FIELDS), strict=False):
        for item in word.split(","):
            if not _fits(item.lower(), field, low, high, names):
                raise InvalidRequest(
                    f"cron {text!r}: {field} {item!r} is not understood",
                    hint=_instead(item.lower(), field)
                    or f"numbers from {low} to {high}"
                    + (f" or names like {names[0][:3]}" if names else "")
                    + ", lists (1,2), ranges (1-5), steps (*/2)",
                )


def _instead(item: str, field: str) -> str | None:
    """Return what to write in the place of words of other systems, as `durable._fail_cron_item` does."""
    if _WORKDAY.fullmatch(item):
        return "W, the nearest workday, is not offered: write MON-FRI, and look at the date in the workflow"
    if _JENKINS.match(item):
        return "H is a word of Jenkins: write a value; a jitter spreads the starts"
    if field.startswith("day") and ("l" in item or "#" in item):
        return (
            "the last day of a month is L, or L-3, in its field; "
            "of weekdays FRIL is the last Friday, FRI#2 the second"
        )
    return None


def _fits(item: str, field: str, low: int, high: int, names: list[str]) -> bool:
    if field == "day of month" and _LAST_DAY.fullmatch(item):
        return True
    if field == "day of week" and (nth := _NTH_WEEKDAY.fullmatch(item)):
        return _value(nth[1], low, names) is not None
    match = _ITEM.fullmatch(item)
    if match is None:
        return False
    bounds = [
        _value(part, low, names) for part in (match["low"], match["high"]) if part not in ("*", "?", None)
    ]
    return all(bound is not None and low <= bound <= high for bound in bounds)


def _value(text: str, low: int, names: list[str]) -> int | None:
    if text.isdigit():
        return int(text)
    for number, name in enumerate(names, low):
        if text in (name, name[:3]):
            return number
    return None
