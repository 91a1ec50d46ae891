-- Debug operations: setting the time, emptying the tables, showing all rows. In test installations only (pyengine db init
-- --debug); an ordinary install drops the functions of this file and restores the refusing ones of 98_protocol/10_rpc.sql.

create or replace function durable._paused()
returns boolean language sql stable
as $$
  select exists (select from durable.settings s where s.name = 'debug_paused')
         and coalesce(current_setting('durable.now_ms', true), '') = ''
$$;
comment on function durable._paused() is
  'True between debug_start and debug_stop: time starts nothing by itself then, except in a transaction that has set the time, as debug_tick does.';

create or replace function durable.debug_start()
returns void language plpgsql volatile
as $$
begin
  insert into durable.settings (name, value, description)
  values ('debug_paused', 'true', 'deadlines, leases and schedules wait for debug.tick; durable.debug_stop() ends it')
  on conflict do nothing;
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable.debug_start() is 'Stops all that time starts, until debug_stop; debug_tick still does it.';

create or replace function durable.debug_stop()
returns void language plpgsql volatile
as $$
begin
  delete from durable.settings s where s.name = 'debug_paused';
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable.debug_stop() is 'Ends debug_start.';

create or replace function durable.debug_reset()
returns void language plpgsql volatile
as $$
begin
  truncate durable._promises, durable._tasks, durable._resumes, durable._callbacks, durable._listeners, durable._executions,
    durable._journal, durable._journal_values, durable._inboxes, durable._signals, durable._join_sets, durable._members,
    durable._forks, durable._unblocks, durable._hints, durable._schedules, durable._schedule_instants, durable._row_waits,
    durable._row_events,
    durable._removed, durable._removed_signals, durable._backlog, durable._retention, durable._progress, durable._objects,
    durable._object_uses, durable._closures, durable._refs, durable._pins, durable._pin_log, durable._calls,
    durable._call_attempts, durable._call_waiters, durable._call_steps, durable._call_polls, durable._claims,
    durable._code_waits, durable._cancellations restart identity;
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable.debug_reset() is
  'Forgets every run, promise, task, waiter, signal, message, schedule, object and call, and numbers executions from 1 again. Settings, migrations, the site, workers, the workflows that they registered, adapters and their routes, watches and journal partitions stay.';

create or replace function durable._debug_due(p_time bigint)
returns jsonb language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_build_object('kind', x.kind, 'data', x.data) order by x.rank, x.id collate "C"), '[]')
  from (
    select 1 as rank, 'promise.settle' as kind, p.id,
           jsonb_build_object('id', p.id, 'state', case when p.timer then 'resolved' else 'rejected_timedout' end) as data
    from durable._promises p
    where p.state = 'pending' and p.external and p.timeout_at <= p_time and p.timeout_at < durable._never()
    union all
    select 2, 'task.release', t.id, jsonb_build_object('id', t.id, 'version', t.version)
    from durable._tasks t where t.state = 'acquired' and t.expires_at <= p_time and t.deadline > p_time
    union all
    select 3, 'task.retry', t.id, jsonb_build_object('id', t.id, 'version', t.version)
    from durable._tasks t where t.state = 'pending' and t.retry_at <= p_time and t.deadline > p_time
  ) x
$$;
comment on function durable._debug_due(bigint) is
  'The deadlines, leases and offers of tasks that are due at an instant. Offers are made when due tasks are asked for, not here.';

create or replace function durable.debug_tick(p_time bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_before text := current_setting('durable.now_ms', true);
  v_due jsonb;
begin
  if p_time is null or p_time not between 0 and durable._never() then
    perform durable._fail_invalid('time must be a whole number from 0 to 9007199254740991.');
  end if;
  perform set_config('durable.now_ms', p_time::text, true);
  v_due := durable._debug_due(p_time);
  while (durable.tick_v1(2147483647) ->> 'more')::boolean loop
  end loop;
  perform set_config('durable.now_ms', coalesce(v_before, ''), true);
  return v_due;
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.debug_tick(bigint) is
  'Does all that time starts, as of that instant, and answers the list of it: [{kind: promise.settle | task.release | task.retry, data}]. WF004.';

create or replace function durable._debug_waiting()
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'callbacks', (select coalesce(jsonb_agg(jsonb_build_object('awaited', c.awaited_id, 'awaiter', c.awaiter_id)
                                            order by c.awaited_id, c.awaiter_id), '[]') from durable._callbacks c),
    'listeners', (select coalesce(jsonb_agg(jsonb_build_object('id', l.awaited_id, 'address', l.address)
                                            order by l.awaited_id, l.address), '[]') from durable._listeners l))
$$;
comment on function durable._debug_waiting() is 'Callbacks and listeners, for debug_snap.';

create or replace function durable._debug_timeouts()
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'promiseTimeouts', (select coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'timeout', p.timeout_at) order by p.id), '[]')
                        from durable._promises p where p.state = 'pending' and p.external),
    'taskTimeouts', (select coalesce(jsonb_agg(jsonb_build_object(
                       'id', t.id, 'type', (t.state = 'acquired')::integer, 'timeout', coalesce(t.expires_at, t.retry_at))
                       order by t.id), '[]') from durable._tasks t where t.state in ('pending', 'acquired')),
    'scheduleTimeouts', (select coalesce(jsonb_agg(jsonb_build_object('id', s.id, 'timeout', s.next_run_at) order by s.id),
                                         '[]') from durable._schedules s))
$$;
comment on function durable._debug_timeouts() is
  'Timeouts, for debug_snap. A task has one timeout: type 0 its next dispatch, type 1 the end of its lease.';

create or replace function durable._debug_messages()
returns jsonb language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_build_object('address', m.address, 'message',
                    jsonb_build_object('kind', m.kind, 'head', '{}'::jsonb, 'data', m.data))
                  order by m.kind, m.id collate "C", m.address), '[]')
  from (
    select 'execute' as kind, t.id, coalesce(t.recv, p.target) as address,
           jsonb_build_object('task', jsonb_build_object('id', t.id, 'version', t.version)) as data
    from durable._tasks t
    join durable._promises p on p.id = t.id
    cross join (select durable._now_ms() as now) c
    where t.state = 'pending' and t.retry_at <= c.now and t.deadline > c.now
    union all
    select 'unblock', u.promise_id, u.address,
           jsonb_build_object('promise', durable._wire_promise(durable._promise_record(p)))
    from durable._unblocks u
    join durable._promises p on p.id = u.promise_id
  ) m
$$;
comment on function durable._debug_messages() is
  'Messages that wait to be fetched, for debug_snap: execute for tasks that may be offered now, unblock until acknowledged.';

create or replace function durable.debug_snap()
returns jsonb language sql stable
as $$
  select durable._debug_waiting() || durable._debug_timeouts() || jsonb_build_object(
    'promises', (select coalesce(jsonb_agg(durable._wire_promise(durable._promise_record(p)) order by p.id), '[]')
                 from durable._promises p),
    'tasks', (select coalesce(jsonb_agg(durable._wire_task(row(t.id, t.state, t.version, t.resumes, t.ttl, t.pid)
                                                           ::durable.task_record) order by t.id), '[]')
              from durable.tasks t),
    'schedules', (select coalesce(jsonb_agg(durable._wire_schedule(durable._schedule_record(s)) order by s.id), '[]')
                  from durable._schedules s),
    'messages', durable._debug_messages())
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable.debug_snap() is
  'All stored objects, as one statement sees them: promises, tasks and schedules as on the wire, callbacks and listeners, timeouts, and waiting messages.';

create or replace function durable._debug(p_request jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_time bigint;
begin
  case p_request ->> 'kind'
    when 'debug.start' then perform durable.debug_start();
    when 'debug.stop' then perform durable.debug_stop();
    when 'debug.reset' then perform durable.debug_reset();
    when 'debug.snap' then return durable.debug_snap();
    when 'debug.tick' then
      v_time := durable._read_integer(p_request -> 'data', 'time');
      if v_time <> durable._debug_time(p_request -> 'head') then
        perform durable._fail_invalid('time must be the resonate:debug_time of the head, where that is given.');
      end if;
      return durable.debug_tick(v_time);
  end case;
  return '{}';
end
$$;
comment on function durable._debug(jsonb) is 'Debug operations of the envelope. Raises WF004.';

create or replace function durable._debug_time(p_head jsonb)
returns bigint language plpgsql volatile
as $$
begin
  if coalesce(jsonb_typeof(p_head -> 'resonate:debug_time'), 'null') = 'null' then
    return null;
  end if;
  return durable._read_integer(p_head, 'resonate:debug_time');
end
$$;
comment on function durable._debug_time(jsonb) is 'The instant as of which a request asks to be handled, or null. WF004.';
