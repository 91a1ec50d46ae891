-- The verbs for an attempt that exists: give it back, wake it, cancel, retry, invalidate; and the sweep of attempts that ended by
-- time, or whose adapter no worker serves.

create or replace function durable.call_release_v1(p_execution_key bytea, p_version integer, p_reason text)
returns text language plpgsql volatile
as $$
declare
  v_id text := durable._call_promise(p_execution_key);
  v_task durable._tasks;
  v_now bigint;
begin
  if durable._try_lock_tasks(array[v_id], true) <> '{}' then
    return 'busy';
  end if;
  v_now := durable._now_ms();
  v_task := durable._check_lease(v_id, p_version, v_now);
  perform durable._release_with_backoff(v_task, v_now);
  if p_reason = 'not_served' then
    delete from durable._adapters a where a.adapter = substr(v_task.queue, 9) and a.worker = v_task.pid;
  end if;
  perform durable._hint('durable_ready', v_now);
  return 'released';
end
$$ set lock_timeout = '1s';
comment on function durable.call_release_v1(bytea, integer, text) is
  'For adapter workers: gives an attempt back without having polled, which counts as nothing. Others get it at once, the same worker later. The reason not_served: this worker has no such program, so it does not serve the adapter any more. Answers released, or busy: call again. WF001, WF002.';

create or replace function durable.call_wake(execution_key bytea)
returns boolean language plpgsql volatile
as $$
declare
  v_id text := durable._call_promise($1);
  v_task durable._tasks;
  v_now bigint;
begin
  perform durable._lock_tasks_to_revoke(array[v_id]);
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = v_id;
  if v_task.id is null or v_task.deadline <= v_now then
    return false;
  elsif v_task.state = 'acquired' then
    perform durable._lock_attempt($1);
    update durable._call_attempts a set woken = true where a.execution_key = $1;
  elsif v_task.retry_at > v_now then
    update durable._tasks t set retry_at = v_now where t.id = v_id;
    perform durable._hint('durable_ready', v_now);
  end if;
  return true;
end
$$;
comment on function durable.call_wake(bytea) is
  'Lets an attempt be polled at once instead of at its next time, for a webhook of the backend: select durable.call_wake(execution_key). If it is polled at this moment, once more afterwards. False if it has ended. Any number of times.';

create or replace function durable._is_waited_for(p_execution_key bytea, p_scope text, p_node bytea)
returns boolean language sql stable
as $$
  select exists (select from durable._call_waiters w
                 where w.execution_key = p_execution_key and w.scope = p_scope and w.node_id = p_node and w.anonymous)
      or exists (select from durable._call_steps s
                 where s.execution_key = p_execution_key and s.scope = p_scope and s.node_id = p_node and not s.has_left)
$$;
comment on function durable._is_waited_for(bytea, text, bytea) is
  'Whether a step, or a caller who named none, still waits for an attempt in a scope.';

create or replace function durable._leave_attempt(p_execution_key bytea, p_scope text, p_node bytea, p_step text)
returns text language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts := durable._lock_attempt(p_execution_key);
  v_now bigint;
begin
  v_now := durable._now_ms();
  if v_attempt.ended_at is not null or not durable._is_live(p_execution_key, v_now) then
    return 'ended';
  end if;
  update durable._call_steps s set has_left = true
  where s.execution_key = p_execution_key and s.scope = p_scope and s.node_id = p_node
    and (p_step is null or s.step_id = p_step);
  if p_step is not null and durable._is_waited_for(p_execution_key, p_scope, p_node) then
    return 'left';
  elsif exists (select from durable._call_waiters w
                where w.execution_key = p_execution_key and (w.scope, w.node_id) <> (p_scope, p_node)) then
    delete from durable._call_waiters w where w.execution_key = p_execution_key and w.scope = p_scope and w.node_id = p_node;
    return 'left';
  end if;
  -- the last waiter stays: a retry makes the call as this one was made
  perform durable._give_up(v_attempt, 'cancelled', 'the last caller cancelled it', null, v_now, 'rejected_canceled');
  return 'cancelled';
end
$$;
comment on function durable._leave_attempt(bytea, text, bytea, text) is
  'Ends the wait of a step for an attempt, or of its whole scope; the last one to leave cancels it. The caller has the locks of the settlement.';

create or replace function durable._live_attempts_of(p_scope text, p_node bytea, p_step text)
returns bytea[] language plpgsql stable
as $$
begin
  return array(
    select w.execution_key from durable._call_waiters w
    join durable._call_attempts a on a.execution_key = any (array[w.execution_key]) and durable._is_open(a)
    where w.scope = p_scope and w.node_id = p_node and durable._is_live(w.execution_key, durable._now_ms())
      and (p_step is null or exists (select from durable._call_steps s
                                     where s.step_id = p_step and not s.has_left
                                       and (s.execution_key, s.scope, s.node_id) = (w.execution_key, p_scope, p_node)))
    order by durable._call_promise(w.execution_key));
end
$$;
comment on function durable._live_attempts_of(text, bytea, text) is
  'Attempts under way for which a scope, or one step there, waits, in the order of their promises.';

create or replace function durable.call_cancel(scope text, node bytea, step_id text default null)
returns text language plpgsql volatile
as $$
declare
  v_keys bytea[] := durable._live_attempts_of($1, $2, $3);
  v_key bytea;
  v_left text;
  v_answer text := 'not_running';
begin
  perform durable._lock_settlement(array(select durable._call_promise(k) from unnest(v_keys) k));
  foreach v_key in array v_keys loop
    v_left := durable._leave_attempt(v_key, $1, $2, $3);
    v_answer := case when 'cancelled' in (v_answer, v_left) then 'cancelled' when v_left = 'left' then 'left' else v_answer end;
  end loop;
  return v_answer;
end
$$;
comment on function durable.call_cancel(text, bytea, text) is
  'Gives up a call in a scope: select durable.call_cancel(''exp-7'', node). That ends the waits of all that have called there; with step_id only the wait of that step. cancelled: nobody else waited, so the attempt ends and its adapter is asked to cancel the job; left: others wait, so it goes on for them; not_running: there was none. Nothing is recorded as a result.';

create or replace function durable._request_of(p_id bytea)
returns jsonb language sql stable
as $$
  select durable._plain_json(durable.datum(o.refs[2])) from durable._objects o
  where o.id = p_id and durable.closure_status(o.id) = 'ok'
$$;
comment on function durable._request_of(bytea) is 'The content of a request, as it was given; null: none, or excised.';

create or replace function durable._call_of(p_scope text, p_node bytea)
returns durable._call language plpgsql stable
as $$
declare
  v_node durable._objects;
  v_call durable._call;
begin
  select * into v_node from durable._objects o where o.id = p_node;
  if v_node.kind is distinct from 'node' or v_node.sub <> 'call' then
    perform durable._fail_not_found('call', encode(p_node, 'hex'), 'Look at select * from durable.calls.');
  end if;
  v_call.scope := p_scope;
  v_call.node := p_node;
  v_call.inputs := v_node.refs[2:];
  v_call.function := (select durable._text_of(f.scalar) from durable._objects f where f.id = v_node.refs[1]);
  v_call.cache := 'shared';
  v_call.salt := '';
  v_call.share := true;
  v_call.cache_errors := false;
  select c.salt, a.share, a.deadline - a.created_at, durable._request_of(a.request_id)
  into v_call.salt, v_call.share, v_call.timeout_ms, v_call.request
  from durable._call_waiters w
  join durable._call_attempts a on a.execution_key = any (array[w.execution_key])
  join durable._calls c on c.value_key = any (array[a.value_key])
  where w.scope = p_scope and w.node_id = p_node order by a.created_at desc, a.generation desc limit 1;
  v_call.salt := coalesce(v_call.salt, '');
  v_call.share := coalesce(v_call.share, true);
  return v_call;
end
$$;
comment on function durable._call_of(text, bytea) is 'A call that a scope has made before, as its newest attempt there was made: salt, time limit and request, shared or not. WF001.';

create or replace function durable.call_retry(scope text, node bytea, step_id text default null, request jsonb default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_call durable._call := durable._call_of($1, $2);
begin
  v_call.step_id := $3;
  v_call.request := coalesce($4, v_call.request);
  v_call.forced := true;
  return durable._begin_call(v_call);
end
$$;
comment on function durable.call_retry(text, bytea, text, jsonb) is
  'Runs a call again, whether it failed, was given up, or has a result that is to be replaced: select durable.call_retry(''exp-7'', node). Joins an attempt that is under way. A new one has the time limit and the request of the newest one before, unless a request is given. The new result replaces the pin of this scope; the old execution stays in the history. Answers as durable.call_begin. WF001, WF013, WF014.';

create or replace function durable.call_invalidate(function text default null, value_key bytea default null)
returns integer language plpgsql volatile
as $$
declare
  v_keys bytea[];
  v_count integer;
begin
  if num_nonnulls($1, $2) <> 1 then
    perform durable._fail_invalid('Invalidate the calls of a function or one value key, not both.');
  end if;
  v_keys := array(
    select c.value_key from durable._calls c
    where c.value_key = $2 or (split_part(c.function, '?', 1) = split_part($1, '?', 1) and c.function = $1) order by c.value_key);
  perform durable._lock_call(k) from unnest(v_keys) k;
  update durable._calls c set results_from = c.generation + 1
  where c.value_key = any (v_keys) and c.results_from <= c.generation;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable.call_invalidate(text, bytea) is
  'Shares no result any more that attempts of these calls have given or will give: select durable.call_invalidate(function => ''dml+exec://local/sort''). The next call anywhere runs. Scopes keep what they have pinned. Answers how many calls had one. WF004.';

create or replace function durable._served_adapters(p_now bigint)
returns text[] language sql stable
as $$
  select array(select distinct a.adapter from durable._adapters a where a.seen_at > p_now - 60000 order by a.adapter)
$$;
comment on function durable._served_adapters(bigint) is 'Adapters for which a worker has asked for work within a minute.';

create or replace function durable._missing_adapters(p_before bigint)
returns text[] language sql stable
as $$
  -- from name to name along the index of live attempts, of which there may be many
  with recursive needed (served_as) as (
    (select a.served_as from durable._call_attempts a where a.ended_at is null order by a.served_as limit 1)
    union all
    select (select a.served_as from durable._call_attempts a
            where a.ended_at is null and a.served_as > n.served_as order by a.served_as limit 1)
    from needed n where n.served_as is not null
  )
  select array(select n.served_as from needed n
               where n.served_as is not null
                 and not exists (select from durable._adapters s
                                 where s.adapter = any (array[n.served_as]) and s.seen_at > p_before))
$$;
comment on function durable._missing_adapters(bigint) is
  'Names of adapters that running attempts need, and for which no worker has asked for work since an instant.';

create or replace function durable._stranded(p_limit integer, p_now bigint)
returns setof durable._call_attempts language plpgsql stable
as $$
declare
  v_before bigint := p_now - greatest(durable._setting_int('call_adapter_grace_ms'), 60000);
  v_waiting bigint := p_now - durable._setting_int('call_adapter_grace_ms');
begin
  return query
    select a.* from unnest(durable._missing_adapters(v_before)) m (adapter)
    cross join lateral (
      select t.id from durable._tasks t
      where t.queue = 'adapter:' || m.adapter and t.state = 'pending' and t.workflow is null and t.retry_at <= v_waiting
        and durable._call_key(t.id) is not null
      order by t.priority, t.retry_at limit p_limit) t
    join durable._call_attempts a on a.execution_key = any (array[durable._call_key(t.id)])
    where durable._is_open(a) limit p_limit;
end
$$;
comment on function durable._stranded(integer, bigint) is 'Attempts that have been due for call_adapter_grace_ms, with no worker that serves their adapter.';

create or replace function durable._close_ended(p_limit integer, p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_keys bytea[] := durable._try_lock_ended(p_limit, p_now);
begin
  update durable._call_attempts a
  set ended_at = greatest(coalesce(p.settled_at, p_now), a.created_at),
      cancel_due = a.token is not null and a.phase = 'poll_adapter',
      error = durable._aborted(a, case p.state when 'rejected_timedout' then 'deadline' when 'rejected_canceled' then 'cancelled'
                                               else 'settled_by_hand' end,
                               case p.state when 'rejected_timedout' then 'its deadline passed'
                                            when 'rejected_canceled' then 'it was cancelled'
                                            else 'its promise was settled by somebody else' end, durable._json(p.value_data))
  from unnest(v_keys) k
  left join durable._promises p on p.id = any (array[durable._call_promise(k)])
  where a.execution_key = any (array[k]);
  return cardinality(v_keys);
end
$$;
comment on function durable._close_ended(integer, bigint) is 'Closes the rows of attempts that ended by their deadline or a verb of promises, and has their jobs cancelled.';

create or replace function durable.call_sweep_v1(p_limit integer default 500)
returns jsonb language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
  v_now bigint := durable._now_ms();
  v_closed integer;
  v_missing integer := 0;
  v_old bigint;
  v_task durable._tasks;
begin
  perform durable._check_site();
  v_closed := durable._close_ended(p_limit, v_now);
  for v_attempt in select * from durable._stranded(p_limit, v_now) loop
    continue when not durable._try_lock_report(v_attempt.execution_key, true);
    v_now := durable._now_ms();
    select * into v_task from durable._tasks t where t.id = durable._call_promise(v_attempt.execution_key);
    if coalesce(durable._ready(v_task, v_now), false) then
      perform durable._give_up(v_attempt, 'adapter_not_found', format('no worker serves the adapter %L; served are: %s',
        substr(v_task.queue, 9), coalesce(nullif(array_to_string(durable._served_adapters(v_now), ', '), ''), 'none')),
        null, v_now);
      v_missing := v_missing + 1;
    end if;
  end loop;
  v_old := v_now - 60000 - durable._setting_int('call_adapter_grace_ms');
  delete from durable._adapters a where a.worker = any (durable._try_lock_old_adapters(v_old)) and a.seen_at < v_old;
  return jsonb_build_object('closed', v_closed, 'adapter_not_found', v_missing);
end
$$ set lock_timeout = '1s';
comment on function durable.call_sweep_v1(integer) is
  'For adapter workers, every few seconds: closes attempts whose promises have ended by time or by hand, gives up those whose adapter nobody serves, forgets workers that are gone. Waits for nobody. Answers how many of each.';
