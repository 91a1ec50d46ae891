-- Schedules: a cron expression and the template of the promise that each of its instants creates.

create table durable._schedules (
  promise_timeout bigint not null,
  created_at durable.epoch_ms not null,
  next_run_at durable.epoch_ms not null,
  last_run_at durable.epoch_ms,
  id text collate "C" not null,
  tenant text not null default '',
  cron text not null,
  timezone text not null default 'UTC',
  promise_id text not null,
  promise_param_headers jsonb,
  promise_param_data text,
  promise_tags jsonb not null default '{}',
  constraint schedules_pk primary key (id),
  constraint schedules_id_is_1_to_512_bytes check (octet_length(id) between 1 and 512),
  constraint schedules_promise_timeout_not_negative check (promise_timeout >= 0),
  constraint schedules_created_before_next_run check (created_at <= next_run_at),
  constraint schedules_created_before_last_run check (last_run_at is null or created_at <= last_run_at),
  constraint schedules_last_run_before_next_run check (last_run_at is null or last_run_at < next_run_at),
  constraint schedules_promise_tags_are_an_object check (jsonb_typeof(promise_tags) = 'object')
);
comment on table durable._schedules is 'Schedules. Each instant of cron creates one promise from the template; durable.tick() fires them.';
comment on column durable._schedules.id is 'Chosen by the creator.';
comment on column durable._schedules.cron is 'Five fields (minute hour day month weekday) or six with seconds first; names of months and weekdays are understood.';
comment on column durable._schedules.timezone is 'Time zone in which cron is read.';
comment on column durable._schedules.promise_id is 'Template of the id: {{.id}} becomes the schedule''s id, {{.timestamp}} the instant in ms.';
comment on column durable._schedules.promise_timeout is 'Deadline of each promise, in ms after its instant.';
comment on column durable._schedules.promise_param_headers is 'Parameter headers of each promise, string to string.';
comment on column durable._schedules.promise_param_data is 'Parameter of each promise, opaque text.';
comment on column durable._schedules.promise_tags is 'Tags of each promise, string to string.';
comment on column durable._schedules.created_at is 'Instant of birth.';
comment on column durable._schedules.next_run_at is 'Next instant of cron: strictly after the last one, or after created_at.';
comment on column durable._schedules.last_run_at is 'Last instant that was fired; null: none yet.';

create index schedules_by_next_run on durable._schedules (next_run_at);
comment on index durable.schedules_by_next_run is 'Serves the firing of schedules by durable.tick().';
create index schedules_by_promise_tags on durable._schedules using gin (promise_tags jsonb_path_ops);
comment on index durable.schedules_by_promise_tags is 'Serves schedule_search by tags.';

create type durable.schedule_record as (
  id text, cron text, timezone text, promise_id text, promise_timeout bigint, promise_param_headers jsonb,
  promise_param_data text, promise_tags jsonb, created_at bigint, next_run_at bigint, last_run_at bigint
);
comment on type durable.schedule_record is 'A schedule as the protocol answers it. Instants and spans in ms.';
