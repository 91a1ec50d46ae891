-- The commonest turn of a system at rest: one run ends, maybe with its last result; nobody waits for it, nothing else is in the
-- turn. Plain statements of one row each, for a quarter of what the way for many costs. What is out of the ordinary in any way is
-- left to that way, untouched.

create or replace function durable._is_lone_end(p_reports jsonb)
returns boolean language plpgsql immutable parallel safe
as $$
begin
  return jsonb_array_length(p_reports) = 1 and pg_column_size(p_reports) <= 1000
     and coalesce(p_reports #>> '{0,end,do}' in ('complete', 'fail'), false)
     and p_reports #> '{0,outcomes,1}' is null and coalesce(p_reports #> '{0,commands}', '[]') = '[]';
end
$$;
comment on function durable._is_lone_end(jsonb) is
  'The turn brings one report, which ends its run by its code, with no more than its last outcome; and is far below the limit of payloads.';

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
  'Somebody has to be told when it settles, or its own waits for rows have to be ended (the promise of a run is that of no wait), or it has resumes. Stable once promise and task are locked.';

create or replace function durable._last_event(p_head durable._executions, p_outcome durable._step_outcome, p_now bigint)
returns durable._event language plpgsql stable
as $$
declare
  v_open integer := p_head.open_attempts[array_position(p_head.open_steps, p_outcome.child)];
  v_type "char";
begin
  if p_outcome.begun or p_outcome.retry_in is not null or p_head.status <> 'running' then
    return null;
  end if;
  v_type := durable._outcome_type(false, false, p_outcome.error is not null, p_outcome.attempt, v_open,
                               p_outcome.child >= p_head.next_child or p_outcome.child = any (p_head.reserved));
  return case when v_type is not null then durable._outcome_event(p_head.execution, v_type, p_outcome, p_now) end;
end
$$;
comment on function durable._last_event(durable._executions, durable._step_outcome, bigint) is
  'The row of a result that comes with the end of its run, as _judge makes it; null if it is no result, or one that does not fit.';

create or replace function durable._end_lone(p_worker text, p_report jsonb, p_notify boolean, p_idle_ms integer)
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
  perform durable._mark_turn();
  if not durable._take_promise(v_id) then
    return null;
  end if;
  v_task := durable._take_task(v_id);
  if v_task.id is null or v_task.owner is not null or durable._is_awaited(v_id, v_execution) then
    return null;
  end if;
  v_head := durable._take_head(v_execution);
  v_next := v_head.next_seq;
  v_now := durable._now_ms();
  if durable._judged((p_report ->> 'version')::integer, (p_report ->> 'seen')::integer, true, v_head, v_task, p_worker, false,
                     v_now) <> 'ok' then
    return null;
  end if;
  if p_report #> '{outcomes,0}' is not null then
    v_event := durable._last_event(v_head, jsonb_populate_record(null::durable._step_outcome, p_report #> '{outcomes,0}'), v_now);
    if v_event.type is null then
      return null;
    end if;
    perform durable._append(array[v_event], v_now, true);
    v_next := v_next + durable._width(v_event.type);
  end if;
  perform durable._settle_lone(v_id, v_head.execution, v_state, v_value, v_task.version, v_now);
  if p_notify and p_report ? 'reply' then
    -- the report is small, so this is too
    perform durable._send_message(p_report ->> 'reply', json_build_array(
      v_id, v_state, case when v_state = 'resolved' then v_value end,
      case when v_state = 'rejected' then durable._error_of(v_state, v_value) end)::text);
  end if;
  v_answer := durable._answer(v_now);
  v_answer.verdicts := json_build_object('execution', array[v_execution], 'verdict', array['ok'], 'state', array['done'],
                                         'seq', array[v_head.next_seq], 'next', array[v_next]);
  v_answer.settled := true;
  v_answer.idle := p_idle_ms > 0 and durable._renew_idle(p_worker, v_now + p_idle_ms);
  return row_to_json(v_answer);
end
$$;
comment on function durable._end_lone(text, jsonb, boolean, integer) is
  'Ends a run that nobody waits for, notes that to the process which started it if the turn tells of it (p_notify) and the report says where (reply), lets its worker rest again for p_idle_ms, and answers as worker_turn_v1; null if the turn has to be taken the way for many: the run is a child, is awaited, somebody else has it locked, or the report is stale or brings what does not fit. It has locked then what that way locks too, and written nothing.';
