"""Connections to the database: how they are made, checked and replaced.

Lives here: `Database` (its address, the check of its schema, new connections) and `ReconnectingConnection`
(one connection that is replaced when it is lost). May not: SQL text, or retries of a statement whose outcome
is unknown; only the caller knows whether it may be sent twice.

Design: a database that is down is a state and not an error. Connecting is retried with growing pauses until
it works or the caller gives up. A statement either failed in the database (its SQLSTATE becomes an error of
errors.py) or lost its connection (`Unavailable`). Behind a pooler sessions are shared, so nothing may depend
on one there: no LISTEN, no named statement. Hints and presence need a session of their own: they use the
second URL if there is one, and are left out if not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import asyncpg

from pyengine.core.database.error_mapping import (
    NO_SCHEMA,
    READ_ONLY,
    answered,
    named,
    no_schema,
    refuse_version,
    standby,
    unreachable,
)
from pyengine.core.database.failure_log import CopyLog, OutageLog
from pyengine.core.database.sessions import (
    DRIVER_ERRORS,
    clean_session,
    close_ended,
    close_session,
    fit,
    is_odd,
    keep_alive,
    opening,
    transaction,
)
from pyengine.core.database.shortage import Shortage
from pyengine.core.database.statements.procedures import (
    IN_RECOVERY,
    LEAVE_MARK,
    SEE_MARK,
    SESSION,
    VERSION,
    Procedure,
)
from pyengine.core.database.statements.time_limits import LIMIT_S, limit_s
from pyengine.core.passwords import hidden
from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.process.own_threads import in_a_thread, resolve_in_threads
from pyengine.core.servers import Servers, is_standby
from pyengine.errors import EmbeddedPostgresError, EngineError, InvalidRequest, Unavailable

logger = logging.getLogger("pyengine.connection")

T = TypeVar("T")

_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 5.0
_FULL = "53300"
_REFUSED = frozenset({"28000", "28P01", "3D000", "42501"})
# purposes that a standby serves too
_READERS = frozenset({"check", "client", "replay-check"})


class NoConnection(Unavailable):
    """The server is running and has no connection left for us."""


def backoff_s(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: 50 ms, doubled each time, at most 5 s."""
    return backoff_pause(_BACKOFF_S, _BACKOFF_MAX_S, failures) * (0.5 + random.random() / 2)


def mapped(error: BaseException, where: str) -> EngineError:
    """Return the engine's error for one of asyncpg's or the system's.

    Args:
        error: raised by a statement or a connection attempt.
        where: name of the database, without a password.
    """
    if isinstance(error, EngineError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        message = getattr(error, "message", None) or str(error)
        return answered(
            where,
            getattr(error, "sqlstate", None),
            message,
            getattr(error, "detail", None),
            getattr(error, "hint", None),
        )
    if isinstance(error, asyncio.TimeoutError):
        return unreachable(where, "no answer in time")
    return unreachable(where, str(error) or type(error).__name__)


@contextlib.contextmanager
def _mapped_errors(where: str, after_error: Callable[[], object]) -> Iterator[None]:
    """Raise errors of the driver inside the block as errors of the engine.

    Args:
        where: name of the database.
        after_error: called after any error.
    """
    try:
        yield
    except BaseException as error:
        after_error()
        if isinstance(error, DRIVER_ERRORS):
            raise mapped(error, where) from error
        raise


class Database:
    """The database that stores the runs.

    Args:
        dsn: URL of the database, postgresql://user:password@host:port/name.
        listen_url: URL of the same database without a pooler, for hints and presence.
        application_name: application name of its sessions in pg_stat_activity.
        start_server: starts a server of our own again, or returns at once if it runs; None: it is not ours.

    Attributes:
        where: its name in messages.
        pooled: whether a pooler is in between; known once `open` has returned.
        outage: the log of the time during which it cannot be reached.
        copy: the log of the time during which it is a copy that was not adopted.
        opened: `open` has returned.
        server_pids: the server processes of its open connections; not known behind a pooler.
        shortage: of connections that a pooler gives.
    """

    def __init__(
        self,
        dsn: str,
        *,
        listen_url: str | None = None,
        application_name: str = "pyengine",
        start_server: Callable[[], object] | None = None,
    ) -> None:
        if not dsn.startswith(("postgresql://", "postgres://")):
            raise InvalidRequest("a database URL begins with postgresql://")
        self._dsn = dsn
        self._servers = Servers(dsn)
        self._application_name = application_name
        self.where = named(dsn)
        self.pooled = False
        self.outage = OutageLog(logger)
        self.copy = CopyLog(logger)
        self._direct = None if listen_url is None else Database(listen_url, application_name=application_name)
        self._start_server = start_server
        self._starting = threading.Lock()
        self.opened = False
        self.server_pids: set[int] = set()
        self.shortage = Shortage()

    @property
    def sessions(self) -> Database:
        """The database by its second URL, for sessions of our own, unless that URL has a pooler too."""
        return self if self._direct is None or self._direct.pooled else self._direct

    @property
    def hints(self) -> bool:
        """Whether hints and presence work here; known once `open` has returned."""
        return not self.sessions.pooled

    async def open(self) -> None:
        """Check once that the database answers and that its schema fits this library.

        Raises:
            Unavailable: it cannot be reached.
            SchemaMismatch: it has no schema of this engine, or an incompatible version.
            InvalidRequest: the second URL leads to another database.
            EngineError: it refuses the connection.
        """
        if self.opened:
            return
        if left := close_ended():
            warnings.warn(
                f"an event loop has ended and left {left} connections of pyengine open: end it with "
                "`await app.close()`, or start runs in `async with app.client()`",
                ResourceWarning,
                stacklevel=2,
            )
        # no statement may be named until the session is known to be our own
        self.pooled = True
        conn = await self.connect("check")
        with _mapped_errors(self.where, conn.terminate):
            # a pooler reports a process id of its own; the transaction runs both statements in one session
            async with transaction(conn, reads=True):
                self.pooled = conn.get_server_pid() != await conn.fetchval(SESSION.sql)
                await self._check_version(conn)
            if self._direct is not None:
                await self._check_direct(conn, self._direct)
        await close_session(conn)
        self.opened = True

    async def _check_direct(self, conn: Any, direct: Database) -> None:
        """Check that both URLs lead to one database: a lock taken there is visible from here."""
        await direct.open()
        if direct.pooled:
            logger.warning("there is a pooler before %s too: no hints, no presence", direct.where)
            return
        session = await direct.connect("check")
        try:
            mark = random.getrandbits(31)
            await session.fetchval(LEAVE_MARK.sql, mark)
            visible = await conn.fetchval(SEE_MARK.sql, mark)
        finally:
            session.terminate()
        if not visible:
            raise InvalidRequest(
                f"the direct URL leads to {direct.where}, which is another database than {self.where}",
                hint="listen_url or PYENGINE_LISTEN_URL names the same database, past the pooler",
            )

    async def _check_version(self, conn: Any) -> None:
        try:
            row = await conn.fetchrow(VERSION.sql)
        except asyncpg.PostgresError as error:
            if error.sqlstate in NO_SCHEMA:
                raise no_schema(self.where) from None
            raise
        refuse_version(self.where, row)

    async def connect(self, role: str) -> Any:
        """Return a new connection. A server of our own that was killed is started again.

        Args:
            role: its purpose, part of the application name in pg_stat_activity.

        Raises:
            Unavailable: no server can be reached, or each is starting, full or a standby.
            EngineError: the server refuses the connection: no such database, wrong password.
        """
        try:
            return await self._connect(role)
        except NoConnection:
            raise
        except Unavailable:
            if self._start_server is None:
                raise
        await in_a_thread(self._start_again, self._start_server)
        return await self._connect(role)

    def _start_again(self, start_server: Callable[[], object]) -> None:
        """Start the server, in a thread: connections of several loops may miss it at once."""
        try:
            with self._starting:
                start_server()
        except EmbeddedPostgresError as error:
            raise Unavailable(f"{self.where} cannot be started: {error.message}") from error

    async def _connect(self, role: str) -> Any:
        """Return a new connection to one of the servers; raises as `connect`."""
        failures: list[EngineError] = []
        for url in self._servers.in_order():
            try:
                conn = await self._connect_to(url, role)
            except InvalidRequest:
                raise
            except EngineError as error:
                failures.append(error)
            else:
                self._servers.served(url)
                self.outage.ended(self.where)
                self._record(conn)
                return conn
        raise _of_all(failures)

    def _record(self, conn: Any) -> None:
        pid = conn.get_server_pid()
        self.server_pids.add(pid)
        conn.add_termination_listener(lambda _: self.server_pids.discard(pid))

    async def _connect_to(self, url: str, role: str) -> Any:
        """Return a new connection to one server; raises as `connect`."""
        where = named(url)
        resolve_in_threads(asyncio.get_running_loop())
        try:
            with opening():
                conn = await asyncpg.connect(
                    url,
                    timeout=self._servers.timeout_s,
                    command_timeout=LIMIT_S,
                    statement_cache_size=0 if self.pooled else 100,
                    server_settings={"application_name": f"{self._application_name} {role}"},
                )
                try:
                    keep_alive(conn)
                except BaseException:
                    conn.terminate()
                    raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == _FULL:
                raise NoConnection(
                    f"{where} gives no further connection: {error}",
                    hint="raise max_connections or the limit of the role, or put a pooler before it",
                ) from None
            if error.sqlstate in _REFUSED:
                raise EngineError(f"{where} refuses the connection: {error}") from None
            raise mapped(error, where) from None
        except asyncpg.TargetServerAttributeNotMatched:
            raise unreachable(where, "it has not the target_session_attrs of the URL") from None
        except ValueError:
            # the text of this error repeats the URL
            raise InvalidRequest(f"the URL of {where} cannot be read") from None
        except DRIVER_ERRORS as error:
            ours = mapped(error, where)
            raise type(ours)(hidden(ours.message, self._dsn), hint=ours.hint) from None
        with _mapped_errors(where, conn.terminate):
            if await self._only_reads(conn, role):
                raise standby(where)
            if not self.pooled:
                await fit(conn, role)
        return conn

    async def _only_reads(self, conn: Any, role: str) -> bool:
        """Return whether a connection leads to a standby where the primary is needed."""
        if not self.pooled:
            return is_standby(conn) and (role not in _READERS or self._servers.means_primary)
        # a pooler may repeat what its server reported long ago
        return self._servers.means_primary and bool(await conn.fetchval(IN_RECOVERY.sql))


def _of_all(failures: list[EngineError]) -> EngineError:
    """Return the error for servers of which none serves: a refusal only if nothing else may help."""
    if len(failures) == 1:
        return failures[0]
    full = [error for error in failures if isinstance(error, NoConnection)]
    down = [error for error in failures if isinstance(error, Unavailable)]
    if full or not down:
        return (full or failures)[0]
    return Unavailable("; ".join(error.message for error in failures), hint=down[0].hint)


class ReconnectingConnection:
    """One connection for one purpose, made when it is needed and replaced when it is lost.

    Its statements run one after the other.

    Args:
        database: the database.
        role: its purpose.
        own: it needs a session of its own, if one can be had.
        prepare: called with each new connection before it is used.
    """

    def __init__(
        self,
        database: Database,
        role: str,
        *,
        own: bool = False,
        prepare: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._database = database
        self._own = own
        self._role = role
        self._prepare = prepare
        self._conn: Any = None
        self._odd = self._ending = False
        self._lock = asyncio.Lock()
        self._connecting = asyncio.Lock()

    @property
    def database(self) -> Database:
        """The database, by the URL that this connection uses; known once the database is open."""
        return self._database.sessions if self._own else self._database

    @property
    def alive(self) -> bool:
        """Whether there is a connection that is not known to be closed."""
        return self._conn is not None and not self._conn.is_closed()

    async def connected(self) -> Any:
        """Return the connection; connect if there is none.

        Raises:
            EngineError: it cannot be made.
        """
        async with self._connecting:
            if not self.alive:
                database = self.database
                with database.shortage.noticed(self._role, database):
                    conn = await database.connect(self._role)
                    with _mapped_errors(database.where, conn.terminate):
                        self._odd = database.pooled and await is_odd(conn, self._role)
                        if self._prepare is not None:
                            await self._prepare(conn)
                self._conn = conn
            return self._conn

    async def connected_eventually(self, *, purpose: str) -> Any:
        """Return the connection; retry until there is one. The outage is logged once for all connections.

        Args:
            purpose: names the connection in the log.
        """
        failures = 0
        while True:
            try:
                return await self.connected()
            except EngineError as error:
                failures += 1
                logger.debug("%s: %s (attempt %d)", purpose, error.message, failures)
                self.database.outage.failed(error.message)
                await clock.sleep(backoff_s(failures))

    async def run(self, procedure: Procedure, *args: Any) -> Any:
        """Run a statement and return the first column of its first row.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the connection was lost, and the outcome is unknown.
        """
        within_s = limit_s(procedure)
        return await self.use(lambda conn: conn.fetchval(procedure.sql, *args, timeout=within_s))

    async def use(self, action: Callable[[Any], Awaitable[T]], *, transacts: bool = False) -> T:
        """Run statements on the connection; no other statement runs in between.

        Args:
            action: the statements.
            transacts: they begin and end their transactions themselves (sessions.py).

        Raises:
            EngineError: as `run`.
        """
        async with self._lock:
            if self._ending:
                raise Unavailable(f"the connection for {self._role} ends")
            conn = self._conn if self.alive else await self.connected()
            try:
                # an unnamed statement commits with its last message, behind a pooler too, so no COMMIT has
                # to be sent while its locks are held
                if transacts or not self._odd:
                    return await action(conn)
                async with transaction(conn, self._role):
                    return await action(conn)
            except asyncpg.PostgresError as error:
                if error.sqlstate == READ_ONLY and not self.database.pooled and is_standby(conn):
                    # the address may lead to another server by now
                    self.drop()
                    raise standby(self.database.where) from error
                if self.database.pooled and isinstance(error, asyncpg.DataError):
                    # a statement refused before its execution still occupies a session of the pooler
                    self.drop()
                raise mapped(error, self.database.where) from error
            except DRIVER_ERRORS as error:
                self.drop()
                raise mapped(error, self.database.where) from error
            except asyncio.CancelledError:
                # the statement may still be running on the connection
                self.drop()
                raise

    async def finish(self) -> None:
        """Let the statement that runs come to its end; those that wait, and later ones, are refused."""
        self._ending = True
        async with self._lock:
            pass

    async def clean(self) -> None:
        """Reset what statements of users have set in the session; a pooler's session is not ours."""
        if not self.alive or self.database.pooled:
            return
        try:
            clean = await clean_session(self._conn)
        except asyncio.CancelledError:
            self.drop()
            raise
        if not clean:
            self.drop()

    def drop(self) -> None:
        """Terminate the connection at once."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def close(self, *, timeout_s: float = 2.0) -> None:
        """Close the connection in an orderly way; terminate it if that takes too long."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await close_session(conn, timeout_s)
