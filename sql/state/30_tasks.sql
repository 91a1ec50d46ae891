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
  rules smallint not null default 1,
  suspect boolean not null default false,
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
comment on column durable._tasks.suspect is
  'Its worker was lost before it had reported anything about this run, so it may be the one that ends workers: it is claimed alone.';
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
comment on column durable._tasks.rules is 'Copy of the rules of its head, so that the claim need not read it.';
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
  rules smallint not null default 1,
  ticked_at durable.epoch_ms,
  queues text[] not null,
  workflows text[] not null,
  versions text[] not null,
  signals jsonb,
  about jsonb not null default '{}',
  unrenewed text[] not null default '{}',
  blocked text[] not null default '{}',
  digests text[],
  keeps boolean not null default false,
  constraint workers_pk primary key (id),
  constraint workers_number_unique unique (number),
  constraint workers_workflows_have_versions check (cardinality(workflows) = cardinality(versions))
) with (fillfactor = 50);
comment on table durable._workers is 'Registered worker processes: from worker_hello_v1 to worker_bye_v1.';
comment on column durable._workers.number is 'Key of the presence lock: a session-level advisory lock that Postgres frees when the connection dies.';
comment on column durable._workers.present is 'The worker holds its presence lock on a session of its own; false: only leases tell whether it lives.';
comment on column durable._workers.signals is 'For each of its workflows, at the same place, its signals as in _workflows; null: none was registered.';
comment on column durable._workers.seen_at is
  'Last hello, presence call or heartbeat that was written: one that renewed all leases is written every 20 s, or once in a lease of a worker without presence.';
comment on column durable._workers.missing_at is 'When durable.tick() first found the presence lock free; a later call of the worker clears it.';
comment on column durable._workers.started_at is 'First hello.';
comment on column durable._workers.ticked_at is 'When its last tick succeeded. The heartbeat writes it, because the tick would write a row each time.';
comment on column durable._workers.rules is 'The newest rules of replay that it knows; a worker of 0.1.0 says nothing, and knows the first.';
comment on column durable._workers.queues is 'Queues that it claims from.';
comment on column durable._workers.workflows is 'Names of the workflows that it can run.';
comment on column durable._workers.versions is 'Version of each of workflows.';
comment on column durable._workers.digests is 'Digest of the code of each of workflows; null: a worker that registered before these were kept.';
comment on column durable._workers.keeps is 'Its runs are not for others while it is there: it is that of app.run.';
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
  rules smallint not null default 1,
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
comment on column durable._idle_workers.rules is 'The newest rules of replay that it knows.';
comment on column durable._idle_workers.queues is 'Queues that it serves.';
comment on column durable._idle_workers.digests is 'The workflows with versions that it can run, and the digest of each.';

create table durable._workflows (
  seen_at durable.epoch_ms not null,
  rules smallint not null default 1,
  name text collate "C" not null,
  version text collate "C" not null,
  digest bytea,
  signals jsonb,
  queue text,
  constraint workflows_pk primary key (name, version)
);
comment on table durable._workflows is 'Workflows that some worker can run: they distinguish a misspelt name from work that waits for its worker.';
comment on column durable._workflows.seen_at is 'Last hello of a worker with this workflow.';
comment on column durable._workflows.rules is 'The rules by which its next runs are replayed: the newest that this worker and this schema know.';
comment on column durable._workflows.digest is
  'Digest of the code of that worker. Runs begin with it, so that a claim by a worker with that code need not write it.';
comment on column durable._workflows.signals is
  'The signals that the code of that worker receives: {"types": {name: JSON schema of its payload}, "any": whether it receives other names too}; null: the worker registered none, and all are delivered.';
comment on column durable._workflows.queue is
  'The queue that the code of that worker declares for its runs; null: none, so they go to the queue default.';

create table durable._code_waits (
  id text collate "C" not null,
  workflow text not null,
  workflow_version text not null,
  digest bytea not null,
  constraint code_waits_pk primary key (id, digest)
);
comment on table durable._code_waits is
  'Halted runs that did not fit the code of the worker that claimed them, and whose own code no worker has. A tick offers them to the first worker that has it. A row whose run is not halted any more has no effect.';
comment on column durable._code_waits.id is 'The run.';
comment on column durable._code_waits.digest is 'Digest of the code that wrote its journal.';

create index code_waits_by_code on durable._code_waits (workflow, workflow_version, digest);
comment on index durable.code_waits_by_code is 'Serves the tick: the runs that wait for the code of a worker.';

create table durable._cancellations (
  number bigint generated always as identity,
  id text collate "C" not null,
  reason jsonb not null,
  constraint cancellations_pk primary key (number)
);
comment on table durable._cancellations is
  'Child runs whose parent does not wait for them any more, or has ended: they are to be cancelled. The next tick does it, because a turn or a settlement holds the locks of the parent and must not wait for those of the children. A run may stand here twice; a row whose run has ended has no effect.';
comment on column durable._cancellations.number is 'The older ones are cancelled first.';
comment on column durable._cancellations.id is 'The child run.';
comment on column durable._cancellations.reason is 'The reason that its journal gets.';

create type durable.task_record as (
  id text, state text, version integer, resumes integer, ttl bigint, pid text
);
comment on type durable.task_record is 'A task as the protocol answers it; ttl in ms.';
