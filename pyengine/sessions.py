"""What is done to the session of a connection: kept alive, cleaned.

What lives here: two functions on a connection of asyncpg. What may not: making one, or knowing what it is
for. The theory: statements of users may change settings, the role, temporary tables and advisory locks of
the session that they run in; the next user of the connection must not see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import asyncpg

from pyengine.procedures import CLEAN_SESSION

__all__ = ["clean_session", "keep_alive"]

_CLEAN_S = 5.0


async def clean_session(conn: Any) -> bool:
    """Take back what statements have set in a session; false if it cannot be used any more."""
    try:
        async with asyncio.timeout(_CLEAN_S):
            await conn.execute(CLEAN_SESSION.sql)
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
