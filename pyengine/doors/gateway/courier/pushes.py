"""Messages that are to be pushed.

Lives here: `Offer` and `Unblock`, read from rows of the database, and the part of an address that a log may
show. May not: sending them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyengine.doors.gateway.streams.frames import execute_message, unblock_message


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An execute message: a task that its receiver may acquire.

    Args:
        address: where it goes.
        id: id of the task.
        version: its version.
        retry_ms: after so many milliseconds the database offers it again.
        headers: what the receiver of the older API wants to be sent.
        body: the message.
    """

    address: str
    id: str
    version: int
    retry_ms: int
    headers: Mapping[str, str]
    body: bytes
    kind: str = field(default="execute", init=False)

    @classmethod
    def from_row(cls, row: Any, server_url: str | None) -> Offer:
        """Read a row of the statement OFFERS."""
        return cls(
            address=row["address"],
            id=row["id"],
            version=row["version"],
            retry_ms=row["retry_ms"],
            headers={} if row["headers"] is None else json.loads(row["headers"]),
            body=execute_message(row["id"], row["version"], server_url),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unblock:
    """An unblock message: a promise that settled.

    Args:
        address: where it goes.
        id: id of the promise.
        attempt: how often it was claimed, this time included.
        age_ms: since when it waits.
        body: the message.
    """

    address: str
    id: str
    attempt: int
    age_ms: int
    body: bytes
    kind: str = field(default="unblock", init=False)
    headers: Mapping[str, str] = field(default_factory=dict, init=False)

    @classmethod
    def from_row(cls, row: Any) -> Unblock:
        """Read a row of the statement PUSHED_UNBLOCKS."""
        return cls(
            address=row["address"],
            id=row["promise_id"],
            attempt=row["attempt"],
            age_ms=row["age_ms"],
            body=unblock_message(row["promise"]),
        )


Push: TypeAlias = Offer | Unblock


def shown(address: str) -> str:
    """Return the part of an http address that a log may show: user, path and query may hold secrets."""
    scheme, _, rest = address.partition("://")
    place = rest.partition("/")[0].partition("?")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"
