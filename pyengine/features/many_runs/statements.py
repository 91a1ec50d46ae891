"""The statements about many runs or promises at once.

Lives here: the procedures of the batch verbs, in the form of database/statements/procedures.py. May not: a
loop, a decision. Each returns one row, as procedures that run on a caller's connection do.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

BATCH = 1000
"""The largest number of ids in one transaction."""

FORKS = 100
"""The same of forks, each of which copies a journal."""

_OUTCOMES = (
    "select coalesce(json_agg(json_build_array(m.id, m.outcome, m.{})), '[]')::text as outcomes from durable."
)
_OF_RUNS = _OUTCOMES.format("state")

MATCHING_RUNS = Procedure(
    signature="(workflow, state, tags jsonb, started_after, started_before, after, at_most) -> ids[]",
    sql=(
        "select durable.matching_runs($1::text, $2::text, $3::text::jsonb, $4::timestamptz, "
        "$5::timestamptz, $6::text, $7::integer) as ids"
    ),
)

MATCHING_ENDED_RUNS = Procedure(
    signature=(
        "(workflow, state, tags jsonb, error, ended_after, ended_before, started_after, started_before, "
        "after, at_most) -> ids[]"
    ),
    sql=(
        "select durable.matching_ended_runs($1::text, $2::text, $3::text::jsonb, $4::text, $5::timestamptz, "
        "$6::timestamptz, $7::timestamptz, $8::timestamptz, nullif($9::text, ''), $10::integer) as ids"
    ),
)

SIGNAL_MANY = Procedure(
    signature="(ids[], name, payload jsonb, dedup, payloads jsonb[]) -> json [[id, outcome, delivery]]",
    sql=(
        _OUTCOMES.format("delivery")
        + "signal_many($1::text[], $2::text, $3::text::jsonb, $4::text, $5::text[]::jsonb[]) m"
    ),
)

CANCEL_MANY = Procedure(
    signature="(ids[], reason jsonb, grace_ms, force) -> json [[id, outcome, state]]",
    sql=(
        f"{_OF_RUNS}cancel_many("
        "$1::text[], $2::text::jsonb, $3::bigint * interval '1 millisecond', $4::boolean) m"
    ),
)

PAUSE_MANY = Procedure(
    signature="(ids[]) -> json [[id, outcome, state]]", sql=f"{_OF_RUNS}pause_many($1::text[]) m"
)

RESUME_MANY = Procedure(
    signature="(ids[]) -> json [[id, outcome, state]]", sql=f"{_OF_RUNS}resume_many($1::text[]) m"
)

REDRIVE_MANY = Procedure(
    signature="(ids[]) -> json [[id, outcome, state]]", sql=f"{_OF_RUNS}redrive_many($1::text[]) m"
)

FORK_MANY = Procedure(
    signature=(
        "(ids[], key, seq, step, set_values jsonb, queue, version) -> json [[id, outcome, fork, problem]]"
    ),
    sql=(
        _OUTCOMES.format("fork, m.problem")
        + "fork_many($1::text[], $2::text, $3::integer, $4::text, $5::text::jsonb, $6::text, $7::text) m"
    ),
)

SETTLE_MANY = Procedure(
    signature="(ids[], verdict, value jsonb, each_value jsonb[]) -> json [[id, outcome, state]]",
    sql=f"{_OF_RUNS}settle_many($1::text[], $2::text, $3::text::jsonb, $4::text[]::jsonb[]) m",
)

START_MANY = Procedure(
    signature=(
        "(workflow, args jsonb[], ids[], keys[] or null, both with '' for none, queue, version, delay_ms, "
        "timeout_ms, priority, tags jsonb, any workflow) -> json [[id, created]]"
    ),
    sql=(
        "select coalesce(json_agg(json_build_array(m.id, m.created) order by m.n), '[]')::text as runs "
        "from durable.start_many(workflow => $1::text, args => $2::text[]::jsonb[], "
        "ids => array(select nullif(i, '') from unnest($3::text[]) with ordinality x (i, n) order by n), "
        "keys => case when $4::text[] is not null then "
        "array(select nullif(k, '') from unnest($4::text[]) with ordinality x (k, n) order by n) end, "
        "queue => $5::text, version => $6::text, "
        "delay => $7::bigint * interval '1 millisecond', timeout => $8::bigint * interval '1 millisecond', "
        "priority => $9::integer, tags => $10::text::jsonb, any_workflow => $11::boolean) "
        "with ordinality as m (id, created, n)"
    ),
)
