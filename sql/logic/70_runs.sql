-- What people and services call: start a run, read its result, bring a halted one back.
-- Parameters have bare names, because a caller writes id => 'order-42'.

create or replace function durable._root_id(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$
  select left(encode(sha256(string_agg(int4send(octet_length(u.part)) || convert_to(u.part, 'UTF8'), ''::bytea order by u.ord)),
                     'hex'), 32)
  from unnest(array[p_tenant, p_workflow, p_key]) with ordinality as u (part, ord)
$$;
comment on function durable._root_id(text, text, text) is
  'Name of a run that was given none: a hash over tenant, workflow and idempotency key, each with its length before it.';

create or replace function durable._check_start(p_workflow text, p_args jsonb, p_id text, p_queue text, p_version text)
returns void language plpgsql stable
as $$
begin
  if p_workflow is null or octet_length(p_workflow) not between 1 and 256 then
    perform durable._fail_invalid('A workflow name has 1 to 256 bytes.');
  elsif p_args is null or jsonb_typeof(p_args) not in ('array', 'object') then
    perform durable._fail_invalid('Arguments are a JSON array (by position) or a JSON object (by name), like ''["world"]''.');
  elsif octet_length(p_id) not between 1 and 512 then
    perform durable._fail_invalid(format('A run id has 1 to 512 bytes, this one has %s.', octet_length(p_id)));
  elsif p_queue is null or durable._canonical_address('poll://any@' || p_queue) is null or p_queue like '%/%' then
    perform durable._fail_invalid(format('%L is not a queue name.', p_queue));
  elsif p_version is null or p_version = '' then
    perform durable._fail_invalid('A workflow version is not empty.');
  elsif exists (select from durable._promises p where p.id = any (durable._ancestors(p_id)) and p.head is not null) then
    perform durable._fail_invalid(format('Id %L is reserved to the run it would be a descendant of.', p_id));
  elsif not exists (select from durable._promises r where r.id = p_id)
        and exists (select from durable._promises p
                    where p.id >= p_id || '.' and p.id < p_id || '/' and substr(p.id, length(p_id) + 1) ~ '^(\.\d{1,9})+$') then
    perform durable._fail_invalid(format('Promises with ids %L exist, which would be descendants of this run.', p_id || '.<n>'));
  end if;
end
$$;
comment on function durable._check_start(text, jsonb, text, text, text) is 'Door checks of a start. Raises WF004.';

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
  elsif p_tags is null or jsonb_typeof(p_tags) <> 'object'
        or exists (select from jsonb_each(p_tags) e where jsonb_typeof(e.value) <> 'string') then
    perform durable._fail_invalid('Tags are a JSON object of strings.');
  elsif exists (select from jsonb_object_keys(p_tags) k where starts_with(k, 'resonate:')) then
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
  if exists (select from durable._workflows w where w.name = p_workflow)
     or not exists (select from durable._workflows w) or durable._setting('unknown_workflow') = 'queue' then
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
  'Raises WF001 for a name that no worker ever registered, while others are known, and names those most alike. Before the first worker every name is taken.';

create or replace function durable._same_start(p_id text, p_workflow text, p_args text, p_key text, p_tenant text)
returns void language plpgsql stable
as $$
declare
  v_promise durable._promises;
  v_head durable._executions;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  select * into v_head from durable._executions h where h.execution = v_promise.head;
  if v_head.execution is null then
    perform durable._fail_conflict(format('Id %L belongs to a promise that is no run.', p_id), 'Use another id.');
  elsif v_head.tenant <> p_tenant then
    perform durable._fail_run_conflict(p_id, 'tenant');
  elsif v_head.key is distinct from coalesce(p_key, v_head.key) then
    perform durable._fail_run_conflict(p_id, 'idempotency key');
  elsif v_head.workflow <> p_workflow then
    perform durable._fail_run_conflict(p_id, 'workflow, ' || v_head.workflow);
  elsif v_promise.param_data is distinct from p_args and v_promise.param_data::jsonb is distinct from p_args::jsonb then
    perform durable._fail_run_conflict(p_id, 'input');
  end if;
end
$$;
comment on function durable._same_start(text, text, text, text, text) is
  'A second start with the same id or key is the same run, if workflow and input are the same; else WF009.';

create or replace function durable._start(
  p_workflow text, p_args text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_id text;
  v_now bigint;
  v_head bigint;
begin
  if p_id is not null then
    perform durable._lock_family(p_id, true);
  end if;
  perform durable._check_start(p_workflow, durable._json(p_args), p_id, p_queue, p_version);
  perform durable._check_options(p_key, p_queue, p_delay_ms, p_timeout_ms, p_priority, p_tags, p_tenant);
  perform durable._check_payload(format('Input of a run of %s', p_workflow), p_args);
  v_id := coalesce(p_id, durable._root_id(p_tenant, p_workflow, coalesce(p_key, gen_random_uuid()::text)));
  v_now := durable._now_ms();
  v_head := durable._next_execution();
  insert into durable._promises (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data, tags)
  values (v_id, p_tenant, v_head, durable._later(v_now, p_timeout_ms), v_now, true, 'poll://any@' || p_queue,
          '{"codec": "json"}', p_args, p_tags)
  on conflict do nothing;
  if not found then
    perform durable._same_start(v_id, p_workflow, p_args, p_key, p_tenant);
    return query select v_id, false;
    return;
  end if;
  perform durable._begin(array[v_head], array[v_id], array[p_tenant], array[p_workflow], array[p_version], p_key, v_now);
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, workflow, workflow_version)
  values (v_id, v_head, durable._later(v_now, p_timeout_ms), v_now + coalesce(p_delay_ms, 0), p_queue,
          p_priority, p_workflow, p_version);
  return query select v_id, true;
end
$$;
comment on function durable._start(text, text, text, text, text, text, bigint, bigint, integer, jsonb, text) is
  'Starts a run, or finds the one that has this id.';

create or replace function durable.start_v1(
  p_workflow text, p_args text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_id text;
begin
  if not p_any_workflow then
    perform durable._check_workflow(p_workflow);
  end if;
  if p_key is not null then
    perform durable._lock_key(p_tenant, p_workflow, p_key);
    select h.id into v_id from durable._executions h
    where h.tenant = p_tenant and h.workflow = p_workflow and h.key = p_key;
    if found then
      if p_id is not null and p_id <> v_id then
        perform durable._fail_run_conflict(v_id, 'id for this key');
      end if;
      perform durable._same_start(v_id, p_workflow, p_args, p_key, p_tenant);
      return query select v_id, false;
      return;
    end if;
  end if;
  return query select * from durable._start(p_workflow, p_args, p_id, p_key, p_queue, p_version, p_delay_ms,
                                              p_timeout_ms, p_priority, p_tags, p_tenant);
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off;
comment on function durable.start_v1(text, text, text, text, text, text, bigint, bigint, integer, jsonb, text, boolean) is
  'For our clients: starts a run, or finds the one that has this id or key; two starts with one key wait for each other. p_any_workflow: the caller has the code. Sends no hint. WF001, WF004, WF008, WF009.';

create or replace function durable.start(
  workflow text, args jsonb default '[]', id text default null, key text default null, queue text default 'default',
  version text default '1', delay interval default null, timeout interval default null, priority integer default 0,
  tags jsonb default '{}', tenant text default '', any_workflow boolean default false)
returns text language plpgsql volatile
as $$
declare
  v_run record;
begin
  select * into v_run from durable.start_v1($1, $2::text, $3, $4, $5, $6, durable._ms($7), durable._ms($8), $9, $10, $11, $12);
  if v_run.created then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return v_run.id;
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off;
comment on function durable.start(text, jsonb, text, text, text, text, interval, interval, integer, jsonb, text, boolean) is
  'Starts a run of a workflow and answers its id: select durable.start(''hello'', ''["world"]''). In your transaction: a rollback leaves nothing. The same id or key again is the same run; with other input it is WF009. A name that no worker ever registered is refused (WF001) unless any_workflow. WF004, WF008.';

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
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off;
comment on function durable.result(text) is 'State, value and error of a run or promise as it is now; never waits. WF001.';

create or replace function durable.version()
returns table (schema_version integer, lowest_worker_protocol integer, highest_worker_protocol integer)
language sql stable
as $$ select coalesce(max(m.id), 0), 1, 1 from durable.migrations m $$ set search_path = '';
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
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off;
comment on function durable.results_v1(text[]) is
  'For our clients: those of the promises that are settled, payloads as text; state null where there is no such promise. A deadline that has passed is settled before it is told: who settles at this moment may still win.';
