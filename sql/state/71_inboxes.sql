-- Signals: the payloads sent to runs by name, in order, and the receive that waits for the next one. The journal has the
-- events; a payload is stored here only.

create table durable._inboxes (
  execution bigint not null,
  delivered integer not null default 0,
  received integer not null default 0,
  receiver integer,
  name text collate "C" not null,
  constraint inboxes_pk primary key (execution, name),
  constraint inboxes_received_was_delivered check (0 <= received and received <= delivered),
  constraint inboxes_nothing_lies_while_one_waits check (receiver is null or received = delivered)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.1);
comment on table durable._inboxes is 'Counters of one signal name of one run: its deliveries and receipts are numbered 1, 2, 3, and receipt n takes delivery n.';
comment on column durable._inboxes.delivered is 'Number of the last delivery.';
comment on column durable._inboxes.received is 'Number of the last receipt.';
comment on column durable._inboxes.receiver is 'Child number of the receive that the next delivery completes; null: none waits.';

create table durable._signals (
  execution bigint not null,
  delivery integer not null,
  name text collate "C" not null,
  key text collate "C",
  data text,
  constraint signals_pk primary key (execution, name, delivery),
  constraint signals_are_numbered_from_one check (delivery >= 1)
);
comment on table durable._signals is 'Payloads of delivered signals.';
comment on column durable._signals.delivery is 'Delivery number within its name.';
comment on column durable._signals.key is 'Deduplication key of the sender: the same key again is the same delivery.';
comment on column durable._signals.data is 'Payload as JSON text; null: none.';

create unique index signals_by_key on durable._signals (execution, name, key) where key is not null;
comment on index durable.signals_by_key is 'Decides that a signal was delivered before.';
