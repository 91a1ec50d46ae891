-- Skip this file on a first reading. It is the single-row path of the three commonest turns: one new run is claimed, one step of
-- one run has its result, or one run that no other waits for ends, perhaps with its last result. Statements for one row cost less
-- than half of the batch path (60_turn.sql). tests/core/sql/test_turn_single.py and tests/core/sql/test_claims.py prove that both
-- answer and write the same. Any other case is left to the batch path, and nothing is written.

create or replace function durable._claim_single(
  p_id text, p_head durable._executions, p_worker text, p_ttl_ms integer, p_codes text[], p_digests text[], p_now bigint)
returns json language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_promise durable._promises;
begin
  if p_head.next_seq <> 1 or p_head.previous is not null or exists (select from durable._forks)
     or encode(p_head.digest, 'hex')
        is distinct from durable._digest_of(p_head.workflow, p_head.workflow_version, p_codes, p_digests) then
    return null;
  end if;
  select * into v_task from durable._acquire(array[p_id], p_worker, p_ttl_ms, p_now, false);
  if not found then
    return '[]';
  end if;
  select * into v_promise from durable._promises p where p.id = p_id;
  return json_build_array(durable._claimed_run(
    v_task, p_head, 0, durable._input(v_promise.param_headers, v_promise.param_data), v_promise.created_at, '[]'));
end
$$;
comment on function durable._claim_single(text, durable._executions, text, integer, text[], text[], bigint) is
  'Claims one run that has no parent and no journal row beyond the first. Null, and nothing is written, for any other run. The caller has locked task and head.';

create or replace function durable._single_kind(p_reports jsonb)
returns text language plpgsql immutable parallel safe
as $$
begin
  if jsonb_array_length(p_reports) <> 1 or pg_column_size(p_reports) > 1000 or p_reports #> '{0,outcomes,1}' is not null
     or coalesce(p_reports #> '{0,commands}', '[]') <> '[]'
     or coalesce(jsonb_typeof(p_reports #> '{0,outcomes}'), 'null') not in ('array', 'null')
     or coalesce(jsonb_typeof(p_reports #> '{0,outcomes,0}'), 'object') <> 'object' then
    return null;
  elsif p_reports #>> '{0,end,do}' in ('complete', 'fail') then
    return 'end';
  elsif p_reports #> '{0,outcomes,0}' is not null and coalesce(p_reports #> '{0,end}', 'null') = 'null'
        and p_reports #> '{0,progress}' is null then
    return 'outcome';
  end if;
  return null;
end
$$;
comment on function durable._single_kind(jsonb) is
  'end, if the turn has one small report, which ends its run, with at most one outcome; outcome, if it has one outcome and no ending or progress; else null, as for every report with commands.';

create or replace function durable._single_answer(
  p_execution bigint, p_state text, p_seq integer, p_next integer, p_now bigint)
returns durable._turn_answer language plpgsql stable
as $$
declare
  v_answer durable._turn_answer := durable._empty_turn_answer(p_now);
begin
  v_answer.verdicts := json_build_object('execution', array[p_execution], 'verdict', array['ok'], 'state', array[p_state],
                                         'seq', array[p_seq], 'next', array[p_next]);
  return v_answer;
end
$$;
comment on function durable._single_answer(bigint, text, integer, integer, bigint) is
  'The answer to one report that was accepted: the state of its task, and the numbers before and after its rows.';

create or replace function durable._is_awaited(p_id text, p_execution bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._callbacks c where c.awaited_id = p_id)
      or exists (select from durable._listeners l where l.awaited_id = p_id)
      or exists (select from durable._row_waits w where w.execution = p_execution)
      or exists (select from durable._resumes r where r.task_id = p_id);
end
$$;
comment on function durable._is_awaited(text, bigint) is
  'True if a callback or listener waits for the run, or if the run has waits for rows, which must end with it. Stable once the promise is locked.';

create or replace function durable._result_event(p_head durable._executions, p_outcome jsonb, p_now bigint)
returns durable._event language plpgsql stable
as $$
declare
  v_outcome durable._step_outcome := jsonb_populate_record(null::durable._step_outcome, p_outcome);
  v_open durable._attempt := durable._open_attempt(p_head, v_outcome.child);
  v_type durable.row_type;
begin
  if v_outcome.child is null or v_outcome.begun or v_outcome.retry_in is not null or p_head.status <> 'running' then
    return null;
  end if;
  v_type := durable._outcome_type(false, false, v_outcome.error is not null, v_outcome.attempt, v_open,
                               v_outcome.child >= p_head.next_child or v_outcome.child = any (p_head.reserved));
  return case when v_type is not null then durable._outcome_event(p_head.execution, v_type, v_outcome, p_now) end;
end
$$;
comment on function durable._result_event(durable._executions, jsonb, bigint) is
  'The journal row of the result of a step, as _decide_verdicts makes it; null if the outcome is no result or does not fit.';

create or replace function durable._record_single(p_worker text, p_report jsonb)
returns json language plpgsql volatile
as $$
declare
  v_execution bigint := (p_report ->> 'execution')::bigint;
  v_id text := p_report ->> 'id';
  v_seen integer := (p_report ->> 'seen')::integer;
  v_task durable._tasks;
  v_head durable._executions;
  v_event durable._event;
  v_now bigint;
begin
  -- as for the batch path: a number and an id of two runs lock no task
  if not exists (select from durable._executions h where h.execution = v_execution and h.id = v_id) then
    return null;
  end if;
  perform durable._mark_engine_xact();
  v_task := durable._try_lock_task(v_id, false);
  if v_task.id is null then
    return null;
  end if;
  v_head := durable._try_lock_head(v_execution);
  v_now := durable._now_ms();
  if v_head.next_seq is distinct from v_seen
     or durable._verdict_on((p_report ->> 'version')::integer, v_seen, true, v_head, v_task, p_worker, false, v_now) <> 'ok' then
    return null;
  end if;
  v_event := durable._result_event(v_head, p_report #> '{outcomes,0}', v_now);
  if v_event.type is null then
    return null;
  end if;
  perform durable._append(array[v_event], v_now, true);
  if v_task.expires_at - v_now < v_task.ttl / 2 or v_task.crashes > 0 or v_task.suspect then
    -- a session that outlived a restore must not renew
    perform durable._check_site();
    update durable._tasks t set expires_at = v_now + t.ttl, crashes = 0, suspect = false where t.id = v_id;
  end if;
  return row_to_json(durable._single_answer(v_execution, 'acquired', v_seen, v_seen + durable._width(v_event.type), v_now));
end
$$;
comment on function durable._record_single(text, jsonb) is
  'Records the result of a step of a run that goes on, and renews its lease as _renew does. Answers as worker_turn_v1; null if the batch path has to decide, because the run is locked, its journal has rows that the worker has not seen, the outcome is no result, or the report is stale or does not fit. Then nothing is written, and only rows that the batch path locks too are locked. WF006 as for _append; WF016 as for _check_site, which it calls where it renews the lease. The caller has checked that the session knows its site.';

create or replace function durable._send_end(p_address text, p_id text, p_state text, p_value text)
returns void language plpgsql volatile
as $$
begin
  if p_address is not null then
    perform durable._send_message(p_address, json_build_array(
      p_id, p_state, case when p_state = 'resolved' then p_value end,
      case when p_state = 'rejected' then durable._error_of(p_state, p_value) end)::text);
  end if;
end
$$;
comment on function durable._send_end(text, text, text, text) is
  'Sends the end of a run to the process at an address, if there is one. The caller has checked that its report is small, so the message is too.';

create or replace function durable._end_single(p_worker text, p_report jsonb, p_notify boolean, p_idle_ms integer)
returns json language plpgsql volatile
as $$
declare
  v_execution bigint := (p_report ->> 'execution')::bigint;
  v_id text := p_report ->> 'id';
  v_task durable._tasks;
  v_head durable._executions;
  v_event durable._event;
  v_next integer;
  v_state text := case p_report #>> '{end,do}' when 'complete' then 'resolved' else 'rejected' end;
  v_value text := coalesce(p_report #>> '{end,error}', p_report #>> '{end,value}');
  v_answer durable._turn_answer;
  v_now bigint;
begin
  if not exists (select from durable._executions h where h.execution = v_execution and h.id = v_id) then
    return null;
  end if;
  perform durable._mark_engine_xact();
  if not durable._try_lock_promise(v_id) then
    return null;
  end if;
  v_task := durable._try_lock_task(v_id, true);
  if v_task.id is null or v_task.owner is not null or durable._is_awaited(v_id, v_execution)
     or (p_report ? 'progress' and durable._try_lock_progress(array[v_id]) <> '{}') then
    return null;
  end if;
  v_head := durable._try_lock_head(v_execution);
  v_next := v_head.next_seq;
  v_now := durable._now_ms();
  if durable._verdict_on((p_report ->> 'version')::integer, (p_report ->> 'seen')::integer, true, v_head, v_task, p_worker, false,
                     v_now) <> 'ok' then
    return null;
  end if;
  if p_report #> '{outcomes,0}' is not null then
    v_event := durable._result_event(v_head, p_report #> '{outcomes,0}', v_now);
    if v_event.type is null then
      return null;
    end if;
    perform durable._append(array[v_event], v_now, true);
    v_next := v_next + durable._width(v_event.type);
  end if;
  perform durable._settle_single(v_id, v_head.execution, v_state, v_value, v_task.version, v_now);
  if p_report ? 'progress' then
    perform durable._write_progress((durable._read_reports(jsonb_build_array(p_report))).progress, v_now);
  end if;
  if p_notify then
    perform durable._send_end(p_report ->> 'reply', v_id, v_state, v_value);
    perform durable._notify('durable_settled');
  end if;
  v_answer := durable._single_answer(v_execution, 'done', v_head.next_seq, v_next, v_now);
  v_answer.settled := true;
  v_answer.idle := p_idle_ms > 0 and durable._renew_idle(p_worker, v_now + p_idle_ms);
  return row_to_json(v_answer);
end
$$;
comment on function durable._end_single(text, jsonb, boolean, integer) is
  'Ends a run that nothing waits for. p_notify: sends the end to the process that started the run, if the report says where (reply), and then the hint that a promise settled, which would have that process look for itself. p_idle_ms: registers its worker as idle again. Answers as worker_turn_v1; null if the batch path has to decide, because the run is a child, is awaited or locked, or the report is stale or does not fit. Then nothing is written, and only rows that the batch path locks too are locked.';
