-- The site: the server and the database in which this installation was adopted. A copy of the database has the row of its
-- original, which tells that it is a copy. The rules are in sql/logic/core/10_base/45_site.sql.

create table durable._site (
  system_identifier bigint not null,
  adopted_at durable.epoch_ms not null,
  timeline_at durable.epoch_ms not null,
  timeline integer not null,
  previous_timeline integer,
  database oid not null,
  is_only boolean not null default true,
  adopted_by text not null,
  identity text not null generated always as (system_identifier::text || '.' || database::text) stored,
  constraint site_pk primary key (is_only),
  constraint site_has_one_row check (is_only)
);
comment on table durable._site is
  'One row: where this database was adopted. If the server or the database is another one, it is a copy, and nothing runs here. People read the view durable.site; durable.adopt() writes the row.';
comment on column durable._site.system_identifier is
  'That of the server, which it has from initdb to its end; standbys have it too, pg_upgrade changes it. 0: never adopted.';
comment on column durable._site.database is 'The oid of the database: another one after a restore, or as a template''s copy.';
comment on column durable._site.adopted_at is 'When it was adopted.';
comment on column durable._site.adopted_by is 'The role that adopted it, or by whose session it adopted itself.';
comment on column durable._site.timeline is 'The timeline of the server at the last tick that looked; a promoted standby begins a new one.';
comment on column durable._site.timeline_at is 'When that timeline was first seen.';
comment on column durable._site.previous_timeline is 'The one before it; null: the timeline has not changed since the adoption.';
comment on column durable._site.identity is 'Server and database as one text, with which a session compares its own.';

insert into durable._site (system_identifier, adopted_at, timeline_at, timeline, database, adopted_by) values (0, 0, 0, 0, 0, '');

create sequence durable._idle_copy;
comment on sequence durable._idle_copy is
  'A hash of this server and database and of those in _site, if somebody has seen that nothing could run in this copy; a sequence, because no rollback takes that back. A copy of it has the hash of its original, which tells nothing about it.';
