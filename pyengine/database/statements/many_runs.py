"""Every SQL text of the asynchronous side about many runs or promises at once.

What lives here: the procedures of the verbs for many, as procedures.py has the others. What may not: a loop,
a decision. Each answers one row, so that it goes through any connection of a caller's.
"""

from __future__ import annotations

from pyengine.database.statements.procedures import Procedure

__all__ = ["CANCEL_MANY", "MATCHING_RUNS", "PAUSE_MANY", "RESUME_MANY", "SETTLE_MANY", "SIGNAL_MANY"]

_TOLD = "select coalesce(json_agg(json_build_array(m.id, m.outcome, m.{})), '[]')::text as told from durable."
_OF_RUNS = _TOLD.format("state")

MATCHING_RUNS = Procedure(
    name="matching_runs",
    signature="(workflow, state, tags jsonb, started_after, started_before, after, at_most) -> ids[]",
    sql="select durable.matching_runs($1, $2, $3::text::jsonb, $4, $5, $6, $7) as ids",
    takes="text text text timestamptz timestamptz text integer",
)

SIGNAL_MANY = Procedure(
    name="signal_many",
    signature="(ids[], name, payload jsonb, dedup, payloads jsonb[]) -> json [[id, outcome, delivery]]",
    sql=(
        f"{_TOLD.format('delivery')}signal_many($1::text[], $2, $3::text::jsonb, $4, $5::text[]::jsonb[]) m"
    ),
    takes="text[] text text text text[]",
)

CANCEL_MANY = Procedure(
    name="cancel_many",
    signature="(ids[], reason jsonb, grace_ms, force) -> json [[id, outcome, state]]",
    sql=(f"{_OF_RUNS}cancel_many($1::text[], $2::text::jsonb, $3::bigint * interval '1 millisecond', $4) m"),
    takes="text[] text bigint boolean",
)

PAUSE_MANY = Procedure(
    name="pause_many",
    signature="(ids[]) -> json [[id, outcome, state]]",
    sql=f"{_OF_RUNS}pause_many($1::text[]) m",
    takes="text[]",
)

RESUME_MANY = Procedure(
    name="resume_many",
    signature="(ids[]) -> json [[id, outcome, state]]",
    sql=f"{_OF_RUNS}resume_many($1::text[]) m",
    takes="text[]",
)

SETTLE_MANY = Procedure(
    name="settle_many",
    signature="(ids[], verdict, value jsonb, each_value jsonb[]) -> json [[id, outcome, state]]",
    sql=f"{_OF_RUNS}settle_many($1::text[], $2, $3::text::jsonb, $4::text[]::jsonb[]) m",
    takes="text[] text text text[]",
)
