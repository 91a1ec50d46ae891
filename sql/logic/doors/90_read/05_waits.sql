-- The open waits of runs by name, for the other views and for durable.why. They are views and no functions, so that a role which
-- may read durable.runs needs no right to the tables below it. Each join is a look-up (offset 0), as in 10_views.sql.

create or replace view durable._waits as
select h.execution, w.child, x.kind, p.id, n.name, p.due_at, p.param_data,
       case when x.kind = 'signal' then 'signal ' || n.name
            when x.kind = 'row' then format('row %s %s', n.name, p.param_data)
            when x.kind = 'call' then 'call ' || coalesce(n.name, p.id)
            when x.kind = 'run' then format('run %s (%s)', p.id, n.name)
            when a.awaited_id is not null then format('%s %s', replace(x.kind, '_', ' '), p.id)
            else concat(case x.kind when 'child' then 'child run' else replace(x.kind, '_', ' ') end, ' ' || n.name,
                        ' [', w.child, ']') end as wait
from durable._executions h
cross join lateral unnest(h.waiting_on) as w (child)
left join lateral (
  select c.awaited_id from durable._callbacks c
  where c.awaiter_id = h.id and c.child = w.child and c.child >= 0 offset 0) a on true
left join lateral (
  select q.id, q.head, q.timer, q.target, q.due_at, q.param_headers, q.param_data from durable._promises q
  where q.id = coalesce(a.awaited_id, h.id || '.' || w.child) and q.state = 'pending' offset 0) p on true
left join lateral (
  select i.name from durable._inboxes i where i.execution = h.execution and i.receiver = w.child offset 0) s on true
cross join lateral (
  select case when s.name is not null then 'signal'
              when p.head is not null then case when a.awaited_id is null then 'child' else 'run' end
              when p.timer then 'timer'
              when p.param_headers ? 'durable:until' then 'row'
              when durable._call_key(p.id) is not null then 'call'
              when p.target is not null then 'remote_call'
              when p.id is not null then 'promise' end as kind offset 0) x
left join lateral (
  select s.name where x.kind = 'signal'
  union all
  select o.workflow from durable._executions o where x.kind in ('child', 'run') and o.execution = p.head
  union all
  select p.param_headers ->> 'durable:until' where x.kind = 'row'
  union all
  select c.function from durable._call_attempts t join durable._calls c on c.value_key = any (array[t.value_key])
  where x.kind = 'call' and t.execution_key = durable._call_key(p.id)
  union all
  select durable._call_in(p.param_data) ->> 'func' where x.kind = 'remote_call'
  union all
  (select j.name from durable._journal j
   where x.kind = 'promise' and a.awaited_id is null and j.execution = h.execution and j.bucket = h.bucket
     and j.child = w.child and j.type = 'promise_registered'
   order by j.seq desc limit 1)) n on true
where x.kind is not null;
comment on view durable._waits is
  'The open waits of suspended runs by execution and child number: what kind of thing each waits for, its promise (none for a signal), its name, and all of it as text, with the child number in brackets for what is its own. kind: signal, timer, row, child (a child run), run (another run), call, remote_call, promise.';

create or replace view durable._open_steps as
select h.execution, s.child, s.attempt, s.is_running, b.name, b.seq, h.bucket
from durable._executions h
cross join lateral unnest(h.open_steps, h.open_attempts, h.open_running) as s (child, attempt, is_running)
left join lateral (
  select j.name, j.seq from durable._journal j
  where j.execution = h.execution and j.bucket = h.bucket and j.child = s.child and durable._schedules_step(j.type)
  order by j.seq desc limit 1) b on true;
comment on view durable._open_steps is
  'Local steps with an intent row and no completion row: the attempt that runs or comes next, the name, and the position of the first row.';

create or replace view durable._waits_for as
select h.execution,
       array(select w.wait from durable._waits w where w.execution = any (array[h.execution]) order by w.child)
       || array(select 'step ' || coalesce(s.name, s.child::text) from durable._open_steps s
                where s.execution = any (array[h.execution]) order by s.child) as waits_for
from durable._executions h;
comment on view durable._waits_for is 'The column waits_for of durable.runs: open waits and open steps of a run, by name.';
