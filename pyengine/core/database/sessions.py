"""Sessions of connections: configured, kept alive and cleaned; and the engine's transactions.

Lives here: functions on a connection of asyncpg. May not: making one, or knowing its purpose. Design: role
and database can set defaults for a session, and the engine relies on some of these settings, so it sets them
all in its own sessions (database/statements/sessions.py). Behind a pooler sessions are shared: there each
transaction sets them, if the session's differ. Statements of users may change settings, the role, temporary
tables and advisory locks of their session; the next user of the connection must not see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from asyncio.sslproto import SSLProtocol
from asyncio.trsock import TransportSocket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from pyengine.core.database.statements.sessions import (
    BEGIN,
    BEGIN_READING,
    CLEAN,
    IS_ODD,
    OWN_WITHIN,
    SETTINGS,
    SETTINGS_WITHIN,
    WORKER_SETTINGS,
)
from pyengine.core.process import clock

_CLEAN_S = 5.0
_WATCH_S = 0.005
_STOPS_S = 0.5
_ANSWERS_S = 5.0

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Errors of a statement or of connecting; after all but the first the outcome of the statement is unknown."""


async def fit(conn: Any, role: str) -> None:
    """Set the settings that the engine relies on in a session of its own; `role` is its purpose."""
    await conn.execute(SETTINGS.get(role, WORKER_SETTINGS).sql)


async def is_odd(conn: Any, role: str) -> bool:
    """Return whether a shared session lacks settings of a purpose, so that each transaction must set them."""
    return role in OWN_WITHIN or bool(await conn.fetchval(IS_ODD.sql))


async def begin(conn: Any, role: str = "", *, reads: bool = False) -> None:
    """Begin a transaction with the engine's settings, in any session.

    Args:
        conn: the connection.
        role: its purpose, which may have settings of its own.
        reads: the transaction only reads, which a standby allows too.
    """
    settings = OWN_WITHIN.get(role, SETTINGS_WITHIN)
    await conn.execute(f"{(BEGIN_READING if reads else BEGIN).sql}; {settings.sql}")


@contextlib.asynccontextmanager
async def transaction(conn: Any, role: str = "", *, reads: bool = False) -> AsyncIterator[None]:
    """Run the block in a transaction with the engine's settings; arguments as for `begin`.

    An error rolls it back. If the block is cancelled, its caller gives up the connection, and the transaction
    with it: a statement that still runs could keep the rollback waiting.
    """
    await begin(conn, role, reads=reads)
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException:
        if not conn.is_closed():
            await conn.execute("rollback")
        raise
    await conn.execute("commit")


async def close_session(conn: Any, timeout_s: float = 2.0) -> None:
    """Close a connection; terminate one that does not close in time."""
    try:
        await conn.close(timeout=timeout_s)
    except DRIVER_ERRORS:  # it was lost meanwhile, or the server takes too long
        conn.terminate()


async def clean_session(conn: Any) -> bool:
    """Reset what statements have set in a session; return false if it cannot be used any more."""
    try:
        async with clock.timeout(_CLEAN_S):
            await conn.execute(CLEAN.sql)
    except DRIVER_ERRORS:
        return False
    return True


async def stopped(conn: Any) -> None:
    """Give the driver the moment that it takes to ask the server to stop what nobody wants any more."""
    until_s = clock.monotonic() + _STOPS_S
    while getattr(conn, "_cancellations", None) and clock.monotonic() < until_s:
        await clock.sleep(_WATCH_S)


async def answers(conn: Any) -> bool:
    """Roll back a transaction whose statement was given up, and return whether the server answers at all on
    this connection: a network may have lost it without a word.
    """
    try:
        async with clock.timeout(_ANSWERS_S):
            await conn.execute("rollback")
    except asyncpg.PostgresError:
        return True
    except DRIVER_ERRORS:
        return False
    return True


def keep_alive(conn: Any) -> None:
    """Let the kernel detect a dead peer within a minute, and no forked child keep the session alive."""
    transport = getattr(conn, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        _descriptors[conn] = sock.fileno()
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_descriptors: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_openings: dict[object, tuple[Any, frozenset[Any]]] = {}


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """Return a context in which a connection is opened, and given to `keep_alive`.

    The driver answers it when it is open, but the server has a session before. A child that is forked
    meanwhile knows what it would inherit by what the loop had before; uvloop does not say it.
    """
    loop, mark = asyncio.get_running_loop(), object()
    _openings[mark] = loop, frozenset(getattr(loop, "_transports", {}).values())
    try:
        yield
    finally:
        _openings.pop(mark, None)  # a forked child has none


def _being_opened() -> set[int]:
    """Return the numbers of sockets of the driver that have come since the oldest opening began."""
    found: set[int] = set()
    for loop, before in _openings.values():
        for number, transport in list(loop._transports.items()) if hasattr(loop, "_transports") else ():
            protocol = transport.get_protocol()
            ours = isinstance(protocol, SSLProtocol) or type(protocol).__module__.startswith("asyncpg.")
            if ours and transport not in before:
                found.add(number)
    return found


def close_ended() -> int:
    """Close the sessions of event loops that have ended without closing them; return how many there were."""
    ended = [conn for conn in list(_descriptors) if conn._loop.is_closed() and not conn.is_closed()]
    for conn in ended:
        _descriptors.pop(conn, None)
        sock = conn._transport.get_extra_info("socket")
        # uvloop closes its sockets with the loop, and their numbers may be those of others by now
        if isinstance(sock, TransportSocket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
    return len(ended)


def _leave_to_parent() -> None:
    """Let go of the sessions of the parent, in a forked child: they are to end with it.

    The numbers stay taken, because objects that the child has inherited would close them.
    """
    open_ones = {number for conn, number in _descriptors.items() if not conn.is_closed()} | _being_opened()
    _descriptors.clear()
    _openings.clear()
    if open_ones:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in open_ones:
            os.dup2(nowhere, number, inheritable=False)
        os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
