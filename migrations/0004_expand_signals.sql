-- The signals that workflows receive are registered with them, so that a sender is refused for a name or a type that no code
-- receives. ACCESS EXCLUSIVE on durable._workers and durable._workflows, both small, for a moment: nullable columns are added
-- to the catalogue only. It landed if durable._workflows has the column signals.

alter table durable._workers add column signals jsonb;
comment on column durable._workers.signals is 'For each of its workflows, at the same place, its signals as in _workflows; null: none was registered.';

alter table durable._workflows add column signals jsonb;
comment on column durable._workflows.signals is
  'The signals that the code of that worker receives: {"types": {name: JSON schema of its payload}, "any": whether it receives other names too}; null: the worker registered none, and all are delivered.';
