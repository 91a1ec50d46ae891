-- The audit of forks: which run was made from which, by whom, with what replaced.

create table durable._forks (
  at durable.epoch_ms not null,
  id text collate "C" not null,
  origin_id text collate "C" not null,
  origin bigint not null,
  seq integer not null,
  by text not null,
  replaced jsonb not null default '{}',
  constraint forks_pk primary key (id)
);
comment on table durable._forks is 'Runs that began as copies of others. A fork owns copies of all it took over, so its origin may go.';
comment on column durable._forks.at is 'When.';
comment on column durable._forks.id is 'The new run.';
comment on column durable._forks.origin_id is 'The run that it was made from.';
comment on column durable._forks.origin is 'Execution whose journal was copied: of a run that continued as new, one of several.';
comment on column durable._forks.seq is 'Where the copy ends: it took over what lies before this event, but neither waits that were not over nor what a clean-up did.';
comment on column durable._forks.by is 'Database user who asked for it.';
comment on column durable._forks.replaced is 'Values put in the place of recorded ones, by child number.';
