-- Messages that must leave the database, and the record that limits hints. The policy of delivery is in logic.

create table durable._unblocks (
  created_at durable.epoch_ms not null,
  claimed_until durable.epoch_ms not null default 0,
  attempts integer not null default 0,
  promise_id text collate "C" not null,
  address text not null,
  constraint unblocks_pk primary key (promise_id, address),
  constraint unblocks_address_not_empty check (address <> '')
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._unblocks is
  'Messages to listeners that a promise settled: kept until acknowledged, so delivery is at least once.';
comment on column durable._unblocks.claimed_until is 'A courier holds it until this instant.';
comment on column durable._unblocks.created_at is 'When the promise settled.';
comment on column durable._unblocks.attempts is 'Deliveries begun so far.';

create index unblocks_by_claimed_until on durable._unblocks (claimed_until);
comment on index durable.unblocks_by_claimed_until is 'Serves unblock_claim for a courier of any address.';
create index unblocks_by_address on durable._unblocks (address, claimed_until);
comment on index durable.unblocks_by_address is 'Serves unblock_claim for one address.';

create unlogged table durable._hints (
  sent_at durable.epoch_ms not null,
  channel text not null,
  constraint hints_pk primary key (channel)
) with (fillfactor = 50);
comment on table durable._hints is 'When a plain SQL caller last sent a hint on a channel: keeps hints to one in 50 ms. Losing it is harmless.';
comment on column durable._hints.sent_at is 'Instant of the last hint.';
