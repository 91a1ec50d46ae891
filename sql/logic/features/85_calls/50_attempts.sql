-- Leases of attempts and the way back of their tasks: what a worker is given, and the waits between two polls.

create or replace function durable._snapshot_of(p_ref text)
returns jsonb language sql stable
as $$
  select jsonb_build_object('ref', 'refs/' || r.name, 'commit', encode(r.commit_id, 'hex'), 'remote', 'durable:')
  from durable._refs r where r.name = p_ref
$$;
comment on function durable._snapshot_of(text) is 'The snapshot that an adapter reads; null: it reads objects by their ids.';

create or replace function durable._call_document(
  p_op text, p_execution_key bytea, p_version integer, p_deadline bigint)
returns jsonb language plpgsql stable
as $$
begin
  return (
    select jsonb_build_object(
      'v', 1, 'op', p_op, 'node', encode(a.node_id, 'hex'), 'function', c.function,
      'inputs', (select coalesce(jsonb_agg(encode(i.id, 'hex') order by i.place), '[]')
                 from unnest(n.refs[2:]) with ordinality as i (id, place)),
      'execution_key', encode(a.execution_key, 'hex'), 'execution_uuid', a.uuid, 'generation', a.generation,
      'snapshot', durable._snapshot_of(a.ref_name), 'token', a.token,
      'deadline_ms', nullif(p_deadline, durable._never()), 'request', p.param_data::jsonb -> 'request',
      'adapter', durable._served_as(c.function, a.adapter), 'version', p_version, 'phase', a.phase,
      'result', encode(a.outcome_dag, 'hex'))
    from durable._call_attempts a
    join durable._calls c on c.value_key = any (array[a.value_key])
    join durable._objects n on n.id = any (array[a.node_id])
    left join durable._promises p on p.id = any (array[durable._call_promise(a.execution_key)])
    where a.execution_key = p_execution_key);
end
$$;
comment on function durable._call_document(text, bytea, integer, bigint) is
  'The document that an adapter reads on its standard input, and for the worker beside it: adapter, version, phase and, in a later phase than poll_adapter, result.';

create or replace function durable._lost_too_often(p_execution_key bytea, p_lost integer)
returns boolean language plpgsql stable
as $$
begin
  return p_lost > 0 and exists (
    select from durable._call_attempts a
    where a.execution_key = p_execution_key and a.phase = 'poll_adapter' and a.failures + p_lost > a.budget);
end
$$;
comment on function durable._lost_too_often(bytea, integer) is
  'Whether the leases that were lost in a row, each during a poll, have used the budget together with the failures before them.';

create or replace function durable._lease_document(p_task durable._tasks)
returns jsonb language plpgsql stable
as $$
declare
  v_key bytea := durable._call_key(p_task.id);
begin
  return durable._call_document('poll', v_key, p_task.version, p_task.deadline)
         || case when durable._lost_too_often(v_key, p_task.crashes) then jsonb_build_object('lost', p_task.crashes)
                 else '{}' end;
end
$$;
comment on function durable._lease_document(durable._tasks) is
  'The document of a leased attempt. lost: so many workers were lost during its poll that this one reports that instead of polling.';

create or replace function durable.call_lease_v1(p_worker text, p_adapters text[], p_ttl_ms bigint, p_most integer)
returns setof jsonb language plpgsql volatile
as $$
declare
  v_ids text[];
  v_cancels bytea[];
  v_now bigint := durable._now_ms();
begin
  perform durable._check_claim(p_worker, p_ttl_ms);
  if p_adapters is null or array_position(p_adapters, null) is not null or p_most is null or p_most not between 0 and 1000 then
    perform durable._fail_invalid('A lease names adapters, and how many attempts it takes at most: 0 to 1000.');
  end if;
  perform durable._check_site();
  perform durable._try_lock_adapters(p_worker, p_adapters, v_now);
  v_cancels := durable._try_lock_cancels(p_adapters, p_most);
  return query
    with asked as (
      update durable._call_attempts a set cancel_due = false where a.execution_key = any (v_cancels) returning a.execution_key
    )
    select d.document from asked a
    cross join lateral (select durable._call_document('cancel', a.execution_key, null, null) as document) d
    where d.document is not null;
  v_ids := durable._try_lock_due_attempts(p_adapters, p_worker, p_most, v_now);
  if v_ids <> '{}' then
    return query
      select d.document from durable._acquire(v_ids, p_worker, p_ttl_ms, v_now, false) t
      cross join lateral (select durable._lease_document(t) as document) d
      where d.document is not null order by array_position(v_ids, t.id);
  end if;
end
$$ set lock_timeout = '1s';
comment on function durable.call_lease_v1(text, text[], bigint, integer) is
  'For adapter workers: leases attempts whose next poll is due, p_most at most, and answers a document for each; jobs that are to be cancelled come first, with op cancel and no lease. An attempt whose rows do not make a document is left out, and its lease runs out. Leases are renewed by durable.task_heartbeat under the id call:<execution_key>. Waits for nobody. WF004, WF016.';

create or replace function durable._schedule_poll(p_attempt durable._call_attempts, p_retry_in bigint, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_id text := durable._call_promise(p_attempt.execution_key);
begin
  perform durable._release_tasks(array[v_id], array[case when p_attempt.woken then 0 else p_retry_in end], p_now);
  update durable._tasks t
  set preference = null, releases = 0, released_by = null, released_until = null where t.id = v_id;
end
$$;
comment on function durable._schedule_poll(durable._call_attempts, bigint, bigint) is
  'Gives the lease back until the next poll, which any worker may do. A wake that came meanwhile makes that at once.';

create or replace function durable._add_poll(
  p_attempt durable._call_attempts, p_version integer, p_class text, p_worker text, p_report jsonb, p_message text, p_now bigint)
returns void language sql volatile
as $$
  with added as (
    insert into durable._call_polls (started_at, ended_at, seq, version, execution_key, class, worker, message, stderr)
    select least(coalesce((p_report ->> 'started_at')::numeric::bigint, p_now), p_now), p_now, coalesce(max(l.seq), 0) + 1,
           p_version, p_attempt.execution_key, p_class, p_worker, left(p_message, 4000), right(p_report ->> 'stderr', 65536)
    from durable._call_polls l where l.execution_key = p_attempt.execution_key
    returning seq
  )
  delete from durable._call_polls l where l.ctid = any (array(
    select o.row from added n
    cross join lateral unnest(durable._try_lock_polls(p_attempt.execution_key, n.seq - 100)) o (row)))
$$;
comment on function durable._add_poll(durable._call_attempts, integer, text, text, jsonb, text, bigint) is
  'Stores the answer of an adapter, for people, and forgets those that have a hundred newer ones. The caller has locked the attempt, so the number is free.';

create or replace function durable._give_up(
  p_attempt durable._call_attempts, p_code text, p_message text, p_cause jsonb, p_now bigint, p_state text default 'rejected')
returns void language plpgsql volatile
as $$
declare
  v_error text := durable._aborted(p_attempt, p_code, p_message, p_cause);
begin
  update durable._call_attempts a
  set ended_at = greatest(p_now, a.created_at), error = v_error, cancel_due = a.token is not null and a.phase = 'poll_adapter'
  where a.execution_key = p_attempt.execution_key;
  perform durable._settle_one(durable._call_promise(p_attempt.execution_key), p_state, v_error, null, p_now);
end
$$;
comment on function durable._give_up(durable._call_attempts, text, text, jsonb, bigint, text) is
  'Ends an attempt without a result: nothing is recorded as one, and the next call starts the next generation. A job that may be running is to be cancelled. The caller has all locks of the settlement and of the attempt.';

create or replace function durable._fail_attempt(
  p_attempt durable._call_attempts, p_failures integer, p_message text, p_cause jsonb, p_now bigint)
returns text language plpgsql volatile
as $$
begin
  update durable._call_attempts a set failures = p_failures, woken = false where a.execution_key = p_attempt.execution_key;
  if p_failures > p_attempt.budget then
    perform durable._give_up(p_attempt, 'retry_budget_exhausted',
                             format('given up after %s failures in a row: %s', p_failures, p_message), p_cause, p_now);
    return 'failed_terminal';
  end if;
  perform durable._schedule_poll(
    p_attempt, durable._backoff_ms(1000, durable._setting_int('call_backoff_max_ms'), p_failures - 1), p_now);
  return 'retry_wait';
end
$$;
comment on function durable._fail_attempt(durable._call_attempts, integer, text, jsonb, bigint) is
  'After a failure that may be tried again: waits, longer each time, or gives up once the budget is used. The phase stays, so a stored outcome is never polled for again.';
