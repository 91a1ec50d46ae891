-- The signals that workflows receive, as workers register them: names, and the JSON schema of each payload. A sender is refused
-- for a name that the workflow of the run does not receive, for another JSON type and for a missing key. The rest of a type is
-- checked where it is known, in Python.

create or replace function durable._schema_branches(p_schema jsonb)
returns table (branch jsonb) language sql immutable parallel safe
as $$
  with recursive part as (
    select p_schema as branch, 0 as depth
    union all
    select n.branch, b.depth + 1
    from part b
    cross join lateral (
      select p_schema -> '$defs' -> replace(b.branch ->> '$ref', '#/$defs/', '') where b.branch ? '$ref'
      union all
      select o.branch from jsonb_array_elements(coalesce(b.branch -> 'anyOf', b.branch -> 'oneOf')) as o (branch)) n (branch)
    where b.depth < 8)
  select case when s.branch ?| '{$ref,anyOf,oneOf}' then '{}' else s.branch end
  from part s
  where s.depth = 8 or not s.branch ?| '{$ref,anyOf,oneOf}'
$$;
comment on function durable._schema_branches(jsonb) is
  'The alternatives of a JSON schema: its references and unions resolved, 8 levels deep; what lies deeper allows everything.';

create or replace function durable._schema_types(p_branch jsonb)
returns text[] language plpgsql immutable parallel safe
as $$
begin
  return array(
    select distinct replace(t.type, 'integer', 'number')
    from (
      select x as type from jsonb_array_elements_text(
        case jsonb_typeof(p_branch -> 'type') when 'array' then p_branch -> 'type'
          when 'string' then jsonb_build_array(p_branch -> 'type') end) x
      union all
      select jsonb_typeof(e) from jsonb_array_elements(p_branch -> 'enum') e where not p_branch ? 'type') t
    order by 1);
end
$$;
comment on function durable._schema_types(jsonb) is 'The JSON types that one alternative of a schema allows; empty for any.';

create or replace function durable._schema_fault(p_schema jsonb, p_value json)
returns text language plpgsql immutable parallel safe
as $$
declare
  v_type text := json_typeof(p_value);
  v_fits boolean;
  v_missing text;
  v_types text;
begin
  select bool_or(f.is_type and m.missing is null), min(m.missing) filter (where f.is_type),
         string_agg(distinct array_to_string(t.types, ' or '), ' or ')
  into v_fits, v_missing, v_types
  from durable._schema_branches(p_schema) b
  cross join lateral (select durable._schema_types(b.branch) as types offset 0) t
  cross join lateral (select t.types = '{}' or v_type = any (t.types) as is_type) f
  cross join lateral (
    select string_agg(quote_literal(k), ', ') as missing
    from jsonb_array_elements_text(case when v_type = 'object' then b.branch -> 'required' end) k
    where p_value -> k is null) m;
  return case
    when v_fits is distinct from false then null
    when v_missing is not null then format('lacks %s', v_missing)
    else format('is of type %s, not %s', v_type, v_types) end;
end
$$;
comment on function durable._schema_fault(jsonb, json) is
  'Why a value does not fit a JSON schema, as the end of a sentence: by the type of the value and the keys of an object, and no deeper. Null if it fits.';

create or replace function durable._signal_fault(p_signals jsonb, p_name text, p_payload text)
returns text language plpgsql immutable parallel safe
as $$
declare
  v_schema jsonb := p_signals -> 'types' -> p_name;
begin
  if v_schema is not null then
    return case when v_schema <> '{}' then durable._schema_fault(v_schema, coalesce(p_payload, 'null')::json) end;
  end if;
  return case when not (p_signals ->> 'any')::boolean then 'unknown' end;
end
$$;
comment on function durable._signal_fault(jsonb, text, text) is
  'Why registered signals, as worker_hello_v1 takes them for one workflow, do not allow a signal: unknown, or as _schema_fault. Null if they do; null signals allow all.';

create or replace function durable._signal_refusal(p_execution bigint, p_name text, p_payload text)
returns text language plpgsql stable
as $$
declare
  v_workflow text;
  v_version text;
  v_fault text;
begin
  select h.workflow, h.workflow_version, durable._signal_fault(w.signals, p_name, p_payload)
  into v_workflow, v_version, v_fault
  from durable._executions h
  join durable._workflows w on w.name = any (array[h.workflow]) and w.version = any (array[h.workflow_version])
  where h.execution = p_execution;
  if v_fault is null
     -- workers with other code of this version may run at the same time
     or exists (
       select from durable._workers w
       cross join lateral unnest(w.workflows, w.versions) with ordinality as u (workflow, version, n)
       where u.workflow = v_workflow and u.version = v_version
         and durable._signal_fault(w.signals -> (u.n::integer - 1), p_name, p_payload) is null)
     -- its code receives a name that it did not register
     or (v_fault = 'unknown'
         and exists (select from durable._inboxes i where i.execution = p_execution and i.name = p_name)) then
    return null;
  end if;
  return v_fault;
end
$$;
comment on function durable._signal_refusal(bigint, text, text) is
  'Why the workflow of a run does not receive a signal: unknown, or the fault of its payload; null if it may. Only what every worker of the workflow refuses is refused, and no name that the run has received or waits for.';

create or replace function durable._fail_signal(p_execution bigint, p_name text, p_fault text)
returns void language plpgsql volatile
as $$
declare
  v_head durable._executions;
  v_names text[];
  v_nearest text;
begin
  select * into v_head from durable._executions h where h.execution = p_execution;
  if p_fault <> 'unknown' then
    perform durable._fail_invalid(
      format('The payload of signal %L to run %L %s.', p_name, v_head.id, p_fault),
      format('select signals -> %L from durable.workflows where name = %L', p_name, v_head.workflow));
  end if;
  select array_agg(k.name order by durable._likeness(p_name, k.name) desc, k.name) into v_names
  from durable._workflows w
  cross join lateral jsonb_object_keys(w.signals -> 'types') as k (name)
  where w.name = v_head.workflow and w.version = v_head.workflow_version;
  v_nearest := v_names[1];
  perform durable._fail_not_found(
    format('signal of workflow %s named', v_head.workflow), p_name,
    case when durable._likeness(p_name, v_nearest) > 0 then format('Did you mean %L? ', v_nearest) else '' end
    || case when v_names is null then 'It receives none. ' else 'It receives '
            || (select string_agg(quote_literal(u.name), ', ' order by u.n)
                from unnest(v_names) with ordinality as u (name, n)) || '. ' end
    || 'Its code declares more: @app.workflow(signals=[...]), or any_signal=True.');
end
$$;
comment on function durable._fail_signal(bigint, text, text) is
  'Raises the error of a signal that _signal_refusal refuses: WF001 for a name, with the nearest one, WF004 for a payload.';
