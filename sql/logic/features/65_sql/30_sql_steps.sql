-- Steps in SQL (ctx.sql): one round trip and one commit for the writes of the function and the journal row, under the fence.
-- Order: a query without locks, the user's function, then the locks of task and head, the verdict, the row. The function may
-- hold any locks by then, also of tasks and heads if it calls verbs of this schema. So these locks are only tried, and a step
-- that misses one for a while is undone and begins again.

create or replace function durable._check_step(
  p_worker text, p_head durable._executions, p_id text, p_version integer, p_now bigint)
returns void language plpgsql stable
as $$
declare
  v_task durable._tasks;
begin
  select * into v_task from durable._tasks t where t.id = p_id;
  if v_task.pid is distinct from p_worker or v_task.execution is distinct from p_head.execution
     or not coalesce(durable._is_leased(v_task, p_version, p_now), false) then
    perform durable._fail_lease_lost(p_id, p_version);
  elsif p_head.status = 'blocked' then
    perform durable._fail_conflict(format('Run %L waits for %s in its journal.', p_head.id, p_head.waiting_on));
  end if;
end
$$;
comment on function durable._check_step(text, durable._executions, text, integer, bigint) is 'The fence of a step in SQL. WF002, WF003.';

create or replace function durable._begin_sql_step(p_call durable._sql_step_call)
returns json language plpgsql stable
as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.execution = p_call.execution;
  perform durable._check_step(p_call.worker, v_head, p_call.id, p_call.version, durable._now_ms());
  if exists (select from durable._journal j
             where j.execution = p_call.execution and j.bucket = v_head.bucket and j.child = p_call.child
               and durable._is_local(j.type) and durable._resolves(j.type)) then
    return durable._journal_from(p_call.execution, p_call.seen);
  end if;
  return null;
end
$$;
comment on function durable._begin_sql_step(durable._sql_step_call) is
  'Decides, without a lock and before the function, whether the function must still be called. Answers the journal if its completion is recorded, as after a lost answer. WF002, WF003.';

create or replace function durable._end_sql_step(p_call durable._sql_step_call, p_value text)
returns json language plpgsql volatile
as $$
declare
  v_head durable._executions;
  v_before durable._attempt;
  v_type durable.row_type;
  v_now bigint;
begin
  if not durable._lock_after_call(null, p_call.id) then
    perform durable._fail_busy(format('Task %L', p_call.id));
  end if;
  v_now := durable._now_ms();
  select * into v_head from durable._executions h where h.execution = p_call.execution;
  perform durable._check_step(p_call.worker, v_head, p_call.id, p_call.version, v_now);
  v_before := durable._open_attempt(v_head, p_call.child);
  v_type := durable._outcome_type(false, false, false, p_call.attempt, v_before,
                               p_call.child >= v_head.next_child or p_call.child = any (v_head.reserved));
  if v_type is null or (v_head.status = 'cancelling' and p_call.seen <= v_head.cancel_seq) then
    perform durable._fail_journal(p_call.execution, v_type, p_call.child, 'the worker has not seen what came before it');
  end if;
  perform durable._append(
    array[row(p_call.execution, v_type, p_call.child, p_call.attempt, p_call.name, decode(p_call.hash, 'hex'),
              p_value)::durable._event], v_now, true);
  return durable._journal_from(p_call.execution, p_call.seen);
end
$$;
comment on function durable._end_sql_step(durable._sql_step_call, text) is
  'The fence and the completion row, after the function. WF002 lease lost; WF003; WF006 the worker must replay; 55P03 try the whole step again. Each undoes the writes of the function.';

create or replace function durable._sql_step(p_call durable._sql_step_call, p_args jsonb)
returns json language plpgsql volatile
as $$
declare
  v_known json;
  v_value text;
  v_error record;
begin
  perform durable._check_site();
  perform durable._check_may_lock();
  v_known := durable._begin_sql_step(p_call);
  if v_known is not null then
    return v_known;
  end if;
  begin
    v_value := durable._call_function(p_call.name, p_args);
  exception when others or query_canceled or assert_failure then
    select null::text as state, null::text as message, null::text as detail, null::text as hint, null::text as "constraint",
           null::text as "table" into v_error;
    get stacked diagnostics v_error.state = returned_sqlstate, v_error.message = message_text,
      v_error.detail = pg_exception_detail, v_error.hint = pg_exception_hint, v_error."constraint" = constraint_name,
      v_error."table" = table_name;
    perform durable._fail_as_user(v_error.state, v_error.message, v_error.detail, v_error.hint, v_error."constraint",
                                  v_error."table");
  end;
  perform durable._check_payload(format('What %s returned', p_call.name), v_value);
  return durable._end_sql_step(p_call, v_value);
end
$$;
comment on function durable._sql_step(durable._sql_step_call, jsonb) is
  'Makes the step, without settings of its own: the user''s function runs under those of the session.';

create or replace function durable.worker_sql_v1(
  p_worker text, p_execution bigint, p_id text, p_version integer, p_seen integer, p_child integer, p_attempt integer,
  p_name text, p_hash text, p_args jsonb)
returns json language sql volatile
as $$
  select durable._sql_step(
    (p_worker, p_execution, p_id, p_version, p_seen, p_child, p_attempt, p_name, p_hash)::durable._sql_step_call, p_args)
$$;
comment on function durable.worker_sql_v1(text, bigint, text, integer, integer, integer, integer, text, text, jsonb) is
  'A step in SQL: calls the function p_name with p_args (array or object) and records its result as the completion of the child, both or neither. Answers {next, rows}, the journal from p_seen on; a second call after a lost answer gets the same and does not call the function. Errors of the function pass with the data type durable.user as their mark. Those of the engine: WF001 and WF004 the call is wrong, WF002 lease lost, WF003, WF006 replay, WF008, 55P03 try again.';
