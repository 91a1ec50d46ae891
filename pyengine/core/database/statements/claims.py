"""Turns of a worker that are not as most are.

Lives here: the claim run by run, after claims that failed (sql/logic/core/60_turn/65_claims_apart.sql); the
turn with large texts beside its reports (60_turn/05_texts.sql). May not: the turn (procedures.py).
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

CLAIM_APART = Procedure(
    signature=(
        "(worker, queues[], codes[] of hello, digests[], all three as text, rules, want, ttl_ms, "
        "puts off the first) -> json"
    ),
    sql=(
        "select durable.worker_claim_apart_v1($1, $2::text::text[], $3::text::text[], $4::text::text[], "
        "$5, $6, $7, $8)"
    ),
)

LARGE_TURN = Procedure(
    signature="(as for a turn, texts[] to which the reports refer) -> json",
    sql=(
        "select durable.worker_turn_v1($1, $2::text::text[], $3::text::text[], $4::text::text[], "
        "$5, $6, $7, $8, $9, $10, $11)"
    ),
)
