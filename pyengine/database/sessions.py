"""What is done to the session of a connection: made ours, kept alive, cleaned; and transactions as ours are.

What lives here: functions on a connection of asyncpg. What may not: making one, or knowing what it is for.
The theory: a session begins as its role and database wish, and we rely on some of that, so a session of our
own is told all of it (database/statements/sessions.py). Behind a pooler a session is nobody's: there each
transaction says it, if the session is found odd. Statements of users may change settings, the role, temporary
tables and advisory locks of the session that they run in; the next user of the connection must not see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from pyengine.database.statements.sessions import (
    BEGIN,
    CLEAN,
    IS_ODD,
    SETTINGS,
    SETTINGS_WITHIN,
    WORKER_SETTINGS,
)

__all__ = ["begin", "clean_session", "fit", "is_odd", "keep_alive", "transaction"]

_CLEAN_S = 5.0


async def fit(conn: Any, role: str) -> None:
    """Set what we rely on in a session of our own; `role` says what it is for."""
    await conn.execute(SETTINGS.get(role, WORKER_SETTINGS).sql)


async def is_odd(conn: Any) -> bool:
    """Return whether transactions of a session that is not ours must say how they begin and end."""
    return bool(await conn.fetchval(IS_ODD.sql))


async def begin(conn: Any) -> None:
    """Begin a transaction as ours are, in whatever session."""
    await conn.execute(f"{BEGIN.sql}; {SETTINGS_WITHIN.sql}")


@contextlib.asynccontextmanager
async def transaction(conn: Any) -> AsyncIterator[None]:
    """Run the block in such a transaction, which an error rolls back."""
    await begin(conn)
    try:
        yield
    except BaseException:
        if not conn.is_closed():
            await conn.execute("rollback")
        raise
    await conn.execute("commit")


async def clean_session(conn: Any) -> bool:
    """Take back what statements have set in a session; false if it cannot be used any more."""
    try:
        async with asyncio.timeout(_CLEAN_S):
            await conn.execute(CLEAN.sql)
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
    ):
        return False
    return True


def keep_alive(conn: Any) -> None:
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
