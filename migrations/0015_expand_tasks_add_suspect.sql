-- A run whose worker was lost before a word about it is claimed alone. ACCESS EXCLUSIVE on durable._tasks for a moment: a column with
-- a constant default is added to the catalogue only. It landed if durable._tasks has the column suspect.

alter table durable._tasks add column suspect boolean not null default false;
comment on column durable._tasks.suspect is
  'Its worker was lost before it had reported anything about this run, so it may be the one that ends workers: it is claimed alone.';
