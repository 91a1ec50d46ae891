"""What a database answers, told by every driver alike.

What lives here: errors of the database and of the way to it as errors of ours, whether the schema fits this
library, and how messages call a database. What may not: a driver, SQL text; who has a driver's error takes it
apart first (connection.py, client/caller_connection.py, client/psycopg_transport.py). The theory: what
happened is known by SQLSTATE, so the same thing is the same error, whoever brought the news.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyengine.database.statements.procedures import WORKER_PROTOCOL
from pyengine.errors import EngineError, InvalidRequest, SchemaMismatch, Unavailable, from_sqlstate

__all__ = [
    "NO_SCHEMA",
    "answered",
    "named",
    "no_schema",
    "readable",
    "refuse_version",
    "refuses",
    "unreachable",
]

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")

# libpq tells no SQLSTATE of a connection that was refused; these refusals pass
_PASSING = ("starting up", "shutting down", "too many", "connection slots", "recovery")

NO_SCHEMA = frozenset({"3F000", "42883", "42P01"})
"""SQLSTATEs by which a database says that it has no schema of ours: no such schema, function, table."""


def answered(
    where: str, code: str | None, message: str, detail: str | None = None, hint: str | None = None
) -> EngineError:
    """Return the engine's error for one that the database answered, whichever driver tells it.

    Args:
        where: name of the database, without a password.
        code: SQLSTATE.
        message: primary message.
        detail: DETAIL, if any.
        hint: HINT, if any.
    """
    known = from_sqlstate(code, message, detail, hint)
    if isinstance(known, Unavailable):
        return Unavailable(f"{where} is not available: {message}")
    if code is not None and code.startswith("22"):
        # what its type does not take: a NUL in a text, a number out of range, no text where one belongs
        return InvalidRequest(f"{where} does not take that: {message}", detail=detail)
    if type(known) is EngineError:
        return EngineError(f"{where}: {message} (SQLSTATE {code})", detail=detail, hint=hint)
    return known


def unreachable(where: str, reason: str) -> Unavailable:
    """Return the error for a database that did not answer."""
    return Unavailable(
        f"{where} cannot be reached: {reason}", hint="is the server running, and the address right?"
    )


def refuses(reason: str) -> bool:
    """Return whether libpq tells of a server that does not want us, however long we wait."""
    return "FATAL: " in reason and not any(words in reason for words in _PASSING)


def no_schema(where: str) -> SchemaMismatch:
    """Return the error for a database that has no schema of ours."""
    return SchemaMismatch(f"{where} has no schema of this engine", hint="type: pyengine db init")


def refuse_version(where: str, row: Any) -> None:
    """Check what `VERSION` answered.

    Raises:
        SchemaMismatch: schema and library are of different times.
    """
    lowest, highest = row["lowest_worker_protocol"], row["highest_worker_protocol"]
    if highest < WORKER_PROTOCOL:
        raise SchemaMismatch(
            f"the schema of {where} is older than this library "
            f"(it serves worker protocol {highest}, the library speaks {WORKER_PROTOCOL})",
            hint="type: pyengine db migrate",
        )
    if lowest > WORKER_PROTOCOL:
        raise SchemaMismatch(
            f"the schema of {where} is newer than this library "
            f"(it serves worker protocols from {lowest} on, the library speaks {WORKER_PROTOCOL})",
            hint="type: pip install -U pyengine",
        )


def readable(dsn: str) -> bool:
    """Return whether host and port stand in a URL where they are expected.

    A password with / ? or # in it is cut, and its parts stand in their place.
    """
    try:
        netloc = urlsplit(dsn).netloc
    except ValueError:  # a bracket that is not closed
        return False
    hosts = netloc.rpartition("@")[2].split(",")
    return ("@" in netloc or "@" not in dsn) and all(_HOST.fullmatch(host) for host in hosts)


def named(dsn: str) -> str:
    """Return how messages call the database: its name and host, never a user's password."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "the database"
    if "@" in (parts.path + parts.fragment if "@" in parts.netloc else dsn):
        return "the database"
    query = parse_qs(parts.query)
    hosts = parts.netloc.rpartition("@")[2] or query.get("host", [""])[0]
    host = unquote(hosts) or os.environ.get("PGHOST", "localhost")
    name = unquote(parts.path.lstrip("/")) or query.get("dbname", [""])[0] or os.environ.get("PGDATABASE", "")
    return f"database {name!r} on {host}" if name else f"the database on {host}"
