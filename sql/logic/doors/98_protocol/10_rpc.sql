-- The protocol's envelope: one JSON request in, one JSON response out. JSON is read, dispatched and written here only;
-- operations and errors are defined in the files before. A request may have null for a field that it may leave out; an answer
-- leaves out the fields that it does not have.

create or replace function durable._read_text(p_data jsonb, p_name text, p_optional boolean default false)
returns text language plpgsql volatile
as $$
begin
  if p_optional and coalesce(jsonb_typeof(p_data -> p_name), 'null') = 'null' then
    return null;
  elsif jsonb_typeof(p_data -> p_name) is distinct from 'string' or p_data ->> p_name = '' then
    perform durable._fail_invalid(format('%s must be a string that is not empty.', p_name));
  end if;
  return p_data ->> p_name;
end
$$;
comment on function durable._read_text(jsonb, text, boolean) is 'A text of a request. WF004.';

create or replace function durable._read_choice(p_data jsonb, p_name text, p_choices text[])
returns text language plpgsql volatile
as $$
declare
  v_choice text := durable._read_text(p_data, p_name, true);
begin
  if v_choice <> all (p_choices) then
    perform durable._fail_invalid(format('%s must be one of %s, not %L.', p_name, array_to_string(p_choices, ', '), v_choice));
  end if;
  return v_choice;
end
$$;
comment on function durable._read_choice(jsonb, text, text[]) is 'One of some choices in a request, or null. WF004.';

create or replace function durable._read_integer(
  p_data jsonb, p_name text, p_least bigint default 0, p_most bigint default 9007199254740991, p_default bigint default null)
returns bigint language plpgsql volatile
as $$
declare
  v_number numeric;
begin
  if p_default is not null and coalesce(jsonb_typeof(p_data -> p_name), 'null') = 'null' then
    return p_default;
  end if;
  if jsonb_typeof(p_data -> p_name) = 'number' then
    v_number := (p_data ->> p_name)::numeric;
  end if;
  if v_number is null or v_number <> trunc(v_number) or v_number not between p_least and p_most then
    perform durable._fail_invalid(format('%s must be a whole number from %s to %s.', p_name, p_least, p_most));
  end if;
  return v_number::bigint;
end
$$;
comment on function durable._read_integer(jsonb, text, bigint, bigint, bigint) is
  'A whole number of a request; WF004 if it is missing and has no default.';

create or replace function durable._read_version(p_data jsonb)
returns integer language sql volatile
as $$ select least(durable._read_integer(p_data, 'version'), 2147483647)::integer $$;
comment on function durable._read_version(jsonb) is
  'The version of a task; a number that no task can have is kept, so that it matches none.';

create or replace function durable._read_strings(p_data jsonb, p_name text)
returns jsonb language plpgsql volatile
as $$
declare
  v_strings jsonb := p_data -> p_name;
begin
  if coalesce(jsonb_typeof(v_strings), 'null') = 'null' then
    return null;
  elsif jsonb_typeof(v_strings) <> 'object' then
    perform durable._fail_invalid(format('%s must be an object of strings.', p_name));
  elsif exists (select from jsonb_each(v_strings) e where jsonb_typeof(e.value) <> 'string') then
    perform durable._fail_invalid(format('Everything in %s must be a string.', p_name));
  end if;
  return v_strings;
end
$$;
comment on function durable._read_strings(jsonb, text) is 'Tags or headers of a request, or null. WF004.';

create or replace function durable._read_payload(p_data jsonb, p_name text, out headers jsonb, out data text)
returns record language plpgsql volatile
as $$
declare
  v_payload jsonb := p_data -> p_name;
begin
  if coalesce(jsonb_typeof(v_payload), 'null') = 'null' then
    return;
  elsif jsonb_typeof(v_payload) <> 'object' then
    perform durable._fail_invalid(format('%s must be an object with headers and data, or left out.', p_name));
  elsif coalesce(jsonb_typeof(v_payload -> 'data'), 'null') not in ('string', 'null') then
    perform durable._fail_invalid(format('data in %s must be a string.', p_name));
  end if;
  headers := durable._read_strings(v_payload, 'headers');
  data := v_payload ->> 'data';
end
$$;
comment on function durable._read_payload(jsonb, text) is 'Param or value of a request; nulls if it is missing. WF004.';

create or replace function durable._read_action(p_action jsonb, p_kinds text[])
returns jsonb language plpgsql volatile
as $$
begin
  if jsonb_typeof(p_action) is distinct from 'object' or jsonb_typeof(p_action -> 'data') is distinct from 'object'
     or coalesce(jsonb_typeof(p_action -> 'head'), 'object') <> 'object' then
    perform durable._fail_invalid('An action must be a request of its own: kind, head and data.');
  elsif jsonb_typeof(p_action -> 'kind') is distinct from 'string' or p_action ->> 'kind' <> all (p_kinds) then
    perform durable._fail_invalid(
      format('The kind of this action must be %s, not %s.', array_to_string(p_kinds, ' or '), p_action -> 'kind'));
  end if;
  return p_action -> 'data';
end
$$;
comment on function durable._read_action(jsonb, text[]) is
  'The data of a nested request of one of these kinds. Its head is ignored: version and identity are those of the outer request. WF004.';

create or replace function durable._wire_response(p_kind text, p_corr text, p_status integer, p_data jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_build_object('kind', p_kind, 'data', p_data,
    'head', jsonb_build_object('corrId', p_corr, 'status', p_status, 'version', '2026-04-01'))
$$;
comment on function durable._wire_response(text, text, integer, jsonb) is 'A response envelope.';

create or replace function durable._wire_payload(p_headers jsonb, p_data text)
returns jsonb language sql immutable
as $$
  select jsonb_strip_nulls(case
    when durable._is_plain(p_headers) then jsonb_build_object('data', durable._in_envelope(p_data))
    else jsonb_build_object('headers', p_headers, 'data', p_data) end)
$$;
comment on function durable._wire_payload(jsonb, text) is
  'A param or value on the wire: what the engine encoded in the envelope of the SDKs, anything else as it came.';

create or replace function durable._wire_promise(p_promise durable.promise_record)
returns jsonb language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'id', p_promise.id, 'state', p_promise.state, 'tags', p_promise.tags,
    'param', durable._wire_payload(p_promise.param_headers, p_promise.param_data),
    'value', durable._wire_payload(
      v.headers, case when p_promise.state <> 'resolved' and durable._is_plain(v.headers)
                      then durable._error_for_sdk(p_promise.value_data) else p_promise.value_data end),
    'timeoutAt', p_promise.timeout_at, 'createdAt', p_promise.created_at, 'settledAt', p_promise.settled_at))
  from (select coalesce(p_promise.value_headers, case when durable._is_plain(p_promise.param_headers)
                                                      then durable._plain_headers() end) as headers) v
$$;
comment on function durable._wire_promise(durable.promise_record) is
  'A promise on the wire. A value without headers is encoded as its param is.';

create or replace function durable.wire_promise(p_promise durable.promise_record)
returns jsonb language plpgsql immutable
as $$ begin return durable._wire_promise(p_promise); end $$;
comment on function durable.wire_promise(durable.promise_record) is
  'A promise as the protocol sends it: select durable.wire_promise(durable.promise_get(''order-42'')). Runs and values of the engine are in the envelope of the SDKs, base64 of JSON, and errors in their form; promises of clients are as they were written.';

create or replace function durable._wire_task(p_task durable.task_record)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_strip_nulls(jsonb_build_object('id', p_task.id, 'state', p_task.state, 'version', p_task.version,
    'resumes', p_task.resumes, 'ttl', p_task.ttl, 'pid', p_task.pid))
$$;
comment on function durable._wire_task(durable.task_record) is 'A task on the wire; resumes is a count.';

create or replace function durable._wire_schedule(p_schedule durable.schedule_record)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'id', p_schedule.id, 'cron', p_schedule.cron, 'timezone', nullif(p_schedule.timezone, 'UTC'),
    'promiseId', p_schedule.promise_id, 'promiseTimeout', p_schedule.promise_timeout,
    'promiseParam', durable._wire_payload(p_schedule.promise_param_headers, p_schedule.promise_param_data),
    'promiseTags', p_schedule.promise_tags, 'createdAt', p_schedule.created_at, 'nextRunAt', p_schedule.next_run_at,
    'lastRunAt', p_schedule.last_run_at))
$$;
comment on function durable._wire_schedule(durable.schedule_record) is
  'A schedule on the wire. The timezone is ours; UTC, the only one of the protocol, is left out.';

create or replace function durable._wire_preload(p_id text)
returns jsonb language plpgsql volatile
as $$
begin
  return (select coalesce(jsonb_agg(durable._wire_promise(r)), '[]') from durable.promise_preload(p_id) r);
end
$$;
comment on function durable._wire_preload(text) is 'The likely next reads of a worker: the other promises of its branch.';

create or replace function durable._wire_claim(p_task durable.task_record)
returns jsonb language plpgsql volatile
as $$
begin
  return jsonb_build_object('task', durable._wire_task(p_task), 'preload', durable._wire_preload(p_task.id),
    'promise', (select durable._wire_promise(durable._promise_record(p)) from durable._promises p where p.id = p_task.id));
end
$$;
comment on function durable._wire_claim(durable.task_record) is
  'A task that was just acquired, or found fulfilled, with its promise as it is stored: pending, or settled. promise_get could lock a promise after its task.';

create or replace function durable._rpc_promise_create(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_param record;
begin
  select * into v_param from durable._read_payload(p_data, 'param');
  return jsonb_build_object('promise', durable._wire_promise(durable.promise_create(
    durable._read_text(p_data, 'id'), durable._read_integer(p_data, 'timeoutAt'), v_param.data, v_param.headers,
    coalesce(durable._read_strings(p_data, 'tags'), '{}'))));
end
$$;
comment on function durable._rpc_promise_create(jsonb) is 'promise.create';

create or replace function durable._rpc_promise_settle(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_id text := durable._read_text(p_data, 'id');
  v_value record;
begin
  select * into v_value from durable._read_payload(p_data, 'value');
  if durable._read_text(p_data, 'state') = 'rejected_canceled' and durable._is_live_run(v_id) then
    perform durable._cancel_by_settling(v_id, v_value.data);
    return jsonb_build_object('promise', durable._wire_promise(durable.promise_get(v_id)));
  end if;
  return jsonb_build_object('promise', durable._wire_promise(durable.promise_settle(
    v_id, durable._read_text(p_data, 'state'), v_value.data, v_value.headers)));
end
$$;
comment on function durable._rpc_promise_settle(jsonb) is
  'promise.settle. To cancel a run of the engine is a request: the answer has the run as it is, pending while it cleans up.';

create or replace function durable._rpc_promise_search(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_state text := durable._read_choice(
    p_data, 'state', '{pending,resolved,rejected,rejected_canceled,rejected_timedout}');
  v_tags jsonb := coalesce(durable._read_strings(p_data, 'tags'), '{}');
  v_limit integer := durable._read_integer(p_data, 'limit', 1, 1000, 100);
  v_last text;
  v_found jsonb;
  v_bytes bigint;
begin
  select coalesce(jsonb_agg(durable._wire_promise(r.record) order by r.n) filter (where r.n <= v_limit), '[]'),
         max((r.record).id) filter (where r.n = v_limit and r.total > v_limit),
         sum(coalesce(octet_length((r.record).param_data), 0) + coalesce(octet_length((r.record).value_data), 0))
  into v_found, v_last, v_bytes
  from (
    select p::durable.promise_record as record, row_number() over (order by p.id collate "C") as n, count(*) over () as total
    from durable._search_promises(v_state, v_tags, v_limit + 1, durable._read_text(p_data, 'cursor', true), null,
                                  durable._page_bytes_max()) p) r;
  if v_last is null and v_bytes >= durable._page_bytes_max() then
    v_last := v_found #>> '{-1,id}';
    if not exists (select from durable._search_promises(v_state, v_tags, 1, v_last, null, null)) then
      v_last := null;
    end if;
  end if;
  return jsonb_strip_nulls(jsonb_build_object('promises', v_found, 'cursor', v_last));
end
$$;
comment on function durable._rpc_promise_search(jsonb) is 'promise.search. A cursor is given only if another page follows. A page ends with fewer promises than its limit if they are large.';

create or replace function durable._rpc_task_create(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_action jsonb := durable._read_action(p_data -> 'action', '{promise.create}');
  v_param record;
begin
  select * into v_param from durable._read_payload(v_action, 'param');
  return durable._wire_claim(durable.task_create(
    durable._read_text(v_action, 'id'), durable._read_integer(v_action, 'timeoutAt'), durable._read_text(p_data, 'pid'),
    durable._read_integer(p_data, 'ttl', 1), v_param.data, v_param.headers,
    coalesce(durable._read_strings(v_action, 'tags'), '{}')));
end
$$;
comment on function durable._rpc_task_create(jsonb) is 'task.create';

create or replace function durable._rpc_task_acquire(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
begin
  return durable._wire_claim(durable.task_acquire(
    durable._read_text(p_data, 'id'), durable._read_version(p_data), durable._read_text(p_data, 'pid'),
    durable._read_integer(p_data, 'ttl', 1)));
end
$$;
comment on function durable._rpc_task_acquire(jsonb) is 'task.acquire';

create or replace function durable._rpc_task_suspend(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_id text := durable._read_text(p_data, 'id');
  v_version integer := durable._read_version(p_data);
  v_action jsonb;
  v_awaited text[] := '{}';
begin
  if jsonb_typeof(p_data -> 'actions') is distinct from 'array' then
    perform durable._fail_invalid('actions must be an array.');
  end if;
  for v_action in select e.value from jsonb_array_elements(p_data -> 'actions') as e (value) loop
    v_action := durable._read_action(v_action, '{promise.register_callback}');
    if durable._read_text(v_action, 'awaiter') <> v_id then
      perform durable._fail_invalid(format('Task %L can suspend itself only, not %L.', v_id, v_action ->> 'awaiter'));
    end if;
    v_awaited := v_awaited || durable._read_text(v_action, 'awaited');
  end loop;
  if durable.task_suspend(v_id, v_version, v_awaited) then
    return '{}';
  end if;
  return jsonb_build_object('preload', durable._wire_preload(v_id));
end
$$;
comment on function durable._rpc_task_suspend(jsonb) is
  'task.suspend. An answer with a preload means 300: do not suspend, continue.';

create or replace function durable._rpc_task_fulfill(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_id text := durable._read_text(p_data, 'id');
  v_version integer := durable._read_version(p_data);
  v_action jsonb := durable._read_action(p_data -> 'action', '{promise.settle}');
  v_value record;
begin
  if durable._read_text(v_action, 'id') <> v_id then
    perform durable._fail_invalid(format('Task %L fulfils its own promise, not %L.', v_id, v_action ->> 'id'));
  end if;
  select * into v_value from durable._read_payload(v_action, 'value');
  return jsonb_build_object('promise', durable._wire_promise(durable.task_fulfill(
    v_id, v_version, durable._read_text(v_action, 'state'), v_value.data, v_value.headers)));
end
$$;
comment on function durable._rpc_task_fulfill(jsonb) is 'task.fulfill';

create or replace function durable._fence_create(p_id text, p_version integer, p_action jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_param record;
begin
  select * into v_param from durable._read_payload(p_action, 'param');
  return jsonb_build_object('promise', durable._wire_promise(durable.task_fence_create(
    p_id, p_version, durable._read_text(p_action, 'id'), durable._read_integer(p_action, 'timeoutAt'), v_param.data,
    v_param.headers, coalesce(durable._read_strings(p_action, 'tags'), '{}'))));
end
$$;
comment on function durable._fence_create(text, integer, jsonb) is 'A promise.create inside a task.fence.';

create or replace function durable._fence_settle(p_id text, p_version integer, p_action jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_promise text := durable._read_text(p_action, 'id');
  v_state text := durable._read_text(p_action, 'state');
  v_value record;
begin
  select * into v_value from durable._read_payload(p_action, 'value');
  perform durable._check_verdict(v_promise, v_state, v_value.data);
  if v_promise <> p_id and not exists (select from durable._promises p where p.id = v_promise)
     and (durable._step_record(v_promise)).id is null then
    perform durable._lock_tasks(array[p_id]);
    perform durable._check_lease(p_id, p_version, durable._now_ms());
    return null;
  end if;
  return jsonb_build_object('promise', durable._wire_promise(durable.task_fence_settle(
    p_id, p_version, v_promise, v_state, v_value.data, v_value.headers)));
end
$$;
comment on function durable._fence_settle(text, integer, jsonb) is
  'A promise.settle inside a task.fence; null if there is no such promise, which is reported only with the lease.';

create or replace function durable._fence(p_id text, p_version integer, p_kind text, p_inner jsonb)
returns jsonb language plpgsql volatile
as $$
begin
  if p_kind = 'promise.create' then
    return durable._fence_create(p_id, p_version, p_inner);
  end if;
  return durable._fence_settle(p_id, p_version, p_inner);
end
$$;
comment on function durable._fence(text, integer, text, jsonb) is
  'The inner request of a task.fence: its data, or null for a promise that does not exist.';

create or replace function durable._fence_strictly(p_id text, p_version integer, p_kind text, p_inner jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_message text;
begin
  return durable._fence(p_id, p_version, p_kind, p_inner);
exception when sqlstate 'WF004' then
  get stacked diagnostics v_message = message_text;
  if p_inner ->> 'id' = p_id then
    raise;
  end if;
  perform durable._lock_tasks(array[p_id]);
  perform durable._check_lease(p_id, p_version, durable._now_ms());
  return to_jsonb(v_message);
end
$$;
comment on function durable._fence_strictly(text, integer, text, jsonb) is
  'The same in the strict profile: a malformed inner request is reported only while the lease is held, as a text. A fence about the task''s own promise is refused first.';

create or replace function durable._rpc_task_fence(p_data jsonb, p_corr text)
returns jsonb language plpgsql volatile
as $$
declare
  v_id text := durable._read_text(p_data, 'id');
  v_version integer := durable._read_version(p_data);
  v_action jsonb := p_data -> 'action';
  v_inner jsonb := durable._read_action(v_action, '{promise.create,promise.settle}');
  v_answer jsonb;
begin
  if durable._strict() then
    v_answer := durable._fence_strictly(v_id, v_version, v_action ->> 'kind', v_inner);
  else
    v_answer := durable._fence(v_id, v_version, v_action ->> 'kind', v_inner);
  end if;
  return jsonb_build_object('preload', '[]'::jsonb, 'action', durable._wire_response(
    v_action ->> 'kind', coalesce(v_action #>> '{head,corrId}', p_corr),
    case jsonb_typeof(v_answer) when 'object' then 200 when 'string' then 400 else 404 end,
    coalesce(v_answer, to_jsonb(format('There is no promise %L.', v_inner ->> 'id')))));
end
$$;
comment on function durable._rpc_task_fence(jsonb, text) is
  'task.fence. The answer of the inner request is part of the answer; the status says whether the fence let the request pass. Its preload is empty: that of the acquire is enough, and one in each answer would cost the square of a fan-out.';

create or replace function durable._rpc_task_heartbeat(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_task jsonb;
  v_ids text[] := '{}';
  v_versions integer[] := '{}';
begin
  if jsonb_typeof(p_data -> 'tasks') is distinct from 'array' then
    perform durable._fail_invalid('tasks must be an array.');
  end if;
  for v_task in select e.value from jsonb_array_elements(p_data -> 'tasks') as e (value) loop
    v_ids := v_ids || durable._read_text(v_task, 'id');
    v_versions := v_versions || durable._read_version(v_task);
  end loop;
  perform durable.task_heartbeat(
    durable._read_text(p_data, 'pid'), v_ids, v_versions, durable._read_text(p_data, 'prefix', true));
  return '{}';
end
$$;
comment on function durable._rpc_task_heartbeat(jsonb) is
  'task.heartbeat. A gateway adds the prefix of the token, because a heartbeat may leave out the names of its tasks.';

create or replace function durable._rpc_task_search(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_state text := durable._read_choice(p_data, 'state', '{pending,acquired,suspended,halted,fulfilled}');
  v_limit integer := durable._read_integer(p_data, 'limit', 1, 1000, 100);
  v_last text;
  v_found jsonb;
begin
  select coalesce(jsonb_agg(durable._wire_task(r.record) order by r.n) filter (where r.n <= v_limit), '[]'),
         max((r.record).id) filter (where r.n = v_limit and r.total > v_limit) into v_found, v_last
  from (
    select t::durable.task_record as record, row_number() over (order by t.id collate "C") as n, count(*) over () as total
    from durable._search_tasks(v_state, v_limit + 1, durable._read_text(p_data, 'cursor', true)) t) r;
  return jsonb_strip_nulls(jsonb_build_object('tasks', v_found, 'cursor', v_last));
end
$$;
comment on function durable._rpc_task_search(jsonb) is 'task.search';

create or replace function durable._rpc_schedule_create(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_param record;
begin
  select * into v_param from durable._read_payload(p_data, 'promiseParam');
  return jsonb_build_object('schedule', durable._wire_schedule(durable.schedule_create(
    durable._read_text(p_data, 'id'), durable._read_text(p_data, 'cron'), durable._read_text(p_data, 'promiseId'),
    durable._read_integer(p_data, 'promiseTimeout'), v_param.data, v_param.headers,
    coalesce(durable._read_strings(p_data, 'promiseTags'), '{}'),
    coalesce(durable._read_text(p_data, 'timezone', true), 'UTC'))));
end
$$;
comment on function durable._rpc_schedule_create(jsonb) is 'schedule.create';

create or replace function durable._rpc_schedule_search(p_data jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_tags jsonb := coalesce(durable._read_strings(p_data, 'tags'), '{}');
  v_limit integer := durable._read_integer(p_data, 'limit', 1, 1000, 10);
  v_last text;
  v_found jsonb;
begin
  select coalesce(jsonb_agg(durable._wire_schedule(x.found) order by x.id), '[]'), max(x.id) into v_found, v_last
  from (
    select r::durable.schedule_record as found, r.id collate "C" as id,
           sum(octet_length(r.promise_param_data)) over (
             order by r.id collate "C" rows between unbounded preceding and 1 preceding) as before
    from durable.schedule_search(v_tags, v_limit, durable._read_text(p_data, 'cursor', true)) r) x
  where x.before is null or x.before < durable._page_bytes_max();
  if not exists (select from durable.schedule_search(v_tags, 1, v_last)) then
    v_last := null;
  end if;
  return jsonb_strip_nulls(jsonb_build_object('schedules', v_found, 'cursor', v_last));
end
$$;
comment on function durable._rpc_schedule_search(jsonb) is 'schedule.search. A page ends with fewer schedules than its limit if their parameters are large.';

create or replace function durable._debug(p_request jsonb)
returns jsonb language plpgsql volatile
as $$
begin
  perform durable._fail_forbidden(format('%s is switched off here.', p_request ->> 'kind'));
  return null;
end
$$;
comment on function durable._debug(jsonb) is
  'Debug operations. This function raises WF011; sql/debug, which only a test installation has, replaces it.';

create or replace function durable._debug_time(p_head jsonb)
returns bigint language sql immutable parallel safe
as $$ select null::bigint $$;
comment on function durable._debug_time(jsonb) is
  'The instant as of which a request asks to be handled. This function ignores resonate:debug_time; sql/debug replaces it.';

create or replace function durable._rpc_operation(p_kind text, p_data jsonb, p_request jsonb)
returns jsonb language plpgsql volatile
as $$
begin
  case p_kind
    when 'promise.create' then return durable._rpc_promise_create(p_data);
    when 'promise.settle' then return durable._rpc_promise_settle(p_data);
    when 'promise.get' then
      return jsonb_build_object('promise', durable._wire_promise(durable.promise_get(durable._read_text(p_data, 'id'))));
    when 'promise.register_callback' then
      return jsonb_build_object('promise', durable._wire_promise(durable.promise_register_callback(
        durable._read_text(p_data, 'awaited'), durable._read_text(p_data, 'awaiter'))));
    when 'promise.register_listener' then
      return jsonb_build_object('promise', durable._wire_promise(durable.promise_register_listener(
        durable._read_text(p_data, 'awaited'), durable._read_text(p_data, 'address'))));
    when 'task.acquire' then return durable._rpc_task_acquire(p_data);
    when 'task.fence' then return durable._rpc_task_fence(p_data, p_request #>> '{head,corrId}');
    when 'task.heartbeat' then return durable._rpc_task_heartbeat(p_data);
    when 'task.suspend' then return durable._rpc_task_suspend(p_data);
    when 'task.fulfill' then return durable._rpc_task_fulfill(p_data);
    when 'task.create' then return durable._rpc_task_create(p_data);
    when 'task.release' then
      perform durable.task_release(durable._read_text(p_data, 'id'), durable._read_version(p_data));
    when 'task.get' then
      return jsonb_build_object('task', durable._wire_task(durable.task_get(durable._read_text(p_data, 'id'))));
    when 'task.halt' then perform durable.task_halt(durable._read_text(p_data, 'id'));
    when 'task.continue' then perform durable.task_continue(durable._read_text(p_data, 'id'));
    when 'promise.search' then return durable._rpc_promise_search(p_data);
    when 'task.search' then return durable._rpc_task_search(p_data);
    when 'schedule.get' then
      return jsonb_build_object('schedule', durable._wire_schedule(durable.schedule_get(durable._read_text(p_data, 'id'))));
    when 'schedule.create' then return durable._rpc_schedule_create(p_data);
    when 'schedule.delete' then perform durable.schedule_delete(durable._read_text(p_data, 'id'));
    when 'schedule.search' then return durable._rpc_schedule_search(p_data);
    when 'debug.start', 'debug.stop', 'debug.reset', 'debug.tick', 'debug.snap' then return durable._debug(p_request);
    else perform durable._fail_invalid(format('There is no operation %L.', p_kind));
  end case;
  return '{}';
end
$$;
comment on function durable._rpc_operation(text, jsonb, jsonb) is 'The list of operations; the commonest first.';

create or replace function durable._read_envelope(p_request jsonb)
returns void language plpgsql volatile
as $$
begin
  if jsonb_typeof(p_request) is distinct from 'object' or jsonb_typeof(p_request -> 'head') is distinct from 'object' then
    perform durable._fail_invalid('A request is an object of kind, head and data, and its head is an object.');
  end if;
  perform durable._read_text(p_request, 'kind');
  if jsonb_typeof(p_request #> '{head,corrId}') is distinct from 'string' then
    perform durable._fail_invalid('head.corrId must be a string.');
  elsif p_request #> '{head,version}' is distinct from '"2026-04-01"' then
    perform durable._fail_invalid(
      format('head.version must be "2026-04-01", not %s.', coalesce(p_request #>> '{head,version}', 'left out')));
  elsif jsonb_typeof(p_request -> 'data') is distinct from 'object' then
    perform durable._fail_invalid('data must be an object.');
  end if;
end
$$;
comment on function durable._read_envelope(jsonb) is 'Checks the fields that all requests have. WF004.';

create or replace function durable.rpc(p_request jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_kind text := case when jsonb_typeof(p_request -> 'kind') = 'string' then nullif(p_request ->> 'kind', '') end;
  v_corr text := case when jsonb_typeof(p_request #> '{head,corrId}') = 'string' then p_request #>> '{head,corrId}' end;
  v_status integer := 200;
  v_data jsonb;
  v_time bigint;
  v_before text;
  v_code text;
  v_message text;
begin
  begin
    perform durable._read_envelope(p_request);
    v_time := durable._debug_time(p_request -> 'head');
    if v_time is not null then
      v_before := current_setting('durable.now_ms', true);
      perform set_config('durable.now_ms', v_time::text, true);
    end if;
    v_data := durable._rpc_operation(v_kind, p_request -> 'data', p_request);
    if v_time is not null then
      perform set_config('durable.now_ms', coalesce(v_before, ''), true);
    end if;
    if v_kind = 'task.suspend' and v_data ? 'preload' then
      v_status := 300;
    end if;
  exception when others then
    get stacked diagnostics v_code = returned_sqlstate, v_message = message_text;
    v_status := (select e.status from durable.error_codes() e where e.code = v_code);
    if v_status is null then
      raise;
    end if;
    v_data := to_jsonb(v_message);
  end;
  return durable._wire_response(coalesce(v_kind, 'unknown'), coalesce(v_corr, '0'), v_status, v_data);
end
$$;
comment on function durable.rpc(jsonb) is
  'The protocol in one function: {kind, head{corrId, version}, data} in, {kind, head{corrId, status, version}, data} out. A refusal is an answer with a status of 400 or more and a text. A fault of the database itself (a deadlock, a serialization failure) is raised, so that the whole call is repeated.';
