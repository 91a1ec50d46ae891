-- Of a registered workflow: the signals that it receives, so that a sender is refused for a name or a type that no code receives; the
-- queue that it declares, so that a start by its name uses it; and its rules of replay (0011). ACCESS EXCLUSIVE on
-- durable._workflows, which is small, for a moment: no row is rewritten. It landed if durable._workflows has the column rules.

alter table durable._workflows add column signals jsonb;
comment on column durable._workflows.signals is
  'The signals that the code of that worker receives: {"types": {name: JSON schema of its payload}, "any": whether it receives other names too}; null: the worker registered none, and all are delivered.';

alter table durable._workflows add column queue text;
comment on column durable._workflows.queue is
  'The queue that the code of that worker declares for its runs; null: none, so they go to the queue default.';

alter table durable._workflows add column rules smallint not null default 1;
comment on column durable._workflows.rules is 'The rules by which its next runs are replayed: the newest that this worker and this schema know.';
