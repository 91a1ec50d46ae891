-- The execution journal: append-only but for failures that lie far back, written by _append alone, one row for up to three
-- logical events of one transaction.
-- The view durable.journal_events gives the logical stream.

create type durable.row_type as enum (
  'execution_started', 'execution_completed', 'execution_failed', 'cancel_requested', 'execution_cancelled',
  'step_completed', 'step_failed', 'first_attempt_failed', 'step_started', 'step_scheduled',
  'attempt_started', 'attempt_failed', 'last_attempt_completed', 'last_attempt_failed',
  'open_attempt_failed', 'open_step_completed', 'open_step_failed',
  'child_run_scheduled', 'child_run_started', 'child_run_interrupted', 'child_settled', 'open_child_settled',
  'promise_registered', 'timer_scheduled', 'timer_fired', 'random_generated', 'time_recorded',
  'signal_delivered', 'signal_received', 'join_set_created', 'join_set_submitted', 'join_set_awaited',
  'execution_awaiting', 'execution_resumed'
);
comment on type durable.row_type is
  'The type of a journal row. durable.journal_types() gives the logical events of each.';

create table durable._journal (
  execution bigint not null,
  ts durable.epoch_ms not null,
  bucket integer not null,
  seq integer not null,
  child integer,
  attempt integer,
  type durable.row_type not null,
  name text,
  input_hash bytea,
  data text,
  constraint journal_pk primary key (execution, seq, bucket),
  constraint journal_seq_not_negative check (seq >= 0),
  constraint journal_starts_with_started check ((seq = 0) = (type = 'execution_started'))
) partition by list (bucket);

comment on table durable._journal is
  'The events of each run, in order. A row covers the sequence numbers [seq, seq + durable._width(type)). Rows are never updated.';
comment on column durable._journal.bucket is 'Partition: the bucket of the execution.';
comment on column durable._journal.seq is 'First sequence number of the row.';
comment on column durable._journal.ts is 'Instant of the transaction''s writes, or of the row before it if the clock was set back between them; replay never uses it.';
comment on column durable._journal.child is 'Number of the child that the row is about.';
comment on column durable._journal.attempt is
  'Attempt of the invocation, from 1; of a signal its delivery number; of a member its join set; of ExecutionStarted the attempt of the run, null for the first.';
comment on column durable._journal.type is 'The type of the row: one of durable.journal_types(), which gives its logical events.';
comment on column durable._journal.name is 'Function, workflow or promise name: compared on every replay.';
comment on column durable._journal.input_hash is
  'First 8 bytes of the hash of name and arguments: compared on every replay. Since rules 4 those of the hash without defaults stand before them, if the call has defaults.';
comment on column durable._journal.data is 'Result, error, captured value or wait as JSON text. Null where a promise row holds it.';

create index journal_by_adopted on durable._journal (name)
  where type in ('open_child_settled', 'child_settled') and name is not null;
comment on index durable.journal_by_adopted is 'Serves retention: the journals that read the result of a promise of another run.';

create table durable._buckets (
  bucket integer not null,
  constraint buckets_pk primary key (bucket)
);
comment on table durable._buckets is 'Weeks (since the epoch) that have a journal partition. durable.tick() opens them ahead of time.';

create type durable.as_of_record as (
  generation integer, seq integer, at timestamptz, status text, next_child integer, waiting_on text[], running jsonb,
  children jsonb, signals jsonb
);
comment on type durable.as_of_record is 'The state of a run when its journal had seq events, the last of them at that instant.';

create type durable._attempt as (number integer, state text);
comment on type durable._attempt is
  'The state of a local step: the attempt of that number is running, or due because it comes next; or the step is complete, without a number. Null: no row is about the step.';

create type durable._event as (
  execution bigint, type durable.row_type, child integer, attempt integer, name text, input_hash bytea, data text
);
comment on type durable._event is 'One journal row to be written, before it has a sequence number.';

create type durable._settled as (
  id text, state text, execution bigint, child integer, head bigint, timer boolean, attempt integer, attempt_open boolean,
  settled_at bigint
);
comment on type durable._settled is
  'A promise that the current transaction settled, with the data that the journal of its owner records.';

create type durable._step_outcome as (
  child integer, name text, hash text, attempt integer, value text, error text, retry_in bigint, begun boolean,
  param text, retry text
);
comment on type durable._step_outcome is 'The outcome of an attempt of a local step: begun, failed, completed, or failed for good.';

create type durable._command as (
  "do" text, child integer, name text, version text, queue text, hash text, param text, timeout bigint,
  detached boolean, duration bigint, value text, "set" integer, abandon boolean, retry text
);
comment on type durable._command is 'A command of a coroutine: start a run or a timer, make or adopt a promise, record a value, begin a step, receive a signal, use a join set.';

create type durable._ending as (
  "do" text, "on" integer[], kind text, value text, error text, retry_in bigint, problem text, version text
);
comment on type durable._ending is 'How a report leaves the task: suspend, complete, fail, cancel, continue, release or halt.';

create type durable._run_report as (
  execution bigint, version integer, seen integer, outcomes durable._step_outcome[],
  commands durable._command[], ending durable._ending, id text, verdict text, seq integer, next integer, event durable._event
);
comment on type durable._run_report is
  'The report of one run in a turn, and its result: the verdict, where its rows begin and end, and the row of a single outcome.';

create type durable._progress_report as (
  execution bigint, id text, seq integer, done double precision, total double precision, note text, named jsonb
);
comment on type durable._progress_report is
  'The values that a run has set since its last report, as durable._progress keeps them; done is null if it has only set named values.';

create type durable._turn_batch as (
  reports durable._run_report[], has_commands boolean, has_outcomes boolean, has_several boolean, has_unknown boolean,
  endings text[], settles text[], writes_side_rows boolean, adopts text[], progress durable._progress_report[]
);
comment on type durable._turn_batch is
  'The reports of one turn, and properties of all of them. The cost of a turn is mainly the number of its statements, and most statements are for cases that most turns do not have. has_several: some report is more than a single outcome. has_unknown: some report names no run, or an ending that this schema does not know. endings: that of each report, null for none. settles: promises that may be settled. writes_side_rows: a report may write side rows of its own run (it receives, takes or continues). adopts: promises of others to wait for. progress: what runs have set.';

create type durable._turn_answer as (
  now bigint, verdicts json, tails json, tasks json, hints text[], settled boolean, due_in bigint, busy bigint[], locked text[],
  idle boolean
);
comment on type durable._turn_answer is 'The answer of worker_turn_v1.';

create type durable._sql_step_call as (
  worker text, execution bigint, id text, version integer, seen integer, child integer, attempt integer, name text, hash text
);
comment on type durable._sql_step_call is
  'A call of a step in SQL: the lease under which it is made, and the child, attempt, name and input hash that are recorded.';

create type durable._journal_line as (
  execution bigint, bucket integer, seq integer, ts bigint, type durable.row_type, child integer, attempt integer, name text,
  has_data boolean, data text, has_references boolean, is_unreadable boolean, input_hash bytea
);
comment on type durable._journal_line is 'A journal row for the laws, with the data of waits, timers and captured values only. has_references: its data refers to large values; is_unreadable: it is no JSON.';

create type durable.check_record as (law text, id text, detail text);
comment on type durable.check_record is 'A violated law, as durable.check() answers it: its name, the object, the values.';
