"""The transport of blocking programs.

Lives here: `PsycopgTransport`, with a few connections of psycopg that threads take in turn. May not: a verb
(client.py), SQL text. Design: its functions are coroutines that never suspend; they block instead. So
sync.py runs a verb to its end without an event loop. Waiting for a run is polling: each pause is a quarter
longer than the one before, up to 0.25 s, so a result is found late by at most a quarter of the time that it
took. A forked process does not use the connections of its parent: it makes its own.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pyengine.core.client.caller_connection import psycopg_error, run_on_sync
from pyengine.core.client.results import RETRY_S
from pyengine.core.client.transport import Transport
from pyengine.core.database.connection import Database
from pyengine.core.database.error_mapping import (
    NO_SCHEMA,
    READ_ONLY,
    no_schema,
    readable,
    refuse_version,
    refuses,
    standby,
    unreachable,
)
from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.poll_schedule import Channel, NotifyThrottle
from pyengine.core.database.statements.procedures import HINT, RESULTS, SESSION, VERSION, Procedure
from pyengine.core.database.statements.sessions import BEGIN, CLIENT_SETTINGS, IS_ODD, SETTINGS_WITHIN
from pyengine.core.passwords import hidden
from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.servers import Servers, libpq_url
from pyengine.errors import EngineError, InvalidRequest, Unavailable

logger = logging.getLogger("pyengine.blocking")

_POLL_FIRST_S = 0.005
_POLL_LONGEST_S = 0.25
_POLL_GROWTH = 1.25
_WATCH_PAUSE_S = 0.25
_KEEP_ALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_Connection = psycopg.Connection[dict[str, Any]]


class PsycopgTransport(Transport):
    """Runs statements on connections of psycopg; any number of threads may use it.

    Args:
        dsn: URL of the database.
        connections: the largest number of connections.
    """

    def __init__(self, dsn: str, connections: int) -> None:
        self._dsn = dsn
        self._where = Database(dsn).where
        self._connections = connections
        self._inherited: list[_Connection] = []
        self._reset()
        _ALIVE.add(self)
        self._finalizer = weakref.finalize(self, _close_all, self._all)

    def _reset(self) -> None:
        """Initialise: also in a forked process, which owns neither the locks nor the connections."""
        self._all: list[_Connection] = []
        self._free: list[_Connection] = []
        self._slots = threading.BoundedSemaphore(self._connections)
        self._opening = threading.Lock()
        self._throttle = NotifyThrottle()
        self._pooled = True
        self._odd = False
        self._opened = False
        self._closed = False

    def forked(self) -> None:
        """Leave the connections to the parent process, and never close them here."""
        closed = self._closed
        self._inherited += self._all
        self._finalizer.detach()
        self._reset()
        self._closed = closed
        self._finalizer = weakref.finalize(self, _close_all, self._all)

    # -- Transport

    async def open(self) -> None:
        """Check the database, once.

        Raises:
            EngineError: it cannot be used.
        """
        with self._opening:
            if self._closed:
                raise InvalidRequest("this client is closed")
            if self._opened:
                return
            with self._taken() as conn:
                (session,) = _fetch(conn, SESSION)
                self._pooled = conn.info.backend_pid != session["pg_backend_pid"]
                conn.prepare_threshold = _prepared_after(self._pooled)
                if self._pooled:
                    (self._odd,) = _fetch(conn, IS_ODD)[0].values()
                else:
                    conn.execute(CLIENT_SETTINGS.sql.encode())
                refuse_version(self._where, _fetch(conn, VERSION)[0])
            self._opened = True

    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit."""
        return self._throttle.with_commit(channel, clock.monotonic())

    async def allow_next(self, channel: Channel) -> None:
        """Let the next such hint be sent with its commit, however soon it comes."""
        self._throttle.allow_next(channel)

    async def announce(self, channel: Channel, *, with_commit: bool) -> None:
        """Send a hint, unless a commit has sent it; a hint may be lost."""
        if with_commit:
            return
        try:
            await self.rows(HINT, channel == "durable_ready", channel == "durable_settled")
        except EngineError as error:
            logger.debug("hint not sent: %s", error.message)

    async def close(self) -> None:
        """Close the connections; statements of other threads on them fail."""
        self._closed = True
        _close_all(self._all)

    @asynccontextmanager
    async def hints(self) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """Return a context whose value waits so many seconds; a blocking program polls."""

        async def wait(longest_s: float) -> None:
            clock.pause(min(longest_s, _WATCH_PAUSE_S))

        yield wait

    async def _rows(self, procedure: Procedure, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._rows_once(procedure, values)
        except Unavailable:
            return self._rows_once(procedure, values)

    def _rows_once(self, procedure: Procedure, values: tuple[Any, ...]) -> list[Any]:
        with self._taken() as conn, _transaction(conn) if self._odd else nullcontext():
            return _fetch(conn, procedure, *values)

    async def _first_row_on(self, conn: Any, procedure: Procedure, values: tuple[Any, ...]) -> Any:
        return run_on_sync(conn, procedure, *values)

    async def _ended(self, id: str, timeout_s: float | None, hint_count: int | None) -> Any:
        until_s = float("inf") if timeout_s is None else clock.monotonic() + timeout_s
        trouble = FailureLog(logger, f"waiting for run {id}")
        polls = 0
        while True:
            pause_s, polls = backoff_pause(_POLL_FIRST_S, _POLL_LONGEST_S, polls, _POLL_GROWTH), polls + 1
            try:
                rows = await self.rows(RESULTS, [id])
                if rows:
                    return rows[0]
                trouble.succeeded()
            except Unavailable as error:
                trouble.failed(error.message)
                pause_s = RETRY_S
            left_s = until_s - clock.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"run {id} has not ended after {timeout_s:g} s; it goes on")
            clock.pause(min(pause_s, left_s))

    # -- connections

    def _connect(self) -> _Connection:
        """Return a new connection.

        Raises:
            Unavailable: the server cannot be reached, or is starting or full.
            EngineError: the server refuses the connection: no such database, wrong password.
        """
        try:
            conn = psycopg.connect(
                libpq_url(self._dsn),
                autocommit=True,
                row_factory=dict_row,
                cursor_factory=psycopg.RawCursor,
                prepare_threshold=_prepared_after(self._pooled),
                application_name="pyengine client",
                client_encoding="utf8",
                connect_timeout=int(Servers(self._dsn).timeout_s),
                **_KEEP_ALIVE,
            )
        except psycopg.OperationalError as error:
            if not readable(self._dsn):
                raise InvalidRequest(f"the URL of {self._where} cannot be read") from None
            reason = hidden(" ".join(str(error).split()), self._dsn)
            if refuses(reason):
                raise EngineError(f"{self._where} refuses the connection: {reason}") from None
            raise unreachable(self._where, reason) from None
        except psycopg.Error:
            # the text of this error repeats the URL
            raise InvalidRequest(f"the URL of {self._where} cannot be read") from None
        if not self._pooled:
            conn.execute(CLIENT_SETTINGS.sql.encode())
        self._all.append(conn)
        return conn

    def _drop(self, conn: _Connection) -> None:
        conn.close()
        if conn in self._all:
            self._all.remove(conn)

    @contextmanager
    def _taken(self) -> Iterator[_Connection]:
        """Take a connection for one thread; afterwards it is free again, unless it was lost."""
        with self._slots:
            # last in, first out: as many connections as are needed and no more
            try:
                conn = self._free.pop()
            except IndexError:
                conn = self._connect()
            usable = False
            try:
                yield conn
                usable = True
            except psycopg.Error as error:
                usable = not conn.broken and not conn.closed
                if error.sqlstate in NO_SCHEMA:
                    raise no_schema(self._where) from None
                if error.sqlstate == READ_ONLY and conn.info.parameter_status("in_hot_standby") == "on":
                    # the address may lead to another server by now
                    usable = False
                    raise standby(self._where) from error
                raise psycopg_error(error, self._where, closed=conn.closed) from error
            except EngineError:
                usable = True
                raise
            finally:
                # after an interrupt a statement may still be running on the connection
                if usable and not self._closed:
                    self._free.append(conn)
                else:
                    self._drop(conn)


@contextmanager
def _transaction(conn: _Connection) -> Iterator[None]:
    """Run the block in a transaction with the engine's settings; as in database/sessions.py."""
    conn.execute(f"{BEGIN.sql}; {SETTINGS_WITHIN.sql}".encode())
    try:
        yield
    except BaseException:
        if not conn.closed:
            conn.execute(b"rollback")
        raise
    conn.execute(b"commit")


def _prepared_after(pooled: bool) -> int | None:
    """Return after how many uses a statement is prepared: never behind a pooler, which shares sessions."""
    return None if pooled else 5


def _fetch(conn: _Connection, procedure: Procedure, *values: Any) -> list[dict[str, Any]]:
    """Run a procedure and return its rows, with instants in UTC."""
    return [
        {name: each.astimezone(UTC) if isinstance(each, datetime) else each for name, each in row.items()}
        for row in conn.execute(procedure.sql.encode(), values).fetchall()
    ]


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


_ALIVE: weakref.WeakSet[PsycopgTransport] = weakref.WeakSet()


def _forked() -> None:
    for transport in tuple(_ALIVE):
        transport.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
