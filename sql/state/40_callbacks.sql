-- Who waits for a promise: tasks (callbacks) and addresses (listeners). Rows exist only while the promise is pending.

create table durable._callbacks (
  awaited_id text collate "C" not null,
  awaiter_id text collate "C" not null,
  constraint callbacks_pk primary key (awaited_id, awaiter_id),
  constraint callbacks_awaiter_is_not_awaited check (awaited_id <> awaiter_id)
);
comment on table durable._callbacks is
  'Tasks to resume when a promise settles. Consumed by _settle in the settling transaction. A run''s own children get theirs at birth.';
comment on column durable._callbacks.awaited_id is 'An external pending promise.';
comment on column durable._callbacks.awaiter_id is 'A targeted promise, whose task is resumed.';

create table durable._listeners (
  awaited_id text collate "C" not null,
  address text not null,
  constraint listeners_pk primary key (awaited_id, address),
  constraint listeners_address_not_empty check (address <> '')
);
comment on table durable._listeners is 'Addresses to tell when a promise settles; each becomes one row of _unblocks.';
comment on column durable._listeners.awaited_id is 'An external pending promise.';
comment on column durable._listeners.address is 'Canonical address.';
