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
comment on table durable._services is
  'Functions of this database that may be served. A user who may start runs can cause the execution of no other function.';
comment on column durable._services.name is
  'Canonical address, which is the queue of its tasks: sql://billing.close_month. It has the collation of queues, so that their index can be used.';
comment on column durable._services.function is
  'The function with its argument types, by name, so that a function which was dropped and created again is found, and a dump can be restored.';
comment on column durable._services.attempts is 'Attempts in all.';
comment on column durable._services.backoff_ms is
  'Pause after the first failure; doubled after each further one, 5 minutes at most.';
comment on column durable._services.timeout_ms is 'Timeout of one attempt by a worker; null: no limit.';

create type durable._service_call as (
  name text, function text, attempts integer, backoff_ms bigint, args text, version integer, attempt integer, child integer,
  is_cancelled boolean
);
comment on type durable._service_call is
  'How a ready task of a service is served: the function, its arguments, the attempt and the child number.';
