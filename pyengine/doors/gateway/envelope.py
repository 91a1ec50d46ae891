"""Envelopes: requests read from bytes, and answers that the gateway gives itself.

Lives here: the JSON of a request, as far as it must be understood before the database has it, and the form of
a refusal. May not: the meaning of a request. Design: kind and token are looked up in the bytes; objects are
made when the token was checked, because a body may have millions of them. The database is given the JSON
that was checked, written again, so that no difference between two readers of JSON can be used. Tokens are
taken out of it: statements and their parameters can stand in the logs of a server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyengine.doors.gateway.json_object import read_parts, read_value

VERSION = "2026-04-01"

_DEBUG_TIME = "resonate:debug_time"
# a larger body is no slip of a client, and would keep others waiting
_GUESSED_BYTES_MAX = 64 * 1024
_ABSENT = msgspec.Raw(b"")


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


class _Parts(msgspec.Struct):
    kind: msgspec.Raw = _ABSENT
    head: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT


class _Head(msgspec.Struct):
    corr_id: msgspec.Raw = msgspec.field(default=_ABSENT, name="corrId")
    auth: msgspec.Raw = _ABSENT


@dataclass(slots=True, kw_only=True)
class Request:
    """A request as far as the gateway understands it.

    Args:
        kind: its kind, or "unknown".
        corr_id: its correlation id, or "0".
        token: its token, which is never part of the document.
        parts: its kind, head and data, of which nothing was made yet.

    Attributes:
        document: the request, once it was made.
    """

    kind: str = "unknown"
    corr_id: str = "0"
    token: str | None = None
    parts: dict[str, msgspec.Raw] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """Its data; empty if it has none."""
        data = self.document.get("data")
        return data if isinstance(data, dict) else {}

    def make(self, *, debug: bool) -> bool:
        """Make its document of its parts; return false if they are no JSON.

        Args:
            debug: leave in it the instant as of which it asks to be handled.
        """
        parts, self.parts = self.parts, {}
        try:
            document = {name: read_value(part) for name, part in parts.items()}
        except ValueError:
            return False
        head = document.get("head")
        if isinstance(head, dict):
            head.pop("auth", None)
            if not debug:
                head.pop(_DEBUG_TIME, None)
        _remove_inner_tokens(document.get("data"))
        self.document = document
        return bool(document)


def read_request(body: bytes) -> Request:
    """Return the request in a body; of one that cannot be read nothing can be made."""
    parts = read_parts(body, _Parts)
    if parts is None:
        return _guess(body)
    head = read_parts(parts.head, _Head) or _Head()
    return Request(
        kind=_text(parts.kind) or "unknown",
        corr_id=_text(head.corr_id, "0"),
        token=_text(head.auth) or None,
        parts={name: part for name, part in msgspec.structs.asdict(parts).items() if part is not _ABSENT},
    )


def refusal(kind: str, corr_id: str, status: int, reason: str) -> dict[str, Any]:
    """Return the answer with that status and text."""
    head = {"corrId": corr_id, "status": status, "version": VERSION}
    return {"kind": kind, "head": head, "data": reason}


def _text(part: msgspec.Raw, default: str = "") -> str:
    """Return the text that a part is; the default if it is anything else."""
    if bytes(memoryview(part)[:1]) != b'"':
        return default
    try:
        return str(read_value(part))
    except ValueError:
        return default


def _guess(body: bytes) -> Request:
    """Return what a more lenient reader finds in a small body, for the head of the answer alone."""
    if len(body) > _GUESSED_BYTES_MAX:
        return Request()
    try:
        found = json.loads(body.decode(errors="replace"))
        # half of a character, which no answer can have in it
        found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return Request()
    found = found if isinstance(found, dict) else {}
    head = found.get("head")
    kind, corr_id = found.get("kind"), head.get("corrId") if isinstance(head, dict) else None
    return Request(
        kind=kind if isinstance(kind, str) and kind else "unknown",
        corr_id=corr_id if isinstance(corr_id, str) else "0",
    )


def _remove_inner_tokens(data: Any) -> None:
    if not isinstance(data, dict):
        return
    actions = data.get("actions")
    for one in [data.get("action"), *(actions if isinstance(actions, list) else [])]:
        if isinstance(one, dict) and isinstance(one.get("head"), dict):
            one["head"].pop("auth", None)
