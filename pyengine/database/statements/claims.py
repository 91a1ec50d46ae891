"""Statements of a worker whose claims fail.

Lives here: the claim run by run (sql/logic/60_turn/65_claims_apart.sql). May not: the turn (procedures.py).
"""

from __future__ import annotations

from pyengine.database.statements.procedures import Procedure

__all__ = ["CLAIM_APART"]

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
