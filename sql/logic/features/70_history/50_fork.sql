-- Forks, the copy: a new run with its own copies of the rows, signals, join sets and settled promises that the plan names. It
-- starts its own child runs, promises and timers in place of those that are not complete, and is independent from then on. The
-- lock of the original's head keeps its rows in place. One statement for each kind of row, however long the journal is.

create or replace function durable._plain_tags(p_tags jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select coalesce(jsonb_object_agg(t.key, t.value) filter (where not starts_with(t.key, 'resonate:')), '{}')
  from jsonb_each(p_tags) t
$$;
comment on function durable._plain_tags(jsonb) is 'The tags that do not depend on the promise''s own id, position or target.';

create or replace function durable._moved_target(p_target text, p_queue text)
returns text language sql immutable parallel safe
as $$ select case when durable._queue_of(p_target) = p_queue then p_target else durable._target_of(p_queue) end $$;
comment on function durable._moved_target(text, text) is 'The target, if it is in that queue; else the queue.';

create or replace function durable._time_of(p_promise durable._promises)
returns bigint language sql immutable
as $$ select case when p_promise.timeout_at < durable._never() then p_promise.timeout_at - p_promise.created_at end $$;
comment on function durable._time_of(durable._promises) is
  'The time between birth and deadline of a promise, in ms; null for ever.';

create or replace function durable._fork_run(
  p_origin durable._promises, p_head durable._executions, p_id text, p_queue text, p_now bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_new durable._executions;
begin
  v_new.execution := durable._next_execution();
  insert into durable._promises (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data, tags)
  select p_id, p_origin.tenant, v_new.execution, durable._later(p_now, durable._time_of(p_origin)), p_now, true,
         durable._moved_target(p_origin.target, p_queue), durable._plain_headers(),
         case when p_head.previous is null then durable._input(p_origin.param_headers, p_origin.param_data) else (
           select durable._data(j) from durable._executions h
           join durable._journal j on j.execution = h.execution and j.bucket = h.bucket and j.seq = 0
           where h.execution = p_head.execution) end, durable._plain_tags(p_origin.tags)
  on conflict do nothing;
  if not found then
    perform durable._fail_conflict(format('Id %L is taken.', p_id), 'Use another new_id, or none.');
  end if;
  insert into durable._executions (execution, id, tenant, workflow, workflow_version, bucket, first_child, next_child, rules,
                                   written_by_client)
  values (v_new.execution, p_id, p_head.tenant, p_head.workflow, p_head.workflow_version, durable._bucket(p_now),
          p_head.first_child, p_head.first_child, p_head.rules, p_head.written_by_client)
  returning * into v_new;
  return v_new;
end
$$;
comment on function durable._fork_run(durable._promises, durable._executions, text, text, bigint) is
  'Creates promise and head of a fork, with the input of the generation that is forked, with its rules, because its rows are copied, and with as much time as the original had. Called before any lock, because it may wait for another session that creates the same id. WF003.';

create or replace function durable._copy_journal(p_from bigint, p_to bigint, p_upto integer, p_values jsonb)
returns void language plpgsql volatile
as $$
declare
  v_seqs integer[];
  v_changed integer[];
  v_types durable.row_type[];
  v_data text[];
begin
  select array_agg(r.seq), array_agg(r.seq) filter (where x.changed),
         array_agg(case r.type when 'step_failed' then 'step_completed'
                               when 'open_step_failed' then 'open_step_completed'
                               when 'last_attempt_failed' then 'last_attempt_completed'
                               else r.type end) filter (where x.changed),
         array_agg(case when not durable._settles_child(r.type) then (p_values -> r.child::text)::text end)
           filter (where x.changed)
  into v_seqs, v_changed, v_types, v_data
  from durable._prefix(p_from, p_upto) r,
       lateral (select p_values ? r.child::text
                       and (durable._resolves(r.type) or r.type in ('random_generated', 'time_recorded')) as changed) x
  where r.copied;
  perform durable._copy_rows(p_from, p_to, v_seqs, coalesce(v_changed, '{}'), coalesce(v_types, '{}'), coalesce(v_data, '{}'));
  perform durable._rebuild_head(p_to);
end
$$;
comment on function durable._copy_journal(bigint, bigint, integer, jsonb) is
  'Copies the rows, with an error that is replaced as a success; then computes the head.';

create or replace function durable._copy_signals(p_from bigint, p_to durable._executions, p_values jsonb)
returns void language sql volatile
as $$
  insert into durable._inboxes (execution, name, delivered, received)
  select j.execution, j.name, count(*) filter (where j.type = 'signal_delivered'),
         count(*) filter (where j.type = 'signal_received')
  from durable._journal j
  where j.execution = p_to.execution and j.bucket = p_to.bucket and j.type in ('signal_delivered', 'signal_received')
  group by j.execution, j.name;
  insert into durable._signals (execution, name, delivery, key, data)
  select i.execution, s.name, s.delivery, s.key,
         coalesce((p_values -> format('signal:%s:%s', s.name, s.delivery))::text, s.data)
  from durable._inboxes i
  join durable._signals s on s.execution = p_from and s.name = i.name and s.delivery <= i.delivered
  where i.execution = p_to.execution
$$;
comment on function durable._copy_signals(bigint, durable._executions, jsonb) is
  'Copies the inboxes, as the copied rows count them, and the delivered signals.';

create or replace function durable._deliver_copies(
  p_from bigint, p_to durable._executions, p_upto integer, p_values jsonb, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_events durable._event[];
begin
  with copied as (
    insert into durable._signals (execution, name, delivery, key, data)
    select p_to.execution, b.name, b.delivery, b.key,
           coalesce((p_values -> format('signal:%s:%s', b.name, b.delivery))::text, b.data)
    from durable._fork_backlog(p_from, p_upto) b
    left join durable._inboxes o on o.execution = p_to.execution and o.name = any (array[b.name])
    where b.delivery > coalesce(o.delivered, 0)
    returning name, delivery
  )
  select coalesce(array_agg(row(p_to.execution, 'signal_delivered', null, c.delivery, c.name, null, null)::durable._event
                            order by c.name, c.delivery), '{}')
  into v_events from copied c;
  perform durable._append(v_events, p_now);
end
$$;
comment on function durable._deliver_copies(bigint, durable._executions, integer, jsonb, bigint) is
  'Delivers to a fork what the copied part had not received from the backlog. A fork has no backlog: it may receive what the original has taken out since.';

create or replace function durable._fork_receivers(p_from durable._executions, p_to bigint, p_upto integer)
returns table (name text, child integer, delivery integer) language sql stable
as $$
  with past as materialized (
    select * from durable._prefix(p_from.execution, p_upto)
  ), later as (
    select distinct on (r.name) r.name, r.child, r.seq
    from past r where r.type = 'signal_received' and not r.copied order by r.name, r.seq
  ), candidate as (
    select l.name, l.child, l.seq from later l
    union all
    select i.name, i.receiver, null from durable._inboxes i
    where i.execution = p_from.execution and i.receiver is not null and not exists (select from later l where l.name = i.name)
  ), first_change as (
    select coalesce(min(r.seq), 2147483647) as seq from past r
    where not r.copied
      and (durable._resolves(r.type) or durable._schedules_promise(r.type)
           or r.type in ('cancel_requested', 'random_generated', 'time_recorded',
                         'join_set_created', 'join_set_submitted', 'join_set_awaited'))
  )
  select c.name, c.child, case when i.delivered > i.received then i.received + 1 end
  from candidate c
  cross join first_change n
  join durable._executions h on h.execution = p_to
  left join durable._inboxes i on i.execution = h.execution and i.name = c.name
  where c.child < h.next_child or coalesce(c.seq, 2147483647) = n.seq or exists (
    select from durable._journal j
    where j.execution = p_from.execution and j.bucket = p_from.bucket and j.type = 'execution_awaiting' and j.seq < n.seq
      and durable._data(j)::jsonb -> 'on' @> to_jsonb(c.child))
$$;
comment on function durable._fork_receivers(durable._executions, bigint, integer) is
  'Receives that the copied part had called and that had got no signal in it: calls with higher numbers were recorded, or a wait named them, or nothing happened before their signal. The code does not ask for them again. Receives after a command that is not copied are left out, because the code gives its commands in their order. delivery: the signal that is ready for one.';

create or replace function durable._copy_receivers(p_from durable._executions, p_to bigint, p_upto integer)
returns durable._event[] language plpgsql volatile
as $$
begin
  insert into durable._inboxes as i (execution, name, receiver)
  select p_to, r.name, r.child from durable._fork_receivers(p_from, p_to, p_upto) r where r.delivery is null
  on conflict (execution, name) do update set receiver = excluded.receiver;
  return array(
    select row(p_to, 'signal_received', r.child, r.delivery, r.name, null, null)::durable._event
    from durable._fork_receivers(p_from, p_to, p_upto) r where r.delivery is not null order by r.child);
end
$$;
comment on function durable._copy_receivers(durable._executions, bigint, integer) is
  'Registers waiting receives; answers the receipts of those with a signal.';

create or replace function durable._copy_join_sets(p_to durable._executions)
returns void language sql volatile
as $$
  insert into durable._join_sets (execution, child, closed)
  select j.execution, case j.type when 'join_set_created' then j.child else j.attempt end, bool_or(j.type = 'join_set_awaited')
  from durable._journal j
  where j.execution = p_to.execution and j.bucket = p_to.bucket and j.type in ('join_set_created', 'join_set_awaited')
  group by 1, 2;
  insert into durable._members (execution, child, join_set, taken)
  select j.execution, j.child, j.attempt, bool_or(j.type = 'join_set_awaited')
  from durable._journal j
  where j.execution = p_to.execution and j.bucket = p_to.bucket and j.type in ('join_set_submitted', 'join_set_awaited')
  group by 1, 2, 3
$$;
comment on function durable._copy_join_sets(durable._executions) is
  'Copies join sets and members, as the copied rows define them.';

create or replace function durable._copy_settled(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb)
returns void language sql volatile
as $$
  insert into durable._promises (id, tenant, execution, child, timeout_at, created_at, settled_at, timer, external, state,
                                 param_headers, param_data, value_headers, value_data, tags)
  select p_to.id || '.' || c.child, p.tenant, p_to.execution, c.child, p.timeout_at, p.created_at,
         case when v.value is null then p.settled_at else least(p.settled_at, p.timeout_at - 1) end, p.timer, p.external,
         case when v.value is null then p.state else 'resolved' end, p.param_headers, p.param_data,
         case when v.value is null then p.value_headers end, coalesce(v.value, p.value_data), durable._plain_tags(p.tags)
  from durable._fork_children(p_from.execution, p_upto) c
  join durable._promises p on p.id = any (array[p_from.id || '.' || c.child])
  cross join lateral (select (p_values -> c.child::text)::text as value) v
  where c.copied and c.complete and durable._schedules_promise(c.type)
$$;
comment on function durable._copy_settled(durable._executions, durable._executions, integer, jsonb) is
  'Creates the promises of children that are complete in the copy, settled as the originals were or with the replaced value; without task and journal.';

create or replace function durable._give_children(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb, p_now bigint)
returns void language sql volatile
as $$
  insert into durable._promises (id, tenant, execution, child, timeout_at, created_at, settled_at, external, state,
                                 param_headers, param_data, value_data)
  select p_to.id || '.' || c.child, p_to.tenant, p_to.execution, c.child, durable._never(), p_now, p_now, true, 'resolved',
         p.param_headers, p.param_data, (p_values -> c.child::text)::text
  from durable._fork_children(p_from.execution, p_upto) c
  left join durable._promises p on p.id = any (array[p_from.id || '.' || c.child])
  where p_values ? c.child::text and c.type in ('child_run_scheduled', 'promise_registered') and (not c.complete or p.id is null)
$$;
comment on function durable._give_children(durable._executions, durable._executions, integer, jsonb, bigint) is
  'Creates the promises of children that get a replaced value and are neither run nor awaited; also of adopted ones, whose promise belongs to another run.';

create or replace function durable._begin_children(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb, p_queues text[], p_priority smallint,
  p_now bigint)
returns void language plpgsql volatile
as $$
begin
  with child as materialized (
    select p_to.id || '.' || c.child as new_id, c.child, c.started, p.head is not null as is_run, p.tenant, p.created_at, p.timer,
           p.param_headers, p.param_data, p.tags, p.target, h.workflow, h.workflow_version,
           coalesce(h.abandoned, false) as abandoned,
           coalesce(t.priority, p_priority) as priority,
           case when q.queue = p_queues[1] then p_queues[2] else q.queue end as queue,
           case when p.timer then p.timeout_at else durable._later(p_now, durable._time_of(p)) end as new_timeout_at,
           case when p.head is not null then durable._next_execution() end as new_head,
           w.digest, coalesce(w.rules, 1::smallint) as rules,
           coalesce(h.abandoned, false) and p.state = 'pending' and not exists (
             select from durable._callbacks k where k.awaited_id = p.id and k.awaiter_id = p_from.id) as detached
    from durable._fork_children(p_from.execution, p_upto) c
    join durable._promises p on p.id = any (array[p_from.id || '.' || c.child])
    left join durable._executions h on h.execution = any (array[p.head])
    left join durable._workflows w on w.name = any (array[h.workflow]) and w.version = any (array[h.workflow_version])
    left join durable._tasks t on t.id = any (array[p.id])
    cross join lateral (select durable._queue_of(p.target) as queue) q
    where c.copied and not c.complete and durable._schedules_promise(c.type) and not p_values ? c.child::text
  ), begun as (
    select durable._begin(array_agg(c.new_head), array_agg(c.new_id), array_agg(c.tenant),
                          array_agg(row(c.workflow, c.workflow_version, c.digest, c.rules)::durable._run_code), null, p_now,
                          array_agg(c.abandoned))
    from child c where c.is_run having count(*) > 0
  ), promise as (
    insert into durable._promises (id, tenant, timeout_at, created_at, execution, head, child, timer, external, target,
                                   param_headers, param_data, tags)
    select c.new_id, c.tenant, c.new_timeout_at, case when c.timer then c.created_at else p_now end, p_to.execution, c.new_head,
           c.child, c.timer, true, case when c.is_run then durable._moved_target(c.target, c.queue) else c.target end,
           c.param_headers, c.param_data,
           case when c.is_run or c.target is null then durable._plain_tags(c.tags)
                else durable._call_tags(c.new_id, r, c.target) end
    from child c
    join durable._promises r on r.id = any (array[p_to.id])
    left join begun on true
  ), task as (
    insert into durable._tasks (id, execution, owner, deadline, retry_at, queue, priority, rules, workflow, workflow_version,
                                attempt)
    select c.new_id, c.new_head, p_to.execution, c.new_timeout_at, p_now,
           case when c.is_run then c.queue else durable._queue_of(c.target) end, c.priority,
           case when c.is_run then c.rules else 1 end, c.workflow, c.workflow_version, c.started
    from child c where c.target is not null
  )
  insert into durable._callbacks (awaited_id, awaiter_id)
  select c.new_id, p_to.id from child c where not c.detached;
end
$$;
comment on function durable._begin_children(durable._executions, durable._executions, integer, jsonb, text[], smallint, bigint) is
  'Starts again the children that are not complete in the copy: runs and calls with the same input, promises with as much time as they had, timers for the same instant. p_queues: the origin''s queue and the fork''s, because a child on its parent''s queue moves with it.';

create or replace function durable._given_events(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb)
returns durable._event[] language sql stable
as $$
  with given as (
    select c.*, (p_values -> c.child::text)::text as value,
           c.type in ('child_run_scheduled', 'promise_registered') as has_promise
    from durable._fork_children(p_from.execution, p_upto) c
    where p_values ? c.child::text and not c.complete
  ), event as (
    select g.child, g.began as seq, 0 as ord, g.type, null::integer as attempt, g.name, g.input_hash,
           case when g.type = 'promise_registered' then (select durable._data(j) from durable._journal j
                                        where j.execution = p_from.execution and j.bucket = p_from.bucket and j.seq = g.began)
                else g.value end as data
    from given g
    where not g.copied and g.type in ('child_run_scheduled', 'promise_registered', 'random_generated', 'time_recorded')
    union all
    select g.child, coalesce(g.ended, 2147483647), 1,
           case when g.has_promise and g.is_started then 'open_child_settled'::durable.row_type
                when g.has_promise then 'child_settled'
                when not g.copied then 'step_completed'
                when (g.attempt).state = 'running' then 'open_step_completed' else 'last_attempt_completed' end,
           case when g.has_promise then g.started + (not g.is_started)::integer
                when not g.copied then 1 else (g.attempt).number end,
           case when not g.has_promise then g.name end, case when not g.has_promise then g.input_hash end,
           case when not g.has_promise then g.value end
    from given g where g.type not in ('random_generated', 'time_recorded')
  )
  select coalesce(array_agg(row(p_to.execution, e.type, e.child, e.attempt, e.name, e.input_hash,
                                case when e.type <> 'child_run_scheduled' then e.data end)::durable._event
                            order by e.seq, e.ord, e.child), '{}')
  from event e
$$;
comment on function durable._given_events(durable._executions, durable._executions, integer, jsonb) is
  'The rows of children that get a replaced value and are not run, in the order of the original rows.';

create or replace function durable._adopt_again(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb)
returns durable._event[] language plpgsql volatile
as $$
begin
  insert into durable._callbacks (awaited_id, awaiter_id, child)
  select a.name, p_to.id, a.child from durable._adopted(p_from, p_upto, p_values) a where a.state = 'pending';
  update durable._promises p set external = true
  where p.id = any (array(select a.name from durable._adopted(p_from, p_upto, p_values) a))
    and p.state = 'pending' and not p.external;
  return array(
    select row(p_to.execution, 'child_settled', a.child, 1, a.name, null, null)::durable._event
    from durable._adopted(p_from, p_upto, p_values) a where a.state <> 'pending' order by a.child);
end
$$;
comment on function durable._adopt_again(durable._executions, durable._executions, integer, jsonb) is
  'Registers the fork on the promises of others that it had adopted; answers the rows of those that have settled. The caller holds them.';

create or replace function durable._fill_fork(
  p_from durable._executions, p_to durable._executions, p_upto integer, p_values jsonb, p_queues text[], p_priority smallint,
  p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_events durable._event[];
begin
  perform durable._copy_journal(p_from.execution, p_to.execution, p_upto, p_values);
  perform durable._copy_signals(p_from.execution, p_to, p_values);
  perform durable._deliver_copies(p_from.execution, p_to, p_upto, p_values, p_now);
  perform durable._copy_join_sets(p_to);
  perform durable._copy_settled(p_from, p_to, p_upto, p_values);
  perform durable._give_children(p_from, p_to, p_upto, p_values, p_now);
  perform durable._begin_children(p_from, p_to, p_upto, p_values, p_queues, p_priority, p_now);
  v_events := durable._adopt_again(p_from, p_to, p_upto, p_values)
              || durable._copy_receivers(p_from, p_to.execution, p_upto);
  perform durable._append(durable._given_events(p_from, p_to, p_upto, p_values), p_now);
  perform durable._interrupt(array[p_to.execution], 'forked', p_now);
  perform durable._append(array(
    select row(p_to.execution, 'child_run_interrupted', c.child, c.started, null, null,
               durable._interrupted('forked'))::durable._event
    from durable._fork_children(p_from.execution, p_upto) c
    where c.is_started and not c.complete and not p_values ? c.child::text order by c.child) || v_events, p_now);
  perform durable._wait_again(p_to.execution, p_now);
end
$$;
comment on function durable._fill_fork(
  durable._executions, durable._executions, integer, jsonb, text[], smallint, bigint) is
  'Fills a fork, beside promise, head and task. Open attempts belong to the original, and are closed in the copy.';

create or replace function durable._fork(
  p_id text, p_seq integer, p_step text, p_values jsonb, p_new_id text, p_queue text, p_version text)
returns text language plpgsql volatile
as $$
declare
  v_promise durable._promises := durable._find_run(p_id);
  v_from durable._executions;
  v_to durable._executions;
  v_queues text[] := array[durable._queue_of(v_promise.target), coalesce(p_queue, durable._queue_of(v_promise.target))];
  v_upto integer;
  v_values jsonb;
  v_adopted text[];
  v_priority smallint;
  v_now bigint;
begin
  select * into v_from from durable._executions h where h.execution = v_promise.head;
  v_from.workflow_version := coalesce(p_version, v_from.workflow_version);
  perform durable._check_fork(v_from, p_seq, p_step, p_values, p_new_id, p_queue);
  v_upto := durable._fork_position(v_from, p_seq, p_step);
  v_values := durable._fork_values(v_from, v_upto, p_values);
  v_adopted := durable._check_adopted(v_from, v_upto, v_values);
  v_to := durable._fork_run(v_promise, v_from,
    coalesce(p_new_id, durable._root_id(v_from.tenant, v_from.workflow, gen_random_uuid()::text)), v_queues[2],
    durable._now_ms());
  perform durable._lock_promises(v_adopted);
  perform durable._lock_heads(array[v_from.execution]);
  v_now := durable._now_ms();
  select * into v_from from durable._executions h where h.execution = v_promise.head;
  if not found then
    perform durable._fail_not_found('run', p_id);
  end if;
  perform durable._check_adopted(v_from, v_upto, v_values);
  v_priority := coalesce((select t.priority from durable._tasks t where t.id = p_id), 0);
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, rules, workflow, workflow_version)
  select p.id, p.head, p.timeout_at, v_now, v_queues[2], v_priority, v_to.rules, w.workflow, w.version
  from durable._promises p
  cross join lateral (select case when not v_to.written_by_client then v_to.workflow end as workflow,
                             case when not v_to.written_by_client then v_to.workflow_version end as version) w
  where p.id = v_to.id;
  perform durable._fill_fork(v_from, v_to, v_upto, v_values, v_queues, v_priority, v_now);
  insert into durable._forks (at, id, origin_id, origin, seq, by, replaced)
  values (v_now, v_to.id, p_id, v_from.execution, v_upto, session_user, v_values);
  perform durable._hint('durable_ready', v_now);
  return v_to.id;
end
$$;
comment on function durable._fork(text, integer, text, jsonb, text, text, text) is
  'Makes a fork: checks the request, creates promise and head, locks (promises that it adopts, the head that it reads), then fills the copy.';

create or replace function durable.fork(
  id text, seq integer default null, step text default null, set_values jsonb default '{}', new_id text default null,
  queue text default null, version text default null)
returns text language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  if $5 is not null then
    perform durable._lock_family($5, true);
    perform durable._check_removed(array[$5]);
  end if;
  return durable._fork($1, $2, $3, $4, $5, $6, $7);
end
$$;
comment on function durable.fork(text, integer, text, jsonb, text, text, text) is
  'Begins a new run from the journal of another: with its first seq events (a step that began and ended at once counts as a whole), with the events before a step, or with all (no position). Answers the id of the fork: select durable.fork(''order-42'', step => ''charge'', set_values => ''{"charge": {"paid": true}}''). set_values replaces results by child number or name, and payloads as "signal:<name>:<n>". The original does not change. WF001, WF003 new_id is taken, WF004, WF008.';
