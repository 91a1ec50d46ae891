-- Leases: the one version check, renewal, loss and presence.

create or replace function durable._check_lease(p_id text, p_version integer, p_now bigint)
returns durable._tasks language plpgsql volatile
as $$
declare
  v_task durable._tasks;
begin
  perform durable._check_site();
  select * into v_task from durable._tasks t where t.id = p_id;
  if not found and not exists (select from durable._promises p where p.id = p_id and p.target is not null) then
    perform durable._fail_not_found('task', p_id);
  elsif v_task.state is distinct from 'acquired' or v_task.version is distinct from p_version or v_task.deadline <= p_now then
    perform durable._fail_lease_lost(p_id, p_version);
  end if;
  return v_task;
end
$$;
comment on function durable._check_lease(text, integer, bigint) is
  'The fence of entry points for one task: acquired, at this version, before the deadline; else WF002, or WF001 if there is no task. In a copy the leases of the original are void: WF016. The caller holds the lock of the task.';

create or replace function durable._is_leased(p_task durable._tasks, p_version integer, p_now bigint)
returns boolean language sql immutable
as $$
  select p_task.state is not distinct from 'acquired' and p_task.version = p_version and p_task.deadline > p_now
$$;
comment on function durable._is_leased(durable._tasks, integer, bigint) is
  'The same rule for sets of tasks. "is not distinct from" prevents the planner from reading a whole partial index for rows that are known by key.';

create or replace function durable._ready(p_task durable._tasks, p_now bigint)
returns boolean language sql immutable
as $$
  select p_task.state is not distinct from 'pending' and p_task.retry_at <= p_now and p_task.deadline > p_now
$$;
comment on function durable._ready(durable._tasks, bigint) is 'True if the task may be claimed now; for rows known by key.';

create or replace function durable.fence(id text, version integer)
returns void language plpgsql volatile
as $$
begin
  if durable._is_autocommit() then
    perform durable._fail_conflict('A fence outside a transaction block guards nothing: its lock ends with this statement.',
                                   'begin; your writes; select durable.fence(...); commit;');
  end if;
  perform durable._lock_fence($1);
  perform durable._check_lease($1, $2, durable._now_ms());
end
$$;
comment on function durable.fence(text, integer) is
  'For a transaction of your own: it commits only while that lease is held. Renewals pass; a takeover waits for your commit. Call it last, for one task: it locks a task, and any start, settlement or await locks promises, which precede tasks in the order of locks, so these are refused afterwards. Outside a transaction block it would guard nothing: WF003. WF001, WF002, WF003.';

create or replace function durable._interrupted(p_reason text)
returns text language sql immutable parallel safe
as $$
  select jsonb_build_object('error', jsonb_build_object('type', 'Interrupted', 'message', p_reason), 'interrupted', true)::text
$$;
comment on function durable._interrupted(text) is 'Data of an InvokeRetrying that is not a failure of the function.';

create or replace function durable._interrupt(p_executions bigint[], p_reason text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_events durable._event[];
begin
  v_events := array(
    select row(h.execution, 'open_attempt_failed', s.child, s.attempt, null, null, durable._interrupted(p_reason))::durable._event
    from durable._executions h, unnest(h.open_steps, h.open_attempts, h.open_running) as s (child, attempt, is_running)
    where h.execution = any (p_executions) and s.is_running and not h.written_by_client
    order by h.execution, s.child);
  perform durable._append(v_events, p_now);
end
$$;
comment on function durable._interrupt(bigint[], text, bigint) is
  'Closes the open attempts of local steps of runs that left their worker. A client that keeps its own journal reports its attempts itself.';

create or replace function durable._is_progress(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in ('step_completed', 'step_failed', 'first_attempt_failed', 'attempt_failed', 'last_attempt_completed',
                    'last_attempt_failed', 'open_step_completed', 'open_step_failed', 'child_run_scheduled',
                    'promise_registered', 'timer_scheduled', 'random_generated', 'time_recorded', 'join_set_created',
                    'join_set_submitted', 'join_set_awaited')
$$;
comment on function durable._is_progress(durable.row_type) is
  'True for a journal row by which a worker shows that it has come further with a run. An attempt that only began shows nothing.';

create or replace function durable._has_progressed(p_head durable._executions, p_since bigint)
returns boolean language plpgsql stable
as $$
declare
  v_row record;
begin
  -- from the end, because a journal may be long, and a row is never older than the one before it
  for v_row in
    select j.ts, j.type from durable._journal j
    where j.execution = p_head.execution and j.bucket = p_head.bucket order by j.seq desc
  loop
    exit when v_row.ts < p_since;
    if durable._is_progress(v_row.type) then
      return true;
    end if;
  end loop;
  return false;
end
$$;
comment on function durable._has_progressed(durable._executions, bigint) is
  'True if a worker has come further with a run since that instant.';

create or replace function durable._without_progress(p_ids text[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select t.id from durable._tasks t
    join durable._executions h on h.execution = any (array[t.execution])
    where t.id = any (p_ids) and not durable._has_progressed(h, coalesce(t.acquired_at, 0)));
end
$$;
comment on function durable._without_progress(text[]) is
  'Those of the leased runs about which their worker has reported nothing since it has them.';

create or replace function durable._blamed(p_ids text[], p_without_progress text[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select coalesce(
             -- alone among those that were claimed alone, alone among those without progress, or alone
             case when count(*) filter (where t.suspect and s.still) = 1
                  then min(t.id) filter (where t.suspect and s.still) end,
             case when count(*) filter (where s.still) = 1 then min(t.id) filter (where s.still) end,
             case when count(*) = 1 then min(t.id) end)
    from durable._tasks t
    cross join lateral (select t.id = any (p_without_progress)) as s (still)
    where t.id = any (p_ids) and t.execution is not null
    group by t.pid);
end
$$;
comment on function durable._blamed(text[], text[]) is
  'Of the runs that are lost together, for each worker the one that may have ended it; null where several may. p_without_progress: as durable._without_progress answers.';

create or replace function durable._revoke_leases(p_ids text[], p_reason text, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_executions bigint[];
  v_without_progress text[];
  v_blamed text[];
  v_halted text[];
  v_queues text[];
begin
  if p_ids = '{}' then
    return '{}';
  end if;
  v_without_progress := durable._without_progress(p_ids);
  v_blamed := durable._blamed(p_ids, v_without_progress);
  v_executions := array(select t.execution from durable._tasks t where t.id = any (p_ids) and t.execution is not null);
  perform durable._interrupt(v_executions, p_reason, p_now);
  perform durable._append(array(
    select row(p.execution, 'child_run_interrupted', p.child, t.attempt, null, null,
               durable._interrupted(p_reason))::durable._event
    from durable._tasks t
    join durable._promises p on p.id = any (array[t.id])
    join durable._executions o on o.execution = any (array[p.execution]) and o.status in ('running', 'blocked', 'cancelling')
    where t.id = any (p_ids) and t.attempt_open order by p.execution, p.child), p_now);
  with lost as (
    update durable._tasks t
    set crashes = least(t.crashes + c.counts::integer, 32767), suspect = t.id = any (v_without_progress), attempt_open = false,
        pid = null, ttl = null, expires_at = null, preference = null, prefer_until = null,
        state = case when c.goes_on then 'pending' else 'halted' end, retry_at = case when c.goes_on then p_now end
    from durable._tasks o
    cross join lateral (select o.execution is null or coalesce(o.id = any (v_blamed), false) as counts) g
    cross join lateral (
      select g.counts, o.execution is null or not g.counts or o.crashes < durable._setting_int('max_crashes') as goes_on
      offset 0) as c
    where t.id = any (p_ids) and o.id = any (array[t.id])
    returning t.id, t.state, t.queue
  )
  select array_agg(l.id) filter (where l.state = 'halted'),
         coalesce(array_agg(distinct l.queue) filter (where l.state = 'pending'), '{}')
  into v_halted, v_queues from lost l;
  update durable._executions h
  set problem = jsonb_build_object('type', 'Crashed', 'message',
                                   'its workers were lost too often in a row; durable.resume(id) tries again')::text
  where h.execution = any (v_executions) and h.id = any (v_halted);
  return v_queues;
end
$$;
comment on function durable._revoke_leases(text[], text, bigint) is
  'Revokes leases: the tasks become pending again, or halted after too many crashes of a run. A loss counts for the one run that may have ended the worker; runs about which the worker has reported nothing are suspects, and claimed alone. The version stays; the next acquire raises it. The caller holds tasks and heads.';

create or replace function durable._end_frozen_sessions()
returns void language plpgsql volatile
as $$
begin
  perform pg_terminate_backend(a.pid)
  from pg_catalog.pg_stat_activity a
  where a.wait_event = 'ClientWrite' and a.datname = current_database() and a.usename = session_user
    and a.application_name like 'pyengine %'
    and a.query_start < durable._at(durable._now_ms() - durable._setting_int('lease_ttl_ms'));
end
$$;
comment on function durable._end_frozen_sessions() is
  'Ends sessions of worker processes that have not read their answer for the length of a lease. Such a process is stopped; its statement has not committed, and its locks block every other session.';

create or replace function durable._renew_leases(
  p_worker text, p_executions bigint[], p_ids text[], p_versions integer[],
  out now bigint, out lost bigint[], out unrenewed text[])
language plpgsql volatile
as $$
declare
  v_free text[];
begin
  v_free := durable._try_lock_free_tasks(p_ids);
  now := durable._now_ms();
  update durable._tasks t set expires_at = now + t.ttl
  where t.id = any (v_free) and t.pid = p_worker and t.id = p_ids[array_position(p_executions, t.execution)]
    and durable._is_leased(t, p_versions[array_position(p_executions, t.execution)], now);
  unrenewed := case when cardinality(v_free) = cardinality(p_ids) then '{}' else array(
    select t.id from durable._tasks t where t.id = any (p_ids) and t.pid = p_worker
    except select unnest(v_free) order by 1) end;
  lost := array(
    select e from unnest(p_executions) e
    where e <> all (array(
      select t.execution from durable._tasks t
      where t.id = any (p_ids) and t.pid = p_worker and t.id = p_ids[array_position(p_executions, t.execution)]
        and durable._is_leased(t, p_versions[array_position(p_executions, t.execution)], now)))
    order by e);
exception when lock_not_available then
  -- the whole table is locked: nothing is renewed, and nothing is known to be lost. The wait is short, because the worker
  -- must be seen again before its leases are as old as their ttl
  now := durable._now_ms();
  lost := '{}';
  unrenewed := p_ids;
end
$$ set lock_timeout = '250ms';
comment on function durable._renew_leases(text, bigint[], text[], integer[]) is
  'Renews leases of a worker. lost: the executions whose lease it has no more. unrenewed: tasks that other sessions have locked, so that their leases stay as they are.';

create or replace function durable._is_fresh(p_worker durable._workers, p_unrenewed text[], p_ticked_ms bigint, p_now bigint)
returns boolean language sql stable
as $$
  select p_worker.missing_at is null and p_worker.seen_at <= p_now
         -- without presence a worker counts as there for two leases
         and p_worker.seen_at > p_now - case when p_worker.present then 20001
                                             else least(20001, durable._setting_int('lease_ttl_ms')) end
         and p_worker.unrenewed = '{}' and p_unrenewed = '{}' and (p_ticked_ms is null or p_worker.ticked_at is not null)
$$;
comment on function durable._is_fresh(durable._workers, text[], bigint, bigint) is
  'True if the row of a worker need not be written at a heartbeat: it was seen within 20 s, and within a lease if no presence lock tells that it lives, and all its leases are renewed. While a transaction of somebody stays open for hours each version of the row is kept, and all that read the row read those.';

create or replace function durable.worker_heartbeat_v1(
  p_worker text, p_executions bigint[], p_ids text[], p_versions integer[], p_ticked_ms bigint default null)
returns bigint[] language plpgsql volatile
as $$
declare
  v_leases record;
begin
  perform durable._check_site();
  perform durable._end_frozen_sessions();
  select * into v_leases from durable._renew_leases(p_worker, p_executions, p_ids, p_versions) l;
  update durable._workers w
  set seen_at = v_leases.now, missing_at = null, ticked_at = coalesce(v_leases.now - p_ticked_ms, w.ticked_at),
      unrenewed = v_leases.unrenewed
  where w.id = any (array(select x.id from durable._workers x
                          where x.id = p_worker and not durable._is_fresh(x, v_leases.unrenewed, p_ticked_ms, v_leases.now)
                          for no key update skip locked));
  if found or v_leases.unrenewed = '{}' and exists (select from durable._workers w where w.id = p_worker) then
    return v_leases.lost;
  elsif not exists (select from durable._workers w where w.id = p_worker) then
    return array_append(v_leases.lost, null);
  end if;
  -- no sweep knows of them, and the one that has locked the worker's row may take them now
  return v_leases.lost || array(
    select -x.execution from unnest(p_executions, p_ids) as x (execution, id)
    where x.id = any (v_leases.unrenewed) and x.execution <> all (v_leases.lost));
end
$$ set lock_timeout = '1s';
comment on function durable.worker_heartbeat_v1(text, bigint[], text[], integer[], bigint) is
  'Renews the leases of the runs that the worker executes, for the ttl that it asked for; answers the executions that it has lost, and a null among them if the worker is not registered any more: it says hello again. It waits for no lock: a locked task is neither renewed nor lost. Its id is recorded with the worker, and no sweep takes the task while the worker sends heartbeats. If the row of the worker is locked too, its execution is answered as a negative number: it is kept for as long as its last renewal says.';

create or replace function durable.worker_newest_v1()
returns bigint language plpgsql volatile
as $$
begin
  -- usage is enough for that function, as it is for those that start runs; the sequence itself would ask for select
  if has_sequence_privilege('durable._executions_execution_seq', 'usage, select') then
    return coalesce(pg_sequence_last_value('durable._executions_execution_seq'), 0);
  end if;
  return null;
end
$$ set lock_timeout = '1s';
comment on function durable.worker_newest_v1() is
  'The newest number of a run that anybody has drawn, also in a transaction that is open. A lease that comes with a hand-off was given after its run had drawn its number: if that is higher, the lease is younger than this answer. Null for a role that may not know: no lease is younger than that.';

create or replace function durable.task_heartbeat(p_pid text, p_ids text[], p_versions integer[], p_prefix text default '')
returns integer language plpgsql volatile
as $$
declare
  v_free text[];
  v_now bigint;
  v_count integer;
begin
  if p_pid is null or p_pid = '' or p_ids is null or cardinality(p_ids) <> cardinality(p_versions) then
    perform durable._fail_invalid('A heartbeat names its process and its tasks, each with its version.');
  elsif p_ids = '{}' and not durable._strict() then
    select coalesce(array_agg(t.id), '{}'), array_agg(t.version) into p_ids, p_versions
    from durable._tasks t where t.pid = p_pid and t.state = 'acquired';
  end if;
  v_free := durable._try_lock_free_tasks(array(select i from unnest(p_ids) i where starts_with(i, coalesce(p_prefix, ''))));
  v_now := durable._now_ms();
  update durable._tasks t set expires_at = v_now + t.ttl
  where t.id = any (v_free) and t.pid = p_pid
    and durable._is_leased(t, (select x.version from unnest(p_ids, p_versions) as x (id, version)
                           where x.id = t.id and x.version = t.version limit 1), v_now);
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable.task_heartbeat(text, text[], integer[], text) is
  'Renews leases of a process; tasks that it does not hold are skipped, and so are those whose id does not begin with p_prefix. An empty list means all its tasks, as SDKs send it; in the strict profile it means none. Answers how many were renewed. WF004.';

create or replace function durable._connected()
returns bigint[] language sql stable
as $$
  select array(
    select l.objid::bigint from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.classid = 1685417570 and l.objsubid = 2 and l.mode = 'ExclusiveLock' and l.granted
      and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
  where not pg_is_in_recovery()
$$;
comment on function durable._connected() is
  'The presence locks that workers hold, for people: it only looks, where a tick takes a lock for a moment (durable._is_disconnected). Null on a standby, which has none of these locks.';

create or replace function durable._is_connected(p_worker durable._workers, p_connected bigint[])
returns boolean language sql immutable
as $$ select not p_worker.present or coalesce((p_worker.number & 2147483647) = any (p_connected), true) $$;
comment on function durable._is_connected(durable._workers, bigint[]) is
  'False for a present worker whose presence lock is not among p_connected: it was killed or has lost its connection.';
