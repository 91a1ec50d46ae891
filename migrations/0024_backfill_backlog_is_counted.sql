-- Validates the law of backlogs, which 0023 created without reading the rows.
-- Locks: SHARE UPDATE EXCLUSIVE on _inboxes, which is read once. Landed: pg_constraint has convalidated for inboxes_backlog_is_counted.

alter table durable._inboxes validate constraint inboxes_backlog_is_counted;
