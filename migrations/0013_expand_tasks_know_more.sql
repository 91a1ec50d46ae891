-- Of a task: the rules of its head, so that the claim need not read it; and whether its worker was lost before a word about it, for
-- then it is claimed alone. ACCESS EXCLUSIVE on durable._tasks for a moment: columns with constant defaults are added to the
-- catalogue only. It landed if durable._tasks has the column suspect.

alter table durable._tasks add column rules smallint not null default 1;
comment on column durable._tasks.rules is 'Copy of the rules of its head, so that the claim need not read it.';

alter table durable._tasks add column suspect boolean not null default false;
comment on column durable._tasks.suspect is
  'Its worker was lost before it had reported anything about this run, so it may be the one that ends workers: it is claimed alone.';
