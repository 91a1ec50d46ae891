"""The statements of couriers.

Lives here: procedures for messages that are pushed, in the form of database/statements/procedures.py. May
not: a decision. Tasks are taken by the offers of gateway/statements/gateway.py.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

DUE = Procedure(
    signature="() -> (http address, execute, unblock): whether tasks, and unblocks, are due for it",
    sql="select d.address, d.execute, d.unblock from durable.addresses_due('http') d",
)

PUSHED_UNBLOCKS = Procedure(
    signature="(addresses[], limits[], ttl_ms) -> (promise_id, address, attempt, age_ms, promise, settled)",
    sql=(
        "select u.promise_id, u.address, u.attempt, u.age_ms, u.promise::text as promise, "
        "u.promise ->> 'state' <> 'pending' as settled "
        "from durable.unblock_claim_each($1::text[], $2::integer[], $3::integer) u"
    ),
)

DEFER_UNBLOCKS = Procedure(
    signature="(promise ids[], addresses[], ms[]) -> number of messages that there were",
    sql="select durable.unblock_defer_many($1::text[], $2::text[], $3::bigint[])",
)

DEFER_OFFERS = Procedure(
    signature="(task ids[], versions[], ms[]) -> number of tasks that still waited",
    sql="select durable.task_offer_defer_many($1::text[], $2::integer[], $3::bigint[])",
)

EXPIRE = Procedure(
    signature="(address, age_ms) -> number of messages that were given up",
    sql="select durable.unblock_expire($1, $2)",
)
