"""Requests and answers in the protocol's envelope, as tests write and read them.

One function for the whole protocol: `say(conn, "promise.get", id="p")`. Nothing here decides or asserts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from tests.support.verbs import NEVER, Connection

VERSION = "2026-04-01"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer: its status and its data, which is a text from 400 on."""

    status: int
    data: Any

    @property
    def promise(self) -> Json:
        """The promise in it."""
        found: Json = self.data["promise"]
        return found

    @property
    def task(self) -> Json:
        """The task in it."""
        found: Json = self.data["task"]
        return found


def envelope(kind: str, data: Any, **head: Any) -> Json:
    """A request; `head` adds to its head or replaces what it has."""
    return {"kind": kind, "head": {"corrId": "c1", "version": VERSION, **head}, "data": data}


def raw(conn: Connection, request: Any) -> Json:
    """Send anything; return the whole response."""
    row = conn.execute("select durable.rpc(%s)", (Jsonb(request),)).fetchone()
    assert row is not None
    answer: Json = row[0]
    return answer


def send(conn: Connection, kind: str, data: Any, **head: Any) -> Said:
    """Send a request; return status and data."""
    answer = raw(conn, envelope(kind, data, **head))
    return Said(status=answer["head"]["status"], data=answer["data"])


def say(conn: Connection, kind: str, **data: Any) -> Said:
    """Send a request whose data are the named arguments."""
    return send(conn, kind, data)


def tags(**named: str) -> dict[str, str]:
    """Tags, named without their prefix."""
    return {f"resonate:{name}": text for name, text in named.items()}


def make(conn: Connection, id_: str, timeout_at: int = NEVER, **named: str) -> Said:
    """promise.create with these tags."""
    return say(conn, "promise.create", id=id_, timeoutAt=timeout_at, tags=tags(**named))


def take(conn: Connection, id_: str, timeout_at: int = NEVER, *, pid: str = "P", ttl: int = 15_000) -> Said:
    """task.create: a promise with target `g`, whose task this process holds at version 1."""
    action = envelope("promise.create", {"id": id_, "timeoutAt": timeout_at, "tags": tags(target="g")})
    return say(conn, "task.create", pid=pid, ttl=ttl, action=action)


def settle(conn: Connection, id_: str, state: str = "resolved", **value: Any) -> Said:
    """promise.settle, with data and headers of the value."""
    return say(conn, "promise.settle", id=id_, state=state, value=value)


def suspend(conn: Connection, id_: str, version: int, *awaited: str) -> Said:
    """task.suspend on these promises."""
    actions = [envelope("promise.register_callback", {"awaited": a, "awaiter": id_}) for a in awaited]
    return say(conn, "task.suspend", id=id_, version=version, actions=actions)


def acquire(conn: Connection, id_: str, version: int, *, pid: str = "P", ttl: int = 15_000) -> Said:
    """task.acquire."""
    return say(conn, "task.acquire", id=id_, version=version, pid=pid, ttl=ttl)


def fence(conn: Connection, id_: str, version: int, kind: str, **data: Any) -> Said:
    """task.fence around another request."""
    return say(conn, "task.fence", id=id_, version=version, action=envelope(kind, data, corrId="inner"))
