-- Skip this file on a first reading. It has the statement by which the single-row path of a start (22_start_single.sql) inserts
-- a run, and the one for runs with random ids (23_start_fresh.sql). 20_journal/40_append.sql and 24_start.sql insert runs of any
-- kind, in several statements, which cost three times as much for a few runs.

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
    insert into durable._executions as h (execution, id, tenant, workflow, workflow_version, key, bucket, next_seq, digest)
    select p_execution, p_run, p_request.tenant, p_request.workflow, p_request.version, p_request.key,
           coalesce((select b.bucket from durable._buckets b where b.bucket = durable._week(p_now)), durable._bucket(p_now)), 1,
           (select w.digest from durable._workflows w where w.name = p_request.workflow and w.version = p_request.version)
    from promise
    on conflict (tenant, workflow, key) where key is not null do nothing returning h.bucket),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select h.bucket, p_execution, 0, p_now, 'execution_started' from head h)
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, workflow, workflow_version, state, version, pid,
                              ttl, expires_at, attempt, attempt_open)
  select p_run, p_execution, durable._later(p_now, p_request.timeout_ms),
         case when not v_is_claimed then p_now + coalesce(p_request.delay_ms, 0) end,
         p_request.queue, p_request.priority, p_request.workflow, p_request.version,
         case when v_is_claimed then 'acquired' else 'pending' end, v_is_claimed::integer, p_worker.worker,
         p_worker.ttl, p_now + p_worker.ttl, v_is_claimed::integer, v_is_claimed
  from head;
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
  v_digest bytea := (
    select w.digest from durable._workflows w where w.name = p_request.workflow and w.version = p_request.version);
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
    insert into durable._executions (execution, id, tenant, workflow, workflow_version, bucket, next_seq, digest)
    select r.execution, r.id, p_request.tenant, p_request.workflow, p_request.version, v_bucket, 1, v_digest from run r),
  started as (
    insert into durable._journal (bucket, execution, seq, ts, type)
    select v_bucket, r.execution, 0, p_now, 'execution_started' from run r)
  insert into durable._tasks (id, execution, deadline, retry_at, queue, priority, workflow, workflow_version)
  select r.id, r.execution, v_timeout_at, p_now + coalesce(p_request.delay_ms, 0), p_request.queue, p_request.priority,
         p_request.workflow, p_request.version
  from run r;
end
$$;
comment on function durable._insert_fresh_runs(durable._start_request, text[], text[], bigint) is
  'Inserts promise, head, first journal row and task of each of these runs, by one statement. 23505 if one exists.';
