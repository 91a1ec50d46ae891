-- The 20 logical events as a client sends them, turned into rows of the journal. Only their form is checked here, before any
-- state is read; their place in the journal is checked where they are written (70_history/20_client_append.sql).

create or replace function durable._event_keys()
returns table (event text, type durable.row_type, required text[], optional text[])
language sql immutable parallel safe
as $$
  values
    ('ExecutionStarted', 'execution_started'::durable.row_type, array['component_digest', 'input'],
      array['parent_id', 'idempotency_key', 'workflow', 'pid', 'ttl', 'timeout']),
    ('ExecutionCompleted', 'execution_completed', array['result'], '{}'),
    ('ExecutionFailed', 'execution_failed', array['error'], '{}'),
    ('CancelRequested', 'cancel_requested', '{}', array['reason']),
    ('ExecutionCancelled', 'execution_cancelled', '{}', array['reason']),
    ('InvokeScheduled', 'step_scheduled', array['promise_id', 'kind', 'function_name', 'input'],
      array['retry_policy', 'timeout']),
    ('InvokeStarted', 'attempt_started', array['promise_id', 'attempt'], '{}'),
    ('InvokeCompleted', 'open_step_completed', array['promise_id', 'attempt'], array['result', 'error']),
    ('InvokeRetrying', 'open_attempt_failed', array['promise_id', 'failed_attempt', 'error', 'retry_at'], '{}'),
    ('RandomGenerated', 'random_generated', array['promise_id', 'value'], '{}'),
    ('TimeRecorded', 'time_recorded', array['promise_id', 'time'], '{}'),
    ('TimerScheduled', 'timer_scheduled', array['promise_id', 'duration', 'fire_at'], '{}'),
    ('TimerFired', 'timer_fired', array['promise_id'], '{}'),
    ('SignalDelivered', 'signal_delivered', array['signal_name'], array['payload', 'delivery_id']),
    ('SignalReceived', 'signal_received', array['promise_id', 'signal_name'], array['payload', 'delivery_id']),
    ('ExecutionAwaiting', 'execution_awaiting', array['waiting_on', 'kind'], '{}'),
    ('ExecutionResumed', 'execution_resumed', '{}', '{}'),
    ('JoinSetCreated', 'join_set_created', array['join_set_id'], '{}'),
    ('JoinSetSubmitted', 'join_set_submitted', array['join_set_id', 'promise_id'], '{}'),
    ('JoinSetAwaited', 'join_set_awaited', array['join_set_id', 'promise_id'], array['result', 'error'])
$$;
comment on function durable._event_keys() is
  'The 20 logical events as a client sends them: the row type of each and the keys of its payload. An InvokeScheduled of kind External becomes promise_registered, an InvokeCompleted with an error open_step_failed.';

create or replace function durable._check_event(p_id text, p_version integer, p_event text, p_payload jsonb)
returns void language plpgsql stable
as $$
declare
  v_keys record;
  v_key text;
begin
  select * into v_keys from durable._event_keys() k where k.event = p_event;
  if p_id is null or p_id = '' then
    perform durable._fail_invalid('The id of a run is not empty.');
  elsif v_keys.event is null then
    perform durable._fail_invalid(format('There is no event %L.', p_event),
      (select 'Events are ' || string_agg(k.event, ', ') || '.' from durable._event_keys() k));
  elsif (p_version is null) <> (p_event = 'ExecutionStarted') then
    perform durable._fail_invalid('ExecutionStarted names no version, every other event names that of its lease.');
  elsif p_payload is null or jsonb_typeof(p_payload) <> 'object' then
    perform durable._fail_invalid(format('The payload of %s is a JSON object.', p_event));
  end if;
  select r into v_key from unnest(v_keys.required) r
  where not p_payload ? r
     or (p_payload -> r = 'null' and r not in ('input', 'result', 'error', 'value')) limit 1;
  if found then
    perform durable._fail_invalid(format('The payload of %s has no %s.', p_event, v_key));
  end if;
  select k into v_key from jsonb_object_keys(p_payload) k where k <> all (v_keys.required || v_keys.optional) limit 1;
  if found then
    perform durable._fail_invalid(format('The payload of %s has no place for %s.', p_event, v_key));
  elsif 'result' = any (v_keys.optional) and (p_payload ? 'result') = (p_payload ? 'error') then
    perform durable._fail_invalid(format('The payload of %s has either a result or an error.', p_event));
  end if;
  perform durable._check_payload(format('Event %s of run %L', p_event, p_id), p_payload::text);
end
$$;
comment on function durable._check_event(text, integer, text, jsonb) is
  'Checks an event: its name is known, and it has the keys that it needs and no others. WF004 or WF008 before any state is read.';

create or replace function durable._text_in(p_payload jsonb, p_key text, p_most integer)
returns text language plpgsql stable
as $$
begin
  if coalesce(p_payload -> p_key, 'null') <> 'null'
     and (jsonb_typeof(p_payload -> p_key) <> 'string' or octet_length(p_payload ->> p_key) not between 1 and p_most) then
    perform durable._fail_invalid(format('%s is a text of 1 to %s bytes.', p_key, p_most));
  end if;
  return p_payload ->> p_key;
end
$$;
comment on function durable._text_in(jsonb, text, integer) is 'A text of a payload, or null if the payload has none. WF004.';

create or replace function durable._whole_in(p_payload jsonb, p_key text, p_least bigint, p_most bigint)
returns bigint language plpgsql stable
as $$
begin
  if coalesce(p_payload -> p_key, 'null') <> 'null' then
    if jsonb_typeof(p_payload -> p_key) <> 'number' then
      perform durable._fail_invalid(format('%s is a number.', p_key));
    elsif (p_payload ->> p_key)::numeric % 1 <> 0 or (p_payload ->> p_key)::numeric not between p_least and p_most then
      perform durable._fail_invalid(format('%s is a whole number from %s to %s.', p_key, p_least, p_most));
    end if;
  end if;
  return (p_payload ->> p_key)::numeric;
end
$$;
comment on function durable._whole_in(jsonb, text, bigint, bigint) is
  'A whole number of a payload, or null if the payload has none. WF004.';

create or replace function durable._child_in(p_id text, p_child jsonb)
returns integer language plpgsql stable
as $$
begin
  if jsonb_typeof(p_child) is distinct from 'string' or not starts_with(p_child #>> '{}', p_id || '.')
     or substr(p_child #>> '{}', length(p_id) + 2) !~ '^(0|[1-9][0-9]{0,8})$' then
    perform durable._fail_invalid(format('%s is no child of run %L: those are %s.', p_child, p_id, p_id || '.<number>'),
                                  'A journal speaks of its own children only.');
  end if;
  return substr(p_child #>> '{}', length(p_id) + 2)::integer;
end
$$;
comment on function durable._child_in(text, jsonb) is
  'The number in the id of a child. WF004 for an id that is not a child of this run.';

create or replace function durable._check_invocation(p_payload jsonb)
returns void language plpgsql stable
as $$
declare
  v_external boolean := p_payload ->> 'kind' = 'External';
begin
  if p_payload -> 'kind' not in ('"Function"', '"Http"', '"Local"', '"External"') then
    perform durable._fail_invalid(format('An invocation is a Function, Http, Local or External, not %s.', p_payload -> 'kind'));
  elsif v_external and coalesce(p_payload -> 'retry_policy', 'null') <> 'null' then
    perform durable._fail_invalid('An External invocation is settled from outside; nobody here tries it again.');
  elsif not v_external and coalesce(p_payload -> 'timeout', 'null') <> 'null' then
    perform durable._fail_invalid('Only an External invocation has a timeout: its promise ends by itself.');
  end if;
  perform durable._whole_in(p_payload, 'timeout', 1, durable._never());
  if jsonb_typeof(p_payload -> 'retry_policy') = 'object' then
    perform durable._whole_in(p_payload -> 'retry_policy', 'max_attempts', 1, 1000000000);
  end if;
end
$$;
comment on function durable._check_invocation(jsonb) is 'Checks the payload of an InvokeScheduled. WF004.';

create or replace function durable._data_in(p_type durable.row_type, p_payload jsonb)
returns text language plpgsql stable
as $$
begin
  return case
    when p_type = 'step_scheduled' then (p_payload - 'promise_id' - 'function_name' - 'timeout')::text
    when p_type = 'promise_registered' then (p_payload -> 'input')::text
    when p_type = 'open_attempt_failed' then jsonb_build_object(
      'error', p_payload -> 'error', 'interrupted', false,
      'retry_at', durable._whole_in(p_payload, 'retry_at', 0, durable._never()))::text
    when p_type = 'timer_scheduled' then jsonb_build_object(
      'duration', durable._whole_in(p_payload, 'duration', 0, durable._never()),
      'fire_at', durable._whole_in(p_payload, 'fire_at', 0, durable._never()))::text
    when p_type = 'time_recorded' then durable._whole_in(p_payload, 'time', 0, durable._never())::text
    when p_type = 'random_generated' then (p_payload -> 'value')::text
    when p_type in ('open_step_completed', 'execution_completed') then (p_payload -> 'result')::text
    when p_type in ('open_step_failed', 'execution_failed') then (p_payload -> 'error')::text
    when p_type in ('cancel_requested', 'execution_cancelled') then (p_payload -> 'reason')::text
    when p_type in ('signal_delivered', 'signal_received') then (p_payload -> 'payload')::text
    when p_type = 'join_set_awaited' then (p_payload - 'join_set_id' - 'promise_id')::text
  end;
end
$$;
comment on function durable._data_in(durable.row_type, jsonb) is
  'The content of a payload, without ids and names, as JSON text: the data of the row, or data that is compared with it or stored elsewhere.';

create or replace function durable._event_in(p_id text, p_event text, p_payload jsonb)
returns durable._event language plpgsql stable
as $$
declare
  v_event durable._event;
begin
  select case when p_payload ->> 'kind' = 'External' and k.type = 'step_scheduled' then 'promise_registered'
              when p_payload ? 'error' and k.type = 'open_step_completed' then 'open_step_failed' else k.type end
  into v_event.type from durable._event_keys() k where k.event = p_event;
  if v_event.type in ('step_scheduled', 'promise_registered') then
    perform durable._check_invocation(p_payload);
  end if;
  v_event.name := coalesce(durable._text_in(p_payload, 'function_name', 256), durable._text_in(p_payload, 'signal_name', 256));
  v_event.child := case when p_payload ?| array['promise_id', 'join_set_id']
    then durable._child_in(p_id, coalesce(p_payload -> 'promise_id', p_payload -> 'join_set_id')) end;
  v_event.attempt := case
    when v_event.type in ('join_set_submitted', 'join_set_awaited') then durable._child_in(p_id, p_payload -> 'join_set_id')
    when v_event.type in ('signal_delivered', 'signal_received') then durable._whole_in(p_payload, 'delivery_id', 1, 2147483647)
    when v_event.type = 'open_attempt_failed' then durable._whole_in(p_payload, 'failed_attempt', 1, 1000000000)
    else durable._whole_in(p_payload, 'attempt', 1, 1000000000) end;
  v_event.data := durable._data_in(v_event.type, p_payload);
  return v_event;
end
$$;
comment on function durable._event_in(text, text, jsonb) is 'An event that a client sent, as the row that it will be. WF004.';

create or replace function durable._wait_in(p_id text, p_payload jsonb)
returns durable._ending language plpgsql stable
as $$
declare
  v_wait durable._ending;
  v_kind jsonb := p_payload -> 'kind';
begin
  if v_kind -> 'tag' in ('"Single"', '"Any"', '"All"', '"Signal"') is not true then
    perform durable._fail_invalid(format('A wait is of kind {"tag": "Single"}, Any, All or Signal, not %s.', v_kind));
  elsif jsonb_typeof(p_payload -> 'waiting_on') <> 'array' then
    perform durable._fail_invalid('waiting_on is a JSON array of ids of children.');
  end if;
  v_wait."do" := 'suspend';
  v_wait.kind := lower(v_kind ->> 'tag');
  v_wait."on" := array(select durable._child_in(p_id, c) from jsonb_array_elements(p_payload -> 'waiting_on') c order by 1);
  if v_wait.kind = 'signal' then
    v_wait.value := durable._text_in(v_kind, 'name', 256);
    if v_wait.value is null or p_payload -> 'waiting_on' <> jsonb_build_array(v_kind -> 'promise_id') then
      perform durable._fail_invalid('A Signal wait names the signal, and waits for its promise_id alone.');
    end if;
  end if;
  return v_wait;
end
$$;
comment on function durable._wait_in(text, jsonb) is 'The wait of an ExecutionAwaiting, its children in the order of their numbers. WF004.';
