"""The statements about schedules.

Lives here: the procedures of `Client.schedules` and of the schedules that code declares, in the form of
database/statements/procedures.py. May not: a decision.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

SCHEDULE = Procedure(
    signature=(
        "(id, cron, workflow, args jsonb, timezone, queue, version, deadline_ms, priority, tags jsonb, "
        "any workflow, replace, overlap, catch_up_ms, jitter_ms, starts_ms, ends_ms, max_runs, pause_after) "
        "-> (next_at)"
    ),
    sql=(
        "select durable.schedule(id => $1::text, cron => $2::text, workflow => $3::text, "
        "args => $4::text::jsonb, timezone => $5::text, queue => $6::text, version => $7::text, "
        "deadline => $8::bigint * interval '1 millisecond', priority => $9::integer, "
        "tags => $10::text::jsonb, any_workflow => $11::boolean, replace => $12::boolean, "
        "overlap => $13::text, catch_up => $14::bigint * interval '1 millisecond', "
        "jitter => $15::bigint * interval '1 millisecond', starts => to_timestamp($16::bigint / 1000.0), "
        "ends => to_timestamp($17::bigint / 1000.0), max_runs => $18::integer, pause_after => $19::integer) "
        "as next_at"
    ),
)

UNSCHEDULE = Procedure(signature="(id)", sql="select durable.unschedule($1::text)")

PAUSE_SCHEDULE = Procedure(
    signature="(id, reason, until, by)",
    sql=(
        "select durable.pause_schedule($1::text, $2::text, $3::timestamptz, "
        "coalesce($4::text, session_user::text))"
    ),
)

TRIGGER_SCHEDULE = Procedure(
    signature="(id, overlap or null) -> (run, outcome)",
    sql="select run, outcome from durable.trigger_schedule($1::text, $2::text)",
)

BACKFILL_SCHEDULE = Procedure(
    signature="(id, since, until, overlap, dry run) -> (instants, started, buffered)",
    sql=(
        "select instants, started, buffered from durable.backfill_schedule("
        "$1::text, $2::timestamptz, $3::timestamptz, $4::text, $5::boolean)"
    ),
)

SCHEDULE_INSTANTS = Procedure(
    signature="(id, limit) -> rows of durable.schedule_instants, the latest first",
    sql=(
        "select at, upto, outcome, run, reason from durable.schedule_instants "
        "where schedule = $1::text order by at desc limit $2::bigint"
    ),
)

RESUME_SCHEDULE = Procedure(
    signature="(id) -> (next_at)", sql="select durable.resume_schedule($1::text) as next_at"
)

NEXT_INSTANTS = Procedure(
    signature="(id, count) -> (instants[])",
    sql="select array(select i from durable.next_instants($1::text, $2::integer) i order by i) as instants",
)

_SCHEDULE = (
    "select id, state, cron, timezone, workflow, version, queue, target, args::text, deadline, priority, "
    "tags::text, declared, next_at, last_at, last_id, paused_at, created_at, description, overlap, catch_up, "
    "jitter, starts_at, ends_at, max_runs, runs_left, pause_after, paused_until, paused_by, pause_reason, "
    "latest_run from durable.schedules"
)

READ_SCHEDULE = Procedure(
    signature="(id) -> one row of the view durable.schedules", sql=f"{_SCHEDULE} where id = $1::text"
)

LIST_SCHEDULES = Procedure(
    signature="(workflow or null, id after which it begins, limit) -> rows of durable.schedules, by id",
    sql=(
        f"{_SCHEDULE} where ($1::text is null or workflow = $1) and id > $2::text "
        "order by id limit $3::bigint"
    ),
)

DECLARE_SCHEDULES = Procedure(
    signature=(
        "(workflows[], schedules jsonb) -> jsonb {outcomes {id: outcome}, left [{id, workflow, cron}]}"
    ),
    sql="select durable.worker_schedules_v1($1, $2)",
)
