"""Bodies of requests, read within limits.

Lives here: `read_body`. May not: the content of a body. Design: limits are kept while a body arrives,
whatever its head announces: only what has arrived is counted. A body that is refused is read on for a moment
and thrown away, because a client that is still writing would see a broken connection and no answer. A body
that arrives slowly is given up when others need its memory (memory.py).
"""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from pyengine.core.process import clock
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.memory import Share

_WHOLE_S = 300.0
_DRAIN_S = 1.0
_RETRY_AFTER_S = 1


async def read_body(request: Request, share: Share, limit: int, idle_s: float) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        share: counts its bytes.
        limit: the largest number of bytes.
        idle_s: seconds without a byte after which it is given up.

    Raises:
        Refused: it has more bytes, did not arrive in time or before others needed its memory, or they leave
            none for it.
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
        async with clock.timeout(_WHOLE_S) as whole:
            share.interrupt = lambda: whole.reschedule(clock.monotonic())
            while True:
                async with clock.timeout(idle_s):
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
    finally:
        share.interrupt = None
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
        async with clock.timeout(_DRAIN_S):
            while (await _next(request))[1]:
                pass
    except (TimeoutError, ClientDisconnect):
        pass


async def _next(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
