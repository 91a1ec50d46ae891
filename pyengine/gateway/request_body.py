"""Bodies of requests, read within limits.

Lives here: `read_body`, and `BodyMemory`, the bytes of all bodies together. May not: the content of a body.
Design: limits are kept while a body arrives, whatever its head announces. A body that is refused is read on
for a moment and thrown away, because a client that is still writing would see a broken connection and no
answer. The request that would exceed the memory of all is refused and gives its own part back, so the others
go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.requests import ClientDisconnect, Request

from pyengine.gateway.envelope import Refused

__all__ = ["BodyMemory", "BodyShare", "read_body"]

_WHOLE_S = 300.0
_DRAIN_S = 1.0
_RETRY_AFTER_S = 1


class BodyMemory:
    """The bytes of all bodies that are held at once.

    Args:
        limit: the largest number of them.

    Attributes:
        held: how many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[BodyShare]:
        """Give a request its share, until its answer is made."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            share.give_back()

    def take(self, size: int) -> bool:
        """Take so many bytes more; return false if that would be too many."""
        if self.held + size > self._limit:
            return False
        self.held += size
        return True


class BodyShare:
    """The bytes of one body.

    Args:
        memory: all of them.

    Attributes:
        held: how many there are.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.held = 0

    def add(self, size: int) -> bool:
        """Add so many bytes; return false if there is no memory for them."""
        taken = self._memory.take(size)
        if taken:
            self.held += size
        return taken

    def give_back(self) -> None:
        """Give all of them back."""
        self._memory.held -= self.held
        self.held = 0


async def read_body(request: Request, share: BodyShare, limit: int, idle_s: float) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        share: counts its bytes.
        limit: the largest number of bytes.
        idle_s: seconds without a byte after which it is given up.

    Raises:
        Refused: it has more bytes, did not arrive in time, or other bodies leave no memory for it.
        ClientDisconnect: the client is gone.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        # a client that asks whether to send it need not
        if request.headers.get("expect", "").lower() != "100-continue":
            await _drain(request)
        raise _too_large(limit)
    chunks: list[bytes] = []
    refusal = _too_large(limit)
    try:
        async with asyncio.timeout(_WHOLE_S):
            while True:
                async with asyncio.timeout(idle_s):
                    chunk, more = await _next(request)
                if share.held + len(chunk) > limit:
                    break
                if not share.add(len(chunk)):
                    refusal = _no_memory()
                    break
                chunks.append(chunk)
                if not more:
                    return b"".join(chunks)
    except TimeoutError:
        raise Refused(408, "the request did not arrive in time", closes=True) from None
    chunks.clear()
    share.give_back()
    await _drain(request)
    raise refusal


def _too_large(limit: int) -> Refused:
    return Refused(413, f"a request has at most {limit} bytes", closes=True)


def _no_memory() -> Refused:
    reason = "too many bytes of requests are on their way"
    return Refused(503, reason, retry_after_s=_RETRY_AFTER_S, closes=True)


async def _drain(request: Request) -> None:
    try:
        async with asyncio.timeout(_DRAIN_S):
            while (await _next(request))[1]:
                pass
    except (TimeoutError, ClientDisconnect):
        pass


async def _next(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
