"""The statements of the older promise API.

Lives here: procedures about durable promises, in the form of database/statements/procedures.py. May not:
runs, workers, a decision.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

_COMPLETION = "(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)"
_COMPLETED = "$1::text, $2::text, $3::text, $4::text::jsonb, $5::boolean"

# a promise's deadline: an instant, or a span from the database's clock; neither means never
PROMISE_CREATE = Procedure(
    signature=(
        "(id, key, param, headers jsonb, instant, span, strict, tags jsonb) -> (status, word, promise jsonb)"
    ),
    sql=(
        "select status, word, promise::text from durable.promise_create_v0("
        "$1::text, $2::text, $3::text, $4::text::jsonb, "
        "coalesce($5::bigint, durable._later(durable._now_ms(), $6::bigint)), $7::boolean, $8::text::jsonb)"
    ),
)

PROMISE_RESOLVE = Procedure(
    signature=_COMPLETION,
    sql=f"select status, word, promise::text from durable.promise_resolve_v0({_COMPLETED})",
)

PROMISE_REJECT = Procedure(
    signature=_COMPLETION,
    sql=f"select status, word, promise::text from durable.promise_reject_v0({_COMPLETED})",
)

PROMISE_CANCEL = Procedure(
    signature=_COMPLETION,
    sql=f"select status, word, promise::text from durable.promise_cancel_v0({_COMPLETED})",
)

PROMISE_CALLBACK = Procedure(
    signature=(
        "(id, promise id, root promise id, instant, span, recv jsonb) "
        "-> (status, word, callback jsonb, promise jsonb)"
    ),
    sql=(
        "select status, word, callback::text, promise::text from durable.promise_callback_v0("
        "$1::text, $2::text, $3::text, "
        "coalesce($4::bigint, durable._later(durable._now_ms(), $5::bigint)), $6::text::jsonb)"
    ),
)

PROMISE_SUBSCRIBE = Procedure(
    signature="(promise id, recv jsonb) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_subscribe_v0($1::text, $2::text::jsonb)",
)

PROMISE_READ = Procedure(
    signature="(id) -> (status, word, promise jsonb)",
    sql="select status, word, promise::text from durable.promise_read_v0($1::text)",
)

PROMISE_SEARCH = Procedure(
    signature="(id pattern, state or null, tags jsonb, limit, cursor or null) -> (promises jsonb, cursor)",
    sql=(
        "select promises::text, cursor from durable.promise_search_v0("
        "$1::text, $2::text, $3::text::jsonb, $4::integer, $5::text)"
    ),
)
