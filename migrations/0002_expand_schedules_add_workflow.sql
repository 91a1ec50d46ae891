-- Schedules of workflows: what the runs of a schedule are, since when it is paused, and whether the code of a worker declares it.
-- Why: an instant of a schedule could create a promise only. Locks: ACCESS EXCLUSIVE on _schedules, for a moment: every new
-- column is null or has a constant default, so no row is rewritten, and the new index has no rows. Landed: durable._schedules has the column workflow.

alter table durable._schedules add column begins_at durable.epoch_ms;
alter table durable._schedules add column paused_at durable.epoch_ms;
alter table durable._schedules add column priority smallint not null default 0;
alter table durable._schedules add column declared boolean not null default false;
alter table durable._schedules add column workflow text collate "C";
alter table durable._schedules add column workflow_version text not null default '1';
alter table durable._schedules add column queue text not null default 'default';
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

create index schedules_by_workflow on durable._schedules (workflow) where declared;
comment on index durable.schedules_by_workflow is 'Serves the start of a worker: the schedules of its workflows that code declares.';
