-- The index of the column that 0011 has moved. Nobody waits for it. Until it is there, each sweep of cancellations reads the heads.
-- Landed: pg_index has indisvalid for durable.executions_by_cancel_until.

create index executions_by_cancel_until on durable._executions (cancel_until) where cancel_until is not null;
comment on index durable.executions_by_cancel_until is 'Serves the sweep of cancellations whose grace is over.';
