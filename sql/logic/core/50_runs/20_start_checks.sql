-- Checks of a start: its arguments, the name of the workflow, and runs that exist already. Each raises an error.

create or replace function durable._check_elements(p_args jsonb[], p_ids text[], p_keys text[], p_many boolean)
returns void language plpgsql stable
as $$
declare
  v_fault text;
begin
  select case when p_many then format('Element %s: ', u.n) else '' end || f.fault into v_fault
  from unnest(p_args, p_ids, p_keys) with ordinality as u (args, id, key, n)
  cross join lateral (select case
    when u.args is null or jsonb_typeof(u.args) not in ('array', 'object')
      then 'Arguments are a JSON array (by position) or a JSON object (by name), like ''["world"]''.'
    when octet_length(u.id) not between 1 and 512
      then format('A run id has 1 to 512 bytes, this one has %s.', octet_length(u.id))
    when durable._is_of_calls(u.id) then format('Id %L is reserved to the calls of the engine.', u.id)
    when octet_length(u.key) not between 1 and 512
      then format('An idempotency key has 1 to 512 bytes, this one has %s.', octet_length(u.key))
    when u.id ~ E'\\.\\d{1,9}$'
         and (select count(*) from durable._promises p where p.id = any (durable._ancestors(u.id)) and p.head is not null) > 0
      then format('Id %L is reserved to the run it would be a descendant of.', u.id)
    when u.id is not null and (select count(*) from durable._promises r where r.id = u.id) = 0
         and (select count(*) from durable._promises p
              where p.id >= u.id || '.' and p.id < u.id || '/' and substr(p.id, length(u.id) + 1) ~ E'^(\\.\\d{1,9})+$') > 0
      then format('Promises with ids %L exist, which would be descendants of this run.', u.id || '.<n>') end as fault) f
  where f.fault is not null
  order by u.n limit 1;
  if found then
    perform durable._fail_invalid(v_fault);
  end if;
end
$$;
comment on function durable._check_elements(jsonb[], text[], text[], boolean) is
  'Checks the arguments that differ between the runs of one start. p_many: the message names the run by its position, from 1. WF004.';

create or replace function durable._check_start(p_workflow text, p_args jsonb, p_id text, p_queue text, p_version text)
returns void language plpgsql stable
as $$
begin
  if p_workflow is null or octet_length(p_workflow) not between 1 and 256 then
    perform durable._fail_invalid('A workflow name has 1 to 256 bytes.');
  elsif p_queue is null or (p_queue not like 'sql://%' and not durable._is_queue(p_queue)) then
    perform durable._fail_invalid(format('%L is not a queue name.', p_queue),
                                  'It has 1 to 256 bytes, without blanks, / and @.');
  elsif p_version is null or p_version = '' then
    perform durable._fail_invalid('A workflow version is not empty.');
  end if;
  if p_args is not null then
    perform durable._check_elements(array[p_args], array[p_id], null, false);
  end if;
end
$$;
comment on function durable._check_start(text, jsonb, text, text, text) is
  'Checks the arguments of a start; with p_args null those of its runs are checked elsewhere. WF004.';

create or replace function durable._are_tags(p_tags jsonb)
returns boolean language sql immutable parallel safe
as $$
  select jsonb_typeof(p_tags) = 'object' and not jsonb_path_exists(p_tags, 'strict $.* ? (@.type() <> "string")')
$$;
comment on function durable._are_tags(jsonb) is 'A JSON object of strings; null for null.';

create or replace function durable._has_protocol_tags(p_tags jsonb)
returns boolean language sql immutable parallel safe
as $$ select jsonb_path_exists(p_tags, 'strict $.keyvalue() ? (@.key starts with "resonate:")') $$;
comment on function durable._has_protocol_tags(jsonb) is 'True if one of these tags belongs to the protocol.';

create or replace function durable._check_options(
  p_key text, p_queue text, p_delay_ms bigint, p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text)
returns void language plpgsql stable
as $$
begin
  if octet_length(p_key) not between 1 and 512 then
    perform durable._fail_invalid(format('An idempotency key has 1 to 512 bytes, this one has %s.', octet_length(p_key)));
  elsif octet_length(p_queue) > 256 then
    perform durable._fail_invalid(format('A queue name has at most 256 bytes, this one has %s.', octet_length(p_queue)));
  elsif p_timeout_ms <= 0 or p_delay_ms < 0 or p_delay_ms >= p_timeout_ms then
    perform durable._fail_invalid('A timeout is more than 0 and a delay is between 0 and the timeout.');
  elsif p_priority is null or p_priority not between -32768 and 32767 then
    perform durable._fail_invalid(format('A priority is between -32768 and 32767, not %s.', coalesce(p_priority::text, 'null')));
  elsif p_tenant is null or octet_length(p_tenant) > 256 then
    perform durable._fail_invalid('A tenant is a text of at most 256 bytes; the default is the empty one.');
  end if;
  perform durable._check_tags_size('a run', p_tags);
  if durable._are_tags(p_tags) is not true then
    perform durable._fail_invalid('Tags are a JSON object of strings.');
  elsif durable._has_protocol_tags(p_tags) then
    perform durable._fail_invalid('Tags that begin with resonate: belong to the protocol; a start has arguments for them.',
                                  'Use queue, delay, timeout and priority, or other names.');
  end if;
end
$$;
comment on function durable._check_options(text, text, bigint, bigint, integer, jsonb, text) is
  'Checks the options of a start, other than workflow and arguments. WF004.';

create or replace function durable._likeness(p_name text, p_other text)
returns bigint language sql immutable parallel safe
as $$
  select count(*) from generate_series(1, least(length(p_name), 256) - 1) i
  where strpos(left(p_other, 256), substr(left(p_name, 256), i, 2)) > 0
$$;
comment on function durable._likeness(text, text) is
  'How many pairs of neighbouring characters of a name another name has, to find the one that was meant; of a long name only those at its beginning.';

create or replace function durable._check_workflow(p_workflow text)
returns void language plpgsql stable
as $$
declare
  v_known text;
begin
  if p_workflow like 'sql://%' then
    if not exists (select from durable._services s where s.name = p_workflow) then
      perform durable._fail_not_found('service', p_workflow, format('Allow it: select durable.serve(%L), with its types.',
                                                                    substr(p_workflow, 7) || '(...)'));
    end if;
    return;
  end if;
  perform from durable._workflows w where w.name = p_workflow limit 1;
  if found then
    return;
  elsif not exists (select from durable._workflows w) or durable._setting('unknown_workflow') = 'queue'
        -- a worker can run it and could not announce it: another session has inserted the same name
        or exists (select from durable._workers w where p_workflow = any (w.workflows)) then
    return;
  end if;
  select string_agg(quote_literal(n.name), ', ' order by n.alike desc, n.name) into v_known from (
    select w.name, durable._likeness(p_workflow, w.name) as alike
    from durable._workflows w group by w.name order by alike desc, w.name limit 5) n;
  perform durable._fail_not_found('workflow', p_workflow,
    format('Workers have registered %s. If its worker comes later: set_setting(''unknown_workflow'', ''queue'').', v_known));
end
$$;
comment on function durable._check_workflow(text) is
  'Raises WF001 for a name that no worker ever registered, while others are known, and names the most similar ones. Before the first worker any name is allowed. A service must be served.';

create or replace function durable._own_queue(p_workflow text, p_version text)
returns text language sql stable
as $$
  select coalesce((select w.queue from durable._workflows w where w.name = p_workflow and w.version = p_version), 'default')
$$;
comment on function durable._own_queue(text, text) is
  'The queue of a start that names none: the one that the workflow declares, as its last worker registered it, or default.';

create or replace function durable._service_named(p_workflow text)
returns text language plpgsql stable
as $$
declare
  v_name text := durable._canonical_address(p_workflow);
begin
  if v_name is null then
    perform durable._fail_invalid(format('%L is no service.', p_workflow), 'Write sql://schema.function.');
  end if;
  return v_name;
end
$$;
comment on function durable._service_named(text) is 'Canonical address of a service. WF004.';

create or replace function durable._check_same(
  p_workflow text, p_texts text[], p_ids text[], p_keys text[], p_runs text[], p_tenant text, p_many boolean)
returns void language plpgsql stable
as $$
declare
  v_other record;
begin
  select u.n, u.run, w.what into v_other
  from unnest(p_runs, p_texts, p_ids, p_keys) with ordinality as u (run, args, id, key, n)
  left join durable._promises p on p.id = any (array[u.run])
  left join durable._executions h on h.execution = any (array[p.head])
  cross join lateral (select case
    when u.id <> u.run then 'id for this key'
    when h.execution is null then 'nature'
    when h.tenant <> p_tenant then 'tenant'
    when h.key is distinct from coalesce(u.key, h.key) then 'idempotency key'
    when h.workflow <> p_workflow then 'workflow, ' || h.workflow
    when p.param_data is distinct from u.args
         and durable._input(p.param_headers, p.param_data)::jsonb is distinct from u.args::jsonb then 'input' end as what) w
  where w.what is not null
  order by u.n limit 1;
  if not found then
    return;
  elsif v_other.what = 'nature' then
    perform durable._fail_conflict(
      case when p_many then format('Element %s: ', v_other.n) else '' end
        || format('Id %L belongs to a promise that is no run.', v_other.run), 'Use another id.');
  end if;
  perform durable._fail_run_conflict(
    v_other.run, v_other.what || case when p_many then format(' than element %s has', v_other.n) else '' end);
end
$$;
comment on function durable._check_same(text, text[], text[], text[], text[], text, boolean) is
  'A second start with the same id or key is the same run, if workflow and input are the same; else WF009, or WF003 if the id is not a run''s.';

create or replace function durable._check_descent(p_ids text[])
returns void language plpgsql stable
as $$
declare
  v_above text;
begin
  select i into v_above from (
    select a.id from unnest(p_ids) x cross join lateral unnest(durable._ancestors(x)) as a (id) where x ~ E'\\.\\d{1,9}$'
    intersect
    select x from unnest(p_ids) x) u (i) limit 1;
  if found then
    perform durable._fail_invalid(
      format('Element %s: id %L is reserved to the run %L, which this call starts too.', u.n, u.id, v_above))
    from unnest(p_ids) with ordinality as u (id, n) where v_above = any (durable._ancestors(u.id)) order by u.n limit 1;
  end if;
end
$$;
comment on function durable._check_descent(text[]) is
  'Refuses a call in which one id is a descendant of another: their locks have no one order. WF004.';

create or replace function durable._root_id(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$
  select left(encode(sha256(int4send(octet_length(p_tenant)) || convert_to(p_tenant, 'UTF8')
                            || int4send(octet_length(p_workflow)) || convert_to(p_workflow, 'UTF8')
                            || int4send(octet_length(p_key)) || convert_to(p_key, 'UTF8')), 'hex'), 32)
$$;
comment on function durable._root_id(text, text, text) is
  'The id of a run that was started without one: a hash of tenant, workflow and idempotency key, each preceded by its length.';

create or replace function durable._fresh_id(p_now bigint)
returns text language sql volatile parallel safe
as $$ select lpad(to_hex(p_now), 12, '0') || substr(encode(uuid_send(gen_random_uuid()), 'hex'), 13) $$;
comment on function durable._fresh_id(bigint) is
  'An id that no other run has. Ids of the same time are neighbours in the indexes, so one page takes many of them while it is in memory.';
