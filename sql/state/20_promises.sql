-- Durable promises: runs, timers, external promises, and promises that protocol clients create. A local step has no row here:
-- its journal row is its promise (51_journal.sql).

-- The laws of a row are in a domain, here and in the next files, and the table has one constraint: its row is of that domain.
-- PostgreSQL parses the constraints of a table for every statement that writes it, which costs more than the write itself;
-- those of a domain are parsed once in a session. The error of a broken law names it either way.
create type durable._promise_form as (
  timeout_at durable.epoch_ms, created_at durable.epoch_ms, timer boolean, external boolean, state text,
  id_bytes integer, tags_type text, has_value boolean, settled_at durable.epoch_ms, target text, task_version integer,
  head bigint, execution bigint, child integer
);
comment on type durable._promise_form is
  'The columns that the laws of a promise use. Of payloads only whether they exist, because the row is copied for the check. Columns that are never null come first, where access is fastest.';

create domain durable._lawful_promise as durable._promise_form
  constraint promises_id_is_1_to_1024_bytes check ((value).id_bytes between 1 and 1024)
  constraint promises_state_is_known
    check ((value).state in ('pending', 'resolved', 'rejected', 'rejected_canceled', 'rejected_timedout'))
  constraint promises_created_by_timeout check ((value).created_at <= (value).timeout_at)
  constraint promises_pending_are_born_before_timeout
    check ((value).state <> 'pending' or (value).created_at < (value).timeout_at)
  constraint promises_settled_at_iff_not_pending check (((value).state <> 'pending') = ((value).settled_at is not null))
  constraint promises_settled_between_birth_and_timeout
    check ((value).settled_at is null or ((value).created_at <= (value).settled_at and (value).settled_at <= (value).timeout_at))
  constraint promises_pending_have_no_value
    check ((value).state <> 'pending' or not (value).has_value)
  constraint promises_timedout_are_settled_at_timeout
    check ((value).state <> 'rejected_timedout' or (value).settled_at = (value).timeout_at)
  constraint promises_deadline_verdict_has_no_value
    check ((value).settled_at is distinct from (value).timeout_at or not (value).has_value)
  constraint promises_deadline_verdict_follows_timer
    check ((value).settled_at is distinct from (value).timeout_at
           or (value).state = case when (value).timer then 'resolved' else 'rejected_timedout' end)
  constraint promises_targets_are_not_empty check ((value).target <> '')
  constraint promises_targeted_and_timers_are_external
    check ((value).external or ((value).target is null and not (value).timer))
  constraint promises_owner_and_child_come_together check (((value).execution is null) = ((value).child is null))
  constraint promises_child_not_negative check ((value).child >= 0)
  constraint promises_heads_are_targeted check ((value).head is null or (value).target is not null)
  constraint promises_task_version_iff_targeted_and_settled
    check (((value).task_version is not null) = ((value).target is not null and (value).state <> 'pending'))
  constraint promises_tags_are_an_object check ((value).tags_type = 'object');
comment on domain durable._lawful_promise is
  'The laws of a row of _promises, applied by its constraint promises_are_lawful. A new law holds for existing rows once that constraint is created again.';

create type durable._new_promise as (
  id text, timeout_at bigint, param_data text, param_headers jsonb, tags jsonb, key text
);
comment on type durable._new_promise is
  'A promise to be created: its id, deadline, payload, tags, and idempotency key if the caller has one.';

create table durable._promises (
  timeout_at durable.epoch_ms not null,
  created_at durable.epoch_ms not null,
  settled_at durable.epoch_ms,
  due_at bigint generated always as (
    case when state = 'pending' and external and timeout_at < 9007199254740991 then timeout_at end) stored,
  failed_at timestamptz,
  execution bigint,
  head bigint,
  child integer,
  task_version integer,
  timer boolean not null default false,
  external boolean not null default false,
  failure text,
  id text collate "C" not null,
  state text not null default 'pending',
  tenant text not null default '',
  target text,
  param_headers jsonb,
  param_data text,
  value_headers jsonb,
  value_data text,
  tags jsonb not null default '{}',
  ikey_create text,
  ikey_complete text,
  constraint promises_pk primary key (id),
  constraint promises_are_lawful check (row(
    timeout_at, created_at, timer, external, state, octet_length(id), jsonb_typeof(tags),
    value_data is not null or value_headers is not null, settled_at, target, task_version, head, execution, child
  )::durable._lawful_promise is distinct from null)
) with (
  fillfactor = 55, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_vacuum_cost_limit = 2000);

comment on table durable._promises is
  'Durable promises. People read the view durable.promises. Written twice in a life: at birth and by _settle, the only UPDATE out of pending.';
comment on column durable._promises.id is 'Chosen by the creator, bytewise order. A child of a run is <run id>.<number>; such an id is reserved to that run.';
comment on column durable._promises.timeout_at is 'Deadline. At this instant the promise counts as expired: resolved if a timer, else rejected_timedout.';
comment on column durable._promises.created_at is 'Instant of birth; equals timeout_at if the promise was born dead.';
comment on column durable._promises.settled_at is 'Instant of a client verdict, or timeout_at for a deadline verdict.';
comment on column durable._promises.due_at is
  'When the sweep must settle it; null if it never expires. Its index has no other rows, so settling a promise that never expires changes no index.';
comment on column durable._promises.failed_at is
  'When a run failed, for people; null for any other promise, so that completing a run changes no index. The settlement writes it: PostgreSQL would read the expression of a generated column for each statement.';
comment on column durable._promises.failure is
  'How a run failed, in the terms of the view durable.runs: failed, timed_out or cancelled; null for any other promise. The settlement writes it.';
comment on column durable._promises.execution is 'Owner: the execution whose journal records this promise; null for a free-standing one. Set at birth only.';
comment on column durable._promises.child is 'The number of this promise among the children of its owner.';
comment on column durable._promises.head is 'The execution that this promise is the result of; null unless it is a run.';
comment on column durable._promises.task_version is 'Last version of the task, kept when settlement removes the task row.';
comment on column durable._promises.timer is 'Expiry resolves it (tag resonate:timer = true). In the strict profile a timer has no target.';
comment on column durable._promises.external is
  'A session outside its run may settle or await it, so the sweep enforces its deadline.';
comment on column durable._promises.target is 'Canonical address of the workers that run it; a promise with a target has a task.';
comment on column durable._promises.param_headers is 'String to string; names the codec of param_data. Null: none given.';
comment on column durable._promises.param_data is 'Creation payload, opaque text. Our codec writes plain JSON.';
comment on column durable._promises.value_data is 'Settlement payload, opaque text; an error as JSON if rejected. Immutable once written.';
comment on column durable._promises.value_headers is
  'String to string. Null: none; our codec then reads the value as it reads the param.';
comment on column durable._promises.tags is
  'String to string as the creator sent them; the tags that rules read have columns of their own.';
comment on column durable._promises.ikey_create is 'Idempotency key given at creation (older API); null: none.';
comment on column durable._promises.ikey_complete is 'Idempotency key given at settlement (older API); null: none or a deadline verdict.';

create index promises_by_due_at on durable._promises (due_at) where due_at is not null;
comment on index durable.promises_by_due_at is 'Serves the deadline sweep of durable.tick(): promises that can expire.';

create index promises_by_failure on durable._promises (failure, head) where isfinite(failed_at);
comment on index durable.promises_by_failure is 'Serves people: the newest runs that failed. Runs that complete are never in it.';
create index promises_by_failed_at on durable._promises (failure, failed_at) where isfinite(failed_at);
comment on index durable.promises_by_failed_at is
  'Serves people: the runs that failed since an instant. Runs that complete are never in it.';

create index promises_without_task on durable._promises (id) where target is null;
comment on index durable.promises_without_task is
  'Serves promise_search and people: has all pending promises without a task. Settled ones stay in it, so settling changes no index; runs are never in it.';

create index promises_by_tags on durable._promises using gin (tags jsonb_path_ops) where tags <> '{}';
comment on index durable.promises_by_tags is
  'Serves promise_search by tags. Promises without tags, as most runs are, are not in it.';
create index promises_by_branch on durable._promises ((tags ->> 'resonate:branch'), id) where tags ? 'resonate:branch';
comment on index durable.promises_by_branch is 'Serves the preload of a task: the other promises of its branch.';

create index promises_by_created_at on durable._promises (created_at, id) where execution is null and head is null;
comment on index durable.promises_by_created_at is
  'Serves retention: promises without a run, oldest first. Settling one does not change it.';

create type durable.promise_record as (
  id text, state text, param_headers jsonb, param_data text, value_headers jsonb, value_data text, tags jsonb,
  timeout_at bigint, created_at bigint, settled_at bigint
);
comment on type durable.promise_record is 'A promise as the protocol answers it. Instants in ms since the epoch.';
