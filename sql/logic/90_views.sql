-- What people read: readable payloads, timestamps with zone, ages. They may gain columns: the command line and
-- Client.list read them by name, workers never.

create or replace function durable._run_state(p_promise text, p_task text, p_retry_at bigint)
returns text language sql volatile
as $$
  select case
    when p_promise = 'resolved' then 'completed'
    when p_promise = 'rejected' then 'failed'
    when p_promise = 'rejected_timedout' then 'timed_out'
    when p_promise = 'rejected_canceled' then 'cancelled'
    when p_task = 'acquired' then 'running'
    when p_task = 'suspended' then 'waiting'
    when p_task = 'pending' and p_retry_at > durable._now_ms() then 'scheduled'
    when p_task = 'pending' then 'queued'
    else p_task
  end
$$;
comment on function durable._run_state(text, text, bigint) is 'State of a run in people''s words.';

create or replace view durable.runs as
select p.id, h.workflow, h.workflow_version as version, durable._run_state(p.state, t.state, t.retry_at) as state,
       coalesce(t.queue, durable._queue_of(p.target)) as queue, t.priority, durable._json(p.param_data) as args,
       case when p.state = 'resolved' then durable._json(p.value_data) end as result,
       case when p.state like 'rejected%' then durable._json(durable._error_of(p.state, p.value_data)) end as error,
       t.pid as worker, t.crashes, durable._json(h.problem) as problem,
       array(select p.id || '.' || n from unnest(h.waiting_on) n) as waits_for,
       durable._at(p.created_at) as created_at, durable._at(p.settled_at) as settled_at,
       case when p.settled_at is null then durable._at(durable._now_ms()) else durable._at(p.settled_at) end
         - durable._at(p.created_at) as age,
       durable._at(p.timeout_at) as deadline, durable._at(t.retry_at) as not_before,
       o.id as parent, h.key, h.next_seq as events, h.next_child as children, p.tags, p.tenant, h.execution
from durable._promises p
join durable._executions h on h.execution = p.head
left join durable._tasks t on t.id = p.id
left join durable._executions o on o.execution = p.execution;
comment on view durable.runs is
  'Runs of workflows. state: scheduled, queued, running, waiting, halted, completed, failed, timed_out, cancelled. problem says why a run is halted; durable.resume(id) lets it go on.';

create or replace view durable.promises as
select p.id, p.state, p.target, p.timer, p.external, durable._json(p.param_data) as param, p.param_headers,
       durable._json(p.value_data) as value, p.value_headers, p.tags, durable._at(p.created_at) as created_at,
       durable._at(p.settled_at) as settled_at, durable._at(p.timeout_at) as timeout_at, o.id as owner, p.child, p.tenant
from durable._promises p
left join durable._executions o on o.execution = p.execution
union all
select p.id || '.' || i.child,
       case when j.type is null then 'pending' when j.type in ('L', 'c', 'k') then 'resolved' else 'rejected' end,
       null, false, false, case when i.type = 'l' then durable._json(i.data) end, null, durable._json(j.data), null, '{}'::jsonb,
       durable._at(i.ts), durable._at(j.ts), 'infinity', p.id, i.child, p.tenant
from durable._promises p
join durable._executions h on h.execution = p.head
join durable._journal i on i.execution = h.execution and i.bucket = h.bucket and i.type in ('L', 'E', 'f', 'l')
left join durable._journal j on j.execution = h.execution and j.bucket = h.bucket and j.child = i.child
     and j.type in ('L', 'E', 'c', 'e', 'k', 'K');
comment on view durable.promises is
  'All durable promises: runs, timers, external ones, protocol clients'' and the local steps of runs, whose promise is their journal row.';

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
       j.type, j.name, j.input_hash, j.data
from durable._journal j
join durable.journal_types() y on y.type = j.type
cross join lateral unnest(y.events) with ordinality as x (event, ord);
comment on view durable._logical is 'Journal rows spread into their logical events.';

create or replace function durable._event_payload(
  p_event text, p_type "char", p_data text, p_own durable._promises, p_child durable._promises)
returns jsonb language sql stable
as $$
  select case p_event
    when 'ExecutionStarted' then jsonb_build_object('input', durable._json(p_own.param_data))
    when 'ExecutionCompleted' then jsonb_build_object('result', durable._json(p_own.value_data))
    when 'ExecutionFailed' then jsonb_build_object('error', durable._json(durable._error_of(p_own.state, p_own.value_data)))
    when 'ExecutionCancelled' then jsonb_build_object('reason', durable._json(durable._error_of(p_own.state, p_own.value_data)))
    when 'InvokeStarted' then null
    when 'InvokeScheduled' then jsonb_strip_nulls(jsonb_build_object(
      'kind', case p_type when 'I' then 'Function' when 'X' then 'External' else 'Local' end,
      'input', durable._json(case when p_type = 'l' then p_data when p_type = 'I' then p_child.param_data end)))
    when 'InvokeCompleted' then case
      when p_type in ('L', 'c', 'k') then jsonb_build_object('result', durable._json(p_data))
      when p_type in ('E', 'e', 'K') then jsonb_build_object('error', durable._json(p_data))
      when p_child.state = 'resolved' then jsonb_build_object('result', durable._json(p_child.value_data))
      else jsonb_build_object('error', durable._json(durable._error_of(p_child.state, p_child.value_data))) end
    when 'RandomGenerated' then jsonb_build_object('value', durable._json(p_data))
    when 'TimeRecorded' then jsonb_build_object('value', durable._json(p_data))
    else durable._json(p_data)
  end
$$;
comment on function durable._event_payload(text, "char", text, durable._promises, durable._promises) is
  'Payload of a logical event, read back from where it is stored once.';

create or replace view durable.journal_events as
select p.id, l.seq, l.event, durable._at(l.ts) as at,
       case when l.child is not null then p.id || '.' || l.child end as promise_id,
       case when l.event like 'Invoke%' then l.attempt end as attempt, l.name,
       durable._event_payload(l.event, l.type, l.data, p, c) as payload, l.child, encode(l.input_hash, 'hex') as input_hash,
       l.execution
from durable._promises p
join durable._executions h on h.execution = p.head
join durable._logical l on l.execution = h.execution and l.bucket = h.bucket
left join durable._promises c on l.type in ('I', 'd', 'D') and c.id = p.id || '.' || l.child;
comment on view durable.journal_events is
  'The journal as its logical events, seq 0, 1, 2, ... for each run: select * from durable.journal_events where id = ''order-42'' order by seq.';

create or replace view durable.workers as
select w.id, case when w.missing_at is not null then 'missing' when w.present then 'present' else 'by lease only' end as presence,
       w.queues, array(select f || ' ' || v from unnest(w.workflows, w.versions) as x (f, v)) as workflows,
       (select count(*) from durable._tasks t where t.pid = w.id and t.state = 'acquired') as held,
       durable._at(w.started_at) as started_at, durable._at(w.seen_at) as seen_at, w.about
from durable._workers w;
comment on view durable.workers is
  'Worker processes that said hello and not yet goodbye. held: runs under lease. A missing one lost its connection; its work is taken over.';

create or replace view durable.workflows as
select f.name, f.version, durable._at(f.seen_at) as seen_at,
       (select count(*) from durable._workers w
        where f.name || ' ' || f.version = any (array(select n || ' ' || v from unnest(w.workflows, w.versions) as x (n, v))))
         as workers
from durable._workflows f;
comment on view durable.workflows is
  'Workflows that some worker ever registered. workers: how many serve it now; seen_at: the last hello of one that does.';
