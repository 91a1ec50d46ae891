-- The audit of forks: the origin of each fork, the user who made it, and the values that were replaced.

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
comment on table durable._forks is
  'Runs that began as copies of others. A fork has copies of all rows that it took over, so its origin may be removed.';
comment on column durable._forks.at is 'When.';
comment on column durable._forks.id is 'The new run.';
comment on column durable._forks.origin_id is 'The run of which it is a fork.';
comment on column durable._forks.origin is
  'The execution whose journal was copied: one of several in a run that continued as new.';
comment on column durable._forks.seq is
  'The position at which the copy ends: it has the rows before this event, without waits that were not over and without the effects of a clean-up.';
comment on column durable._forks.by is 'Database user who asked for it.';
comment on column durable._forks.replaced is 'Values that replaced recorded ones, by child number.';
