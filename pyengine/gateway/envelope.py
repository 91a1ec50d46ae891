"""Envelopes: requests read from bytes, and answers that the gateway gives itself.

Lives here: the JSON of a request, as far as it must be understood before the database has it, and the form of
a refusal. May not: the meaning of a request. Design: the database is given the JSON that was checked, written
again, so that no difference between two readers of JSON can be used. Tokens are taken out of it: statements
and their parameters can stand in the logs of a server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyengine.gateway.json_object import read_object

__all__ = ["VERSION", "Refused", "Request", "read_request", "refusal"]

VERSION = "2026-04-01"

_DEBUG_TIME = "resonate:debug_time"
# a larger body is no slip of a client, and would keep others waiting
_GUESSED_BYTES_MAX = 64 * 1024


class Refused(Exception):
    """A request that the gateway answers itself.

    Args:
        status: the status of the answer.
        reason: its text.
        retry_after_s: seconds after which the client may try again.
        closes: the connection is closed after the answer.

    Attributes:
        headers: headers of the answer.
    """

    def __init__(
        self, status: int, reason: str, *, retry_after_s: int | None = None, closes: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {"connection": "close"} if closes else {}
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as far as the gateway understands it.

    Args:
        kind: its kind, or "unknown".
        corr_id: its correlation id, or "0".
        token: its token, which is no longer part of the document.
        document: the whole request.
    """

    kind: str
    corr_id: str
    token: str | None
    document: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """Its data; empty if it has none."""
        data = self.document.get("data")
        return data if isinstance(data, dict) else {}


def read_request(body: bytes, *, debug: bool) -> Request:
    """Return the request in a body; one that cannot be read has no document.

    Args:
        body: the bytes.
        debug: leave in it the instant as of which it asks to be handled.
    """
    document = read_object(body)
    if document is None:
        return _described(_guess(body), None, {})
    head = document.get("head")
    token = None
    if isinstance(head, dict):
        token = head.pop("auth", None)
        if not debug:
            head.pop(_DEBUG_TIME, None)
    _remove_inner_tokens(document.get("data"))
    return _described(document, token if isinstance(token, str) else None, document)


def refusal(kind: str, corr_id: str, status: int, reason: str) -> dict[str, Any]:
    """Return the answer with that status and text."""
    head = {"corrId": corr_id, "status": status, "version": VERSION}
    return {"kind": kind, "head": head, "data": reason}


def _described(found: Any, token: str | None, document: dict[str, Any]) -> Request:
    found = found if isinstance(found, dict) else {}
    head = found.get("head")
    kind, corr_id = found.get("kind"), head.get("corrId") if isinstance(head, dict) else None
    return Request(
        kind=kind if isinstance(kind, str) and kind else "unknown",
        corr_id=corr_id if isinstance(corr_id, str) else "0",
        token=token,
        document=document,
    )


def _guess(body: bytes) -> Any:
    """Return what a more lenient reader finds in a small body, for the head of the answer alone."""
    if len(body) > _GUESSED_BYTES_MAX:
        return None
    try:
        found = json.loads(body.decode(errors="replace"))
        # half of a character, which no answer can have in it
        return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _remove_inner_tokens(data: Any) -> None:
    if not isinstance(data, dict):
        return
    actions = data.get("actions")
    for one in [data.get("action"), *(actions if isinstance(actions, list) else [])]:
        if isinstance(one, dict) and isinstance(one.get("head"), dict):
            one["head"].pop("auth", None)
