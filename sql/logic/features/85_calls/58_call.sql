-- Calls from workflows, clients and psql: values in, what was found out, and the value when there is one. A workflow makes such a
-- call as a step in SQL, so what it found is recorded with the call, and a replay finds the same whatever the cache holds then.

create or replace function durable._literal_objects(p_value jsonb)
returns durable._object[] language plpgsql immutable
as $$
declare
  v_objects durable._object[] := array(select row(d.*)::durable._object from durable._datums(p_value, false, '$') d);
begin
  return v_objects || row(
    durable._object_id('node', 'literal', null, array[v_objects[cardinality(v_objects)].id], '{}'), 'node', 'literal', null,
    array[v_objects[cardinality(v_objects)].id], '{}'::text[])::durable._object;
end
$$;
comment on function durable._literal_objects(jsonb) is 'The objects of a value and of its literal node, which is the last; none is put yet.';

create or replace function durable._container_inputs(p_kind text, p_members jsonb)
returns setof jsonb language sql immutable
as $$
  select x.input from (
    select m.place, 0 as side, m.value as input from jsonb_array_elements(p_members) with ordinality m (value, place)
    where p_kind <> 'map'
    union all
    select m.place, s.side, case s.side when 0 then jsonb_build_object('datum', m.value -> 0) else m.value -> 1 end
    from jsonb_array_elements(p_members) with ordinality m (value, place) cross join generate_series(0, 1) as s (side)
    where p_kind = 'map') x
  order by x.place, x.side
$$;
comment on function durable._container_inputs(text, jsonb) is 'The members of a list or set; keys, which are values, and members of a map in turn.';

create or replace function durable._input_node(p_input jsonb, out node bytea, out objects durable._object[])
language plpgsql immutable
as $$
declare
  v_kind text := (select k from unnest('{list,set,map}'::text[]) k where jsonb_typeof(p_input -> k) = 'array');
  v_nodes bytea[] := '{}';
  v_member record;
begin
  objects := '{}';
  if p_input ? 'node' then
    node := durable._unhex(p_input ->> 'node');
    return;
  elsif p_input ? 'datum' then
    objects := durable._literal_objects(p_input -> 'datum');
  elsif v_kind is not null then
    for v_member in
      select n.node, n.objects from durable._container_inputs(v_kind, p_input -> v_kind) as m (input)
      cross join lateral durable._input_node(m.input) n
    loop
      v_nodes := v_nodes || v_member.node;
      objects := objects || v_member.objects;
    end loop;
    v_nodes := case v_kind when 'set' then array(select distinct n from unnest(v_nodes) n order by n)
                           when 'map' then durable._sorted_pairs(v_nodes) else v_nodes end;
    objects := objects || durable._call_object('builtin', 'dml://' || v_kind || '/construct', v_nodes);
  else
    perform durable._fail_invalid(
      format('%s is no input of a call.', left(p_input::text, 200)),
      'An input is {"datum": value}, {"node": id}, {"list": [inputs]}, {"set": [inputs]} or {"map": [[value, input]]}.');
  end if;
  node := objects[cardinality(objects)].id;
end
$$;
comment on function durable._input_node(jsonb) is
  'The node of an input, with the objects that are to be put for it: a value is a literal, another call its node, and a list, set or map that holds calls the builtin that constructs it of theirs. So what a result was made from can be followed. Members of a set and entries of a map are in the order of their ids. WF004.';

create or replace function durable._input_nodes(p_inputs jsonb)
returns bytea[] language plpgsql volatile
as $$
declare
  v_input record;
  v_nodes bytea[] := '{}';
  v_objects durable._object[] := '{}';
begin
  if jsonb_typeof(p_inputs) is distinct from 'array' then
    perform durable._fail_invalid('Inputs are a JSON array.');
  end if;
  for v_input in
    select n.node, n.objects from jsonb_array_elements(p_inputs) with ordinality i (value, place)
    cross join lateral durable._input_node(i.value) n order by i.place
  loop
    v_nodes := v_nodes || v_input.node;
    v_objects := v_objects || v_input.objects;
  end loop;
  if v_objects <> '{}' then
    perform durable._put_objects(v_objects);
  end if;
  return v_nodes;
end
$$;
comment on function durable._input_nodes(jsonb) is
  'The nodes of the inputs of a call. All that is new of them is put at once, in the order of the ids, before anything is locked.';

create or replace function durable._scope_of(p_step text)
returns text language sql stable
as $$
  with recursive above (id, parent, depth) as (
    select p.id, p.execution, 0 from durable._promises p where p.id = left(p_step, -position('.' in reverse(p_step)))
    union all
    select h.id, p.execution, a.depth + 1 from above a
    join durable._executions h on h.execution = any (array[a.parent])
    join durable._promises p on p.id = any (array[h.id])
  )
  select a.id from above a order by a.depth desc limit 1
$$;
comment on function durable._scope_of(text) is 'The scope of a call that names none: that of the run at the root of the one whose step it is.';

create or replace function durable.call_scope_v1(p_name text, p_base text)
returns text language plpgsql volatile
as $$
begin
  if p_name is null then
    perform durable._fail_invalid('A call outside a workflow names its scope.',
                                  'select durable.call(''dml+exec://...'', ''[1]'', scope => ''exp-7'')');
  elsif not exists (select from durable._refs r where r.name = p_name and r.kind = 'index') then
    perform durable.scope_open(p_name, base => p_base);
  end if;
  return null;
exception when unique_violation or sqlstate 'WF003' then
  return null;  -- another session has just made it
end
$$;
comment on function durable.call_scope_v1(text, text) is 'For clients: makes an index, if there is none of this name. WF001, WF003, WF004.';

create or replace function durable._asked_call(p_function text, p_inputs bytea[], p_options jsonb, p_step text, p_switch text)
returns durable._call language plpgsql volatile
as $$
declare
  v_call durable._call;
begin
  v_call.scope := p_options ->> 'scope';
  v_call.function := p_function;
  v_call.inputs := p_inputs;
  v_call.step_id := p_step;
  v_call.timeout_ms := (p_options ->> 'timeout_ms')::bigint;
  v_call.max_age_ms := (p_options ->> 'max_age_ms')::bigint;
  v_call.salt := coalesce(p_options ->> 'salt', '');
  v_call.share := coalesce((p_options ->> 'share')::boolean, true) and p_switch is distinct from 'off';
  v_call.cache_errors := coalesce((p_options ->> 'cache_errors')::boolean, false);
  v_call.request := p_options -> 'request';
  v_call.cache := case when p_switch in ('off', 'refresh') then 'force' else coalesce(p_options ->> 'cache', 'shared') end;
  if coalesce((p_options ->> 'retry_errors')::boolean, false) then
    v_call.node := (durable._call_object('call', p_function, p_inputs))[2].id;
    if exists (select from durable._pins p join durable._objects e on e.id = any (array[p.exec_id])
               where p.scope = v_call.scope and p.node_id = v_call.node and e.sub = 'error') then
      v_call.cache := 'force';
    end if;
  end if;
  return v_call;
end
$$;
comment on function durable._asked_call(text, bytea[], jsonb, text, text) is
  'A call by the options of a client: cache, scope, share, cache_errors, retry_errors, timeout_ms, max_age_ms, salt, request. p_switch: off reads no results and shares none, refresh reads none.';

create or replace function durable._given_up(p_error jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_build_object(
    'code', coalesce(p_error #>> '{data,code}', case p_error ->> 'type' when 'Timeout' then 'deadline'
                                                                        when 'Cancelled' then 'cancelled'
                                                                        else 'settled_by_hand' end),
    'message', p_error -> 'message', 'cause', p_error #> '{data,cause}')
$$;
comment on function durable._given_up(jsonb) is 'Why an attempt was given up, as {code, message, cause}; the cause is its last failure.';

create or replace function durable._value_answer(p_answer jsonb, p_scope text)
returns jsonb language plpgsql volatile
as $$
declare
  v_dag bytea := durable._unhex(p_answer ->> 'dag');
  v_datum bytea;
  v_value jsonb;
begin
  if p_answer ->> 'at' = 'aborted' then
    return p_answer || jsonb_build_object('status', 'aborted', 'error', durable._given_up(p_answer -> 'error'));
  elsif p_answer ->> 'status' is null then
    return p_answer;
  end if;
  v_datum := durable._dag_datum(p_scope, v_dag);
  if p_answer ->> 'status' = 'ok' and v_datum is not null and durable._is_long(v_datum) then
    return p_answer;
  end if;
  v_value := case when v_datum is null then durable.dag_value(v_dag, p_scope) else durable._datum_json(v_datum) end;
  if p_answer ->> 'status' = 'error' then
    return p_answer || jsonb_build_object('failure', v_value);
  end if;
  return case when octet_length(v_value::text) <= 65536 then p_answer || jsonb_build_object('value', v_value) else p_answer end;
end
$$;
comment on function durable._value_answer(jsonb, text) is 'An answer with its value in a scope, if that has 64 KiB at most, or with what describes its failure.';

create or replace function durable.call_v1(p_function text, p_inputs jsonb, p_options jsonb, p_step text, p_switch text)
returns jsonb language plpgsql volatile
as $$
declare
  v_scope text := coalesce(p_options ->> 'scope', durable._scope_of(p_step));
  v_timeout text := current_setting('lock_timeout');
  v_answer jsonb;
begin
  perform durable._check_may_lock();
  -- one that waits here for a user's transaction has locked nothing of the engine yet, and is tried again
  perform set_config('lock_timeout', '1s', true);
  if v_scope is distinct from p_options ->> 'scope' then
    perform durable._open_run_scope(v_scope);
  else
    perform durable.call_scope_v1(v_scope, null);
  end if;
  v_answer := durable._begin_call(durable._asked_call(
    p_function, durable._input_nodes(p_inputs), p_options || jsonb_build_object('scope', v_scope), p_step, p_switch));
  perform set_config('lock_timeout', v_timeout, true);
  if v_answer ->> 'at' = 'started' then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return durable._value_answer(v_answer, v_scope) || jsonb_strip_nulls(jsonb_build_object(
    'scope', v_scope, 'function', p_function, 'name', p_options -> 'name', 'step', p_step));
end
$$;
comment on function durable.call_v1(text, jsonb, jsonb, text, text) is
  'For clients and as a step of a workflow: a call whose inputs are values, as durable._input_node reads them. p_step: whose answer it is; null: nobody''s. Answers as durable.call_begin does, with value (tagged) or failure, and status aborted for what was given up. Errors as there.';

create or replace function durable.call_result_v1(p_key text, p_node text, p_scope text)
returns jsonb language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
begin
  select * into v_attempt from durable._call_attempts a where a.execution_key = durable._unhex(p_key);
  if v_attempt.execution_key is null then
    perform durable._fail_not_found('attempt', p_key, 'Call again: the result may be pinned.');
  elsif durable._is_left_out(v_attempt, p_scope, durable._unhex(p_node)) then
    return jsonb_build_object('status', 'aborted', 'error', durable._given_up(durable._left_out(v_attempt, p_scope)::jsonb));
  elsif v_attempt.exec_id is not null then
    return durable._value_answer(durable._call_answer('ended', durable._unhex(p_node),
                                                      durable._exec_for(v_attempt, durable._unhex(p_node)), v_attempt) - 'at',
                                 p_scope);
  elsif v_attempt.ended_at is null and durable._is_live(v_attempt.execution_key, durable._now_ms()) then
    return '{"status": null}';
  end if;
  return jsonb_build_object('status', 'aborted', 'error', durable._given_up(durable._aborted_error(v_attempt)::jsonb));
end
$$;
comment on function durable.call_result_v1(text, text, text) is
  'For clients and as a step of a workflow: how an attempt ended for a node of a scope that waits for it; status null while it goes on, aborted with the code result_unreadable if its result is one that this scope cannot read. WF001, WF004, WF014, WF015.';

create or replace function durable.call_value_v1(p_dag text, p_scope text)
returns jsonb language plpgsql volatile
as $$
begin
  return durable.dag_value(durable._unhex(p_dag), p_scope);
end
$$;
comment on function durable.call_value_v1(text, text) is
  'For clients and as a step of a workflow: the value of a DAG in a scope, tagged. WF001, WF004, WF014, WF015.';

create or replace function durable.call_leave_v1(p_scope text, p_node text, p_step text)
returns boolean language plpgsql volatile
as $$
begin
  return durable.call_cancel(p_scope, durable._unhex(p_node), p_step) = 'cancelled';
end
$$;
comment on function durable.call_leave_v1(text, text, text) is
  'As a step of a workflow: the earlier step p_step waits for its call no longer; true if the attempt ended by that. WF004.';

create or replace function durable.call_inputs_v1(p_execution_key bytea)
returns jsonb language plpgsql volatile
as $$
begin
  return (
    select coalesce(jsonb_agg(durable.datum(i.id) order by i.place), '[]')
    from durable._call_attempts a
    join durable._calls c on c.value_key = any (array[a.value_key])
    cross join lateral unnest(c.inputs) with ordinality i (id, place)
    where a.execution_key = p_execution_key);
end
$$;
comment on function durable.call_inputs_v1(bytea) is 'For adapter workers: the values of the inputs of an attempt, tagged, in their order. WF015.';

create or replace function durable.call_commit_v1(p_scope text, p_root text, p_name text)
returns text language plpgsql volatile
as $$
declare
  v_roots bytea[] := durable._input_nodes(jsonb_build_array(p_root::jsonb));
begin
  perform durable._evaluate_builtins(p_scope, v_roots);
  return durable._hex(durable.scope_commit(p_scope, v_roots[1], p_name));
end
$$;
comment on function durable.call_commit_v1(text, text, text) is
  'For clients: commits a scope with a DAG of this root, which is an input as durable._input_node reads it. Answers the commit. WF001, WF003, WF004.';

create or replace function durable.call(
  function text, args jsonb default '[]', scope text default null, cache text default 'shared', request jsonb default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_answer jsonb;
begin
  if jsonb_typeof($2) is distinct from 'array' then
    perform durable._fail_invalid('Arguments of a call are a JSON array.');
  end if;
  perform durable.call_scope_v1($3, null);
  v_answer := durable.call_begin($3, $1, array(
    select durable.literal(a.value) from jsonb_array_elements($2) with ordinality a (value, place) order by a.place),
    $4, case when $4 = 'force' then gen_random_uuid()::text end, request => $5);
  if v_answer ->> 'at' = 'started' then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  v_answer := durable._value_answer(v_answer, $3);
  return case when v_answer ? 'value' then v_answer || jsonb_build_object('value', durable._plain_json(v_answer -> 'value'))
              when v_answer ? 'failure'
                then (v_answer - 'failure') || jsonb_build_object('error', durable._plain_json(v_answer -> 'failure'))
              else v_answer end;
end
$$;
comment on function durable.call(text, jsonb, text, text, jsonb) is
  'Calls a function with plain JSON values in a scope, which is made if there is none: select durable.call(''dml+exec://local/sort'', ''[[3, 1, 2]]'', scope => ''exp-7''). Answers at once with what is known: a status and a value, or a promise to wait for: select durable.wait(id => ...). The same call again answers the result. cache: shared, scope or force. WF001, WF003, WF004, WF013.';
