-- The first step of the tables: sql/state as a whole, in the order of its file numbers.
-- Why: makes the schema. Locks: none that anybody could wait for. Duration: under a second.
-- Written by `python -m pyengine.admin.bundle --initial`; not edited by hand.

-- state/10_schema.sql

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

-- state/20_promises.sql

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
  failed_at timestamptz generated always as (
    case when head is not null and state like 'rejected%' then to_timestamp(settled_at / 1000.0) end) stored,
  execution bigint,
  head bigint,
  child integer,
  task_version integer,
  timer boolean not null default false,
  external boolean not null default false,
  failure text generated always as (
    case when head is not null then case state
      when 'rejected' then 'failed' when 'rejected_timedout' then 'timed_out' when 'rejected_canceled' then 'cancelled' end
    end) stored,
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
  'When a run failed, for people; null for any other promise, so that completing a run changes no index.';
comment on column durable._promises.failure is
  'How a run failed, in the terms of the view durable.runs: failed, timed_out or cancelled; null for any other promise.';
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

-- state/30_tasks.sql

-- Tasks: the right to run a targeted promise, one row while the promise is pending. Hot and narrow: it has no payload, and no
-- column that a lease renewal changes is indexed.

create type durable._task_form as (
  version integer, crashes smallint, attempt smallint, state text, retry_at durable.epoch_ms,
  expires_at durable.epoch_ms, ttl bigint, pid text, queue text, workflow text, workflow_version text, recv text,
  has_recv_headers boolean
);
comment on type durable._task_form is 'The columns that the laws of a task use.';

create domain durable._lawful_task as durable._task_form
  constraint tasks_state_is_known check ((value).state in ('pending', 'acquired', 'suspended', 'halted'))
  constraint tasks_version_not_negative check ((value).version >= 0)
  constraint tasks_acquired_version_positive check ((value).state <> 'acquired' or (value).version >= 1)
  constraint tasks_pid_iff_acquired check (((value).state = 'acquired') = ((value).pid is not null))
  constraint tasks_ttl_iff_acquired check (((value).state = 'acquired') = ((value).ttl is not null))
  constraint tasks_ttl_positive check ((value).ttl > 0)
  constraint tasks_lease_iff_acquired check (((value).state = 'acquired') = ((value).expires_at is not null))
  constraint tasks_retry_at_iff_pending check (((value).state = 'pending') = ((value).retry_at is not null))
  constraint tasks_queue_not_empty check ((value).queue <> '')
  constraint tasks_workflow_and_version_come_together
    check (((value).workflow is null) = ((value).workflow_version is null))
  constraint tasks_recv_only_while_pending check ((value).recv is null or (value).state in ('pending', 'halted'))
  constraint tasks_recv_headers_need_a_recv check (not (value).has_recv_headers or (value).recv is not null)
  constraint tasks_crashes_not_negative check ((value).crashes >= 0)
  constraint tasks_attempt_not_negative check ((value).attempt >= 0);
comment on domain durable._lawful_task is 'The laws of a row of _tasks, applied by its constraint tasks_are_lawful.';

create table durable._tasks (
  deadline durable.epoch_ms not null,
  expires_at durable.epoch_ms,
  retry_at durable.epoch_ms,
  prefer_until durable.epoch_ms,
  released_until durable.epoch_ms,
  acquired_at durable.epoch_ms,
  execution bigint,
  owner bigint,
  ttl bigint,
  version integer not null default 0,
  priority smallint not null default 0,
  crashes smallint not null default 0,
  attempt smallint not null default 0,
  releases smallint not null default 0,
  attempt_open boolean not null default false,
  id text collate "C" not null,
  state text not null default 'pending',
  queue text not null,
  workflow text,
  workflow_version text,
  pid text,
  preference text,
  recv text,
  recv_headers jsonb,
  released_by text[],
  constraint tasks_pk primary key (id),
  constraint tasks_are_lawful check (row(
    version, crashes, attempt, state, retry_at, expires_at, ttl, pid, queue, workflow, workflow_version, recv,
    recv_headers is not null
  )::durable._lawful_task is distinct from null)
) with (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

comment on table durable._tasks is
  'Tasks of pending targeted promises. Settlement removes the row and keeps its version on the promise; the view durable.tasks shows those as fulfilled.';
comment on column durable._tasks.id is 'Id of the promise.';
comment on column durable._tasks.state is 'pending: waits for a worker; acquired: leased; suspended: waits for promises; halted: set aside until continued.';
comment on column durable._tasks.version is 'Fencing token: raised by one at each acquire and never elsewhere.';
comment on column durable._tasks.deadline is 'Copy of the promise''s timeout_at, immutable: task operations need no promise lock.';
comment on column durable._tasks.expires_at is 'Instant at which the lease ends unless renewed.';
comment on column durable._tasks.retry_at is 'Not to be dispatched before this instant.';
comment on column durable._tasks.acquired_at is
  'When it was acquired last; null before that, and for a run that was handed off. An acquire may be sent again while its lease has not been renewed.';
comment on column durable._tasks.ttl is 'Length of the lease that the holder asked for, in ms.';
comment on column durable._tasks.pid is 'Worker that holds the lease.';
comment on column durable._tasks.queue is
  'The queue from which it is claimed: the group of a poll://any@group address, else the whole canonical address; of recv, else of the target.';
comment on column durable._tasks.priority is 'Smaller is claimed first.';
comment on column durable._tasks.workflow is
  'The workflow that a worker must have registered to claim it; null: only protocol clients can serve it.';
comment on column durable._tasks.preference is 'Worker that has the coroutine warm or that the address prefers.';
comment on column durable._tasks.prefer_until is 'Until this instant only the preferred worker may claim it.';
comment on column durable._tasks.recv is
  'The address to which the callback that fired sends the resume (older API); null: the target. Cleared by the acquire.';
comment on column durable._tasks.recv_headers is 'Headers of an http recv, string to string.';
comment on column durable._tasks.execution is 'Head of the run; null for a task without journal.';
comment on column durable._tasks.owner is
  'Copy of the promise''s execution, immutable: the journal that records its attempts. Null for a task without a parent.';
comment on column durable._tasks.crashes is 'Leases lost in a row; progress resets it, more than the setting max_crashes halts the task.';
comment on column durable._tasks.attempt is 'Attempts of the invocation in the owner''s journal.';
comment on column durable._tasks.releases is 'How often in a row protocol clients have released it; 5 stands for more.';
comment on column durable._tasks.released_by is 'The clients that released it, 16 at most.';
comment on column durable._tasks.released_until is 'Until this instant it is offered only to other clients.';
comment on column durable._tasks.attempt_open is 'The owner''s journal has InvokeStarted(attempt) and no end of that attempt.';

create index tasks_by_queue_ready on durable._tasks (queue, priority, retry_at) where state = 'pending';
comment on index durable.tasks_by_queue_ready is 'Serves the claim of worker_turn_v1.';
create index tasks_by_queue_foreign on durable._tasks (queue, priority, retry_at) where state = 'pending' and workflow is null;
comment on index durable.tasks_by_queue_foreign is
  'Serves task_offer, whose cost does not depend on the runs of the engine in the same queue.';
create index tasks_by_pid_acquired on durable._tasks (pid) where state = 'acquired';
comment on index durable.tasks_by_pid_acquired is
  'Serves the end of leases and the tasks of a worker; a renewal does not change it.';

create table durable._resumes (
  task_id text collate "C" not null,
  awaited_id text collate "C" not null,
  constraint resumes_pk primary key (task_id, awaited_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._resumes is
  'Resumes that no worker has seen yet: an awaited promise settled. Deleted by acquire, suspend and settlement.';
comment on column durable._resumes.task_id is
  'The task that was resumed, or that will see the settled promise when it continues.';
comment on column durable._resumes.awaited_id is 'The promise that settled.';

create index resumes_by_stranger on durable._resumes (awaited_id) where not starts_with(awaited_id, task_id || '.');
comment on index durable.resumes_by_stranger is
  'Serves retention: tasks that a promise other than their own child resumed and that have not continued yet.';

create table durable._workers (
  id text collate "C" not null,
  number bigint not null generated always as identity,
  present boolean not null default false,
  seen_at durable.epoch_ms not null,
  missing_at durable.epoch_ms,
  started_at durable.epoch_ms not null,
  ticked_at durable.epoch_ms,
  queues text[] not null,
  workflows text[] not null,
  versions text[] not null,
  about jsonb not null default '{}',
  unrenewed text[] not null default '{}',
  blocked text[] not null default '{}',
  constraint workers_pk primary key (id),
  constraint workers_number_unique unique (number),
  constraint workers_workflows_have_versions check (cardinality(workflows) = cardinality(versions))
) with (fillfactor = 50);
comment on table durable._workers is 'Registered worker processes: from worker_hello_v1 to worker_bye_v1.';
comment on column durable._workers.number is 'Key of the presence lock: a session-level advisory lock that Postgres frees when the connection dies.';
comment on column durable._workers.present is 'The worker holds its presence lock on a session of its own; false: only leases tell whether it lives.';
comment on column durable._workers.seen_at is 'Last hello, heartbeat or presence call.';
comment on column durable._workers.missing_at is 'When durable.tick() first found the presence lock free; a later call of the worker clears it.';
comment on column durable._workers.started_at is 'First hello.';
comment on column durable._workers.ticked_at is 'When its last tick succeeded. The heartbeat writes it, because the tick would write a row each time.';
comment on column durable._workers.queues is 'Queues that it claims from.';
comment on column durable._workers.workflows is 'Names of the workflows that it can run.';
comment on column durable._workers.versions is 'Version of each of workflows.';
comment on column durable._workers.about is 'Host, process id and versions, for people.';
comment on column durable._workers.unrenewed is
  'Tasks whose lease it could not renew at its last heartbeat, because another session has locked them; meanwhile no sweep takes them.';
comment on column durable._workers.blocked is
  'Runs and promises that its turns, claims and ticks leave out, because other sessions have locked them. The view durable.blocked names the sessions.';

-- Laws of single columns, checked only where the column is written: a hand-off changes idle_until alone, and constraints of the
-- table would be parsed and checked each time.
create domain durable._message_address as text
  constraint message_address_is_random check (value ~ '^durable_to_[0-9a-f]{32}:[0-9a-f]{32}$');
comment on domain durable._message_address is
  'The address of its direct messages: a channel and the secret that begins each message, both random. durable._send_message sends there.';
create domain durable._lease_ms as bigint
  constraint lease_ms_positive check (value > 0);
comment on domain durable._lease_ms is 'Length of a lease in ms.';
create domain durable._code_digests as jsonb
  constraint code_digests_are_an_object check (jsonb_typeof(value) = 'object');
comment on domain durable._code_digests is 'Digests of code, in hex, by the code that durable._code names.';

create unlogged table durable._idle_workers (
  idle_until durable.epoch_ms,
  ttl durable._lease_ms not null,
  number bigint not null,
  worker text collate "C" not null,
  address durable._message_address not null,
  queues text[] not null,
  digests durable._code_digests not null,
  synchronous_commit text not null,
  constraint idle_workers_pk primary key (worker)
) with (fillfactor = 50);
comment on table durable._idle_workers is
  'Idle workers: a start may hand one run off to each. Losing this table is harmless, because runs are claimed then.';
comment on column durable._idle_workers.synchronous_commit is
  'The durability of its commits: synchronous_commit of the session that registered it.';
comment on column durable._idle_workers.idle_until is 'Until when the worker is believed to be idle; null from a hand-off until it registers again.';
comment on column durable._idle_workers.ttl is 'Length of its leases, in ms.';
comment on column durable._idle_workers.number is 'Its number in _workers, key of the presence lock.';
comment on column durable._idle_workers.address is
  'The address of its direct messages: random, so that no other role can send it work or listen.';
comment on column durable._idle_workers.queues is 'Queues that it serves.';
comment on column durable._idle_workers.digests is 'The workflows with versions that it can run, and the digest of each.';

create table durable._workflows (
  seen_at durable.epoch_ms not null,
  name text collate "C" not null,
  version text collate "C" not null,
  digest bytea,
  constraint workflows_pk primary key (name, version)
);
comment on table durable._workflows is 'Workflows that some worker can run: they distinguish a misspelt name from work that waits for its worker.';
comment on column durable._workflows.seen_at is 'Last hello of a worker with this workflow.';
comment on column durable._workflows.digest is
  'Digest of the code of that worker. Runs begin with it, so that a claim by a worker with that code need not write it.';

create type durable.task_record as (
  id text, state text, version integer, resumes integer, ttl bigint, pid text
);
comment on type durable.task_record is 'A task as the protocol answers it; ttl in ms.';

-- state/40_callbacks.sql

-- Waiters of a promise: tasks (callbacks) and addresses (listeners). Rows exist only while the promise is pending.

create table durable._callbacks (
  awaited_id text collate "C" not null,
  awaiter_id text collate "C" not null,
  id text collate "C" not null default '',
  timeout_at durable.epoch_ms,
  child integer not null default -1,
  recv text,
  recv_headers jsonb,
  constraint callbacks_pk primary key (awaited_id, awaiter_id, id, child),
  constraint callbacks_child_is_a_number_or_minus_one check (child >= -1),
  constraint callbacks_id_iff_recv check ((id <> '') = (recv is not null)),
  constraint callbacks_id_iff_timeout check ((id <> '') = (timeout_at is not null)),
  constraint callbacks_recv_headers_need_a_recv check (recv_headers is null or recv is not null),
  constraint callbacks_awaiter_is_not_awaited check (awaited_id <> awaiter_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._callbacks is
  'Tasks to resume when a promise settles. _settle deletes them in the settling transaction. The callbacks of a run on its own children are created with the children.';
comment on column durable._callbacks.awaited_id is 'An external pending promise.';
comment on column durable._callbacks.awaiter_id is 'A targeted promise, whose task is resumed.';
comment on column durable._callbacks.child is
  'The child number under which the awaiter''s journal adopted a promise of others (R13); -1: not adopted.';
comment on column durable._callbacks.id is
  'The name of a callback in the older API, unique in the database; empty for all others.';
comment on column durable._callbacks.timeout_at is 'From this instant on it is deleted without a resume (older API).';
comment on column durable._callbacks.recv is 'Canonical address for the resume (older API); null: the awaiter''s target.';
comment on column durable._callbacks.recv_headers is 'Headers of an http recv, string to string.';

create unique index callbacks_by_id on durable._callbacks (id) where id <> '';
comment on index durable.callbacks_by_id is 'Detects a callback of the older API that is registered already.';
create unique index callbacks_by_child on durable._callbacks (awaiter_id, child) where child >= 0;
comment on index durable.callbacks_by_child is
  'Finds the promise of others that a child of the awaiter adopted, while it is pending.';

create index callbacks_by_stranger on durable._callbacks (awaiter_id)
  where child < 0 and not starts_with(awaited_id, awaiter_id || '.');
comment on index durable.callbacks_by_stranger is
  'Serves retention: awaits of a removed run for promises other than its children and adoptions; there are rarely any.';

create table durable._listeners (
  awaited_id text collate "C" not null,
  address text not null,
  constraint listeners_pk primary key (awaited_id, address),
  constraint listeners_address_not_empty check (address <> '')
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._listeners is 'Addresses to notify when a promise settles; each becomes one row of _unblocks.';
comment on column durable._listeners.awaited_id is 'An external pending promise.';
comment on column durable._listeners.address is 'Canonical address.';

-- state/50_executions.sql

-- Execution heads: one row a run, the summary of its journal of constant size against which every append is checked.

create type durable._execution_form as (
  next_seq integer, next_child integer, first_child integer, written_by_client boolean, status text,
  open_steps integer, open_attempts integer, open_running integer, wait_left integer,
  cancel_until durable.epoch_ms, waits integer, wait_kind text
);
comment on type durable._execution_form is 'The columns that the laws of a head use; of arrays their lengths.';

create domain durable._lawful_execution as durable._execution_form
  constraint executions_status_is_known
    check ((value).status in ('running', 'blocked', 'cancelling', 'completed', 'failed', 'cancelled'))
  constraint executions_next_seq_not_negative check ((value).next_seq >= 0)
  constraint executions_children_are_counted check (0 <= (value).first_child and (value).first_child <= (value).next_child)
  constraint executions_wait_iff_blocked
    check (((value).status = 'blocked') = ((value).waits is not null)
           and ((value).status = 'blocked') = ((value).wait_kind is not null)
           and ((value).status = 'blocked') = ((value).wait_left is not null))
  constraint executions_wait_is_unsatisfied
    check ((value).wait_left > 0 or ((value).written_by_client and (value).wait_left = 0))
  constraint executions_wait_is_on_something check ((value).waits > 0)
  constraint executions_wait_kind_is_known check ((value).wait_kind in ('single', 'any', 'all', 'signal'))
  constraint executions_single_waits_on_one
    check ((value).wait_kind not in ('single', 'signal') or (value).waits = 1)
  constraint executions_open_steps_have_attempts
    check ((value).open_steps = (value).open_attempts and (value).open_steps = (value).open_running)
  constraint executions_only_cancelling_ones_have_grace
    check ((value).cancel_until is null or (value).status = 'cancelling');
comment on domain durable._lawful_execution is 'The laws of a row of _executions, which asks for it in executions_are_lawful.';

create type durable.start_record as (id text, created boolean, handed_off boolean);
comment on type durable.start_record is
  'The result of a start. created: false if the run existed before; handed_off: an idle worker has it. Null: nothing was written.';

create type durable._start_request as (
  workflow text, args jsonb, input text, id text, key text, queue text, version text, delay_ms bigint, timeout_ms bigint,
  priority integer, tags jsonb, tenant text, any_workflow boolean
);
comment on type durable._start_request is
  'The arguments of a start. args and input are the same arguments, read and as the stored text. any_workflow: the name need not be known. In a start of many runs the fields that differ between them (args, input, id, key) are null.';

create table durable._executions (
  execution bigint not null generated by default as identity,
  previous bigint,
  cancel_until durable.epoch_ms,
  bucket integer not null,
  next_seq integer not null default 0,
  next_child integer not null default 0,
  first_child integer not null default 0,
  cancel_seq integer,
  suspend_seq integer,
  wait_left integer,
  wait_kind text,
  waiting_on integer[],
  reserved integer[] not null default '{}',
  open_steps integer[] not null default '{}',
  open_attempts integer[] not null default '{}',
  open_running boolean[] not null default '{}',
  id text collate "C" not null,
  status text not null default 'running',
  written_by_client boolean not null default false,
  abandoned boolean not null default false,
  tenant text not null default '',
  workflow text not null,
  workflow_version text not null,
  key text,
  digest bytea,
  problem text,
  constraint executions_pk primary key (execution),
  constraint executions_are_lawful check (row(
    next_seq, next_child, first_child, written_by_client, status,
    cardinality(open_steps), cardinality(open_attempts), cardinality(open_running), wait_left, cancel_until,
    cardinality(waiting_on), wait_kind
  )::durable._lawful_execution is distinct from null)
) with (
  -- a turn usually writes every head of a page once; the next turn prunes the old versions
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_vacuum_cost_limit = 2000);

comment on table durable._executions is
  'Heads of runs: status and counters, which agree with the journal (law INV-4). People read the view durable.runs.';
comment on column durable._executions.execution is 'Short key of the run, used by the journal and by workers.';
comment on column durable._executions.id is 'Id of the run, which is the id of its promise. The promise''s column head points back.';
comment on column durable._executions.bucket is 'Journal partition: the week in which the run started, or the newest one that existed then.';
comment on column durable._executions.next_seq is 'Number of logical events so far, hence the next sequence number.';
comment on column durable._executions.next_child is 'One more than the largest child number in the journal.';
comment on column durable._executions.reserved is 'Child numbers between first_child and next_child that no row carries yet: local steps in flight or given up, receives that wait.';
comment on column durable._executions.first_child is
  'The first child number: 0, or the number after those of the generation before it.';
comment on column durable._executions.previous is 'The generation before it, which ended by continue-as-new; same id, another journal.';
comment on column durable._executions.cancel_seq is
  'Sequence number of CancelRequested: the engine accepts no report of a worker that has not seen it.';
comment on column durable._executions.cancel_until is 'End of the grace of a cancellation; then durable.tick() ends the run.';
comment on column durable._executions.written_by_client is
  'A client writes its journal, event by event, through durable.journal_append; the engine writes only the ends of its promises.';
comment on column durable._executions.abandoned is 'The cancellation of its parent does not reach it.';
comment on column durable._executions.open_steps is 'Local steps with an intent row and no completion row.';
comment on column durable._executions.open_attempts is 'For each open step: the number of the attempt that runs or comes next.';
comment on column durable._executions.open_running is 'For each open step: true while that attempt runs, false while it comes next.';
comment on column durable._executions.suspend_seq is
  'next_seq at the last suspend: a worker that has the coroutine warm needs only later rows.';
comment on column durable._executions.waiting_on is 'Child numbers of the wait of a blocked run.';
comment on column durable._executions.wait_kind is 'single, signal, any: one of them ends the wait; all: every one of them.';
comment on column durable._executions.wait_left is 'How many more of waiting_on must resolve.';
comment on column durable._executions.key is 'Idempotency key of the start; unique for tenant and workflow.';
comment on column durable._executions.digest is 'Digest of the code that acquired the run last; before that, of the code that a worker announced last for it.';
comment on column durable._executions.problem is 'Why the run was halted, as JSON; null when nothing is wrong.';

create unique index executions_by_key on durable._executions (tenant, workflow, key) where key is not null;
comment on index durable.executions_by_key is 'Decides that a second start with the same key is the same run.';

create index executions_by_cancel_until on durable._executions (cancel_until) where cancel_until is not null;
comment on index durable.executions_by_cancel_until is 'Serves the sweep of cancellations whose grace is over.';

-- state/51_journal.sql

-- The execution journal: append-only, written by _append alone, one row for up to three logical events of one transaction.
-- The view durable.journal_events gives the logical stream.

create type durable.row_type as enum (
  'execution_started', 'execution_completed', 'execution_failed', 'cancel_requested', 'execution_cancelled',
  'step_completed', 'step_failed', 'first_attempt_failed', 'step_started', 'step_scheduled',
  'attempt_started', 'attempt_failed', 'last_attempt_completed', 'last_attempt_failed',
  'open_attempt_failed', 'open_step_completed', 'open_step_failed',
  'child_run_scheduled', 'child_run_started', 'child_run_interrupted', 'child_settled', 'open_child_settled',
  'promise_registered', 'timer_scheduled', 'timer_fired', 'random_generated', 'time_recorded',
  'signal_delivered', 'signal_received', 'join_set_created', 'join_set_submitted', 'join_set_awaited',
  'execution_awaiting', 'execution_resumed'
);
comment on type durable.row_type is
  'The type of a journal row. durable.journal_types() gives the logical events of each.';

create table durable._journal (
  execution bigint not null,
  ts durable.epoch_ms not null,
  bucket integer not null,
  seq integer not null,
  child integer,
  attempt integer,
  type durable.row_type not null,
  name text,
  input_hash bytea,
  data text,
  constraint journal_pk primary key (execution, seq, bucket),
  constraint journal_seq_not_negative check (seq >= 0),
  constraint journal_starts_with_started check ((seq = 0) = (type = 'execution_started'))
) partition by list (bucket);

comment on table durable._journal is
  'The events of each run, in order. A row covers the sequence numbers [seq, seq + durable._width(type)). Rows are never updated.';
comment on column durable._journal.bucket is 'Partition: the bucket of the execution.';
comment on column durable._journal.seq is 'First sequence number of the row.';
comment on column durable._journal.ts is 'Instant of the transaction''s writes; replay never uses it.';
comment on column durable._journal.child is 'Number of the child that the row is about.';
comment on column durable._journal.attempt is 'Attempt of the invocation, from 1; of a signal its delivery number; of a member its join set.';
comment on column durable._journal.type is 'The type of the row: one of durable.journal_types(), which gives its logical events.';
comment on column durable._journal.name is 'Function, workflow or promise name: compared on every replay.';
comment on column durable._journal.input_hash is 'First 8 bytes of the hash of name and arguments: compared on every replay.';
comment on column durable._journal.data is 'Result, error, captured value or wait as JSON text. Null where a promise row holds it.';

create index journal_by_adopted on durable._journal (name)
  where type in ('open_child_settled', 'child_settled') and name is not null;
comment on index durable.journal_by_adopted is 'Serves retention: the journals that read the result of a promise of another run.';

create table durable._buckets (
  bucket integer not null,
  constraint buckets_pk primary key (bucket)
);
comment on table durable._buckets is 'Weeks (since the epoch) that have a journal partition. durable.tick() opens them ahead of time.';

create type durable.as_of_record as (
  generation integer, seq integer, at timestamptz, status text, next_child integer, waiting_on text[], running jsonb,
  children jsonb, signals jsonb
);
comment on type durable.as_of_record is 'The state of a run when its journal had seq events, the last of them at that instant.';

create type durable._attempt as (number integer, state text);
comment on type durable._attempt is
  'The state of a local step: the attempt of that number is running, or due because it comes next; or the step is complete, without a number. Null: no row is about the step.';

create type durable._event as (
  execution bigint, type durable.row_type, child integer, attempt integer, name text, input_hash bytea, data text
);
comment on type durable._event is 'One journal row to be written, before it has a sequence number.';

create type durable._settled as (
  id text, state text, execution bigint, child integer, head bigint, timer boolean, attempt integer, attempt_open boolean
);
comment on type durable._settled is
  'A promise that the current transaction settled, with the data that the journal of its owner records.';

create type durable._step_outcome as (
  child integer, name text, hash text, attempt integer, value text, error text, retry_in bigint, begun boolean,
  param text, retry text
);
comment on type durable._step_outcome is 'The outcome of an attempt of a local step: begun, failed, completed, or failed for good.';

create type durable._command as (
  "do" text, child integer, name text, version text, queue text, hash text, param text, timeout bigint,
  detached boolean, duration bigint, value text, "set" integer, abandon boolean, retry text
);
comment on type durable._command is 'A command of a coroutine: start a run or a timer, make or adopt a promise, record a value, begin a step, receive a signal, use a join set.';

create type durable._ending as (
  "do" text, "on" integer[], kind text, value text, error text, retry_in bigint, problem text
);
comment on type durable._ending is 'How a report leaves the task: suspend, complete, fail, cancel, continue, release or halt.';

create type durable._run_report as (
  execution bigint, version integer, seen integer, outcomes durable._step_outcome[],
  commands durable._command[], ending durable._ending, id text, verdict text, seq integer, next integer, event durable._event
);
comment on type durable._run_report is
  'The report of one run in a turn, and its result: the verdict, where its rows begin and end, and the row of a single outcome.';

create type durable._turn_batch as (
  reports durable._run_report[], has_commands boolean, has_outcomes boolean, has_several boolean, has_unknown boolean,
  endings text[], settles text[], writes_side_rows boolean, adopts text[]
);
comment on type durable._turn_batch is
  'The reports of one turn, and properties of all of them. The cost of a turn is mainly the number of its statements, and most statements are for cases that most turns do not have. has_several: some report is more than a single outcome. has_unknown: some report names no run, or an ending that this schema does not know. endings: that of each report, null for none. settles: promises that may be settled. writes_side_rows: a report may write side rows of its own run (it receives, takes or continues). adopts: promises of others to wait for.';

create type durable._turn_answer as (
  now bigint, verdicts json, tails json, tasks json, hints text[], settled boolean, due_in bigint, busy bigint[], locked text[],
  idle boolean
);
comment on type durable._turn_answer is 'The answer of worker_turn_v1.';

create type durable._sql_step_call as (
  worker text, execution bigint, id text, version integer, seen integer, child integer, attempt integer, name text, hash text
);
comment on type durable._sql_step_call is
  'A call of a step in SQL: the lease under which it is made, and the child, attempt, name and input hash that are recorded.';

create type durable._journal_line as (
  execution bigint, bucket integer, seq integer, ts bigint, type durable.row_type, child integer, attempt integer, name text,
  has_data boolean, data text, has_references boolean
);
comment on type durable._journal_line is 'A journal row for the laws, with the data of waits and timers only. has_references: its data refers to large values.';

create type durable.check_record as (law text, id text, detail text);
comment on type durable.check_record is 'A violated law, as durable.check() answers it: its name, the object, the values.';

-- state/52_journal_values.sql

-- Large values of journals, each kept once for its run: a list that grows from step to step is stored as what it grew by.

create table durable._journal_values (
  execution bigint not null,
  bucket integer not null,
  hash bytea not null,
  prefix bytea,
  data text not null,
  constraint journal_values_pk primary key (execution, hash, bucket),
  constraint journal_values_hash_is_sha256 check (octet_length(hash) = 32)
) partition by list (bucket);

comment on table durable._journal_values is
  'Large values of journal rows and the parts of them that are stored apart, each once for its run. Nothing is shared between runs, so a value goes with its run. Rows are never updated.';
comment on column durable._journal_values.bucket is 'Partition: that of the journal of the run.';
comment on column durable._journal_values.hash is
  'SHA-256 of data. Of a list: of its hash before its last element, and that element as it stands in data.';
comment on column durable._journal_values.prefix is
  'The list that this one begins with; for a list without an earlier one, the hash of the empty list, which has no row. Null: the value is no list that was taken apart.';
comment on column durable._journal_values.data is
  'The value as durable._stored_text wrote it; of a list only the elements after its prefix, and without the closing bracket.';

-- state/60_messages.sql

-- Messages that must leave the database, and the record that limits hints. The policy of delivery is in logic.

create table durable._unblocks (
  created_at durable.epoch_ms not null,
  claimed_until durable.epoch_ms not null default 0,
  attempts integer not null default 0,
  promise_id text collate "C" not null,
  address text not null,
  constraint unblocks_pk primary key (promise_id, address),
  constraint unblocks_address_not_empty check (address <> '')
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._unblocks is
  'Messages to listeners that a promise settled: kept until acknowledged, so delivery is at least once.';
comment on column durable._unblocks.claimed_until is 'A courier holds it until this instant.';
comment on column durable._unblocks.created_at is 'When the promise settled.';
comment on column durable._unblocks.attempts is 'Deliveries begun so far.';

create index unblocks_by_claimed_until on durable._unblocks (claimed_until);
comment on index durable.unblocks_by_claimed_until is 'Serves unblock_claim for a courier of any address.';
create index unblocks_by_address on durable._unblocks (address, claimed_until);
comment on index durable.unblocks_by_address is 'Serves unblock_claim for one address.';

create unlogged table durable._hints (
  sent_at durable.epoch_ms not null,
  channel text not null,
  constraint hints_pk primary key (channel)
) with (fillfactor = 50);
comment on table durable._hints is 'When a plain SQL caller last sent a hint on a channel: keeps hints to one in 50 ms. Losing it is harmless.';
comment on column durable._hints.sent_at is 'Instant of the last hint.';

-- state/70_schedules.sql

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

-- state/71_inboxes.sql

-- Signals: the payloads sent to runs by name, in order, and the receive that waits for the next one. The journal has the
-- events; a payload is stored here only.

create table durable._inboxes (
  execution bigint not null,
  delivered integer not null default 0,
  received integer not null default 0,
  receiver integer,
  name text collate "C" not null,
  constraint inboxes_pk primary key (execution, name),
  constraint inboxes_received_was_delivered check (0 <= received and received <= delivered),
  constraint inboxes_nothing_lies_while_one_waits check (receiver is null or received = delivered)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.1);
comment on table durable._inboxes is 'Counters of one signal name of one run: its deliveries and receipts are numbered 1, 2, 3, and receipt n takes delivery n.';
comment on column durable._inboxes.delivered is 'Number of the last delivery.';
comment on column durable._inboxes.received is 'Number of the last receipt.';
comment on column durable._inboxes.receiver is 'Child number of the receive that the next delivery completes; null: none waits.';

create table durable._signals (
  execution bigint not null,
  delivery integer not null,
  name text collate "C" not null,
  key text collate "C",
  data text,
  constraint signals_pk primary key (execution, name, delivery),
  constraint signals_are_numbered_from_one check (delivery >= 1)
);
comment on table durable._signals is 'Payloads of delivered signals.';
comment on column durable._signals.delivery is 'Delivery number within its name.';
comment on column durable._signals.key is 'Deduplication key of the sender: the same key again is the same delivery.';
comment on column durable._signals.data is 'Payload as JSON text; null: none.';

create unique index signals_by_key on durable._signals (execution, name, key) where key is not null;
comment on index durable.signals_by_key is 'Decides that a signal was delivered before.';

-- state/72_join_sets.sql

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

-- state/73_forks.sql

-- The audit of forks: the origin of each fork, the user who made it, and the values that were replaced.

create table durable._forks (
  at durable.epoch_ms not null,
  id text collate "C" not null,
  origin_id text collate "C" not null,
  origin bigint not null,
  seq integer not null,
  by text not null,
  replaced jsonb not null default '{}',
  constraint forks_pk primary key (id)
);
comment on table durable._forks is
  'Runs that began as copies of others. A fork has copies of all rows that it took over, so its origin may be removed.';
comment on column durable._forks.at is 'When.';
comment on column durable._forks.id is 'The new run.';
comment on column durable._forks.origin_id is 'The run of which it is a fork.';
comment on column durable._forks.origin is
  'The execution whose journal was copied: one of several in a run that continued as new.';
comment on column durable._forks.seq is
  'The position at which the copy ends: it has the rows before this event, without waits that were not over and without the effects of a clean-up.';
comment on column durable._forks.by is 'Database user who asked for it.';
comment on column durable._forks.replaced is 'Values that replaced recorded ones, by child number.';

-- state/74_services.sql

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

-- state/75_watches.sql

-- Watches: conditions that owners of tables have put on their rows, the waits of runs for such rows, and the row events that
-- triggers and the sweep leave for durable.tick(). A trigger only inserts here, so it locks no row for which others wait.

create table durable._watches (
  id bigint not null generated always as identity,
  relation regclass not null,
  namespace text not null,
  table_name text not null,
  name text not null,
  condition text not null,
  columns text[] not null,
  types text[] not null,
  trusted boolean not null default false,
  constraint watches_pk primary key (id),
  constraint watches_name_unique unique (namespace, table_name, name),
  constraint watches_name_is_plain check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  constraint watches_columns_have_types check (cardinality(columns) = cardinality(types) and columns <> '{}')
);
comment on table durable._watches is
  'Conditions on rows of tables, by table and name; people read the view durable.watches. Written by durable.watch and durable.unwatch alone.';
comment on column durable._watches.relation is 'The table, also after it was renamed.';
comment on column durable._watches.namespace is 'Schema of the table when it was watched: workflows use that name.';
comment on column durable._watches.table_name is 'Name of the table when it was watched.';
comment on column durable._watches.condition is 'Expression over the columns, as the server writes it down: every name in it has its schema.';
comment on column durable._watches.columns is 'Columns by whose values runs wait for a row.';
comment on column durable._watches.types is 'Their types, domains resolved; text for an enum.';
comment on column durable._watches.trusted is
  'The table''s owner may run code with the rights of the engine''s owner and of its workers: a role that has them allowed it.';

create table durable._row_waits (
  execution bigint not null,
  test_at durable.epoch_ms,
  since xid8,
  watch bigint not null,
  tests integer not null default 0,
  promise_id text collate "C" not null,
  key jsonb not null,
  constraint row_waits_pk primary key (promise_id),
  constraint row_waits_armed_know_since_when check (test_at is not null or since is not null)
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._row_waits is
  'Waits of runs for rows, one for each such promise while it is pending. Armed (test_at null): every writer sees it. Before that it is tested repeatedly.';
comment on column durable._row_waits.execution is 'The run that waits; the wait ends with the run.';
comment on column durable._row_waits.test_at is
  'When durable.tick() tests it against the table; null: the triggers report it; 0: its run has ended.';
comment on column durable._row_waits.since is
  'The number of a transaction that began to write after the wait was committed: once all earlier ones have ended, every trigger sees the wait.';
comment on column durable._row_waits.tests is 'How often it was tested; the pauses grow with it.';
comment on column durable._row_waits.key is 'Values of the watch''s columns, canonical, as the triggers compute them.';

create index row_waits_by_key on durable._row_waits (watch, key);
comment on index durable.row_waits_by_key is 'Serves the triggers: one lookup for each row that a statement changed.';
create index row_waits_by_execution on durable._row_waits (execution);
comment on index durable.row_waits_by_execution is 'Serves _settle: the waits of runs that end.';
create index row_waits_by_test_at on durable._row_waits (test_at) where test_at is not null;
comment on index durable.row_waits_by_test_at is 'Serves the sweep of waits that are to be tested.';

create table durable._row_events (
  id bigint not null generated always as identity,
  xid xid8 not null,
  watch bigint not null,
  state text,
  promise_id text collate "C",
  key jsonb,
  data jsonb,
  constraint row_events_pk primary key (id),
  constraint row_events_state_is_known check (state in ('resolved', 'rejected', 'rejected_canceled')),
  constraint row_events_verdicts_name_a_promise check ((state is null) = (promise_id is null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
comment on table durable._row_events is
  'Work for durable.tick(): settle a promise, or test waits of a watch again (no promise; no key: all of them). Committed with the user''s rows, deleted when done.';
comment on column durable._row_events.xid is
  'Transaction of the writer; its triggers take the event back if it changes the row again.';
comment on column durable._row_events.state is 'Verdict on the promise.';
comment on column durable._row_events.key is 'Values of the key of the waits to test.';
comment on column durable._row_events.data is 'The row as JSON, or an error.';

create index row_events_by_xid on durable._row_events (xid, watch);
comment on index durable.row_events_by_xid is 'Serves the triggers: earlier row events of the same transaction.';

create type durable._row_outcome as (promise_id text, watch bigint, state text, data jsonb);
comment on type durable._row_outcome is 'The outcome of a wait for a row.';

-- state/76_retention.sql

-- Tombstones of removed runs and promises, and the positions of the sweeps of retention.

create table durable._removed (
  ended_at durable.epoch_ms not null,
  removed_at durable.epoch_ms not null,
  id text collate "C" not null,
  state text not null,
  tenant text not null default '',
  workflow text,
  key text,
  constraint removed_pk primary key (id),
  constraint removed_had_ended check (state in ('resolved', 'rejected', 'rejected_canceled', 'rejected_timedout')),
  constraint removed_after_their_end check (ended_at <= removed_at),
  constraint removed_keys_are_of_runs check (key is null or workflow is not null)
);
comment on table durable._removed is
  'Runs and free-standing promises that durable.purge removed: no new object gets their ids and keys while they are listed here (setting removed_ids_days). Their descendants are not listed.';
comment on column durable._removed.ended_at is 'When it was settled.';
comment on column durable._removed.removed_at is 'When it was removed.';
comment on column durable._removed.state is 'How it was settled.';
comment on column durable._removed.workflow is 'Workflow of a run; null: it was a promise without a journal.';
comment on column durable._removed.key is 'Idempotency key of its start.';

create unique index removed_by_key on durable._removed (tenant, workflow, key) where key is not null;
comment on index durable.removed_by_key is 'Serves starts with a key: whether the run with that key was removed.';
create index removed_by_removed_at on durable._removed (removed_at);
comment on index durable.removed_by_removed_at is 'Serves the sweep that forgets removed ids.';

create table durable._retention (
  due_at durable.epoch_ms not null default 0,
  subject text not null,
  place jsonb,
  constraint retention_pk primary key (subject)
) with (fillfactor = 50);
comment on table durable._retention is 'The positions of the sweeps by durable.tick(): one row for runs and, once there are objects, one each for calls and objects.';
comment on column durable._retention.due_at is 'The instant at which the sweep continues.';
comment on column durable._retention.subject is 'runs, calls or objects.';
comment on column durable._retention.place is 'Where it continues, as the purge of that subject answers in more; null: from the start.';

-- state/77_objects.sql

-- Content-addressed objects: values, calls, results and their history. An object never changes and is named by the hash of what
-- it is (durable._object_id), so equal things are one row, and what an object refers to existed before it: there is no cycle.
-- Only 85_calls/12_objects.sql inserts here. Only excision changes a row, and leaves its tombstone.

create domain durable._hash as bytea
  constraint hash_has_32_bytes check (octet_length(value) = 32);
comment on domain durable._hash is 'A SHA-256, which is the id of an object. In JSON and Python 64 lower-case hexadecimal digits.';

create domain durable._object_name as text
  constraint object_name_is_at_most_255_bytes check (octet_length(value) <= 255)
  constraint object_name_is_normalized check (value is nfc normalized);
comment on domain durable._object_name is 'A name within a DAG or a tree: Unicode form NFC, at most 255 bytes of UTF-8.';

create type durable._object_form as (
  created_at durable.epoch_ms, excised_at durable.epoch_ms, excision integer, id_bytes integer, kind text, sub text,
  scalar_bytes integer, refs durable._hash[], names durable._object_name[], reason text
);
comment on type durable._object_form is 'The columns that the laws of an object use. Of the scalar only its length, because a row is copied to be checked.';

create domain durable._lawful_object as durable._object_form
  constraint objects_id_is_a_hash check ((value).id_bytes = 32)
  constraint objects_kind_is_known check (
    (value).sub = any (case (value).kind
      when 'datum' then '{"null",bool,i64,f64,bytes,string,uri,list,set,map}'::text[]
      when 'node' then '{literal,call,import,builtin}'
      when 'exec' then '{ok,error}'
      when 'dag' then '{""}' when 'tree' then '{""}' when 'commit' then '{""}' when 'request' then '{""}' else '{}' end))
  constraint objects_excised_are_empty check (
    num_nonnulls((value).excised_at, (value).excision, (value).reason) in (0, 3)
    and ((value).excised_at is null
         or ((value).scalar_bytes is null and (value).refs = '{}' and (value).names = '{}'
             and (value).created_at <= (value).excised_at)))
  constraint objects_scalar_has_the_length_of_its_kind check (
    (value).excised_at is not null
    or case when (value).kind = 'commit' then (value).scalar_bytes = 4
            when (value).kind <> 'datum' then (value).scalar_bytes is null
            when (value).sub = 'bool' then (value).scalar_bytes = 1
            when (value).sub in ('i64', 'f64') then (value).scalar_bytes = 8
            when (value).sub in ('bytes', 'string') then (value).scalar_bytes between 0 and 1048576
            when (value).sub = 'uri' then (value).scalar_bytes between 1 and 1048576
            else (value).scalar_bytes is null end is true)
  constraint objects_refs_are_a_list check (
    coalesce(array_ndims((value).refs), 1) = 1 and array_position((value).refs, null) is null)
  constraint objects_refs_are_as_many_as_their_kind_has check (
    (value).excised_at is not null
    or case when (value).kind = 'datum' then
              case (value).sub when 'list' then true when 'set' then true
                               when 'map' then cardinality((value).refs) % 2 = 0 else (value).refs = '{}' end
            when (value).kind = 'node' then
              case when (value).sub in ('literal', 'import') then cardinality((value).refs) = 1
                   else cardinality((value).refs) >= 1 end
            when (value).kind = 'dag' then cardinality((value).refs) >= 1
            when (value).kind = 'commit' then cardinality((value).refs) >= 1
            when (value).kind in ('exec', 'request') then cardinality((value).refs) = 2
            else true end)
  constraint objects_names_match_refs check (
    coalesce(array_ndims((value).names), 1) = 1 and array_position((value).names, null) is null
    and ((value).excised_at is not null
         or cardinality((value).names) = case when (value).kind in ('dag', 'tree') then cardinality((value).refs) else 0 end));
comment on domain durable._lawful_object is
  'The laws of a row of _objects, applied by its constraint objects_are_lawful. The laws of bytes and of order are in durable._object_flaw, and durable.check() applies all of them.';

create table durable._objects (
  created_at durable.epoch_ms not null,
  excised_at durable.epoch_ms,
  excision integer,
  id bytea not null,
  kind text not null,
  sub text not null,
  scalar bytea,
  refs bytea[] not null default '{}',
  names text[] not null default '{}',
  reason text,
  constraint objects_pk primary key (id),
  constraint objects_are_lawful check (row(
    created_at, excised_at, excision, octet_length(id), kind, sub, octet_length(scalar), refs, names, reason
  )::durable._lawful_object is distinct from null)
);
comment on table durable._objects is
  'Content-addressed objects. Every id in refs has its row here. A table that names an object refers to it by a foreign key, or collection knows the table; so nothing that is named is collected. People read the view durable.objects.';
comment on column durable._objects.created_at is 'When it was first put. It is not part of its identity.';
comment on column durable._objects.excised_at is 'When its content was removed on purpose; null: it is there.';
comment on column durable._objects.excision is 'Number of that removal, one higher with each, in the order of their commits.';
comment on column durable._objects.id is 'durable._object_id of kind, sub, scalar, refs and names.';
comment on column durable._objects.kind is 'datum, node, dag, tree, commit, exec or request.';
comment on column durable._objects.sub is
  'The kind within the kind: type of a datum (null, bool, i64, f64, bytes, string, uri, list, set, map), of a node (literal, call, import, builtin), outcome of an exec (ok, error); empty for the others.';
comment on column durable._objects.scalar is
  'Bytes of a datum: bool 00 or 01; i64 and f64 8 bytes, big endian; string and uri UTF-8. Of a commit: the number of its parents, 4 bytes.';
comment on column durable._objects.refs is
  'Ids of other objects. list: members in order; set: members sorted; map: key, value, ... sorted by key id; literal: datum; import: dag; call and builtin: datum of the function URI, input nodes; dag: root node, named nodes; tree: dags; commit: tree, parents, then node, exec and request (or 32 zero bytes) of each exec, sorted by node; exec: node, then dag of a call or datum of a builtin; request: node, map datum.';
comment on column durable._objects.names is
  'Names of the refs of a dag (the first is empty, for its root, the others sorted) and of a tree (sorted), by their bytes.';
comment on column durable._objects.reason is 'Why it was excised; null: it was not.';

create index objects_by_ref on durable._objects using gin (refs) with (fastupdate = off) where refs <> '{}';
comment on index durable.objects_by_ref is 'Serves collection: whether any object refers to one. Without a list of pending entries, which each look-up would read, and without objects that refer to none.';
create index objects_execs_by_node on durable._objects ((refs[1])) where kind = 'exec';
comment on index durable.objects_execs_by_node is 'Serves the history of a node: its execs.';
create unique index objects_by_excision on durable._objects (excision) where excision is not null;
comment on index durable.objects_by_excision is 'Serves closure_status: the number of the latest excision.';
create index objects_by_created_at on durable._objects (created_at, id) where excised_at is null;
comment on index durable.objects_by_created_at is 'Serves collection, which goes through old objects portion by portion.';
create index objects_by_hex on durable._objects using hash (encode(id, 'hex'));
comment on index durable.objects_by_hex is 'Serves people, who filter views by an id as text. A hash, because an entry of it has no text.';

create type durable._object as (
  id bytea, kind text, sub text, scalar bytea, refs bytea[], names text[]
);
comment on type durable._object is 'An object to be put. Its id may be null; one that is given must be that of its content. Refs and names may be null: none.';

create table durable._object_uses (
  used_at durable.epoch_ms not null,
  id bytea not null,
  constraint object_uses_are_of_objects foreign key (id) references durable._objects (id) on delete cascade
);
comment on table durable._object_uses is
  'Old objects that were put again, so collection treats them as new. Rows are only inserted, never changed: sessions that put the same object at the same moment do not wait for each other.';
comment on column durable._object_uses.used_at is 'When it was put again.';
comment on column durable._object_uses.id is 'The object.';
create index object_uses_by_id on durable._object_uses (id, used_at);
comment on index durable.object_uses_by_id is 'Serves puts and collection: the latest use of an object.';

create table durable._closures (
  excision integer not null,
  is_whole boolean not null,
  id bytea not null,
  constraint closures_pk primary key (id),
  constraint closures_are_of_objects foreign key (id) references durable._objects (id) on delete cascade,
  constraint closures_excision_positive check (excision > 0)
);
comment on table durable._closures is
  'Objects whose closure was walked since something was excised, so that no closure is walked again at each hit. A cache: any row may be deleted at any time.';
comment on column durable._closures.excision is 'Number of the latest excision that the walk saw. The row holds until the next one.';
comment on column durable._closures.is_whole is 'No object that it reaches was excised. False holds for ever.';
comment on column durable._closures.id is 'The object at the top.';

create table durable._refs (
  version integer not null default 1,
  created_at durable.epoch_ms not null,
  of_run boolean not null default false,
  commit_id bytea not null,
  name text collate "C" not null,
  kind text not null,
  base text collate "C",
  constraint refs_pk primary key (name),
  constraint refs_commit_exists foreign key (commit_id) references durable._objects (id),
  constraint refs_base_exists foreign key (base) references durable._refs (name),
  constraint refs_kind_is_known check (kind in ('head', 'index', 'exec')),
  constraint refs_name_is_1_to_1024_bytes check (octet_length(name) between 1 and 1024),
  constraint refs_version_positive check (version >= 1),
  constraint refs_only_an_index_has_a_base check (base is null or kind = 'index'),
  constraint refs_of_runs_are_scopes check (not of_run or (kind = 'index' and base is null))
);
comment on table durable._refs is
  'Names of commits, the only mutable part of the store. Each change is a compare-and-swap of version, and heads and snapshots go forward only. People read the view durable.refs.';
comment on column durable._refs.version is 'One higher with each change.';
comment on column durable._refs.created_at is 'When the name was made.';
comment on column durable._refs.of_run is 'A scope that was made for the calls of the run of this name, and is dropped after that run is removed.';
comment on column durable._refs.commit_id is 'The commit that it names.';
comment on column durable._refs.kind is 'head: a branch; index: a scope, in which work goes on; exec: a snapshot that a call was given, ephemeral.';
comment on column durable._refs.base is 'The head that an index was opened on and is committed to; null: none.';
create index refs_by_commit on durable._refs (commit_id);
comment on index durable.refs_by_commit is 'Serves collection: whether a commit is named.';
create index refs_by_base on durable._refs (base) where base is not null;
comment on index durable.refs_by_base is 'Serves people: the scopes of a head.';
create index refs_of_runs on durable._refs (name) where of_run;
comment on index durable.refs_of_runs is 'Serves retention: scopes whose runs may be removed.';
create index refs_ephemeral on durable._refs (created_at) where kind = 'exec';
comment on index durable.refs_ephemeral is 'Serves retention: snapshots, the oldest first.';

-- state/78_calls.sql

-- Calls: which result a scope keeps for a node, which attempts were made for which inputs, and who waits for them.
-- An attempt has no lifecycle of its own: it is a promise `call:<execution key>` with a task in the queue `adapter:<name>`. Its
-- row here remembers what a promise does not: the adapter's token, what is to be done next, and what it has led to.
-- Ids of objects and keys have 32 bytes.

create table durable._pins (
  pinned_at durable.epoch_ms not null,
  version integer not null,
  scope text collate "C" not null,
  node_id bytea not null,
  exec_id bytea not null,
  inputs bytea[] not null default '{}',
  constraint pins_pk primary key (scope, node_id),
  constraint pins_are_of_scopes foreign key (scope) references durable._refs (name),
  constraint pins_ids_are_32_bytes check (octet_length(node_id) = 32 and octet_length(exec_id) = 32),
  constraint pins_version_positive check (version > 0)
);
comment on table durable._pins is
  'The exec map of each scope: the one execution whose result stands for a node there. People read the view durable.pins.';
comment on column durable._pins.pinned_at is 'When this execution was pinned.';
comment on column durable._pins.scope is 'Name of a ref of the kind index.';
comment on column durable._pins.node_id is 'A call or builtin node.';
comment on column durable._pins.exec_id is 'An execution of that node, ok or error.';
comment on column durable._pins.version is 'Raised by one whenever another execution is pinned; compared before it is changed by hand.';
comment on column durable._pins.inputs is
  'Executions that stood for the inputs, in their order, when the result was asked for; 32 zero bytes for an input that is no call.';
create index pins_by_node on durable._pins (node_id);
comment on index durable.pins_by_node is 'Serves the history of a node: the scopes that pin it.';
create index pins_by_exec on durable._pins (exec_id);
comment on index durable.pins_by_exec is 'Serves collection: whether a scope still needs an execution.';
create index pins_by_node_hex on durable._pins using hash (encode(node_id, 'hex'));
comment on index durable.pins_by_node_hex is 'Serves people, as objects_by_hex does: the pins of a node.';

create table durable._pin_log (
  id bigint not null generated always as identity,
  pinned_at durable.epoch_ms not null,
  version integer not null,
  scope text collate "C" not null,
  node_id bytea not null,
  exec_id bytea not null,
  prev_exec bytea,
  execution_key bytea,
  constraint pin_log_pk primary key (id),
  constraint pin_log_first_has_none_before check ((version = 1) = (prev_exec is null))
);
comment on table durable._pin_log is
  'Every pin that was set, append-only. Retention removes the beginning of the history of a pin, never the entry of the present one.';
comment on column durable._pin_log.pinned_at is 'When it was pinned.';
comment on column durable._pin_log.node_id is 'As of _pins.';
comment on column durable._pin_log.exec_id is 'The execution that was pinned.';
comment on column durable._pin_log.prev_exec is 'The one that was pinned before; null: none.';
comment on column durable._pin_log.execution_key is 'The attempt whose result it is; null: a hit, a builtin, or set by hand.';

create index pin_log_by_pin on durable._pin_log (scope, node_id, version);
comment on index durable.pin_log_by_pin is 'Serves people and the laws: the history of a pin. A scope that was dropped and opened again begins at version 1 again.';
create index pin_log_by_attempt on durable._pin_log (execution_key) where execution_key is not null;
comment on index durable.pin_log_by_attempt is 'Serves retention: the pins that an attempt has led to.';

create table durable._calls (
  generation integer not null default -1,
  results_from integer not null default 0,
  removed integer not null default 0,
  value_key bytea not null,
  salt text not null default '',
  scope text collate "C",
  function text not null,
  function_id bytea not null,
  inputs bytea[] not null,
  constraint calls_pk primary key (value_key),
  constraint calls_value_key_is_32_bytes check (octet_length(value_key) = 32),
  constraint calls_generation_from_minus_one check (generation >= -1),
  constraint calls_results_from_known_generations check (results_from between 0 and generation + 1),
  constraint calls_removed_what_there_was check (removed between 0 and generation + 1)
);
comment on table durable._calls is
  'A function applied to values, in a cache namespace: what shares one result. Its row is locked by whoever decides whether to start an attempt.';
comment on column durable._calls.value_key is 'Identity of salt, function and values of the inputs.';
comment on column durable._calls.generation is 'Number of the latest attempt; -1: none yet.';
comment on column durable._calls.results_from is 'Attempts before this generation are not shared any more: durable.call_invalidate.';
comment on column durable._calls.removed is 'How many of its attempts retention has removed.';
comment on column durable._calls.salt is 'Cache namespace: a result is never shared between two salts.';
comment on column durable._calls.scope is 'The scope that the result is for alone; null: shared.';
comment on column durable._calls.function is 'URI of the function.';
comment on column durable._calls.function_id is 'The datum of that URI.';
comment on column durable._calls.inputs is 'Values of the inputs: ids of datums.';
create index calls_by_function on durable._calls ((split_part(function, '?', 1)));
comment on index durable.calls_by_function is 'Serves durable.explain_miss and durable.call_invalidate: calls of a function, whatever its options are.';
create index calls_without_attempts on durable._calls (value_key) where removed = generation + 1;
comment on index durable.calls_without_attempts is 'Serves retention: calls of which no attempt is left.';

create table durable._call_attempts (
  created_at durable.epoch_ms not null,
  ended_at durable.epoch_ms,
  deadline durable.epoch_ms,
  generation integer not null,
  polls integer not null default 0,
  failures integer not null default 0,
  budget integer not null,
  empty_polls integer not null default 0,
  share boolean not null,
  woken boolean not null default false,
  cancel_due boolean not null default false,
  uuid uuid not null,
  execution_key bytea not null,
  value_key bytea not null,
  node_id bytea not null,
  phase text not null default 'poll_adapter',
  adapter text not null,
  served_as text collate "C" not null,
  step_id text collate "C",
  token text,
  outcome_dag bytea,
  exec_id bytea,
  error text,
  request_id bytea,
  ref_name text,
  constraint call_attempts_pk primary key (execution_key),
  constraint call_attempts_generation_unique unique (value_key, generation),
  constraint call_attempts_phase_is_known check (phase in ('poll_adapter', 'integrate_ok', 'integrate_error')),
  constraint call_attempts_outcome_iff_polled check ((phase = 'poll_adapter') = (outcome_dag is null)),
  constraint call_attempts_exec_has_an_outcome check (exec_id is null or (outcome_dag is not null and ended_at is not null)),
  constraint call_attempts_error_iff_given_up check ((error is not null) = (ended_at is not null and exec_id is null)),
  constraint call_attempts_counts_not_negative check (least(generation, polls, failures, budget, empty_polls) >= 0),
  constraint call_attempts_within_budget check (failures <= budget + 1),
  constraint call_attempts_adapter_is_a_name check (adapter ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  constraint call_attempts_token_is_a_text check (octet_length(token) between 1 and 65536)
) with (fillfactor = 70);
comment on table durable._call_attempts is
  'One logical run of a call each, kept as a ledger. It is live while its promise is pending; the view durable.call_attempts names its state.';
comment on column durable._call_attempts.created_at is 'When it was started.';
comment on column durable._call_attempts.deadline is 'That of its promise; null: none.';
comment on column durable._call_attempts.value_key is 'The row of _calls that it belongs to.';
comment on column durable._call_attempts.execution_key is 'Identity of value key and generation; the promise is call:<this in hex>. Backends get it as idempotency key.';
comment on column durable._call_attempts.generation is 'Number among the attempts of this value key, without a gap.';
comment on column durable._call_attempts.node_id is 'The call that it was started for. Others that wait for it may be other nodes with the same values.';
comment on column durable._call_attempts.uuid is 'Name of the attempt towards the adapter.';
comment on column durable._call_attempts.share is 'Others may join it and have its result.';
comment on column durable._call_attempts.served_as is 'The name under which workers serve its function; the queue of its task is adapter:<this>.';
comment on column durable._call_attempts.step_id is 'The step that forced it; null: not forced.';
comment on column durable._call_attempts.phase is
  'Where the next lease goes on: poll_adapter, or with a stored outcome integrate_ok or integrate_error, which never polls again.';
comment on column durable._call_attempts.token is 'Newest token of the adapter, opaque.';
comment on column durable._call_attempts.polls is 'How often the adapter has answered.';
comment on column durable._call_attempts.failures is 'Failures in a row that may be tried again; any good answer of the adapter sets it to 0.';
comment on column durable._call_attempts.budget is 'So many failures in a row are tried again; one more gives the attempt up.';
comment on column durable._call_attempts.empty_polls is 'How often in a row the result was not there yet.';
comment on column durable._call_attempts.woken is 'durable.call_wake came while a worker polled: the next poll follows at once.';
comment on column durable._call_attempts.cancel_due is 'The adapter is still to be asked to cancel the job, once.';
comment on column durable._call_attempts.outcome_dag is 'The DAG that the adapter named, whether or not it is here yet.';
comment on column durable._call_attempts.exec_id is 'The execution of node_id that it has led to.';
comment on column durable._call_attempts.error is 'Why it was given up, as JSON text.';
comment on column durable._call_attempts.request_id is 'The request object that it was made with: resources, priority, labels. Not part of any key.';
comment on column durable._call_attempts.ref_name is 'Ref of the snapshot that the adapter reads; null: it reads by ids.';
comment on column durable._call_attempts.ended_at is 'When its result was pinned, or it was found given up; null for a live one.';
create unique index call_attempts_step_unique on durable._call_attempts (step_id) where ended_at is null and step_id is not null;
comment on index durable.call_attempts_step_unique is 'A step forces one attempt at a time. Its row in _call_steps says which it was given, as long as that is kept.';
create index call_attempts_live on durable._call_attempts (execution_key) where ended_at is null;
comment on index durable.call_attempts_live is 'Serves the sweep and the drop of scopes: attempts that have not ended.';
create index call_attempts_live_by_adapter on durable._call_attempts (served_as) where ended_at is null;
comment on index durable.call_attempts_live_by_adapter is 'Serves the sweep: names of adapters that are needed.';
create index call_attempts_by_deadline on durable._call_attempts (deadline) where ended_at is null and deadline is not null;
comment on index durable.call_attempts_by_deadline is 'Serves the sweep: attempts past their deadline.';
create index call_attempts_by_ref on durable._call_attempts (ref_name) where ended_at is null and ref_name is not null;
comment on index durable.call_attempts_by_ref is 'Serves retention: snapshots that an attempt still reads.';
create index call_attempts_by_hex on durable._call_attempts using hash (encode(execution_key, 'hex'));
comment on index durable.call_attempts_by_hex is 'Serves people, as objects_by_hex does: an attempt by its execution key.';
create index call_attempts_by_node_hex on durable._call_attempts using hash (encode(node_id, 'hex'));
comment on index durable.call_attempts_by_node_hex is 'Serves people, as objects_by_hex does: the attempts of a node.';
create index call_attempts_by_node on durable._call_attempts (node_id, created_at);
comment on index durable.call_attempts_by_node is 'Serves the history of a node.';
create index call_attempts_by_outcome on durable._call_attempts (outcome_dag) where ended_at is null and outcome_dag is not null;
comment on index durable.call_attempts_by_outcome is 'Serves collection: results that are stored and not pinned yet.';
create index call_attempts_to_cancel on durable._call_attempts (adapter) where cancel_due;
comment on index durable.call_attempts_to_cancel is 'Serves leases: adapters that are still to be asked to cancel.';

create table durable._call_waiters (
  forced boolean not null,
  anonymous boolean not null default false,
  execution_key bytea not null,
  scope text collate "C" not null,
  node_id bytea not null,
  inputs bytea[] not null default '{}',
  constraint call_waiters_pk primary key (execution_key, scope, node_id)
);
comment on table durable._call_waiters is 'For which scopes and nodes an attempt runs: all of them get its result pinned, in one transaction.';
comment on column durable._call_waiters.execution_key is 'The attempt.';
comment on column durable._call_waiters.node_id is 'The call, as that scope has it.';
comment on column durable._call_waiters.forced is 'The result replaces what the scope has pinned; otherwise the first pin stays.';
comment on column durable._call_waiters.anonymous is
  'A caller waits who named no step, so only a person ends this wait. The steps that wait are those of _call_steps.';
comment on column durable._call_waiters.inputs is 'As of _pins.';
create index call_waiters_by_node on durable._call_waiters (node_id, scope);
comment on index durable.call_waiters_by_node is 'Serves cancellation, retry, and views: attempts of a call in a scope.';
create index call_waiters_by_scope on durable._call_waiters (scope, execution_key);
comment on index durable.call_waiters_by_scope is 'Serves the drop of a scope, which waits for the end of its calls, and people: the calls of a scope.';
create index call_waiters_by_node_hex on durable._call_waiters using hash (encode(node_id, 'hex'));
comment on index durable.call_waiters_by_node_hex is 'Serves people, as objects_by_hex does: the calls of a node.';

create table durable._call_steps (
  created_at durable.epoch_ms not null,
  has_left boolean not null default false,
  step_id text collate "C" not null,
  scope text collate "C" not null,
  node_id bytea not null,
  run_id text collate "C",
  execution_key bytea,
  exec_id bytea,
  constraint call_steps_pk primary key (step_id),
  constraint call_steps_have_an_attempt_or_a_hit check (num_nonnulls(execution_key, exec_id) = 1)
);
comment on table durable._call_steps is
  'The answers that steps were given, so that the same step gets the same again: its attempt, also after that was given up, or its hit.';
comment on column durable._call_steps.created_at is 'When it was answered first.';
comment on column durable._call_steps.has_left is 'It has ended its wait for its attempt, which may go on for others.';
comment on column durable._call_steps.step_id is 'Chosen by the caller; <run id>.<number> for a step of a run.';
comment on column durable._call_steps.node_id is 'The call that the step made; the same step never makes another.';
comment on column durable._call_steps.run_id is 'The run whose step it is, with which the row goes; null: of none, so it goes by its age.';
comment on column durable._call_steps.execution_key is 'The attempt that it started or joined; null: it had a hit.';
comment on column durable._call_steps.exec_id is 'The execution that it had as a hit.';
create index call_steps_by_attempt on durable._call_steps (execution_key) where execution_key is not null;
comment on index durable.call_steps_by_attempt is 'Serves retention: whether a step still needs an attempt.';
create index call_steps_by_exec on durable._call_steps (exec_id) where exec_id is not null;
comment on index durable.call_steps_by_exec is 'Serves collection: whether a step still needs an execution.';

create table durable._call_polls (
  started_at durable.epoch_ms not null,
  ended_at durable.epoch_ms not null,
  seq integer not null,
  version integer not null,
  execution_key bytea not null,
  class text not null,
  worker text,
  message text,
  stderr text,
  constraint call_polls_pk primary key (execution_key, seq),
  constraint call_polls_class_is_known check (class in ('pending', 'done', 'failed', 'integration'))
);
comment on table durable._call_polls is 'Answers of adapters and failed integrations, for people: the newest 100 of each attempt.';
comment on column durable._call_polls.execution_key is 'The attempt.';
comment on column durable._call_polls.started_at is 'When the adapter was run.';
comment on column durable._call_polls.ended_at is 'When it was reported.';
comment on column durable._call_polls.seq is 'Number within the attempt.';
comment on column durable._call_polls.version is 'Version of the task under which it was reported.';
comment on column durable._call_polls.class is 'pending, done or failed, as reported; integration: a stored result could not be integrated.';
comment on column durable._call_polls.message is 'A message of the adapter, or the error.';
comment on column durable._call_polls.stderr is 'The end of what it wrote to its log.';

create table durable._claims (
  created_at durable.epoch_ms not null,
  takeovers integer not null default 0,
  empty_polls integer not null default 0,
  execution_key bytea not null,
  submit_token text not null,
  backend text,
  job_id text,
  outcome text,
  dag_id bytea,
  constraint claims_pk primary key (execution_key),
  constraint claims_key_is_32_bytes check (octet_length(execution_key) = 32),
  constraint claims_job_is_recorded_whole check ((backend is null) = (job_id is null)),
  constraint claims_outcome_is_known check (outcome in ('ok', 'error')),
  constraint claims_outcome_names_a_dag check ((outcome is null) = (dag_id is null)),
  constraint claims_counts_not_negative check (least(takeovers, empty_polls) >= 0)
);
comment on table durable._claims is
  'Claims of orchestrators, one for each execution key. Owner, lease and version are those of the task of the promise claim:<key>.';
comment on column durable._claims.execution_key is 'Of the attempt, which may be gone: a claim needs no attempt.';
comment on column durable._claims.created_at is 'When it was first claimed.';
comment on column durable._claims.dag_id is 'The published result.';
comment on column durable._claims.takeovers is 'How often another owner took it over.';
comment on column durable._claims.empty_polls is 'How often in a row the job had succeeded and its output was not there.';
comment on column durable._claims.submit_token is 'The backend''s idempotency token or job name: each owner submits with the same.';
comment on column durable._claims.job_id is 'The job; the first one that was recorded counts.';
comment on column durable._claims.outcome is 'How the job ended, once its result is published.';

create index claims_by_dag on durable._claims (dag_id) where dag_id is not null;
comment on index durable.claims_by_dag is 'Serves collection: results that a claim names.';

create table durable._routes (
  prefix text collate "C" not null,
  adapter text not null,
  constraint routes_pk primary key (prefix),
  constraint routes_prefix_names_a_scheme check (prefix ~ '^[a-z][a-z0-9+.-]*:'),
  constraint routes_adapter_is_a_name check (adapter ~ '^[a-z0-9][a-z0-9._-]{0,63}$')
);
comment on table durable._routes is 'Adapters of function URIs that do not name one themselves (dml+exec://name/...): the longest prefix counts.';

create table durable._adapters (
  seen_at durable.epoch_ms not null,
  worker text collate "C" not null,
  adapter text collate "C" not null,
  constraint adapters_pk primary key (adapter, worker)
) with (fillfactor = 50);
comment on table durable._adapters is 'Which worker processes serve which adapters; written by their leases.';
comment on column durable._adapters.seen_at is 'When the worker last asked for work of this adapter, to a few seconds.';

create type durable._call as (
  scope text, function text, inputs bytea[], cache text, step_id text, timeout_ms bigint, salt text, share boolean,
  cache_errors boolean, request jsonb, max_age_ms bigint, node bytea, function_id bytea, adapter text, forced boolean,
  is_pinned boolean, execs bytea[], value_ids bytea[], value_key bytea
);
comment on type durable._call is
  'A call as it is asked for, and from node on what was found out about it. forced: pinned and shared results do not count, and its result replaces the pin. is_pinned: the scope has a pin, which cannot be served.';

create type durable._new_pin as (scope text, node_id bytea, exec_id bytea, inputs bytea[], replaces boolean);
comment on type durable._new_pin is 'A result to be pinned. replaces: also where another one is pinned.';

-- state/79_site.sql

-- The site: the server and the database in which this installation was adopted. A copy of the database has the row of its
-- original, which tells that it is a copy. The rules are in sql/logic/10_base/45_site.sql.

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

-- state/80_published.sql

-- Published workflows: names under which workflows of the engine serve calls of other languages.

create table durable._published (
  version integer not null,
  queue text not null,
  name text collate "C" not null,
  workflow text collate "C" not null,
  workflow_version text not null,
  constraint published_pk primary key (queue, name, version),
  constraint published_version_positive check (version > 0),
  constraint published_name_is_1_to_256_bytes check (octet_length(name) between 1 and 256),
  constraint published_workflow_is_1_to_256_bytes check (octet_length(workflow) between 1 and 256),
  constraint published_workflow_version_not_empty check (workflow_version <> '')
);
comment on table durable._published is
  'Workflows that serve calls of protocol clients: a call of such a name in such a group becomes a run at its birth. People read the view durable.published.';
comment on column durable._published.version is 'Version of the function, as callers name it.';
comment on column durable._published.queue is
  'The group that callers name as their target, which is the queue of the runs. It has the collation of queues.';
comment on column durable._published.name is 'Name of the function, as callers name it.';
comment on column durable._published.workflow is 'The workflow that runs, or the service sql://schema.function.';
comment on column durable._published.workflow_version is 'Version of that workflow.';
