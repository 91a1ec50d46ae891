"""A verb of ours on a connection of the caller's, inside the transaction that is open there.

What lives here: which connections and sessions are taken (`ask`, `ask_now`), how a procedure is run on each,
and the check of what it is given. What may not: a commit, a rollback, a savepoint, a setting, a close; the
connection is the caller's before and afterwards. No driver but asyncpg is imported: whoever has an object of
another one has imported it. The theory: the caller's transaction is the transaction. What the verb wrote, and
its hint, become visible when the caller commits; a rollback leaves nothing of either. A request that is wrong
in itself is refused before it leaves, because an error of the database ends the caller's transaction.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NoReturn

import asyncpg

from pyengine.database.connection import mapped
from pyengine.database.error_mapping import NO_SCHEMA, answered, no_schema, unreachable
from pyengine.database.statements.procedures import Procedure
from pyengine.errors import EngineError, InvalidRequest

__all__ = ["ask", "ask_now", "checked", "psycopg_error", "unwritable"]

_WHERE = "the database of your connection"
_ASYNCPG = (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)
_ASYNC = (
    ("psycopg", "AsyncConnection"),
    ("sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection", "async_scoped_session"),
)
_DJANGO = (
    ("django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django.utils.connection", "ConnectionProxy"),
)
_BLOCKING = (
    ("psycopg", "Connection"),
    ("sqlalchemy", "Connection"),
    ("sqlalchemy.orm", "Session", "scoped_session"),
    *_DJANGO,
)
_TAKEN = "asyncpg, psycopg, or an SQLAlchemy session or connection over one of them"
_SURROGATES = re.compile("[\ud800-\udfff]")
_INTEGERS = {"integer": 1 << 31, "bigint": 1 << 63}
_CLASSES: dict[str, type] = {"boolean": bool, "timestamptz": datetime}
_ENDED_BEFORE = "25P02"


async def ask(conn: Any, procedure: Procedure, *values: Any) -> Any:
    """Run a procedure on an asynchronous connection and return its first row.

    Args:
        conn: an asyncpg connection, a psycopg AsyncConnection, an AsyncSession or AsyncConnection.
        procedure: what to run.
        values: what it takes.

    Raises:
        EngineError: by SQLSTATE; InvalidRequest if a value or the connection is not taken.
    """
    checked(procedure, values)
    if isinstance(conn, _ASYNCPG):
        try:
            return await conn.fetchrow(procedure.sql, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _asyncpg_error(error, conn) from error
    if isinstance(conn, _classes("psycopg", "AsyncConnection")):
        psycopg = sys.modules["psycopg"]
        try:
            async with psycopg.AsyncRawCursor(conn, row_factory=psycopg.rows.dict_row) as cursor:
                await cursor.execute(procedure.sql, values)
                return await cursor.fetchone()
        except psycopg.Error as error:
            raise _told(psycopg_error(error, _WHERE, closed=conn.closed), error.sqlstate) from error
    if not isinstance(conn, _all(_ASYNC)):
        _refuse(conn, procedure, blocking=False)
    try:
        if isinstance(conn, _classes("sqlalchemy.ext.asyncio", "async_scoped_session")):
            conn = conn()
        if isinstance(conn, _classes("sqlalchemy.ext.asyncio", "AsyncSession")):
            conn = await conn.connection()
        statement, parameters = _for_sqlalchemy(conn, procedure, values)
        return (await conn.exec_driver_sql(statement, parameters)).mappings().one()
    except sys.modules["sqlalchemy"].exc.DBAPIError as error:
        raise _sqlalchemy_error(error) from error


def ask_now(conn: Any, procedure: Procedure, *values: Any) -> Any:
    """Run a procedure on a blocking connection and return its first row.

    Args:
        conn: a psycopg Connection, an SQLAlchemy Session or Connection, or Django's connection.
        procedure: what to run.
        values: what it takes.

    Raises:
        EngineError: as `ask`.
    """
    checked(procedure, values)
    if isinstance(conn, _all(_DJANGO)):
        conn.ensure_connection()
        conn = conn.connection
    if isinstance(conn, _classes("psycopg", "Connection")):
        psycopg = sys.modules["psycopg"]
        try:
            with psycopg.RawCursor(conn, row_factory=psycopg.rows.dict_row) as cursor:
                cursor.execute(procedure.sql, values)
                return cursor.fetchone()
        except psycopg.Error as error:
            raise _told(psycopg_error(error, _WHERE, closed=conn.closed), error.sqlstate) from error
    if not isinstance(conn, _all(_BLOCKING)):
        _refuse(conn, procedure, blocking=True)
    try:
        if isinstance(conn, _classes("sqlalchemy.orm", "scoped_session")):
            conn = conn()
        if isinstance(conn, _classes("sqlalchemy.orm", "Session")):
            conn = conn.connection()
        statement, parameters = _for_sqlalchemy(conn, procedure, values)
        return conn.exec_driver_sql(statement, parameters).mappings().one()
    except sys.modules["sqlalchemy"].exc.DBAPIError as error:
        raise _sqlalchemy_error(error) from error


def checked(procedure: Procedure, values: tuple[Any, ...]) -> None:
    """Check values by the types that a procedure takes, alike for every driver.

    Raises:
        InvalidRequest: one is of another type, or none that Postgres can hold.
    """
    if procedure.takes is None:
        return
    for number, (kind, value) in enumerate(zip(_kinds(procedure.takes), values, strict=True), 1):
        reason = None if value is None else _misfit(kind, value)
        if reason is not None:
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
            raise InvalidRequest(
                f"{procedure.verb} does not take {shown} as its argument {number}: {reason}",
                hint=f"it takes {procedure.signature.partition(' -> ')[0]}",
            )


@cache
def _kinds(takes: str) -> tuple[str, ...]:
    return tuple(takes.split())


def _misfit(kind: str, value: Any) -> str | None:
    """Return why a value is not of a type of Postgres; None if it is."""
    if kind == "text":
        if not isinstance(value, str):
            return f"a text is expected, not {type(value).__name__}"
        return "a text has no NUL and no half of a surrogate pair" if unwritable(value) else None
    if kind == "text[]":
        return next((found for each in value if (found := _misfit("text", each))), None)
    if kind in _INTEGERS:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"a whole number is expected, not {type(value).__name__}"
        return None if -_INTEGERS[kind] <= value < _INTEGERS[kind] else f"it is out of range for {kind}"
    wanted = _CLASSES[kind]
    return None if isinstance(value, wanted) else f"a {wanted.__name__} is expected"


def unwritable(text: str) -> bool:
    """Whether Postgres cannot hold the text: it has a NUL or half of a surrogate pair."""
    return "\0" in text or (not text.isascii() and _SURROGATES.search(text) is not None)


def psycopg_error(error: Any, where: str, *, closed: bool) -> EngineError:
    """Return the engine's error for one of psycopg's.

    Args:
        error: a psycopg.Error.
        where: name of the database.
        closed: whether the connection is gone.
    """
    if error.sqlstate is not None:
        told = error.diag
        return answered(
            where, error.sqlstate, told.message_primary or str(error), told.message_detail, told.message_hint
        )
    if closed or isinstance(error, sys.modules["psycopg"].OperationalError):
        return unreachable(where, str(error) or type(error).__name__)
    return InvalidRequest(f"{where}: {error}")


def _asyncpg_error(error: BaseException, conn: Any) -> EngineError:
    if isinstance(error, asyncpg.InterfaceError):
        try:
            closed = conn.is_closed()
        except asyncpg.InterfaceError:  # given back to its pool
            closed = False
        if not closed:
            return InvalidRequest(
                f"{_WHERE}: {error}", hint="a connection does one thing at a time, and not after its release"
            )
    return _told(mapped(error, _WHERE), getattr(error, "sqlstate", None))


def _sqlalchemy_error(error: Any) -> EngineError:
    """Return the engine's error for one that SQLAlchemy has wrapped, from what the driver raised."""
    cause = error.orig
    if not isinstance(cause, _classes("psycopg", "Error")):
        cause = cause.__cause__ or cause
    if isinstance(cause, _classes("psycopg", "Error")):
        return _told(psycopg_error(cause, _WHERE, closed=error.connection_invalidated), cause.sqlstate)
    return _told(mapped(cause, _WHERE), getattr(cause, "sqlstate", None))


def _told(error: EngineError, code: str | None) -> EngineError:
    """Return the error with the advice that only a caller's own connection needs."""
    if code in NO_SCHEMA and type(error) is EngineError:
        return no_schema(_WHERE)
    if code == _ENDED_BEFORE:
        error.hint = "roll back first; a savepoint around the statement that failed would have kept the rest"
    return error


def _for_sqlalchemy(conn: Any, procedure: Procedure, values: tuple[Any, ...]) -> tuple[str, Any]:
    """Return statement and parameters as the driver below SQLAlchemy takes them.

    It goes through SQLAlchemy and not past it, because that begins the transaction when it first speaks.
    """
    dialect = conn.dialect
    if (dialect.name, dialect.driver) == ("postgresql", "asyncpg"):
        return procedure.sql, values
    if (dialect.name, dialect.driver) == ("postgresql", "psycopg"):
        return _named_parameters(procedure.sql), {f"p{n}": value for n, value in enumerate(values, 1)}
    raise InvalidRequest(
        f"conn is over {dialect.name}+{dialect.driver}, which is not taken",
        hint=f"make the engine with postgresql+psycopg:// or postgresql+asyncpg://, or {_in_sql(procedure)}",
    )


@lru_cache(maxsize=256)
def _named_parameters(sql: str) -> str:
    return re.sub(r"\$(\d+)", r"%(p\1)s", sql.replace("%", "%%"))


def _classes(module: str, *names: str) -> tuple[Any, ...]:
    """Return classes of a module, if anybody has imported it."""
    home: Any = sys.modules.get(module)
    return tuple(getattr(home, name) for name in names if hasattr(home, name))


def _all(known: tuple[tuple[str, ...], ...]) -> tuple[Any, ...]:
    return tuple(cls for names in known for cls in _classes(*names))


def _in_sql(procedure: Procedure) -> str:
    return f"call durable.{procedure.verb} in SQL, in your transaction"


def _refuse(conn: Any, procedure: Procedure, *, blocking: bool) -> NoReturn:
    kind = f"{type(conn).__module__}.{type(conn).__qualname__}"
    if not blocking and isinstance(conn, _all(_BLOCKING)):
        raise InvalidRequest(
            f"conn is a {kind}, which blocks, and this verb is asynchronous",
            hint="pyengine.sync has the same verbs for blocking connections",
        )
    if blocking and isinstance(conn, (*_ASYNCPG, *_all(_ASYNC))):
        raise InvalidRequest(
            f"conn is a {kind}, which is asynchronous, and this verb blocks",
            hint="pyengine.Client has the same verbs for asynchronous connections",
        )
    hint = f"it is a connection of {_TAKEN}; over another driver {_in_sql(procedure)}"
    if kind.startswith("psycopg2."):
        hint = f"psycopg (version 3) is taken, psycopg2 is not: use that, or {_in_sql(procedure)}"
    raise InvalidRequest(f"conn is a {kind} and no connection that is taken here", hint=hint)
