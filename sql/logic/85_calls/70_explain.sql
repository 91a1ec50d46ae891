-- Explanations: what ran for a node, why a call would run, and what a whole list of calls would cost.

create or replace function durable.call_history(node bytea)
returns table (
  generation integer, state text, exec bytea, dag bytea, scopes text[], polls integer, error jsonb, started_at timestamptz,
  ended_at timestamptz, execution_key bytea
) language plpgsql stable
as $$
begin
  return query
    select a.generation, durable._attempt_state(a, p.state, t.state), durable._exec_for(a, $1), a.outcome_dag,
           array(select w.scope from durable._call_waiters w
                 where w.execution_key = a.execution_key and w.node_id = $1 order by w.scope),
           a.polls, a.error::jsonb, durable._at(a.created_at), durable._at(a.ended_at), a.execution_key
    from durable._call_attempts a
    left join durable._promises p on p.id = any (array[durable._call_promise(a.execution_key)])
    left join durable._tasks t on t.id = any (array[p.id])
    where a.execution_key = any (array(
      select x.execution_key from durable._call_attempts x where x.node_id = $1
      union select w.execution_key from durable._call_waiters w where w.node_id = $1))
    order by a.created_at, a.generation;
end
$$;
comment on function durable.call_history(bytea) is
  'Every attempt that ran for a call, oldest first, with the scopes that waited for it: select * from durable.call_history(node). More than one exec: its function is not deterministic, or it failed once.';

create or replace function durable._planned(p_call durable._call)
returns durable._call language plpgsql stable
as $$
declare
  v_call durable._call := p_call;
  v_objects durable._object[] := durable._call_object('call', p_call.function, p_call.inputs);
begin
  v_call.forced := coalesce(v_call.forced, v_call.cache = 'force');
  v_call.function_id := v_objects[1].id;
  v_call.node := durable._object_id('node', 'call', null, v_objects[2].refs, '{}');
  v_call.adapter := durable._adapter_of(v_call.function);
  select i.value_ids, i.execs into v_call.value_ids, v_call.execs from durable._inputs_of(v_call.scope, v_call.inputs) i;
  v_call.value_key := durable._value_key(v_call.salt, case when not v_call.share then v_call.scope end, v_call.function_id,
                                         v_call.value_ids);
  return v_call;
end
$$;
comment on function durable._planned(durable._call) is 'A call with its keys, of which nothing is put. WF004, WF013, WF014.';

create or replace function durable._plan(p_call durable._call)
returns text language plpgsql volatile
as $$
begin
  return case
    when not p_call.forced and exists (select from durable._pinned_hit(p_call) h where h.status in ('ok', 'excised'))
      then (select case h.status when 'ok' then 'pinned_hit' else 'excised' end from durable._pinned_hit(p_call) h)
    when (durable._shared_attempt(p_call, durable._now_ms())).execution_key is not null then 'shared_hit'
    when durable._joinable(p_call, durable._now_ms()) is not null then 'joined'
    else 'started' end;
end
$$;
comment on function durable._plan(durable._call) is 'The at that durable.call_begin would answer; excised: it would fail.';

create or replace function durable._plan_one(p_scope text, p_one jsonb)
returns table (node bytea, at text, reason text) language plpgsql volatile
as $$
declare
  v_call durable._call;
begin
  v_call.scope := p_scope;
  v_call.function := p_one ->> 'function';
  v_call.inputs := array(
    select durable._unhex(i.id) from jsonb_array_elements_text(p_one -> 'inputs') with ordinality as i (id, place)
    order by i.place);
  v_call.cache := coalesce(p_one ->> 'cache', 'shared');
  v_call.salt := coalesce(p_one ->> 'salt', '');
  v_call.share := coalesce((p_one ->> 'share')::boolean, true);
  v_call.cache_errors := coalesce((p_one ->> 'cache_errors')::boolean, false);
  node := durable._object_id('node', 'call', null, (durable._call_object('call', v_call.function, v_call.inputs))[2].refs, '{}');
  begin
    v_call := durable._planned(v_call);
    at := durable._plan(v_call);
  exception when sqlstate 'WF014' then
    -- its input runs first, and leads to values that nobody knows
    get stacked diagnostics reason = pg_exception_detail;
    at := 'started';
  end;
  return next;
end
$$;
comment on function durable._plan_one(text, jsonb) is 'One line of a plan.';

create or replace function durable.call_plan(scope text, calls jsonb)
returns table (place integer, node bytea, at text, reason text) language plpgsql volatile
as $$
begin
  if jsonb_typeof($2) is distinct from 'array' then
    perform durable._fail_invalid('A plan is an array of calls: [{"function": ..., "inputs": ["<id>", ...]}].');
  end if;
  return query
    select c.place::integer, p.node, p.at, p.reason
    from jsonb_array_elements($2) with ordinality as c (one, place)
    cross join lateral durable._plan_one($1, c.one) p order by c.place;
end
$$;
comment on function durable.call_plan(text, jsonb) is
  'A dry run: what durable.call_begin would answer for each of these calls, starting nothing: select at, count(*) from durable.call_plan(''exp-7'', ''[{"function": "dml+exec://local/sort", "inputs": ["<id>"]}]'') group by at. A call whose input has no value yet counts as started. WF004, WF013.';
