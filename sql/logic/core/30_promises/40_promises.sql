-- Operations on promises: those of the protocol, and the short verbs for people. The only tie to tasks here: a targeted promise
-- is created with one.

create or replace function durable._promise_record(p_promise durable._promises)
returns durable.promise_record language sql immutable
as $$
  select row(p_promise.id, p_promise.state, p_promise.param_headers, p_promise.param_data,
             case when p_promise.head is null or p_promise.value_data is null or durable._is_plain(p_promise.param_headers)
                  then p_promise.value_headers else coalesce(p_promise.value_headers, durable._plain_headers()) end,
             p_promise.value_data,
             case when p_promise.target is null or p_promise.tags ? 'resonate:target' then p_promise.tags
                  else p_promise.tags || jsonb_build_object('resonate:target', p_promise.target) end,
             p_promise.timeout_at, p_promise.created_at, p_promise.settled_at)::durable.promise_record
$$;
comment on function durable._promise_record(durable._promises) is
  'A stored promise as clients see it. The result of a run is encoded by the engine, whoever wrote its param.';

create or replace function durable._step_record(p_id text)
returns durable.promise_record language sql stable
as $$
  select row(p_id,
             case when j.type is null then 'pending' when durable._holds_result(j.type) then 'resolved' else 'rejected' end,
             null, null, null, durable._data(j), '{}'::jsonb, durable._never(), i.ts, j.ts)::durable.promise_record
  from durable._promises p
  join durable._executions h on h.execution = p.head
  join durable._journal i on i.bucket = h.bucket and i.execution = h.execution
       and i.child = substring(p_id from E'\\.([0-9]{1,9})$')::integer and durable._schedules_step(i.type)
  left join durable._journal j on j.bucket = h.bucket and j.execution = h.execution and j.child = i.child
       and durable._completes_step(j.type)
  where p.id = substring(p_id from E'^(.*)\\.[0-9]{1,9}$')
$$;
comment on function durable._step_record(text) is
  'A local step in the form of a promise, read from its journal rows: a local step has no row in _promises.';

create or replace function durable._expire(p_ids text[])
returns void language plpgsql volatile
as $$
declare
  v_count integer := cardinality(p_ids);
begin
  perform durable._lock_settlement(p_ids);
  perform durable._settle(p_ids, array_fill(null::text, array[v_count]), array_fill(null::jsonb, array[v_count]),
                          array_fill(null::text, array[v_count]), durable._now_ms());
end
$$;
comment on function durable._expire(text[]) is 'Settles promises that are past their deadline, before they are reported.';

create or replace function durable.promise_get(p_id text)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_promise durable._promises;
  v_record durable.promise_record;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  if not found then
    v_record := durable._step_record(p_id);
    if v_record.id is null then
      perform durable._fail_not_found('promise', p_id);
    end if;
    return v_record;
  end if;
  if v_promise.state = 'pending' and v_promise.timeout_at <= durable._now_ms() then
    perform durable._expire(array[p_id]);
    select * into v_promise from durable._promises p where p.id = p_id;
  end if;
  return durable._promise_record(v_promise);
end
$$;
comment on function durable.promise_get(text) is
  'The promise as it is now. One found past its deadline is settled first, so that "timed out" is always a stored fact. WF001 if there is none.';

create or replace function durable._within(p_id text, p_name text)
returns boolean language sql immutable parallel safe
as $$ select p_id = p_name or starts_with(p_id, p_name || ':') or starts_with(p_id, p_name || '.') $$;
comment on function durable._within(text, text) is
  'An id belongs to a name if it is the name, or the name followed by a colon or a dot. SDKs write root:1.2, older ones root.1.2.';

create or replace function durable._in_its_tree(p_id text, p_tags jsonb)
returns boolean language sql immutable parallel safe
as $$
  select coalesce(durable._within(p_id, p_tags ->> 'resonate:origin'), true)
         and coalesce(durable._within(p_id, p_tags ->> 'resonate:branch'), true)
         and (coalesce(durable._within(p_id, p_tags ->> 'resonate:parent'), true)
              or p_id is not distinct from p_tags ->> 'resonate:origin')
$$;
comment on function durable._in_its_tree(text, jsonb) is
  'An id belongs to the origin, the branch and the parent of its tags. An origin may have any parent: a detached call names its caller.';

create or replace function durable._is_of_calls(p_id text)
returns boolean language sql immutable parallel safe
as $$ select p_id ~ '^(call|claim):[0-9a-f]{64}$' $$;
comment on function durable._is_of_calls(text) is
  'An id of an attempt or a claim. Everybody can compute the key in it, so only the engine makes promises with such ids; else a stranger could take the next one and stop the call.';

create or replace function durable._check_promise(p_id text, p_timeout_at bigint, p_param_data text, p_tags jsonb)
returns void language plpgsql stable
as $$
begin
  if p_id is null or octet_length(p_id) not between 1 and 512 then
    perform durable._fail_invalid(
      format('A promise id has 1 to 512 bytes, this one has %s.', coalesce(octet_length(p_id), 0)));
  elsif durable._is_of_calls(p_id) then
    perform durable._fail_invalid(format('Id %L is reserved to the calls of the engine.', p_id), 'Use another id.');
  elsif p_timeout_at is null or p_timeout_at not between 0 and durable._never() then
    perform durable._fail_invalid(format('Promise %L: timeout_at must be between 0 and 2^53 - 1 ms.', p_id));
  elsif p_tags is null or jsonb_typeof(p_tags) <> 'object' then
    perform durable._fail_invalid(format('Promise %L: tags must be a JSON object of strings.', p_id));
  end if;
  perform durable._check_tags_size(format('promise %L', p_id), p_tags);
  if exists (select from jsonb_each(p_tags) e where jsonb_typeof(e.value) <> 'string') then
    perform durable._fail_invalid(format('Promise %L: every tag must be a string.', p_id));
  elsif p_tags ? 'resonate:target' and durable._canonical_address(p_tags ->> 'resonate:target') is null then
    perform durable._fail_invalid(format('Promise %L: target %L cannot be routed.', p_id, p_tags ->> 'resonate:target'),
                                  'Use poll://any@group, poll://uni@group/id or http(s)://host/path.');
  elsif p_tags ? 'resonate:target' and p_tags ->> 'resonate:timer' = 'true' and durable._strict() then
    perform durable._fail_invalid(format('Promise %L: a timer has no target.', p_id));
  elsif p_tags ? 'resonate:delay' and (not p_tags ? 'resonate:target' or p_tags ->> 'resonate:delay' !~ '^[0-9]{1,16}$'
                                       or (p_tags ->> 'resonate:delay')::bigint >= p_timeout_at) then
    perform durable._fail_invalid(
      format('Promise %L: resonate:delay is an instant in ms before the timeout, with a target.', p_id));
  elsif not durable._in_its_tree(p_id, p_tags) then
    perform durable._fail_invalid(
      format('Promise %L: its id begins with the origin, the branch and the parent that its tags name.', p_id),
      'An id goes on with a colon or a dot behind each of them, or is the same.');
  -- a call of a run that is no run itself has ids below it for whoever works on it
  elsif (select p.head is not null from durable._promises p where p.id = any (durable._ancestors(p_id))
         order by octet_length(p.id) desc limit 1) then
    perform durable._fail_invalid(format('Id %L is reserved to the run it would be a descendant of.', p_id));
  end if;
  perform durable._check_payload(format('Parameter of promise %L', p_id), p_param_data);
end
$$;
comment on function durable._check_promise(text, bigint, text, jsonb) is
  'Checks the arguments of a creation before any state is read. WF004, WF008.';

create or replace function durable._create_task(
  p_id text, p_deadline bigint, p_target text, p_delay_until bigint, p_pid text, p_ttl bigint, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if p_pid is not null then
    insert into durable._tasks (id, deadline, queue, state, version, pid, ttl, expires_at, acquired_at, attempt, attempt_open)
    values (p_id, p_deadline, durable._queue_of(p_target), 'acquired', 1, p_pid, p_ttl, p_now + p_ttl, p_now, 1, true);
    return;
  end if;
  insert into durable._tasks (id, deadline, retry_at, queue, preference, prefer_until)
  select p_id, p_deadline, greatest(p_delay_until, p_now), durable._queue_of(p_target), x.preference,
         durable._prefer_until(x.preference, p_now)
  from (select durable._preference_of(p_target) as preference) x;
  perform durable._hint('durable_ready', p_now);
end
$$;
comment on function durable._create_task(text, bigint, text, bigint, text, bigint, bigint) is
  'The task of a new free-standing promise: pending from p_delay_until on, or born acquired by p_pid.';

create or replace function durable._not_before(p_timeout_at bigint, p_tags jsonb)
returns bigint language sql immutable parallel safe
as $$
  select case when p_tags ->> 'resonate:timer' = 'true' then p_timeout_at else (p_tags ->> 'resonate:delay')::bigint end
$$;
comment on function durable._not_before(bigint, jsonb) is
  'Instant before which no worker gets the task, or null. The task that SDKs give a timer is never offered: a timer resolves by its deadline, and no worker could run it.';

create or replace function durable._insert_promise(p_new durable._new_promise, p_pid text, p_ttl bigint, p_now bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_target text := durable._canonical_address(p_new.tags ->> 'resonate:target');
  v_timer boolean := coalesce(p_new.tags ->> 'resonate:timer' = 'true', false);
  v_dead boolean := p_new.timeout_at <= p_now;
begin
  perform durable._adopt_idle_copy();
  insert into durable._promises (id, state, timeout_at, created_at, settled_at, timer, external, target, task_version,
                                 param_headers, param_data, tags, ikey_create)
  select p_new.id, case when not v_dead then 'pending' when v_timer then 'resolved' else 'rejected_timedout' end,
          p_new.timeout_at, least(p_now, p_new.timeout_at), case when v_dead then p_new.timeout_at end, v_timer,
          v_timer or v_target is not null or coalesce(p_new.tags ->> 'resonate:external' = 'true', false),
          v_target, case when v_dead and v_target is not null then 0 end, p_new.param_headers, p_new.param_data,
          p_new.tags, p_new.key
  where not exists (select from durable._removed r where r.id = p_new.id)
  on conflict do nothing;
  if not found then
    perform durable._check_removed(array[p_new.id]);
    return false;
  end if;
  if not v_dead and v_target is not null then
    perform durable._create_task(p_new.id, p_new.timeout_at, v_target, durable._not_before(p_new.timeout_at, p_new.tags),
                                 p_pid, p_ttl, p_now);
    perform durable._make_runs(array[p_new.id], p_now) where p_pid is null;
  end if;
  return true;
end
$$;
comment on function durable._insert_promise(durable._new_promise, text, bigint, bigint) is
  'Creates a free-standing promise as of p_now, with its task, unless the id is taken; waits for a concurrent creator of the id.';

create or replace function durable._create_promise(
  p_new durable._new_promise, p_pid text default null, p_ttl bigint default null)
returns boolean language plpgsql volatile
as $$
begin
  perform durable._lock_family(p_new.id, (durable._published_for(
    durable._queue_of(durable._canonical_address(p_new.tags ->> 'resonate:target')), p_new.param_headers, p_new.param_data)
    ).name is not null);
  perform durable._check_promise(p_new.id, p_new.timeout_at, p_new.param_data, p_new.tags);
  return durable._insert_promise(p_new, p_pid, p_ttl, durable._now_ms());
end
$$;
comment on function durable._create_promise(durable._new_promise, text, bigint) is
  'Checks and inserts a free-standing promise; true if it was created now. With p_pid its task is acquired from birth; otherwise a call of a published workflow becomes a run.';

create or replace function durable._stored_promise(p_id text)
returns durable.promise_record language plpgsql stable
as $$
declare
  v_promise durable._promises;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  return durable._promise_record(v_promise);
end
$$;
comment on function durable._stored_promise(text) is
  'The stored row as it is, for operations that have read the clock: a second reading could show a deadline that they did not see.';

create or replace function durable.promise_create(
  p_id text, p_timeout_at bigint, p_param_data text default null, p_param_headers jsonb default null,
  p_tags jsonb default '{}')
returns durable.promise_record language plpgsql volatile
as $$
begin
  if durable._create_promise((p_id, p_timeout_at, p_param_data, p_param_headers, p_tags, null)::durable._new_promise) then
    return durable._stored_promise(p_id);
  end if;
  return durable.promise_get(p_id);
end
$$;
comment on function durable.promise_create(text, bigint, text, jsonb, jsonb) is
  'Creates a free-standing promise, or returns the one that has this id, unchanged. With the tag resonate:target it gets a task. A timeout in the past makes it settled at birth. WF004, WF008.';

create or replace function durable._check_verdict(p_id text, p_state text, p_value_data text)
returns void language plpgsql stable
as $$
begin
  if p_id is null or p_id = '' then
    perform durable._fail_invalid('A promise id is not empty.');
  elsif p_state is null or p_state not in ('resolved', 'rejected', 'rejected_canceled') then
    perform durable._fail_invalid(format('A promise is settled resolved, rejected or rejected_canceled, not %L.', p_state));
  end if;
  perform durable._check_payload(format('Value of promise %L', p_id), p_value_data);
end
$$;
comment on function durable._check_verdict(text, text, text) is
  'Checks the arguments of a settlement before any state is read. WF004, WF008.';

create or replace function durable._answer_fault(p_id text, p_state text, p_value_data text, p_value_headers jsonb)
returns text language plpgsql stable
as $$
declare
  v_type text;
  v_value text;
begin
  if p_state <> 'resolved' then
    return null;
  end if;
  select p.param_headers ->> 'durable:type' into v_type
  from durable._promises p where p.id = p_id and p.state = 'pending' and p.execution is not null;
  if v_type is null then
    return null;
  end if;
  v_value := coalesce(case when durable._is_plain(p_value_headers) then p_value_data
                           else durable._from_envelope(p_value_data) end, 'null');
  return durable._schema_fault(durable._json(v_type), v_value::json);
exception when invalid_text_representation then
  -- a text of another codec
  return durable._schema_fault(durable._json(v_type), to_json(v_value));
end
$$;
comment on function durable._answer_fault(text, text, text, jsonb) is
  'Why a value is no answer to a promise whose run declared a type: the end of a sentence, as _schema_fault; null if it may be one, or the promise is settled already.';

create or replace function durable._check_answer(p_id text, p_state text, p_value_data text, p_value_headers jsonb)
returns void language plpgsql stable
as $$
declare
  v_fault text := durable._answer_fault(p_id, p_state, p_value_data, p_value_headers);
begin
  if v_fault is not null then
    perform durable._fail_invalid(format('The answer to promise %L %s.', p_id, v_fault),
                                  'The code that waits for it declares that type.');
  end if;
end
$$;
comment on function durable._check_answer(text, text, text, jsonb) is
  'Refuses an answer of another JSON type than the run that waits has declared, and an object that lacks a key: WF004.';

create or replace function durable._is_live_run(p_id text)
returns boolean language plpgsql volatile
as $$
begin
  return exists (select from durable._promises p
                 where p.id = p_id and p.head is not null and p.state = 'pending' and p.timeout_at > durable._now_ms());
end
$$;
comment on function durable._is_live_run(text) is
  'True for a run that has not ended: its own code ends it, or a cancellation, not a settlement from outside.';

create or replace function durable._check_no_live_run(p_id text)
returns void language plpgsql volatile
as $$
begin
  if durable._is_live_run(p_id) then
    perform durable._fail_conflict(format('%L is a run: its own code ends it.', p_id), format('select durable.cancel(%L)', p_id));
  end if;
end
$$;
comment on function durable._check_no_live_run(text) is 'Refuses the settlement of a run from outside: WF003.';

create or replace function durable._settle_one(
  p_id text, p_state text, p_value_data text, p_value_headers jsonb, p_now bigint)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_record durable.promise_record;
begin
  if durable._settle(array[p_id], array[p_state], array[p_value_headers], array[p_value_data], p_now) <> '{}' then
    perform durable._hint('durable_ready', p_now);
  end if;
  perform durable._hint('durable_settled', p_now);
  v_record := durable.promise_get(p_id);
  if v_record.state = 'pending' then
    perform durable._fail_conflict(format('%L is a step of run %L; its worker completes it.', p_id,
                                          substring(p_id from E'^(.*)\\.[0-9]{1,9}$')),
                                   'Make it a promise in the code, or send the run a signal, if somebody outside is to decide.');
  end if;
  return v_record;
end
$$;
comment on function durable._settle_one(text, text, text, jsonb, bigint) is
  'Settles one promise under locks that the caller holds, and sends hints. Afterwards the promise is settled, so its record needs no clock. A step of a run that is still open cannot be settled: WF003, because the verdict would be lost.';

create or replace function durable._settle_promise(p_id text, p_state text, p_value_data text, p_value_headers jsonb)
returns durable.promise_record language plpgsql volatile
as $$
begin
  perform durable._lock_settlement(array[p_id]);
  return durable._settle_one(p_id, p_state, p_value_data, p_value_headers, durable._now_ms());
end
$$;
comment on function durable._settle_promise(text, text, text, jsonb) is
  'Locks and settles one promise, a run too, whose end its caller decides.';

create or replace function durable.promise_settle(
  p_id text, p_state text, p_value_data text default null, p_value_headers jsonb default null)
returns durable.promise_record language plpgsql volatile
as $$
begin
  perform durable._check_verdict(p_id, p_state, p_value_data);
  perform durable._check_no_live_run(p_id);
  perform durable._check_answer(p_id, p_state, p_value_data, p_value_headers);
  return durable._settle_promise(p_id, p_state, p_value_data, p_value_headers);
end
$$;
comment on function durable.promise_settle(text, text, text, jsonb) is
  'Settles a pending promise and runs the settlement chain. One that is settled already, or past its deadline, is returned as it is: read its state. WF001, WF003 it is a run that has not ended, or a step that a worker completes, WF004, WF008.';

create or replace function durable.create_promise(id text, timeout interval default null, tags jsonb default '{}')
returns text language plpgsql volatile
as $$
begin
  if $2 <= interval '0' then
    perform durable._fail_invalid(format('Promise %L: a timeout is more than 0.', $1));
  elsif jsonb_typeof($3) is distinct from 'object' then
    perform durable._fail_invalid(format('Promise %L: tags must be a JSON object of strings.', $1));
  end if;
  perform durable.promise_create($1, durable._later(durable._now_ms(), durable._ms($2)),
                                 p_tags => '{"resonate:external": "true"}'::jsonb || $3);
  if exists (select from durable._promises p where p.id = $1 and p.head is not null) then
    perform durable._fail_conflict(format('Id %L belongs to a run.', $1), 'Use another id.');
  end if;
  return $1;
end
$$;
comment on function durable.create_promise(text, interval, jsonb) is
  'For people: creates a promise that durable.resolve or durable.reject settles and for which a run may wait. The same id again is the same promise, unchanged. Two of these in one transaction hold the first id while they wait for the second, so two transactions that cross deadlock (40P01): create promises in the order of their ids. WF003 the id is a run''s, WF004.';

create or replace function durable._settle_once(p_id text, p_state text, p_value jsonb)
returns text language plpgsql volatile
as $$
declare
  v_record durable.promise_record;
begin
  v_record := durable.promise_settle(p_id, p_state, p_value::text, durable._plain_headers());
  if v_record.state <> p_state or durable._decoded(v_record.value_data) is distinct from p_value then
    perform durable._fail_conflict(format('Promise %L is %s already, with another outcome.', p_id, v_record.state),
                                   format('select * from durable.result(%L)', p_id));
  end if;
  return v_record.state;
end
$$;
comment on function durable._settle_once(text, text, jsonb) is
  'Settles a promise; no error if it has that outcome already. WF003 if it has another outcome, its deadline included.';

create or replace function durable.resolve(id text, value jsonb default 'null')
returns text language plpgsql volatile
as $$
begin
  return durable._settle_once($1, 'resolved', $2);
end
$$;
comment on function durable.resolve(text, jsonb) is
  'For people: settles a promise with a value: select durable.resolve(''invoice-7'', ''{"paid": true}''). The same again is no error; WF003 if the promise has another outcome, its deadline included. Two of these in one transaction hold the first promise while they wait for the second, so two transactions that cross deadlock (40P01): durable.settle_many settles many at once. WF001, WF004, WF008.';

create or replace function durable.reject(id text, error jsonb default '{"type": "Rejected", "message": "rejected"}')
returns text language plpgsql volatile
as $$
begin
  return durable._settle_once($1, 'rejected', $2);
end
$$;
comment on function durable.reject(text, jsonb) is
  'For people: settles a promise with an error {"type", "message"}: select durable.reject(''invoice-7'', ''{"type": "Declined"}''). The same again is no error; WF003 if the promise has another outcome, its deadline included. Two of these in one transaction hold the first promise while they wait for the second, so two transactions that cross deadlock (40P01): durable.settle_many settles many at once. WF001, WF004, WF008.';

create or replace function durable._due_in(p_now bigint, p_from bigint default 0)
returns bigint language plpgsql stable
as $$
begin
  return (
    select case when exists (select from durable._row_events e)
                     or exists (select from durable._row_waits w where w.test_at <= p_now) then -1
                when min(u.at) is not null then greatest(min(u.at) - p_now, 0) end from (
      (select p.due_at as at from durable._promises p where p.due_at >= p_from order by p.due_at limit 1)
      union all
      (select s.next_run_at from durable._schedules s
       where s.next_run_at >= p_from and s.next_run_at < 9007199254740991 order by s.next_run_at limit 1)
      union all
      (select h.cancel_until from durable._executions h where h.cancel_until >= p_from order by h.cancel_until limit 1)
      union all
      (select w.test_at from durable._row_waits w where w.test_at is not null order by w.test_at limit 1)) u);
end
$$;
comment on function durable._due_in(bigint, bigint) is
  'Milliseconds until the next deadline of a promise, instant of a schedule, end of a cancellation''s grace or test of a wait for a row; -1 if a commit of another session has left work that is due at once; null if there is none. Deadlines before p_from do not count.';
