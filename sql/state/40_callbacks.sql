-- Waiters of a promise: tasks (callbacks) and addresses (listeners). Rows exist only while the promise is pending.

create table durable._callbacks (
  awaited_id text collate "C" not null,
  awaiter_id text collate "C" not null,
  id text collate "C" not null default '',
  timeout_at durable.epoch_ms,
  child integer not null default -1,
  recv text,
  recv_headers jsonb,
  constraint callbacks_pk primary key (awaited_id, awaiter_id, id, child),
  constraint callbacks_child_is_a_number_or_minus_one check (child >= -1),
  constraint callbacks_id_iff_recv check ((id <> '') = (recv is not null)),
  constraint callbacks_id_iff_timeout check ((id <> '') = (timeout_at is not null)),
  constraint callbacks_recv_headers_need_a_recv check (recv_headers is null or recv is not null),
  constraint callbacks_awaiter_is_not_awaited check (awaited_id <> awaiter_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._callbacks is
  'Tasks to resume when a promise settles. _settle deletes them in the settling transaction. The callbacks of a run on its own children are created with the children.';
comment on column durable._callbacks.awaited_id is 'An external pending promise.';
comment on column durable._callbacks.awaiter_id is 'A targeted promise, whose task is resumed.';
comment on column durable._callbacks.child is
  'The child number under which the awaiter''s journal adopted a promise of others (R13); -1: not adopted.';
comment on column durable._callbacks.id is
  'The name of a callback in the older API, unique in the database; empty for all others.';
comment on column durable._callbacks.timeout_at is 'From this instant on it is deleted without a resume (older API).';
comment on column durable._callbacks.recv is 'Canonical address for the resume (older API); null: the awaiter''s target.';
comment on column durable._callbacks.recv_headers is 'Headers of an http recv, string to string.';

create unique index callbacks_by_id on durable._callbacks (id) where id <> '';
comment on index durable.callbacks_by_id is 'Detects a callback of the older API that is registered already.';
create unique index callbacks_by_child on durable._callbacks (awaiter_id, child) where child >= 0;
comment on index durable.callbacks_by_child is
  'Finds the promise of others that a child of the awaiter adopted, while it is pending.';

create index callbacks_by_stranger on durable._callbacks (awaiter_id)
  where child < 0 and not starts_with(awaited_id, awaiter_id || '.');
comment on index durable.callbacks_by_stranger is
  'Serves retention: awaits of a removed run for promises other than its children and adoptions; there are rarely any.';

create table durable._listeners (
  awaited_id text collate "C" not null,
  address text not null,
  constraint listeners_pk primary key (awaited_id, address),
  constraint listeners_address_not_empty check (address <> '')
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._listeners is 'Addresses to notify when a promise settles; each becomes one row of _unblocks.';
comment on column durable._listeners.awaited_id is 'An external pending promise.';
comment on column durable._listeners.address is 'Canonical address.';
