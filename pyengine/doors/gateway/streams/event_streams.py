"""Streams of messages over HTTP: server-sent events.

Lives here: `GET /poll/{group}/{id}`, from the request to the last byte of its answer. May not: which messages
are sent (offers.py, unblocks.py). Design: a stream ends by itself before clients go deaf, and they open it
again within a second. The server's report of a closed connection ends it early; a write that fails says
nothing, because the server drops what cannot be written. A message counts as sent once the operating system
has it: the empty write behind it returns only then (gateway/outgoing.py).
"""

from __future__ import annotations

import contextlib
import logging
import random

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.doors.gateway.outgoing import STUCK_S, Outgoing, drain, write
from pyengine.doors.gateway.permissions import Forbidden, check_stream
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.streams.frames import COMMENT, CONNECTED
from pyengine.doors.gateway.streams.members import Full, Member, Members, Stream, is_routable
from pyengine.doors.gateway.tokens import TokenRefused, bearer

logger = logging.getLogger("pyengine.gateway")

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStreams:
    """The endpoint that opens streams for the members of one API.

    Args:
        resources: what it shares with other endpoints.
        members: the open streams.
    """

    def __init__(self, resources: Resources, members: Members) -> None:
        self._config = resources.config
        self._verifier = resources.verifier
        self._outgoing = resources.outgoing
        self._members = members

    async def open(self, request: Request) -> Response:
        """Open a stream for the member that the path names."""
        if request.method == "HEAD":
            return PlainTextResponse("", 405, {"allow": "GET"})
        member = Member(request.path_params["group"], request.path_params["pid"])
        if self._verifier is not None:
            try:
                check_stream(self._verifier.verify(bearer(request.headers)), member.group)
            except TokenRefused as refused:
                return PlainTextResponse(str(refused), 401, {"www-authenticate": "Bearer"})
            except Forbidden as forbidden:
                return PlainTextResponse(str(forbidden), 403)
        if not is_routable(*member):
            return PlainTextResponse("no message can be addressed to this group and id", 400)
        ends_s = clock.monotonic() + random.uniform(*self._config.stream_life_s)
        try:
            stream = self._members.join(member, ends_s, ends_s - self._config.closing_s)
        except Full:
            return PlainTextResponse("this gateway takes no further stream", 503, {"retry-after": "1"})
        return _StreamResponse(stream, self._members, self._outgoing, self._config.comment_s)


class _StreamResponse(Response):
    """The answer that is a stream."""

    def __init__(self, stream: Stream, members: Members, outgoing: Outgoing, comment_s: float) -> None:
        super().__init__()
        self._stream = stream
        self._members = members
        self._outgoing = outgoing
        self._comment_s = comment_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write messages until the stream has ended."""
        watching = Background(self._fail)
        watching.start(self._watch(receive))
        stream = self._stream
        try:
            async with self._outgoing.writing(scope, stream.share, stream.ends_s + STUCK_S, "stream"):
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await write(send, CONNECTED)
                while await self._write_next(send):
                    pass
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.stop()
            self._members.leave(stream)

    async def _write_next(self, send: Send) -> bool:
        """Write what there is, or wait for something; return false at the end."""
        stream, now_s = self._stream, clock.monotonic()
        if now_s >= stream.ends_s:
            stream.end("its time is over")
        stream.wake.clear()
        messages = stream.take()
        if messages:
            for message in messages:
                await write(send, message.frame)
                await drain(send)
                if stream.ended == "gone":
                    return False
                stream.was_taken(message)
            return True
        if stream.ended is not None:
            return False
        pause_s = min(self._comment_s, stream.ends_s - now_s)
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(pause_s):
                await stream.wake.wait()
        if not stream.wake.is_set() and clock.monotonic() < stream.ends_s:
            await write(send, COMMENT)
        return True

    def _fail(self, error: BaseException) -> None:
        """Nothing shows any more whether the client is there."""
        logger.error("a stream is ended: its client is not heard", exc_info=error)
        self._stream.end("gone")

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._stream.take()
        self._stream.end("gone")
