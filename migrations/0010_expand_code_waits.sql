-- A run that does not fit the code of a worker waits for one that has its code. Locks: none that anybody could wait for. It landed if
-- durable._code_waits exists.

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
