-- Starts of runs: durable.start for people, start_many for many at once, start_v1 for the clients of the package. Functions for
-- people have parameters with bare names, because a caller writes id => 'order-42'.

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
  'The id of each run to be started: that of the run with the key; else the one given with the key or alone; else one made from the key.';

create or replace function durable._insert_runs(
  p_request durable._start_request, p_texts text[], p_runs text[], p_keys text[])
returns text[] language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_ids text[];
  v_heads bigint[];
  v_keys text[];
  v_code durable._run_code;
begin
  with fresh as materialized (
    select distinct on (u.run collate "C") u.run, u.args, u.key
    from unnest(p_runs, p_texts, p_keys) with ordinality as u (run, args, key, n)
    order by u.run collate "C", u.n
  ), born as (
    insert into durable._promises as p (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data,
                                        tags)
    select f.run, p_request.tenant, durable._next_execution(), durable._later(v_now, p_request.timeout_ms), v_now, true,
           durable._target_of(p_request.queue), '{"codec": "json"}', f.args, p_request.tags
    from fresh f order by f.run collate "C"
    on conflict do nothing
    returning p.id, p.head
  )
  select array_agg(g.run order by g.head), array_agg(g.head order by g.head), array_agg(g.key order by g.head)
  into v_ids, v_heads, v_keys
  from (
    -- a join of two sets of unknown sizes would compare each pair
    select u.run, max(u.head) as head, max(u.key) as key
    from (select b.id as run, b.head, null as key from born b union all select f.run, null, f.key from fresh f) u
    group by u.run having count(u.head) > 0) g;
  if v_ids is null then
    return '{}';
  end if;
  v_code := durable._code_to_run(p_request.workflow, p_request.version);
  perform durable._begin(v_heads, v_ids, array_fill(p_request.tenant, array[cardinality(v_ids)]),
                         array_fill(v_code, array[cardinality(v_ids)]), v_keys, v_now);
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, rules, workflow, workflow_version)
  select b.id, b.head, durable._later(v_now, p_request.timeout_ms), v_now + coalesce(p_request.delay_ms, 0), p_request.queue,
         p_request.priority, v_code.rules, p_request.workflow, p_request.version
  from unnest(v_ids, v_heads) as b (id, head);
  return v_ids;
end
$$;
comment on function durable._insert_runs(durable._start_request, text[], text[], text[]) is
  'Inserts the runs that do not exist, each once, ordered by id, so that two calls cannot deadlock. Answers their ids.';

create or replace function durable._start_batch(
  p_request durable._start_request, p_args jsonb[], p_texts text[], p_ids text[], p_keys text[], p_many boolean)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_runs text[];
  v_inserted text[];
begin
  perform durable._adopt_idle_copy();
  if not p_request.any_workflow then
    perform durable._check_workflow(p_request.workflow);
  end if;
  if p_ids is not null or p_keys is not null then
    perform durable._lock_names(
      array(select durable._key_name(p_request.tenant, p_request.workflow, k) from unnest(p_keys) k), p_ids);
  end if;
  perform durable._check_start(p_request.workflow, null, null, p_request.queue, p_request.version);
  perform durable._check_options(null, p_request.queue, p_request.delay_ms, p_request.timeout_ms, p_request.priority,
                                 p_request.tags, p_request.tenant);
  perform durable._check_payload(
    case when p_many then format('Element %s: ', u.n) else '' end || format('Input of a run of %s', p_request.workflow), u.args)
  from (select x.n, x.args from unnest(p_texts) with ordinality as x (args, n)
        where octet_length(x.args) > 1000 order by octet_length(x.args) desc, x.n) u;
  if p_many or p_ids is not null or p_keys is not null or coalesce(jsonb_typeof(p_args[1]), '') not in ('array', 'object') then
    perform durable._check_elements(p_args, p_ids, p_keys, p_many);
  end if;
  loop
    v_runs := durable._name_runs(p_request.workflow, p_ids, p_keys, p_request.tenant, cardinality(p_texts));
    if p_ids is not null or p_keys is not null then
      perform durable._check_removed(v_runs, p_request.workflow, p_request.tenant, p_keys);
    end if;
    begin
      v_inserted := durable._insert_runs(p_request, p_texts, v_runs, p_keys);
      exit;
    exception when sqlstate 'WF099' then
      -- a key was taken while this call or the other one, a bulk start, had no lock on it: look up whose it is
      continue;
    end;
  end loop;
  if cardinality(v_inserted) < cardinality(v_runs) then
    perform durable._check_same(p_request.workflow, p_texts, p_ids, p_keys, v_runs, p_request.tenant, p_many);
  end if;
  if not p_many then
    return query select v_runs[1], v_inserted <> '{}';
    return;
  end if;
  return query
  select x.run, x.is_born and x.place = 1
  from (
    select u.run, u.n, bool_or(u.n is null) over (partition by u.run) as is_born,
           row_number() over (partition by u.run order by u.n) as place
    from (select r.run, r.n from unnest(v_runs) with ordinality as r (run, n)
          union all select b, null from unnest(v_inserted) b) u) x
  where x.n is not null order by x.n;
end
$$;
comment on function durable._start_batch(durable._start_request, jsonb[], text[], text[], text[], boolean) is
  'Starts runs of one workflow, or finds those whose id or key exists already; if several are the same, also within one call, the first one counts. The other fields of the request hold for all of them. The number of statements does not depend on the number of runs.';

create or replace function durable._start_batch_of_one(p_request durable._start_request)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_request durable._start_request := p_request;
begin
  if v_request.workflow ~* '^sql://' then
    -- a service is its own queue
    v_request.workflow := durable._service_named(v_request.workflow);
    v_request.queue := v_request.workflow;
  elsif v_request.queue is null then
    v_request.queue := durable._own_queue(v_request.workflow, v_request.version);
  end if;
  return query
  select s.id, s.created
  from durable._start_batch(
    v_request, array[v_request.args], array[v_request.input], case when v_request.id is not null then array[v_request.id] end,
    case when v_request.key is not null then array[v_request.key] end, false) s;
end
$$;
comment on function durable._start_batch_of_one(durable._start_request) is
  'Starts one run by the batch path, which handles every case that the single-row path leaves: the run exists, is of a service, or is refused.';

create or replace function durable._start_one(
  p_request durable._start_request, p_fresh boolean default false, p_notify boolean default false, p_reply text default null)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_started durable.start_record := durable._start_single(p_request, p_fresh, p_notify, p_reply);
begin
  if v_started.id is null then
    select s.id, s.created, false into v_started from durable._start_batch_of_one(p_request) s;
    if p_notify and v_started.created then
      perform durable._notify('durable_ready');
    end if;
  end if;
  return v_started;
end
$$;
comment on function durable._start_one(durable._start_request, boolean, boolean, text) is
  'Starts one run by the single-row path, or by the batch path if that one leaves it; arguments as for _start_single.';

create or replace function durable.start_v1(
  p_workflow text, p_args text, p_id text, p_key text, p_queue text, p_version text, p_delay_ms bigint,
  p_timeout_ms bigint, p_priority integer, p_tags jsonb, p_tenant text, p_any_workflow boolean, p_fresh boolean default false,
  p_notify boolean default false, p_reply text default null)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_id text;
begin
  if p_fresh and p_key is null and p_delay_ms is null and p_timeout_ms is null and p_priority = 0 and p_tags = '{}'
     and p_tenant = '' and not (p_notify and durable._has_idle_worker()) then
    v_id := durable._start_resendable(p_workflow, p_args::jsonb, p_args, p_id, p_queue, p_version, p_any_workflow);
  end if;
  if v_id is not null then
    if p_notify then
      perform durable._notify('durable_ready');
    end if;
    return (v_id, true, false);
  end if;
  return durable._start_one(
    row(p_workflow, case when p_fresh then p_args::jsonb else durable._json(p_args) end, p_args, p_id, p_key, p_queue, p_version,
        p_delay_ms, p_timeout_ms, p_priority, p_tags, p_tenant, p_any_workflow),
    p_fresh, p_notify, p_reply);
end
$$;
comment on function durable.start_v1(
  text, text, text, text, text, text, bigint, bigint, integer, jsonb, text, boolean, boolean, boolean, text) is
  'For clients of the package: starts a run, or finds the one with this id or key; two starts with one key wait for each other. p_queue: null for the one that the workflow declares. p_any_workflow: the caller has the code of the workflow. p_fresh: the caller drew the id at random for this start, and sends JSON. p_notify: the start is alone in its transaction and notifies workers: an idle one gets the run at once (handed_off), otherwise all get the hint. p_reply: the address to which that worker then sends [id, state, value, error]. WF001, WF003, WF004, WF008, WF009.';

create or replace function durable.start_many(
  workflow text, args jsonb[], ids text[] default null, keys text[] default null, queue text default null,
  version text default '1', delay interval default null, timeout interval default null, priority integer default 0,
  tags jsonb default '{}', tenant text default '', any_workflow boolean default false)
returns table (id text, created boolean) language plpgsql volatile
as $$
declare
  v_name text := case when $1 ~* '^sql://' then durable._service_named($1) else $1 end;
  v_request durable._start_request := row(
    v_name, null, null, null, null, $5, $6, durable._ms($7), durable._ms($8), $9, $10, $11, $12);
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
    -- a slice begins at 1, unlike its array
    v_request.args := ($2[:])[1];
    v_request.input := v_request.args::text;
    v_request.id := ($3[:])[1];
    v_request.key := ($4[:])[1];
    v_id := (durable._start_single(v_request)).id;
    if v_id is not null then
      perform durable._hint('durable_ready', durable._now_ms());
      return query values (v_id, true);
      return;
    end if;
  end if;
  perform durable._check_descent($3);
  if v_name like 'sql://%' then
    v_request.queue := v_name;
  elsif $5 is null then
    v_request.queue := durable._own_queue(v_name, $6);
  end if;
  select array_agg(s.id order by s.ord), array_agg(s.created order by s.ord) into v_runs, v_created
  from durable._start_batch(
    v_request, $2, array(select a.value::text from unnest($2) with ordinality as a (value, n) order by a.n), $3, $4, true)
    with ordinality as s (id, created, ord);
  if true = any (v_created) then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return query select r.id, r.created from unnest(v_runs, v_created) with ordinality as r (id, created, n) order by r.n;
end
$$;
comment on function durable.start_many(
  text, jsonb[], text[], text[], text, text, interval, interval, integer, jsonb, text, boolean) is
  'Starts many runs of one workflow at once, one for each element of args: an object is arguments by name, an array arguments by position. select durable.start_many(''mail.send'', array_agg(to_jsonb(m)), keys => array_agg(m.id::text)) from outbox m. Answers id and created in the order of args; no args, no runs. The effect is that of as many calls of durable.start in your transaction, but all or none; an error names the element, from 1. queue: as for durable.start. ids and keys are as long as args, null where there is none. Other starts wait for your commit only for one of these ids or keys. With more than 1000 of them, the creation of a run or promise below an id that does not exist waits too; and while such a creation has not committed, this call fails with 55P03 after 2 s. WF001, WF003, WF004, WF008, WF009.';

create or replace function durable.recorded_inputs_v1(p_workflow text, p_ids text[], p_keys text[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select (select durable._input(p.param_headers, p.param_data)
            from durable._promises p join durable._executions h on h.execution = any (array[p.head])
            where p.id = any (array[coalesce(k.id, nullif(u.id, ''))]) and h.workflow = p_workflow)
    from unnest(p_ids, p_keys) with ordinality as u (id, key, n)
    left join lateral (select h.id from durable._executions h
                       where h.tenant = '' and h.workflow = p_workflow and h.key = nullif(u.key, '') limit 1) k on true
    order by u.n);
end
$$;
comment on function durable.recorded_inputs_v1(text, text[], text[]) is
  'For clients of the package: the inputs of the runs of a workflow that have these keys, or else these ids, as JSON texts; null for one that does not exist. An empty text is no id and no key.';

create or replace function durable.start(
  workflow text, args jsonb default '[]', id text default null, key text default null, queue text default null,
  version text default '1', delay interval default null, timeout interval default null, priority integer default 0,
  tags jsonb default '{}', tenant text default '', any_workflow boolean default false)
returns text language plpgsql volatile
as $$
declare
  v_id text;
  v_started durable.start_record;
begin
  if $3 is null and $4 is null and $7 is null and $8 is null and $9 = 0 and $10 = '{}' and $11 = '' then
    v_id := durable._start_ordinary($1, $2, $2::text, $5, $6, $12);
  end if;
  if v_id is null then
    v_started := durable._start_one(
      row($1, $2, $2::text, $3, $4, $5, $6, durable._ms($7), durable._ms($8), $9, $10, $11, $12));
    if not v_started.created then
      return v_started.id;
    end if;
    v_id := v_started.id;
  end if;
  if not durable._is_hinted('durable_ready', durable._now_ms()) then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return v_id;
end
$$;
comment on function durable.start(text, jsonb, text, text, text, text, interval, interval, integer, jsonb, text, boolean) is
  'Starts a run of a workflow and answers its id: select durable.start(''hello'', ''["world"]''). It is part of your transaction: a rollback leaves nothing. The same id or key again is the same run; with other input it is WF009. Without a queue it goes to the one that the workflow declares, else to default. A name that no worker ever registered is refused (WF001) unless any_workflow. Two starts by id or key in one transaction hold the first while they wait for the second, so two transactions that cross deadlock (40P01): durable.start_many starts many at once. WF004, WF008.';
