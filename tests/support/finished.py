"""Runs that have ended, by the hundred thousand, in a few statements of SQL.

The rows are those that runs of one step leave: promise, head and journal, lawful for `durable.check()`. Of a
hundred runs one failed and one was cancelled, of a thousand one timed out.
"""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

__all__ = ["BATCH", "fill"]

BATCH = 50_000
_ROWS = """
create temporary table finished as
select f.last + n - %(first)s + 1 as execution, f.bucket, n as number,
       case when n %% 100 = 7 then 'rejected' when n %% 100 = 13 then 'rejected_canceled'
            when n %% 1000 = 17 then 'rejected_timedout' else 'resolved' end as state,
       x.created_at, x.created_at + 20 as settled_at,
       lpad(to_hex(x.created_at), 12, '0') || '-' || left(md5(n::text), 23) as id,
       case when n <= 5 then 'rare' else 'w' || n %% 10 end as workflow
from (select durable._now_ms() as now, min(b.bucket) as bucket,
             (select coalesce(max(e.execution), 0) from durable._executions e) as last
      from durable._buckets b) f
cross join generate_series(%(first)s::bigint, %(last)s) n
cross join lateral (select case when n > %(count)s - %(recent)s
                                then f.now - 3500000 + (n - %(count)s + %(recent)s) * 3400000 / %(recent)s
                                else f.now - 2592000000 + n * 2588000000 / %(count)s end as created_at) x
order by n
"""
_HEADS = """
insert into durable._executions (execution, bucket, next_seq, next_child, id, status, workflow,
                                 workflow_version, digest)
overriding system value
select f.execution, f.bucket, case f.state when 'rejected_canceled' then 6 else 5 end, 1, f.id,
       case f.state when 'resolved' then 'completed' when 'rejected_canceled' then 'cancelled'
                    else 'failed' end,
       f.workflow, '1', '\\xab'
from finished f order by f.execution
"""
_PROMISES = """
insert into durable._promises (id, timeout_at, created_at, settled_at, head, task_version, external, state,
                               target, param_headers, param_data, value_data, failure, failed_at)
select f.id, case f.state when 'rejected_timedout' then f.settled_at else durable._never() end,
       f.created_at, f.settled_at, f.execution, 1, true, f.state, 'poll://any@default',
       '{"codec": "json"}', '["x"]',
       case f.state when 'resolved' then '"done"'
                    when 'rejected' then '{"type": "Boom", "message": "it broke"}' end,
       durable._failure(f.execution, f.state),
       case when f.state <> 'resolved' then to_timestamp(f.settled_at / 1000.0) end
from finished f order by f.execution
"""
_JOURNAL = """
insert into durable._journal (execution, ts, bucket, seq, child, attempt, type, name, input_hash, data)
select f.execution, case j.type when 'execution_started' then f.created_at else f.settled_at end, f.bucket,
       j.seq, j.child, j.child + 1, j.type, j.name, j.input_hash, j.data
from finished f
cross join lateral (values
  (0, null, 'execution_started'::durable.row_type, null, null, null, true),
  (1, 0, 'step_completed', 'step', '\\x00000000000000aa'::bytea, '"v"', true),
  (4, null, case f.state when 'resolved' then 'execution_completed'::durable.row_type
                when 'rejected_canceled' then 'cancel_requested' else 'execution_failed' end,
   null, null, null, true),
  (5, null, 'execution_cancelled', null, null, null, f.state = 'rejected_canceled')
) as j (seq, child, type, name, input_hash, data, is_there)
where j.is_there
order by f.execution, j.seq
"""
_NUMBERS = """
select setval(pg_get_serial_sequence('durable._executions', 'execution'), max(e.execution))
from durable._executions e
"""


def fill(conn: psycopg.Connection[TupleRow], count: int, recent: int) -> None:
    """Write runs that ended in the last month, the newest last, and analyze the tables.

    Args:
        conn: in autocommit.
        count: how many; the first five are of the workflow `rare`, the others of `w0` to `w9`.
        recent: how many of them in the last hour.
    """
    for first in range(1, count + 1, BATCH):
        with conn.transaction():
            numbers = {
                "first": first,
                "last": min(first + BATCH - 1, count),
                "count": count,
                "recent": recent,
            }
            conn.execute(_ROWS.encode(), numbers)
            for statement in (_HEADS, _PROMISES, _JOURNAL, _NUMBERS, "drop table finished"):
                conn.execute(statement.encode())
    conn.execute("vacuum (analyze)")
