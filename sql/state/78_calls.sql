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
comment on column durable._calls.salt is 'Cache namespace: a result is never shared between two scopes under two salts. Within a scope a node has one result, whatever the salt.';
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
comment on column durable._adapters.seen_at is 'When the worker last asked for work of this adapter, to 20 seconds.';

create type durable._call as (
  scope text, function text, inputs bytea[], cache text, step_id text, timeout_ms bigint, salt text, share boolean,
  cache_errors boolean, request jsonb, max_age_ms bigint, node bytea, function_id bytea, adapter text, forced boolean,
  is_pinned boolean, execs bytea[], value_ids bytea[], value_key bytea
);
comment on type durable._call is
  'A call as it is asked for, and from node on what was found out about it. forced: pinned and shared results do not count, and its result replaces the pin. is_pinned: the scope has a pin, which cannot be served.';

create type durable._new_pin as (scope text, node_id bytea, exec_id bytea, inputs bytea[], replaces boolean);
comment on type durable._new_pin is 'A result to be pinned. replaces: also where another one is pinned.';
