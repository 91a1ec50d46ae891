-- Progress of runs, set by ctx.progress and ctx.set: a table of its own, written only for runs that set any.
-- Locks: none that anybody could wait for; no existing table is read or locked. Duration: a moment, however big the database is.
-- It landed if to_regclass('durable._progress') is not null.

create table durable._progress (
  changed_at durable.epoch_ms not null,
  execution bigint,
  done double precision,
  total double precision,
  seq integer,
  id text collate "C" not null,
  note text,
  named jsonb not null default '{}',
  constraint progress_pk primary key (id),
  constraint progress_done_is_a_count check (done >= 0 and done < 'infinity'),
  constraint progress_total_is_a_count check (total >= 0 and total < 'infinity'),
  constraint progress_note_is_brief check (octet_length(note) <= 2000),
  constraint progress_has_its_position check (num_nonnulls(done, execution, seq) in (0, 3)),
  constraint progress_is_counted check (done is not null or num_nonnulls(total, note) = 0),
  constraint progress_named_is_an_object check (jsonb_typeof(named) = 'object')
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1);
comment on table durable._progress is
  'Progress and named values of runs: one row for each run that has set any, written by the turn of its worker, durable.set_progress and durable.set_value, under the lock of its task. People read the view durable.progress.';
comment on column durable._progress.id is 'Id of the run or task. The row stays until durable.purge removes the run.';
comment on column durable._progress.execution is
  'The journal that had been read when the progress was set; null: no progress was set. 0: the task has no journal.';
comment on column durable._progress.seq is 'The sequence number up to which that journal had been read.';
comment on column durable._progress.done is 'How much is done, in units of the run''s own.';
comment on column durable._progress.total is 'How much there is to do; null: unknown.';
comment on column durable._progress.note is 'A text for people: the work that is being done.';
comment on column durable._progress.named is
  'The named values: by name an array of execution and seq, as of the progress, and the value as JSON text.';
comment on column durable._progress.changed_at is 'When a value was written last.';

create type durable._progress_report as (
  execution bigint, id text, seq integer, done double precision, total double precision, note text, named jsonb
);
comment on type durable._progress_report is
  'The values that a run has set since its last report, as durable._progress keeps them; done is null if it has only set named values.';
