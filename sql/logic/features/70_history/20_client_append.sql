-- Journals that a client keeps itself, one logical event a call, under the guards of the engine's own writers. A refused event
-- changes nothing. The client runs invocations of every kind but External. Externals, timers and the run itself are promises,
-- whose ends the settlement chain writes into the journal. The engine writes nothing else there: a wait may be over for long
-- before the client sends ExecutionResumed.

create or replace function durable._completion(p_type durable.row_type, p_data text, p_child durable._promises)
returns jsonb language sql stable
as $$
  select case
    when durable._holds_result(p_type) then jsonb_build_object('result', durable._json(p_data))
    when durable._holds_error(p_type) or p_type = 'child_settled' and p_child.id is null
      then jsonb_build_object('error', durable._with_kind(durable._json(p_data)))
    when p_child.state = 'resolved' then jsonb_build_object('result', durable._json(durable._plain_value(p_child)))
    else jsonb_build_object('error', durable._with_kind(durable._json(durable._plain_error(p_child)))) end
$$;
comment on function durable._completion(durable.row_type, text, durable._promises) is
  'The result or error of a completing row, from the place where it is stored.';

create or replace function durable._completion_of(p_execution bigint, p_bucket integer, p_id text, p_child integer)
returns jsonb language sql stable
as $$
  select durable._completion(j.type, durable._data(j), p)
  from durable._journal j
  left join durable._promises p on durable._settles_child(j.type) and p.id = any (array[coalesce(j.name, p_id || '.' || p_child)])
  where j.execution = p_execution and j.bucket = p_bucket and j.child = p_child
    and durable._completes_invocation(j.type)
$$;
comment on function durable._completion_of(bigint, integer, text, integer) is
  'The result or error of a completed invocation; null while it is open.';

create or replace function durable._outcome(p_outcome jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case when p_outcome ? 'error' then jsonb_build_object('error', durable._with_kind(p_outcome -> 'error'))
              else p_outcome end
$$;
comment on function durable._outcome(jsonb) is 'A result or error of a client, in the form of _completion.';

create or replace function durable._client_head(p_id text)
returns durable._executions language plpgsql stable
as $$
declare
  v_head durable._executions;
begin
  select h.* into v_head
  from durable._promises p join durable._executions h on h.execution = any (array[p.head]) where p.id = p_id;
  if not found then
    perform durable._fail_not_found('run', p_id);
  elsif not v_head.written_by_client then
    perform durable._fail_conflict(format('The journal of run %L is kept by its workers.', p_id),
                                   'Only a run that began with durable.journal_append can be written this way.');
  end if;
  return v_head;
end
$$;
comment on function durable._client_head(text) is 'Head of a run whose journal a client keeps. WF001, WF003.';

create or replace function durable._same_journal(p_id text, p_payload jsonb)
returns durable._executions language plpgsql stable
as $$
declare
  v_promise durable._promises;
  v_head durable._executions;
  v_recorded jsonb;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  select * into v_head from durable._executions h where h.execution = v_promise.head;
  if v_head.execution is null then
    perform durable._fail_conflict(format('Id %L belongs to a promise that is no run.', p_id), 'Use another id.');
  elsif not v_head.written_by_client then
    perform durable._fail_run_conflict(p_id, 'keeper: workers write its journal');
  end if;
  select durable._data(j)::jsonb into v_recorded from durable._journal j
  where j.execution = v_head.execution and j.bucket = v_head.bucket and j.seq = 0;
  if coalesce(v_recorded ->> 'idempotency_key', '') <> coalesce(p_payload ->> 'idempotency_key', '') then
    perform durable._fail_run_conflict(p_id, 'idempotency key');
  elsif v_promise.param_data::jsonb <> p_payload -> 'input' then
    perform durable._fail_run_conflict(p_id, 'input');
  end if;
  return v_head;
end
$$;
comment on function durable._same_journal(text, jsonb) is
  'The run of a second ExecutionStarted under one id: the same run if key and input are the same (R18); else WF009.';

create or replace function durable._start_client_run(p_id text, p_payload jsonb)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
  v_workflow text := coalesce(durable._text_in(p_payload, 'workflow', 256), 'journal');
  v_pid text := coalesce(durable._text_in(p_payload, 'pid', 512), 'journal-client');
  v_ttl bigint := coalesce(durable._whole_in(p_payload, 'ttl', 1, durable._never()), 86400000);
  v_timeout bigint := durable._whole_in(p_payload, 'timeout', 1, durable._never());
  v_recorded jsonb := jsonb_build_object(
    'component_digest', durable._text_in(p_payload, 'component_digest', 512),
    'parent_id', durable._text_in(p_payload, 'parent_id', 1024),
    'idempotency_key', durable._text_in(p_payload, 'idempotency_key', 512));
  v_now bigint;
begin
  perform durable._check_site();
  perform durable._lock_family(p_id, true);
  perform durable._check_start(v_workflow, '[]', p_id, 'journal', '1');
  perform durable._check_removed(array[p_id]);
  v_now := durable._now_ms();
  v_head.execution := durable._next_execution();
  v_head.bucket := durable._bucket(v_now);
  insert into durable._promises (id, head, timeout_at, created_at, external, target, param_headers, param_data)
  values (p_id, v_head.execution, durable._later(v_now, v_timeout), v_now, true, 'poll://any@journal', '{"codec": "json"}',
          (p_payload -> 'input')::text)
  on conflict do nothing;
  if not found then
    return durable._same_journal(p_id, p_payload);
  end if;
  insert into durable._executions (execution, last_at, id, workflow, workflow_version, written_by_client, bucket, next_seq)
  values (v_head.execution, v_now, p_id, v_workflow, '1', true, v_head.bucket, 1) returning * into v_head;
  perform durable._write_started(array[v_head.execution], v_head.bucket, v_recorded::text, v_now);
  insert into durable._tasks (id, execution, deadline, queue, state, version, pid, ttl, expires_at)
  values (p_id, v_head.execution, durable._later(v_now, v_timeout), 'journal', 'acquired', 1, v_pid, v_ttl,
          durable._later(v_now, v_ttl));
  return v_head;
end
$$;
comment on function durable._start_client_run(text, jsonb) is
  'Begins a run whose journal the client keeps, or finds it: promise, head, ExecutionStarted, and a task that the client holds from birth. The task names no workflow, so no worker ever claims it.';

create or replace function durable._lock_client_event(p_id text, p_settles text[])
returns void language plpgsql volatile
as $$
declare
  v_tasks text[] := array[p_id];
begin
  if p_settles = '{}' then
    perform durable._lock_tasks(v_tasks);
  else
    perform durable._lock_promises(p_settles);
    v_tasks := v_tasks || p_settles || durable._awaiters_of(p_settles);
    perform durable._lock_tasks_to_revoke(v_tasks);
  end if;
  perform durable._lock_heads(durable._heads_of(p_settles, v_tasks));
end
$$;
comment on function durable._lock_client_event(text, text[]) is
  'The locks of an event: task and head of the run, and all locks of a settlement if the event settles a promise.';

create or replace function durable._recorded_at(p_head durable._executions, p_event durable._event)
returns integer language sql stable
as $$
  select case p_event.type
    when 'cancel_requested' then case when p_head.status = 'cancelling' then p_head.cancel_seq end
    when 'timer_fired' then (select j.seq from durable._journal j
                   where j.execution = p_head.execution and j.bucket = p_head.bucket and j.child = p_event.child
                     and j.type = 'timer_fired')
    end
$$;
comment on function durable._recorded_at(durable._executions, durable._event) is
  'The number of the event if the journal has it already: a request of cancellation (R3) and the firing of a timer (R4) are recorded once.';

create or replace function durable._unresolved(p_head durable._executions, p_children integer[])
returns integer[] language plpgsql stable
as $$
begin
  return array(select n from unnest(p_children) n where n = any (p_head.open_steps) or n >= p_head.next_child
               union select unnest(durable._open_of(p_head, p_children)));
end
$$;
comment on function durable._unresolved(durable._executions, integer[]) is
  'Those of the children that have not resolved: invocations without completion, pending promises, and the next receipt.';

create or replace function durable._wait_conflict(p_head durable._executions, p_wait durable._ending)
returns text language plpgsql stable
as $$
declare
  v_invalid integer;
begin
  select n into v_invalid from unnest(p_wait."on") n
  where not durable._is_invocation(p_head.execution, n)
    and not exists (select from durable._promises p
                    where p.id = p_head.id || '.' || n and p.execution = p_head.execution and p.timer) limit 1;
  return case
    when p_wait."on" = '{}' then 'it waits for nothing'
    when cardinality(p_wait."on") <> (select count(distinct n) from unnest(p_wait."on") n) then 'it waits for a child twice'
    when p_wait.kind = 'signal' and p_wait."on"[1] <> p_head.next_child
      then format('the receipt that it waits for will be child %s', p_head.next_child)
    when p_wait.kind = 'single' and cardinality(p_wait."on") > 1 then 'a Single wait is for one child'
    when p_wait.kind <> 'signal' and v_invalid is not null
      then format('child %s is no invocation and no timer: nothing would ever resolve it', v_invalid) end;
end
$$;
comment on function durable._wait_conflict(durable._executions, durable._ending) is
  'The reason why a wait is refused, or null (R6, R7, R21).';

create or replace function durable._receipt_conflict(p_head durable._executions, p_event durable._event)
returns text language plpgsql stable
as $$
declare
  v_next integer;
  v_signal durable._signals;
begin
  select coalesce(max(i.received), 0) + 1 into v_next
  from durable._inboxes i where i.execution = p_head.execution and i.name = p_event.name;
  select * into v_signal from durable._signals s
  where s.execution = p_head.execution and s.name = p_event.name and s.delivery = v_next;
  return case
    when v_signal.execution is null then format('there is no delivery %s of signal %L', v_next, p_event.name)
    when p_event.attempt <> v_next then format('delivery %s of signal %L is the next one', v_next, p_event.name)
    when coalesce(v_signal.data, 'null')::jsonb <> coalesce(p_event.data, 'null')::jsonb
      then format('delivery %s of signal %L has another payload', v_next, p_event.name)
    when p_head.status = 'blocked' and not exists (
      select from durable._journal j
      where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq = p_head.suspend_seq - 1
        and p_head.wait_kind = 'signal' and p_event.child = any (p_head.waiting_on)
        and durable._data(j)::jsonb ->> 'name' = p_event.name)
      then 'the run is blocked on something else' end;
end
$$;
comment on function durable._receipt_conflict(durable._executions, durable._event) is
  'The reason why a receipt is refused, or null: it must be of the next delivery of its name, with the same payload (CF-2, CF-3), and of the receive that the wait names while the run is blocked (R7).';

create or replace function durable._retry_conflict(p_head durable._executions, p_event durable._event)
returns text language sql stable
as $$
  select format('its retry policy allows %s attempts', durable._data(j)::jsonb #>> '{retry_policy,max_attempts}')
  from durable._journal j
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.child = p_event.child and j.type = 'step_scheduled'
    and p_event.attempt >= (durable._data(j)::jsonb #>> '{retry_policy,max_attempts}')::numeric
$$;
comment on function durable._retry_conflict(durable._executions, durable._event) is
  'The reason why an attempt must not be tried again, or null: the retry policy of the InvokeScheduled bounds it (SE-5).';

create or replace function durable._firing_conflict(p_head durable._executions, p_event durable._event, p_now bigint)
returns text language plpgsql stable
as $$
declare
  v_fire_at bigint;
begin
  select (durable._data(j)::jsonb ->> 'fire_at')::bigint into v_fire_at from durable._journal j
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.child = p_event.child and j.type = 'timer_scheduled';
  return case
    when v_fire_at is null then 'no such timer was scheduled'
    when v_fire_at > p_now then format('the timer fires in %s ms; durable.promise_settle ends it early', v_fire_at - p_now) end;
end
$$;
comment on function durable._firing_conflict(durable._executions, durable._event, bigint) is 'The reason why a timer has not fired, or null (CF-1, R4).';

create or replace function durable._step_conflict(p_head durable._executions, p_event durable._event)
returns text language plpgsql stable
as $$
declare
  v_type durable.row_type;
begin
  if p_event.child = any (p_head.open_steps) then
    return null;
  end if;
  select j.type into v_type from durable._journal j
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.child = p_event.child and durable._allocates(j.type);
  return case
    when v_type is null then 'it was never scheduled'
    when v_type = 'join_set_created' then 'it is a join set'
    when v_type = 'promise_registered' then 'it is an External invocation, settled with durable.promise_settle'
    when v_type = 'timer_scheduled' then 'it is a timer: TimerFired, or durable.promise_settle to end it early'
    when v_type = 'signal_received' then 'it is the receipt of a signal'
    when v_type in ('random_generated', 'time_recorded') then 'it is a recorded value'
    else 'it is complete' end;
end
$$;
comment on function durable._step_conflict(durable._executions, durable._event) is
  'The reason why an event about an attempt is refused, or null: only open steps have attempts. Reads the journal only for the message.';

create or replace function durable._check_client_event(
  p_head durable._executions, p_event durable._event, p_wait durable._ending, p_now bigint)
returns void language plpgsql stable
as $$
declare
  v_problem text;
begin
  v_problem := case
    when not durable._may_append(p_head.status, p_event.type) then 'not allowed while ' || p_head.status
    when p_event.type in ('attempt_started', 'open_step_completed', 'open_step_failed', 'open_attempt_failed')
         and durable._step_conflict(p_head, p_event) is not null
      then durable._step_conflict(p_head, p_event)
    when durable._allocates(p_event.type) and p_event.child <> p_head.next_child
      then format('the next child is %s', p_head.next_child)
    when p_event.type = 'execution_awaiting' then durable._wait_conflict(p_head, p_wait)
    when p_event.type = 'execution_resumed' and p_head.wait_left > 0
      then format('%s of what it waits for must still resolve', p_head.wait_left)
    when p_event.type = 'signal_received' then durable._receipt_conflict(p_head, p_event)
    when p_event.type = 'open_attempt_failed' then durable._retry_conflict(p_head, p_event)
    when p_event.type = 'timer_fired' then durable._firing_conflict(p_head, p_event, p_now)
    when p_event.type = 'signal_delivered' and p_event.attempt <> 1 + coalesce((
      select i.delivered from durable._inboxes i where i.execution = p_head.execution and i.name = p_event.name), 0)
      then format('that is not the number of the next delivery of signal %L', p_event.name)
    when p_event.type = 'join_set_awaited' and durable._completion_of(p_head.execution, p_head.bucket, p_head.id, p_event.child)
                                <> durable._outcome(p_event.data::jsonb)
      then 'its completion has another result' end;
  if v_problem is not null then
    perform durable._fail_journal(p_head.execution, p_event.type, p_event.child, v_problem);
  end if;
end
$$;
comment on function durable._check_client_event(durable._executions, durable._event, durable._ending, bigint) is
  'The guards of a client''s event beyond those of the writer of journals: the engine''s own rows fulfil them by construction. WF006.';

create or replace function durable._write_client_promise(
  p_head durable._executions, p_event durable._event, p_timeout bigint, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_id text := p_head.id || '.' || p_event.child;
  v_timer boolean := p_event.type = 'timer_scheduled';
  v_event durable._event := p_event;
begin
  insert into durable._promises (id, tenant, timeout_at, created_at, execution, child, timer, external, param_data, param_headers)
  values (v_id, p_head.tenant,
          case when v_timer then greatest((p_event.data::jsonb ->> 'fire_at')::bigint, p_now + 1)
               else durable._later(p_now, p_timeout) end,
          p_now, p_head.execution, p_event.child, v_timer, true, case when not v_timer then p_event.data end,
          case when not v_timer then '{"codec": "json"}'::jsonb end);
  insert into durable._callbacks (awaited_id, awaiter_id) values (v_id, p_head.id);
  if not v_timer then
    v_event.data := null;
  end if;
  perform durable._append(array[v_event], p_now);
end
$$;
comment on function durable._write_client_promise(durable._executions, durable._event, bigint, bigint) is
  'Creates the promise of a timer or an external invocation, and writes the row. A timer whose instant has come is due at once.';

create or replace function durable._write_client_settlement(
  p_head durable._executions, p_event durable._event, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_queues text[];
begin
  v_queues := durable._settle(
    array[case when p_event.type = 'timer_fired' then p_head.id || '.' || p_event.child else p_head.id end],
    array[case p_event.type when 'execution_failed' then 'rejected' when 'execution_cancelled' then 'rejected_canceled'
                            else 'resolved' end],
    array[null::jsonb],
    array[case when p_event.type = 'execution_cancelled'
                 then durable._cancelled(coalesce(p_event.data, durable._cancel_reason(p_head)))
               else p_event.data end], p_now);
  if v_queues <> '{}' then
    perform durable._hint('durable_ready', p_now);
  end if;
  perform durable._hint('durable_settled', p_now);
end
$$;
comment on function durable._write_client_settlement(durable._executions, durable._event, bigint) is
  'Settles the promise for an end of the run or the firing of a timer; the settlement chain writes the row.';

create or replace function durable._write_client_wait(p_head durable._executions, p_wait durable._ending, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_left integer := cardinality(durable._unresolved(p_head, p_wait."on"));
begin
  perform durable._await(array[p_head.execution], array[p_wait], p_now);
  update durable._executions h
  set wait_left = case when h.wait_kind = 'all' then v_left when v_left < cardinality(h.waiting_on) then 0 else 1 end
  where h.execution = p_head.execution;
end
$$;
comment on function durable._write_client_wait(durable._executions, durable._ending, bigint) is
  'Blocks the head on the open children of a wait. A wait that is over already is accepted too, and ends with the next ExecutionResumed.';

create or replace function durable._write_client_event(
  p_head durable._executions, p_event durable._event, p_wait durable._ending, p_timeout bigint, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_event durable._event := p_event;
begin
  if p_event.type in ('promise_registered', 'timer_scheduled') then
    perform durable._write_client_promise(p_head, p_event, p_timeout, p_now);
  elsif p_event.type in ('timer_fired', 'execution_completed', 'execution_failed', 'execution_cancelled') then
    perform durable._write_client_settlement(p_head, p_event, p_now);
  elsif p_event.type = 'cancel_requested' then
    perform durable._request_cancel(array[p_head.id], p_event.data, durable._grace_ms(null), p_now);
  elsif p_event.type = 'execution_awaiting' then
    perform durable._write_client_wait(p_head, p_wait, p_now);
  elsif p_event.type = 'signal_delivered' then
    perform durable._deliver(array[p_head.execution], p_event.name, array[p_event.data], null, p_now);
  else
    if v_event.type in ('signal_received', 'join_set_awaited') then
      v_event.data := null;
    end if;
    if v_event.type = 'signal_received' then
      v_event.attempt := (select i.received + 1 from durable._inboxes i
                          where i.execution = p_head.execution and i.name = v_event.name);
    end if;
    perform durable._append(array[v_event], p_now);
  end if;
  if p_event.type in ('open_step_completed', 'open_step_failed', 'signal_received') then
    update durable._executions h set wait_left = case when h.wait_kind = 'all' then h.wait_left - 1 else 0 end
    where h.execution = p_head.execution and h.status = 'blocked' and p_event.child = any (h.waiting_on);
  end if;
end
$$;
comment on function durable._write_client_event(durable._executions, durable._event, durable._ending, bigint, bigint) is
  'Writes a checked event in the way of its kind. The settlement chain counts down waits for promises; this function counts down those that the client resolves.';

create or replace function durable._keep_lease(p_id text, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._tasks t set expires_at = durable._later(p_now, t.ttl), crashes = 0, suspect = false
  where t.id = p_id and durable._is_leased(t, t.version, p_now) and (t.expires_at - p_now < t.ttl / 2
                                                                            or t.crashes > 0 or t.suspect);
end
$$;
comment on function durable._keep_lease(text, bigint) is
  'Renews a lease in its second half and forgets crashes, because an event shows that the client is alive.';

create or replace function durable.journal_append(id text, version integer, event text, payload jsonb default '{}')
returns table (seq integer, status text, next_child integer) language plpgsql volatile
as $$
declare
  v_head durable._executions;
  v_event durable._event;
  v_wait durable._ending;
  v_now bigint;
  v_seq integer;
begin
  perform durable._check_event($1, $2, $3, $4);
  if $3 = 'ExecutionStarted' then
    v_head := durable._start_client_run($1, $4);
    return query select 0, v_head.status, v_head.next_child;
    return;
  end if;
  v_event := durable._event_in($1, $3, $4);
  if v_event.type = 'execution_awaiting' then
    v_wait := durable._wait_in($1, $4);
  end if;
  v_event.execution := (durable._client_head($1)).execution;
  perform durable._lock_client_event($1, case when durable._ends_run(v_event.type) then array[$1]
                                      when v_event.type = 'timer_fired' then array[$1 || '.' || v_event.child] else '{}' end);
  v_now := durable._now_ms();
  perform durable._check_lease($1, $2, v_now);
  select * into v_head from durable._executions h where h.execution = v_event.execution;
  v_seq := durable._recorded_at(v_head, v_event);
  if v_seq is null then
    perform durable._check_client_event(v_head, v_event, v_wait, v_now);
    perform durable._write_client_event(v_head, v_event, v_wait, durable._whole_in($4, 'timeout', 1, durable._never()), v_now);
    perform durable._keep_lease($1, v_now);
  end if;
  return query select coalesce(v_seq, h.next_seq - 1), h.status, h.next_child
               from durable._executions h where h.execution = v_event.execution;
end
$$;
comment on function durable.journal_append(text, integer, text, jsonb) is
  'For a client that keeps a journal of its own: appends one event under the laws of journals and answers its number, the status and the next child. select * from durable.journal_append(''j-1'', null, ''ExecutionStarted'', ''{"component_digest": "d", "input": 1}'') creates the run, leased to the client at version 1; every other event names the version of that lease. A repeated event (the same start, a second CancelRequested, a TimerFired again) is answered and not appended. External invocations, timers and the end of the run are promises: their settlement writes the event. WF001, WF002 the lease is lost or the run has ended, WF003 workers keep that journal, WF004, WF006 it does not fit the journal, WF008, WF009.';
