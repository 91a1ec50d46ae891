-- Skip this file on a first reading. It has the statements that insert whole runs: ordinary ones, checks included; one with
-- options, for the single-row path of a start (22_start_single.sql); those with random ids (23_start_fresh.sql).
-- 20_journal/40_append.sql and 24_start.sql insert runs of any kind, in several statements, which cost three times as much for a
-- few runs.

create or replace function durable._is_ordinary(p_workflow text, p_args jsonb, p_input text, p_queue text, p_version text)
returns boolean language sql immutable parallel safe
as $$
  select octet_length(p_workflow) between 1 and 256 and strpos(p_workflow, ':') = 0 and p_version <> ''
         and jsonb_typeof(p_args) in ('array', 'object') and octet_length(p_input) <= 1000
         and (p_queue is null or p_queue = 'default' or durable._is_plain_name(p_queue))
$$;
comment on function durable._is_ordinary(text, jsonb, text, text, text) is
  'True if a start without options but its queue has small arguments and certainly passes all checks, judged by these fields alone. Inlined.';

create or replace function durable._start_ordinary(
  p_workflow text, p_args jsonb, p_input text, p_queue text, p_version text, p_any_workflow boolean)
returns text language plpgsql volatile
as $$
declare
  v_run text;
begin
  with run as materialized (
    select durable._fresh_id(n.now) as id, durable._next_execution() as execution, n.now, w.digest,
           coalesce(w.rules, 1::smallint) as rules,
           coalesce((select b.bucket from durable._buckets b where b.bucket = durable._week(n.now)), durable._bucket(n.now))
             as bucket,
           coalesce(p_queue, w.queue, 'default') as queue
    from (select durable._now_ms() as now offset 0) n
      left join durable._workflows w on w.name = p_workflow and w.version = p_version
    where (w.name is not null or p_any_workflow) and durable._is_ordinary(p_workflow, p_args, p_input, p_queue, p_version)
          -- the look adopts an idle copy; in any other copy the single-row path writes the run
          and (durable._knows_site() or not durable._is_copy())),
  promise as (
    insert into durable._promises (id, head, timeout_at, created_at, external, target, param_headers, param_data)
    select r.id, r.execution, durable._never(), r.now, true, durable._target_of(r.queue), '{"codec": "json"}', p_input
    from run r),
  head as (
    insert into durable._executions (execution, last_at, id, workflow, workflow_version, bucket, next_seq, rules, digest)
    select r.execution, r.now, r.id, p_workflow, p_version, r.bucket, 1, r.rules, r.digest from run r),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select r.bucket, r.execution, 0, r.now, 'execution_started' from run r)
  insert into durable._tasks as t (id, execution, deadline, retry_at, queue, rules, workflow, workflow_version)
  select r.id, r.execution, durable._never(), r.now, r.queue, r.rules, p_workflow, p_version from run r
  returning t.id into v_run;
  return v_run;
end
$$;
comment on function durable._start_ordinary(text, jsonb, text, text, text, boolean) is
  'Starts a new run that has no option but its queue, and checks it, by one statement, where the single-row path has several. Its id is drawn here, so no row has it. Null: it is no ordinary one, nothing was written, and the single-row path decides.';

create or replace function durable._start_resendable(
  p_workflow text, p_args jsonb, p_input text, p_id text, p_queue text, p_version text, p_any_workflow boolean)
returns text language plpgsql volatile
as $$
declare
  v_run text;
begin
  with run as materialized (
    select p_id as id, durable._next_execution() as execution, n.now, w.digest,
           coalesce(w.rules, 1::smallint) as rules,
           coalesce((select b.bucket from durable._buckets b where b.bucket = durable._week(n.now)), durable._bucket(n.now))
             as bucket,
           coalesce(p_queue, w.queue, 'default') as queue
    from (select durable._now_ms() as now offset 0) n
      left join durable._workflows w on w.name = p_workflow and w.version = p_version
    where (w.name is not null or p_any_workflow) and durable._is_ordinary(p_workflow, p_args, p_input, p_queue, p_version)
          and p_id ~ '^[0-9a-f]{32}$'
          and (durable._knows_site() or not durable._is_copy())),
  promise as (
    insert into durable._promises (id, head, timeout_at, created_at, external, target, param_headers, param_data)
    select r.id, r.execution, durable._never(), r.now, true, durable._target_of(r.queue), '{"codec": "json"}', p_input from run r
    on conflict do nothing returning true),
  head as (
    insert into durable._executions (execution, last_at, id, workflow, workflow_version, bucket, next_seq, rules, digest)
    select r.execution, r.now, r.id, p_workflow, p_version, r.bucket, 1, r.rules, r.digest from run r, promise),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select r.bucket, r.execution, 0, r.now, 'execution_started' from run r, promise)
  insert into durable._tasks as t (id, execution, deadline, retry_at, queue, rules, workflow, workflow_version)
  select r.id, r.execution, durable._never(), r.now, r.queue, r.rules, p_workflow, p_version from run r, promise
  returning t.id into v_run;
  return v_run;
end
$$;
comment on function durable._start_resendable(text, jsonb, text, text, text, text, boolean) is
  'As _start_ordinary, with an id that the client drew at random. Null also if a promise with that id exists, because the start was sent again.';

create or replace function durable._insert_run(
  p_request durable._start_request, p_run text, p_execution bigint, p_worker durable._idle_workers, p_now bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_is_claimed boolean := p_worker.worker is not null;
begin
  with promise as (
    insert into durable._promises (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data, tags)
    values (p_run, p_request.tenant, p_execution, durable._later(p_now, p_request.timeout_ms), p_now, true,
            durable._target_of(p_request.queue), '{"codec": "json"}', p_request.input, p_request.tags)
    on conflict do nothing returning true),
  head as (
    insert into durable._executions as h (execution, last_at, id, tenant, workflow, workflow_version, key, bucket, next_seq,
                                          rules, digest)
    select p_execution, p_now, p_run, p_request.tenant, p_request.workflow, p_request.version, p_request.key,
           coalesce((select b.bucket from durable._buckets b where b.bucket = durable._week(p_now)), durable._bucket(p_now)), 1,
           coalesce(w.rules, 1::smallint), w.digest
    from promise left join durable._workflows w on w.name = p_request.workflow and w.version = p_request.version
    on conflict (tenant, workflow, key) where key is not null do nothing returning h.bucket, h.rules),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select h.bucket, p_execution, 0, p_now, 'execution_started' from head h)
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, rules, workflow, workflow_version, state,
                              version, pid, ttl, expires_at, attempt, attempt_open)
  select p_run, p_execution, durable._later(p_now, p_request.timeout_ms),
         case when not v_is_claimed then p_now + coalesce(p_request.delay_ms, 0) end,
         p_request.queue, p_request.priority, h.rules, p_request.workflow, p_request.version,
         case when v_is_claimed then 'acquired' else 'pending' end, v_is_claimed::integer, p_worker.worker,
         p_worker.ttl, p_now + p_worker.ttl, v_is_claimed::integer, v_is_claimed
  from head h;
  if not found then
    delete from durable._promises p where p.id = p_run and p.head = p_execution;
    return false;
  end if;
  return true;
end
$$;
comment on function durable._insert_run(durable._start_request, text, bigint, durable._idle_workers, bigint) is
  'Inserts promise, head, first journal row and task of a new run, by one statement; the task as claimed by p_worker, if that is one. False, and nothing is written, if a promise with this id exists, or a run with this key, which a bulk start, which locks no keys, has just committed.';

create or replace function durable._insert_fresh_runs(
  p_request durable._start_request, p_args text[], p_ids text[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_bucket integer := durable._bucket(p_now);
  v_code durable._run_code := durable._code_to_run(p_request.workflow, p_request.version);
  v_timeout_at bigint := durable._later(p_now, p_request.timeout_ms);
begin
  with run as materialized (
    select u.id, u.args, durable._next_execution() as execution from unnest(p_ids, p_args) as u (id, args)),
  promise as (
    insert into durable._promises (id, tenant, head, timeout_at, created_at, external, target, param_headers, param_data, tags)
    select r.id, p_request.tenant, r.execution, v_timeout_at, p_now, true, durable._target_of(p_request.queue),
           '{"codec": "json"}', r.args, p_request.tags
    from run r),
  head as (
    insert into durable._executions (execution, last_at, id, tenant, workflow, workflow_version, bucket, next_seq, rules, digest)
    select r.execution, p_now, r.id, p_request.tenant, p_request.workflow, p_request.version, v_bucket, 1, v_code.rules,
           v_code.digest
    from run r),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select v_bucket, r.execution, 0, p_now, 'execution_started' from run r)
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, rules, workflow, workflow_version)
  select r.id, r.execution, v_timeout_at, p_now + coalesce(p_request.delay_ms, 0), p_request.queue, p_request.priority,
         v_code.rules, p_request.workflow, p_request.version
  from run r;
end
$$;
comment on function durable._insert_fresh_runs(durable._start_request, text[], text[], bigint) is
  'Inserts promise, head, first journal row and task of each of these runs, by one statement. 23505 if one exists.';
