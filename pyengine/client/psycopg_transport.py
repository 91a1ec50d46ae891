"""How the verbs of a client reach the database in a program that blocks.

What lives here: `PsycopgTransport`, on connections of psycopg, a few of which threads take in turn.
What may not: a verb (client.py has them), SQL text. The theory: its functions are coroutines by name only.
They block where others await, so a coroutine that awaits nothing else runs from its first line to its last in
one go, and sync.py can drive it without an event loop. Waiting for a run is looking, as in results.py; only a
wait that gets long listens for hints, on one connection that all threads share for as long as one of them
waits. A process that was forked does not touch the connections of its parent: it makes its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pyengine.client import caller_connection
from pyengine.client.results import refuse_no_text
from pyengine.client.transport import refuse_workflow
from pyengine.database.connection import CONNECT_TIMEOUT_S, Database
from pyengine.database.error_mapping import (
    NO_SCHEMA,
    no_schema,
    readable,
    refuse_version,
    refuses,
    unreachable,
)
from pyengine.database.poll_schedule import Channel, NotifyThrottle, PollSchedule
from pyengine.database.statements.procedures import HINT, LISTEN, RESULTS, SESSION, START, VERSION, Procedure
from pyengine.database.statements.sessions import BEGIN, CLIENT_SETTINGS, IS_ODD, SETTINGS_WITHIN
from pyengine.errors import EngineError, InvalidRequest, Unavailable
from pyengine.passwords import hidden

__all__ = ["PsycopgTransport"]

logger = logging.getLogger("pyengine.blocking")

_LONGEST_S = 3.0
_AGAIN_S = 1.0
_WORTH_LISTENING_S = 0.3
_KEEP_ALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_Connection = psycopg.Connection[dict[str, Any]]


class PsycopgTransport:
    """Asks on connections of psycopg; any number of threads may use it.

    Args:
        dsn: URL of the database.
        connections: connections for statements, at most; one more listens while somebody waits for long.
    """

    def __init__(self, dsn: str, connections: int) -> None:
        self._dsn = dsn
        self._where = Database(dsn).where
        self._connections = connections
        self._inherited: list[_Connection] = []
        self._forget()
        _ALIVE.add(self)
        self._finalizer = weakref.finalize(self, _close_all, self._all)

    def _forget(self) -> None:
        """Begin anew: at birth, and in a forked process, to which neither locks nor connections belong."""
        self._all: list[_Connection] = []
        self._free: list[_Connection] = []
        self._slots = threading.BoundedSemaphore(self._connections)
        self._opening = threading.Lock()
        self._hints = _Hints(self)
        self._pace = NotifyThrottle()
        self._pooled = True
        self._odd = False
        self._opened = False
        self._closed = False

    def forked(self) -> None:
        """Leave the connections to the parent process, and do not let them be closed from here."""
        closed = self._closed
        self._inherited += self._all
        self._finalizer.detach()
        self._forget()
        self._closed = closed
        self._finalizer = weakref.finalize(self, _close_all, self._all)

    # -- what the verbs ask for

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

    async def rows(self, procedure: Procedure, *values: Any) -> list[Any]:
        """Run a procedure that may be run twice, and return its rows; tried again if the connection was dead.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        refuse_workflow()
        caller_connection.checked(procedure, values)
        await self.open()
        try:
            with self._taken() as conn:
                return self._fetched(conn, procedure, *values)
        except Unavailable:
            with self._taken() as conn:
                return self._fetched(conn, procedure, *values)

    def _fetched(self, conn: _Connection, procedure: Procedure, *values: Any) -> list[Any]:
        if not self._odd:
            return _fetch(conn, procedure, *values)
        with _transaction(conn):
            return _fetch(conn, procedure, *values)

    async def within(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure on a blocking connection of the caller's.

        Raises:
            EngineError: as `rows`; InvalidRequest if that is no connection which is taken.
        """
        refuse_workflow()
        return caller_connection.ask_now(conn, procedure, *values)

    async def start(self, values: tuple[Any, ...], *, fresh: bool) -> Any:
        """Start a run, tell of it, and return the row of `START`."""
        sent = self.along("durable_ready")
        # notes are for programs that await
        row = (await self.rows(START, *values, fresh, sent, None))[0]
        if row["handed"]:
            self._pace.one_more("durable_ready")
        elif row["created"]:
            await self.hint("durable_ready", sent=sent)
        return row

    @property
    def heard(self) -> int | None:
        """Nobody listens before somebody waits."""
        return None

    def along(self, channel: Channel) -> bool:
        """Whether a statement may send this hint itself, with its commit."""
        return self._pace.along(channel, time.monotonic())

    async def hint(self, channel: Channel, *, sent: bool = False) -> None:
        """Tell workers and clients to look again, unless they were told; a hint may be lost."""
        if sent:
            return
        try:
            await self.rows(HINT, channel == "durable_ready", channel == "durable_settled")
        except EngineError as error:
            logger.debug("hint not sent: %s", error.message)

    async def ended(self, id: str, timeout_s: float | None, since: int | None = None) -> Any:
        """Wait for the end of a run.

        Raises:
            TimeoutError: it has not ended in time.
            InvalidRequest: that can be no id.
        """
        refuse_no_text(id)
        await self.open()
        until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        looks = PollSchedule(longest_s=_LONGEST_S)
        with self._hints:
            while True:
                pause_s, heard = _AGAIN_S, self._hints.count
                try:
                    rows = await self.rows(RESULTS, [id])
                    if rows:
                        return rows[0]
                    looks.looked(time.monotonic(), found=False)
                    pause_s = looks.at - time.monotonic()
                except Unavailable as error:
                    logger.warning("waiting for run %s: %s", id, error.message)
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"run {id} has not ended after {timeout_s:g} s; it goes on")
                if self._hints.wait(min(pause_s, left_s), heard):
                    looks.hinted(time.monotonic())

    async def close(self) -> None:
        """Close the connections; what other threads are doing on one of them fails."""
        self._closed = True
        _close_all(self._all)

    # -- connections

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands before the database; known once it is open."""
        return self._pooled

    def connect(self, role: str) -> _Connection:
        """Return a new connection.

        Raises:
            Unavailable: the server cannot be reached, or is starting or full.
            EngineError: the server refuses us: no such database, wrong password.
        """
        try:
            conn = psycopg.connect(
                self._dsn,
                autocommit=True,
                row_factory=dict_row,
                cursor_factory=psycopg.RawCursor,
                prepare_threshold=_prepared_after(self._pooled),
                application_name=f"pyengine {role}",
                client_encoding="utf8",
                connect_timeout=int(CONNECT_TIMEOUT_S),
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

    def drop(self, conn: _Connection) -> None:
        """Close a connection that is not used any more."""
        conn.close()
        if conn in self._all:
            self._all.remove(conn)

    @contextmanager
    def _taken(self) -> Iterator[_Connection]:
        """Give a connection to one thread; afterwards it is kept for the next, unless it was found dead."""
        with self._slots:
            # last in, first out: as many connections as are needed and no more
            try:
                conn = self._free.pop()
            except IndexError:
                conn = self.connect("client")
            kept = False
            try:
                yield conn
                kept = True
            except psycopg.Error as error:
                kept = not conn.broken and not conn.closed
                if error.sqlstate in NO_SCHEMA:
                    raise no_schema(self._where) from None
                raise caller_connection.psycopg_error(error, self._where, closed=conn.closed) from error
            except EngineError:
                kept = True
                raise
            finally:
                # what was under way when a thread was interrupted may still hold the connection
                if kept and not self._closed:
                    self._free.append(conn)
                else:
                    self.drop(conn)


class _Hints:
    """Pauses of threads that wait; long ones end when a hint comes.

    One of the threads listens, on a connection that is there while somebody waits, and tells the others.
    """

    def __init__(self, asker: PsycopgTransport) -> None:
        self._asker = weakref.ref(asker)
        self._told = threading.Condition()
        self._waiting = 0
        self._count = 0
        self._listening = False
        self._conn: _Connection | None = None

    def __enter__(self) -> None:
        with self._told:
            self._waiting += 1

    def __exit__(self, *_: object) -> None:
        with self._told:
            self._waiting -= 1
            if not self._waiting:
                self._hang_up()

    @property
    def count(self) -> int:
        """How many hints have come; to be read before a look, which may miss what a later one tells of."""
        return self._count

    def wait(self, seconds: float, heard: int) -> bool:
        """Wait so long at most, and return whether a hint has come since there were `heard`."""
        asker = self._asker()
        if seconds < _WORTH_LISTENING_S or asker is None or asker.pooled:
            time.sleep(max(0.0, seconds))
            return False
        with self._told:
            if self._count != heard:
                return True
            if self._listening:
                self._told.wait(seconds)
                return self._count != heard
            self._listening = True
        came = False
        try:
            came = self._listen(asker, seconds)
        except (psycopg.Error, EngineError) as error:
            logger.debug("hints: %s", error)
            self._hang_up()
            time.sleep(seconds)
        except BaseException:
            self._hang_up()
            raise
        finally:
            with self._told:
                self._listening = False
                self._count += came
                self._told.notify_all()
        return came

    def _listen(self, asker: PsycopgTransport, seconds: float) -> bool:
        if self._conn is None:
            self._conn = asker.connect("listen")
            self._conn.execute(LISTEN.sql.encode())
            # what settled before the session listened has to be looked for
            return True
        return any(True for _ in self._conn.notifies(timeout=seconds, stop_after=1))

    def _hang_up(self) -> None:
        conn, self._conn, asker = self._conn, None, self._asker()
        if conn is not None and asker is not None:
            asker.drop(conn)


@contextmanager
def _transaction(conn: _Connection) -> Iterator[None]:
    """A transaction as ours are, in whatever session; as in database/sessions.py."""
    conn.execute(f"{BEGIN.sql}; {SETTINGS_WITHIN.sql}".encode())
    try:
        yield
    except BaseException:
        if not conn.closed:
            conn.execute(b"rollback")
        raise
    conn.execute(b"commit")


def _prepared_after(pooled: bool) -> int | None:
    """Return after how many uses a statement is prepared: behind a pooler it might be in another session."""
    return None if pooled else 5


def _fetch(conn: _Connection, procedure: Procedure, *values: Any) -> list[dict[str, Any]]:
    """Run a procedure and return its rows, with instants in UTC whatever the session's time zone is."""
    return [
        {name: each.astimezone(UTC) if isinstance(each, datetime) else each for name, each in row.items()}
        for row in conn.execute(procedure.sql.encode(), values).fetchall()
    ]


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


_ALIVE: weakref.WeakSet[PsycopgTransport] = weakref.WeakSet()


def _forked() -> None:
    for asker in tuple(_ALIVE):
        asker.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
