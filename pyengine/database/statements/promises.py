"""The statements of the older promise API.

Lives here: procedures about durable promises, in the form of procedures.py. May not: runs, workers, a
decision.
"""

from __future__ import annotations

from pyengine.database.statements.procedures import Procedure

__all__ = [
    "PROMISE_CALLBACK",
    "PROMISE_CANCEL",
    "PROMISE_CREATE",
    "PROMISE_READ",
    "PROMISE_REJECT",
    "PROMISE_RESOLVE",
    "PROMISE_SEARCH",
    "PROMISE_SUBSCRIBE",
]

# a promise's deadline: an instant, or a span from the database's clock; neither means never
PROMISE_CREATE = Procedure(
    name="promise_create_v0",
    signature=(
        "(id, key, param, headers jsonb, instant, span, strict, tags jsonb) -> (status, word, promise jsonb)"
    ),
    sql=(
        "select status, word, promise::text from durable.promise_create_v0("
        "$1, $2, $3, $4::text::jsonb, coalesce($5, durable._later(durable._now_ms(), $6)), "
        "$7, $8::text::jsonb)"
    ),
    takes="text text text text bigint bigint boolean text",
)

PROMISE_RESOLVE = Procedure(
    name="promise_resolve_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_resolve_v0($1, $2, $3, $4::text::jsonb, $5)",
    takes="text text text text boolean",
)

PROMISE_REJECT = Procedure(
    name="promise_reject_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_reject_v0($1, $2, $3, $4::text::jsonb, $5)",
    takes="text text text text boolean",
)

PROMISE_CANCEL = Procedure(
    name="promise_cancel_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_cancel_v0($1, $2, $3, $4::text::jsonb, $5)",
    takes="text text text text boolean",
)

PROMISE_CALLBACK = Procedure(
    name="promise_callback_v0",
    signature=(
        "(id, promise id, root promise id, instant, span, recv jsonb) "
        "-> (status, word, callback jsonb, promise jsonb)"
    ),
    sql=(
        "select status, word, callback::text, promise::text from durable.promise_callback_v0("
        "$1, $2, $3, coalesce($4, durable._later(durable._now_ms(), $5)), $6::text::jsonb)"
    ),
    takes="text text text bigint bigint text",
)

PROMISE_SUBSCRIBE = Procedure(
    name="promise_subscribe_v0",
    signature="(promise id, recv jsonb) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_subscribe_v0($1, $2::text::jsonb)",
    takes="text text",
)

PROMISE_READ = Procedure(
    name="promise_read_v0",
    signature="(id) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_read_v0($1)",
    takes="text",
)

PROMISE_SEARCH = Procedure(
    name="promise_search_v0",
    signature="(id pattern, state or null, tags jsonb, limit, cursor or null) -> (promises jsonb, cursor)",
    sql="select promises::text, cursor from durable.promise_search_v0($1, $2, $3::text::jsonb, $4, $5)",
    takes="text text text integer text",
)
