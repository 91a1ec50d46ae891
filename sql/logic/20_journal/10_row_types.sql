-- The closed list of row types, and how a row that is refused is told. It stands before the guards that speak of rows by name.

create or replace function durable.journal_types()
returns table (type "char", events text[], allocates boolean, resolves boolean)
language sql immutable parallel safe
as $$
  values
    ('S'::"char", array['ExecutionStarted'], false, false),
    ('C', array['ExecutionCompleted'], false, false),
    ('F', array['ExecutionFailed'], false, false),
    ('Q', array['CancelRequested'], false, false),
    ('Y', array['ExecutionCancelled'], false, false),
    ('L', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('E', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('f', array['InvokeScheduled', 'InvokeStarted', 'InvokeRetrying'], true, false),
    ('l', array['InvokeScheduled', 'InvokeStarted'], true, false),
    ('s', array['InvokeStarted'], false, false),
    ('r', array['InvokeRetrying'], false, false),
    ('t', array['InvokeStarted', 'InvokeRetrying'], false, false),
    ('c', array['InvokeCompleted'], false, true),
    ('e', array['InvokeCompleted'], false, true),
    ('k', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('K', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('I', array['InvokeScheduled'], true, false),
    ('X', array['InvokeScheduled'], true, false),
    ('b', array['InvokeStarted'], false, false),
    ('i', array['InvokeRetrying'], false, false),
    ('d', array['InvokeCompleted'], false, true),
    ('D', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('T', array['TimerScheduled'], true, false),
    ('Z', array['TimerFired'], false, true),
    ('n', array['RandomGenerated'], true, false),
    ('m', array['TimeRecorded'], true, false),
    ('o', array['InvokeScheduled'], true, false),
    ('g', array['SignalDelivered'], false, false),
    ('v', array['SignalReceived'], true, true),
    ('j', array['JoinSetCreated'], true, false),
    ('u', array['JoinSetSubmitted'], false, false),
    ('a', array['JoinSetAwaited'], false, false),
    ('A', array['ExecutionAwaiting'], false, false),
    ('W', array['ExecutionResumed'], false, false)
$$;
comment on function durable.journal_types() is
  'The closed list of row types: the logical events of each, whether it takes a new child number, whether it resolves its child. L E f l o s r t c e k K are local steps (values in the row); I b i d D are child runs (values in their promises), X external promises. A D without promise holds the error of an adoption that was refused.';

create or replace function durable._allocates(p_type "char")
returns boolean language sql immutable parallel safe
as $$ select p_type in ('L', 'E', 'f', 'l', 'o', 'I', 'X', 'T', 'n', 'm', 'v', 'j') $$;
comment on function durable._allocates("char") is 'The row takes a new child number.';

create or replace function durable._resolves(p_type "char")
returns boolean language sql immutable parallel safe
as $$ select p_type in ('L', 'E', 'c', 'e', 'k', 'K', 'd', 'D', 'Z', 'v') $$;
comment on function durable._resolves("char") is 'The row completes its child, so it advances a coroutine.';

create or replace function durable._fail_journal(p_execution bigint, p_type "char", p_child integer, p_why text)
returns boolean language plpgsql volatile
as $$
declare
  v_run text := (select h.id from durable._executions h where h.execution = p_execution);
begin
  perform durable._fail_append(
    coalesce(v_run, 'execution ' || p_execution),
    (select array_to_string(y.events, ' + ') from durable.journal_types() y where y.type = p_type)
      || coalesce(format(' of %L', v_run || '.' || p_child), ''), p_why);
  return false;
end
$$;
comment on function durable._fail_journal(bigint, "char", integer, text) is
  'Raises WF006 in the words of a client: the run, the event, the child. Returns boolean so that it can stand in the failing branch of a WHERE.';
