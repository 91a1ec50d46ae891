"""Results of the statements of a transaction, as JSON and back.

Lives here: `Record`, one row as workflow code sees it; the JSON form of the values that asyncpg returns, and
of the errors that the database raises. May not: a connection, a journal. The theory: code must see the same
result live and in replay, so a result goes through its JSON form in both. A value that JSON lacks carries the
name of its type; a type without a form here is refused at once.
"""

from __future__ import annotations

import base64
import ipaddress
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, overload
from uuid import UUID

import asyncpg

from pyengine.core.values.sizes import is_large
from pyengine.errors import EncodeError


class Record:
    """One row: `row["name"]`, `row[0]`, `dict(row)`; iterating gives the values.

    Equal to another row with the same columns and values, and to the tuple of its values.
    """

    __slots__ = ("_columns", "_values")

    def __init__(self, columns: Sequence[str], values: Sequence[Any]) -> None:
        self._columns = tuple(columns)
        self._values = tuple(values)

    @overload
    def __getitem__(self, key: str | int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            try:
                return self._values[self._columns.index(key)]
            except ValueError:
                raise KeyError(key) from None
        return self._values[key]

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._columns

    def values(self) -> tuple[Any, ...]:
        """Return the values."""
        return self._values

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return pairs of column and value."""
        return zip(self._columns, self._values, strict=True)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a column, or a default where there is no such column."""
        return self[key] if key in self._columns else default

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Record):
            return self._columns == other._columns and self._values == other._values
        return self._values == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"<Record {' '.join(f'{name}={value!r}' for name, value in self.items())}>"


# -- values

_PLAIN = (bool, int, str)
# by type: its name in the form, how it is written, how it is read
_FORMS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "interval",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    asyncpg.BitString: ("bits", asyncpg.BitString.as_string, asyncpg.BitString),
    ipaddress.IPv4Address: ("ipv4", str, ipaddress.IPv4Address),
    ipaddress.IPv6Address: ("ipv6", str, ipaddress.IPv6Address),
    ipaddress.IPv4Interface: ("ipv4i", str, ipaddress.IPv4Interface),
    ipaddress.IPv6Interface: ("ipv6i", str, ipaddress.IPv6Interface),
    ipaddress.IPv4Network: ("ipv4n", str, ipaddress.IPv4Network),
    ipaddress.IPv6Network: ("ipv6n", str, ipaddress.IPv6Network),
}
_READERS: dict[str, Callable[[Any], Any]] = {name: read for name, _, read in _FORMS.values()} | {
    "float": float,
    "uuid": UUID,
    "dict": lambda value: {name: read_value(one) for name, one in value.items()},
    "row": lambda value: Record(value[0], [read_value(one) for one in value[1]]),
    "range": lambda value: asyncpg.Range(
        read_value(value[0]), read_value(value[1]), lower_inc=value[2], upper_inc=value[3], empty=value[4]
    ),
}


def value_json(value: Any) -> Any:
    """Return a value as `msgspec.json` can write it.

    Raises:
        EncodeError: its type has no form here.
    """
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if type(value) in (list, tuple):
        return [value_json(one) for one in value]
    if isinstance(value, asyncpg.Record):
        return {"$": "row", "v": [list(value.keys()), [value_json(one) for one in value.values()]]}
    if isinstance(value, dict):
        return {"$": "dict", "v": {str(name): value_json(one) for name, one in value.items()}}
    if isinstance(value, asyncpg.Range):
        ends = [value_json(value.lower), value_json(value.upper)]
        return {"$": "range", "v": [*ends, value.lower_inc, value.upper_inc, value.isempty]}
    if isinstance(value, UUID):
        return {"$": "uuid", "v": str(value)}
    form = _FORMS.get(type(value))
    if form is None:
        raise EncodeError(
            f"a statement of a transaction returned a {type(value).__module__}.{type(value).__qualname__}, "
            "which the journal has no form for",
            hint="cast it in the statement: select value::text",
        )
    return {"$": form[0], "v": form[1](value)}


def read_value(written: Any) -> Any:
    """Return the value of a form that `value_json` made."""
    if isinstance(written, list):
        return [read_value(one) for one in written]
    if isinstance(written, dict):
        return _READERS[written["$"]](written["v"])
    return written


def are_large(rows: Sequence[Any]) -> bool:
    """Whether rows are large together, as `is_large` finds it: records hide what they have."""
    return is_large(rows) or is_large([tuple(row) for row in rows])


def records_json(rows: Sequence[Any]) -> dict[str, Any]:
    """Return rows as `msgspec.json` can write them.

    Args:
        rows: asyncpg's records, of one statement.

    Raises:
        EncodeError: the type of a value has no form here.
    """
    columns = list(rows[0].keys()) if rows else []
    return {"columns": columns, "rows": [[value_json(one) for one in row.values()] for row in rows]}


def read_records(written: dict[str, Any]) -> list[Record]:
    """Return the rows of a form that `records_json` made."""
    columns = written["columns"]
    return [Record(columns, [read_value(one) for one in row]) for row in written["rows"]]


# -- errors

_FIELDS = {
    "severity": "S",
    "sqlstate": "C",
    "message": "M",
    "detail": "D",
    "hint": "H",
    "schema_name": "s",
    "table_name": "t",
    "column_name": "c",
    "data_type_name": "d",
    "constraint_name": "n",
}


def error_fields(error: asyncpg.PostgresError) -> dict[str, str]:
    """Return the fields of a database error, by their letters in the protocol of Postgres."""
    # an error that the driver raised itself, of an argument that it cannot write, has its sentence in `args`
    fields = {"message": str(error)} | error.as_dict()
    return {letter: str(fields[name]) for name, letter in _FIELDS.items() if fields.get(name) is not None}


def error_of(fields: dict[str, str]) -> asyncpg.PostgresError:
    """Return the error with these fields, of asyncpg's class for its SQLSTATE."""
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(fields)
    return error
