-- Operations on tasks. Each entry point for one task locks, reads the clock, passes the fence, then writes.

create or replace function durable._task_record(p_id text)
returns durable.task_record language plpgsql stable
as $$
declare
  v_record durable.task_record;
begin
  select t.id, t.state, t.version, (select count(*) from durable._resumes r where r.task_id = t.id), t.ttl, t.pid
  into v_record from durable._tasks t where t.id = p_id;
  if not found then
    select p.id, 'fulfilled', p.task_version, 0, null, null into v_record
    from durable._promises p where p.id = p_id and p.target is not null;
  end if;
  return v_record;
end
$$;
comment on function durable._task_record(text) is 'A task as clients see it; null if the promise has none.';

create or replace function durable.task_get(p_id text)
returns durable.task_record language plpgsql volatile
as $$
declare
  v_record durable.task_record;
begin
  if exists (select from durable._tasks t where t.id = p_id and t.deadline <= durable._now_ms()) then
    perform durable._expire(array[p_id]);
  end if;
  v_record := durable._task_record(p_id);
  if v_record.id is null then
    perform durable._fail_not_found('task', p_id);
  end if;
  return v_record;
end
$$;
comment on function durable.task_get(text) is 'The task as it is now; fulfilled once its promise is settled or past its deadline. WF001.';

create or replace function durable._page_of_live_tasks(p_state text, p_limit integer, p_cursor text, p_now bigint)
returns setof durable.task_record language plpgsql stable
as $$
begin
  return query
    select t.id, t.state, t.version, (select count(*)::integer from durable._resumes r where r.task_id = t.id), t.ttl, t.pid
    from durable._tasks t
    where t.id > p_cursor and t.state is not distinct from p_state and t.deadline > p_now
    order by t.id limit p_limit;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._page_of_live_tasks(text, integer, text, bigint) is
  'One page of tasks in a state, read and filtered by one statement.';

create or replace function durable._page_of_all_tasks(p_fulfilled boolean, p_limit integer, p_cursor text, p_now bigint)
returns table (task durable.task_record, due boolean) language plpgsql stable
as $$
begin
  return query
    select case
        when x.live then row(p.id, t.state, t.version, (select count(*) from durable._resumes r where r.task_id = t.id),
                             t.ttl, t.pid)::durable.task_record
        else row(p.id, 'fulfilled', coalesce(t.version, p.task_version), 0, null, null)::durable.task_record end,
           not x.live and p.state = 'pending'
    from durable._promises p
    left join durable._tasks t on t.id = any (array[p.id])
    cross join lateral (select p.state = 'pending' and p.timeout_at > p_now as live) x
    where p.id > p_cursor and p.target is not null and not (p_fulfilled and x.live)
    order by p.id limit p_limit;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._page_of_all_tasks(boolean, integer, text, bigint) is
  'One page of tasks by their promises. p_fulfilled: only fulfilled ones. due: past the deadline without being settled.';

create or replace function durable._read_tasks_page(p_state text, p_limit integer, p_cursor text)
returns table (page durable.task_record[], due text[]) language plpgsql volatile
as $$
declare
  v_before bigint;
  v_now bigint;
begin
  loop
    v_before := durable._now_ms();
    if p_state <> 'fulfilled' then
      select n.now, array(select t from durable._page_of_live_tasks(p_state, p_limit, p_cursor, n.now) t), '{}'
      into v_now, page, due from (select durable._now_ms() as now) n;
    else
      select n.now, l.page, coalesce(l.due, '{}') into v_now, page, due
      from (select durable._now_ms() as now) n
      cross join lateral (
        select array_agg(a.task) as page, array_agg((a.task).id) filter (where a.due) as due
        from durable._page_of_all_tasks(coalesce(p_state = 'fulfilled', false), p_limit, p_cursor, n.now) a) l;
    end if;
    exit when v_now = v_before;
  end loop;
  return next;
end
$$;
comment on function durable._read_tasks_page(text, integer, text) is
  'One page of tasks as of the instant of its snapshot, and the tasks on it that are past their deadline without being settled.';

create or replace function durable._search_tasks(p_state text, p_limit integer, p_cursor text)
returns setof durable.task_record language plpgsql volatile
as $$
declare
  v_page durable.task_record[];
  v_more text[];
  v_due text[] := '{}';
begin
  select l.page, l.due into v_page, v_more from durable._read_tasks_page(p_state, p_limit, coalesce(p_cursor, '')) l;
  while v_more <> '{}' loop
    v_due := v_due || v_more;
    begin
      perform durable._expire(v_due);
      select l.page, l.due into v_page, v_more from durable._read_tasks_page(p_state, p_limit, coalesce(p_cursor, '')) l;
      if v_more <> '{}' then
        perform durable._start_over();
      end if;
    exception when sqlstate 'WF099' then
      null;
    end;
  end loop;
  return query select * from unnest(v_page) a order by a.id collate "C";
end
$$;
comment on function durable._search_tasks(text, integer, text) is
  'A page of tasks as of one instant, made as _search_promises makes one of promises.';

create or replace function durable.task_search(p_state text default null, p_limit integer default 100, p_cursor text default null)
returns setof durable.task_record language plpgsql volatile
as $$
begin
  perform durable._check_search(p_state, array['pending', 'acquired', 'suspended', 'halted', 'fulfilled'], p_limit);
  return query select * from durable._search_tasks(p_state, p_limit, p_cursor);
end
$$;
comment on function durable.task_search(text, integer, text) is
  'Tasks in the order of ids: in that state now, after p_cursor (the last id of the page before). WF004.';

create or replace function durable._started_events(p_ids text[], p_now bigint)
returns durable._event[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(row(p.execution, 'child_run_started', p.child, t.attempt + 1, null, null, null)::durable._event
                              order by p.execution, p.child), '{}')
    from durable._tasks t
    join durable._executions o on o.execution = any (array[t.owner]) and o.status in ('running', 'blocked', 'cancelling')
    join durable._promises p on p.id = any (array[t.id])
    where t.id = any (p_ids) and t.state is not distinct from 'pending' and t.deadline > p_now and not t.attempt_open);
end
$$;
comment on function durable._started_events(text[], bigint) is
  'Writes InvokeStarted in the journals of the owners of tasks that are about to be acquired.';

create or replace function durable._acquire(
  p_ids text[], p_pid text, p_ttl bigint, p_now bigint, p_owned boolean default true)
returns setof durable._tasks language plpgsql volatile rows 10
as $$
begin
  if p_owned then
    perform durable._append(durable._started_events(p_ids, p_now), p_now);
  end if;
  return query
    update durable._tasks t
    set state = 'acquired', version = t.version + 1, pid = p_pid, ttl = p_ttl, expires_at = p_now + p_ttl,
        acquired_at = p_now, retry_at = null, prefer_until = null, preference = null, recv = null, recv_headers = null,
        queue = case when t.recv is null then t.queue
                     else (select durable._queue_of(p.target) from durable._promises p where p.id = t.id) end,
        -- the count ends at the limit of its type: a task whose workers are lost again and again goes on
        attempt = least(t.attempt + (not t.attempt_open)::integer, 32767), attempt_open = true
    where t.id = any (p_ids) and t.state is not distinct from 'pending' and t.deadline > p_now
    returning t.*;
  delete from durable._resumes r where r.task_id = any (p_ids);
end
$$;
comment on function durable._acquire(text[], text, bigint, bigint, boolean) is
  'Acquires those of the tasks that are pending and before their deadline, at version + 1, and answers them. p_owned: some of them may be children, whose owners record it. The caller holds the tasks and the heads of their owners.';

create or replace function durable._check_claim(p_pid text, p_ttl bigint)
returns void language plpgsql stable
as $$
begin
  if p_pid is null or octet_length(p_pid) not between 1 and 512 or p_ttl is null or p_ttl not between 1 and durable._never() then
    perform durable._fail_invalid('An acquire names its process in 1 to 512 bytes, and a ttl from 1 to 2^53 - 1 ms.');
  end if;
end
$$;
comment on function durable._check_claim(text, bigint) is 'Checks the arguments of a claim. WF004.';

create or replace function durable._is_acquired_again(p_task durable._tasks, p_version integer, p_pid text, p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return durable._is_leased(p_task, p_version + 1, p_now) and p_task.pid = p_pid and p_task.execution is null
    and p_task.expires_at = p_task.acquired_at + p_task.ttl and not durable._strict()
    and not exists (select from durable._promises p
                    where p.tags ->> 'resonate:branch' = p_task.id and p.tags ? 'resonate:branch' and p.id <> p_task.id
                      and p_task.acquired_at
                        <= greatest(p.created_at, case when p.settled_at < p.timeout_at then p.settled_at end));
end
$$;
comment on function durable._is_acquired_again(durable._tasks, integer, text, bigint) is
  'True for an acquire that its process has made already and whose answer it may have lost: the lease was not renewed, and nothing was written under it. Not in the strict profile.';

create or replace function durable.task_acquire(p_id text, p_version integer, p_pid text, p_ttl bigint)
returns durable.task_record language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_now bigint;
begin
  perform durable._check_claim(p_pid, p_ttl);
  perform durable._check_site();
  perform durable._lock_tasks_to_revoke(array[p_id]);
  perform durable._lock_heads(durable._heads_of(array[p_id], array[p_id]));
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  if not found or v_task.state <> 'pending' or v_task.version is distinct from p_version or v_task.deadline <= v_now then
    if durable._is_acquired_again(v_task, p_version, p_pid, v_now) then
      return durable._task_record(p_id);
    elsif not exists (select from durable._promises p where p.id = p_id and p.target is not null) then
      perform durable._fail_not_found('task', p_id);
    end if;
    perform durable._fail_conflict(format('Task %L is not pending at version %s.', p_id, p_version));
  end if;
  perform from durable._acquire(array[p_id], p_pid, p_ttl, v_now);
  return durable._task_record(p_id);
end
$$;
comment on function durable.task_acquire(text, integer, text, bigint) is
  'Acquires a pending task at exactly this version; the answer carries the new version, which every later call names. The same process may send it again while it has neither renewed the lease nor written anything, because the answer may have been lost. WF001, WF003, WF004, WF016.';

create or replace function durable._acquire_existing(p_id text, p_pid text, p_ttl bigint)
returns void language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_now bigint;
begin
  perform durable._lock_settlement(array[p_id]);
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  if not found then
    return;
  elsif v_task.deadline <= v_now then
    perform durable._settle(array[p_id], array[null::text], array[null::jsonb], array[null::text], v_now);
  elsif v_task.state = 'pending' and v_task.execution is null then
    perform from durable._acquire(array[p_id], p_pid, p_ttl, v_now);
  elsif v_task.execution is not null then
    perform durable._fail_conflict(format('%L is a run: workers of the engine execute it.', p_id),
                                   'Wait for its promise instead.');
  else
    perform durable._fail_conflict(format('Task %L is %s.', p_id, v_task.state));
  end if;
end
$$;
comment on function durable._acquire_existing(text, text, bigint) is
  'Acquires a pending task at any version; settles one that is past its deadline, and leaves a fulfilled one as it is. WF003 if another process has it, or it is a run, which its caller can only wait for.';

create or replace function durable.task_create(
  p_id text, p_timeout_at bigint, p_pid text, p_ttl bigint, p_param_data text default null,
  p_param_headers jsonb default null, p_tags jsonb default '{}')
returns durable.task_record language plpgsql volatile
as $$
begin
  perform durable._check_claim(p_pid, p_ttl);
  perform durable._check_site();
  if p_tags is null or not p_tags ? 'resonate:target' then
    perform durable._fail_invalid(format('A task needs a promise with the tag resonate:target, %L is given none.', p_id));
  elsif p_tags ? 'resonate:delay' then
    perform durable._fail_invalid(format('Task %L is acquired at birth, so it cannot have the tag resonate:delay.', p_id));
  end if;
  if not durable._create_promise(
       (p_id, p_timeout_at, p_param_data, p_param_headers, p_tags, null)::durable._new_promise, p_pid, p_ttl) then
    if not exists (select from durable._promises p where p.id = p_id and p.target is not null) then
      perform durable._fail_not_targeted(p_id);
    end if;
    perform durable._acquire_existing(p_id, p_pid, p_ttl);
  end if;
  return durable._task_record(p_id);
end
$$;
comment on function durable.task_create(text, bigint, text, bigint, text, jsonb, jsonb) is
  'Creates a targeted promise whose task is acquired from birth by the caller, at version 1. If the id exists, a pending task is acquired and a fulfilled one is answered; WF003 if another process has it, or it is a run of the engine. WF004, WF008, WF010, WF016.';

create or replace function durable._release_tasks(p_ids text[], p_retry_in bigint[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[];
begin
  with freed as (
    update durable._tasks t
    set state = 'pending', retry_at = p_now + coalesce((select 0 from durable._resumes r where r.task_id = t.id limit 1),
                                    greatest(p_retry_in[array_position(p_ids, t.id)], 0)),
        preference = case when p_retry_in[array_position(p_ids, t.id)] > 0 then t.pid end,
        prefer_until = case when p_retry_in[array_position(p_ids, t.id)] > 0
                            then durable._reserved_until(t.pid, p_now + p_retry_in[array_position(p_ids, t.id)], p_now) end,
        pid = null, ttl = null, expires_at = null, crashes = 0, suspect = false
    where t.id = any (p_ids)
    returning t.queue, t.retry_at
  )
  select coalesce(array_agg(distinct f.queue) filter (where f.retry_at <= p_now), '{}') into v_queues from freed f;
  return v_queues;
end
$$;
comment on function durable._release_tasks(text[], bigint[], bigint) is
  'Releases acquired tasks: pending at once or after retry_in ms; at once if an awaited promise has settled meanwhile. Version and resumes stay.';

create or replace function durable._release_with_backoff(p_task durable._tasks, p_now bigint)
returns void language sql volatile
as $$
  update durable._tasks t
  set state = 'pending', retry_at = p_now, preference = null, pid = null, ttl = null, expires_at = null, crashes = 0,
      releases = least(p_task.releases + 1, 5),
      released_until = p_now + (array[0, 100, 500, 2000, 5000])[least(p_task.releases + 1, 5)],
      released_by = case when p_task.pid = any (p_task.released_by) or cardinality(p_task.released_by) >= 16
                         then p_task.released_by else array_append(p_task.released_by, p_task.pid) end
  where t.id = p_task.id
$$;
comment on function durable._release_with_backoff(durable._tasks, bigint) is
  'Releases a task of protocol clients. A client that cannot run the task would release it again at once, so it is offered to that client later each time, and to others meanwhile.';

create or replace function durable.task_release(p_id text, p_version integer)
returns void language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_now bigint;
begin
  perform durable._lock_tasks_to_revoke(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  v_now := durable._now_ms();
  v_task := durable._check_lease(p_id, p_version, v_now);
  perform durable._interrupt(array[v_task.execution], 'released', v_now);
  if v_task.workflow is null then
    perform durable._release_with_backoff(v_task, v_now);
  else
    perform durable._release_tasks(array[p_id], array[0::bigint], v_now);
  end if;
  perform durable._hint('durable_ready', v_now);
end
$$;
comment on function durable.task_release(text, integer) is
  'Releases a task. Others are offered it at once. The process that released it is offered it at once the first time, then after 0.1, 0.5, 2 and 5 s, until some process suspends it; so is a process that gives no name. WF001, WF002.';

create or replace function durable._suspend(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  update durable._tasks t
  set state = 'suspended', pid = null, ttl = null, expires_at = null, crashes = 0, suspect = false,
      preference = t.pid, releases = 0,
      released_by = null, released_until = null
  where t.id = any (p_ids);
  delete from durable._resumes r where r.task_id = any (p_ids);
end
$$;
comment on function durable._suspend(text[]) is
  'Suspends acquired tasks, with the worker as preference. The caller has checked that each awaits a promise that is not settled.';

create or replace function durable._await_again(p_execution bigint, p_children integer[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.execution = p_execution;
  if v_head.status = 'cancelling' then
    perform durable._fail_conflict(format('Run %L is being cancelled: it may clean up and end, not wait.', v_head.id));
  elsif v_head.status <> 'blocked' then
    perform durable._await(array[p_execution], array[row('suspend', p_children,
      case when cardinality(p_children) = 1 then 'single' else 'any' end, null, null, null, null, null)::durable._ending], p_now);
  elsif not (v_head.waiting_on @> p_children and v_head.waiting_on <@ p_children) then
    perform durable._fail_conflict(
      format('Run %L waits for %s in its journal, not for %s.', v_head.id, v_head.waiting_on, p_children));
  end if;
end
$$;
comment on function durable._await_again(bigint, integer[], bigint) is
  'Blocks the journal of a run on children. A run that is blocked already, because it was continued after a halt, may only wait for the same children again (R20); a run that is being cancelled does not wait. WF003.';

create or replace function durable._children_for(p_id text, p_execution bigint, p_awaited text[], p_now bigint)
returns integer[] language plpgsql volatile
as $$
declare
  v_fresh text[];
  v_status text;
  v_next integer;
begin
  v_fresh := array(
    select a from unnest(p_awaited) a
    where (select count(*) from durable._promises p where p.id = a and p.execution = p_execution) = 0
      and (select count(*) from durable._callbacks c where c.awaited_id = a and c.awaiter_id = p_id and c.child >= 0) = 0
    order by a);
  if v_fresh <> '{}' then
    select greatest(h.next_child, coalesce((select max(i.receiver) + 1 from durable._inboxes i
                                            where i.execution = p_execution), 0)), h.status
    into v_next, v_status from durable._executions h where h.execution = p_execution;
    if v_status <> 'running' then
      perform durable._fail_conflict(
        format('Run %L is %s in its journal, so it cannot begin to wait for %L.', p_id, v_status, v_fresh[1]));
    end if;
    perform durable._fail_await_cycle(c.circle)
    from unnest(v_fresh) a cross join lateral durable._circle(a, p_id, '{}', '{}', p_now) as c (circle)
    where c.circle is not null;
    perform durable._append(array(
      select row(p_execution, 'promise_registered', v_next + f.ord::integer - 1, null, f.id, null, null)::durable._event
      from unnest(v_fresh) with ordinality as f (id, ord)), p_now);
    insert into durable._callbacks (awaited_id, awaiter_id, child)
    select f.id, p_id, v_next + f.ord::integer - 1 from unnest(v_fresh) with ordinality as f (id, ord);
  end if;
  return array(
    select p.child from durable._promises p where p.id = any (p_awaited) and p.execution = p_execution
    union
    select c.child from durable._callbacks c where c.awaited_id = any (p_awaited) and c.awaiter_id = p_id and c.child >= 0
    order by 1);
end
$$;
comment on function durable._children_for(text, bigint, text[], bigint) is
  'Child numbers of the promises that a run awaits: its own children, and promises of others, which it adopts under numbers of their own (R13).';

create or replace function durable.task_suspend(p_id text, p_version integer, p_awaited text[])
returns boolean language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_now bigint;
  v_not_awaitable text;
begin
  if p_awaited is null or p_awaited = '{}' or p_id = any (p_awaited)
     or cardinality(p_awaited) <> (select count(distinct a) from unnest(p_awaited) a) then
    perform durable._fail_invalid(format('Task %L must await one or more distinct other promises.', p_id));
  end if;
  perform durable._lock_promises(p_awaited);
  perform durable._lock_tasks(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  if exists (select from durable._tasks t where t.id = p_id and t.execution is not null) then
    perform durable._lock_adoptions(p_awaited);
  end if;
  v_now := durable._now_ms();
  v_task := durable._check_lease(p_id, p_version, v_now);
  select a into v_not_awaitable from unnest(p_awaited) a
  where not exists (select from durable._promises p where p.id = a) limit 1;
  if found then
    perform durable._fail_not_awaitable(v_not_awaitable);
  end if;
  perform durable._check_external(p_awaited);
  if exists (select from durable._promises p
             where p.id = any (p_awaited) and (p.state <> 'pending' or p.timeout_at <= v_now)) then
    delete from durable._resumes r where r.task_id = p_id;
    return false;
  end if;
  if v_task.execution is not null then
    perform durable._interrupt(array[v_task.execution], 'suspended', v_now);
    perform durable._await_again(v_task.execution, durable._children_for(p_id, v_task.execution, p_awaited, v_now), v_now);
  end if;
  perform durable._arm(p_awaited);
  perform durable._register(array(
    select a from unnest(p_awaited) a
    where (select count(*) from durable._callbacks c where c.awaited_id = a and c.awaiter_id = p_id and c.child >= 0) = 0), p_id);
  perform durable._suspend(array[p_id]);
  return true;
end
$$;
comment on function durable.task_suspend(text, integer, text[]) is
  'Suspends until one of the promises settles. False (the protocol''s 300): one is settled already, and no callback was registered; continue. WF001, WF002, WF003 its journal waits for other children or is being cancelled, WF004, WF005, WF012 a run would wait for itself.';

create or replace function durable.task_fulfill(
  p_id text, p_version integer, p_state text, p_value_data text default null, p_value_headers jsonb default null)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  perform durable._check_verdict(p_id, p_state, p_value_data);
  perform durable._lock_settlement(array[p_id]);
  v_now := durable._now_ms();
  perform durable._check_lease(p_id, p_version, v_now);
  return durable._settle_one(p_id, p_state, p_value_data, p_value_headers, v_now);
end
$$;
comment on function durable.task_fulfill(text, integer, text, text, jsonb) is
  'Settles the promise of the task under its lease. Not idempotent: the second call gets WF002. WF001, WF002, WF004, WF008.';

create or replace function durable._lock_fenced(p_id text, p_promise_id text)
returns void language plpgsql volatile
as $$
declare
  v_awaiters text[];
begin
  perform durable._lock_promises(array[p_promise_id]);
  v_awaiters := durable._awaiters_of(array[p_promise_id]);
  perform durable._lock_tasks_to_revoke(v_awaiters || array[p_id, p_promise_id]);
  perform durable._lock_heads(durable._heads_of(array[p_promise_id], v_awaiters || p_promise_id));
end
$$;
comment on function durable._lock_fenced(text, text) is
  'The locks of a settlement under a fence: those of the settlement, and the fencing task in its place among the tasks.';

create or replace function durable.task_fence_settle(
  p_id text, p_version integer, p_promise_id text, p_state text, p_value_data text default null,
  p_value_headers jsonb default null)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  if p_promise_id = p_id then
    perform durable._fail_invalid(format('Task %L cannot fence its own promise; use task_fulfill.', p_id));
  end if;
  perform durable._check_verdict(p_promise_id, p_state, p_value_data);
  perform durable._check_no_live_run(p_promise_id);
  perform durable._check_answer(p_promise_id, p_state, p_value_data, p_value_headers);
  perform durable._lock_fenced(p_id, p_promise_id);
  v_now := durable._now_ms();
  perform durable._check_lease(p_id, p_version, v_now);
  return durable._settle_one(p_promise_id, p_state, p_value_data, p_value_headers, v_now);
end
$$;
comment on function durable.task_fence_settle(text, integer, text, text, text, jsonb) is
  'Settles another promise only while the lease is held, in one transaction. The lease does not change. WF001, WF002, WF003 it is a run that has not ended, or a step that a worker completes, WF004, WF008.';

create or replace function durable.task_fence_create(
  p_id text, p_version integer, p_promise_id text, p_timeout_at bigint, p_param_data text default null,
  p_param_headers jsonb default null, p_tags jsonb default '{}')
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_new durable._new_promise := (p_promise_id, p_timeout_at, p_param_data, p_param_headers, p_tags, null);
  v_created boolean;
  v_now bigint;
begin
  if p_promise_id = p_id then
    perform durable._fail_invalid(format('Task %L cannot create its own promise.', p_id));
  end if;
  v_created := durable._create_promise(v_new);
  perform durable._lock_fenced(p_id, p_promise_id);
  v_now := durable._now_ms();
  perform durable._check_lease(p_id, p_version, v_now);
  if v_created then
    -- the promise must be created while the lease is held, which is known only after the lock of the task; the instant is then
    -- a later one
    delete from durable._promises p
    where p.id = p_promise_id and p.created_at < least(v_now, p_timeout_at) and p.head is null;
    if not found then
      return durable._stored_promise(p_promise_id);
    end if;
    delete from durable._tasks t where t.id = p_promise_id;
    perform durable._insert_promise(v_new, null, null, v_now);
  else
    perform durable._settle(array[p_promise_id], array[null::text], array[null::jsonb], array[null::text], v_now);
  end if;
  return durable._stored_promise(p_promise_id);
end
$$;
comment on function durable.task_fence_create(text, integer, text, bigint, text, jsonb, jsonb) is
  'Creates a promise only while the lease is held: a lost lease undoes the creation. The locks for an expired promise of that id are taken before it is read. WF001, WF002, WF004, WF008.';

create or replace function durable._with_fork(p_id text, p_problem text)
returns text language sql stable
as $$
  with recursive fork (id, origin_id, seq, replaced) as (
    select f.id, f.origin_id, f.seq, f.replaced from durable._forks f where f.id = p_id
    union all
    select f.id, f.origin_id, f.seq, f.replaced from fork x join durable._forks f on f.id = any (array[x.origin_id])
  ), forked as (
    select p_problem::jsonb as problem, x.*,
           (select min(f.origin_id) from fork f
            where replace(p_problem::jsonb ->> 'got', p_id, f.origin_id) = p_problem::jsonb ->> 'expected') as named
    from fork x where x.id = p_id
  )
  select coalesce((
    select (t.problem || jsonb_build_object('message', concat(t.problem ->> 'message',
      format('; it is a fork of %L with its first %s events', t.origin_id, t.seq),
      case when t.replaced <> '{}' then ' and other values for ' || (
        select string_agg(k, ', ' order by k) from jsonb_object_keys(t.replaced) k)
        || ': a value of another type, or one that leads the code elsewhere, needs a position before what it changes' end,
      case when t.named is not null
           then format(': the code puts the id of its run into that call, which was %L; fork before it', t.named) end)))::text
    from forked t where t.problem ->> 'type' = 'NondeterminismError'), p_problem)
$$;
comment on function durable._with_fork(text, text) is
  'A problem of replay with the part that a fork may have in it: its origin, the values that were replaced, and whether the code uses the id of its run, which differs in the fork.';

create or replace function durable._halt_runs(p_ids text[], p_problems text[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if p_ids = '{}' then
    return;
  end if;
  perform durable._interrupt(array(select t.execution from durable._tasks t where t.id = any (p_ids)), 'halted', p_now);
  update durable._tasks t
  set state = 'halted', pid = null, ttl = null, expires_at = null, retry_at = null, prefer_until = null, preference = null
  where t.id = any (p_ids);
  update durable._executions h set problem = durable._with_fork(u.id, u.problem)
  from unnest(p_ids, p_problems) as u (id, problem)
  join durable._tasks t on t.id = any (array[u.id])
  where h.execution = any (array[t.execution]);
end
$$;
comment on function durable._halt_runs(text[], text[], bigint) is 'Halts tasks and writes the reason to their heads.';

create or replace function durable.task_halt(p_id text)
returns void language plpgsql volatile
as $$
declare
  v_now bigint;
  v_task durable._tasks;
begin
  perform durable._lock_tasks_to_revoke(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  if not found or v_task.deadline <= v_now then
    if not exists (select from durable._promises p where p.id = p_id and p.target is not null) then
      perform durable._fail_not_found('task', p_id);
    end if;
    perform durable._fail_conflict(format('Task %L is fulfilled.', p_id));
  end if;
  if v_task.state <> 'halted' then
    perform durable._halt_runs(array[p_id], array['{"type": "Halted", "message": "set aside by hand"}'], v_now);
  end if;
end
$$;
comment on function durable.task_halt(text) is
  'Halts a task: it is not dispatched until task_continue. Its resumes stay. WF001, WF003.';

create or replace function durable._continue_tasks(p_ids text[], p_now bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_count integer;
  v_heads bigint[];
begin
  with ready as (
    update durable._tasks t
    set state = 'pending', retry_at = p_now, crashes = 0, suspect = false, releases = 0, released_by = null, released_until = null
    where t.id = any (p_ids) and t.state is not distinct from 'halted' and t.deadline > p_now
    returning t.execution
  )
  select count(*), array_agg(r.execution) into v_count, v_heads from ready r;
  delete from durable._code_waits c
  where c.id = any (array(select x.id from durable._code_waits x where x.id = any (p_ids) for update skip locked));
  update durable._executions h set problem = null
  from unnest(v_heads) as u (execution) where h.execution = any (array[u.execution]);
  return v_count > 0;
end
$$;
comment on function durable._continue_tasks(text[], bigint) is
  'Makes the halted ones of these tasks pending again. The caller holds them and their heads. True if there was one.';

create or replace function durable.task_continue(p_id text)
returns void language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  perform durable._lock_tasks_to_revoke(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  v_now := durable._now_ms();
  if not durable._continue_tasks(array[p_id], v_now) then
    if not exists (select from durable._promises p where p.id = p_id and p.target is not null) then
      perform durable._fail_not_found('task', p_id);
    end if;
    perform durable._fail_conflict(format('Task %L is not halted.', p_id));
  end if;
  perform durable._hint('durable_ready', v_now);
end
$$;
comment on function durable.task_continue(text) is 'Makes a halted task pending again. WF001, WF003.';

create or replace function durable._invoke_headers(p_queue text, p_id text)
returns jsonb language plpgsql stable
as $$
begin
  if not starts_with(p_queue, 'http') then
    return null;
  end if;
  return (select durable._recv_headers(durable._json(p.tags ->> 'resonate:invoke')) from durable._promises p
          where p.id = p_id and durable._queue_of(p.target) = p_queue);
end
$$;
comment on function durable._invoke_headers(text, text) is
  'Headers that an http receiver in the tag resonate:invoke of the older API asks for, for a task that goes to its target; else null.';

create or replace function durable.task_offer(p_queue text, p_limit integer default 100, p_pid text default null)
returns table (id text, version integer, headers jsonb) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  perform durable._check_site();
  return query
  with due as materialized (
    select d.id, row_number() over () as ord from (
      select c.id from durable._tasks c
      where c.queue = p_queue and c.state = 'pending' and c.workflow is null and c.retry_at <= v_now and c.deadline > v_now
        and (c.released_until is null or c.released_until not between v_now + 1 and v_now + 10000
             or (p_pid <> all (c.released_by) and cardinality(c.released_by) < 16))
        and (p_pid is null or c.preference is null or c.preference = p_pid or coalesce(c.prefer_until <= v_now, true)
             or durable._is_stale(c.prefer_until, v_now))
      order by c.priority, c.retry_at, c.id limit p_limit for update skip locked) d
  ), offered as (
    update durable._tasks t set retry_at = v_now + durable._setting_int('retry_offer_ms')
    from due d where t.id = any (array[d.id])
    returning t.id, t.version, coalesce(t.recv_headers, durable._invoke_headers(t.queue, t.id)) as recv_headers, d.ord
  )
  select o.id, o.version, o.recv_headers from offered o order by o.ord;
end
$$;
comment on function durable.task_offer(text, integer, text) is
  'Execute messages for processes that acquire by message: due tasks of a queue, never runs of the engine, which its own workers claim. For p_pid without the tasks that prefer another worker for now or that it has just released; with the headers that an http receiver asked for. Each task is offered again after retry_offer_ms, unless acquired. WF016.';
