-- Schedules: the operations on them of the protocol, and how their instants fire. The verbs for people are in
-- 25_schedule_verbs.sql.

create or replace function durable._schedule_record(p_schedule durable._schedules)
returns durable.schedule_record language sql immutable
as $$
  select row(p_schedule.id, p_schedule.cron, p_schedule.timezone, p_schedule.promise_id, p_schedule.promise_timeout,
             p_schedule.promise_param_headers, p_schedule.promise_param_data, p_schedule.promise_tags, p_schedule.created_at,
             p_schedule.next_run_at, p_schedule.last_run_at)::durable.schedule_record
$$;
comment on function durable._schedule_record(durable._schedules) is 'A stored schedule as clients see it.';

create or replace function durable._check_schedule(p_id text, p_template text, p_timeout bigint, p_headers jsonb, p_tags jsonb)
returns void language plpgsql stable
as $$
begin
  if p_id is null or octet_length(p_id) not between 1 and 512 then
    perform durable._fail_invalid(
      format('A schedule id has 1 to 512 bytes, this one has %s.', coalesce(octet_length(p_id), 0)));
  elsif coalesce(p_template, '') = '' then
    perform durable._fail_invalid(format('Schedule %L: the template of the promise id is empty.', p_id));
  elsif p_timeout is null or p_timeout not between 0 and durable._never() then
    perform durable._fail_invalid(format('Schedule %L: promise_timeout must be between 0 and 2^53 - 1 ms.', p_id));
  elsif jsonb_typeof(p_headers) <> 'object'
        or exists (select from jsonb_path_query(p_headers, 'lax $.*') h where jsonb_typeof(h) <> 'string') then
    perform durable._fail_invalid(format('Schedule %L: headers must be a JSON object of strings.', p_id));
  elsif p_tags is null or jsonb_typeof(p_tags) <> 'object'
        or exists (select from jsonb_path_query(p_tags, 'lax $.*') t where jsonb_typeof(t) <> 'string') then
    perform durable._fail_invalid(format('Schedule %L: tags must be a JSON object of strings.', p_id));
  elsif p_tags ? 'resonate:target' and durable._canonical_address(p_tags ->> 'resonate:target') is null then
    perform durable._fail_invalid(format('Schedule %L: target %L cannot be routed.', p_id, p_tags ->> 'resonate:target'),
                                  'Use poll://any@group, poll://uni@group/id or http(s)://host/path.');
  elsif p_tags ? 'resonate:target' and p_tags ->> 'resonate:timer' = 'true' and durable._strict() then
    perform durable._fail_invalid(format('Schedule %L: a timer has no target.', p_id));
  elsif p_tags ? 'resonate:delay' and (not p_tags ? 'resonate:target' or coalesce(
      substring(p_tags ->> 'resonate:delay' from '^[0-9]{1,16}$')::bigint >= durable._never(), true)) then
    perform durable._fail_invalid(format('Schedule %L: resonate:delay is an instant in ms, with a target.', p_id));
  end if;
end
$$;
comment on function durable._check_schedule(text, text, bigint, jsonb, jsonb) is
  'Checks the arguments of a schedule, without cron and zone. Each promise that it creates is an origin of its own, whatever its id. Whether a delay ends before the deadline is checked at each instant. WF004.';

create or replace function durable._check_timezone(p_id text, p_timezone text)
returns void language plpgsql stable
as $$
begin
  if p_timezone is null
     or (p_timezone <> 'UTC' and not exists (select from pg_catalog.pg_timezone_names z where z.name = p_timezone)) then
    perform durable._fail_invalid(format('Schedule %L: time zone %L is not known to this server.', p_id, p_timezone),
                                  'Use a full name as Europe/Berlin: select name from pg_timezone_names.');
  end if;
end
$$;
comment on function durable._check_timezone(text, text) is
  'Refuses abbreviations of time zones: an abbreviation does not define when clocks change, and UTC+3 would be read as three hours behind. p_id: the schedule, for the error. WF004.';

create or replace function durable._next_instant(p_id text, p_cron text, p_timezone text, p_after bigint)
returns bigint language plpgsql stable
as $$
declare
  v_next bigint;
  v_message text;
  v_hint text;
begin
  v_next := durable._cron_next(p_cron, p_timezone, p_after);
  if v_next is null then
    perform durable._fail_invalid(format('Cron %L matches no day of the next eight years.', p_cron));
  end if;
  return v_next;
exception when sqlstate 'WF004' then
  get stacked diagnostics v_message = message_text, v_hint = pg_exception_hint;
  perform durable._fail_invalid(format('Schedule %L: %s', p_id, lower(left(v_message, 1)) || substr(v_message, 2)), v_hint);
  return null;
end
$$;
comment on function durable._next_instant(text, text, text, bigint) is
  'The first instant of a schedule after p_after. An error in its expression names the schedule. WF004.';

create or replace function durable.schedule_get(p_id text)
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  select * into v_schedule from durable._schedules s where s.id = p_id;
  if not found then
    perform durable._fail_not_found('schedule', p_id);
  end if;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_get(text) is 'The schedule. WF001 if there is none.';

create or replace function durable.schedule_create(
  p_id text, p_cron text, p_promise_id text, p_promise_timeout bigint, p_promise_param_data text default null,
  p_promise_param_headers jsonb default null, p_promise_tags jsonb default '{}', p_timezone text default 'UTC')
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_now constant bigint := durable._now_ms();
  v_next bigint;
  v_first text;
  v_schedule durable._schedules;
begin
  perform durable._check_tags_size(format('schedule %L', p_id), p_promise_tags);
  perform durable._check_schedule(p_id, p_promise_id, p_promise_timeout, p_promise_param_headers, p_promise_tags);
  perform durable._check_payload(format('Parameter of schedule %L', p_id), p_promise_param_data);
  perform durable._check_timezone(p_id, p_timezone);
  v_next := durable._next_instant(p_id, p_cron, p_timezone, v_now);
  v_first := durable._expansion(p_promise_id, p_id, v_next);
  if octet_length(v_first) > 512 then
    perform durable._fail_invalid(format('Schedule %L: promise ids from its template have more than 512 bytes.', p_id));
  elsif not durable._in_its_tree(v_first, p_promise_tags)
        or not durable._in_its_tree(durable._expansion(p_promise_id, p_id, 0), p_promise_tags) then
    -- a check that two ids pass, which differ from the first digit of the instant on, is passed by all
    perform durable._fail_invalid(
      format('Schedule %L: ids as %L do not begin with the origin, the branch and the parent of its tags.', p_id, v_first));
  end if;
  perform durable._check_may_lock();
  perform durable._adopt_idle_copy();
  loop
    insert into durable._schedules (id, cron, timezone, promise_id, promise_timeout, promise_param_data, promise_param_headers,
                                    promise_tags, created_at, next_run_at)
    values (p_id, p_cron, p_timezone, p_promise_id, p_promise_timeout, p_promise_param_data, p_promise_param_headers,
            p_promise_tags, v_now, v_next)
    on conflict do nothing;
    select * into v_schedule from durable._schedules s where s.id = p_id;
    -- not found: another session has deleted it meanwhile
    exit when found;
  end loop;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_create(text, text, text, bigint, text, jsonb, jsonb, text) is
  'Creates a schedule, or returns the one that has this id, unchanged. Its first instant is strictly after now. p_promise_id may contain {{.id}} and {{.timestamp}}; without the latter it fires once, because every later instant finds the first promise. WF004, WF008.';

create or replace function durable.schedule_delete(p_id text)
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  perform durable._check_may_lock();
  delete from durable._schedules s where s.id = p_id returning s.* into v_schedule;
  if not found then
    perform durable._fail_not_found('schedule', p_id);
  end if;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_delete(text) is
  'Deletes a schedule and returns it as it was. Promises that it created stay. WF001 if there is none.';

create or replace function durable.schedule_search(
  p_tags jsonb default null, p_limit integer default 10, p_cursor text default null)
returns setof durable.schedule_record language plpgsql volatile
as $$
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform durable._fail_invalid(format('A search answers 1 to 1000 schedules, not %s.', coalesce(p_limit::text, 'null')));
  elsif jsonb_typeof(p_tags) <> 'object' then
    perform durable._fail_invalid('A search by tags takes a JSON object of strings.');
  elsif coalesce(p_tags, '{}') = '{}' then
    return query select r.* from durable._schedules s cross join lateral durable._schedule_record(s) r
                 where s.id > coalesce(p_cursor, '') order by s.id limit p_limit;
  else
    return query select r.* from durable._schedules s cross join lateral durable._schedule_record(s) r
                 where s.id > coalesce(p_cursor, '') and s.promise_tags @> p_tags order by s.id limit p_limit;
  end if;
end
$$;
comment on function durable.schedule_search(jsonb, integer, text) is
  'Schedules whose promise tags contain p_tags, by id, after the id p_cursor; null or {} for all. A full page ends with the next cursor. WF004.';

create or replace function durable._try_lock_family(p_id text)
returns boolean language sql volatile
as $$
  select coalesce(bool_and(pg_try_advisory_xact_lock_shared(1685417574, hashtext(a.id))), true)
         and (durable._ancestors(p_id) = '{}' or durable._try_lock_out_bulk_starts())
  from unnest(durable._ancestors(p_id)) as a (id)
$$;
comment on function durable._try_lock_family(text) is
  '_lock_family for a sweep, which holds rows and so must not wait: false while another session starts a run that would be an ancestor of this id.';

create or replace function durable._try_lock_occurrence(p_schedule durable._schedules, p_at bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_id text := durable._occurrence_id(p_schedule, p_at);
begin
  if p_schedule.workflow is null then
    return durable._try_lock_family(v_id);
  end if;
  return pg_try_advisory_xact_lock(1685417574, hashtext(v_id));
end
$$;
comment on function durable._try_lock_occurrence(durable._schedules, bigint) is
  'The lock on the id of one instant: of a promise that of its ancestors, of a run the one that a start takes. False while another session creates a run or promise above or below it.';

create or replace function durable._is_evaluable(p_schedule durable._schedules)
returns boolean language plpgsql stable
as $$
begin
  perform durable._cron_next(p_schedule.cron, p_schedule.timezone, p_schedule.created_at);
  return true;
exception when sqlstate 'WF004' or datetime_field_overflow or invalid_parameter_value then
  return false;
end
$$;
comment on function durable._is_evaluable(durable._schedules) is
  'False for a schedule whose cron expression is none, or whose time zone this server does not know (any more).';

create or replace function durable._due_instants(p_schedule durable._schedules, p_now bigint, p_most integer)
returns bigint[] language plpgsql volatile
as $$
declare
  v_instants bigint[];
begin
  v_instants := durable._cron_instants(p_schedule.cron, p_schedule.timezone, p_schedule.next_run_at - 1, p_now, p_most);
  for n in 1 .. cardinality(v_instants) - 1 loop
    if not durable._try_lock_occurrence(p_schedule, v_instants[n]) then
      return v_instants[1:n];
    end if;
  end loop;
  return v_instants;
exception when invalid_parameter_value or datetime_field_overflow or sqlstate 'WF004' then
  return array[p_now + 3600000];
end
$$;
comment on function durable._due_instants(durable._schedules, bigint, integer) is
  'The instants of a schedule to fire now, p_most of them at most, and then the instant at which it is due again. A schedule that cannot be evaluated any more, because its time zone left this server, is due again in an hour, so that it does not stop the others.';

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
begin
  for n in 1 .. cardinality(p_due) loop
    select * into v_schedule from durable._schedules s where s.id = p_due[n];
    v_instants := durable._due_instants(v_schedule, p_now, least(v_most, v_more + 1)::integer);
    v_count := cardinality(v_instants) - 1;
    v_more := v_more - greatest(v_count - 1, 0);
    if v_schedule.workflow is not null then
      v_queues := v_queues || durable._start_occurrences(v_schedule, v_instants[1:v_count]);
    else
      v_schedules := v_schedules || array_fill(v_schedule.id, array[v_count]);
      v_fired := v_fired || v_instants[1:v_count];
    end if;
    v_last := array_append(v_last, v_instants[v_count]);
    v_next := array_append(v_next, coalesce(v_instants[v_count + 1], durable._never()));
  end loop;
  queues := v_queues || durable._create_occurrences(v_schedules, v_fired, p_now);
  update durable._schedules s set last_run_at = coalesce(u.last_run_at, s.last_run_at), next_run_at = u.next_run_at
  from unnest(p_due, v_last, v_next) as u (id, last_run_at, next_run_at)
  where s.id = any (array[u.id]) and s.next_run_at < u.next_run_at;
  get diagnostics fired = row_count;
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
    select 'schedules whose cron expression or time zone this server does not know are put off by an hour: '
           || string_agg(s.id, ', ' order by s.id)
    from durable._schedules s where s.next_run_at = p_now + 3600000 and not durable._is_evaluable(s));
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
