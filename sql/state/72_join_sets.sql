-- Join sets: groups of children whose results a run takes one by one. The tables serve the guards of the journal; the laws are
-- checked on its rows.

create table durable._join_sets (
  execution bigint not null,
  child integer not null,
  closed boolean not null default false,
  constraint join_sets_pk primary key (execution, child)
);
comment on table durable._join_sets is 'Join sets by their child numbers.';
comment on column durable._join_sets.closed is 'A result was taken, so no further child may be submitted.';

create table durable._members (
  execution bigint not null,
  child integer not null,
  join_set integer not null,
  taken boolean not null default false,
  constraint members_pk primary key (execution, child),
  constraint members_are_not_their_set check (child <> join_set)
);
comment on table durable._members is 'Children that were submitted to a join set; each to one.';
comment on column durable._members.join_set is 'Child number of the set.';
comment on column durable._members.taken is 'Its result was taken.';
