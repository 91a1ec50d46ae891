-- Heads know the instant of the last row of their journal, so that no row is older than the one before it when a clock is set
-- back. Each append writes it together with next_seq, and PostgreSQL logs all bytes between the first and the last that an
-- update changes. So it takes the place of cancel_until, beside next_seq, which is null but for runs that are being cancelled;
-- cancel_until goes to the end. Either name means to the functions of both versions what it meant.
-- Locks: ACCESS EXCLUSIVE on _executions while it is read once for the index, 0.7 s for a million rows. No row is
-- rewritten but of runs that are being cancelled: cancel_until is no epoch_ms any more, because a new column of a domain would
-- rewrite all; executions_are_lawful asks for it. 0020 validates that. SHARE UPDATE EXCLUSIVE on _journal, for a comment.
-- Landed: durable._executions has the column last_at.

alter table durable._executions drop constraint executions_are_lawful;
drop index durable.executions_by_cancel_until;
alter table durable._executions rename column cancel_until to last_at;
alter table durable._executions add column cancel_until bigint;
update durable._executions set cancel_until = last_at, last_at = null where last_at is not null;
alter table durable._executions add constraint executions_are_lawful check (row(
    next_seq, next_child, first_child, written_by_client, status,
    cardinality(open_steps), cardinality(open_attempts), cardinality(open_running), wait_left, cancel_until,
    cardinality(waiting_on), wait_kind
  )::durable._lawful_execution is distinct from null) not valid;
create index executions_by_cancel_until on durable._executions (cancel_until) where cancel_until is not null;
comment on index durable.executions_by_cancel_until is 'Serves the sweep of cancellations whose grace is over.';
comment on column durable._executions.cancel_until is 'End of the grace of a cancellation; then durable.tick() ends the run.';
comment on column durable._executions.last_at is
  'Instant of the last journal row: no later row is older, also if the clock was set back. Null for a journal that has not grown since its database had this column.';
comment on column durable._journal.ts is
  'Instant of the transaction''s writes, or of the row before it if the clock was set back between them; replay never uses it.';
alter type durable._settled add attribute settled_at bigint;
