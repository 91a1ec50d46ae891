-- A run that does not fit the code of a worker is left to a worker with the code that wrote its journal, or waits for one. ACCESS
-- EXCLUSIVE on durable._executions and durable._workers for a moment: nullable columns are added to the catalogue only. It landed
-- if durable._code_waits exists.

alter table durable._executions add column former_digest bytea, add column code_seq integer;
comment on column durable._executions.former_digest is
  'Digest of the code that wrote the journal before code_seq, while that of digest has claimed the run and written nothing; null: the code of digest wrote it. See durable._writer.';
comment on column durable._executions.code_seq is
  'next_seq when the code of digest claimed the run first, if another one had it before.';

alter table durable._workers add column digests text[];
comment on column durable._workers.digests is 'Digest of the code of each of workflows; null: a worker that registered before these were kept.';

create table durable._code_waits (
  id text collate "C" not null,
  workflow text not null,
  workflow_version text not null,
  digest bytea not null,
  constraint code_waits_pk primary key (id, digest)
);
comment on table durable._code_waits is
  'Halted runs that did not fit the code of the worker that claimed them, and whose own code no worker has. A tick offers them to the first worker that has it. A row whose run is not halted any more has no effect.';
comment on column durable._code_waits.id is 'The run.';
comment on column durable._code_waits.digest is 'Digest of the code that wrote its journal.';

create index code_waits_by_code on durable._code_waits (workflow, workflow_version, digest);
comment on index durable.code_waits_by_code is 'Serves the tick: the runs that wait for the code of a worker.';
