-- Published workflows: names under which workflows of the engine serve calls of other languages.

create table durable._published (
  version integer not null,
  queue text not null,
  name text collate "C" not null,
  workflow text collate "C" not null,
  workflow_version text not null,
  constraint published_pk primary key (queue, name, version),
  constraint published_version_positive check (version > 0),
  constraint published_name_is_1_to_256_bytes check (octet_length(name) between 1 and 256),
  constraint published_workflow_is_1_to_256_bytes check (octet_length(workflow) between 1 and 256),
  constraint published_workflow_version_not_empty check (workflow_version <> '')
);
comment on table durable._published is
  'Workflows that serve calls of protocol clients: a call of such a name in such a group becomes a run at its birth. People read the view durable.published.';
comment on column durable._published.version is 'Version of the function, as callers name it.';
comment on column durable._published.queue is
  'The group that callers name as their target, which is the queue of the runs. It has the collation of queues.';
comment on column durable._published.name is 'Name of the function, as callers name it.';
comment on column durable._published.workflow is 'The workflow that runs, or the service sql://schema.function.';
comment on column durable._published.workflow_version is 'Version of that workflow.';
