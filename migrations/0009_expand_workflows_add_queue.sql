-- The queue that a workflow declares is registered with it, so that a start by its name uses it. ACCESS EXCLUSIVE on
-- durable._workflows, which is small, for a moment: a nullable column is added to the catalogue only. It landed if
-- durable._workflows has the column queue.

alter table durable._workflows add column queue text;
comment on column durable._workflows.queue is
  'The queue that the code of that worker declares for its runs; null: none, so they go to the queue default.';
