-- Views for people: readable payloads, timestamps with zone, ages. They may gain columns: the command line and
-- Client.list read them by name, workers never.

create or replace function durable._run_state(p_promise text, p_task text, p_retry_at bigint, p_status text, p_problem text)
returns text language sql volatile
as $$
  select case
    when p_promise = 'resolved' then 'completed'
    when p_promise = 'rejected' then 'failed'
    when p_promise = 'rejected_timedout' then 'timed_out'
    when p_promise = 'rejected_canceled' then 'cancelled'
    when p_status = 'cancelling' then 'cancelling'
    when p_task = 'halted' and durable._is_dead(p_problem) then 'dead'
    when p_task = 'halted' and p_problem::jsonb ->> 'type' = 'Paused' then 'paused'
    when p_task = 'acquired' then 'running'
    when p_task = 'suspended' then 'waiting'
    when p_task = 'pending' and p_retry_at > durable._now_ms() then 'scheduled'
    when p_task = 'pending' then 'queued'
    else p_task
  end
$$;
comment on function durable._run_state(text, text, bigint, text, text) is 'State of a run in people''s words.';

-- A live run is found by its task, a failed one by an index of its own, a completed one by its head. Joins by key are look-ups
-- (offset 0, = any), so that the statistics of a table that fills and empties never make a plan that reads another whole.

create or replace view durable._refutable as
select p.* from durable._promises p
union all
select p.* from durable._promises p where false;
comment on view durable._refutable is
  'The promises, as a union with nothing. Of a table in a union the planner asks whether a filter contradicts the conditions of the view, and reads nothing if it does: settled_at is null among settled ones.';

create or replace view durable.live as
select t.id, h.workflow, h.workflow_version as version,
       durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem) as state,
       t.queue, t.priority, durable._json(durable._input(p.param_headers, p.param_data)) as args,
       null::jsonb as result, null::jsonb as error,
       t.pid as worker, t.crashes, durable._json(h.problem) as problem,
       (select w.waits_for from durable._waits_for w where w.execution = any (array[h.execution])) as waits_for,
       durable._at(p.created_at) as created_at, null::timestamptz as settled_at,
       durable._at(durable._now_ms()) - durable._at(p.created_at) as age,
       durable._at(p.timeout_at) as deadline, durable._at(t.retry_at) as not_before,
       (select o.id from durable._executions o where o.execution = p.execution) as parent, h.key, h.next_seq as events,
       h.next_child as children, p.tags, p.tenant, t.execution
from durable._tasks t
cross join lateral (
  select o.execution, o.workflow, o.workflow_version, o.status, o.problem, o.key, o.next_seq, o.next_child
  from durable._executions o where o.execution = t.execution offset 0) h
cross join lateral (select p.* from durable._promises p where p.id = t.id offset 0) p;
comment on view durable.live is
  'The rows of durable.runs that have not ended, found by their tasks: it costs what is live, however many have ended.';
comment on column durable.live.id is 'Its id, which is that of its promise.';
comment on column durable.live.workflow is 'Name of its workflow.';
comment on column durable.live.version is 'Version of the workflow that it began with.';
comment on column durable.live.state is 'scheduled, queued, running, waiting, paused, halted, dead, cancelling, completed, failed, timed_out or cancelled.';
comment on column durable.live.queue is 'The queue in which workers look for it.';
comment on column durable.live.priority is 'A higher one is claimed first; null: it has ended.';
comment on column durable.live.args is 'Its arguments: an array by position, an object by name.';
comment on column durable.live.result is 'The value that it returned; null: it has not completed.';
comment on column durable.live.error is 'Why it failed, timed out or was cancelled; null: it did not.';
comment on column durable.live.worker is 'The worker that has its lease; null: none.';
comment on column durable.live.crashes is 'How many workers were lost with it since it last went on; null: it has ended.';
comment on column durable.live.problem is 'Why it is set aside, or was; null: it is not.';
comment on column durable.live.waits_for is 'Signals, rows, runs, promises and open steps for which it waits.';
comment on column durable.live.created_at is 'When it was started.';
comment on column durable.live.settled_at is 'When it ended; null: it has not.';
comment on column durable.live.age is 'How long it took, or has taken so far.';
comment on column durable.live.deadline is 'When it times out; null means never.';
comment on column durable.live.not_before is 'When it may be claimed at the earliest; null: it waits for something else, or has ended.';
comment on column durable.live.parent is 'The run whose child it is; null: none.';
comment on column durable.live.key is 'The key of its start, under which no other run of the workflow begins; null: none.';
comment on column durable.live.events is 'How many rows its journal has.';
comment on column durable.live.children is 'How many steps, timers, waits and child runs its code has called.';
comment on column durable.live.tags is 'Its tags.';
comment on column durable.live.tenant is 'The tenant that it belongs to.';
comment on column durable.live.execution is 'Its number, higher for a later start.';

create or replace view durable._completed as
select p.id, h.workflow, h.workflow_version as version, 'completed' as state,
       durable._queue_of(p.target) as queue, null::smallint as priority,
       durable._json(durable._input(p.param_headers, p.param_data)) as args,
       durable._json(p.value_data) as result, null::jsonb as error,
       null::text as worker, null::smallint as crashes, durable._json(h.problem) as problem, '{}'::text[] as waits_for,
       durable._at(p.created_at) as created_at, durable._at(p.settled_at) as settled_at,
       durable._at(p.settled_at) - durable._at(p.created_at) as age,
       durable._at(p.timeout_at) as deadline, null::timestamptz as not_before,
       (select o.id from durable._executions o where o.execution = p.execution) as parent, h.key, h.next_seq as events,
       h.next_child as children, p.tags, p.tenant, h.execution
from durable._executions h
-- either by the key of the other. An array that the planner cannot look into counts as ten values; both equalities as such would
-- be taken for independent, and all runs for one
join durable._refutable p on p.id = any (array_append(null, h.id)) and h.execution = any (array_append(null, p.head))
where h.status = 'completed' and durable._at(p.settled_at) is not null;
comment on view durable._completed is 'The rows of durable.runs that completed.';

create or replace view durable.failed as
select p.id, h.workflow, h.workflow_version as version, p.failure as state,
       durable._queue_of(p.target) as queue, null::smallint as priority,
       durable._json(durable._input(p.param_headers, p.param_data)) as args,
       null::jsonb as result, durable._json(durable._error_of(p.state, p.value_data)) as error,
       null::text as worker, null::smallint as crashes, durable._json(h.problem) as problem, '{}'::text[] as waits_for,
       durable._at(p.created_at) as created_at, p.failed_at as settled_at, p.failed_at - durable._at(p.created_at) as age,
       durable._at(p.timeout_at) as deadline, null::timestamptz as not_before,
       (select o.id from durable._executions o where o.execution = p.execution) as parent, h.key, h.next_seq as events,
       h.next_child as children, p.tags, p.tenant, p.head as execution
from durable._refutable p
join durable._executions h on h.execution = any (array[p.head])
-- not "is not null": the statistics of that and those of a state would be multiplied, though the one follows from the other
where isfinite(p.failed_at);
comment on view durable.failed is
  'The rows of durable.runs that failed, timed out or were cancelled, by indexes that hold only those: it costs what failed. The newest: where state = ''failed'' order by execution desc limit 20.';

-- The live ones come last: their state is known once a row is there, so a filter by the state of ended ones looks at them all.
create or replace view durable.runs as
select * from durable.failed
union all
select * from durable._completed
union all
select * from durable.live;
comment on view durable.runs is
  'Runs of workflows. state: scheduled, queued, running, waiting, paused, halted, dead, cancelling, completed, failed, timed_out, cancelled. problem says why a run is set aside; durable.resume(id) lets it go on, a halted one with code that fits its journal, durable.redrive() revives the dead. waits_for names what it waits for: signals, rows, runs, promises, open steps; durable.why(id) says the cause. By id and by state it reads what it answers. The newest are in durable.newest: an ORDER BY here sorts all that there are.';
comment on column durable.runs.id is 'Its id, which is that of its promise.';
comment on column durable.runs.workflow is 'Name of its workflow.';
comment on column durable.runs.version is 'Version of the workflow that it began with.';
comment on column durable.runs.state is 'scheduled, queued, running, waiting, paused, halted, dead, cancelling, completed, failed, timed_out or cancelled.';
comment on column durable.runs.queue is 'The queue in which workers look for it.';
comment on column durable.runs.priority is 'A higher one is claimed first; null: it has ended.';
comment on column durable.runs.args is 'Its arguments: an array by position, an object by name.';
comment on column durable.runs.result is 'The value that it returned; null: it has not completed.';
comment on column durable.runs.error is 'Why it failed, timed out or was cancelled; null: it did not.';
comment on column durable.runs.worker is 'The worker that has its lease; null: none.';
comment on column durable.runs.crashes is 'How many workers were lost with it since it last went on; null: it has ended.';
comment on column durable.runs.problem is 'Why it is set aside, or was; null: it is not.';
comment on column durable.runs.waits_for is 'Signals, rows, runs, promises and open steps for which it waits.';
comment on column durable.runs.created_at is 'When it was started.';
comment on column durable.runs.settled_at is 'When it ended; null: it has not.';
comment on column durable.runs.age is 'How long it took, or has taken so far.';
comment on column durable.runs.deadline is 'When it times out; null means never.';
comment on column durable.runs.not_before is 'When it may be claimed at the earliest; null: it waits for something else, or has ended.';
comment on column durable.runs.parent is 'The run whose child it is; null: none.';
comment on column durable.runs.key is 'The key of its start, under which no other run of the workflow begins; null: none.';
comment on column durable.runs.events is 'How many rows its journal has.';
comment on column durable.runs.children is 'How many steps, timers, waits and child runs its code has called.';
comment on column durable.runs.tags is 'Its tags.';
comment on column durable.runs.tenant is 'The tenant that it belongs to.';
comment on column durable.runs.execution is 'Its number, higher for a later start.';

create or replace view durable.newest as
select p.id, h.workflow, h.workflow_version as version,
       durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem) as state,
       coalesce(t.queue, durable._queue_of(p.target)) as queue, t.priority,
       durable._json(durable._input(p.param_headers, p.param_data)) as args,
       case when p.state = 'resolved' then durable._json(p.value_data) end as result,
       case when p.state like 'rejected%' then durable._json(durable._error_of(p.state, p.value_data)) end as error,
       t.pid as worker, t.crashes, durable._json(h.problem) as problem,
       case when p.state = 'pending'
            then (select w.waits_for from durable._waits_for w where w.execution = any (array[h.execution]))
            else '{}' end as waits_for,
       durable._at(p.created_at) as created_at, durable._at(p.settled_at) as settled_at,
       durable._at(coalesce(p.settled_at, durable._now_ms())) - durable._at(p.created_at) as age,
       durable._at(p.timeout_at) as deadline, durable._at(t.retry_at) as not_before,
       (select o.id from durable._executions o where o.execution = p.execution) as parent, h.key, h.next_seq as events,
       h.next_child as children, p.tags, p.tenant, h.execution
from durable._executions h
cross join lateral (select p.* from durable._promises p where p.id = h.id and p.head = h.execution offset 0) p
left join lateral (select t.* from durable._tasks t where t.id = h.id offset 0) t on true
order by h.execution desc;
comment on view durable.newest is
  'The rows of durable.runs, newest first: select id, state, age from durable.newest limit 20. It walks the heads of runs backwards by their numbers, as far as it is asked to; by id or state ask durable.runs.';

create or replace view durable.counts as
select l.state, count(*) as runs from durable.live l group by l.state
union all
select p.failure, count(*) from durable._promises p where isfinite(p.failed_at) group by p.failure
union all
select 'completed', count(*) from durable._promises p where p.head is not null and p.state = 'resolved' having count(*) > 0;
comment on view durable.counts is 'How many runs are in each state. Those that completed are counted one by one: it takes longer the more there are.';

create or replace view durable.progress as
select g.id, g.done, g.total, g.note,
       (select coalesce(jsonb_object_agg(v.key, durable._json(v.value ->> 2)), '{}') from jsonb_each(g.named) v) as named,
       durable._at(g.changed_at) as changed_at
from durable._progress g;
comment on view durable.progress is
  'The last progress of runs (ctx.progress, durable.set_progress) and their named values (ctx.set, durable.set_value): select done, total, note from durable.progress where id = ''order-42''. A run that has set nothing has no row; total is null if it is unknown, done if only values were set.';

create or replace function durable.child_counts(id text)
returns table (total bigint, done bigint, failed bigint, running bigint) language sql stable
as $$
  select n.total, n.done, n.failed, n.total - n.done - n.failed
  from durable._promises r
  cross join lateral (
    select count(*) as total, count(*) filter (where c.state = 'resolved') as done,
           count(*) filter (where c.state like 'rejected%') as failed
    from durable._promises c
    where c.id > r.id || '.' and c.id < r.id || '/' and c.execution = r.head and c.head is not null) n
  where r.id = $1
$$;
comment on function durable.child_counts(text) is
  'How many child runs a run has started, and how many of them have completed, have failed, and have not ended: select * from durable.child_counts(''order-42''). Of a run that continued as new, those of its present journal. Costs what stands below the run.';

create or replace view durable.forks as
select f.id, f.origin_id as origin, f.seq, durable._at(f.at) as at, f.by, f.replaced,
       durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem) as state
from durable._forks f
left join durable._promises p on p.id = f.id
left join durable._executions h on h.execution = p.head
left join durable._tasks t on t.id = f.id;
comment on view durable.forks is
  'Runs that began as copies of others (durable.fork): the origin, before which of its events (seq) the copy ends, by whom, and the values that were put in place, by child number.';

create or replace view durable.services as
select s.name, s.function, s.attempts, s.backoff_ms * interval '1 millisecond' as backoff,
       s.timeout_ms * interval '1 millisecond' as timeout, q.queued, q.next_at,
       to_regprocedure(s.function) is not null as is_there
from durable._services s
cross join lateral (
  select count(*) as queued, durable._at(min(t.retry_at)) as next_at
  from durable._tasks t where t.queue = s.name and t.state = 'pending') q;
comment on view durable.services is
  'Functions that serve runs and promises (durable.serve): how often they are tried, how much waits for each and from when on, and whether the function still exists.';

create or replace view durable.published as
select f.name, f.version, f.queue, f.workflow, f.workflow_version from durable._published f;
comment on view durable.published is
  'Workflows that protocol clients may call (durable.publish): name and version as callers write them, the group that they name as their target, and the workflow that runs.';

create or replace view durable.schedules as
select s.id, case when s.paused_at is not null then 'paused' when s.next_run_at >= durable._never() then 'over'
                  else 'active' end as state,
       s.cron, s.timezone, s.workflow, case when s.workflow is not null then s.workflow_version end as version,
       case when s.workflow is not null then s.queue end as queue, s.promise_tags ->> 'resonate:target' as target,
       durable._decoded(s.promise_param_data) as args,
       case when s.promise_timeout < durable._never() then s.promise_timeout * interval '1 millisecond' end as deadline,
       s.priority, s.promise_tags as tags, s.declared,
       durable._at(nullif(durable._shown_next(s), durable._never())) as next_at,
       durable._at(s.last_run_at) as last_at, durable._occurrence_id(s, s.last_run_at) as last_id,
       durable._at(s.paused_at) as paused_at, durable._at(s.created_at) as created_at, s.tenant,
       durable._schedule_text(s.cron, s.timezone) as description, s.overlap, s.catch_up * interval '1 millisecond' as catch_up,
       s.jitter * interval '1 millisecond' as jitter, durable._at(s.starts_at) as starts_at, durable._at(s.ends_at) as ends_at,
       s.max_runs, s.runs_left, s.pause_after, durable._at(s.paused_until) as paused_until, s.paused_by, s.pause_reason,
       s.latest as latest_run
from durable._schedules s;
comment on view durable.schedules is
  'Schedules: select id, cron, workflow, next_at from durable.schedules order by next_at. state: active, paused, or over, if no instant is left. declared: the code of a worker declares it. last_id: the run, or the promise, of its last instant. description: when it fires, in its own zone. overlap, catch_up, jitter, starts_at, ends_at, max_runs, pause_after: its policies, as durable.schedule has them. Those without a workflow create promises. It can be updated: update durable.schedules set overlap = ''skip'' where workflow = ''report''; state = ''paused'' or ''active'' pauses and resumes, a DELETE ends schedules. Columns that follow from others are refused.';

create or replace view durable.schedule_instants as
select s.id as schedule, i.at, i.upto, i.outcome, i.run, i.reason
from durable._schedules s
cross join lateral (
  (select durable._at(x.at) as at, durable._at(x.upto) as upto, x.outcome, null as run, x.reason
   from durable._schedule_instants x where x.schedule = s.id order by x.at desc limit 100)
  union all
  (select substr(p.id, length(s.id) + 2)::timestamptz, substr(p.id, length(s.id) + 2)::timestamptz,
          case p.state when 'resolved' then 'completed' when 'rejected' then 'failed' when 'rejected_canceled' then 'cancelled'
                       when 'rejected_timedout' then 'timed_out' else 'started' end, p.id, ''
   -- from run to run: what lies below one of them may be much
   from durable._runs_of_schedule(s.id, s.id || '-:', 100) r
   join durable._promises p on p.id = any (array[r])
   where p.tags ->> 'resonate:schedule' = s.id and substr(p.id, length(s.id) + 2) ~ '^[0-9-]{10}T[0-9:]{8}Z$')) i
where s.workflow is not null;
comment on view durable.schedule_instants is
  'The outcomes of the instants of schedules of runs, the latest 100 runs of each and 100 others: select * from durable.schedule_instants where schedule = ''nightly'' order by at desc. outcome: started, completed, failed, cancelled, timed_out, of the run; skipped, missed, paused, buffered, of instants without one, with the reason. One row covers those between at and upto that have nothing of their own. The next ones: durable.next_instants(id).';

create or replace view durable.promises as
select t.id, 'pending' as state, p.target, p.timer, p.external, durable._decoded(p.param_data) as param, p.param_headers,
       null::jsonb as value, null::jsonb as value_headers, p.tags, durable._at(p.created_at) as created_at,
       null::timestamptz as settled_at, durable._at(p.timeout_at) as timeout_at,
       (select o.id from durable._executions o where o.execution = p.execution) as owner, p.child, p.tenant
from durable._tasks t
cross join lateral (select p.* from durable._promises p where p.id = t.id offset 0) p
union all
select p.id, 'pending', p.target, p.timer, p.external, durable._decoded(p.param_data), p.param_headers,
       null, null, p.tags, durable._at(p.created_at), null, durable._at(p.timeout_at),
       (select o.id from durable._executions o where o.execution = p.execution), p.child, p.tenant
from durable._promises p
where p.target is null and p.state = 'pending'
  and (not p.timer
       or coalesce((select o.status not in ('completed', 'failed', 'cancelled') from durable._executions o
                    where o.execution = p.execution), true))
union all
select p.id, p.state, p.target, p.timer, p.external, durable._decoded(p.param_data), p.param_headers,
       durable._decoded(p.value_data), p.value_headers, p.tags, durable._at(p.created_at), durable._at(p.settled_at),
       durable._at(p.timeout_at),
       (select o.id from durable._executions o where o.execution = p.execution), p.child, p.tenant
from durable._refutable p
where p.state <> 'pending' and durable._at(p.settled_at) is not null;
comment on view durable.promises is
  'Durable promises: runs, timers, external ones and protocol clients''. Pending ones are found by their tasks, or among those that have none; timers of runs that have ended are left out: nobody waits for them. param and value are decoded, whether the engine or an SDK wrote them. The local steps of runs are in durable.steps.';
comment on column durable.promises.id is 'Its id.';
comment on column durable.promises.state is 'pending, resolved, rejected, rejected_canceled or rejected_timedout.';
comment on column durable.promises.target is 'Where its task goes: a queue, an address, a service; null: it has no task.';
comment on column durable.promises.timer is 'Its deadline resolves it.';
comment on column durable.promises.external is 'Somebody outside settles it.';
comment on column durable.promises.param is 'The payload that it was created with, decoded.';
comment on column durable.promises.param_headers is 'The headers of that.';
comment on column durable.promises.value is 'The payload that it was settled with, decoded; null: it is pending.';
comment on column durable.promises.value_headers is 'The headers of that.';
comment on column durable.promises.tags is 'Its tags.';
comment on column durable.promises.created_at is 'When it was created.';
comment on column durable.promises.settled_at is 'When it settled; null: it is pending.';
comment on column durable.promises.timeout_at is 'When it times out; null means never.';
comment on column durable.promises.owner is 'The run that called it; null: none.';
comment on column durable.promises.child is 'Its number among the calls of that run.';
comment on column durable.promises.tenant is 'The tenant that it belongs to.';

create or replace view durable.steps as
select p.id as run, i.child, p.id || '.' || i.child as id, i.name,
       case when j.type is null then 'pending' when durable._holds_result(j.type) then 'resolved' else 'rejected' end as state,
       case when i.type in ('step_started', 'step_scheduled') then durable._json(durable._data(i)) -> 'input' end as param,
       durable._json(durable._data(j)) as value,
       durable._at(i.ts) as created_at, durable._at(j.ts) as settled_at, p.tenant
from durable._promises p
join durable._executions h on h.execution = p.head
join durable._journal i on i.execution = h.execution and i.bucket = h.bucket and durable._schedules_step(i.type)
left join durable._journal j on j.execution = h.execution and j.bucket = h.bucket and j.child = i.child
     and durable._completes_step(j.type);
comment on view durable.steps is
  'Local steps of runs, whose promise is their journal row: select * from durable.steps where run = ''order-42'' order by child. Ask by run: an id of a step is found by durable.promise_get.';

create or replace view durable.tasks as
select t.id, t.state, t.version, t.queue, t.priority, t.workflow, t.workflow_version, t.pid, t.ttl,
       (select count(*) from durable._resumes r where r.task_id = t.id) as resumes, t.crashes,
       durable._at(t.expires_at) as expires_at, durable._at(t.retry_at) as retry_at, durable._at(t.deadline) as deadline,
       t.preference
from durable._tasks t
union all
select p.id, 'fulfilled', p.task_version, durable._queue_of(p.target), null, h.workflow, h.workflow_version, null, null, 0, null,
       null, null, durable._at(p.timeout_at), null
from durable._promises p
left join durable._executions h on h.execution = p.head
where p.target is not null and p.state <> 'pending';
comment on view durable.tasks is 'Tasks of targeted promises; those of settled promises are fulfilled and have no row of their own any more.';

create or replace view durable._logical as
select j.execution, j.bucket, j.seq + x.ord::integer - 1 as seq, x.event, j.ts, j.child,
       case when x.event <> 'InvokeScheduled' then j.attempt end as attempt,
       j.type, j.name, j.input_hash, durable._data(j) as data
from durable._journal j
join durable.journal_types() y on y.type = j.type
cross join lateral unnest(y.events) with ordinality as x (event, ord);
comment on view durable._logical is 'Journal rows spread into their logical events.';

create or replace function durable._invoke_payload(
  p_event text, p_row durable._event, p_child durable._promises, p_ts bigint)
returns jsonb language sql stable
as $$
  select case p_event
    when 'InvokeScheduled' then
      jsonb_build_object('kind', case when p_row.type = 'child_run_scheduled' then 'Function'
                                      when p_row.type = 'promise_registered' then 'External'
                                      when p_row.type = 'step_scheduled' then g.data ->> 'kind'
                                      when p_row.name = 'http' then 'Http'
                                      else 'Local' end)
      || case when p_row.name is null then '{}' else jsonb_build_object('function_name', p_row.name) end
      || case when g.data ? 'input' then jsonb_build_object('input', g.data -> 'input')
              when p_child.param_data is not null then jsonb_build_object('input', durable._decoded(p_child.param_data))
              else '{}' end
      || case when g.data ?| array['retry_policy', 'retry']
              then jsonb_build_object('retry_policy', coalesce(g.data -> 'retry_policy', g.data -> 'retry')) else '{}' end
    when 'InvokeCompleted' then durable._completion(p_row.type, p_row.data, p_child)
    when 'InvokeRetrying' then
      jsonb_build_object('failed_attempt', p_row.attempt, 'error', durable._with_kind(g.data -> 'error'),
                         'retry_at', coalesce(g.data -> 'retry_at', to_jsonb(p_ts)))
      || case when g.data -> 'interrupted' = 'true' then '{"interrupted": true}' else '{}'::jsonb end
    end
  from (select case when durable._fails_attempt(p_row.type)
                         or p_row.type in ('step_scheduled', 'step_started', 'child_run_interrupted')
                    then durable._json(p_row.data) end as data) g
$$;
comment on function durable._invoke_payload(text, durable._event, durable._promises, bigint) is
  'Payload of an event of an invocation. The input of a step that was not begun ahead of its completion is not in the journal, its hash is.';

create or replace function durable._wait_payload(p_id text, p_wait jsonb)
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'waiting_on', (select coalesce(jsonb_agg(p_id || '.' || n order by n::integer), '[]') from jsonb_array_elements_text(p_wait -> 'on') n),
    'kind', jsonb_build_object('tag', initcap(p_wait ->> 'kind')) || case when p_wait ->> 'kind' = 'signal' then
      jsonb_build_object('name', p_wait -> 'name', 'promise_id', p_id || '.' || (p_wait #>> '{on,0}')) else '{}' end)
$$;
comment on function durable._wait_payload(text, jsonb) is 'Payload of an ExecutionAwaiting: ids in the order of child numbers.';

create or replace function durable._started_payload(p_recorded jsonb, p_head durable._executions, p_own durable._promises)
returns jsonb language sql stable
as $$
  select case when p_head.written_by_client then p_recorded || jsonb_build_object('input', durable._json(p_own.param_data))
    else jsonb_build_object('component_digest', encode(p_head.digest, 'hex'), 'parent_id', (
                              select o.id from durable._executions o where o.execution = p_own.execution),
                            'idempotency_key', p_head.key, 'input', coalesce(
                              p_recorded, durable._json(durable._input(p_own.param_headers, p_own.param_data)))) end
$$;
comment on function durable._started_payload(jsonb, durable._executions, durable._promises) is
  'Payload of an ExecutionStarted. The row holds it for a client''s journal and for a later generation; otherwise the promise does.';

create or replace function durable._reason(p_error jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case when p_error ? 'reason' then p_error -> 'reason' when p_error ->> 'type' = 'Cancelled' then null else p_error end
$$;
comment on function durable._reason(jsonb) is 'Reason of a cancellation, from the error that the run ended with; null if none was given.';

create or replace function durable._event_payload(
  p_event text, p_row durable._event, p_ts bigint, p_head durable._executions, p_own durable._promises,
  p_child durable._promises)
returns jsonb language sql stable
as $$
  select case
    when p_event like 'Invoke%' then durable._invoke_payload(p_event, p_row, p_child, p_ts)
    when p_event = 'ExecutionStarted' then durable._started_payload(durable._json(p_row.data), p_head, p_own)
    when p_event = 'ExecutionCompleted' and p_row.data is not null then durable._json(p_row.data)
    when p_event = 'ExecutionCompleted' then jsonb_build_object('result', durable._json(p_own.value_data))
    when p_event = 'ExecutionFailed' then jsonb_build_object('error', durable._with_kind(coalesce(
      durable._json(p_row.data) -> 'error', durable._json(durable._error_of(p_own.state, p_own.value_data)))))
    when p_event = 'CancelRequested' and p_row.data is not null then durable._json(p_row.data)
    when p_event in ('CancelRequested', 'ExecutionCancelled') then jsonb_build_object(
      'reason', durable._reason(durable._json(durable._error_of(p_own.state, p_own.value_data))))
    when p_event = 'ExecutionAwaiting' then durable._wait_payload(p_own.id, durable._json(p_row.data))
    when p_event = 'RandomGenerated' then jsonb_build_object('value', durable._json(p_row.data))
    when p_event = 'TimeRecorded' then jsonb_build_object('time', durable._json(p_row.data))
    when p_event in ('SignalDelivered', 'SignalReceived') then jsonb_build_object(
      'signal_name', p_row.name, 'delivery_id', p_row.attempt, 'payload', (
        select durable._json(s.data) from durable._signals s
        where s.execution = p_row.execution and s.name = p_row.name and s.delivery = p_row.attempt))
    when p_event = 'JoinSetCreated' then jsonb_build_object('join_set_id', p_own.id || '.' || p_row.child)
    when p_event in ('JoinSetSubmitted', 'JoinSetAwaited') then jsonb_build_object(
      'join_set_id', p_own.id || '.' || p_row.attempt, 'promise_id', p_own.id || '.' || p_row.child)
      || case when p_event = 'JoinSetAwaited'
              then durable._completion_of(p_head.execution, p_head.bucket, p_head.id, p_row.child) else '{}' end
    else durable._json(p_row.data)
  end
$$;
comment on function durable._event_payload(
  text, durable._event, bigint, durable._executions, durable._promises, durable._promises) is
  'Payload of a logical event, read back from where it is stored once. Ids of children and attempts stand in columns of their own.';

create or replace function durable._short_id(p_type durable.row_type, p_data text)
returns text language sql immutable parallel safe
as $$ select case when p_type = 'child_run_scheduled' then p_data::jsonb ->> 'id' end $$;
comment on function durable._short_id(durable.row_type, text) is
  'The id of a detached run that has a short one, from its row in the journal of the run that started it; null for any other row.';

create or replace view durable._all_events as
select p.id, l.seq, l.event, durable._at(l.ts) as at,
       case when l.child is not null then coalesce(durable._short_id(l.type, l.data), p.id || '.' || l.child) end as promise_id,
       case when l.event like 'Invoke%' then l.attempt end as attempt, l.name,
       durable._event_payload(
         l.event, row(l.execution, l.type, l.child, l.attempt, l.name, l.input_hash, l.data)::durable._event, l.ts, h, p, c
       ) as payload,
       l.child, encode(l.input_hash, 'hex') as input_hash, l.execution, p.head
from durable._executions h
join durable._promises p on p.id = h.id
join durable._logical l on l.execution = h.execution and l.bucket = h.bucket
left join durable._promises c on l.type in ('child_run_scheduled', 'promise_registered', 'open_child_settled', 'child_settled')
     and c.id = coalesce(case when durable._settles_child(l.type) then l.name end, durable._short_id(l.type, l.data),
                         p.id || '.' || l.child);
comment on view durable._all_events is 'The logical events of all journals; head is the execution that the run has now.';

create or replace view durable.journal_events as
select e.id, e.seq, e.event, e.at, e.promise_id, e.attempt, e.name, e.payload, e.child, e.input_hash, e.execution
from durable._all_events e
where e.execution = e.head;
comment on view durable.journal_events is
  'The journal as its logical events, seq 0, 1, 2, ... for each run: select * from durable.journal_events where id = ''order-42'' order by seq. Numbers are missing where failed attempts were removed, of a step that failed twenty times and more. Errors have a kind: Trap, UserError, Timeout, Cancelled, Nondeterminism or Uncategorized.';

create or replace function durable.generation_events(id text, generation integer)
returns setof durable.journal_events language sql volatile
as $$
  select e.id, e.seq, e.event, e.at, e.promise_id, e.attempt, e.name, e.payload, e.child, e.input_hash, e.execution
  from durable.generations($1) g
  join durable._all_events e on e.execution = any (array[g.execution]) and e.id = $1
  where g.generation = $2
  order by e.seq
$$;
comment on function durable.generation_events(text, integer) is
  'The events of one journal of a run that continued as new or was tried again: select * from durable.generation_events(''order-42'', 1). The view journal_events has those of the present one. WF001.';

create or replace view durable.workers as
select w.id, case when w.missing_at is not null or not durable._is_connected(w, (select durable._connected()))
                    then 'missing' when w.present then 'present' else 'by lease only' end as presence,
       w.queues, array(select f || ' ' || v from unnest(w.workflows, w.versions) as x (f, v)) as workflows,
       (select count(*) from durable._tasks t where t.pid = w.id and t.state = 'acquired') as leased,
       durable._at(w.started_at) as started_at, durable._at(w.seen_at) as seen_at, w.about - 'places' as about
from durable._workers w;
comment on view durable.workers is
  'Registered worker processes. leased: runs under lease. A missing one lost its connection; its work is taken over.';
comment on column durable.workers.id is 'The worker, one process.';
comment on column durable.workers.presence is 'present: its connection says that it lives; by lease only: a pooler is in between; missing: it is gone.';
comment on column durable.workers.queues is 'The queues that it takes runs from.';
comment on column durable.workers.workflows is 'The workflows that it can run, each with its version.';
comment on column durable.workers.leased is 'How many runs it has under lease.';
comment on column durable.workers.started_at is 'When it started.';
comment on column durable.workers.seen_at is 'When it was heard of last; of a present one it is written every 20 s.';
comment on column durable.workers.about is 'Its host, process and versions, known since its start.';

create or replace view durable.workflows as
select f.name, f.version, durable._at(f.seen_at) as seen_at,
       (select count(*) from durable._workers w
        where f.name || ' ' || f.version = any (array(select n || ' ' || v from unnest(w.workflows, w.versions) as x (n, v))))
         as workers,
       f.signals -> 'types' as signals, coalesce((f.signals ->> 'any')::boolean, true) as any_signal,
       f.queue, coalesce(p.places, '{}') as places
from durable._workflows f
left join (
  select x.name, x.version, array_agg(distinct concat(x.module, ': ', x.name, '(', x.parameters, ')')) as places
  from durable._places() x group by x.name, x.version) p on p.name = f.name and p.version = f.version;
comment on view durable.workflows is
  'Workflows that some worker ever registered. workers: how many serve it now; seen_at: the last hello of one that does. signals: the names of the signals that it receives, with the JSON schemas of their payloads; any_signal: it receives other names too. queue: the one that it declares, to which a start without a queue goes. places: the module and the parameters with which the workers that are there have registered it; more than one means that two programs use one name, and that chance decides whose code a run gets.';
