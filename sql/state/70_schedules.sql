-- Schedules: a cron expression, and what each of its instants creates: a promise from a template, or a run of a workflow.

create table durable._schedules (
  promise_timeout bigint not null,
  created_at durable.epoch_ms not null,
  next_run_at durable.epoch_ms not null,
  last_run_at durable.epoch_ms,
  begins_at durable.epoch_ms,
  paused_at durable.epoch_ms,
  priority smallint not null default 0,
  declared boolean not null default false,
  id text collate "C" not null,
  tenant text not null default '',
  cron text not null,
  timezone text not null default 'UTC',
  promise_id text not null,
  promise_param_headers jsonb,
  promise_param_data text,
  promise_tags jsonb not null default '{}',
  workflow text collate "C",
  workflow_version text not null default '1',
  queue text not null default 'default',
  constraint schedules_pk primary key (id),
  constraint schedules_id_is_1_to_512_bytes check (octet_length(id) between 1 and 512),
  constraint schedules_promise_timeout_not_negative check (promise_timeout >= 0),
  constraint schedules_created_before_next_run check (created_at <= next_run_at),
  constraint schedules_created_before_last_run check (last_run_at is null or created_at <= last_run_at),
  constraint schedules_last_run_before_next_run check (last_run_at is null or last_run_at < next_run_at),
  constraint schedules_promise_tags_are_an_object check (jsonb_typeof(promise_tags) = 'object')
);
comment on table durable._schedules is
  'Schedules. Each instant of cron creates one promise from the template, or one run of the workflow; durable.tick() fires them. People read the view durable.schedules.';
comment on column durable._schedules.id is 'Chosen by the creator.';
comment on column durable._schedules.cron is 'Five fields (minute hour day month weekday) or six with seconds first; names of months and weekdays are understood.';
comment on column durable._schedules.timezone is 'Time zone in which cron is read.';
comment on column durable._schedules.promise_id is
  'Template of the id: {{.id}} becomes the schedule''s id, {{.timestamp}} the instant in ms, and of a run {{.instant}} the instant in UTC.';
comment on column durable._schedules.promise_timeout is 'Deadline of each promise, in ms after its instant; of a run, in ms after its start.';
comment on column durable._schedules.promise_param_headers is 'Parameter headers of each promise, string to string.';
comment on column durable._schedules.promise_param_data is
  'Parameter of each promise, opaque text; the arguments of each run, as JSON, in which {{.instant}} and {{.timestamp}} become the instant.';
comment on column durable._schedules.promise_tags is 'Tags of each promise or run, string to string.';
comment on column durable._schedules.workflow is 'The workflow of which each instant starts a run; null: each creates a promise.';
comment on column durable._schedules.workflow_version is 'Version of that workflow.';
comment on column durable._schedules.queue is 'Queue of its runs.';
comment on column durable._schedules.priority is 'Priority of its runs.';
comment on column durable._schedules.declared is 'The code of a worker declares it, and replaces it when that code changes.';
comment on column durable._schedules.begins_at is
  'When it was resumed, or its expression changed: instants before that pass. Null: never since its creation.';
comment on column durable._schedules.paused_at is 'Since when it is paused: its next instant is never. Null: it is not.';
comment on column durable._schedules.created_at is 'Instant of birth.';
comment on column durable._schedules.next_run_at is 'Next instant of cron: strictly after the last one, after created_at and after begins_at; never while it is paused.';
comment on column durable._schedules.last_run_at is 'Last instant that was fired; null: none yet.';

create index schedules_by_next_run on durable._schedules (next_run_at);
comment on index durable.schedules_by_next_run is 'Serves the firing of schedules by durable.tick().';
create index schedules_by_promise_tags on durable._schedules using gin (promise_tags jsonb_path_ops);
comment on index durable.schedules_by_promise_tags is 'Serves schedule_search by tags.';
create index schedules_by_workflow on durable._schedules (workflow) where declared;
comment on index durable.schedules_by_workflow is 'Serves the start of a worker: the schedules of its workflows that code declares.';

create type durable.schedule_record as (
  id text, cron text, timezone text, promise_id text, promise_timeout bigint, promise_param_headers jsonb,
  promise_param_data text, promise_tags jsonb, created_at bigint, next_run_at bigint, last_run_at bigint
);
comment on type durable.schedule_record is 'A schedule as the protocol answers it. Instants and spans in ms.';
