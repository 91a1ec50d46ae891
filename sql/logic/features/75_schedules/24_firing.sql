-- How a tick fires schedules: those that are due and that nobody holds, the longest overdue first.

create or replace function durable._create_occurrences(p_schedules text[], p_instants bigint[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[];
  v_ids text[];
begin
  with occurrence as materialized (
    select x.id, o.at, least(o.at + s.promise_timeout, durable._never()) as timeout_at, s.tenant,
           s.promise_param_headers as headers, s.promise_param_data as data, x.target,
           coalesce(s.promise_tags ->> 'resonate:timer' = 'true', false) as timer,
           s.promise_tags || jsonb_build_object('resonate:schedule', s.id) || case when x.target is null then '{}' else
             jsonb_build_object('resonate:origin', x.id, 'resonate:prefix', x.id, 'resonate:branch', x.id,
                                'resonate:parent', x.id) end as tags,
           substring(s.promise_tags ->> 'resonate:delay' from '^[0-9]{1,16}$')::bigint as delay
    from unnest(p_schedules, p_instants) as o (schedule, at)
    join durable._schedules s on s.id = any (array[o.schedule])
    cross join lateral (
      select durable._expansion(s.promise_id, s.id, o.at) as id,
             durable._canonical_address(s.promise_tags ->> 'resonate:target') as target) x
  ), born as (
    insert into durable._promises as p (id, state, timeout_at, created_at, settled_at, timer, external, target, task_version,
                                        param_headers, param_data, tenant, tags)
    select o.id, case when o.timeout_at > p_now then 'pending' when o.timer then 'resolved' else 'rejected_timedout' end,
           o.timeout_at, o.at, case when o.timeout_at <= p_now then o.timeout_at end, o.timer,
           o.timer or o.target is not null or coalesce(o.tags ->> 'resonate:external' = 'true', false), o.target,
           case when o.timeout_at <= p_now and o.target is not null then 0 end, o.headers, o.data, o.tenant, o.tags
    from occurrence o
    where octet_length(o.id) between 1 and 512 and not durable._is_of_calls(o.id)
      and coalesce(o.delay < o.timeout_at, true)
      and not exists (select from durable._promises a where a.id = any (durable._ancestors(o.id)) and a.head is not null)
      and not exists (select from durable._removed r where r.id = any (array[o.id]))
    order by o.id collate "C", o.at
    on conflict do nothing
    returning p.id, p.state, p.timeout_at, p.target, p.created_at
  ), queued as (
    insert into durable._tasks as t (id, deadline, retry_at, queue, preference, prefer_until)
    select b.id, b.timeout_at, greatest(durable._not_before(b.timeout_at, o.tags), p_now), durable._queue_of(b.target),
           durable._preference_of(b.target), durable._prefer_until(durable._preference_of(b.target), p_now)
    from born b join occurrence o on o.id = b.id and o.at = b.created_at
    where b.state = 'pending' and b.target is not null
    returning t.id, t.queue, t.retry_at
  )
  select coalesce(array_agg(distinct q.queue) filter (where q.retry_at <= p_now), '{}'), array_agg(q.id)
  into v_queues, v_ids from queued q;
  perform durable._make_runs(v_ids, p_now);
  return v_queues;
end
$$;
comment on function durable._create_occurrences(text[], bigint[], bigint) is
  'Creates the promises of instants of locked schedules, as of their instant; a promise whose deadline has passed is stored settled. An id that exists is left as it is. A promise that promise_create would refuse (an id reserved to a run or a call, a delay at or after the deadline) is not created, and its instant passes. One ordered insert, so that sweeps do not wait for each other in a circle. Returns the queues that got ready tasks.';

create or replace function durable._fire_schedule(
  p_schedule durable._schedules, p_now bigint, p_most integer, out instants integer, out queues text[])
language plpgsql volatile
as $$
begin
  select f.instants, f.queues into instants, queues from durable._fire_by_policy(p_schedule, p_now, p_most) f;
exception when data_exception or integrity_constraint_violation or insufficient_privilege or sqlstate 'WF001' or sqlstate 'WF003'
               or sqlstate 'WF004' or sqlstate 'WF008' then
  update durable._schedules s set next_run_at = greatest(p_now, s.created_at, s.last_run_at) + 3600000
  where s.id = p_schedule.id;
  instants := 0;
  queues := '{}';
end
$$;
comment on function durable._fire_schedule(durable._schedules, bigint, integer) is
  'Fires one schedule that has policies. If it fails, it alone is put off by an hour, and the others fire. instants: how many it fired; null: nothing changed.';

create or replace function durable._fire_locked(p_due text[], p_now bigint, p_limit integer)
returns table (fired integer, queues text[])
language plpgsql volatile
as $$
declare
  v_most bigint := durable._setting_int('schedule_catch_up');
  v_more bigint := greatest(p_limit, v_most);
  v_schedule durable._schedules;
  v_instants bigint[];
  v_count integer;
  v_schedules text[] := '{}';
  v_fired bigint[] := '{}';
  v_queues text[] := '{}';
  v_last bigint[] := '{}';
  v_next bigint[] := '{}';
  v_plain text[] := '{}';
  v_apart integer := 0;
begin
  for n in 1 .. cardinality(p_due) loop
    select * into v_schedule from durable._schedules s where s.id = p_due[n];
    if v_schedule.paused_until <= p_now or durable._has_policy(v_schedule) then
      select f.instants, v_queues || f.queues into v_count, v_queues
      from durable._fire_schedule(v_schedule, p_now, least(v_most, v_more + 1)::integer) f;
      v_more := v_more - greatest(v_count - 1, 0);
      v_apart := v_apart + (v_count is not null)::integer;
      continue;
    end if;
    v_instants := durable._due_instants(v_schedule, p_now, least(v_most, v_more + 1)::integer);
    v_count := cardinality(v_instants) - 1;
    v_more := v_more - greatest(v_count - 1, 0);
    if v_schedule.workflow is not null then
      v_queues := v_queues || durable._start_occurrences(v_schedule, v_instants[1:v_count]);
    else
      v_schedules := v_schedules || array_fill(v_schedule.id, array[v_count]);
      v_fired := v_fired || v_instants[1:v_count];
    end if;
    v_plain := v_plain || v_schedule.id;
    v_last := array_append(v_last, v_instants[v_count]);
    v_next := array_append(v_next, coalesce(v_instants[v_count + 1], durable._never()));
  end loop;
  queues := v_queues || durable._create_occurrences(v_schedules, v_fired, p_now);
  update durable._schedules s set last_run_at = coalesce(u.last_run_at, s.last_run_at), next_run_at = u.next_run_at,
    latest = case when s.workflow is null then s.latest else coalesce(durable._occurrence_id(s, u.last_run_at), s.latest) end
  from unnest(v_plain, v_last, v_next) as u (id, last_run_at, next_run_at)
  where s.id = any (array[u.id]) and s.next_run_at < u.next_run_at;
  get diagnostics fired = row_count;
  fired := fired + v_apart;
  return next;
end
$$;
comment on function durable._fire_locked(text[], bigint, integer) is
  'Fires schedules that are due and locked: at most schedule_catch_up instants of each; the rest stays due for the next call. Many schedules that are far behind share a budget of p_limit instants beyond one each. A schedule without further instants is never due again. Class 0, before all other locks; waits only for a creator of the same promise id. Returns how many schedules fired, and the queues that got ready tasks.';

create or replace function durable._fire_schedules(p_now bigint, p_limit integer)
returns table (fired integer, queues text[])
language plpgsql volatile
as $$
begin
  return query select * from durable._fire_locked(
    array(select s.id from durable._schedules s where s.next_run_at <= p_now
          order by s.next_run_at limit p_limit for update skip locked), p_now, p_limit);
end
$$;
comment on function durable._fire_schedules(bigint, integer) is
  'Fires the schedules that are due, the longest overdue first: p_limit at most. Skips those that another sweep has locked.';

create or replace function durable._fire_one_by_one(p_now bigint, p_limit integer)
returns table (fired integer, queues text[])
language plpgsql volatile
as $$
declare
  v_id text;
begin
  for v_id in select s.id from durable._schedules s where s.next_run_at <= p_now order by s.next_run_at limit p_limit loop
    begin
      return query select * from durable._fire_locked(
        array(select s.id from durable._schedules s where s.id = v_id for update skip locked), p_now, 1);
    exception when lock_not_available then
      continue;
    end;
  end loop;
end
$$;
comment on function durable._fire_one_by_one(bigint, integer) is
  'Fires each of them alone, except those whose promise another open transaction is creating: they stay due.';

create or replace function durable._fire_free_schedules(p_now bigint, p_limit integer)
returns table (fired integer, queues text[])
language plpgsql volatile
as $$
begin
  return query select * from durable._fire_schedules(p_now, p_limit);
exception when lock_not_available then
  return query select coalesce(sum(f.fired), 0)::integer, coalesce(array_agg(distinct q) filter (where q is not null), '{}')
               from durable._fire_one_by_one(p_now, least(p_limit, 20)) f left join unnest(f.queues) q on true;
end
$$ set lock_timeout = '50ms';
comment on function durable._fire_free_schedules(bigint, integer) is
  'Fires the schedules that are due, and waits for no lock: if another transaction is creating a promise of such an id, the schedules are fired one by one, 20 at most.';

create or replace function durable._odd_schedules(p_now bigint)
returns text language plpgsql stable
as $$
begin
  return (
    select 'schedules whose cron expression or time zone this server does not know, or that fail, are put off by an hour: '
           || string_agg(s.id, ', ' order by s.id)
    from durable._schedules s where s.next_run_at = p_now + 3600000
      and case when durable._is_evaluable(s) then least(durable._nominal_next(s), s.poll_at) <= p_now else true end);
end
$$;
comment on function durable._odd_schedules(bigint) is
  'The warning of a tick that could not evaluate schedules; null if it evaluated all that were due.';

create or replace function durable._sweep_schedules(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_fired integer;
  v_queues text[];
begin
  if not exists (select from durable._schedules s where s.next_run_at <= p_now) then
    return null;
  end if;
  select f.fired, f.queues into v_fired, v_queues from durable._fire_free_schedules(p_now, p_limit) f;
  if v_fired = 0 then
    return null;
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', v_fired, 'next_due_ms', durable._due_in(p_now),
                            'more', true, 'hints', to_jsonb(v_queues), 'warning', durable._odd_schedules(p_now));
end
$$;
comment on function durable._sweep_schedules(integer, bigint) is
  'The answer of a tick that fired schedules; null if none was due, or other sweeps have them. In a transaction of its own, because the creation of promises may wait for a session that creates the same, and must hold nothing then.';
