-- The rules of replay that a worker knows which waits for work (0011). ACCESS EXCLUSIVE on durable._idle_workers, which is small, for
-- a moment: no row is rewritten. It landed if durable._idle_workers has the column rules.

alter table durable._idle_workers add column rules smallint not null default 1;
comment on column durable._idle_workers.rules is 'The newest rules of replay that it knows.';
