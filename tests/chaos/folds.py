"""What a tree of runs comes down to, whatever order things happened in: statuses, calls, results.

Reads tables; asserts nothing. Of a cancelled run its clean-up counts, not what it did before the request came
nor what it had started. Steps that were given up while they ran are left out as well. Of a transaction the
answer of its last statement counts, which is the same in every run.
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
            when 'signal' then g.data else p.value_data end
from tree t
join durable._executions h on h.execution = t.head
join durable._journal j on j.execution = h.execution and j.bucket = h.bucket
cross join lateral (select case
  when j.type in ('L', 'E', 'f', 'l') then 'step' when j.type = 'I' then 'child'
  when j.type = 'X' then 'promise' when j.type = 'T' then 'timer' when j.type = 'n' then 'random'
  when j.type = 'v' then 'signal' when j.type = 'j' then 'set'
  when j.type = 'u' then 'submitted' when j.type = 'a' then 'taken' end as kind) s
left join durable._journal d on s.kind = 'step' and d.execution = j.execution and d.bucket = j.bucket
     and d.child = j.child and d.type in ('L', 'E', 'c', 'e', 'k', 'K')
left join durable._promises p on s.kind in ('child', 'promise') and p.id = t.id || '.' || j.child
left join durable._signals g on s.kind = 'signal' and g.execution = j.execution and g.name = j.name
     and g.delivery = j.attempt
where s.kind is not null and j.name is distinct from 'dawdle'
  and (h.status <> 'cancelled' or (s.kind = 'step' and j.name = 'clean_up'))
"""

CLEANED = """
select d.data from durable.runs r
join durable._promises p on p.id = r.id
join durable._journal j on j.execution = p.head and j.name = 'clean_up' and j.type in ('L', 'f', 'l')
join durable._journal d on d.execution = j.execution and d.child = j.child and d.type in ('L', 'c', 'k')
where r.id = %s and r.state = 'cancelled'
"""

LIVELY = """
with recursive tree as (
  select p.id, p.head from durable._promises p where p.id = any (%s)
  union all
  select c.id, c.head from tree t join durable._promises c on c.execution = t.head where c.head is not null
), counted as (
  select split_part(t.id, '.', 1) as root, j.type,
         sum(case when j.type in ('I', 'X', 'T', 'l') then 1
                  when j.type in ('d', 'D', 'Z', 'c', 'e') then -1 else 0 end)
           over (partition by j.execution order by j.seq
                 rows between unbounded preceding and 1 preceding) as open
  from tree t join durable._journal j on j.execution = t.head
)
select count(distinct root) from counted where type in ('d', 'D', 'Z', 'v') and open >= 2
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
