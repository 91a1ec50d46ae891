-- What the generations of a run leave unread belongs to the run, so continue-as-new copies no signal. ACCESS EXCLUSIVE on
-- durable._inboxes for a moment: nullable columns are added to the catalogue only, and the CHECK reads no row; 0024 validates it.
-- What earlier versions copied into a generation goes into the backlog when that generation ends.
-- It landed if there is a table durable._backlog.

alter table durable._inboxes add column backlog_from bigint;
alter table durable._inboxes add column backlog_upto bigint;
alter table durable._inboxes add constraint inboxes_backlog_is_counted check (case
    when backlog_upto is null then backlog_from is null
    else backlog_from is not null and 0 <= backlog_from and backlog_from <= backlog_upto
         and (receiver is null or backlog_upto <= backlog_from + delivered) end) not valid;
comment on column durable._inboxes.backlog_from is
  'The generation began after this number of the backlog of its run, so its delivery n is number backlog_from + n there. Null: no earlier generation left a signal of this name.';
comment on column durable._inboxes.backlog_upto is
  'Number of the last signal in the backlog. While the generation has fewer deliveries, what is sent goes into the backlog too, behind.';

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
