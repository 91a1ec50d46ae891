-- The schema, its domains and the two tables that describe the installation itself.
-- Functions, grants and anything that a run touches live elsewhere.

create schema durable;
comment on schema durable is
  'pyengine: durable execution as a PostgreSQL schema. Start at the views runs, promises, tasks and journal_events; durable.check() lists violated laws. A leading underscore means: only functions of this schema touch it.';

create domain durable.epoch_ms as bigint
  constraint epoch_ms_not_negative check (value >= 0);
comment on domain durable.epoch_ms is
  'An instant: milliseconds since the Unix epoch, read from the database clock. 9007199254740991 (2^53 - 1) means never.';

create table durable.settings (
  name text not null,
  value text not null,
  description text not null,
  constraint settings_pk primary key (name),
  constraint settings_name_is_plain check (name ~ '^[a-z][a-z0-9_]*$')
);
comment on table durable.settings is
  'Settings of the engine, one row each. Change a value with durable.set_setting(name, value); it holds from the next call on.';
comment on column durable.settings.value is 'The value as text; durable.set_setting checks that it has the type of the default.';
comment on column durable.settings.description is 'The meaning and unit of the setting; rewritten by every install.';

create table durable.migrations (
  id integer not null,
  name text not null,
  sha256 text not null,
  applied_at timestamptz not null default now(),
  constraint migrations_pk primary key (id),
  constraint migrations_sha256_is_hex check (sha256 ~ '^[0-9a-f]{64}$')
);
comment on table durable.migrations is 'Steps of migrations/ that were applied here, in order. Written by the installer only.';
comment on column durable.migrations.sha256 is 'Checksum of the file as applied: a step that was edited afterwards is refused.';
comment on column durable.migrations.applied_at is 'When it was applied here.';

create table durable._logic (
  object text not null,
  sha256 text not null,
  signature text,
  constraint logic_pk primary key (object),
  constraint logic_sha256_is_hex check (sha256 ~ '^[0-9a-f]{64}$')
);
comment on table durable._logic is
  'Functions and views as installed, so that an upgrade replaces only those that changed. Written by the installer only.';
comment on column durable._logic.object is 'Kind, name and types of parameters as in sql/logic; "loose statements" for those that define none.';
comment on column durable._logic.sha256 is 'Checksum of the statements about the object.';
comment on column durable._logic.signature is
  'Parameters and result of a function as written: if they change, it may have to be dropped and created again.';
