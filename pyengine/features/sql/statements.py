"""The statements of transactions of workflows, and of SQL functions of users: steps and services."""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

COMMIT = Procedure(
    signature=(
        "(worker, execution, id, version, seen, child, name, hash, value, effects jsonb) "
        "-> json {next, rows}; the COMMIT follows"
    ),
    sql="select durable.worker_commit_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
)

SQL_STEP = Procedure(
    signature=(
        "(worker, execution, id, version, seen, child, attempt, function, hash, args jsonb) "
        "-> json {next, rows}"
    ),
    sql="select durable.worker_sql_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
)

NEXT_SERVICE = Procedure(
    signature="() -> (id, timeout_ms or null), no row if nothing is ready",
    sql="select id, timeout_ms from durable.next_service_v1()",
)

SERVICE_LIMIT = Procedure(
    signature="(milliseconds as a text) -> the same, until the end of the transaction",
    sql="select set_config('statement_timeout', $1, true), set_config('lock_timeout', '0', true)",
)

SERVE = Procedure(signature="(id) -> jsonb {served, hints, settled}", sql="select durable.serve_v1($1)")

SERVICES_DUE = Procedure(
    signature="() -> ms until a task of a service is ready, -1 if none is queued, null if nothing is served",
    sql="select durable.services_due_v1()",
)
