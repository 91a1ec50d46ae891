-- Schedules: a cron expression, and what each of its instants creates: a promise from a template, or a run of a workflow.

create table durable._schedules (
  promise_timeout bigint not null,
  created_at durable.epoch_ms not null,
  next_run_at durable.epoch_ms not null,
  last_run_at durable.epoch_ms,
  begins_at durable.epoch_ms,
  paused_at durable.epoch_ms,
  paused_until durable.epoch_ms,
  starts_at durable.epoch_ms,
  ends_at durable.epoch_ms,
  poll_at durable.epoch_ms,
  jitter bigint not null default 0,
  catch_up bigint,
  max_runs integer,
  runs_left integer,
  pause_after integer,
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
  overlap text not null default 'allow',
  paused_by text,
  pause_reason text,
  latest text collate "C",
  constraint schedules_pk primary key (id),
  constraint schedules_id_is_1_to_512_bytes check (octet_length(id) between 1 and 512),
  constraint schedules_promise_timeout_not_negative check (promise_timeout >= 0),
  constraint schedules_created_before_next_run check (created_at <= next_run_at),
  constraint schedules_created_before_last_run check (last_run_at is null or created_at <= last_run_at),
  constraint schedules_last_run_before_next_run check (last_run_at is null or last_run_at < next_run_at),
  constraint schedules_promise_tags_are_an_object check (jsonb_typeof(promise_tags) = 'object'),
  constraint schedules_overlap_is_known check (overlap in ('allow', 'skip', 'buffer_one', 'buffer_all', 'cancel')),
  constraint schedules_pause_is_whole check (
    paused_at is not null or (paused_until is null and paused_by is null and pause_reason is null)),
  constraint schedules_limits_not_negative check (
    jitter >= 0 and coalesce(catch_up >= 0, true) and coalesce(pause_after >= 1, true)
    and coalesce(runs_left between 0 and max_runs, runs_left is null and max_runs is null)),
  constraint schedules_policies_are_of_runs check (workflow is not null or (
    overlap = 'allow' and jitter = 0 and catch_up is null and max_runs is null and pause_after is null
    and starts_at is null and ends_at is null))
);
comment on table durable._schedules is
  'Schedules. Each instant of cron creates one promise from the template, or one run of the workflow; durable.tick() fires them. People read the view durable.schedules.';
comment on column durable._schedules.id is 'Chosen by the creator.';
comment on column durable._schedules.cron is
  'When it fires: a cron expression, "every 90 minutes" or "at 2026-03-01 09:00"; several have a semicolon between them.';
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
comment on column durable._schedules.paused_at is 'Since when it is paused: its next instant is never, or after paused_until. Null: it is not.';
comment on column durable._schedules.paused_until is 'The pause ends then by itself; null: durable.resume_schedule ends it.';
comment on column durable._schedules.paused_by is 'The person or program that paused it.';
comment on column durable._schedules.pause_reason is 'Why it is paused.';
comment on column durable._schedules.starts_at is 'Its first instant is not before this; null: it begins when it is made.';
comment on column durable._schedules.ends_at is 'Its last instant is not after this; null: it has no end.';
comment on column durable._schedules.max_runs is 'So many runs it starts in all; null: no limit.';
comment on column durable._schedules.runs_left is 'So many of them it starts still.';
comment on column durable._schedules.jitter is 'The run of an instant begins up to so many ms later, by chance that its id decides.';
comment on column durable._schedules.overlap is
  'An instant while the latest run has not ended: allow, skip, buffer_one, buffer_all, or cancel that run and buffer it.';
comment on column durable._schedules.catch_up is
  'An instant that is older than so many ms when the schedule fires is recorded as missed; null: each is made up for.';
comment on column durable._schedules.pause_after is 'After so many failures in a row it is paused; null: never.';
comment on column durable._schedules.latest is 'The run that it started last.';
comment on column durable._schedules.poll_at is
  'An instant is buffered, and the latest run is polled then; next_run_at is not after it. Null: none is buffered.';
comment on column durable._schedules.created_at is 'Instant of birth.';
comment on column durable._schedules.next_run_at is
  'Next instant of cron, strictly after the last one, created_at, begins_at and paused_until, between starts_at and ends_at; never, if there is none. Not after poll_at.';
comment on column durable._schedules.last_run_at is 'Last instant that was fired; null: none yet.';

create index schedules_by_next_run on durable._schedules (next_run_at);
comment on index durable.schedules_by_next_run is 'Serves the firing of schedules by durable.tick().';
create index schedules_by_promise_tags on durable._schedules using gin (promise_tags jsonb_path_ops);
comment on index durable.schedules_by_promise_tags is 'Serves schedule_search by tags.';
create index schedules_by_workflow on durable._schedules (workflow) where declared;
comment on index durable.schedules_by_workflow is 'Serves the start of a worker: the schedules of its workflows that code declares.';
create index schedules_paused on durable._schedules (paused_at) where paused_at is not null;
comment on index durable.schedules_paused is 'Serves durable.health: the schedules that are paused.';

create table durable._schedule_instants (
  at durable.epoch_ms not null,
  upto durable.epoch_ms not null,
  recorded_at durable.epoch_ms not null,
  schedule text collate "C" not null,
  outcome text not null,
  reason text not null default '',
  constraint schedule_instants_pk primary key (schedule, at),
  constraint schedule_instants_outcome_is_known check (outcome in ('skipped', 'missed', 'paused', 'buffered')),
  constraint schedule_instants_range_is_ordered check (at <= upto and (at = upto or outcome in ('missed', 'paused')))
);
comment on table durable._schedule_instants is
  'Instants of schedules that started no run when they came, and why; a row for a time tells of those in it that have neither a run nor a row. All others have their run. People read the view durable.schedule_instants.';
comment on column durable._schedule_instants.schedule is 'The schedule.';
comment on column durable._schedule_instants.at is 'The instant; of several in a row the begin of their time.';
comment on column durable._schedule_instants.upto is 'The same instant; of several in a row the end of their time.';
comment on column durable._schedule_instants.outcome is
  'skipped: the latest run had not ended. missed: nothing fired it in time. paused: the schedule was paused. buffered: it waits for the latest run, and its row goes when its own run starts.';
comment on column durable._schedule_instants.reason is 'Why, in words.';
comment on column durable._schedule_instants.recorded_at is 'When that was decided.';

create index schedule_instants_buffered on durable._schedule_instants (schedule, at) where outcome = 'buffered';
comment on index durable.schedule_instants_buffered is 'Serves the start of buffered instants.';
create index schedule_instants_missed on durable._schedule_instants (recorded_at) where outcome = 'missed';
comment on index durable.schedule_instants_missed is 'Serves durable.health: what was missed a short while ago.';

create type durable._schedule_policy as (
  overlap text, catch_up bigint, jitter bigint, starts_at bigint, ends_at bigint, max_runs integer, pause_after integer
);
comment on type durable._schedule_policy is
  'The policies of a schedule as it is made: the columns of durable._schedules of these names.';

create type durable.schedule_record as (
  id text, cron text, timezone text, promise_id text, promise_timeout bigint, promise_param_headers jsonb,
  promise_param_data text, promise_tags jsonb, created_at bigint, next_run_at bigint, last_run_at bigint
);
comment on type durable.schedule_record is 'A schedule as the protocol answers it. Instants and spans in ms.';
