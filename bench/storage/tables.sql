-- The tables of one variant. {s} is the variant's schema; lines between "--if flag" and "--end" belong to variants with that flag.
create schema {s};
create table {s}.promises (
  id text collate "C" primary key,
  state {state} not null,
  tenant text not null default '',
  execution bigint,
  child int,
  param text,
  param_headers jsonb,
  value text,
  value_headers jsonb,
  tags jsonb,
  timeout_at bigint not null,
  created_at bigint not null,
  settled_at bigint,
  task_version int,
  idempotency_key text
) with (fillfactor = {promises_fill});
create table {s}.tasks (
  id text collate "C" not null,
  execution bigint,
  state {state} not null,
  priority smallint not null default 0,
  crashes smallint not null default 0,
  version int not null default 0,
  ttl int,
  expires_at bigint,
  retry_at bigint,
  deadline bigint not null,
  queue text not null,
  workflow text not null,
  workflow_version text not null,
  pid text,
  preference text,
--if key_bigint
  primary key (execution)
--end
--if !key_bigint
  primary key (id)
--end
) with (fillfactor = 70);
--if !ready_table
create index tasks_ready on {s}.tasks (queue, priority, retry_at, id) where state = {pending};
--end
--if ready_table
create table {s}.ready (
  queue text not null, priority smallint not null, retry_at bigint not null, id text collate "C" not null,
  primary key (queue, priority, retry_at, id)
);
--end
create index tasks_held on {s}.tasks (pid) where state = {acquired};
create table {s}.executions (
  execution bigint generated always as identity primary key,
  id text collate "C" not null {head_unique},
  bucket int not null,
  status {state} not null,
  next_seq int not null,
  next_child int not null,
--if once
  prev_seq int,
--end
--if lease_in_head
  version int not null default 0,
  expires_at bigint,
--end
  wait_left int,
  digest bytea,
  open_children int[],
  open_attempts smallint[]
) with (fillfactor = {heads_fill});
create table {s}.journal (
--if packed
  execution bigint not null,
  ts bigint not null,
  bucket int not null,
  seq int not null,
  child int,
  attempt smallint,
  type "char" not null,
--end
--if !packed
  bucket int not null,
  execution bigint not null,
  seq int not null,
  child int,
  type "char" not null,
  attempt smallint,
  ts bigint not null,
--end
  name text,
  input_hash bytea,
  data text,
  primary key ({journal_key})
) {partitioned};
--if !plain
create table {s}.journal_1 partition of {s}.journal for values in (1);
create table {s}.journal_2 partition of {s}.journal for values in (2);
create table {s}.journal_3 partition of {s}.journal for values in (3);
create table {s}.journal_4 partition of {s}.journal for values in (4);
create table {s}.journal_5 partition of {s}.journal for values in (5);
--end
create function {s}.clock() returns bigint language sql as $$
  select (extract(epoch from clock_timestamp()) * 1000)::bigint
$$;
-- Bulk start: promise, task, head and the ExecutionStarted row. Every tenth run lies in another bucket.
create function {s}.start(p_ids text[], p_queue text, p_param text) returns void language sql as $$
  with h as (
    insert into {s}.executions (id, bucket, status, next_seq, next_child)
    select i, case when o % 10 = 0 then 2 else 3 end, {running}, 1, 0 from unnest(p_ids) with ordinality u(i, o)
    returning id, execution, bucket
  ), p as (
    insert into {s}.promises (id, state, param, timeout_at, created_at, tags)
    select h.id, {pending}, p_param, 9007199254740991, {s}.clock(), null from h
  ), t as (
    insert into {s}.tasks (id, execution, state, retry_at, deadline, queue, workflow, workflow_version)
    select h.id, {task_execution}, {pending}, {s}.clock(), 9007199254740991, p_queue, 'hello', '1' from h
    returning queue, priority, retry_at, id
  )
--if ready_table
  , r as (insert into {s}.ready select queue, priority, retry_at, id from t)
--end
  insert into {s}.journal (bucket, execution, seq, type, ts) select bucket, execution, 0, 'S', {s}.clock() from h
$$;
-- The whole journal of one run, as worker_journal_v1 would answer it.
create function {s}.journal_of(p_bucket int, p_execution bigint) returns jsonb language plpgsql stable {plan} as $$
begin
  return (select jsonb_agg(jsonb_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'), j.data) order by j.seq)
          from {s}.journal j where {bucket_is_known} j.execution = p_execution);
end $$;
