"""The statements of gateways.

Lives here: procedures for requests of other languages and for messages to them, in the form of
database/statements/procedures.py. May not: runs, workers, a decision.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

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


def claim_of_unblocks(claimed: str) -> Procedure:
    """Return the claim of unblock messages of one API, bounded by a number of bytes.

    Args:
        claimed: a query that claims them: promise_id, address, promise json, settled.
    """
    return Procedure(
        signature=(
            "(addresses[], limit, ttl_ms, most bytes) -> (promise_id, address, promise json, settled); "
            "the promises behind so many bytes are null, except that of the first"
        ),
        sql=(
            f"with claimed as materialized ({claimed}) "
            "select n.promise_id, n.address, n.settled, "
            "case when n.bytes <= $4::bigint or n.place = 1 then n.promise end as promise "
            "from (select c.*, row_number() over w as place, sum(octet_length(c.promise)) over w as bytes "
            "from claimed c window w as (rows unbounded preceding)) n"
        ),
    )


UNBLOCKS = claim_of_unblocks(
    "select u.promise_id, u.address, u.promise::text as promise, "
    "u.promise ->> 'state' <> 'pending' as settled "
    "from durable.unblock_claim_many($1::text[], $2::integer, $3::integer) u"
)

ACKNOWLEDGE = Procedure(
    signature="(promise ids[], addresses[]) -> (promise_id, address) of messages that somebody has locked",
    sql="select a.promise_id, a.address from durable.unblock_acknowledge_each($1::text[], $2::text[]) a",
)
