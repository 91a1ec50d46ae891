-- The worker of app.run keeps its runs while it is there. ACCESS EXCLUSIVE on durable._workers, which is small, for a moment: a
-- column with a constant default is added to the catalogue only. It landed if durable._workers has the column keeps.

alter table durable._workers add column keeps boolean not null default false;
comment on column durable._workers.keeps is 'Its runs are not for others while it is there: it is that of app.run.';
