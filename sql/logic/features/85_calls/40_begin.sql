-- Calls: a pinned result, a shared one, an attempt that is under way, or a new one. Objects are put first, before any lock.
-- Results are looked for without a lock; a call that finds none locks the row of the value key, looks again, and joins or starts.

create or replace function durable._check_call(p_call durable._call)
returns void language plpgsql stable
as $$
begin
  if p_call.cache is null or p_call.cache not in ('shared', 'scope', 'force') then
    perform durable._fail_invalid(format('cache is shared, scope or force, not %L.', p_call.cache));
  elsif p_call.cache = 'force' and p_call.step_id is null then
    perform durable._fail_invalid('A forced call names its step, so that the same step does not force it again.');
  elsif p_call.inputs is null or array_ndims(p_call.inputs) > 1
        or exists (select from unnest(p_call.inputs) i (id) where octet_length(i.id) is distinct from 32) then
    perform durable._fail_invalid('Inputs are a list of node ids.');
  elsif p_call.timeout_ms <= 0 or p_call.max_age_ms < 0 then
    perform durable._fail_invalid('A timeout is more than 0, and a max_age 0 or more.');
  elsif p_call.salt is null or p_call.share is null or p_call.cache_errors is null then
    perform durable._fail_invalid('salt, share and cache_errors are not null.');
  elsif octet_length(p_call.salt) > 255 or octet_length(p_call.step_id) not between 1 and 1024 then
    perform durable._fail_invalid('A salt has at most 255 bytes, a step id 1 to 1024.');
  elsif jsonb_typeof(p_call.request) not in ('object') then
    perform durable._fail_invalid('A request is a JSON object: resources, priority, labels, retries.');
  elsif p_call.request ? 'retries' and (p_call.request ->> 'retries') !~ '^[0-9]{1,4}$' then
    perform durable._fail_invalid('retries of a request is a whole number.');
  elsif coalesce(jsonb_typeof(p_call.request -> 'snapshot'), 'null') not in ('boolean', 'null') then
    perform durable._fail_invalid('snapshot of a request is true or false.');
  elsif not exists (select from durable._refs r where r.name = p_call.scope and r.kind = 'index') then
    perform durable._fail_not_found('scope', p_call.scope, 'select durable.scope_open(...) makes one.');
  end if;
end
$$;
comment on function durable._check_call(durable._call) is 'Refuses a call before anything is written. WF001, WF004.';

create or replace function durable._call_answer(
  p_at text, p_node bytea, p_exec bytea, p_attempt durable._call_attempts default null, p_error text default null)
returns jsonb language plpgsql stable
as $$
begin
  return jsonb_build_object(
    'at', p_at, 'node', encode(p_node, 'hex'), 'exec', encode(p_exec, 'hex'),
    'execution_key', encode(p_attempt.execution_key, 'hex'), 'generation', p_attempt.generation,
    'promise', durable._call_promise(p_attempt.execution_key), 'error', p_error::jsonb)
    || case when p_attempt.exec_id is not null
            then jsonb_build_object('status', substr(p_attempt.phase, 11), 'dag', encode(p_attempt.outcome_dag, 'hex'))
            else coalesce((select jsonb_build_object('status', e.sub, 'dag', encode(e.refs[2], 'hex'))
                           from durable._objects e where e.id = p_exec), '{"status": null, "dag": null}') end;
end
$$;
comment on function durable._call_answer(text, bytea, bytea, durable._call_attempts, text) is 'The answer of a call: how it ended, or which promise to wait for.';

create or replace function durable._exec_for(p_attempt durable._call_attempts, p_node bytea)
returns bytea language sql immutable
as $$
  select case when p_attempt.exec_id is not null then
    durable._object_id('exec', substr(p_attempt.phase, 11), null, array[p_node, p_attempt.outcome_dag], '{}') end
$$;
comment on function durable._exec_for(durable._call_attempts, bytea) is
  'The execution of a node to which a completed attempt has led; null if it is not completed. Nodes with the same values share the attempt, each with a record of its own.';

create or replace function durable._aborted_error(p_attempt durable._call_attempts)
returns text language sql stable
as $$
  select coalesce(p_attempt.error, durable._error_of(p.state, p.value_data))
  from (select durable._call_promise(p_attempt.execution_key) as id) x left join durable._promises p on p.id = x.id
$$;
comment on function durable._aborted_error(durable._call_attempts) is 'Why an attempt was given up, as JSON text, also before its row has been closed.';

create or replace function durable._rejoin_attempt(p_call durable._call, p_execution_key bytea, p_has_left boolean)
returns boolean language plpgsql volatile
as $$
begin
  if p_has_left
     or not exists (select from durable._call_waiters w
                    where w.execution_key = p_execution_key and w.scope = p_call.scope and w.node_id = p_call.node) then
    perform durable._lock_scope(p_call.scope);
    if (durable._lock_attempt(p_execution_key)).ended_at is not null then
      return false;
    end if;
    update durable._call_steps s set has_left = false where s.step_id = p_call.step_id;
    insert into durable._call_waiters (forced, execution_key, scope, node_id)
    values (p_call.forced, p_execution_key, p_call.scope, p_call.node) on conflict on constraint call_waiters_pk do nothing;
  end if;
  return durable._is_live(p_execution_key, durable._now_ms());
end
$$;
comment on function durable._rejoin_attempt(durable._call, bytea, boolean) is
  'A step asks again for its attempt, which goes on: it waits for it, also if it or its scope had left it meanwhile. False if the attempt has just ended.';

create or replace function durable._aborted(p_attempt durable._call_attempts, p_code text, p_message text, p_cause jsonb)
returns text language sql immutable
as $$
  select durable._refusal('CallAborted', p_message, jsonb_build_object(
    'code', p_code, 'cause', p_cause, 'execution_key', encode(p_attempt.execution_key, 'hex')))
$$;
comment on function durable._aborted(durable._call_attempts, text, text, jsonb) is 'The error of an attempt that was given up: a code, and the last failure as cause.';

create or replace function durable._is_left_out(p_attempt durable._call_attempts, p_scope text, p_node bytea)
returns boolean language plpgsql stable
as $$
declare
  v_end durable._objects;
begin
  if p_attempt.exec_id is null or exists (
       select from durable._call_waiters w
       where w.execution_key = p_attempt.execution_key and w.scope = p_scope and w.node_id = p_node) then
    return false;
  end if;
  v_end := durable._value_end(p_scope, p_attempt.outcome_dag);
  return v_end.kind <> 'datum' and v_end.excised_at is null;
end
$$;
comment on function durable._is_left_out(durable._call_attempts, text, bytea) is
  'Whether the result of an attempt was pinned for others alone: it is that of a call which this scope has no result of.';

create or replace function durable._left_out(p_attempt durable._call_attempts, p_scope text)
returns text language sql immutable
as $$
  select durable._aborted(
    p_attempt, 'result_unreadable',
    format('the result is that of a call which scope %L has no result of; call again, and it runs for this scope', p_scope), null)
$$;
comment on function durable._left_out(durable._call_attempts, text) is 'The error of a scope that cannot read the result for which it has waited.';

create or replace function durable._step_answer(p_call durable._call)
returns jsonb language plpgsql volatile
as $$
declare
  v_step durable._call_steps;
  v_attempt durable._call_attempts;
begin
  if p_call.step_id is null then
    return null;
  end if;
  select * into v_step from durable._call_steps s where s.step_id = p_call.step_id;
  if not found then
    return null;
  elsif (v_step.scope, v_step.node_id) is distinct from (p_call.scope, p_call.node) then
    perform durable._fail_invalid(format('Step %L made another call before: node %s in scope %L.', p_call.step_id,
                                         encode(v_step.node_id, 'hex'), v_step.scope), 'A step makes one call.');
  elsif v_step.exec_id is not null then
    return durable._call_answer('step_hit', p_call.node, v_step.exec_id);
  end if;
  select * into v_attempt from durable._call_attempts a where a.execution_key = v_step.execution_key;
  if v_attempt.ended_at is null and durable._is_live(v_attempt.execution_key, durable._now_ms())
     and durable._rejoin_attempt(p_call, v_attempt.execution_key, v_step.has_left) then
    return durable._call_answer('joined', p_call.node, null, v_attempt);
  end if;
  select * into v_attempt from durable._call_attempts a where a.execution_key = v_step.execution_key;
  if durable._is_left_out(v_attempt, p_call.scope, p_call.node) then
    return durable._call_answer('aborted', p_call.node, null, null, durable._left_out(v_attempt, p_call.scope));
  elsif v_attempt.exec_id is not null then
    return durable._call_answer('step_hit', p_call.node, durable._exec_for(v_attempt, p_call.node), v_attempt);
  end if;
  return durable._call_answer('aborted', p_call.node, null, v_attempt, durable._aborted_error(v_attempt));
end
$$;
comment on function durable._step_answer(durable._call) is
  'The answer for a step that has called before: the same attempt, also after that was given up, so a replay starts nothing. Null if it is new. WF004.';

create or replace function durable._pinned_hit(p_call durable._call, out exec_id bytea, out status text)
language plpgsql volatile
as $$
begin
  select p.exec_id, case when e.excised_at is not null then 'excised' when e.id is null then 'missing'
                         else durable._readable_in(p_call.scope, e.refs[2]) end
  into exec_id, status
  from durable._pins p left join durable._objects e on e.id = any (array[p.exec_id])
  where p.scope = p_call.scope and p.node_id = p_call.node;
end
$$;
comment on function durable._pinned_hit(durable._call) is 'The execution that the scope has pinned, and whether its result can be read: ok, missing or excised.';

create or replace function durable._reusable_attempt(p_call durable._call, p_now bigint)
returns durable._call_attempts language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
begin
  if p_call.cache = 'shared' and p_call.share and not p_call.forced then
    select a.* into v_attempt from durable._calls c
    join durable._call_attempts a on a.value_key = any (array[c.value_key]) and a.generation >= c.results_from
    where c.value_key = p_call.value_key and a.exec_id is not null and a.share
      and (a.phase = 'integrate_ok' or p_call.cache_errors)
      and (p_call.max_age_ms is null or a.ended_at >= p_now - p_call.max_age_ms)
    order by a.generation desc limit 1;
    -- from here to the commit collection passes over it
    perform durable._lock_objects(array[v_attempt.outcome_dag]);
    if durable._readable_in(p_call.scope, v_attempt.outcome_dag) is distinct from 'ok' then
      return null;
    end if;
  end if;
  return v_attempt;
end
$$;
comment on function durable._reusable_attempt(durable._call, bigint) is
  'The newest attempt whose result may be used for this call, if all of that result can be read; all null: none.';

create or replace function durable._run_of(p_step text)
returns text language sql stable
as $$
  select p.id from durable._promises p
  where p.id = left(p_step, -position('.' in reverse(p_step))) and p.head is not null
$$;
comment on function durable._run_of(text) is 'The run whose step this is, <run id>.<number>; null: a step of somebody else.';

create or replace function durable._remember_step(p_call durable._call, p_execution_key bytea, p_exec bytea)
returns boolean language plpgsql volatile
as $$
begin
  if p_call.step_id is null then
    return true;
  end if;
  insert into durable._call_steps (created_at, step_id, scope, node_id, run_id, execution_key, exec_id)
  values (durable._now_ms(), p_call.step_id, p_call.scope, p_call.node, durable._run_of(p_call.step_id), p_execution_key, p_exec)
  on conflict on constraint call_steps_pk do nothing;
  return found;
end
$$;
comment on function durable._remember_step(durable._call, bytea, bytea) is 'Writes down what a step was given; false if the same step was given something meanwhile.';

create or replace function durable._reuse_result(p_call durable._call)
returns jsonb language plpgsql volatile
as $$
declare
  v_pinned record;
  v_attempt durable._call_attempts;
  v_exec bytea;
begin
  if not p_call.forced then
    select * into v_pinned from durable._pinned_hit(p_call) h;
    if v_pinned.status = 'excised' then
      perform durable._fail_excised(v_pinned.exec_id);
    elsif v_pinned.status = 'ok' then
      return case when durable._remember_step(p_call, null, v_pinned.exec_id)
                  then durable._call_answer('pinned_hit', p_call.node, v_pinned.exec_id)
                  else durable._step_answer(p_call) end;
    end if;
  end if;
  if p_call.value_key is null then
    return null;
  end if;
  v_attempt := durable._reusable_attempt(p_call, durable._now_ms());
  if v_attempt.execution_key is null then
    return null;
  end if;
  v_exec := durable._put_exec(p_call.node, substr(v_attempt.phase, 11), v_attempt.outcome_dag);
  if not durable._remember_step(p_call, null, v_exec) then
    return durable._step_answer(p_call);
  end if;
  perform durable._pin(array[row(p_call.scope, p_call.node, v_exec, p_call.execs, p_call.is_pinned)::durable._new_pin],
                       v_attempt.execution_key, durable._now_ms());
  return durable._call_answer('shared_hit', p_call.node, v_exec, v_attempt);
end
$$;
comment on function durable._reuse_result(durable._call) is
  'The answer for a call that needs no attempt: its pin, or, once its value key is known, a shared result, which is pinned. A pinned result that is missing is passed over and replaced. Null: none. WF015.';

create or replace function durable._joinable_attempt(p_call durable._call, p_now bigint)
returns bytea language plpgsql stable
as $$
begin
  if p_call.cache = 'force' or not p_call.share then
    return null;
  end if;
  return (
    select a.execution_key from durable._calls c
    join durable._call_attempts a on a.value_key = any (array[c.value_key]) and a.generation >= c.results_from
    where c.value_key = p_call.value_key and durable._is_open(a) and a.share and durable._is_live(a.execution_key, p_now)
    order by a.generation desc limit 1);
end
$$;
comment on function durable._joinable_attempt(durable._call, bigint) is 'The newest attempt under way that this call may wait for.';

create or replace function durable._add_waiter(p_call durable._call, p_execution_key bytea)
returns void language plpgsql volatile
as $$
begin
  insert into durable._call_waiters as w (forced, anonymous, execution_key, scope, node_id, inputs)
  values (p_call.forced or p_call.is_pinned, p_call.step_id is null, p_execution_key, p_call.scope, p_call.node, p_call.execs)
  on conflict on constraint call_waiters_pk do update
  set forced = w.forced or excluded.forced, anonymous = w.anonymous or excluded.anonymous, inputs = excluded.inputs;
end
$$;
comment on function durable._add_waiter(durable._call, bytea) is 'The attempt, which the caller has locked or just made, runs for this scope and node too.';

create or replace function durable._join(p_call durable._call, p_execution_key bytea)
returns jsonb language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts := durable._lock_attempt(p_execution_key);
begin
  if v_attempt.ended_at is not null or not durable._is_live(p_execution_key, durable._now_ms()) then
    return null;
  end if;
  if not durable._remember_step(p_call, p_execution_key, null) then
    return null;
  end if;
  perform durable._add_waiter(p_call, p_execution_key);
  return durable._call_answer('joined', p_call.node, null, v_attempt);
end
$$;
comment on function durable._join(durable._call, bytea) is 'Waits for an attempt of somebody else, which stays as it is until this transaction ends; null if it has just ended.';

create or replace function durable._start_attempt(
  p_call durable._call, p_request bytea, p_snapshot bytea, p_generation integer, p_now bigint)
returns durable._call_attempts language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
  v_key bytea := durable._execution_key(p_call.value_key, p_generation);
  v_uuid uuid := gen_random_uuid();
begin
  if p_snapshot is not null then
    insert into durable._refs (created_at, commit_id, name, kind) values (p_now, p_snapshot, 'exec/' || v_uuid, 'exec');
  end if;
  update durable._calls c set generation = p_generation where c.value_key = p_call.value_key;
  insert into durable._call_attempts as a (
    created_at, deadline, generation, budget, share, uuid, execution_key, value_key, node_id, adapter, served_as, step_id,
    request_id, ref_name)
  values (
    p_now, nullif(durable._later(p_now, p_call.timeout_ms), durable._never()), p_generation,
    coalesce((p_call.request ->> 'retries')::integer, durable._setting_int('call_retries')), p_call.share,
    v_uuid, v_key, p_call.value_key, p_call.node, p_call.adapter,
    durable._served_as(p_call.function, p_call.adapter),
    case when p_call.cache = 'force' then p_call.step_id end, p_request,
    case when p_snapshot is not null then 'exec/' || v_uuid end)
  returning a.* into v_attempt;
  if not durable._insert_promise(
    row(durable._call_promise(v_key), durable._later(p_now, p_call.timeout_ms),
        jsonb_build_object('function', p_call.function, 'node', encode(p_call.node, 'hex'), 'request', p_call.request)::text,
        null,
        jsonb_build_object('resonate:target', 'poll://any@adapter:' || v_attempt.served_as),
        null)::durable._new_promise,
    null, null, p_now) then
    perform durable._fail_conflict(format('Promise %L exists already; such ids are reserved.', durable._call_promise(v_key)));
  end if;
  perform durable._add_waiter(p_call, v_key);
  return v_attempt;
end
$$;
comment on function durable._start_attempt(durable._call, bytea, bytea, integer, bigint) is
  'A new attempt with its promise and task, and with a name for its snapshot, if it has one. The caller has locked the row of the value key. WF003.';

create or replace function durable._join_or_start(p_call durable._call, p_request bytea, p_snapshot bytea)
returns jsonb language plpgsql volatile
as $$
declare
  v_row durable._calls;
  v_now bigint;
  v_key bytea;
  v_attempt durable._call_attempts;
begin
  insert into durable._calls (value_key, salt, scope, function, function_id, inputs)
  values (p_call.value_key, p_call.salt, case when not p_call.share then p_call.scope end, p_call.function, p_call.function_id,
          p_call.value_ids)
  on conflict on constraint calls_pk do nothing;
  v_row := durable._lock_call(p_call.value_key);
  if v_row.value_key is null then
    return null;  -- retention has just removed it
  end if;
  v_now := durable._now_ms();
  if not p_call.forced and (exists (select from durable._pinned_hit(p_call) h where h.status = 'ok')
                            or (durable._reusable_attempt(p_call, v_now)).execution_key is not null) then
    return null;
  end if;
  if p_call.step_id is not null and exists (select from durable._call_steps s where s.step_id = p_call.step_id) then
    return durable._step_answer(p_call);
  end if;
  v_key := durable._joinable_attempt(p_call, v_now);
  if v_key is not null then
    return durable._join(p_call, v_key);
  end if;
  -- first, so that a step that has made another call meanwhile is refused as such
  if not durable._remember_step(p_call, durable._execution_key(p_call.value_key, v_row.generation + 1), null) then
    return null;
  end if;
  v_attempt := durable._start_attempt(p_call, p_request, p_snapshot, v_row.generation + 1, v_now);
  return durable._call_answer('started', p_call.node, null, v_attempt);
end
$$;
comment on function durable._join_or_start(durable._call, bytea, bytea) is
  'Decides under the lock of the value key. Null: there is a result by now, or the attempt has just ended, so the caller has to look again.';

create or replace function durable._recorded_execs(p_run text)
returns table (node bytea, exec bytea) language sql stable
as $$
  with step as (
    select j.seq, j as line, durable._completes_step(j.type) as completes,
           bool_or(coalesce(j.name in ('durable.call_v1', 'durable.call_result_v1'), false))
             over (partition by j.child) as is_call
    from durable._promises p
    join durable._executions h on h.execution = any (array[p.head])
    join durable._journal j on j.execution = any (array[h.execution]) and j.bucket = any (array[h.bucket])
    where p.id = p_run and (durable._schedules_step(j.type) or durable._completes_step(j.type))
  ), answer as (
    select s.seq, x.answer ->> 'node' as node, x.answer ->> 'exec' as exec, x.answer ->> 'scope' as scope
    from step s cross join lateral (select durable._json(durable._data(s.line)) as answer) x where s.is_call and s.completes
  )
  select distinct on (a.node) decode(a.node, 'hex'), e.id
  from answer a
  join durable._objects e on e.id = any (array[decode(a.exec, 'hex')]) and e.kind = 'exec'
  where not exists (
    select from answer o join durable._refs r on r.name = any (array[o.scope]) and not r.of_run where o.node = a.node)
  order by a.node, a.seq desc
$$;
comment on function durable._recorded_execs(text) is
  'The executions that calls of a run have found, by its journal: the latest of each node, without those of scopes that people have opened.';

create or replace function durable._pin_recorded_calls(p_run text, p_inputs bytea[])
returns void language plpgsql volatile
as $$
begin
  if not exists (select from durable._forks f where f.id = p_run) or not exists (
       with recursive below (id, sub) as (
         select o.id, o.sub from unnest(p_inputs) as i (id) join durable._objects o on o.id = any (array[i.id])
         union
         select o.id, o.sub from below b
         join durable._objects n on n.id = any (array[b.id])
         cross join lateral unnest(n.refs[2:]) r (id)
         join durable._objects o on o.id = any (array[r.id]) where b.sub = 'builtin')
       select from below b
       where b.sub = 'call' and not exists (select from durable._pins p where p.scope = p_run and p.node_id = any (array[b.id])))
  then
    return;
  end if;
  perform durable._pin(
    array(select row(p_run, r.node, r.exec, '{}', false)::durable._new_pin from durable._recorded_execs(p_run) r
          where durable.closure_status(r.exec) = 'ok'), null, durable._now_ms());
end
$$;
comment on function durable._pin_recorded_calls(text, bytea[]) is
  'A fork has results in its copy of the journal that its scope has not: they are pinned once a call has one of them as an input, or within one. The caller has locked the scope.';

create or replace function durable._begin_call(p_call durable._call)
returns jsonb language plpgsql volatile
as $$
declare
  v_call durable._call := p_call;
  v_objects durable._object[];
  v_answer jsonb;
  v_request bytea;
  v_snapshot bytea;
begin
  perform durable._check_may_lock();
  perform durable._check_call(p_call);
  v_call.adapter := durable._adapter_of(p_call.function);
  v_call.forced := coalesce(p_call.forced, p_call.cache = 'force');
  v_objects := durable._call_object('call', p_call.function, p_call.inputs);
  v_call.function_id := (v_objects[1]).id;
  v_call.node := (v_objects[2]).id;
  -- the node need not be here for this: a pinned hit puts nothing, locks nothing and commits nothing
  v_answer := coalesce(durable._step_answer(v_call), durable._reuse_result(v_call));
  if v_answer is not null then
    return v_answer;
  end if;
  perform durable._put_objects(v_objects);
  if v_call.request is not null then
    v_request := durable._put_request(v_call.node, v_call.request);
  end if;
  perform durable._lock_scope(v_call.scope);
  perform durable._pin_recorded_calls(v_call.scope, v_call.inputs);
  perform durable._evaluate_builtins(v_call.scope, v_call.inputs);
  if (v_call.request ->> 'snapshot')::boolean then
    v_snapshot := durable._put_snapshot(v_call.scope);
  end if;
  select i.value_ids, i.execs into v_call.value_ids, v_call.execs from durable._inputs_of(v_call.scope, v_call.inputs) i;
  v_call.value_key := durable._value_key(v_call.salt, case when not v_call.share then v_call.scope end, v_call.function_id,
                                         v_call.value_ids);
  for v_round in 1..20 loop
    v_call.is_pinned := exists (select from durable._pins p where p.scope = v_call.scope and p.node_id = v_call.node);
    v_answer := durable._reuse_result(v_call);
    if v_answer is not null then
      return v_answer;
    end if;
    begin
      v_answer := durable._join_or_start(v_call, v_request, v_snapshot);
      if v_answer is not null then
        return v_answer;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      null;  -- the locks are released again
    end;
  end loop;
  perform durable._fail_busy(format('Call %s', encode(v_call.node, 'hex')));
  return null;
end
$$;
comment on function durable._begin_call(durable._call) is 'One call, from its checks to its answer.';

create or replace function durable.call_begin(
  scope text, function text, inputs bytea[], cache text default 'shared', step_id text default null,
  timeout interval default null, salt text default '', share boolean default true, cache_errors boolean default false,
  request jsonb default null, max_age interval default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_call durable._call;
begin
  v_call.scope := $1;
  v_call.function := $2;
  v_call.inputs := $3;
  v_call.cache := $4;
  v_call.step_id := $5;
  v_call.timeout_ms := durable._ms($6);
  v_call.salt := $7;
  v_call.share := $8;
  v_call.cache_errors := $9;
  v_call.request := $10;
  v_call.max_age_ms := durable._ms($11);
  return durable._begin_call(v_call);
end
$$ set lock_timeout = '1s';
comment on function durable.call_begin(text, text, bytea[], text, text, interval, text, boolean, boolean, jsonb, interval) is
  'Asks for the result of a call: select durable.call_begin(''exp-7'', ''dml+exec://local/sort'', array[durable.literal(''[2, 1]'')]). Answers {at, node, status, exec, dag, promise, execution_key, generation, error}. at: pinned_hit, shared_hit or step_hit with exec, dag and status ok or error; started or joined with a promise to wait for; aborted with an error, for a step whose attempt was given up. cache: shared (default); scope takes no result of other scopes; force always runs, once for each step_id. share => false: neither joins nor is joined, and no other scope gets the result. salt: results of other scopes count only under the same one. A pin of the scope itself is answered whatever salt, share and max_age say: use a scope for each who must not see the results of others. cache_errors: a shared failure counts as a result. max_age: older shared results do not count. timeout: of a new attempt. request: for the adapter, no part of the key; its retries are the retry budget, and with snapshot an attempt that it starts has the scope frozen as a commit. WF001, WF003, WF004, WF013, WF014, WF015, 55P03: another session has made the same call, or put the same value, and does not commit within a second.';
