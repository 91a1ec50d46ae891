-- Comments of the journal. The attempt of a run: the first row of a journal holds it in the column attempt, where it was null
-- before, because a failed run may be tried again. And instants of rows never go back. Locks: SHARE UPDATE EXCLUSIVE on _journal, for
-- a moment. Landed: the comment of durable._journal.attempt names ExecutionStarted.

comment on column durable._journal.attempt is
  'Attempt of the invocation, from 1; of a signal its delivery number; of a member its join set; of ExecutionStarted the attempt of the run, null for the first.';
comment on column durable._journal.ts is
  'Instant of the transaction''s writes, or of the row before it if the clock was set back between them; replay never uses it.';
