-- Reports of adapter workers. An outcome is stored before its result is pinned. Both may be one transaction, but a crash between
-- the two is harmless, because the next lease goes on with the stored outcome.
-- A key that another session has just inserted can only be waited for. So objects and pins are inserted before promises, tasks
-- and attempts are locked, and wait 50 ms at most; then all of it is undone, and the answer is busy.

create or replace function durable._check_report(p_execution_key bytea, p_version integer, p_report jsonb)
returns void language plpgsql stable
as $$
begin
  if octet_length(p_execution_key) is distinct from 32 or p_version is null then
    perform durable._fail_invalid('A report names an execution key of 32 bytes and the version of its lease.');
  elsif jsonb_typeof(p_report) is distinct from 'object'
        or coalesce(p_report ->> 'class', '') <> all (array['pending', 'done', 'failed']) then
    perform durable._fail_invalid('A report is an object whose class is pending, done or failed.');
  elsif p_report ->> 'class' = 'pending' and (
          jsonb_typeof(p_report -> 'token') is distinct from 'string'
          or octet_length(p_report ->> 'token') not between 1 and 65536) then
    perform durable._fail_invalid('A pending report has a token: a text of 1 to 65536 bytes.');
  elsif coalesce(jsonb_typeof(p_report -> 'poll_after_ms'), 'null') not in ('number', 'null')
        or coalesce(jsonb_typeof(p_report -> 'started_at'), 'null') not in ('number', 'null')
        or (p_report ->> 'started_at')::numeric not between 0 and durable._never() then
    perform durable._fail_invalid('poll_after_ms is a number, and started_at an instant in ms since the epoch.');
  elsif p_report ->> 'class' = 'done' and (
          coalesce(p_report ->> 'outcome', '') <> all (array['ok', 'error'])
          or num_nonnulls(p_report -> 'result', p_report -> 'value', p_report -> 'error') <> 1
          or (p_report ? 'value' and p_report ->> 'outcome' <> 'ok')
          or (p_report ? 'error' and p_report ->> 'outcome' <> 'error')) then
    perform durable._fail_invalid('A done report has an outcome, ok or error, and one of result, value and error.');
  elsif p_report ->> 'class' = 'failed' and (
          jsonb_typeof(p_report -> 'retryable') is distinct from 'boolean'
          or jsonb_typeof(p_report -> 'error') is distinct from 'object'
          or jsonb_typeof(p_report #> '{error,code}') is distinct from 'string') then
    perform durable._fail_invalid('A failed report says whether it is retryable, and has an error {code, message}.');
  end if;
end
$$;
comment on function durable._check_report(bytea, integer, jsonb) is 'Refuses a report that is malformed, before anything is read. WF004.';

create or replace function durable._put_result(p_report jsonb)
returns bytea language plpgsql volatile
as $$
begin
  if p_report ->> 'class' <> 'done' then
    return null;
  end if;
  if p_report ? 'objects' then
    perform durable.objects_import(jsonb_build_object('v', 1, 'objects', p_report -> 'objects'));
  end if;
  return case
    when p_report ? 'result' then durable._unhex(p_report ->> 'result')
    when p_report ? 'value' then durable.dag_put(durable.node_literal(durable.datum_put(p_report -> 'value')))
    else durable.dag_put(durable.literal(p_report -> 'error')) end;
end
$$;
comment on function durable._put_result(jsonb) is
  'The DAG that a done report names, after the objects that come with it are put. The short forms value (tagged JSON) and error become a DAG with one literal, which has the id that it would have if the adapter had published it.';

create or replace function durable._result_flaw(p_execution_key bytea, p_dag bytea)
returns text language plpgsql volatile
as $$
declare
  v_object durable._objects;
  v_status text;
  v_flaw text;
begin
  select * into v_object from durable._objects o where o.id = p_dag;
  if not found then
    return 'missing';
  elsif v_object.kind <> 'dag' then
    return format('the result %s is no DAG, but a %s', encode(p_dag, 'hex'), v_object.kind);
  end if;
  v_status := durable.closure_status(p_dag);
  -- puts refuse such a value, and earlier ones did not
  v_flaw := durable._unfolded_flaw(durable._dag_datum(null, p_dag));
  return case when v_status = 'missing' then 'missing'
              when v_status <> 'ok' then format('the result %s is not whole: %s', encode(p_dag, 'hex'), v_status)
              when v_flaw is not null then format('the result %s cannot be unfolded: %s', encode(p_dag, 'hex'), v_flaw)
              when durable._dag_datum(null, p_dag) is null
                   and not exists (select from durable._call_waiters w
                                   where w.execution_key = p_execution_key and durable._dag_datum(w.scope, p_dag) is not null)
                then format('the root of the result %s has no value', encode(p_dag, 'hex')) end;
end
$$;
comment on function durable._result_flaw(bytea, bytea) is
  'Why a DAG cannot be the result of an attempt, in words; missing: it is not here yet; null: it can. Its root has a value for all, or is a call that one of the scopes that wait has a result of.';

create or replace function durable._store_pending(
  p_attempt durable._call_attempts, p_report jsonb, p_now bigint)
returns text language plpgsql volatile
as $$
begin
  update durable._call_attempts a
  set token = p_report ->> 'token', polls = a.polls + 1, failures = 0, woken = false
  where a.execution_key = p_attempt.execution_key;
  perform durable._schedule_poll(p_attempt, least(greatest(coalesce((p_report ->> 'poll_after_ms')::numeric,
    durable._setting_int('call_poll_ms')), 0), 86400000)::bigint, p_now);
  return 'poll_adapter';
end
$$;
comment on function durable._store_pending(durable._call_attempts, jsonb, bigint) is 'The job goes on: keeps the newest token until the next poll.';

create or replace function durable._is_last_failure(p_attempt durable._call_attempts, p_report jsonb)
returns boolean language sql immutable
as $$
  select p_report ->> 'class' = 'failed'
         and (not (p_report ->> 'retryable')::boolean or p_attempt.failures >= p_attempt.budget)
$$;
comment on function durable._is_last_failure(durable._call_attempts, jsonb) is 'The report gives the attempt up, so it settles its promise.';

create or replace function durable._store_failure(
  p_attempt durable._call_attempts, p_report jsonb, p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_error jsonb := p_report -> 'error';
begin
  update durable._call_attempts a set polls = a.polls + 1 where a.execution_key = p_attempt.execution_key;
  if (p_report ->> 'retryable')::boolean then
    return durable._fail_attempt(p_attempt, p_attempt.failures + 1, coalesce(v_error ->> 'message', v_error ->> 'code'), v_error,
                                 p_now);
  end if;
  perform durable._give_up(p_attempt, v_error ->> 'code', coalesce(v_error ->> 'message', v_error ->> 'code'), v_error, p_now);
  return 'failed_terminal';
end
$$;
comment on function durable._store_failure(durable._call_attempts, jsonb, bigint) is 'The poll failed, which says nothing about the job: it is tried again, or the attempt is given up.';

create or replace function durable._report_message(p_report jsonb)
returns text language sql immutable
as $$
  select coalesce(nullif(concat_ws(': ', case when jsonb_typeof(p_report -> 'progress') = 'number'
                                              then round(100 * (p_report ->> 'progress')::numeric) || ' %' end,
                                   p_report ->> 'message'), ''),
                  p_report #>> '{error,message}', p_report #>> '{error,code}')
$$;
comment on function durable._report_message(jsonb) is 'The message of a report, for people, behind how far its job is: 40 %: reading.';

create or replace function durable._poll_report(
  p_execution_key bytea, p_version integer, p_report jsonb, p_dag bytea)
returns text language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
  v_worker text;
  v_now bigint;
begin
  select * into v_attempt from durable._call_attempts a where a.execution_key = p_execution_key;
  if not found then
    perform durable._fail_not_found('attempt', encode(p_execution_key, 'hex'), 'Look at select * from durable.call_attempts.');
  elsif not durable._try_lock_report(p_execution_key, durable._is_last_failure(v_attempt, p_report)) then
    return 'busy';
  end if;
  v_now := durable._now_ms();
  v_worker := (durable._check_lease(durable._call_promise(p_execution_key), p_version, v_now)).pid;
  -- the lease is still this one, so failures are as they were when the locks were chosen
  select * into v_attempt from durable._call_attempts a where a.execution_key = p_execution_key;
  if v_attempt.phase <> 'poll_adapter' then
    return 'already_done';
  end if;
  perform durable._add_poll(v_attempt, p_version, p_report ->> 'class', v_worker, p_report, durable._report_message(p_report),
                            v_now);
  case p_report ->> 'class'
    when 'pending' then
      return durable._store_pending(v_attempt, p_report, v_now);
    when 'failed' then
      return durable._store_failure(v_attempt, p_report, v_now);
    else
      update durable._call_attempts a
      set polls = a.polls + 1, failures = 0, phase = 'integrate_' || (p_report ->> 'outcome'), outcome_dag = p_dag
      where a.execution_key = p_execution_key;
      return 'integrate_' || (p_report ->> 'outcome');
  end case;
end
$$;
comment on function durable._poll_report(bytea, integer, jsonb, bytea) is
  'Stores one answer of an adapter. An outcome is stored once, durably, and is no result yet. WF001, WF002.';

create or replace function durable._pins_of(p_attempt durable._call_attempts)
returns durable._new_pin[] language sql stable
as $$
  select array(
    select row(w.scope, w.node_id, durable._object_id('exec', substr(p_attempt.phase, 11), null,
                                                      array[w.node_id, p_attempt.outcome_dag], '{}'),
               w.inputs, w.forced)::durable._new_pin
    from durable._call_waiters w join durable._refs r on r.name = any (array[w.scope])
    where w.execution_key = p_attempt.execution_key order by w.scope, w.node_id)
$$;
comment on function durable._pins_of(durable._call_attempts) is
  'The pins of a stored outcome, for everybody who waits for the attempt. A scope that was deleted by hand has none.';

create or replace function durable._put_execs(p_attempt durable._call_attempts)
returns void language plpgsql volatile
as $$
begin
  perform durable._put_objects(array(
    select row(null, 'exec', substr(p_attempt.phase, 11), null, array[w.n, p_attempt.outcome_dag], '{}')::durable._object
    from (select w.node_id from durable._call_waiters w where w.execution_key = p_attempt.execution_key
          union select p_attempt.node_id) w (n)));
end
$$;
comment on function durable._put_execs(durable._call_attempts) is 'Puts the execution of each node that waits for an attempt.';

create or replace function durable._readable_pins(p_attempt durable._call_attempts, p_pins durable._new_pin[])
returns durable._new_pin[] language sql stable
as $$
  select array(
    select n from unnest(p_pins) n
    where (select durable._dag_datum(null, p_attempt.outcome_dag)) is not null
          or durable._dag_datum(n.scope, p_attempt.outcome_dag) is not null)
$$;
comment on function durable._readable_pins(durable._call_attempts, durable._new_pin[]) is
  'Those of the pins of an outcome whose scopes can read it: all, but for a DAG whose root is a call that a scope has no result of.';

create or replace function durable._put_pins(
  p_attempt durable._call_attempts, out asked durable._new_pin[], out pinned durable._new_pin[])
language plpgsql volatile
as $$
begin
  asked := durable._pins_of(p_attempt);
  pinned := durable._readable_pins(p_attempt, asked);
  perform durable._put_execs(p_attempt);
  if not durable._try_lock_pins(pinned) then
    perform durable._start_over();
  end if;
  perform durable._pin(pinned, p_attempt.execution_key, durable._now_ms());
end
$$;
comment on function durable._put_pins(durable._call_attempts) is
  'Puts the execution of each node that waits for an attempt, and pins it where it can be read, before anything else is locked. The caller starts over if those asked for are not those of the attempt once it is locked. WF099: a scope or a pin is locked.';

create or replace function durable._publish_result(
  p_attempt durable._call_attempts, p_pins durable._new_pin[], p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_status text := substr(p_attempt.phase, 11);
  v_exec bytea := durable._object_id('exec', v_status, null, array[p_attempt.node_id, p_attempt.outcome_dag], '{}');
begin
  update durable._call_attempts a set ended_at = greatest(p_now, a.created_at), exec_id = v_exec, failures = 0
  where a.execution_key = p_attempt.execution_key;
  delete from durable._call_waiters w
  where w.execution_key = p_attempt.execution_key
    and not exists (select from unnest(p_pins) n where n.scope = w.scope and n.node_id = w.node_id);
  perform durable._settle_one(
    durable._call_promise(p_attempt.execution_key), 'resolved', jsonb_build_object(
      'status', v_status, 'exec', encode(v_exec, 'hex'), 'dag', encode(p_attempt.outcome_dag, 'hex'))::text, null, p_now);
  return 'completed_' || v_status;
end
$$;
comment on function durable._publish_result(durable._call_attempts, durable._new_pin[], bigint) is
  'Resolves the promise of an attempt, in the transaction that pinned its result for everybody who waits and can read it: nobody sees one without the other. A scope that cannot read it has not waited for it, and its next call runs. A failed result resolves it too.';

create or replace function durable._integrate(p_execution_key bytea, p_version integer)
returns text language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
  v_flaw text;
  v_asked durable._new_pin[];
  v_pinned durable._new_pin[];
  v_now bigint;
  v_task durable._tasks;
begin
  select * into v_attempt from durable._call_attempts a where a.execution_key = p_execution_key;
  if not found then
    perform durable._fail_not_found('attempt', encode(p_execution_key, 'hex'), 'Look at select * from durable.call_attempts.');
  elsif v_attempt.phase <> 'poll_adapter' and v_attempt.ended_at is null then
    v_flaw := durable._result_flaw(p_execution_key, v_attempt.outcome_dag);
    if v_flaw is null then
      select p.asked, p.pinned into v_asked, v_pinned from durable._put_pins(v_attempt) p;
    end if;
  end if;
  if not durable._try_lock_report(p_execution_key, true) then
    perform durable._start_over();
  end if;
  v_now := durable._now_ms();
  v_task := durable._check_lease(durable._call_promise(p_execution_key), p_version, v_now);
  -- a wake may have come since it was read; its outcome is still this one
  select * into v_attempt from durable._call_attempts a where a.execution_key = p_execution_key;
  if v_attempt.phase = 'poll_adapter' then
    perform durable._fail_conflict('There is no stored outcome to integrate.', 'Report done first.');
  elsif v_flaw is null and durable._pins_of(v_attempt) is distinct from v_asked then
    perform durable._start_over();  -- somebody has joined meanwhile
  elsif v_flaw is null then
    return durable._publish_result(v_attempt, v_pinned, v_now);
  end if;
  perform durable._add_poll(v_attempt, p_version, 'integration', v_task.pid, '{}', v_flaw, v_now);
  if v_flaw <> 'missing' then
    perform durable._give_up(v_attempt, 'result_invalid', v_flaw, null, v_now);
    return 'failed_terminal';
  end if;
  return durable._fail_attempt(
    v_attempt, v_attempt.failures + 1, format('the result %s is not here', encode(v_attempt.outcome_dag, 'hex')),
    '{"code": "result_missing"}', v_now);
end
$$;
comment on function durable._integrate(bytea, integer) is
  'Pins the stored outcome of a leased attempt. A result that is not here yet counts as a failure that is tried again; one that never can be a result ends the attempt. WF099, 55P03: another session holds what it needs.';

create or replace function durable._integrate_or_busy(p_execution_key bytea, p_version integer)
returns text language plpgsql volatile
as $$
begin
  return durable._integrate(p_execution_key, p_version);
exception when lock_not_available or sqlstate 'WF099' then
  return 'busy';
end
$$;
comment on function durable._integrate_or_busy(bytea, integer) is
  'Integrates, or answers busy, and nothing was written, if another session holds what it needs for longer than lock_timeout.';

create or replace function durable.call_integrate_v1(p_execution_key bytea, p_version integer)
returns text language plpgsql volatile
as $$
begin
  return durable._integrate_or_busy(p_execution_key, p_version);
end
$$ set lock_timeout = '50ms';
comment on function durable.call_integrate_v1(bytea, integer) is
  'For adapter workers: pins a stored outcome, after its objects were fetched. Answers completed_ok, completed_error, retry_wait (not here yet), failed_terminal, or busy: call again. WF001, WF002, WF003.';

create or replace function durable._too_much(p_report jsonb, p_flaw text)
returns jsonb language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'class', 'failed', 'retryable', false, 'error', jsonb_build_object('code', 'result_invalid', 'message', p_flaw),
    'started_at', p_report -> 'started_at', 'stderr', p_report -> 'stderr'))
$$;
comment on function durable._too_much(jsonb, text) is
  'The report in place of a done one whose result no reader could unfold: as for such a result that was there already, the attempt ends.';

create or replace function durable._report_or_busy(p_execution_key bytea, p_version integer, p_report jsonb)
returns text language plpgsql volatile
as $$
declare
  v_dag bytea;
  v_state text;
  v_mark text;
  v_message text;
  v_hint text;
begin
  begin
    v_dag := durable._put_result(p_report);
    v_state := durable._poll_report(p_execution_key, p_version, p_report, v_dag);
  exception
    when lock_not_available then
      return 'busy';
    when sqlstate 'WF004' then
      get stacked diagnostics v_mark = pg_datatype_name, v_message = message_text, v_hint = pg_exception_hint;
      if v_mark is distinct from 'durable.unfolded' then
        perform durable._fail_invalid(v_message, v_hint);
      end if;
      return durable._report_or_busy(p_execution_key, p_version, durable._too_much(p_report, v_message));
  end;
  if not starts_with(v_state, 'integrate_') or not coalesce((p_report ->> 'integrate')::boolean, true)
     or durable._result_flaw(p_execution_key, v_dag) is not distinct from 'missing' then
    return v_state;
  end if;
  -- its task and attempt are locked now: what cannot be pinned at once is left to call_integrate_v1, which pins first
  perform set_config('lock_timeout', '1ms', true);
  return coalesce(nullif(durable._integrate_or_busy(p_execution_key, p_version), 'busy'), v_state);
end
$$;
comment on function durable._report_or_busy(bytea, integer, jsonb) is
  'A report, and its integration if that waits for nobody, or the end of the attempt if its result is too much for readers; or busy, if another session holds what it needs for longer than lock_timeout. Leaves a short lock_timeout: the functions above it are defined with one of their own.';

create or replace function durable.call_report_v1(p_execution_key bytea, p_version integer, p_report jsonb)
returns text language plpgsql volatile
as $$
begin
  perform durable._check_report(p_execution_key, p_version, p_report);
  return durable._report_or_busy(p_execution_key, p_version, p_report);
end
$$ set lock_timeout = '50ms';
comment on function durable.call_report_v1(bytea, integer, jsonb) is
  'For adapter workers: the answer of an adapter, {class: pending|done|failed, token, poll_after_ms, message, outcome, result|value|error, objects, retryable, error: {code, message}, stderr, started_at}. Answers poll_adapter or retry_wait (the lease is given back), completed_ok, completed_error or failed_terminal, already_done, busy (nothing was written: report again), or integrate_ok and integrate_error: stored, the lease stays, and durable.call_integrate_v1 follows once the objects are here. A result that is here is integrated at once, unless integrate is false. WF001, WF002, WF004.';

create or replace function durable._report_or_error(p_one jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_key bytea := durable._unhex(p_one ->> 'execution_key');
  v_version integer := (p_one ->> 'version')::integer;
  v_state text;
  v_message text;
begin
  perform durable._check_report(v_key, v_version, p_one);
  return jsonb_build_object('state', durable._report_or_busy(v_key, v_version, p_one));
exception when sqlstate 'WF001' or sqlstate 'WF002' or sqlstate 'WF003' or sqlstate 'WF004' or sqlstate 'WF008'
               or sqlstate 'WF015' then
  get stacked diagnostics v_state = returned_sqlstate, v_message = message_text;
  return jsonb_build_object('error', v_state, 'detail', v_message);
end
$$;
comment on function durable._report_or_error(jsonb) is 'One report of many: {state}, or {error, detail} if it was refused, of which nothing is written.';

create or replace function durable.call_reports_v1(p_reports jsonb)
returns setof jsonb language plpgsql volatile
as $$
begin
  if jsonb_typeof(p_reports) is distinct from 'array' or jsonb_array_length(p_reports) > 1000 then
    perform durable._fail_invalid('Reports are an array of at most 1000.');
  end if;
  return query
    select durable._report_or_error(r.one) from jsonb_array_elements(p_reports) with ordinality as r (one, place)
    order by r.place;
end
$$ set lock_timeout = '1ms';
comment on function durable.call_reports_v1(jsonb) is
  'Many reports in one round trip, each with execution_key and version: an array as of durable.call_report_v1. Answers {state} or {error, detail} for each, in their order; one that is refused takes no other back. One that would have to wait is busy at once: report it again, alone. WF004.';
