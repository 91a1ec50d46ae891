"""Requests with the protocol's envelope: `POST /`.

Lives here: the way of one request through limits, token and database. May not: what it means. Design: every
answer is an envelope, whatever went wrong, and the HTTP status is the status in its head. An answer of the
gateway itself names the kind and the correlation id of the request as far as they could be read.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pyengine.core.process import clock
from pyengine.doors.gateway.envelope import Refused, read_request, refusal
from pyengine.doors.gateway.envelope import Request as Envelope
from pyengine.doors.gateway.memory import Share
from pyengine.doors.gateway.permissions import Forbidden, check, narrow, withhold
from pyengine.doors.gateway.request_body import read_body
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.streams.members import Members
from pyengine.doors.gateway.tokens import Claims, TokenRefused, bearer


class Rpc:
    """The endpoint of the protocol.

    Args:
        resources: what it shares with other endpoints.
        members: the open streams, which learn what is acquired.
    """

    def __init__(self, resources: Resources, members: Members) -> None:
        self._resources = resources
        self._config = resources.config
        self._backend = resources.backend
        self._verifier = resources.verifier
        self._members = members

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        with self._resources.bodies.share() as share:
            return await self._answer(request, share)

    async def _answer(self, request: Request, share: Share) -> Response:
        begun_s = clock.monotonic()
        envelope = Envelope()
        try:
            envelope = read_request(await self._body(request, share))
            answer = await self._ask(envelope, bearer(request.headers))
            response = self._resources.outgoing.counted(_response(answer))
        except Refused as refused:
            self._refused(envelope, refused.status)
            response = _refusal(envelope, refused)
        except ClientDisconnect:
            # no one reads it
            return Response(status_code=400)
        self._resources.metrics.answered(envelope.kind, response.status_code, clock.monotonic() - begun_s)
        return response

    async def _ask(self, envelope: Envelope, header: str | None) -> dict[str, Any]:
        claims = self._read_token(envelope, header)
        if not envelope.make(debug=self._config.debug):
            raise Refused(400, "the body is no request: a JSON object of kind, head and data")
        if claims is not None:
            _check_claims(claims, envelope)
        if envelope.kind.startswith("debug.") and not self._config.debug:
            raise Refused(403, f"{envelope.kind} is switched off here: pyengine serve --debug")
        if claims is not None:
            narrow(claims, envelope.kind, envelope.data)
        text = msgspec.json.encode(envelope.document).decode()
        _forget_all_but_the_task(envelope)
        answer = await self._backend.rpc(envelope.kind, text)
        if claims is not None:
            withhold(claims, answer["data"])
        if answer["head"]["status"] == 200:
            if envelope.kind == "task.acquire":
                self._members.acquired(envelope.data["id"], envelope.data["version"])
            if self._resources.housekeeping is not None:
                self._resources.housekeeping.answered(envelope.kind, answer)
        return answer

    async def _body(self, request: Request, share: Share) -> bytes:
        return await read_body(request, share, self._config.max_body_bytes, self._config.body_idle_s)

    def _refused(self, envelope: Envelope, status: int) -> None:
        """Let a task be offered again soon if it was not acquired because of this gateway or its database."""
        if status != 503 or envelope.kind != "task.acquire":
            return
        id, version = envelope.data.get("id"), envelope.data.get("version")
        if isinstance(id, str) and isinstance(version, int):
            self._members.refused(id, version)

    def _read_token(self, envelope: Envelope, header: str | None) -> Claims | None:
        """Return what the token says, before anything is made of the body; None if no token is needed."""
        if self._verifier is None:
            return None
        if header is not None and envelope.token is not None and header != envelope.token:
            raise Refused(401, "head.auth and the header Authorization have different tokens")
        try:
            return self._verifier.verify(envelope.token or header)
        except TokenRefused as refused:
            raise Refused(401, str(refused)) from None


def _check_claims(claims: Claims, envelope: Envelope) -> None:
    """Return if the claims of a token allow the request."""
    try:
        check(claims, envelope.kind, envelope.data)
    except Forbidden as forbidden:
        raise Refused(403, str(forbidden)) from None


def _response(answer: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode(answer)
    return Response(body, answer["head"]["status"], headers, media_type="application/json")


def _refusal(envelope: Envelope, refused: Refused) -> Response:
    headers = refused.headers
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    answer = refusal(envelope.kind, envelope.corr_id, refused.status, refused.reason)
    return _response(answer, headers)


def _forget_all_but_the_task(envelope: Envelope) -> None:
    """Drop the objects of a request that waits for the database, with many times the bytes of its text."""
    data = envelope.data
    task = {name: data[name] for name in ("id", "version") if isinstance(data.get(name), str | int)}
    envelope.document.clear()
    envelope.document["data"] = task
