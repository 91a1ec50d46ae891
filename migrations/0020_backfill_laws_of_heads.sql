-- Validates the laws of heads, which 0011 created without reading the rows.
-- Locks: SHARE UPDATE EXCLUSIVE on _executions, which is read once. Landed: pg_constraint has convalidated for executions_are_lawful.

alter table durable._executions validate constraint executions_are_lawful;
