"""Conditions on the columns of a view, as people type them: ``state=running and workflow~check%``.

Lives here: their grammar, their errors, and their form in SQL. May not: query. A name is looked up among the
columns of the view and a value is a parameter, so no text of the user becomes SQL.

    condition  = all ("or" all)*
    all        = one ("and" one)*
    one        = "(" condition ")" | column operator value
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"

A value is a word or a quoted text, and ``null`` without quotes is no value. ``~`` compares with a pattern of
LIKE. ``tags.region`` is the tag of that name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyengine.errors import InvalidRequest

LONGEST = 4000
DEEPEST = 20
TAG = "tags."
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<operator> != | <= | >= | !~ | [=<>~] )
      | (?P<bracket> [()] )
      | '(?P<single> (?:[^']|'')* )' | "(?P<double> (?:[^"]|"")* )"
      | (?P<word> (?: [^\s()'"=<>~!] | !(?![=~]) )+ )
    )""",
    re.VERBOSE,
)
# the operators that are written otherwise in SQL: of a missing value it is true that it differs
_IN_SQL = {
    "!=": "{} is distinct from {}",
    "~": "{}::text like {}",
    "!~": "({}::text like {}) is not true",
}
_AS_TEXT = ("jsonb", "text[]")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value.

    Args:
        column: its name.
        operator: as it was typed.
        value: the text of the value; None is no value.
        as_text: the column has a type that is compared by its text.
    """

    column: str
    operator: str
    value: str | None
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class All:
    """Conditions that hold together."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Conditions of which one holds."""

    parts: tuple[Condition, ...]


Condition = Comparison | All | Alternatives


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse(text: str, columns: Mapping[str, str]) -> Condition:
    """Read a condition.

    Args:
        text: as it was typed.
        columns: the columns of the view, with their types.

    Raises:
        InvalidRequest: the text is no condition, or names no column.
    """
    if len(text) > LONGEST:
        raise InvalidRequest(f"a condition has at most {LONGEST} characters, this one has {len(text)}")
    return _Parser(text, columns).condition()


def sql(condition: Condition, values: dict[str, Any]) -> str:
    """Return a condition on the row `r` as SQL.

    Args:
        condition: the condition.
        values: gets the values, by the names that the SQL has for them.
    """
    if isinstance(condition, Comparison):
        return _comparison(condition, values)
    word = " and " if isinstance(condition, All) else " or "
    return f"({word.join(sql(part, values) for part in condition.parts)})"


def possible(condition: Condition, column: str, values: frozenset[str]) -> frozenset[str]:
    """Return those of the possible values of a column with which a row can fulfil the condition."""
    if isinstance(condition, All):
        return values.intersection(*(possible(part, column, values) for part in condition.parts))
    if isinstance(condition, Alternatives):
        return values.intersection(
            value for part in condition.parts for value in possible(part, column, values)
        )
    if condition.column != column or condition.operator not in ("=", "!="):
        return values
    return frozenset(one for one in values if (one == condition.value) == (condition.operator == "="))


def _comparison(one: Comparison, values: dict[str, Any]) -> str:
    def parameter(value: str) -> str:
        name = f"where_{len(values)}"
        values[name] = value
        return f"%({name})s"

    if one.column.startswith(TAG):
        place = f"(r.tags ->> {parameter(one.column.removeprefix(TAG))})"
    else:
        # the name is one of the view's own, which are plain
        place = f"r.{one.column}{'::text' if one.as_text else ''}"
    if one.value is None:
        return f"{place} is {'' if one.operator == '=' else 'not '}null"
    return _IN_SQL.get(one.operator, f"{{}} {one.operator} {{}}").format(place, parameter(one.value))


class _Parser:
    """Reads a condition from left to right, one token ahead."""

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self._text = text
        self._columns = columns
        self._tokens = self._read()
        self._next: _Token | None = None
        self._depth = 0
        self._advance()

    def condition(self) -> Condition:
        """Return the whole text as a condition."""
        read = self._alternatives()
        if self._next is not None:
            raise self._wrong("expected and, or, or the end")
        return read

    def _read(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text.rstrip()):
            found = _TOKEN.match(self._text, at)
            if found is None:
                rest = self._text[at:].strip()[:20]
                raise InvalidRequest(f"the quote in {rest!r} of the condition is not closed", hint=_EXAMPLE)
            kind = found.lastgroup or ""
            quote = {"single": "'", "double": '"'}.get(kind, "")
            text = found[kind].replace(2 * quote, quote) if quote else found[kind]
            yield _Token("text" if quote else kind, text, found.start(kind))
            at = found.end()

    def _advance(self) -> None:
        self._next = next(self._tokens, None)

    def _take(self, kinds: tuple[str, ...], expected: str) -> _Token:
        """Return the next token, which has to be of one of these kinds."""
        read = self._next
        if read is None or read.kind not in kinds:
            raise self._wrong(f"expected {expected}")
        self._advance()
        return read

    def _is(self, kind: str, text: str) -> bool:
        return self._next is not None and (self._next.kind, self._next.text.lower()) == (kind, text)

    def _alternatives(self) -> Condition:
        parts = [self._all()]
        while self._is("word", "or"):
            self._advance()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._is("word", "and"):
            self._advance()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self) -> Condition:
        if not self._is("bracket", "("):
            return self._comparison()
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._wrong(f"a condition has at most {DEEPEST} brackets in each other")
        self._advance()
        inner = self._alternatives()
        if not self._is("bracket", ")"):
            raise self._wrong("expected )")
        self._advance()
        self._depth -= 1
        return inner

    def _comparison(self) -> Comparison:
        column = self._column(self._take(("word",), "a column").text)
        operator = self._take(("operator",), f"= != < <= > >= ~ or !~ after {column}").text
        read = self._take(("word", "text"), f"a value after {column} {operator}")
        value = None if (read.kind, read.text.lower()) == ("word", "null") else read.text
        if value is None and operator not in ("=", "!="):
            raise self._wrong("null is compared with = or != only")
        as_text = self._columns.get(column) in _AS_TEXT
        if as_text and operator[0] in "<>":
            raise self._wrong(f"{column} is compared with = != ~ or !~ only")
        return Comparison(column, operator, value, as_text)

    def _column(self, name: str) -> str:
        if name.startswith(TAG) and name != TAG and "tags" in self._columns:
            return name
        if name.lower() in self._columns:
            return name.lower()
        near = difflib.get_close_matches(name.lower(), self._columns, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise InvalidRequest(
            f"no column is named {name[:40]!r}{guess}", hint=f"columns: {', '.join(self._columns)}"
        )

    def _wrong(self, expected: str) -> InvalidRequest:
        at = "the end" if self._next is None else repr(self._text[self._next.at :][:20])
        return InvalidRequest(f"{expected}, at {at} of the condition", hint=_EXAMPLE)


_EXAMPLE = "for example: --where 'state=running and workflow~check%'"
