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
    signature="(queues[], members[], rooms[]) -> (n: place in these, id, version, ms until it comes again)",
    sql=(
        "select m.n::integer, o.id, o.version, durable._setting_int('retry_offer_ms')::integer as retry_ms "
        "from unnest($1::text[], $2::text[], $3::integer[]) with ordinality as m (queue, pid, room, n) "
        "cross join lateral durable.task_offer(m.queue, m.room, m.pid) o"
    ),
)

UNBLOCKS = Procedure(
    signature="(addresses[], limit, ttl_ms) -> (promise_id, address, promise json, settled)",
    sql=(
        "select u.promise_id, u.address, durable.wire_promise(u.promise)::text as promise, "
        "(u.promise).state <> 'pending' as settled from unnest($1::text[]) as a (address) "
        "cross join lateral durable.unblock_claim(a.address, $2::integer, $3::integer) u"
    ),
)

ACKNOWLEDGE = Procedure(
    signature="(promise ids[], addresses[]) -> boolean for each",
    sql=(
        "select durable.unblock_acknowledge(u.promise_id, u.address) "
        "from unnest($1::text[], $2::text[]) as u (promise_id, address)"
    ),
)
