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
  v_call.node := v_objects[2].id;
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
    when (durable._reusable_attempt(p_call, durable._now_ms())).execution_key is not null then 'shared_hit'
    when durable._joinable_attempt(p_call, durable._now_ms()) is not null then 'joined'
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
  node := (durable._call_object('call', v_call.function, v_call.inputs))[2].id;
  begin
    v_call := durable._planned(v_call);
    at := durable._plan(v_call);
  exception when sqlstate 'WF014' then
    -- its input runs first, and leads to values that nobody knows
    get stacked diagnostics reason = message_text;
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
create or replace function durable._differing(p_one bytea[], p_other bytea[])
returns integer language sql immutable
as $$ select count(*)::integer from unnest(p_one, p_other) as x (one, other) where x.one is distinct from x.other $$;
comment on function durable._differing(bytea[], bytea[]) is 'In how many places two lists of ids differ.';

create or replace function durable._datum_members(p_datum durable._objects)
returns table (step text, id bytea) language sql stable
as $$
  select '[' || r.place - 1 || ']', r.id from unnest(p_datum.refs) with ordinality as r (id, place) where p_datum.sub = 'list'
  union all
  select '[' || coalesce(durable._plain_json(durable.datum(k.id))::text, 'null') || ']', p_datum.refs[k.place + 1]
  from unnest(p_datum.refs) with ordinality as k (id, place) where p_datum.sub = 'map' and k.place % 2 = 1
$$;
comment on function durable._datum_members(durable._objects) is 'Members of a list or map by their place in it.';

create or replace function durable._datum_pairs(p_one bytea, p_other bytea)
returns table (path text, one bytea, other bytea) language plpgsql stable
as $$
declare
  v_paths text[] := '{""}';
  v_ones bytea[] := array[p_one];
  v_others bytea[] := array[p_other];
begin
  for v_depth in 0..100 loop
    return query
      select x.path, x.one, x.other from unnest(v_paths, v_ones, v_others) x (path, one, other)
      left join durable._objects a on a.id = any (array[x.one]) left join durable._objects b on b.id = any (array[x.other])
      where a.sub is distinct from b.sub or a.sub not in ('list', 'map');
    -- two lists may have the same two parts at many places, and so on within them: one place is enough
    select array_agg(p.path || m.step), array_agg(m.one), array_agg(m.other) into v_paths, v_ones, v_others
    from (select distinct on (x.one, x.other) x.path, row(a.*)::durable._objects as a, row(b.*)::durable._objects as b
          from unnest(v_paths, v_ones, v_others) x (path, one, other)
          join durable._objects a on a.id = any (array[x.one]) and a.sub in ('list', 'map')
          join durable._objects b on b.id = any (array[x.other]) and b.sub = a.sub
          order by x.one, x.other, x.path) p
    cross join lateral (
      select step, y.id as one, z.id as other
      from durable._datum_members(p.a) y full join durable._datum_members(p.b) z using (step)) m
    where m.one is distinct from m.other;
    exit when v_paths is null;
  end loop;
end
$$;
comment on function durable._datum_pairs(bytea, bytea) is 'Parts of two values that differ and are not both lists or both maps, 100 levels deep.';

create or replace function durable._datum_differences(p_one bytea, p_other bytea)
returns table (path text, one bytea, other bytea) language sql stable
as $$ select p.path, p.one, p.other from durable._datum_pairs(p_one, p_other) p order by p.path limit 20 $$;
comment on function durable._datum_differences(bytea, bytea) is
  'Where two values differ, down to the datum: 20 places at most. Of equal pairs of lists or maps the first place.';

create or replace function durable._nearest_call(p_call durable._call)
returns durable._calls language sql stable
as $$
  with coarse as (
    select c.* from durable._calls c
    where split_part(c.function, '?', 1) = split_part(p_call.function, '?', 1) and c.value_key <> p_call.value_key
    order by durable._differing(c.inputs, p_call.value_ids) + (c.function <> p_call.function)::integer
             + (c.salt <> p_call.salt)::integer, c.value_key
    limit 20
  )
  select c.* from coarse c
  order by durable._differing(c.inputs, p_call.value_ids) + (c.function <> p_call.function)::integer
           + (c.salt <> p_call.salt)::integer,
           (select count(*) from unnest(c.inputs, p_call.value_ids) as i (one, other)
            cross join lateral durable._datum_differences(i.one, i.other) x where i.one is distinct from i.other), c.value_key
  limit 1
$$;
comment on function durable._nearest_call(durable._call) is
  'The recorded call of this function that has most in common with this one: the fewest inputs that differ, and the fewest places within them.';

create or replace function durable._datum_if_there(p_id bytea)
returns jsonb language plpgsql stable
as $$
begin
  return case when exists (select from durable._objects o where o.id = p_id) then durable.datum(p_id) end;
exception
  when sqlstate 'WF015' then
    return '"excised"';
  when sqlstate 'WF004' then
    return '"too large"';
end
$$;
comment on function durable._datum_if_there(bytea) is 'A value with its types; null where there is none, for a place that only one of two values has.';

create or replace function durable._nearest(p_call durable._call)
returns jsonb language plpgsql stable
as $$
declare
  v_near durable._calls := durable._nearest_call(p_call);
begin
  if v_near.value_key is null then
    return null;
  end if;
  return jsonb_build_object(
    'value_key', encode(v_near.value_key, 'hex'), 'function', v_near.function,
    'node', (select encode(a.node_id, 'hex') from durable._call_attempts a
             where a.value_key = v_near.value_key order by a.generation desc limit 1),
    'differences', (
      select coalesce(jsonb_agg(d.difference), '[]') from (
        select jsonb_build_object('what', 'function', 'recorded', v_near.function, 'asked', p_call.function) as difference
        where v_near.function <> p_call.function
        union all
        select jsonb_build_object('what', 'salt', 'recorded', v_near.salt, 'asked', p_call.salt) where v_near.salt <> p_call.salt
        union all
        select jsonb_build_object('what', 'share', 'recorded', coalesce(v_near.scope, 'shared'),
                                  'asked', case when p_call.share then 'shared' else p_call.scope end)
        where v_near.scope is distinct from case when not p_call.share then p_call.scope end
        union all
        select jsonb_build_object('what', 'input ' || i.place, 'path', x.path, 'recorded', durable._datum_if_there(x.one),
                                  'asked', durable._datum_if_there(x.other))
        from unnest(v_near.inputs, p_call.value_ids) with ordinality as i (one, other, place)
        cross join lateral durable._datum_differences(i.one, i.other) x where i.one is distinct from i.other) d));
end
$$;
comment on function durable._nearest(durable._call) is 'The nearest recorded call, and each place in which it differs.';

create or replace function durable._miss_reason(p_call durable._call)
returns text language plpgsql volatile
as $$
declare
  v_call durable._calls;
  v_last durable._call_attempts;
begin
  select * into v_call from durable._calls c where c.value_key = p_call.value_key;
  if not found then
    return 'never called with these values';
  end if;
  select * into v_last from durable._call_attempts a
  where a.value_key = p_call.value_key and (a.exec_id is not null or a.generation = v_call.generation)
  order by a.exec_id is null, a.generation desc limit 1;
  return case
    when v_last.exec_id is null then format('the last attempt was given up: %s',
                                            durable._json(durable._aborted_error(v_last)) #>> '{data,code}')
    when v_last.generation < v_call.results_from then 'its results were invalidated'
    when p_call.cache <> 'shared' then 'results of other scopes are not asked for'
    when v_last.phase = 'integrate_error' then 'its last result is a failure, which is not shared'
    when durable.closure_status(v_last.outcome_dag) <> 'ok'
      then 'the result is gone: ' || durable.closure_status(v_last.outcome_dag)
    when durable._readable_in(p_call.scope, v_last.outcome_dag) <> 'ok'
      then 'its result is that of a call which has none in this scope'
    else 'its result is too old' end;
end
$$;
comment on function durable._miss_reason(durable._call) is 'Why a call whose value key is known finds no result.';

create or replace function durable.explain_miss(
  scope text, function text, inputs bytea[], salt text default '', cache text default 'shared', share boolean default true,
  max_age interval default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_call durable._call;
  v_at text;
  v_reason text;
begin
  v_call.scope := $1;
  v_call.function := $2;
  v_call.inputs := $3;
  v_call.salt := $4;
  v_call.cache := $5;
  v_call.share := $6;
  v_call.cache_errors := false;
  v_call.max_age_ms := durable._ms($7);
  v_call.node := (durable._call_object('call', $2, $3))[2].id;
  begin
    v_call := durable._planned(v_call);
  exception when sqlstate 'WF014' then
    -- its input runs first, and leads to values that nobody knows
    get stacked diagnostics v_reason = message_text;
    return jsonb_build_object('at', 'started', 'node', encode(v_call.node, 'hex'), 'value_key', null, 'reason', v_reason,
                              'nearest', null);
  end;
  v_at := durable._plan(v_call);
  return jsonb_build_object(
    'at', v_at, 'node', encode(v_call.node, 'hex'), 'value_key', encode(v_call.value_key, 'hex'),
    'reason', case when v_at = 'started' then durable._miss_reason(v_call) end,
    'nearest', case when v_at = 'started' then durable._nearest(v_call) end);
end
$$;
comment on function durable.explain_miss(text, text, bytea[], text, text, boolean, interval) is
  'Why a call would run: select durable.explain_miss(''exp-7'', ''dml+exec://local/sort'', array[durable.literal(''[2, 1]'')]). Answers {at, node, value_key, reason, nearest}; nearest is the recorded call of that function that has most in common, and its differences, down to the datum: {what, path, recorded, asked}. Where an input has no value in the scope yet, the reason is that, and value_key is null. Starts nothing. WF004, WF013.';
