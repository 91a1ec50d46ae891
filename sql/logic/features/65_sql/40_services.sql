-- Services: functions of this database that runs and promises name as their target. One call serves one task in a transaction
-- of its own: the writes of the function commit with the settlement; a failed attempt commits without them. Order: a query
-- without locks and an advisory lock that is only tried, the function, then all locks by _lock_after_call. So no session ever
-- waits for a function that runs: a cancellation, a pause or a deadline that comes meanwhile wins.

create or replace function durable.serve(
  function regprocedure, attempts integer default 3, backoff interval default '1 second',
  timeout interval default '30 seconds')
returns text language plpgsql volatile
as $$
declare
  v_name text;
begin
  if $1 is null or $2 is null or $2 < 1 or $3 is null or $3 < '0' or durable._ms($4) <= 0 then
    perform durable._fail_invalid(
      'A service has a function, at least 1 attempt, a backoff of 0 or more and a timeout of 1 ms or more, or null.');
  end if;
  perform durable._check_callable($1);
  select 'sql://' || quote_ident(n.nspname) || '.' || quote_ident(p.proname) into v_name
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace where p.oid = $1;
  insert into durable._services as s (name, function, attempts, backoff_ms, timeout_ms)
  values (v_name, $1::text, $2, durable._ms($3), durable._ms($4))
  on conflict (name) do update set function = excluded.function, attempts = excluded.attempts,
                                   backoff_ms = excluded.backoff_ms, timeout_ms = excluded.timeout_ms;
  perform durable._hint('durable_ready', durable._now_ms());
  return v_name;
end
$$;
comment on function durable.serve(regprocedure, integer, interval, interval) is
  'Lets a function serve runs: select durable.serve(''billing.close_month(date)''); then durable.start(''sql://billing.close_month'', ''["2026-11-01"]''). Workers and durable.tick() call it, with their rights, once for each run with all its writes; a failed call is tried again. A worker serves one function at a time, so a function without a timeout (timeout => null) stops the services of a worker for as long as it runs. Serve only functions whose owner you trust with the rights of every session that ticks. Workers enforce the timeout; in psql, statement_timeout does. Called again with other options, it changes them. WF004.';

create or replace function durable.unserve(name text)
returns boolean language plpgsql volatile
as $$
begin
  delete from durable._services s where s.name = durable._service_named(regexp_replace($1, '^(sql://)?', 'sql://', 'i'));
  return found;
end
$$;
comment on function durable.unserve(text) is
  'Ends a service: select durable.unserve(''billing.close_month''). Queued runs of it wait until it is served again. Answers whether there was one. WF004.';

create or replace function durable.services_due_v1()
returns bigint language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if not exists (select from durable._services s) or durable._is_copy() then
    return null;
  end if;
  return coalesce((
    with recursive first (name, priority, at) as (
      select s.name, x.priority, x.retry_at::bigint from durable._services s
      cross join lateral (
        select t.priority, t.retry_at from durable._tasks t
        where t.queue = s.name and t.state = 'pending' order by t.priority, t.retry_at limit 1) x
      union all
      select f.name, x.priority, x.retry_at from first f
      cross join lateral (
        select t.priority, t.retry_at from durable._tasks t
        where t.queue = f.name and t.state = 'pending' and t.priority > f.priority
        order by t.priority, t.retry_at limit 1) x
    )
    select case when min(f.at) is not null then greatest(min(f.at) - v_now, 0) end from first f), -1);
end
$$ set lock_timeout = '1s';
comment on function durable.services_due_v1() is
  'Milliseconds until a task of a service is ready; -1 if none is queued; null if no function is served here, as in a copy. Reads the first task of each service and priority, however many wait.';

create or replace function durable._is_free_to_end(p_id text)
returns boolean language plpgsql volatile
as $$
declare
  v_free boolean;
begin
  begin
    v_free := durable._try_lock_after_call(p_id, p_id)
              and durable._try_lock_promise_side_rows(array[p_id], durable._heads_of(array[p_id], '{}')) = '{}';
    perform durable._start_over();
  exception when sqlstate 'WF099' then
    null;  -- the locks are released again: the function runs without any
  end;
  return v_free;
end
$$;
comment on function durable._is_free_to_end(text) is
  'True if no other session has locked a row that the end of this task needs. Otherwise the function would run only to be undone.';

create or replace function durable._ready_services(p_tried text[], p_now bigint)
returns text[] language sql stable
as $$
  select array(
    select x.id from durable._services s
    cross join lateral (
      select t.id, t.priority, t.retry_at from durable._tasks t
      where t.queue = s.name and t.state = 'pending' and t.retry_at <= p_now and t.deadline > p_now and t.id <> all (p_tried)
      order by t.priority, t.retry_at limit 100) x
    order by x.priority, x.retry_at, x.id limit 100)
$$;
comment on function durable._ready_services(text[], bigint) is 'The first 100 ready tasks of services, except p_tried, in the order in which they are served.';

create or replace function durable.next_service_v1()
returns table (id text, timeout_ms bigint) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_tried text[] := '{}';
  v_some text[];
  v_id text;
begin
  if durable._is_copy() then
    return;
  end if;
  for v_round in 1..10 loop
    v_some := durable._ready_services(v_tried, v_now);
    foreach v_id in array v_some loop
      if durable._try_lock_service_call(v_id) and durable._is_free_to_end(v_id) then
        return query
          select t.id, s.timeout_ms from durable._tasks t join durable._services s on s.name = any (array[t.queue])
          where t.id = v_id;
        return;
      end if;
    end loop;
    exit when cardinality(v_some) < 100;
    v_tried := v_tried || v_some;
  end loop;
end
$$ set lock_timeout = '1s';
comment on function durable.next_service_v1() is
  'A ready task of a service that no other session serves and whose rows no other session has locked, and the timeout of its function. Locks it for this transaction by an advisory lock. Examines 1000 tasks at most.';

create or replace function durable._service_of(p_id text)
returns setof durable._service_call language plpgsql stable
as $$
begin
  return query
    select s.name, s.function, s.attempts, s.backoff_ms, durable._input(p.param_headers, p.param_data), t.version,
           case when h.execution is null then t.version + 1 else coalesce(h.open_attempts[1], 1) end,
           coalesce(h.open_steps[1], h.next_child), coalesce(h.status = 'cancelling', false)
    from durable._tasks t
    join durable._promises p on p.id = any (array[t.id])
    join durable._services s on s.name = any (array[t.queue])
    left join durable._executions h on h.execution = any (array[t.execution])
    where t.id = p_id and durable._ready(t, durable._now_ms());
end
$$;
comment on function durable._service_of(text) is
  'How a ready task is served: the function, its arguments, the number of the attempt. The journal of a run counts its attempts; for a promise without a journal the version of its task does.';

create or replace function durable._service_event(
  p_execution bigint, p_child integer, p_attempt integer, p_name text, p_args text, p_value text, p_error text,
  p_retry_at bigint)
returns durable._event language sql immutable
as $$
  select row(p_execution,
             durable._outcome_type(false, p_retry_at is not null, p_error is not null, p_attempt,
                                case when p_attempt > 1 then row(p_attempt, 'due')::durable._attempt end, true),
             p_child, p_attempt, p_name,
             substring(sha256(convert_to(p_name, 'UTF8') || E'\\x00'::bytea || convert_to(p_args, 'UTF8')) for 8),
             case when p_retry_at is null then coalesce(p_error, p_value)
                  else '{"error": ' || p_error || ', "retry_at": ' || p_retry_at || ', "interrupted": false}' end)::durable._event
$$;
comment on function durable._service_event(bigint, integer, integer, text, text, text, text, bigint) is
  'The journal row of an attempt: the function is a local step of the run.';

create or replace function durable._end_service(
  p_id text, p_service durable._service_call, p_value text, p_error text, p_is_final boolean)
returns jsonb language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_retry_in bigint;
  v_queues text[] := '{}';
  v_now bigint;
begin
  if not durable._lock_after_call(p_id, p_id)
     or durable._try_lock_promise_side_rows(array[p_id], durable._heads_of(array[p_id], '{}')) <> '{}' then
    perform durable._start_over();
  end if;
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  if not coalesce(durable._ready(v_task, v_now), false) or v_task.version <> p_service.version
     or exists (select from durable._executions h where h.execution = v_task.execution
                and (h.status = 'cancelling') <> p_service.is_cancelled) then
    perform durable._start_over();
  end if;
  if p_error is not null and not p_is_final and p_service.attempt < p_service.attempts then
    v_retry_in := durable._backoff_ms(p_service.backoff_ms, 300000, p_service.attempt - 1);
  end if;
  perform from durable._acquire(array[p_id], 'sql', 1, v_now);
  if v_task.execution is not null and not p_service.is_cancelled then
    perform durable._append(array[durable._service_event(v_task.execution, p_service.child, p_service.attempt,
      substr(p_service.name, 7), p_service.args, p_value, p_error, v_now + v_retry_in)], v_now);
  end if;
  if v_retry_in is not null then
    v_queues := durable._release_tasks(array[p_id], array[v_retry_in], v_now);
    update durable._tasks t set preference = null where t.id = p_id;
  elsif p_service.is_cancelled then
    v_queues := durable._settle(array[p_id], array['rejected_canceled'], array[null::jsonb], array[durable._cancelled((
      select durable._cancel_reason(h) from durable._executions h where h.execution = v_task.execution))], v_now);
  else
    v_queues := durable._settle(array[p_id], array[case when p_error is null then 'resolved' else 'rejected' end],
                                array[case when v_task.execution is null then durable._plain_headers() end],
                                array[coalesce(p_error, p_value)], v_now);
  end if;
  return jsonb_build_object('served', 1, 'hints', to_jsonb(v_queues), 'settled', v_retry_in is null);
end
$$;
comment on function durable._end_service(text, durable._service_call, text, text, boolean) is
  'Settles the promise of the task with the result or error of the function, or releases the task until its next attempt. WF099 if it was settled, cancelled, paused or taken meanwhile, or cannot be locked: then the writes of the function must be undone.';

create or replace function durable._run_service(p_service durable._service_call)
returns text[] language plpgsql volatile
as $$
declare
  v_value text;
  v_state text;
  v_message text;
  v_detail text;
  v_hint text;
  v_constraint text;
  v_table text;
begin
  v_value := durable._call_function(p_service.function, coalesce(durable._json(nullif(p_service.args, '')), '[]'));
  perform durable._check_payload(format('What %s returned', p_service.name), v_value);
  return array[v_value, null, null];
exception when query_canceled or assert_failure or others then
  -- query_canceled: the timeout of the function
  get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
    v_hint = pg_exception_hint, v_constraint = constraint_name, v_table = table_name;
  if durable._passes(v_state) then
    raise;
  end if;
  return array[null, durable._sql_error(v_state, v_message, v_detail, v_hint, v_constraint, v_table), v_state];
end
$$;
comment on function durable._run_service(durable._service_call) is
  'Calls the function: answers its result, or its error and SQLSTATE after its writes are undone. An error that is no fault of the function is raised again, so that the attempt does not count. Not pinned: it runs under the session''s own settings.';

create or replace function durable._serve(p_id text)
returns jsonb language plpgsql volatile
as $$
declare
  v_service durable._service_call;
  v_result text[] := array[null, null, null];
begin
  perform durable._check_site();
  perform durable._check_may_lock();
  if not durable._try_lock_service_call(p_id) then
    return '{"served": 0, "hints": [], "settled": false}';
  end if;
  select * into v_service from durable._service_of(p_id);
  if not found then
    return '{"served": 0, "hints": [], "settled": false}';
  end if;
  begin
    if not v_service.is_cancelled then
      v_result := durable._run_service(v_service);
    end if;
    return durable._end_service(p_id, v_service, v_result[1], v_result[2], coalesce(durable._is_final(v_result[3]), false));
  exception when sqlstate 'WF099' then
    return '{"served": 0, "hints": [], "settled": false}';
  end;
end
$$;
comment on function durable._serve(text) is 'Serves one task of a service, if it must still be served.';

create or replace function durable.serve_v1(p_id text)
returns jsonb language sql volatile
as $$ select durable._serve(p_id) $$;
comment on function durable.serve_v1(text) is
  'For workers: serves one task that next_service_v1 named, alone in its transaction, under a statement_timeout that an earlier statement set. Answers {served, hints, settled}; sends no hint.';
