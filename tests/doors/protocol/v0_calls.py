"""What tests say to the older API: statements as (text, parameters), with every argument free.

Nothing here decides or asserts.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.verbs import NEVER, Call, Connection

__all__ = ["EXTERNAL", "callback", "completion", "creation", "stored", "subscription"]

EXTERNAL = '{"resonate:external": "true"}'


def creation(
    id_: str | None,
    key: str | None = None,
    *,
    strict: bool | None = False,
    timeout_at: int | None = NEVER,
    data: str | None = "param",
    headers: str | None = '{"for": "param"}',
    tags: str | None = EXTERNAL,
) -> Call:
    """Create, with every argument free."""
    return (
        "select * from durable.promise_create_v0(%s, %s, %s, %s::jsonb, %s, %s, %s::jsonb)",
        (id_, key, data, headers, timeout_at, strict, tags),
    )


def completion(
    verb: str,
    id_: str | None,
    key: str | None = None,
    *,
    strict: bool | None = False,
    data: str | None = "value",
    headers: str | None = None,
) -> Call:
    """Resolve, reject or cancel, with every argument free."""
    text = f"select * from durable.promise_{verb}_v0(%s, %s, %s, %s::jsonb, %s)"
    return text, (id_, key, data, headers, strict)


def callback(
    id_: str | None = "c",
    awaited: str | None = "x",
    root: str | None = "t",
    timeout_at: int | None = NEVER,
    recv: Any = "poll://g2:w",
) -> Call:
    """Callback."""
    text = "select * from durable.promise_callback_v0(%s, %s, %s, %s, %s::jsonb)"
    return text, (id_, awaited, root, timeout_at, json.dumps(recv))


def subscription(awaited: str = "x", recv: Any = "poll://g:w") -> Call:
    """Subscribe."""
    text = "select * from durable.promise_subscribe_v0(%s, %s::jsonb, 's', %s)"
    return text, (awaited, json.dumps(recv), NEVER)


def stored(conn: Connection, id_: str) -> tuple[Any, ...] | None:
    """What the table of promises holds of it."""
    return conn.execute(
        "select upper(state), ikey_create, ikey_complete, param_data, value_data, value_headers, "
        "created_at, settled_at from durable._promises where id = %s",
        (id_,),
    ).fetchone()
