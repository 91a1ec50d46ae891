-- A claim that fails because of one run: its journal is larger than a value can be, or cannot be read. Each run is handed out by
-- itself, the one that cannot be is set aside, and the others go to the worker.

create or replace function durable._is_fault_of_run(p_sqlstate text)
returns boolean language sql immutable parallel safe
as $$
  select left(p_sqlstate, 2) in ('22', '23') or p_sqlstate in ('54000', 'XX001', 'XX002')
         or (left(p_sqlstate, 2) = 'WF' and p_sqlstate not in ('WF001', 'WF002', 'WF003', 'WF007', 'WF011', 'WF016'))
$$;
comment on function durable._is_fault_of_run(text) is
  'True for an error that a run has by what is stored of it; of other errors it is not known whose they are. pyengine/core/database/faults.py says the same, and whose the others are.';

create or replace function durable._hand_out_alone(
  p_id text, p_owned boolean, p_worker text, p_ttl_ms integer, p_warm text[], p_codes text[], p_digests text[], p_now bigint,
  out task json, out code text, out message text)
language plpgsql volatile
as $$
declare
  v_detail text;
begin
  select c.tasks -> 0 into task
  from durable._claim(array[p_id], p_owned, p_worker, p_ttl_ms, p_warm, p_codes, p_digests, p_now) c;
-- all that a value, its rows, or a limit may raise, and what somebody's code in the way may
exception when data_exception or integrity_constraint_violation or program_limit_exceeded or internal_error
               or sqlstate 'WF001' or sqlstate 'WF004' or sqlstate 'WF006' or sqlstate 'WF008'
               or insufficient_resources or system_error or query_canceled or plpgsql_error
               or syntax_error_or_access_rule_violation then
  task := null;
  get stacked diagnostics code = returned_sqlstate, message = message_text, v_detail = pg_exception_detail;
  message := concat_ws(': ', message, nullif(v_detail, ''));
end
$$;
comment on function durable._hand_out_alone(text, boolean, text, integer, text[], text[], text[], bigint) is
  'Claims one locked task, or answers the error that its run has; then nothing of the claim is left.';

create or replace function durable._set_run_aside(p_id text, p_code text, p_message text, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if durable._is_fault_of_run(p_code) then
    perform durable._halt_runs(array[p_id], array[jsonb_build_object(
      'type', 'HandOutProblem', 'message', format('the run cannot be handed to a worker: %s (SQLSTATE %s)', p_message, p_code),
      'code', p_code)::text], p_now);
  else
    update durable._tasks t set retry_at = p_now + 60000 where t.id = p_id;
  end if;
end
$$;
comment on function durable._set_run_aside(text, text, text, bigint) is
  'Halts a run that cannot be handed out, with the error as its problem; where it may be the fault of somebody else, the run is put off for a minute.';

create or replace function durable.worker_claim_apart_v1(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_rules integer, p_want integer,
  p_ttl_ms integer, p_puts_off boolean default false)
returns json language plpgsql volatile
as $$
declare
  v_most constant bigint := 8388608;
  v_claim record;
  v_one record;
  v_tasks json[] := '{}';
  v_aside text[] := '{}';
  v_bytes bigint := 0;
  v_now bigint;
begin
  perform durable._check_may_lock();
  perform durable._check_site();
  select * into v_claim from durable._try_lock_claim(p_worker, p_queues, p_codes, p_rules, greatest(p_want, 1)) c;
  v_now := durable._now_ms();
  for i in 1..cardinality(v_claim.ids) loop
    if p_puts_off and i = 1 then
      select null::json as task, '57014' as code, 'its claim has had no answer in time' as message into v_one;
    else
      select * into v_one from durable._hand_out_alone(v_claim.ids[i], v_claim.owned, p_worker, p_ttl_ms, v_claim.warm, p_codes,
                                                       p_digests, v_now) o;
    end if;
    if v_one.code is not null then
      perform durable._set_run_aside(v_claim.ids[i], v_one.code, v_one.message, v_now);
      v_aside := v_aside || array[v_claim.ids[i], v_one.code, v_one.message];
    elsif v_one.task is not null then
      v_tasks := v_tasks || v_one.task;
      v_bytes := v_bytes + pg_column_size(v_one.task);
    end if;
    exit when v_bytes >= v_most;
  end loop;
  return json_build_object('now', v_now, 'verdicts', null, 'tails', '{}'::text[], 'tasks', v_tasks, 'hints', '{}'::text[],
                           'settled', false, 'due_in', null, 'aside', v_aside);
end
$$ set lock_timeout = '1s';
comment on function durable.worker_claim_apart_v1(text, text[], text[], text[], integer, integer, integer, boolean) is
  'A claim of a worker whose turns without reports fail. Each run is handed out by itself, and one that fails is set aside: halted with the error as its problem, or put off for a minute where the error may be the fault of somebody else. p_puts_off: the first run is put off without a try, because claims of it have had no answer in time. Answers as worker_turn_v1; aside: id, SQLSTATE and message of each run that was set aside, one after the other.';
