-- Calls of protocol clients that workflows of the engine serve. Whether a call is one is decided when its task is born, by its
-- group, name and version: then it is a run, with a head and a journal, that the engine's own workers claim and that is never
-- offered. All other tasks of the group stay with the clients that serve it. No promise is ever run by both, because each
-- numbers the children of a call in its own way.

create or replace function durable._call_in(p_data text)
returns jsonb language sql immutable
as $$
  select case when jsonb_typeof(c.call) = 'object' and jsonb_typeof(c.call -> 'func') = 'string'
                   and coalesce(jsonb_typeof(c.call -> 'args'), 'array') = 'array'
                   and coalesce(jsonb_typeof(c.call -> 'kwargs'), 'object') = 'object' then c.call end
  from (select durable._decoded(p_data) as call) c
$$;
comment on function durable._call_in(text) is
  'The call in the param of an SDK: {func, args, kwargs, version}. Null for anything else.';

create or replace function durable._input_of_call(p_data text)
returns text language sql immutable
as $$
  select case
    when c.call is null then durable._from_envelope(p_data)
    when coalesce(c.call -> 'kwargs', '{}') = '{}' then coalesce(c.call -> 'args', '[]')::text
    when coalesce(c.call -> 'args', '[]') = '[]' then (c.call -> 'kwargs')::text
    else (c.call -> 'kwargs' || jsonb_build_object('*', c.call -> 'args'))::text end
  from (select durable._call_in(p_data) as call) c
$$;
comment on function durable._input_of_call(text) is
  'Arguments of a call as a run of the engine has them: an array by position, an object by name; those by position beside those by name are under "*".';

create or replace function durable._input(p_headers jsonb, p_data text)
returns text language sql immutable
as $$ select case when durable._is_plain(p_headers) then p_data else durable._input_of_call(p_data) end $$;
comment on function durable._input(jsonb, text) is
  'Arguments of a run as JSON text, whether the engine or an SDK wrote its param.';

create or replace function durable._published_for(p_queue text, p_headers jsonb, p_data text)
returns durable._published language plpgsql stable
as $$
declare
  v_call jsonb;
  v_version numeric := 0;
  v_found durable._published;
begin
  if durable._is_plain(p_headers) or not exists (select from durable._published f where f.queue = p_queue) then
    return null;
  end if;
  v_call := durable._call_in(p_data);
  if jsonb_typeof(v_call -> 'version') = 'number' then
    v_version := (v_call ->> 'version')::numeric;
  end if;
  select * into v_found from durable._published f
  where f.queue = p_queue and f.name = v_call ->> 'func' and (f.version = v_version or v_version = 0)
  order by f.version desc limit 1;
  return v_found;
end
$$;
comment on function durable._published_for(text, jsonb, text) is
  'The published workflow that serves a call in that queue; null if protocol clients do. Version 0, or none, means the newest.';

create or replace function durable._make_runs(p_ids text[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_call record;
  v_head bigint;
begin
  for v_call in
    select p.id, p.tenant, p.created_at, f.workflow, f.workflow_version, w.digest,
           coalesce(w.rules, 1::smallint) as rules
    from unnest(p_ids) as i (id)
    join durable._tasks t on t.id = any (array[i.id]) and t.state is not distinct from 'pending' and t.version = 0
    join durable._promises p on p.id = any (array[t.id]) and p.head is null and not p.timer and p.timeout_at > p_now
    cross join lateral durable._published_for(t.queue, p.param_headers, p.param_data) f
    left join durable._workflows w on w.name = any (array[f.workflow]) and w.version = any (array[f.workflow_version])
    where f.workflow is not null and t.workflow is null
      and not exists (select from durable._promises c where c.id >= p.id || '.' and c.id < p.id || '/')
    order by p.id
  loop
    v_head := durable._next_execution();
    perform durable._begin_one(
      v_head, v_call.id, v_call.tenant,
      row(v_call.workflow, v_call.workflow_version, v_call.digest, v_call.rules)::durable._run_code, null, v_call.created_at);
    update durable._promises p set head = v_head where p.id = v_call.id;
    update durable._tasks t
    set execution = v_head, workflow = v_call.workflow, workflow_version = v_call.workflow_version,
        rules = v_call.rules,
        queue = case when v_call.workflow like 'sql://%' then v_call.workflow else t.queue end
    where t.id = v_call.id;
  end loop;
end
$$;
comment on function durable._make_runs(text[], bigint) is
  'Makes runs of those of these promises that call a published workflow, and that no client has acquired or given children. They begin at the birth of their promises. The caller holds promises and tasks, or has just created them.';
