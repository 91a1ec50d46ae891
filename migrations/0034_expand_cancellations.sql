-- A run ends its child runs when it does not wait for them any more or has ended (decisions/0127). Locks: none that anybody could wait
-- for. It landed if durable._cancellations exists.

create table durable._cancellations (
  number bigint generated always as identity,
  id text collate "C" not null,
  reason jsonb not null,
  constraint cancellations_pk primary key (number)
);
comment on table durable._cancellations is
  'Child runs whose parent does not wait for them any more, or has ended: they are to be cancelled. The next tick does it, because a turn or a settlement holds the locks of the parent and must not wait for those of the children. A run may stand here twice; a row whose run has ended has no effect.';
comment on column durable._cancellations.number is 'The older ones are cancelled first.';
comment on column durable._cancellations.id is 'The child run.';
comment on column durable._cancellations.reason is 'The reason that its journal gets.';
