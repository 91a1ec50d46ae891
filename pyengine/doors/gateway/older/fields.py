"""Fields of the older API's requests.

Lives here: reading a field of a body, and its conversion to what a statement takes. May not: headers and
paths (call.py), which fields a request has (promises.py, tasks.py, schedules.py).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from pyengine.doors.gateway.envelope import Refused

Body: TypeAlias = dict[str, Any]

_NEVER_MS = 2**53 - 1


def text(body: Body, name: str) -> str:
    """Return a text that is not empty.

    Raises:
        Refused: it is none.
    """
    found = body.get(name)
    if not isinstance(found, str) or not found:
        raise Refused(400, f"{name} must be a string that is not empty")
    return found


def integer(body: Body, name: str) -> int:
    """Return a whole number of eight bytes.

    Raises:
        Refused: it is none.
    """
    found = body.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not -(2**63) <= found < 2**63:
        raise Refused(400, f"{name} must be a whole number")
    return found


def object_of(body: Body, name: str, default: Body | None = None) -> Body:
    """Return an object, or the default if there is none.

    Raises:
        Refused: it is something else, or is missing without a default.
    """
    found = body.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, dict):
        raise Refused(400, f"{name} must be an object")
    return found


def counter(body: Body) -> int:
    """Return the counter of a task; a number that no task can have is kept, so that it matches none."""
    return min(max(integer(body, "counter"), -1), 2**31 - 1)


def instant(body: Body, name: str) -> int:
    """Return a deadline or a span; one beyond the range of deadlines means never."""
    return min(integer(body, name), _NEVER_MS)


def data(payload: Body) -> str | None:
    """Return the data of a param or a value."""
    found = payload.get("data")
    if found is not None and not isinstance(found, str):
        raise Refused(400, "data must be a string")
    return found


def headers(payload: Body) -> str | None:
    """Return the headers of a param or a value as JSON text."""
    return None if payload.get("headers") is None else as_json(payload["headers"])


def receiver(body: Body) -> str:
    """Return the receiver of a callback as JSON text.

    Raises:
        Refused: there is none.
    """
    if "recv" not in body:
        raise Refused(400, "recv must be an address")
    return as_json(body["recv"])


def receiver_address(body: Body) -> Any:
    """Return the receiver as an address, for the comparison with the groups of a token."""
    recv = body.get("recv")
    if isinstance(recv, dict) and recv.get("type") == "poll" and isinstance(recv.get("data"), dict):
        return f"poll://any@{recv['data'].get('group')}"
    return recv


def tags_with_target(body: Body) -> Body:
    """Return the tags of a promise with its target under its present name."""
    tags = object_of(body, "tags", {})
    return {"resonate:target": tags["resonate:invoke"], **tags} if "resonate:invoke" in tags else tags


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()
