"""Answers and streams, written no faster than clients take them.

Lives here: the writes of an answer and of a stream, and the end of a connection whose client does not read.
May not: what is written. Design: large bytes are written in pieces, each when the operating system has taken
the one before, so the server buffers one piece for each connection. All bytes are counted until they are
taken (memory.py). A client that takes no piece for a minute is given up, and so is one that needs too long
for a whole answer. Its connection is cut off, not closed: a close would wait for the client once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyengine.core.process import clock
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.memory import Memory, Share
from pyengine.doors.gateway.metrics import Metrics

STUCK_S = 60.0
_WHOLE_S = 300.0
_PIECE = 64 * 1024
_RETRY_AFTER_S = 1


class Outgoing:
    """The bytes on their way to clients.

    Args:
        limit: the largest number of them.
        metrics: counts the clients that are given up.

    Attributes:
        memory: the bytes.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.memory = Memory(limit)
        self._metrics = metrics

    def counted(self, response: Response) -> Response:
        """Return an answer that is counted until its client has taken it.

        Raises:
            Refused: there is no memory for it.
        """
        share = Share(self.memory)
        if not share.add(len(response.body)):
            reason = "too many bytes of answers are on their way"
            raise Refused(503, reason, retry_after_s=_RETRY_AFTER_S)
        return _Counted(response, share, self)

    @contextlib.asynccontextmanager
    async def writing(self, scope: Scope, share: Share, until_s: float, what: str) -> AsyncIterator[None]:
        """Cut the connection off if the writes of a block take too long.

        Args:
            scope: the request.
            share: the bytes that are written, given back at the end.
            until_s: the time at which the writes have taken too long.
            what: what is written, for the figures.
        """
        try:
            async with clock.timeout_at(until_s) as limit:
                share.interrupt = lambda: limit.reschedule(clock.monotonic())
                yield
        except TimeoutError:
            self._metrics.slow_clients.labels(what).inc()
            _cut_off(scope)
        finally:
            share.interrupt = None
            share.give_back()


class _Counted(Response):
    """An answer whose bytes have a share."""

    def __init__(self, response: Response, share: Share, outgoing: Outgoing) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = response.raw_headers
        self._share = share
        self._outgoing = outgoing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it."""
        until_s = clock.monotonic() + _WHOLE_S
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with self._outgoing.writing(scope, self._share, until_s, "answer"):
            await send(start)
            await write(send, bytes(self.body))
            await drain(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def write(send: Send, data: bytes) -> None:
    """Write bytes, the last piece of which may still be in the server's hands.

    Raises:
        TimeoutError: the client takes nothing.
    """
    for at in range(0, len(data), _PIECE):
        await _write_piece(send, data[at : at + _PIECE])


async def drain(send: Send) -> None:
    """Return when the operating system has all that was written.

    Raises:
        TimeoutError: the client takes nothing.
    """
    await _write_piece(send, b"")


async def _write_piece(send: Send, data: bytes) -> None:
    async with clock.timeout(STUCK_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _cut_off(scope: Scope) -> None:
    """End a connection without what it still had to send."""
    connection: Any = scope.get("state", {}).get("connection")
    if connection is not None:
        connection.abort()
