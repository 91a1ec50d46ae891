"""The statements of gateways.

Lives here: procedures for requests of other languages and for messages to them, in the form of procedures.py.
May not: runs, workers, a decision.
"""

from __future__ import annotations

from pyengine.database.statements.procedures import Procedure

__all__ = ["ACKNOWLEDGE", "OFFERS", "RPC", "UNBLOCKS"]

RPC = Procedure(
    signature="(request jsonb) -> answer jsonb, both in the protocol's envelope",
    sql="select durable.rpc($1::text::jsonb)::text",
)

OFFERS = Procedure(
    signature="(addresses[], rooms[]) -> (address, id, version, headers, ms until it comes again)",
    sql=(
        "select o.address, o.id, o.version, o.headers::text as headers, "
        "durable._setting_int('retry_offer_ms')::integer as retry_ms "
        "from durable.task_offer_many($1::text[], $2::integer[]) o"
    ),
)

UNBLOCKS = Procedure(
    signature="(addresses[], limit, ttl_ms) -> (promise_id, address, promise json, settled)",
    sql=(
        "select u.promise_id, u.address, u.promise::text as promise, "
        "u.promise ->> 'state' <> 'pending' as settled "
        "from durable.unblock_claim_many($1::text[], $2::integer, $3::integer) u"
    ),
)

ACKNOWLEDGE = Procedure(
    signature="(promise ids[], addresses[]) -> (promise_id, address) of messages that somebody has locked",
    sql="select a.promise_id, a.address from durable.unblock_acknowledge_each($1::text[], $2::text[]) a",
)
