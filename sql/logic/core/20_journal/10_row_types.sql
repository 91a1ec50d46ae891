-- The closed list of row types, the sets of them that functions ask for, and the error of a row that does not fit.
-- A type is the name of its one event in snake case: TimerFired is timer_fired. An invocation has up to three events in a row,
-- so its types say what happened to it, and how much of it the row covers:
--   step_*                   from the scheduling of the step on; first_attempt_failed too
--   attempt_*, last_attempt_*  from the start of an attempt on, of a step that an earlier row scheduled
--   open_*                   the end of something that an earlier row started
-- An attempt that failed is followed by another one; after step_failed, open_step_failed and last_attempt_failed there is none.

create or replace function durable.journal_types()
returns table (type durable.row_type, events text[], allocates boolean, resolves boolean)
language sql immutable parallel safe
as $$
  values
    ('execution_started'::durable.row_type, array['ExecutionStarted'], false, false),
    ('execution_completed', array['ExecutionCompleted'], false, false),
    ('execution_failed', array['ExecutionFailed'], false, false),
    ('cancel_requested', array['CancelRequested'], false, false),
    ('execution_cancelled', array['ExecutionCancelled'], false, false),
    ('step_completed', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('step_failed', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('first_attempt_failed', array['InvokeScheduled', 'InvokeStarted', 'InvokeRetrying'], true, false),
    ('step_started', array['InvokeScheduled', 'InvokeStarted'], true, false),
    ('attempt_started', array['InvokeStarted'], false, false),
    ('open_attempt_failed', array['InvokeRetrying'], false, false),
    ('attempt_failed', array['InvokeStarted', 'InvokeRetrying'], false, false),
    ('open_step_completed', array['InvokeCompleted'], false, true),
    ('open_step_failed', array['InvokeCompleted'], false, true),
    ('last_attempt_completed', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('last_attempt_failed', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('child_run_scheduled', array['InvokeScheduled'], true, false),
    ('promise_registered', array['InvokeScheduled'], true, false),
    ('child_run_started', array['InvokeStarted'], false, false),
    ('child_run_interrupted', array['InvokeRetrying'], false, false),
    ('open_child_settled', array['InvokeCompleted'], false, true),
    ('child_settled', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('timer_scheduled', array['TimerScheduled'], true, false),
    ('timer_fired', array['TimerFired'], false, true),
    ('random_generated', array['RandomGenerated'], true, false),
    ('time_recorded', array['TimeRecorded'], true, false),
    ('step_scheduled', array['InvokeScheduled'], true, false),
    ('signal_delivered', array['SignalDelivered'], false, false),
    ('signal_received', array['SignalReceived'], true, true),
    ('join_set_created', array['JoinSetCreated'], true, false),
    ('join_set_submitted', array['JoinSetSubmitted'], false, false),
    ('join_set_awaited', array['JoinSetAwaited'], false, false),
    ('execution_awaiting', array['ExecutionAwaiting'], false, false),
    ('execution_resumed', array['ExecutionResumed'], false, false)
$$;
comment on function durable.journal_types() is
  'The closed list of row types: the logical events of each, whether it takes a new child number, whether it resolves its child. The row of a local step has its values; the values of a child run and of a promise are in the promise. A child_settled without a promise has the error of an adoption that was refused.';

create or replace function durable._schedules_step(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('step_scheduled', 'step_started', 'first_attempt_failed', 'step_completed', 'step_failed') $$;
comment on function durable._schedules_step(durable.row_type) is 'The first row of a local step.';

create or replace function durable._rules()
returns smallint language sql immutable parallel safe
as $$ select 4::smallint $$;
comment on function durable._rules() is
  'The newest rules of replay of this schema; pyengine/core/rules.py says what each changed. A run is born with the newest that the worker which announced its workflow last knows too, and with the first if none has; it keeps them.';

create or replace function durable._schedules_invocation(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_scheduled', 'step_started', 'first_attempt_failed', 'step_completed', 'step_failed', 'child_run_scheduled',
    'promise_registered')
$$;
comment on function durable._schedules_invocation(durable.row_type) is 'The first row of a local step, a child run or an external promise.';

create or replace function durable._schedules_promise(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('child_run_scheduled', 'promise_registered', 'timer_scheduled') $$;
comment on function durable._schedules_promise(durable.row_type) is
  'The first row of a child whose outcome is that of a promise: a child run, an external promise, a timer.';

create or replace function durable._fails_attempt(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('first_attempt_failed', 'open_attempt_failed', 'attempt_failed') $$;
comment on function durable._fails_attempt(durable.row_type) is 'An attempt of a local step failed, and another one follows.';

create or replace function durable._holds_result(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('step_completed', 'open_step_completed', 'last_attempt_completed') $$;
comment on function durable._holds_result(durable.row_type) is 'The last row of a local step that has a result.';

create or replace function durable._holds_error(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('step_failed', 'open_step_failed', 'last_attempt_failed') $$;
comment on function durable._holds_error(durable.row_type) is 'The last row of a local step that failed for good.';

create or replace function durable._completes_step(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_completed', 'step_failed', 'open_step_completed', 'open_step_failed', 'last_attempt_completed',
    'last_attempt_failed')
$$;
comment on function durable._completes_step(durable.row_type) is 'The last row of a local step.';

create or replace function durable._settles_child(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('open_child_settled', 'child_settled') $$;
comment on function durable._settles_child(durable.row_type) is 'The end of a child run or of an external promise. The index journal_by_adopted has the same condition.';

create or replace function durable._completes_invocation(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_completed', 'step_failed', 'open_step_completed', 'open_step_failed', 'last_attempt_completed',
    'last_attempt_failed', 'open_child_settled', 'child_settled')
$$;
comment on function durable._completes_invocation(durable.row_type) is 'The last row of a local step, a child run or an external promise.';

create or replace function durable._is_local(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_scheduled', 'step_started', 'first_attempt_failed', 'step_completed', 'step_failed', 'attempt_started',
    'attempt_failed', 'last_attempt_completed', 'last_attempt_failed', 'open_attempt_failed', 'open_step_completed',
    'open_step_failed')
$$;
comment on function durable._is_local(durable.row_type) is 'The row is about a local step.';

create or replace function durable._allocates(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_scheduled', 'step_started', 'first_attempt_failed', 'step_completed', 'step_failed', 'child_run_scheduled',
    'promise_registered', 'timer_scheduled', 'random_generated', 'time_recorded', 'signal_received', 'join_set_created')
$$;
comment on function durable._allocates(durable.row_type) is 'The row takes a new child number.';

create or replace function durable._resolves(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in (
    'step_completed', 'step_failed', 'open_step_completed', 'open_step_failed', 'last_attempt_completed',
    'last_attempt_failed', 'open_child_settled', 'child_settled', 'timer_fired', 'signal_received')
$$;
comment on function durable._resolves(durable.row_type) is 'The row completes its child, so it advances a coroutine.';

create or replace function durable._ends_run(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$ select p_type in ('execution_completed', 'execution_failed', 'execution_cancelled') $$;
comment on function durable._ends_run(durable.row_type) is 'The last row of a run.';

create or replace function durable._most_attempts(p_policy jsonb)
returns numeric language sql immutable parallel safe
as $$
  select case when p_policy ->> 'on_exhausted' is distinct from 'pause' then (p_policy ->> 'max_attempts')::numeric end
$$;
comment on function durable._most_attempts(jsonb) is
  'How often a retry policy lets a step fail; null: no bound. A run that pauses after the last attempt has as many again whenever it is resumed.';

create or replace function durable._fail_journal(p_execution bigint, p_type durable.row_type, p_child integer, p_problem text)
returns boolean language plpgsql volatile
as $$
declare
  v_run text := (select h.id from durable._executions h where h.execution = p_execution);
begin
  perform durable._fail_append(
    coalesce(v_run, 'execution ' || p_execution),
    (select array_to_string(y.events, ' + ') from durable.journal_types() y where y.type = p_type)
      || coalesce(format(' of %L', v_run || '.' || p_child), ''), p_problem);
  return false;
end
$$;
comment on function durable._fail_journal(bigint, durable.row_type, integer, text) is
  'Raises WF006 in the terms of a client: the run, the event, the child. Returns boolean so that it can be the failing branch of a WHERE.';
