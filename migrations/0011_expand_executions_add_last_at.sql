-- Heads know the instant of the last row of their journal, so that no row is older than the one before it when a clock is set
-- back. Locks, each for a moment: ACCESS EXCLUSIVE on _executions, whose rows are not rewritten, because the new column is
-- null; SHARE UPDATE EXCLUSIVE on _journal, for a comment. Landed: durable._executions has the column last_at.

alter table durable._executions add column last_at bigint;
comment on column durable._executions.last_at is
  'Instant of the last journal row: no later row is older, also if the clock was set back. Null for a journal that has not grown since its database had this column.';
comment on column durable._journal.ts is
  'Instant of the transaction''s writes, or of the row before it if the clock was set back between them; replay never uses it.';
alter type durable._settled add attribute settled_at bigint;
