-- Why the task of a run or call is where it is: not ready yet, ready and not claimed, leased, or set aside. A function answers no
-- row where its cause does not apply.

create or replace function durable._is_alive(p_worker durable._workers, p_now bigint, p_connected bigint[])
returns boolean language sql immutable
as $$
  select p_worker.missing_at is null
         and case when p_worker.seen_at > p_now - 10000 then true when not p_worker.present then p_worker.seen_at > p_now - 120000
                  else durable._is_connected(p_worker, p_connected) end
$$;
comment on function durable._is_alive(durable._workers, bigint, bigint[]) is
  'A worker that was seen within ten seconds, or is connected; one without a presence lock was seen within two minutes.';

create or replace function durable._last_tick(p_now bigint)
returns bigint language sql stable
as $$
  select max(coalesce(w.ticked_at, w.started_at)) from durable._workers w
  where durable._is_alive(w, p_now, (select durable._connected()))
$$;
comment on function durable._last_tick(bigint) is
  'When a worker that is alive ticked last, or began if it has not ticked yet; null if none is alive.';

create or replace function durable._overdue_cause(p_due bigint, p_name text, p_event text, p_effect text, p_now bigint)
returns durable._cause language plpgsql stable
as $$
declare
  v_tick bigint := durable._last_tick(p_now);
  v_is_stuck boolean := coalesce(v_tick <= p_now - 60000, true) and p_due <= p_now - 5000;
begin
  return durable._because(
    case when v_is_stuck then 'no_tick' else 'overdue' end, p_name,
    format('%s %s ago%s', p_event, durable._span(p_now - p_due), case
      when not v_is_stuck then '; the next tick ' || p_effect
      when v_tick is null then ', and no worker runs, which would tick; select durable.tick() does it too'
      else format(', and the last tick was %s ago; select durable.tick() tells why', durable._span(p_now - v_tick)) end),
    p_due, p_details => jsonb_build_object('last_tick', durable._at(v_tick)));
end
$$;
comment on function durable._overdue_cause(bigint, text, text, text, bigint) is
  'Something that time should have done at p_due: the next tick does it, or nothing ticks. p_event: what was due; p_effect: what a tick does.';

create or replace function durable._step_history(p_execution bigint)
returns table (
  child integer, name text, attempt integer, is_running boolean, failures bigint, failure jsonb, most text, at bigint,
  lost bigint)
language sql stable
as $$
  select s.child, coalesce(s.name, s.child::text), s.attempt, s.is_running, f.failures, f.failure, f.most, f.at, f.lost
  from durable._open_steps s
  cross join lateral (
    -- by the numbers: rows of attempts that lie far back are removed, but for interrupted ones
    select coalesce(max(j.attempt) filter (where durable._fails_attempt(j.type)), 0)
             - count(*) filter (where durable._fails_attempt(j.type) and not d.failed) as failures,
           (array_agg(d.data order by j.seq desc) filter (where d.failed))[1] as failure,
           min(d.data #>> '{retry,max_attempts}') as most, max(j.ts) as at,
           count(*) filter (where not d.failed and d.data #>> '{error,message}' = 'lease lost') as lost
    from durable._journal j
    cross join lateral (
      select b.data, durable._fails_attempt(j.type) and b.data -> 'interrupted' is distinct from 'true' as failed
      from (select case when durable._fails_attempt(j.type) or j.type = 'step_started'
                        then durable._json(durable._data(j)) end as data) b offset 0) d
    where j.execution = p_execution and j.bucket = s.bucket and j.seq >= s.seq and j.child = s.child) f
  where s.execution = p_execution
  order by s.is_running, s.child limit 10
$$;
comment on function durable._step_history(bigint) is
  'Open local steps of a run, ten at most, with what their journal rows say: failures, the last one, how many attempts there may be, when the last row was written, and leases lost during an attempt. Reads the journal from the first row of each step on.';

create or replace function durable._step_causes(p_execution bigint, p_worker text, p_now bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._step_history(p_execution) s
  cross join lateral (
    select durable._error_line(s.failure -> 'error') as error, (s.failure ->> 'retry_at')::numeric::bigint as retry_at,
           format('attempt %s%s', s.attempt, ' of ' || s.most) as attempt,
           case when s.is_running then 'step' when s.failures > 0 then 'retry' else 'interrupted_step' end as cause offset 0) t
  cross join lateral durable._because(
    t.cause, s.name,
    case t.cause
      when 'retry' then format('step %s failed %s (%s), %s %s', s.name, durable._times(s.failures), t.error, t.attempt,
                               durable._then(t.retry_at, p_now))
      when 'step' then concat('step ', s.name, ' runs', ' in worker ' || p_worker, durable._since(s.at, p_now),
                              case when s.attempt > 1 then ', ' || t.attempt end,
                              case when s.failures > 0 then format(', failed %s (%s)', durable._times(s.failures), t.error) end)
      else format('step %s was interrupted%s, %s is due', s.name, durable._since(s.at, p_now), t.attempt) end,
    s.at, case t.cause when 'retry' then t.retry_at end,
    jsonb_build_object('child', s.child, 'attempt', s.attempt, 'failures', s.failures, 'error', s.failure -> 'error')) b
$$;
comment on function durable._step_causes(bigint, text, bigint) is
  'The local steps that a run waits for: each runs, waits for its next attempt after a failure, or was interrupted.';

create or replace function durable._crash_causes(p_task durable._tasks)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_is_dead boolean := p_task.state = 'halted';
  v_lost record;
begin
  select string_agg(s.name, ', ' order by s.child) as steps, greatest(max(s.lost), p_task.crashes) as times into v_lost
  from durable._step_history(p_task.execution) s where s.lost > 0;
  if v_lost.times > 0 then
    return next durable._because(
      case when v_is_dead then 'dead' else 'crashed' end, coalesce(v_lost.steps, p_task.workflow),
      concat('killed its worker ', durable._times(v_lost.times), ' in step ' || v_lost.steps,
             case when v_is_dead then format(' and is set aside; durable.redrive(%L) lets it go on', p_task.id)
                  else format('; after %s in a row it is set aside',
                              durable._times(1 + durable._setting_int('max_crashes'))) end),
      p_details => jsonb_build_object('step', v_lost.steps, 'crashes', v_lost.times));
  end if;
end
$$;
comment on function durable._crash_causes(durable._tasks) is
  'Its workers were lost, and the steps that ran then. Only steps that began ahead of their end are in the journal.';

create or replace function durable._halt_causes(p_task durable._tasks, p_head durable._executions)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_problem jsonb := durable._json(p_head.problem);
  v_next text := format('durable.resume(%L) lets it go on', p_task.id);
begin
  if durable._is_dead(p_head.problem) then
    return query select * from durable._crash_causes(p_task);
    return;
  end if;
  return next case
    when p_head.problem = durable._paused_by_hand() then durable._because('paused', p_head.workflow, 'is paused; ' || v_next)
    when v_problem ->> 'type' = 'Paused' then durable._because(
      'paused', p_head.workflow, 'is paused: ' || (v_problem ->> 'message'), p_details => jsonb_build_object('problem', v_problem))
    when exists (select from durable._code_waits c where c.id = p_task.id) then durable._because(
      'waits_for_code', p_head.workflow, format('halted: %s; waits for a worker with the code that wrote its journal (digest %s%s), '
                                                'and goes on by itself then', durable._error_line(v_problem),
                                                left(encode(p_head.digest, 'hex'), 12),
                                                ', Python ' || durable._python_of(p_head.digest)),
      p_details => jsonb_build_object('problem', v_problem, 'digest', encode(p_head.digest, 'hex')))
    else durable._because('halted', v_problem ->> 'type',
                          format('halted: %s%s; %s with code that fits its journal; else fork it from before the difference',
                                 nullif(v_problem #>> '{data,hint}', '') || '; ', durable._error_line(v_problem), v_next),
                          p_details => jsonb_build_object('problem', v_problem)) end;
end
$$;
comment on function durable._halt_causes(durable._tasks, durable._executions) is
  'A run that is set aside: paused by a person, halted because code and journal disagree, or dead. If another code wrote the journal it waits for that.';

create or replace function durable._ahead(p_task durable._tasks, p_now bigint)
returns bigint language sql stable
as $$
  select count(*) from (
    select from durable._tasks t
    where t.queue = p_task.queue and t.state = 'pending' and t.retry_at <= p_now and t.deadline > p_now
      and (t.priority, t.retry_at) < (p_task.priority, p_task.retry_at) limit 1000) x
$$;
comment on function durable._ahead(durable._tasks, bigint) is
  'How many ready tasks of its queue are claimed before this one; 1000 stands for more.';

create or replace function durable._place(p_ahead bigint)
returns text language sql immutable parallel safe
as $$
  select case p_ahead when 0 then 'next' when 1000 then 'behind 1000 others or more'
                      else 'behind ' || durable._counted(p_ahead, 'other') end
$$;
comment on function durable._place(bigint) is 'The place of a task in its queue: next, behind 3 others.';

create or replace function durable._workers_serve(p_count bigint)
returns text language sql immutable parallel safe
as $$ select durable._counted(p_count, 'worker') || case p_count when 1 then ' serves' else ' serve' end $$;
comment on function durable._workers_serve(bigint) is '1 worker serves, 3 workers serve.';

create or replace function durable._serving(p_task durable._tasks, p_now bigint)
returns table (alive bigint, in_queue bigint, named bigint, same bigint, able bigint, queues text, versions text)
language sql stable
as $$
  select count(distinct w.id), count(distinct w.id) filter (where k.in_queue),
         count(distinct w.id) filter (where k.in_queue and k.named),
         count(distinct w.id) filter (where k.in_queue and k.named and v.version = p_task.workflow_version),
         count(distinct w.id) filter (where k.in_queue and k.named and v.version = p_task.workflow_version
                                        and w.rules >= p_task.rules),
         (select string_agg(distinct q, ', ') from durable._workers x cross join lateral unnest(x.queues) q
          where durable._is_alive(x, p_now, (select durable._connected()))),
         string_agg(distinct v.version, ', ') filter (where k.in_queue and k.named)
  from durable._workers w
  left join lateral unnest(w.workflows, w.versions) as v (name, version) on v.name = p_task.workflow
  cross join lateral (select p_task.queue = any (w.queues) as in_queue, v.name is not null as named) k
  where durable._is_alive(w, p_now, (select durable._connected()))
$$;
comment on function durable._serving(durable._tasks, bigint) is
  'How many workers are alive, serve the queue of a task, its workflow there, its version, and know its rules of replay; all queues that are served, and the versions of the workflow in that queue.';

create or replace function durable._queue_cause(p_task durable._tasks, p_now bigint)
returns durable._cause language plpgsql stable
as $$
declare
  v_queue constant text := p_task.queue;
  v_label text := concat(p_task.workflow, ' version ' || nullif(p_task.workflow_version, '1'));
  v_since text := durable._since(p_task.retry_at, p_now);
  v_ahead bigint := durable._ahead(p_task, p_now);
  v_details jsonb;
  v record;
begin
  select * into v from durable._serving(p_task, p_now);
  v_details := jsonb_build_object('queue', v_queue, 'workflow', p_task.workflow, 'version', p_task.workflow_version,
                                  'workers', v.able, 'ahead', v_ahead);
  return case
    when v.alive = 0 then durable._because(
      'no_worker', v_queue, format('no worker runs; %s is queued in %s%s', v_label, v_queue, v_since), p_task.retry_at,
      p_details => v_details)
    when v.in_queue = 0 then durable._because(
      'no_worker_for_queue', v_queue, format('no worker serves queue %s; %s %s', v_queue, durable._workers_serve(v.alive), v.queues),
      p_task.retry_at, p_details => v_details)
    when v.named = 0 then durable._because(
      'no_worker_for_workflow', v_label, format('no worker serves %s in queue %s; %s other workflows there', v_label, v_queue,
                                                durable._workers_serve(v.in_queue)), p_task.retry_at, p_details => v_details)
    when v.same = 0 then durable._because(
      'no_worker_for_version', v_label, format('no worker serves %s version %s; %s %s', p_task.workflow,
                                               p_task.workflow_version, durable._workers_serve(v.named), v.versions),
      p_task.retry_at, p_details => v_details)
    when v.able = 0 then durable._because(
      'no_worker_for_rules', v_label, format('no worker knows the rules of replay %s of %s; %s it with an older pyengine',
                                             p_task.rules, v_label, durable._workers_serve(v.same)),
      p_task.retry_at, p_details => v_details || jsonb_build_object('rules', p_task.rules))
    else durable._because(
      'queued', v_queue, format('is %s in queue %s%s; %s it', durable._place(v_ahead), v_queue, v_since,
                                durable._workers_serve(v.able)), p_task.retry_at, p_details => v_details) end;
end
$$;
comment on function durable._queue_cause(durable._tasks, bigint) is
  'A run that is ready and not claimed: no worker that is alive serves its queue, workflow and version and knows its rules, or others come first.';

create or replace function durable._reserved_cause(p_task durable._tasks, p_now bigint)
returns durable._cause language sql stable
as $$
  select durable._because(
    'reserved', p_task.preference,
    format('is left for %s more to worker %s, which has its code', durable._span(p_task.prefer_until - p_now), p_task.preference),
    p_task.retry_at, p_task.prefer_until)
$$;
comment on function durable._reserved_cause(durable._tasks, bigint) is
  'A ready run that another worker may claim only later: the preferred one has its coroutine, or is the one with the code that wrote its journal.';

create or replace function durable._service_cause(p_task durable._tasks, p_now bigint)
returns durable._cause language plpgsql stable
as $$
declare
  v_function constant text := substr(p_task.queue, 7);
  v_service durable._services;
begin
  select * into v_service from durable._services s where s.name = p_task.queue;
  return case
    when v_service.name is null then durable._because(
      'not_served', v_function, format('function %s is not served; durable.serve(...) serves it', v_function), p_task.retry_at)
    when to_regprocedure(v_service.function) is null then durable._because(
      'no_function', v_function, format('function %s does not exist any more', v_service.function), p_task.retry_at)
    when durable._last_tick(p_now) is null then durable._because(
      'no_worker', v_function, format('no worker runs, which would call function %s; select durable.tick() calls it too', v_function),
      p_task.retry_at)
    else durable._because('queued', v_function, format('is %s for function %s%s', durable._place(durable._ahead(p_task, p_now)),
                                                       v_function, durable._since(p_task.retry_at, p_now)), p_task.retry_at) end;
end
$$;
comment on function durable._service_cause(durable._tasks, bigint) is
  'A ready task of a function of the database: it is not served, is gone, nothing calls it, or others come first.';

create or replace function durable._call_causes(p_task durable._tasks, p_now bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._call_attempts a
  join durable._calls c on c.value_key = any (array[a.value_key])
  left join durable._promises p on p.id = any (array[p_task.id])
  left join lateral (
    select left(o.message, 300) as message from durable._call_polls o
    where o.execution_key = a.execution_key and o.message is not null order by o.seq desc limit 1) l on true
  cross join lateral (select
    coalesce(durable._json(p.param_data) #>> '{request,name}', c.function) as call,
    format('poll %s %s', a.polls + 1, case p_task.state when 'acquired' then 'in worker ' || p_task.pid
                                                        else durable._then(p_task.retry_at, p_now) end) as poll,
    case when p_task.state <> 'acquired' and not exists (select from durable._adapters d where d.adapter = a.served_as
                                                          and d.seen_at > p_now - 60000) then 'no_adapter'
         when a.failures > 0 then 'call_retry' else 'call' end as cause offset 0) t
  cross join lateral durable._because(
    t.cause, a.served_as,
    case t.cause
      when 'no_adapter' then format('no worker serves adapter %s; call %s waits%s', a.served_as, t.call,
                                    durable._since(a.created_at, p_now))
      when 'call_retry' then format('call %s failed %s at adapter %s (%s), %s', t.call, durable._times(a.failures), a.served_as,
                                    coalesce(l.message, 'no message'), t.poll)
      else format('call %s is pending at adapter %s%s, %s', t.call, a.served_as, durable._since(a.created_at, p_now), t.poll) end,
    a.created_at, p_task.retry_at,
    jsonb_build_object('function', c.function, 'polls', a.polls, 'failures', a.failures, 'phase', a.phase,
                       'message', l.message)) b
  where a.execution_key = durable._call_key(p_task.id)
$$;
comment on function durable._call_causes(durable._tasks, bigint) is
  'A call that is not over: its adapter has no worker, it failed and is polled again, or it is pending.';

create or replace function durable._client_causes(p_task durable._tasks, p_now bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._promises p
  cross join lateral (select
    coalesce('call of ' || (durable._call_in(p.param_data) ->> 'func'), 'task') as what,
    case when p_task.retry_at > p_now then 'offered' when p_task.releases > 0 then 'released' else 'no_client' end as cause
    offset 0) t
  cross join lateral durable._because(
    t.cause, p_task.queue,
    case t.cause
      when 'offered' then format('%s was offered to a client of group %s, which has not taken it; the next offer is due %s',
                                 t.what, p_task.queue, durable._then(p_task.retry_at, p_now))
      when 'released' then format('%s was given back %s by clients of group %s; waits for another client', t.what,
                                  durable._times(p_task.releases), p_task.queue)
      else format('%s waits for a client of group %s%s', t.what, p_task.queue, durable._since(p_task.retry_at, p_now)) end,
    least(p_task.retry_at, p_now), p.due_at,
    jsonb_build_object('func', durable._call_in(p.param_data) ->> 'func', 'releases', p_task.releases,
                       'released_by', p_task.released_by)) b
  where p.id = p_task.id
$$;
comment on function durable._client_causes(durable._tasks, bigint) is
  'A pending task that clients of the protocol serve: none has asked for it, it was offered, or clients gave it back.';

create or replace function durable._last_failure(p_execution bigint)
returns jsonb language sql stable
as $$
  select durable._json(durable._data(j)) -> 'error'
  from durable._executions h
  join durable._executions o on o.execution = any (array[h.previous])
  join durable._journal j on j.execution = any (array[o.execution]) and j.bucket = o.bucket and j.seq = o.next_seq - 1
  where h.execution = p_execution and j.type = 'execution_failed'
$$;
comment on function durable._last_failure(bigint) is
  'The error with which the journal before this one ended, if the run is tried again; null otherwise.';

create or replace function durable._delay_causes(p_task durable._tasks, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_error jsonb := durable._last_failure(p_task.execution);
begin
  return query select * from durable._step_causes(p_task.execution, null, p_now);
  if found then
    return;
  elsif v_error is not null then
    return next durable._because(
      'run_retry', p_task.workflow, format('failed (%s), attempt %s of the run %s', durable._error_line(v_error),
                                           durable._attempt_of(p_task.execution), durable._then(p_task.retry_at, p_now)),
      p_until => p_task.retry_at, p_details => jsonb_build_object('error', v_error));
  else
    return next durable._because(
      case p_task.version when 0 then 'delayed' else 'put_off' end, coalesce(p_task.workflow, p_task.queue),
      case p_task.version when 0 then 'starts ' else 'was put off; it is claimed again ' end
        || durable._then(p_task.retry_at, p_now), p_until => p_task.retry_at);
  end if;
end
$$;
comment on function durable._delay_causes(durable._tasks, bigint) is
  'A task that is not ready before an instant: a step or the whole run is tried again, a start with a delay, or a release.';

create or replace function durable._lease_causes(p_task durable._tasks, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_holder text := case when p_task.workflow is null then 'client ' else 'worker ' end || p_task.pid;
  v_worker durable._workers;
  v_heard text;
begin
  select * into v_worker from durable._workers w where w.id = p_task.pid;
  -- a heartbeat that renews leases need not write the row of its worker
  v_worker.seen_at := case when v_worker.id is not null then greatest(v_worker.seen_at, p_task.expires_at - p_task.ttl) end;
  v_heard := durable._span(p_now - v_worker.seen_at);
  if p_task.expires_at <= p_now then
    return next durable._overdue_cause(p_task.expires_at, p_task.pid, format('the lease of %s ended', v_holder),
                                     'gives it to another one', p_now);
    return;
  elsif v_worker.missing_at is not null or not durable._is_connected(v_worker, durable._connected()) then
    return next durable._because('worker_gone', p_task.pid, format('%s is gone, last heard %s ago; %s', v_holder, v_heard, case
      when exists (select from durable._workers w
                   where w.id <> v_worker.id and durable._is_alive(w, p_now, (select durable._connected())))
        then 'another one takes over within seconds'
      else 'no other worker runs, which would take over' end), v_worker.seen_at);
    return;
  elsif v_worker.seen_at < p_now - p_task.ttl * 6 / 10 then
    return next durable._because(
      'worker_silent', p_task.pid,
      format('%s was last heard %s ago; if it stays silent its lease ends in %s, and another one takes over', v_holder, v_heard,
             durable._span(p_task.expires_at - p_now)), v_worker.seen_at, p_task.expires_at);
  end if;
  return query select * from durable._step_causes(p_task.execution, p_task.pid, p_now);
  if not found then
    return next durable._because(
      'running', p_task.pid, format('runs in %s%s, with a lease for %s more', v_holder, durable._since(p_task.acquired_at, p_now),
                                    durable._span(p_task.expires_at - p_now)), p_task.acquired_at, p_task.expires_at);
  end if;
end
$$;
comment on function durable._lease_causes(durable._tasks, bigint) is
  'A task that is leased: its steps, or its code runs; its worker is gone or silent, or its lease is over.';
