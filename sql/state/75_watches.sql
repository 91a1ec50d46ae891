-- Watches: conditions that owners of tables have put on their rows, the waits of runs for such rows, and the row events that
-- triggers and the sweep leave for durable.tick(). A trigger only inserts here, so it locks no row for which others wait.

create table durable._watches (
  id bigint not null generated always as identity,
  relation regclass not null,
  namespace text not null,
  table_name text not null,
  name text not null,
  condition text not null,
  columns text[] not null,
  types text[] not null,
  trusted boolean not null default false,
  constraint watches_pk primary key (id),
  constraint watches_name_unique unique (namespace, table_name, name),
  constraint watches_name_is_plain check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  constraint watches_columns_have_types check (cardinality(columns) = cardinality(types) and columns <> '{}')
);
comment on table durable._watches is
  'Conditions on rows of tables, by table and name; people read the view durable.watches. Written by durable.watch and durable.unwatch alone.';
comment on column durable._watches.relation is 'The table, also after it was renamed.';
comment on column durable._watches.namespace is 'Schema of the table when it was watched: workflows use that name.';
comment on column durable._watches.table_name is 'Name of the table when it was watched.';
comment on column durable._watches.condition is 'Expression over the columns, as the server writes it down: every name in it has its schema.';
comment on column durable._watches.columns is 'Columns by whose values runs wait for a row.';
comment on column durable._watches.types is 'Their types, domains resolved; text for an enum.';
comment on column durable._watches.trusted is
  'The table''s owner may run code with the rights of the engine''s owner and of its workers: a role that has them allowed it.';

create table durable._row_waits (
  execution bigint not null,
  test_at durable.epoch_ms,
  since xid8,
  watch bigint not null,
  tests integer not null default 0,
  promise_id text collate "C" not null,
  key jsonb not null,
  constraint row_waits_pk primary key (promise_id),
  constraint row_waits_armed_know_since_when check (test_at is not null or since is not null)
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._row_waits is
  'Waits of runs for rows, one for each such promise while it is pending. Armed (test_at null): every writer sees it. Before that it is tested repeatedly.';
comment on column durable._row_waits.execution is 'The run that waits; the wait ends with the run.';
comment on column durable._row_waits.test_at is
  'When durable.tick() tests it against the table; null: the triggers report it; 0: its run has ended.';
comment on column durable._row_waits.since is
  'The number of a transaction that began to write after the wait was committed: once all earlier ones have ended, every trigger sees the wait.';
comment on column durable._row_waits.tests is 'How often it was tested; the pauses grow with it.';
comment on column durable._row_waits.key is 'Values of the watch''s columns, canonical, as the triggers compute them.';

create index row_waits_by_key on durable._row_waits (watch, key);
comment on index durable.row_waits_by_key is 'Serves the triggers: one lookup for each row that a statement changed.';
create index row_waits_by_execution on durable._row_waits (execution);
comment on index durable.row_waits_by_execution is 'Serves _settle: the waits of runs that end.';
create index row_waits_by_test_at on durable._row_waits (test_at) where test_at is not null;
comment on index durable.row_waits_by_test_at is 'Serves the sweep of waits that are to be tested.';

create table durable._row_events (
  id bigint not null generated always as identity,
  xid xid8 not null,
  watch bigint not null,
  state text,
  promise_id text collate "C",
  key jsonb,
  data jsonb,
  constraint row_events_pk primary key (id),
  constraint row_events_state_is_known check (state in ('resolved', 'rejected', 'rejected_canceled')),
  constraint row_events_verdicts_name_a_promise check ((state is null) = (promise_id is null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._row_events is
  'Work for durable.tick(): settle a promise, or test waits of a watch again (no promise; no key: all of them). Committed with the user''s rows, deleted when done.';
comment on column durable._row_events.xid is
  'Transaction of the writer; its triggers take the event back if it changes the row again.';
comment on column durable._row_events.state is 'Verdict on the promise.';
comment on column durable._row_events.key is 'Values of the key of the waits to test.';
comment on column durable._row_events.data is 'The row as JSON, or an error.';

create index row_events_by_xid on durable._row_events (xid, watch);
comment on index durable.row_events_by_xid is 'Serves the triggers: earlier row events of the same transaction.';

create type durable._row_outcome as (promise_id text, watch bigint, state text, data jsonb);
comment on type durable._row_outcome is 'The outcome of a wait for a row.';
