"""What a tree of runs comes down to, whatever order things happened in: statuses, calls, results.

Reads tables; asserts nothing. Of a cancelled run its clean-up counts, not what it did before the request came
nor what it had started. Steps that were given up while they ran are left out as well. Of a transaction the
answer of its last statement counts, which is the same in every run, and of an error all but its origin, which
names run and worker.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

FOLD = """
with recursive tree as (
  select p.id, p.head, p.state from durable._promises p where p.id = %s
  union all
  select c.id, c.head, c.state
  from tree t join durable._promises c on c.execution = t.head
  where c.head is not null and t.state <> 'rejected_canceled'
)
select h.workflow, h.status, null, null, null from tree t join durable._executions h on h.execution = t.head
union all
select h.workflow, s.kind, j.name, case when s.kind = 'signal' then null else p.state end,
       case s.kind when 'step' then coalesce(d.data::jsonb ->> 'message', d.data::jsonb #>> '{said,-1}',
                                             d.data)
            when 'signal' then g.data
            else case p.state when 'rejected' then (p.value_data::jsonb - 'origin')::text
                              else p.value_data end end
from tree t
join durable._executions h on h.execution = t.head
join durable._journal j on j.execution = h.execution and j.bucket = h.bucket
cross join lateral (select case
  when durable._schedules_step(j.type) then 'step' when j.type = 'child_run_scheduled' then 'child'
  when j.type = 'promise_registered' then 'promise' when j.type = 'timer_scheduled' then 'timer'
  when j.type = 'random_generated' then 'random' when j.type = 'signal_received' then 'signal'
  when j.type = 'join_set_created' then 'set' when j.type = 'join_set_submitted' then 'submitted'
  when j.type = 'join_set_awaited' then 'taken' end as kind) s
left join durable._journal d on s.kind = 'step' and d.execution = j.execution and d.bucket = j.bucket
     and d.child = j.child and durable._completes_step(d.type)
left join durable._promises p on s.kind in ('child', 'promise') and p.id = t.id || '.' || j.child
left join durable._signals g on s.kind = 'signal' and g.execution = j.execution and g.name = j.name
     and g.delivery = j.attempt
where s.kind is not null and j.name is distinct from 'dawdle'
  and (h.status <> 'cancelled' or (s.kind = 'step' and j.name = 'clean_up'))
"""

CLEANED = """
select d.data from durable.runs r
join durable._promises p on p.id = r.id
join durable._journal j on j.execution = p.head and j.name = 'clean_up'
     and j.type in ('step_completed', 'first_attempt_failed', 'step_started')
join durable._journal d on d.execution = j.execution and d.child = j.child and durable._holds_result(d.type)
where r.id = %s and r.state = 'cancelled'
"""

LIVELY = """
with recursive tree as (
  select p.id, p.head from durable._promises p where p.id = any (%s)
  union all
  select c.id, c.head from tree t join durable._promises c on c.execution = t.head where c.head is not null
), counted as (
  select split_part(t.id, '.', 1) as root, j.type,
         sum(case when durable._schedules_promise(j.type) or j.type = 'step_started' then 1
                  when durable._settles_child(j.type)
                       or j.type in ('timer_fired', 'open_step_completed', 'open_step_failed') then -1
                  else 0 end)
           over (partition by j.execution order by j.seq
                 rows between unbounded preceding and 1 preceding) as open
  from tree t join durable._journal j on j.execution = t.head
)
select count(distinct root) from counted
where (durable._settles_child(type) or type in ('timer_fired', 'signal_received')) and open >= 2
"""


def fold(conn: psycopg.Connection[Any], run: str) -> Counter[tuple[Any, ...]]:
    """Return what happened in a run and the runs below it, as a bag."""
    return Counter(conn.execute(FOLD.encode(), (run,)).fetchall())


def cleaned(conn: psycopg.Connection[Any], run: str) -> list[int]:
    """Return what the clean-up steps of a cancelled run returned, sorted."""
    return sorted(int(row[0]) for row in conn.execute(CLEANED.encode(), (run,)))


def lively(conn: psycopg.Connection[Any], runs: list[str]) -> int:
    """Return in how many of the trees something foreign completed while two or more branches were open."""
    row = conn.execute(LIVELY.encode(), (runs,)).fetchone()
    assert row is not None
    return int(row[0])
