-- The rules of replay are kept with each run, and workers say which they know, so that a change of what a replay does holds for
-- younger runs only. ACCESS EXCLUSIVE on _executions, _tasks, _workers, _idle_workers and _workflows, for a moment: columns
-- with a constant default are added to the catalogue only. Runs that exist have the first rules. It landed if
-- durable._executions has the column rules.

alter table durable._executions add column rules smallint not null default 1;
comment on column durable._executions.rules is
  'The rules by which its code is replayed (durable._rules); a worker that does not know them never gets the run.';

alter table durable._tasks add column rules smallint not null default 1;
comment on column durable._tasks.rules is 'Copy of the rules of its head, so that the claim need not read it.';

alter table durable._workers add column rules smallint not null default 1;
comment on column durable._workers.rules is 'The newest rules of replay that it knows; a worker of 0.1.0 says nothing, and knows the first.';

alter table durable._idle_workers add column rules smallint not null default 1;
comment on column durable._idle_workers.rules is 'The newest rules of replay that it knows.';

alter table durable._workflows add column rules smallint not null default 1;
comment on column durable._workflows.rules is 'The rules by which its next runs are replayed: the newest that this worker and this schema know.';

create type durable._run_code as (workflow text, version text, digest bytea, rules smallint);
comment on type durable._run_code is 'The workflow of a new run, the digest of its code, and its rules of replay.';
