-- The signals that workflows receive, as workers register them: names, and the JSON schema of each payload. A sender is refused
-- for a name that the workflow of the run does not receive, for another JSON type and for a missing key. The rest of a type is
-- checked where it is known, in Python.

create or replace function durable._signal_fault(p_signals jsonb, p_name text, p_payload text)
returns text language plpgsql immutable
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
