-- Tasks of the older API: claim, complete, drop, heartbeat. A task is that of the newer protocol, under the id of its promise.
-- Its counter is the version that a claim gives it, so the counter of a message is one more than the version that waits; it
-- begins with 1 and is the fence of what follows. As for promises every refusal is an answer: a status and a word.

create or replace function durable._claim_word_v0(p_task durable._tasks, p_exists boolean, p_counter integer, p_now bigint)
returns text language sql immutable
as $$
  select case
    when not p_exists then 'not found'
    when p_task.id is null or p_task.deadline <= p_now or p_task.state = 'suspended' then 'already completed'
    when p_task.state = 'acquired' then 'already claimed'
    when p_task.state <> 'pending' or p_task.execution is not null then 'invalid state'
    when p_task.version + 1 is distinct from p_counter then 'invalid counter'
    else 'OK' end
$$;
comment on function durable._claim_word_v0(durable._tasks, boolean, integer, bigint) is
  'Whether a task can be claimed at this counter. A suspended task counts as completed, as its next message has another counter; runs of the engine have no counter.';

create or replace function durable._status_v0(p_word text, p_done integer)
returns integer language sql immutable parallel safe
as $$ select case p_word when 'OK' then p_done when 'deduplicated' then 200 when 'not found' then 404 else 403 end $$;
comment on function durable._status_v0(text, integer) is 'The status of an answer about a task; p_done: for what was done now.';

create or replace function durable._promise_of_claim_v0(p_id text)
returns jsonb language sql volatile
as $$ select jsonb_build_object('id', p_id, 'data', durable._wire_v0(durable._read_v0(p_id, 0))) $$;
comment on function durable._promise_of_claim_v0(text) is 'A promise in the answer of a claim.';

create or replace function durable._claimed_v0(p_id text, p_leaf text)
returns jsonb language sql volatile
as $$
  select jsonb_build_object(
    'type', case when p_leaf is null then 'invoke' else 'resume' end,
    'promises', jsonb_build_object('root', durable._promise_of_claim_v0(p_id))
      || case when p_leaf is null then '{}' else jsonb_build_object('leaf', durable._promise_of_claim_v0(p_leaf)) end)
$$;
comment on function durable._claimed_v0(text, text) is 'The answer of a claim: the promise of the task, and the promise that resumed it.';

create or replace function durable.task_claim_v0(p_id text, p_counter integer, p_process_id text, p_ttl bigint)
returns table (status integer, word text, message jsonb) language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_leaf text;
  v_now bigint;
begin
  perform durable._check_claim(p_process_id, p_ttl);
  perform durable._check_site();
  perform durable._lock_tasks_to_revoke(array[p_id]);
  perform durable._lock_heads(durable._heads_of(array[p_id], array[p_id]));
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  word := durable._claim_word_v0(v_task, exists (select from durable._promises p where p.id = p_id and p.target is not null),
                                 p_counter, v_now);
  if word = 'OK' then
    -- before the claim, which deletes the resumes
    select min(r.awaited_id) into v_leaf from durable._resumes r where r.task_id = p_id;
    perform from durable._acquire(array[p_id], p_process_id, p_ttl, v_now);
    message := durable._claimed_v0(p_id, v_leaf);
  end if;
  status := durable._status_v0(word, 201);
  return next;
end
$$;
comment on function durable.task_claim_v0(text, integer, text, bigint) is
  'Older API: claims the task of a message by its counter. 201 with invoke and the promise, or resume and also the promise that completed (leaf); 403 already claimed, already completed, invalid counter or state; 404. WF004, WF016.';

create or replace function durable._awaited_v0(p_id text)
returns text[] language sql stable
as $$
  select array(
    select c.awaited_id from durable._callbacks c
    where c.awaited_id > p_id || '.' and c.awaited_id < p_id || '/' and c.awaiter_id = p_id
    union
    select c.awaited_id from durable._callbacks c
    where c.awaiter_id = p_id and c.child < 0 and not starts_with(c.awaited_id, c.awaiter_id || '.')
    order by 1)
$$;
comment on function durable._awaited_v0(text) is 'The promises for which callbacks of this task are registered; each part is served by an index.';

create or replace function durable._lease_word_v0(
  p_task durable._tasks, p_promise durable._promises, p_counter integer, p_now bigint)
returns text language sql immutable
as $$
  select case
    when p_promise.id is null or p_promise.target is null then 'not found'
    when coalesce(p_task.version, p_promise.task_version) is distinct from p_counter then 'invalid counter'
    when p_task.id is null or p_task.deadline <= p_now or p_task.state = 'suspended' then 'deduplicated'
    when p_task.state <> 'acquired' or p_task.execution is not null then 'invalid state'
    else 'OK' end
$$;
comment on function durable._lease_word_v0(durable._tasks, durable._promises, integer, bigint) is
  'Whether a process has this task at this counter. deduplicated: it had, and the task was suspended or ended since.';

create or replace function durable._release_or_suspend_v0(p_task durable._tasks, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if exists (select from durable._resumes r where r.task_id = p_task.id) then
    perform durable._release_tasks(array[p_task.id], array[0::bigint], p_now);
  elsif durable._awaited_v0(p_task.id) <> '{}' then
    perform durable._suspend(array[p_task.id]);
    return;
  else
    perform durable._release_with_backoff(p_task, p_now);
  end if;
  perform durable._hint('durable_ready', p_now);
end
$$;
comment on function durable._release_or_suspend_v0(durable._tasks, bigint) is
  'Ends the lease of a task whose promise is pending. It is resumed at once if a callback fired meanwhile, later if one is registered; without any it is offered again, in growing pauses.';

create or replace function durable.task_complete_v0(p_id text, p_counter integer)
returns table (status integer, word text) language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_promise durable._promises;
  v_now bigint;
begin
  perform durable._check_site();
  perform durable._lock_promises(durable._awaited_v0(p_id));
  perform durable._lock_tasks(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  select * into v_promise from durable._promises p where p.id = p_id;
  word := durable._lease_word_v0(v_task, v_promise, p_counter, v_now);
  if word = 'OK' then
    perform durable._release_or_suspend_v0(v_task, v_now);
  elsif word = 'deduplicated' then
    word := 'OK';
  end if;
  status := durable._status_v0(word, 201);
  return next;
end
$$;
comment on function durable.task_complete_v0(text, integer) is
  'Older API: the process is done with the task: its promise is completed, or waits for those of its callbacks; the first that completes resumes it. 201; 403 invalid counter: another process has it; 403 invalid state; 404. WF016.';

create or replace function durable.task_drop_v0(p_id text, p_counter integer)
returns table (status integer, word text) language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_promise durable._promises;
  v_now bigint;
begin
  perform durable._check_site();
  perform durable._lock_tasks(array[p_id]);
  perform durable._lock_heads(durable._heads_of('{}', array[p_id]));
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = p_id;
  select * into v_promise from durable._promises p where p.id = p_id;
  word := durable._lease_word_v0(v_task, v_promise, p_counter, v_now);
  if word = 'OK' then
    perform durable._release_with_backoff(v_task, v_now);
    perform durable._hint('durable_ready', v_now);
  end if;
  status := durable._status_v0(word, 204);
  return next;
end
$$;
comment on function durable.task_drop_v0(text, integer) is
  'Older API: gives a claimed task back, so that it is offered again, to other processes first. 204; 200 it is done already; 403, 404 as task_complete_v0. WF016.';

create or replace function durable.task_heartbeat_v0(p_process_id text, p_prefix text default '')
returns integer language plpgsql volatile
as $$
declare
  v_ids text[];
  v_versions integer[];
begin
  select coalesce(array_agg(t.id), '{}'), coalesce(array_agg(t.version), '{}') into v_ids, v_versions
  from durable._tasks t where t.pid = p_process_id and t.state = 'acquired';
  return durable.task_heartbeat(p_process_id, v_ids, v_versions, p_prefix);
end
$$;
comment on function durable.task_heartbeat_v0(text, text) is
  'Older API: renews the leases of all tasks of a process whose id begins with p_prefix, and answers how many. WF004.';

create or replace function durable.promise_task_v0(
  p_id text, p_idempotency_key text, p_param_data text, p_param_headers jsonb, p_timeout_at bigint, p_strict boolean,
  p_tags jsonb, p_process_id text, p_ttl bigint)
returns table (status integer, word text, promise jsonb, task jsonb) language plpgsql volatile
as $$
declare
  v_tags jsonb := durable._tags_v0(p_id, p_tags);
  v_done boolean;
  v_promise jsonb;
begin
  perform durable._check_v0(p_id, p_idempotency_key, p_param_headers, p_strict);
  perform durable._check_claim(p_process_id, p_ttl);
  perform durable._check_site();
  if not coalesce(v_tags ? 'resonate:target', false) or v_tags ? 'resonate:delay' then
    perform durable._fail_invalid(format('Promise %L: a task needs the tag resonate:invoke, and none that delays it.', p_id));
  end if;
  v_done := durable._create_promise(
    (p_id, p_timeout_at, p_param_data, p_param_headers, v_tags, p_idempotency_key)::durable._new_promise, p_process_id, p_ttl);
  v_promise := durable._read_v0(p_id, case when v_done then 0 else durable._now_ms() end);
  return query
    select a.status, a.word, a.promise,
           (select jsonb_build_object('id', t.id, 'rootPromiseId', t.id, 'counter', t.version, 'timeout', t.deadline,
                                      'processId', t.pid, 'createdOn', v_promise -> 'createdOn')
            from durable._tasks t where v_done and t.id = p_id and t.state = 'acquired')
    from durable._answer_v0('PENDING', v_done, v_promise, p_idempotency_key, p_strict) a;
end
$$;
comment on function durable.promise_task_v0(text, text, text, jsonb, bigint, boolean, jsonb, text, bigint) is
  'Older API: creates a promise whose task is claimed from birth. Answers as promise_create_v0, and the task if it was created now. WF004, WF008, WF016.';

create or replace function durable.promise_with_callback_v0(
  p_id text, p_idempotency_key text, p_param_data text, p_param_headers jsonb, p_timeout_at bigint, p_strict boolean,
  p_tags jsonb, p_callback_id text, p_root_promise_id text, p_callback_timeout_at bigint, p_recv jsonb)
returns table (status integer, word text, promise jsonb, callback jsonb) language plpgsql volatile
as $$
declare
  v_made record;
  v_waits record;
begin
  select c.* into v_made
  from durable.promise_create_v0(p_id, p_idempotency_key, p_param_data, p_param_headers, p_timeout_at, p_strict, p_tags) c;
  if v_made.status >= 400 then
    return query select v_made.status, v_made.word, v_made.promise, null::jsonb;
    return;
  end if;
  select c.* into v_waits
  from durable.promise_callback_v0(p_callback_id, p_id, p_root_promise_id, p_callback_timeout_at, p_recv) c;
  return query select v_made.status, v_made.word, v_waits.promise, v_waits.callback;
end
$$;
comment on function durable.promise_with_callback_v0(text, text, text, jsonb, bigint, boolean, jsonb, text, text, bigint, jsonb) is
  'Older API: creates a promise and the callback of the task that waits for it, both or neither. Answers as promise_create_v0, and the callback as promise_callback_v0 does: null if one of the two is completed. WF004, WF008, WF010.';
