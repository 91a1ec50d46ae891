"""Errors of the database as errors of this package, the same for every driver.

Lives here: the mapping of errors by SQLSTATE, the check of the schema's version, and the name of a database
in messages. May not: a driver, SQL text. Callers take a driver's error apart first (connection.py,
client/caller_connection.py, client/psycopg_transport.py).
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyengine.core.database.statements.procedures import WORKER_PROTOCOL
from pyengine.errors import (
    NO_RIGHT,
    RIGHTS,
    EngineError,
    InvalidRequest,
    SchemaMismatch,
    Unavailable,
    from_sqlstate,
)

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")

# libpq gives no SQLSTATE of a refused connection; refusals with these texts are temporary
_SEVERAL, _ONE_OF_SEVERAL = "All failures were:", "- host: "
_TEMPORARY = ("starting up", "shutting down", "too many", "connection slots", "recovery")

NO_SCHEMA = frozenset({"3F000", "42883", "42P01"})
"""SQLSTATEs of a database that has no schema of this engine: no such schema, function, table."""

READ_ONLY = "25006"
"""SQLSTATE of a statement that writes, in a transaction that may not, or on a standby."""


def answered(
    where: str, code: str | None, message: str, detail: str | None = None, hint: str | None = None
) -> EngineError:
    """Return the engine's error for one of the database's.

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
        # a value that does not fit its type: a NUL in a text, a number out of range
        return InvalidRequest(f"{where} does not take that: {message}", detail=detail)
    if type(known) is EngineError:
        hint = hint or (RIGHTS if code == NO_RIGHT else None)
        return EngineError(f"{where}: {message} (SQLSTATE {code})", detail=detail, hint=hint)
    return known


def unreachable(where: str, reason: str) -> Unavailable:
    """Return the error for a database that did not answer."""
    return Unavailable(
        f"{where} cannot be reached: {reason}", hint="is the server running, and the address right?"
    )


def standby(where: str) -> Unavailable:
    """Return the error for a server that only reads; another one may be the primary, now or soon."""
    return Unavailable(
        f"{where} is a standby, which only reads",
        hint="name the primary, or all servers of the cluster: postgresql://one,two/name",
    )


def refuses(reason: str) -> bool:
    """Return whether a reason of libpq is a permanent refusal, by each of the servers that it tried."""
    each = reason.partition(_SEVERAL)[2].split(_ONE_OF_SEVERAL)[1:] or [reason]
    return all("FATAL: " in one and not any(text in one for text in _TEMPORARY) for one in each)


def no_schema(where: str) -> SchemaMismatch:
    """Return the error for a database that has no schema of this engine."""
    return SchemaMismatch(f"{where} has no schema of this engine", hint="type: pyengine db init")


def refuse_version(where: str, row: Any) -> None:
    """Check the row of `VERSION`.

    Raises:
        SchemaMismatch: schema and library have no common worker protocol.
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
            hint="type: pip install -U pyengine-durable",
        )


def readable(dsn: str) -> bool:
    """Return whether a URL has host and port in their places, which an unquoted / ? # in a password moves."""
    try:
        netloc = urlsplit(dsn).netloc
    except ValueError:  # a bracket that is not closed
        return False
    hosts = netloc.rpartition("@")[2].split(",")
    return ("@" in netloc or "@" not in dsn) and all(_HOST.fullmatch(host) for host in hosts)


def named(dsn: str) -> str:
    """Return the database's name in messages: its name and host, never a password."""
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
