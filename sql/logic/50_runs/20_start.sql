-- What people and services call: start a run, read its result, bring a halted one back.
-- Parameters have bare names, because a caller writes id => 'order-42'.

create or replace function durable._root_id(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$
  select left(encode(sha256(int4send(octet_length(p_tenant)) || convert_to(p_tenant, 'UTF8')
                            || int4send(octet_length(p_workflow)) || convert_to(p_workflow, 'UTF8')
                            || int4send(octet_length(p_key)) || convert_to(p_key, 'UTF8')), 'hex'), 32)
$$;
comment on function durable._root_id(text, text, text) is
  'Name of a run that was given none: a hash over tenant, workflow and idempotency key, each with its length before it.';

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
  'Door checks of what differs between the runs of one start. p_many: the message says which one, counted from 1. Raises WF004.';

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
  'Door checks of a start; p_args null: those of its runs are made elsewhere. Raises WF004.';

create or replace function durable._are_tags(p_tags jsonb)
returns boolean language sql immutable parallel safe
as $$
  select jsonb_typeof(p_tags) = 'object' and not jsonb_path_exists(p_tags, 'strict $.* ? (@.type() <> "string")')
$$;
comment on function durable._are_tags(jsonb) is 'A JSON object of strings; null for null.';

create or replace function durable._has_protocol_tags(p_tags jsonb)
returns boolean language sql immutable parallel safe
as $$ select jsonb_path_exists(p_tags, 'strict $.keyvalue() ? (@.key starts with "resonate:")') $$;
comment on function durable._has_protocol_tags(jsonb) is 'Some of these tags belong to the protocol.';

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
  'Door checks of what a start says beside workflow and arguments. Raises WF004.';

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
  elsif not exists (select from durable._workflows w) or durable._setting('unknown_workflow') = 'queue' then
    return;
  end if;
  select string_agg(quote_literal(n.name), ', ' order by n.alike desc, n.name) into v_known from (
    select w.name, (select count(*) from generate_series(1, length(p_workflow) - 1) i
                    where strpos(w.name, substr(p_workflow, i, 2)) > 0) as alike
    from durable._workflows w group by w.name order by alike desc, w.name limit 5) n;
  perform durable._fail_not_found('workflow', p_workflow,
    format('Workers have registered %s. If its worker comes later: set_setting(''unknown_workflow'', ''queue'').', v_known));
end
$$;
comment on function durable._check_workflow(text) is
  'Raises WF001 for a name that no worker ever registered, while others are known, and names those most alike. Before the first worker every name is taken. A service must be served.';

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
    when p.param_data is distinct from u.args and p.param_data::jsonb is distinct from u.args::jsonb then 'input' end as what) w
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
  'A second start with the same id or key is the same run, if workflow and input are the same; else WF009, or WF003 where the id is no run''s.';

create or replace function durable._fresh_id(p_now bigint)
returns text language sql volatile parallel safe
as $$ select lpad(to_hex(p_now), 12, '0') || substr(encode(uuid_send(gen_random_uuid()), 'hex'), 13) $$;
comment on function durable._fresh_id(bigint) is
  'An id that no other run has. Ids of one time stand together in the indexes, so a page takes many of them while it is in memory.';

create or replace function durable._name_runs(p_workflow text, p_ids text[], p_keys text[], p_tenant text, p_count integer)
returns text[] language plpgsql volatile
as $$
declare
  v_known text[];
  v_now bigint := durable._now_ms();
begin
  if p_ids is null and p_keys is null then
    return array(select durable._fresh_id(v_now) from generate_series(1, p_count));
  elsif p_keys is not null then
    v_known := array(
      select (select h.id from durable._executions h
              where h.tenant = p_tenant and h.workflow = p_workflow and h.key = k.key limit 1)
      from unnest(p_keys) with ordinality as k (key, n) order by k.n);
  end if;
  return array(
    select case when u.key is null then coalesce(u.id, durable._fresh_id(v_now))
                else coalesce(u.known, u.first_id, durable._root_id(p_tenant, p_workflow, u.key)) end
    from (select x.*, first_value(x.id) over (partition by x.key order by x.n) as first_id
          from unnest(p_ids, p_keys, v_known) with ordinality as x (id, key, known, n)) u
    order by u.n);
end
$$;
comment on function durable._name_runs(text, text[], text[], text, integer) is
  'Id of each run to be started: that of the run which has the key, else the one given with the key or alone, else a name made for it.';

create or replace function durable._insert_runs(
  p_workflow text, p_texts text[], p_runs text[], p_keys text[], p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text)
returns text[] language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_ids text[];
  v_heads bigint[];
  v_keys text[];
begin
  with fresh as materialized (
    select distinct on (u.run collate "C") u.run, u.args, u.key
    from unnest(p_runs, p_texts, p_keys) with ordinality as u (run, args, key, n)
    order by u.run collate "C", u.n
  ), born as (
    insert into durable._promises as p (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data,
                                        tags)
    select f.run, p_tenant, durable._next_execution(), durable._later(v_now, p_timeout_ms), v_now, true,
           durable._target_of(p_queue), '{"codec": "json"}', f.args, p_tags
    from fresh f order by f.run collate "C"
    on conflict do nothing
    returning p.id, p.head
  )
  select array_agg(g.run order by g.head), array_agg(g.head order by g.head), array_agg(g.key order by g.head)
  into v_ids, v_heads, v_keys
  from (
    -- a join of two sets of any size would compare each with each
    select u.run, max(u.head) as head, max(u.key) as key
    from (select b.id as run, b.head, null as key from born b union all select f.run, null, f.key from fresh f) u
    group by u.run having count(u.head) > 0) g;
  if v_ids is null then
    return '{}';
  end if;
  perform durable._begin(v_heads, v_ids, array_fill(p_tenant, array[cardinality(v_ids)]),
                         array_fill(p_workflow, array[cardinality(v_ids)]), array_fill(p_version, array[cardinality(v_ids)]),
                         v_keys, v_now);
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, workflow, workflow_version)
  select b.id, b.head, durable._later(v_now, p_timeout_ms), v_now + coalesce(p_delay_ms, 0), p_queue, p_priority, p_workflow,
         p_version
  from unnest(v_ids, v_heads) as b (id, head);
  return v_ids;
end
$$;
comment on function durable._insert_runs(text, text[], text[], text[], text, text, bigint, bigint, integer, jsonb, text) is
  'Makes those of the runs that do not exist, each once, in the order of their ids, so that two calls do not wait for each other in a circle. Answers their ids.';

create or replace function durable._start_all(
  p_workflow text, p_args jsonb[], p_texts text[], p_ids text[], p_keys text[], p_queue text, p_version text,
  p_delay_ms bigint, p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean,
  p_many boolean)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_runs text[];
  v_born text[];
begin
  if not p_any_workflow then
    perform durable._check_workflow(p_workflow);
  end if;
  if p_ids is not null or p_keys is not null then
    perform durable._lock_names(array(select durable._key_name(p_tenant, p_workflow, k) from unnest(p_keys) k), p_ids);
  end if;
  perform durable._check_start(p_workflow, null, null, p_queue, p_version);
  perform durable._check_options(null, p_queue, p_delay_ms, p_timeout_ms, p_priority, p_tags, p_tenant);
  perform durable._check_payload(
    case when p_many then format('Element %s: ', u.n) else '' end || format('Input of a run of %s', p_workflow), u.args)
  from (select x.n, x.args from unnest(p_texts) with ordinality as x (args, n)
        where octet_length(x.args) > 1000 order by octet_length(x.args) desc, x.n) u;
  if p_many or p_ids is not null or p_keys is not null or coalesce(jsonb_typeof(p_args[1]), '') not in ('array', 'object') then
    perform durable._check_elements(p_args, p_ids, p_keys, p_many);
  end if;
  loop
    v_runs := durable._name_runs(p_workflow, p_ids, p_keys, p_tenant, cardinality(p_texts));
    if p_ids is not null or p_keys is not null then
      perform durable._check_removed(v_runs, p_workflow, p_tenant, p_keys);
    end if;
    begin
      v_born := durable._insert_runs(p_workflow, p_texts, v_runs, p_keys, p_queue, p_version, p_delay_ms, p_timeout_ms,
                                     p_priority, p_tags, p_tenant);
      exit;
    exception when sqlstate 'WF099' then
      -- a key was taken while this call or the other one, with very many, had no lock on it: look whose it is
      continue;
    end;
  end loop;
  if cardinality(v_born) < cardinality(v_runs) then
    perform durable._check_same(p_workflow, p_texts, p_ids, p_keys, v_runs, p_tenant, p_many);
  end if;
  if not p_many then
    return query select v_runs[1], v_born <> '{}';
    return;
  end if;
  return query
  select x.run, x.is_born and x.place = 1
  from (
    select u.run, u.n, bool_or(u.n is null) over (partition by u.run) as is_born,
           row_number() over (partition by u.run order by u.n) as place
    from (select r.run, r.n from unnest(v_runs) with ordinality as r (run, n)
          union all select b, null from unnest(v_born) b) u) x
  where x.n is not null order by x.n;
end
$$;
comment on function durable._start_all(
  text, jsonb[], text[], text[], text[], text, text, bigint, bigint, integer, jsonb, text, boolean, boolean) is
  'Starts runs of one workflow, or finds those that have an id or key already: what came first wins, in this call too. A fixed number of statements, however many they are.';

create or replace function durable._is_plain(
  p_workflow text, p_args jsonb, p_bytes integer, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text)
returns boolean language sql stable
as $$
  select octet_length(p_workflow) between 1 and 256 and strpos(p_workflow, ':') = 0
         and (p_queue = 'default' or durable._is_plain_name(p_queue)) and p_version <> ''
         and jsonb_typeof(p_args) in ('array', 'object')
         and (p_bytes <= 1000 or (p_bytes <= durable._setting_int('payload_max_bytes') and not durable._is_deep(p_args)))
         and (p_id is null or octet_length(p_id) between 1 and 512 and (strpos(p_id, '.') = 0 or p_id !~ E'\\.\\d{1,9}$'))
         and (p_key is null or octet_length(p_key) between 1 and 512)
         and (p_timeout_ms <= 0 or p_delay_ms < 0 or p_delay_ms >= p_timeout_ms) is not true
         and p_priority between -32768 and 32767 and octet_length(p_tenant) <= 256
         and (p_tags = '{}' or (octet_length(p_tags::text) <= 65536 and durable._are_tags(p_tags)
                                and not durable._has_protocol_tags(p_tags)))
$$;
comment on function durable._is_plain(
  text, jsonb, integer, text, text, text, text, bigint, bigint, integer, jsonb, text) is
  'What surely passes all door checks, told from the words alone. The rest may pass or not: the checks decide, and say why not.';

create or replace function durable._take_back(p_id text)
returns durable.start_record language plpgsql volatile
as $$
begin
  delete from durable._promises p where p.id = p_id;
  return null;
end
$$;
comment on function durable._take_back(text) is
  'Undoes the promise of a run whose key a start of very many had, which held no lock on it and has just committed.';

create or replace function durable._start_plain(
  p_workflow text, p_args jsonb, p_text text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean, p_fresh boolean default false,
  p_notify boolean default false, p_reply text default null)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_now bigint;
  v_run text;
  v_execution bigint;
  v_digest bytea;
  v_head durable._executions;
  v_handed_off durable.start_record;
begin
  if durable._is_plain(p_workflow, p_args, octet_length(p_text), p_id, p_key, p_queue, p_version, p_delay_ms, p_timeout_ms,
                       p_priority, p_tags, p_tenant) is not true then
    return null;
  end if;
  select w.digest into v_digest from durable._workflows w where w.name = p_workflow and w.version = p_version;
  if not (found or p_any_workflow) then
    perform durable._check_workflow(p_workflow);
  end if;
  if p_key is null and (p_fresh or p_id is null) then
    v_now := durable._now_ms();
    v_run := coalesce(p_id, durable._fresh_id(v_now));
  else
    perform durable._lock_name(durable._key_name(p_tenant, p_workflow, p_key), p_id);
    if exists (select from durable._executions h where h.tenant = p_tenant and h.workflow = p_workflow and h.key = p_key)
       or exists (select from durable._promises p where p.id >= p_id || '.' and p.id < p_id || '/')
       or exists (select from durable._removed r where r.id = p_id)
       or exists (select from durable._removed r where r.tenant = p_tenant and r.workflow = p_workflow and r.key = p_key) then
      return null;
    end if;
    v_run := coalesce(p_id, durable._root_id(p_tenant, p_workflow, p_key));
    v_now := durable._now_ms();
  end if;
  v_execution := durable._next_execution();
  insert into durable._promises (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data, tags)
  values (v_run, p_tenant, v_execution, durable._later(v_now, p_timeout_ms), v_now, true, durable._target_of(p_queue),
          '{"codec": "json"}', p_text, p_tags) on conflict do nothing;
  if not found then
    return null;
  end if;
  v_head := durable._begin_one(v_execution, v_run, p_tenant, p_workflow, p_version, p_key, v_digest, v_now);
  if v_head.execution is null then
    return durable._take_back(v_run);
  end if;
  if p_notify and p_delay_ms is null then
    v_handed_off := durable._hand_off(v_head, p_text, p_queue, p_priority, p_timeout_ms, p_reply, v_now);
    if v_handed_off.id is not null then
      return v_handed_off;
    end if;
  end if;
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, workflow, workflow_version)
  values (v_run, v_execution, durable._later(v_now, p_timeout_ms), v_now + coalesce(p_delay_ms, 0), p_queue, p_priority,
          p_workflow, p_version);
  perform durable._notify('durable_ready') where p_notify;
  return (v_run, true, false);
end
$$;
comment on function durable._start_plain(
  text, jsonb, text, text, text, text, text, bigint, bigint, integer, jsonb, text, boolean, boolean, boolean, text) is
  'A run that is new and that nothing has to be said about, in statements for one row: the same rows as _start_all makes, for a third of its time. p_fresh: the id was drawn by lot for this start, so nothing can be known of it. p_notify: a worker at rest gets it at once, with p_reply, or all get the hint. handed: the worker has it. Null: nothing was written, and _start_one decides.';

create or replace function durable._start_one(
  p_workflow text, p_args jsonb, p_text text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean)
returns table (id text, created boolean) language plpgsql volatile
as $$
begin
  if p_workflow ~* '^sql://' then
    -- a service is its own queue
    p_workflow := durable._service_named(p_workflow);
    p_queue := p_workflow;
  end if;
  return query
  select s.id, s.created
  from durable._start_all(p_workflow, array[p_args], array[p_text], case when p_id is not null then array[p_id] end,
                          case when p_key is not null then array[p_key] end, p_queue, p_version, p_delay_ms, p_timeout_ms,
                          p_priority, p_tags, p_tenant, p_any_workflow, false) s;
end
$$;
comment on function durable._start_one(
  text, jsonb, text, text, text, text, text, bigint, bigint, integer, jsonb, text, boolean) is
  'One run by the way for many: one that is there already, of a service, or about which something is to be said.';

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
  'No id of one call is that of a descendant of another one: nobody could lock them in the one order. Raises WF004.';

create or replace function durable.start_v1(
  p_workflow text, p_args text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean, p_fresh boolean default false,
  p_notify boolean default false, p_reply text default null)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_args jsonb := case when p_fresh then p_args::jsonb else durable._json(p_args) end;
  v_started durable.start_record := durable._start_plain(
    p_workflow, v_args, p_args, p_id, p_key, p_queue, p_version, p_delay_ms, p_timeout_ms, p_priority, p_tags, p_tenant,
    p_any_workflow, p_fresh, p_notify, p_reply);
begin
  if v_started.id is not null then
    return v_started;
  end if;
  select s.id, s.created, false into v_started
  from durable._start_one(p_workflow, v_args, p_args, p_id, p_key, p_queue, p_version, p_delay_ms, p_timeout_ms, p_priority,
                          p_tags, p_tenant, p_any_workflow) s;
  if p_notify and v_started.created then
    perform durable._notify('durable_ready');
  end if;
  return v_started;
end
$$;
comment on function durable.start_v1(
  text, text, text, text, text, text, bigint, bigint, integer, jsonb, text, boolean, boolean, boolean, text) is
  'For our clients: starts a run, or finds the one that has this id or key; two starts with one key wait for each other. p_any_workflow: the caller has the code. p_fresh: it has drawn the id by lot for this start, and what it sends is JSON. p_notify: it is alone in its transaction, which is to tell workers of it: one at rest gets the run at once, else all get the hint. p_reply: address of the caller''s, to which that worker then notes [id, state, value, error]. handed: a worker has it, so nobody else need look. WF001, WF003, WF004, WF008, WF009.';

create or replace function durable.start_many(
  workflow text, args jsonb[], ids text[] default null, keys text[] default null, queue text default 'default',
  version text default '1', delay interval default null, timeout interval default null, priority integer default 0,
  tags jsonb default '{}', tenant text default '', any_workflow boolean default false)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_name text := case when $1 ~* '^sql://' then durable._service_named($1) else $1 end;
  v_count integer := coalesce(cardinality($2), 0);
  v_runs text[];
  v_created boolean[];
  v_id text;
begin
  if coalesce(cardinality($3), v_count) <> v_count or coalesce(cardinality($4), v_count) <> v_count then
    perform durable._fail_invalid(
      format('There are %s args, %s ids and %s keys: one id and one key (or null) for each of args, or none at all.',
             v_count, coalesce(cardinality($3)::text, 'no'), coalesce(cardinality($4)::text, 'no')));
  elsif v_count = 0 then
    return;
  end if;
  if v_count = 1 then
    -- a slice begins at 1, wherever the array does
    v_id := (durable._start_plain(v_name, ($2[:])[1], ($2[:])[1]::text, ($3[:])[1], ($4[:])[1], $5, $6, durable._ms($7),
                                  durable._ms($8), $9, $10, $11, $12)).id;
    if v_id is not null then
      perform durable._hint('durable_ready', durable._now_ms());
      return query values (v_id, true);
      return;
    end if;
  end if;
  perform durable._check_descent($3);
  select array_agg(s.id order by s.ord), array_agg(s.created order by s.ord) into v_runs, v_created
  from durable._start_all(v_name, $2, array(select a.value::text from unnest($2) with ordinality as a (value, n) order by a.n),
                          $3, $4, case when v_name like 'sql://%' then v_name else $5 end, $6, durable._ms($7),
                          durable._ms($8), $9, $10, $11, $12, true) with ordinality as s (id, created, ord);
  if true = any (v_created) then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return query select r.id, r.created from unnest(v_runs, v_created) with ordinality as r (id, created, n) order by r.n;
end
$$;
comment on function durable.start_many(
  text, jsonb[], text[], text[], text, text, interval, interval, integer, jsonb, text, boolean) is
  'Starts many runs of one workflow at once, one for each element of args: an object is arguments by name, an array arguments by position. select durable.start_many(''mail.send'', array_agg(to_jsonb(m)), keys => array_agg(m.id::text)) from outbox m. Answers id and created in the order given; no args, no runs. As so many calls of durable.start in your transaction, but all or none; an error says which element, from 1. ids and keys are as long as args, null where there is none. Other starts wait for your commit only where they have one of these ids or keys; with more than 1000 of them so does who makes a run or a promise below an id that does not exist, and while he has not committed it is 55P03 after 2 s. WF001, WF003, WF004, WF008, WF009.';

create or replace function durable.start(
  workflow text, args jsonb default '[]', id text default null, key text default null, queue text default 'default',
  version text default '1', delay interval default null, timeout interval default null, priority integer default 0,
  tags jsonb default '{}', tenant text default '', any_workflow boolean default false)
returns text language plpgsql volatile
as $$
declare
  v_text text := $2::text;
  v_id text := (durable._start_plain($1, $2, v_text, $3, $4, $5, $6, durable._ms($7), durable._ms($8), $9, $10, $11, $12)).id;
  v_run record;
begin
  if v_id is not null then
    perform durable._hint('durable_ready', durable._now_ms());
    return v_id;
  end if;
  select * into v_run
  from durable._start_one($1, $2, v_text, $3, $4, $5, $6, durable._ms($7), durable._ms($8), $9, $10, $11, $12);
  if v_run.created then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return v_run.id;
end
$$;
comment on function durable.start(text, jsonb, text, text, text, text, interval, interval, integer, jsonb, text, boolean) is
  'Starts a run of a workflow and answers its id: select durable.start(''hello'', ''["world"]''). In your transaction: a rollback leaves nothing. The same id or key again is the same run; with other input it is WF009. A name that no worker ever registered is refused (WF001) unless any_workflow. Two starts by id or key in one transaction hold the first while they wait for the second, so who crosses another deadlocks (40P01): durable.start_many starts many at once. WF004, WF008.';

create or replace function durable.result(id text)
returns table (state text, value jsonb, error jsonb) language plpgsql volatile
as $$
declare
  v_record durable.promise_record;
begin
  v_record := durable.promise_get($1);
  return query select v_record.state,
    case when v_record.state = 'resolved' then durable._json(v_record.value_data) end,
    case when v_record.state = 'pending' then null
         when v_record.state like 'rejected%' then durable._json(durable._error_of(v_record.state, v_record.value_data)) end;
end
$$;
comment on function durable.result(text) is 'State, value and error of a run or promise as it is now; never waits. WF001.';

create or replace function durable._uncommitted()
returns text language plpgsql volatile
as $$
declare
  v_words text;
begin
  commit;
  return null;
exception when invalid_transaction_termination then
  get stacked diagnostics v_words = message_text;
  return v_words;
end
$$;
comment on function durable._uncommitted() is
  'What PostgreSQL says, in the language of this session, to a COMMIT where none may be; in a function none ever may.';

create or replace function durable._wait_until(p_timeout interval, p_words text)
returns bigint language plpgsql volatile
as $$
begin
  if p_words = durable._uncommitted() then
    perform durable._fail_conflict('A wait commits between its looks, and this transaction is not its own to commit.',
                                   'Call it outside of a transaction, or look once: select * from durable.result(id).');
  elsif p_timeout is null or p_timeout < interval '0' then
    perform durable._fail_invalid('A wait ends: its timeout is not null and not negative.');
  end if;
  return durable._later(durable._now_ms(), durable._ms(p_timeout));
end
$$;
comment on function durable._wait_until(interval, text) is
  'Instant at which a wait that begins now ends. p_words: what its caller was told when it tried to commit inside of a subtransaction, which never works, but is refused in other words where no commit works. WF003, WF004.';

create or replace function durable._look(p_id text, p_looks integer, p_until bigint)
returns table (looks integer, state text, value jsonb, error jsonb, pause_ms bigint) language plpgsql volatile
as $$
begin
  return query
  select p_looks + 1, r.state, r.value, r.error, case when r.state = 'pending' then nullif(greatest(
           least((array[5, 20, 80, 320])[p_looks], 1000, p_until - durable._now_ms()), 0), 0) end
  from durable.result(p_id) r;
end
$$;
comment on function durable._look(text, integer, bigint) is
  'One look of a wait: what durable.result tells, and how long to sleep before the look after it; null if this is the last one.';

create or replace function durable._sleep(p_ms bigint)
returns void language plpgsql volatile
as $$ begin perform pg_sleep(p_ms / 1000.0); end $$;
comment on function durable._sleep(bigint) is 'Sleeps.';

create or replace procedure durable.wait(
  id text, timeout interval default '1 minute', inout state text default null, inout value jsonb default null,
  inout error jsonb default null)
language plpgsql
as $$
declare
  v_words text;
  v_until bigint;
  v_looks integer := 1;
  v_pause_ms bigint;
begin
  -- what commits cannot pin the search path, so nothing here but names with their schema
  begin
    commit;
  exception when invalid_transaction_termination then
    get stacked diagnostics v_words := message_text;
  end;
  v_until := durable._wait_until($2, v_words);
  loop
    select l.looks, l.state, l.value, l.error, l.pause_ms into v_looks, state, value, error, v_pause_ms
    from durable._look($1, v_looks, v_until) l;
    commit;
    exit when v_pause_ms is null;
    perform durable._sleep(v_pause_ms);
    commit;
  end loop;
end
$$;
comment on procedure durable.wait(text, interval, text, jsonb, jsonb) is
  'Waits for a run or promise: call durable.wait(''order-42'', timeout => ''5 s'') answers state, value and error as durable.result does, pending if the time is over. It looks after 5, 20, 80, 320 ms and then every second, commits after each look and holds neither lock nor snapshot beyond it. Only as a statement of its own, or in a procedure that is: WF003 in a transaction block and in a function. WF001, WF004.';

create or replace function durable.version()
returns table (schema_version integer, lowest_worker_protocol integer, highest_worker_protocol integer)
language sql stable
as $$ select coalesce(max(m.id), 0), 1, 1 from durable.migrations m $$;
comment on function durable.version() is
  'Last migration applied, and the worker protocols (the _vN of worker functions) served. Programs check it on connect.';

create or replace function durable.results_v1(p_ids text[])
returns table (id text, state text, value text, error text) language plpgsql volatile
as $$
declare
  v_due text[];
begin
  v_due := array(select p.id from durable._promises p
                 where p.id = any (p_ids) and p.state = 'pending' and p.timeout_at <= durable._now_ms());
  if v_due <> '{}' then
    perform durable._expire(v_due);
  end if;
  return query
  select i.id, p.state, case when p.state = 'resolved' then p.value_data end,
         case when p.state <> 'resolved' then durable._error_of(p.state, p.value_data) end
  from unnest(p_ids) as i (id)
  left join durable._promises p on p.id = i.id
  where p.state is distinct from 'pending';
end
$$;
comment on function durable.results_v1(text[]) is
  'For our clients: those of the promises that are settled, payloads as text; state null where there is no such promise. A deadline that has passed is settled before it is told: who settles at this moment may still win.';
