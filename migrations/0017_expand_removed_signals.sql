-- Keys of signals to generations that retention has removed are remembered. Locks: none that anybody could wait for. It landed if
-- durable._removed_signals exists.

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
