-- Heads know the instant of the last row of their journal, so that no row is older than the one before it when a clock is set
-- back. Each append writes it together with next_seq, and PostgreSQL logs all bytes between the first and the last that an
-- update changes. So it takes the place of cancel_until, beside next_seq, which is null but for runs that are being cancelled;
-- cancel_until goes to the end. Either name means to the functions of both versions what it meant.
-- Locks: ACCESS EXCLUSIVE on _executions for a moment: only rows of runs that are being cancelled are read, by their index, and
-- rewritten. cancel_until is no epoch_ms any more, because a new column of a domain would rewrite all; executions_are_lawful asks
-- for it. 0020 validates that, and 0022 makes the index of its new place.
-- Besides: the rules of replay are kept with each run, so that a change of what a replay does holds for younger runs only, and
-- runs that exist have the first rules; which code wrote a journal; and how many earlier generations retention has removed.
-- Landed: durable._executions has the column generations_removed.

alter table durable._executions drop constraint executions_are_lawful;
alter table durable._executions rename column cancel_until to last_at;
alter table durable._executions add column cancel_until bigint;
update durable._executions set cancel_until = last_at, last_at = null where last_at is not null;
drop index durable.executions_by_cancel_until;
alter table durable._executions add constraint executions_are_lawful check (row(
    next_seq, next_child, first_child, written_by_client, status,
    cardinality(open_steps), cardinality(open_attempts), cardinality(open_running), wait_left, cancel_until,
    cardinality(waiting_on), wait_kind
  )::durable._lawful_execution is distinct from null) not valid;
comment on column durable._executions.cancel_until is 'End of the grace of a cancellation; then durable.tick() ends the run.';
comment on column durable._executions.last_at is
  'Instant of the last journal row: no later row is older, also if the clock was set back. Null for a journal that has not grown since its database had this column.';

alter table durable._executions add column rules smallint not null default 1;
comment on column durable._executions.rules is
  'The rules by which its code is replayed (durable._rules); a worker that does not know them never gets the run.';

alter table durable._executions add column former_digest bytea, add column code_seq integer;
comment on column durable._executions.former_digest is
  'Digest of the code that wrote the journal before code_seq, while that of digest has claimed the run and written nothing; null: the code of digest wrote it. See durable._writer.';
comment on column durable._executions.code_seq is
  'next_seq when the code of digest claimed the run first, if another one had it before.';

alter table durable._executions add column generations_removed integer;
comment on column durable._executions.generations_removed is
  'In the oldest generation that is left: how many were before it, which retention has removed. Null: none.';
comment on column durable._executions.previous is
  'The generation before it, which ended by continue-as-new; same id, another journal. It may be removed: see generations_removed.';
