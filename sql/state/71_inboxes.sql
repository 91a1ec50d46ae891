-- Signals: the payloads sent to runs by name, in order, and the receive that waits for the next one. The journal has the
-- events; a payload is stored here only. The backlog of a run is what its earlier generations left unread.

create table durable._inboxes (
  execution bigint not null,
  backlog_from bigint,
  backlog_upto bigint,
  delivered integer not null default 0,
  received integer not null default 0,
  receiver integer,
  name text collate "C" not null,
  constraint inboxes_pk primary key (execution, name),
  constraint inboxes_received_was_delivered check (0 <= received and received <= delivered),
  constraint inboxes_nothing_lies_while_one_waits check (receiver is null or received = delivered),
  constraint inboxes_backlog_is_counted check (case
    when backlog_upto is null then backlog_from is null
    else backlog_from is not null and 0 <= backlog_from and backlog_from <= backlog_upto
         and (receiver is null or backlog_upto <= backlog_from + delivered) end)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.1);
comment on table durable._inboxes is 'Counters of one signal name of one run: its deliveries and receipts are numbered 1, 2, 3, and receipt n takes delivery n.';
comment on column durable._inboxes.delivered is 'Number of the last delivery.';
comment on column durable._inboxes.received is 'Number of the last receipt.';
comment on column durable._inboxes.receiver is 'Child number of the receive that the next delivery completes; null: none waits.';
comment on column durable._inboxes.backlog_from is
  'The generation began after this number of the backlog of its run, so its delivery n is number backlog_from + n there. Null: no earlier generation left a signal of this name.';
comment on column durable._inboxes.backlog_upto is
  'Number of the last signal in the backlog. While the generation has fewer deliveries, what is sent goes into the backlog too, behind.';

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

create table durable._backlog (
  execution bigint,
  number bigint not null,
  seq integer,
  id text collate "C" not null,
  name text collate "C" not null,
  key text collate "C",
  data text,
  constraint backlog_pk primary key (id, name, number),
  constraint backlog_is_numbered_from_one check (number >= 1),
  constraint backlog_says_when_it_came check ((execution is null) = (seq is null))
);
comment on table durable._backlog is
  'Signals that the generations of a run have not received: those that an earlier one left unread, and those that came behind them. They belong to the run, so continue-as-new copies none; each is delivered to the generation that receives it.';
comment on column durable._backlog.execution is
  'The generation at the time of sending, if the signal came behind others; null for one that a generation got and left unread.';
comment on column durable._backlog.number is 'Number within run and name, over all generations.';
comment on column durable._backlog.seq is 'Number of the next journal row of that generation then, so that a fork gets what came before its position.';
comment on column durable._backlog.id is 'The run.';
comment on column durable._backlog.name is 'Name of the signal.';
comment on column durable._backlog.key is 'Deduplication key of the sender.';
comment on column durable._backlog.data is 'Payload as JSON text; null: none.';

create unique index backlog_by_key on durable._backlog (id, name, key) where key is not null;
comment on index durable.backlog_by_key is 'Decides that a signal was sent before.';
