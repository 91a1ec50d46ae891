-- Two generated columns of _promises become ordinary ones, which the settlement writes.
-- Why: PostgreSQL reads the expression of a generated column from the catalogue for each statement that writes its table, which was
-- a tenth of the cost of a start. Locks: ACCESS EXCLUSIVE on _promises, for a moment: no row is read. Landed: pg_attribute has an
-- empty attgenerated for failed_at and failure. A settlement that waits for this lock runs the older function, which writes
-- neither; 0008 completes its row.

alter table durable._promises alter column failed_at drop expression, alter column failure drop expression;
comment on column durable._promises.failed_at is
  'When a run failed, for people; null for any other promise, so that completing a run changes no index. The settlement writes it: PostgreSQL would read the expression of a generated column for each statement.';
comment on column durable._promises.failure is
  'How a run failed, in the terms of the view durable.runs: failed, timed_out or cancelled; null for any other promise. The settlement writes it.';
