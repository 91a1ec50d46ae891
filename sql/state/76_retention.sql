-- Tombstones of removed runs and promises, and the positions of the sweeps of retention.

create table durable._removed (
  ended_at durable.epoch_ms not null,
  removed_at durable.epoch_ms not null,
  id text collate "C" not null,
  state text not null,
  tenant text not null default '',
  workflow text,
  key text,
  constraint removed_pk primary key (id),
  constraint removed_had_ended check (state in ('resolved', 'rejected', 'rejected_canceled', 'rejected_timedout')),
  constraint removed_after_their_end check (ended_at <= removed_at),
  constraint removed_keys_are_of_runs check (key is null or workflow is not null)
);
comment on table durable._removed is
  'Runs and free-standing promises that durable.purge removed: no new object gets their ids and keys while they are listed here (setting removed_ids_days). Their descendants are not listed.';
comment on column durable._removed.ended_at is 'When it was settled.';
comment on column durable._removed.removed_at is 'When it was removed.';
comment on column durable._removed.state is 'How it was settled.';
comment on column durable._removed.workflow is 'Workflow of a run; null: it was a promise without a journal.';
comment on column durable._removed.key is 'Idempotency key of its start.';

create unique index removed_by_key on durable._removed (tenant, workflow, key) where key is not null;
comment on index durable.removed_by_key is 'Serves starts with a key: whether the run with that key was removed.';
create index removed_by_removed_at on durable._removed (removed_at);
comment on index durable.removed_by_removed_at is 'Serves the sweep that forgets removed ids.';

create table durable._removed_signals (
  removed_at durable.epoch_ms not null,
  delivery integer not null,
  id text collate "C" not null,
  name text collate "C" not null,
  key text collate "C" not null,
  constraint removed_signals_pk primary key (id, name, key)
);
comment on table durable._removed_signals is
  'Deduplication keys of signals to generations that retention removed while their run lives: the same key again is the same delivery while it is listed here (setting removed_ids_days).';
comment on column durable._removed_signals.removed_at is 'When the generation was removed.';
comment on column durable._removed_signals.delivery is 'The number of the delivery in that generation.';
comment on column durable._removed_signals.id is 'The run.';
comment on column durable._removed_signals.name is 'Name of the signal.';
comment on column durable._removed_signals.key is 'Deduplication key of the sender.';

create index removed_signals_by_removed_at on durable._removed_signals (removed_at);
comment on index durable.removed_signals_by_removed_at is 'Serves the sweep that forgets keys of signals.';

create table durable._retention (
  due_at durable.epoch_ms not null default 0,
  subject text not null,
  place jsonb,
  problem text,
  constraint retention_pk primary key (subject)
) with (fillfactor = 50);
comment on table durable._retention is 'The positions of the sweeps by durable.tick(): one row for runs and, once there are any, one each for calls, objects and callbacks of the older API.';
comment on column durable._retention.due_at is 'The instant at which the sweep continues.';
comment on column durable._retention.subject is 'runs, calls, objects or callbacks.';
comment on column durable._retention.place is 'Where it continues, as the purge of that subject answers in more; null: from the start.';
comment on column durable._retention.problem is
  'Why its last portion failed, with the SQLSTATE; null if it did not. It is tried again after ten minutes.';
