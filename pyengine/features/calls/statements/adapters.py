"""The statements of adapter workers: leases of attempts, and the way back of their outcomes.

Lives here: procedures about attempts of calls, in the form of database/statements/procedures.py. May not:
calls as clients make them, a decision.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

CALL_LEASE = Procedure(
    signature="(worker, adapters[], ttl_ms, most) -> json [documents]",
    sql=(
        "select coalesce(json_agg(l.document), '[]')::text "
        "from durable.call_lease_v1($1, $2, $3, $4) as l (document)"
    ),
)

CALL_REPORT = Procedure(
    signature="(execution key hex, version, report jsonb) -> state",
    sql="select durable.call_report_v1(decode($1, 'hex'), $2, $3::text::jsonb)",
)

CALL_INTEGRATE = Procedure(
    signature="(execution key hex, version) -> state",
    sql="select durable.call_integrate_v1(decode($1, 'hex'), $2)",
)

CALL_RELEASE = Procedure(
    signature="(execution key hex, version, reason), which counts as no failure",
    sql="select durable.call_release_v1(decode($1, 'hex'), $2, $3)",
)

CALL_SWEEP = Procedure(
    signature="(), ends attempts that no adapter serves or whose promise is rejected",
    sql="select durable.call_sweep_v1()",
)

RENEW = Procedure(
    signature="(worker, ids[], versions[]) -> number of leases that were renewed",
    sql="select durable.task_heartbeat($1, $2, $3)",
)
