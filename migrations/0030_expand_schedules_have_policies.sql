-- Schedules get policies: what becomes of an instant while the latest run goes on, what was missed, a pause with its reason, an end,
-- a limit of runs and a jitter. ACCESS EXCLUSIVE on durable._schedules for a moment: columns with constant defaults are added to the
-- catalogue only, and the CHECKs read no row; 0031 validates them. It landed if there is a table durable._schedule_instants.

alter table durable._schedules
  add column paused_until durable.epoch_ms,
  add column starts_at durable.epoch_ms,
  add column ends_at durable.epoch_ms,
  add column poll_at durable.epoch_ms,
  add column jitter bigint not null default 0,
  add column catch_up bigint,
  add column max_runs integer,
  add column runs_left integer,
  add column pause_after integer,
  add column overlap text not null default 'allow',
  add column paused_by text,
  add column pause_reason text,
  add column latest text collate "C";
alter table durable._schedules add constraint schedules_overlap_is_known check (overlap in ('allow', 'skip', 'buffer_one', 'buffer_all', 'cancel')) not valid;
alter table durable._schedules add constraint schedules_pause_is_whole check (
    paused_at is not null or (paused_until is null and paused_by is null and pause_reason is null)) not valid;
alter table durable._schedules add constraint schedules_limits_not_negative check (
    jitter >= 0 and coalesce(catch_up >= 0, true) and coalesce(pause_after >= 1, true)
    and coalesce(runs_left between 0 and max_runs, runs_left is null and max_runs is null)) not valid;
alter table durable._schedules add constraint schedules_policies_are_of_runs check (workflow is not null or (
    overlap = 'allow' and jitter = 0 and catch_up is null and max_runs is null and pause_after is null
    and starts_at is null and ends_at is null)) not valid;
comment on column durable._schedules.cron is
  'When it fires: a cron expression, "every 90 minutes" or "at 2026-03-01 09:00"; several have a semicolon between them.';
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
comment on column durable._schedules.next_run_at is
  'Next instant of cron, strictly after the last one, created_at, begins_at and paused_until, between starts_at and ends_at; never, if there is none. Not after poll_at.';

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

create type durable._schedule_policy as (
  overlap text, catch_up bigint, jitter bigint, starts_at bigint, ends_at bigint, max_runs integer, pause_after integer
);
comment on type durable._schedule_policy is
  'The policies of a schedule as it is made: the columns of durable._schedules of these names.';
