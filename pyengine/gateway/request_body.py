"""Bodies of requests, read within limits.

Lives here: `read_body`. May not: the content of a body. Design: a limit is kept while the body arrives. A
body that is too large is read on for a moment and thrown away, because a client that is still writing would
see a broken connection and no answer.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from pyengine.gateway.envelope import Refused

__all__ = ["read_body"]

_WHOLE_S = 300.0
_DRAIN_S = 1.0


async def read_body(request: Request, limit: int, idle_s: float) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        limit: the largest number of bytes.
        idle_s: seconds without a byte after which it is given up.

    Raises:
        Refused: it has more bytes, or did not arrive in time.
        ClientDisconnect: the client is gone.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        # a client that asks whether to send it need not
        if request.headers.get("expect", "").lower() != "100-continue":
            await _drain(request)
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_WHOLE_S):
            while True:
                async with asyncio.timeout(idle_s):
                    chunk, more = await _next(request)
                size += len(chunk)
                if size > limit:
                    chunks.clear()
                    break
                chunks.append(chunk)
                if not more:
                    return b"".join(chunks)
    except TimeoutError:
        raise Refused(408, "the request did not arrive in time", closes=True) from None
    await _drain(request)
    raise _too_large(limit)


def _too_large(limit: int) -> Refused:
    return Refused(413, f"a request has at most {limit} bytes", closes=True)


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
