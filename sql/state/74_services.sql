-- Services: database functions that runs and promises may name as their target, sql://schema.function.

create table durable._services (
  timeout_ms bigint,
  backoff_ms bigint not null,
  attempts integer not null,
  name text not null,
  function text not null,
  constraint services_pk primary key (name),
  constraint services_are_tried_once_at_least check (attempts >= 1),
  constraint services_backoff_not_negative check (backoff_ms >= 0),
  constraint services_timeout_positive check (timeout_ms > 0)
);
comment on table durable._services is 'Functions of this database that may be served. Nothing else is ever executed for whoever may start a run.';
comment on column durable._services.name is 'Canonical address, which is the queue of its tasks: sql://billing.close_month. With the collation of queues, or their index could not be used.';
comment on column durable._services.function is 'The function with its argument types, by name: one that was dropped and made again is found, and a dump can be restored.';
comment on column durable._services.attempts is 'Attempts in all.';
comment on column durable._services.backoff_ms is 'Pause after the first failure; twice as long after each one more, 5 minutes at most.';
comment on column durable._services.timeout_ms is 'How long a worker lets one attempt take; null: without limit.';

create type durable._service_call as (
  name text, function text, attempts integer, backoff_ms bigint, args text, version integer, attempt integer, child integer,
  is_cancelled boolean
);
comment on type durable._service_call is 'How a ready task of a service is to be served: which function, with what, in which attempt and under which child number.';
