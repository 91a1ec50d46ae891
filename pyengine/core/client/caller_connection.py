"""Procedures on a connection of the caller's, inside the transaction that is open there.

Lives here: the supported kinds of connections and sessions (`run_on`, `run_on_sync`), how a procedure is run
on each, and the check of its values. May not: a commit, a rollback, a savepoint, a setting, a close; the
connection stays the caller's. No driver but asyncpg is imported: an object of another one exists only if its
module is loaded. Design: rows and hint of a verb become visible when the caller commits; a rollback leaves
nothing of either. Invalid values are rejected before they are sent, because an error of the database aborts
the caller's transaction.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import asyncpg

from pyengine.core.database.connection import mapped
from pyengine.core.database.error_mapping import NO_SCHEMA, answered, no_schema, unreachable
from pyengine.core.database.statements.procedures import Procedure
from pyengine.errors import EngineError, InvalidRequest

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
_SUPPORTED = "asyncpg, psycopg, or an SQLAlchemy session or connection over one of them"
_SURROGATES = re.compile("[\ud800-\udfff]")
_INTEGERS = {"integer": 1 << 31, "bigint": 1 << 63}
_CLASSES: dict[str, type] = {"boolean": bool, "timestamptz": datetime}
_ABORTED_TRANSACTION = "25P02"


async def run_on(conn: Any, procedure: Procedure, *values: Any) -> Any:
    """Run a procedure on an asynchronous connection and return its first row.

    Args:
        conn: an asyncpg connection, a psycopg AsyncConnection, an AsyncSession or AsyncConnection.
        procedure: the procedure.
        values: its parameters, checked.

    Raises:
        EngineError: by SQLSTATE; InvalidRequest if the connection is not supported.
    """
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
            raise _advised(psycopg_error(error, _WHERE, closed=conn.closed), error.sqlstate) from error
    if not isinstance(conn, _all(_ASYNC)):
        _refuse(conn, procedure, blocking=False)
    if isinstance(conn, _classes("sqlalchemy.ext.asyncio", "async_scoped_session")):
        conn = conn()
    # SQLAlchemy's asynchronous connections are blocking ones in a greenlet
    return await conn.run_sync(run_on_sync, procedure, *values)


def run_on_sync(conn: Any, procedure: Procedure, *values: Any) -> Any:
    """Run a procedure on a blocking connection and return its first row.

    Args:
        conn: a psycopg Connection, an SQLAlchemy Session or Connection, or Django's connection.
        procedure: the procedure.
        values: its parameters, checked.

    Raises:
        EngineError: as `run_on`.
    """
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
            raise _advised(psycopg_error(error, _WHERE, closed=conn.closed), error.sqlstate) from error
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


def check_values(procedure: Procedure, values: tuple[Any, ...]) -> None:
    """Check values by the procedure's parameter types, the same for every driver.

    Raises:
        InvalidRequest: one is of another type, or cannot be stored by Postgres.
    """
    for number, (kind, value) in enumerate(zip(procedure.takes, values, strict=True), 1):
        # an ordinary text ends here, because a start has eight of them
        if value is None or (kind == "text" and type(value) is str and value.isascii() and "\0" not in value):
            continue
        if (reason := _type_error(kind, value)) is not None:
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
            raise InvalidRequest(
                f"{procedure.verb} does not take {shown} as its {procedure.name_of(number)}: {reason}"
            )


def _type_error(kind: str, value: Any) -> str | None:
    """Return why a value is not of a type of Postgres; None if it is."""
    if kind == "text":
        if not isinstance(value, str):
            return f"a text is expected, not {type(value).__name__}"
        return "a text has no NUL and no half of a surrogate pair" if unwritable(value) else None
    if kind == "text[]":
        return next((found for each in value if (found := _type_error("text", each))), None)
    if kind in _INTEGERS:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"a whole number is expected, not {type(value).__name__}"
        return None if -_INTEGERS[kind] <= value < _INTEGERS[kind] else f"it is out of range for {kind}"
    wanted = _CLASSES[kind]
    return None if isinstance(value, wanted) else f"a {wanted.__name__} is expected"


def unwritable(text: str) -> bool:
    """Return whether Postgres cannot store the text: it has a NUL or half of a surrogate pair."""
    return "\0" in text or (not text.isascii() and _SURROGATES.search(text) is not None)


def psycopg_error(error: Any, where: str, *, closed: bool) -> EngineError:
    """Return the engine's error for one of psycopg's.

    Args:
        error: a psycopg.Error.
        where: name of the database.
        closed: whether the connection is gone.
    """
    if error.sqlstate is not None:
        diag = error.diag
        return answered(
            where, error.sqlstate, diag.message_primary or str(error), diag.message_detail, diag.message_hint
        )
    if closed or isinstance(error, sys.modules["psycopg"].OperationalError):
        return unreachable(where, str(error) or type(error).__name__)
    return InvalidRequest(f"{where}: {error}")


def _asyncpg_error(error: BaseException, conn: Any) -> EngineError:
    if isinstance(error, asyncpg.InterfaceError):
        try:
            closed = conn.is_closed()
        except asyncpg.InterfaceError:  # it was released to its pool
            closed = False
        if not closed:
            return InvalidRequest(
                f"{_WHERE}: {error}", hint="a connection does one thing at a time, and not after its release"
            )
    return _advised(mapped(error, _WHERE), getattr(error, "sqlstate", None))


def _sqlalchemy_error(error: Any) -> EngineError:
    """Return the engine's error for the driver's error that SQLAlchemy has wrapped."""
    cause = error.orig
    if not isinstance(cause, _classes("psycopg", "Error")):
        cause = cause.__cause__ or cause
    if isinstance(cause, _classes("psycopg", "Error")):
        return _advised(psycopg_error(cause, _WHERE, closed=error.connection_invalidated), cause.sqlstate)
    return _advised(mapped(cause, _WHERE), getattr(cause, "sqlstate", None))


def _advised(error: EngineError, code: str | None) -> EngineError:
    """Return the error with a hint where a caller's connection needs another one."""
    if code in NO_SCHEMA and type(error) is EngineError:
        return no_schema(_WHERE)
    if code == _ABORTED_TRANSACTION:
        error.hint = "roll back first; a savepoint around the statement that failed would have kept the rest"
    return error


def _for_sqlalchemy(conn: Any, procedure: Procedure, values: tuple[Any, ...]) -> tuple[str, Any]:
    """Return statement and parameters in the form of the driver below SQLAlchemy.

    The statement must go through SQLAlchemy, which begins the transaction with its first statement.
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
    """Return classes of a module, if it is loaded."""
    loaded: Any = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


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
    hint = f"it is a connection of {_SUPPORTED}; over another driver {_in_sql(procedure)}"
    if kind.startswith("psycopg2."):
        hint = f"psycopg (version 3) is taken, psycopg2 is not: use that, or {_in_sql(procedure)}"
    raise InvalidRequest(f"conn is a {kind} and no connection that is taken here", hint=hint)
