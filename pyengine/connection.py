"""How this package reaches the database: connections, their checks, and what a failure of one means.

What lives here: `Database` (where it is, whether it fits, how to connect) and `Link` (one connection that
comes back by itself). What may not: SQL text, retries of a statement whose outcome is unknown; only the
caller knows whether it may be sent twice. The theory: a database that is down is a state and not an error.
Connecting goes on with growing pauses until it works or the caller gives up; a statement either failed in
the database (its SQLSTATE becomes an error of errors.py) or its connection is gone (`Unavailable`). Behind
a pooler a session is nobody's own, so nothing there may depend on one: no LISTEN, no named statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from pyengine.errors import EngineError, InvalidRequest, SchemaMismatch, Unavailable, from_sqlstate
from pyengine.procedures import SESSION, VERSION, WORKER_PROTOCOL, Procedure

__all__ = ["Database", "Link", "LinkPool", "backoff_s", "mapped"]

logger = logging.getLogger("pyengine.connection")

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 60.0
_BACKOFF_MAX_S = 5.0
_NO_SCHEMA = frozenset({"3F000", "42883", "42P01"})
_REFUSED = frozenset({"28000", "28P01", "3D000", "42501"})
_GONE = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncio.TimeoutError)


def backoff_s(failures: int) -> float:
    """Return seconds to wait after so many failures in a row: from 50 ms on twice as long, at most 5 s."""
    ceiling: float = min(_BACKOFF_MAX_S, 0.05 * 2 ** min(failures, 10))
    return ceiling * (0.5 + random.random() / 2)


def mapped(error: BaseException, where: str) -> EngineError:
    """Return the engine's error for one of asyncpg's or the system's.

    Args:
        error: what a statement or a connection attempt raised.
        where: name of the database, without a password.
    """
    if isinstance(error, EngineError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        code = getattr(error, "sqlstate", None)
        message = getattr(error, "message", None) or str(error)
        known = from_sqlstate(code, message, getattr(error, "detail", None), getattr(error, "hint", None))
        if isinstance(known, Unavailable):
            return Unavailable(f"{where} is not available: {message}")
        if code is not None and code.startswith("22"):
            # what its type does not take: a NUL in a text, a number out of range, no text where one belongs
            return InvalidRequest(f"{where} does not take that: {message}", detail=known.detail)
        if type(known) is EngineError:
            return EngineError(f"{where}: {message} (SQLSTATE {code})", detail=known.detail, hint=known.hint)
        return known
    reason = (
        "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error) or type(error).__name__
    )
    return Unavailable(
        f"{where} cannot be reached: {reason}", hint="is the server running, and the address right?"
    )


def _named(dsn: str) -> str:
    """Return how messages call the database: its name and host, never a user's password."""
    parts = urlsplit(dsn)
    if "@" not in parts.netloc and "@" in dsn:
        # a password with / ? or # in it has been cut, and its parts stand where host and name are expected
        return "the database"
    query = parse_qs(parts.query)
    hosts = parts.netloc.rpartition("@")[2] or query.get("host", [""])[0]
    host = unquote(hosts) or os.environ.get("PGHOST", "localhost")
    name = unquote(parts.path.lstrip("/")) or query.get("dbname", [""])[0] or os.environ.get("PGDATABASE", "")
    return f"database {name!r} on {host}" if name else f"the database on {host}"


class Database:
    """Where the runs are kept.

    Args:
        dsn: URL of the database, postgresql://user:password@host:port/name.
        application_name: how its sessions show in pg_stat_activity.

    Attributes:
        where: how messages call it.
        pooled: whether a pooler stands before it; known once `open` has returned.
    """

    def __init__(self, dsn: str, *, application_name: str = "pyengine") -> None:
        if not dsn.startswith(("postgresql://", "postgres://")):
            raise InvalidRequest("a database URL begins with postgresql://")
        self._dsn = dsn
        self._application_name = application_name
        self.where = _named(dsn)
        self.pooled = False
        self._opened = False

    async def open(self) -> None:
        """Check once that the database answers and that its schema fits this library.

        Raises:
            Unavailable: it cannot be reached.
            SchemaMismatch: it has no schema of ours, or one of another time.
            EngineError: it refuses us.
        """
        if self._opened:
            return
        # no statement may be named before it is known whether the session is our own
        self.pooled = True
        conn = await self.connect("check")
        try:
            # a pooler announces a process of its own; the transaction keeps both statements in one session
            async with conn.transaction():
                self.pooled = conn.get_server_pid() != await conn.fetchval(SESSION.sql)
                await self._check_version(conn)
        except (asyncpg.PostgresError, *_GONE) as error:
            conn.terminate()
            raise mapped(error, self.where) from error
        except BaseException:
            conn.terminate()
            raise
        await conn.close()
        self._opened = True

    async def _check_version(self, conn: Any) -> None:
        try:
            row = await conn.fetchrow(VERSION.sql)
        except asyncpg.PostgresError as error:
            if error.sqlstate in _NO_SCHEMA:
                raise SchemaMismatch(
                    f"{self.where} has no schema of this engine", hint="type: pyengine db init"
                ) from None
            raise mapped(error, self.where) from error
        lowest, highest = row["lowest_worker_protocol"], row["highest_worker_protocol"]
        if highest < WORKER_PROTOCOL:
            raise SchemaMismatch(
                f"the schema of {self.where} is older than this library "
                f"(it serves worker protocol {highest}, the library speaks {WORKER_PROTOCOL})",
                hint="type: pyengine db migrate",
            )
        if lowest > WORKER_PROTOCOL:
            raise SchemaMismatch(
                f"the schema of {self.where} is newer than this library "
                f"(it serves worker protocols from {lowest} on, the library speaks {WORKER_PROTOCOL})",
                hint="type: pip install -U pyengine",
            )

    async def connect(self, role: str) -> Any:
        """Return a new connection.

        Args:
            role: what it is for; shows in pg_stat_activity.

        Raises:
            Unavailable: the server cannot be reached, or is starting or full.
            EngineError: the server refuses us: no such database, wrong password.
        """
        try:
            conn = await asyncpg.connect(
                self._dsn,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=STATEMENT_TIMEOUT_S,
                statement_cache_size=0 if self.pooled else 100,
                server_settings={"application_name": f"{self._application_name} {role}"},
            )
        except asyncpg.PostgresError as error:
            if error.sqlstate in _REFUSED:
                raise EngineError(f"{self.where} refuses the connection: {error}") from None
            raise mapped(error, self.where) from None
        except ValueError:
            # the text of this error repeats the URL
            raise InvalidRequest(f"the URL of {self.where} cannot be read") from None
        except _GONE as error:
            raise mapped(error, self.where) from None
        _keep_alive(conn)
        return conn


def _keep_alive(conn: Any) -> None:
    """Let the kernel notice within a minute that the other side is gone without a word."""
    transport = getattr(conn, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Link:
    """One connection for one purpose, made when it is needed and made anew when it is gone.

    Statements of a link run one after the other.

    Args:
        database: where to.
        role: what for.
        prepare: called with each new connection before it is used.
    """

    def __init__(
        self, database: Database, role: str, *, prepare: Callable[[Any], Awaitable[None]] | None = None
    ) -> None:
        self.database = database
        self._role = role
        self._prepare = prepare
        self._conn: Any = None
        self._lock = asyncio.Lock()
        self._connecting = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether there is a connection that has not been found dead."""
        return self._conn is not None and not self._conn.is_closed()

    async def connected(self) -> Any:
        """Return the connection, made anew if it is gone.

        Raises:
            EngineError: it cannot be made.
        """
        async with self._connecting:
            if not self.alive:
                conn = await self.database.connect(self._role)
                try:
                    if self._prepare is not None:
                        await self._prepare(conn)
                except BaseException:
                    conn.terminate()
                    raise
                self._conn = conn
            return self._conn

    async def connected_sometime(self, *, what: str) -> Any:
        """Return the connection, trying until there is one; every attempt that fails is logged.

        Args:
            what: named in the log.
        """
        failures = 0
        while True:
            try:
                conn = await self.connected()
            except (EngineError, asyncpg.PostgresError, *_GONE) as error:
                failures += 1
                problem = mapped(error, self.database.where).message
                level = logging.WARNING if failures in (1, 5) or failures % 20 == 0 else logging.DEBUG
                logger.log(level, "%s: %s (attempt %d)", what, problem, failures)
                await asyncio.sleep(backoff_s(failures))
            else:
                if failures:
                    logger.warning("%s: connected to %s again", what, self.database.where)
                return conn

    async def run(self, procedure: Procedure, *args: Any) -> Any:
        """Run a statement and return the first column of its first row.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the connection is gone, and then the outcome is unknown.
        """
        return await self.use(lambda conn: conn.fetchval(procedure.sql, *args))

    async def rows(self, procedure: Procedure, *args: Any) -> list[Any]:
        """Run a statement and return its rows.

        Raises:
            EngineError: as `run`.
        """
        result: list[Any] = await self.use(lambda conn: conn.fetch(procedure.sql, *args))
        return result

    async def use(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Run statements on the connection, nothing of others in between.

        Raises:
            EngineError: as `run`.
        """
        async with self._lock:
            conn = self._conn if self.alive else await self.connected()
            try:
                if not self.database.pooled:
                    return await action(conn)
                # a pooler may change sessions between the two round trips of one statement
                async with conn.transaction():
                    return await action(conn)
            except asyncpg.PostgresError as error:
                raise mapped(error, self.database.where) from error
            except _GONE as error:
                self.drop()
                raise mapped(error, self.database.where) from error
            except asyncio.CancelledError:
                # what was under way may still hold the connection
                self.drop()
                raise

    def drop(self) -> None:
        """Break the connection off at once."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def close(self, *, timeout_s: float = 2.0) -> None:
        """Close the connection in an orderly way, at once if that takes too long."""
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            await conn.close(timeout=timeout_s)
        except (asyncpg.PostgresError, *_GONE):
            conn.terminate()


class LinkPool:
    """A few links that callers take in turn.

    Args:
        database: where to.
        role: what for.
        size: connections at a time, at most.
    """

    def __init__(self, database: Database, role: str, size: int) -> None:
        self._links = [Link(database, role) for _ in range(size)]
        # last in, first out: as many connections as are needed and no more
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for link in reversed(self._links):
            self._free.put_nowait(link)

    async def rows(self, procedure: Procedure, *args: Any) -> list[Any]:
        """Run a statement that may be run twice, and return its rows; tried once more if the connection was
        found dead.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        link = await self._free.get()
        try:
            try:
                return await link.rows(procedure, *args)
            except Unavailable:
                return await link.rows(procedure, *args)
        finally:
            self._free.put_nowait(link)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.close() for link in self._links))
