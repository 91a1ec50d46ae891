-- The end of a workflow's transaction: one call, right before the COMMIT, carries out the effects that the code asked for,
-- holds the fence and writes the journal row. It takes all its locks in the one order; the transaction has locked nothing of
-- the engine before.

create or replace function durable._lock_starts(p_effects jsonb)
returns void language plpgsql volatile
as $$
begin
  perform durable._lock_names(
    array(select durable._key_name('', e ->> 'workflow', e ->> 'key') from jsonb_array_elements(p_effects) e
          where e ->> 'do' = 'start'),
    array(select e ->> 'id' from jsonb_array_elements(p_effects) e where e ->> 'do' = 'start'));
end
$$;
comment on function durable._lock_starts(jsonb) is 'Class 0 of a commit: keys, then ids, of the runs that it starts.';

create or replace function durable._check_commit(
  p_id text, p_worker text, p_execution bigint, p_version integer, p_seen integer, p_child integer, p_now bigint)
returns void language plpgsql stable
as $$
declare
  v_task durable._tasks;
  v_head durable._executions;
begin
  select * into v_task from durable._tasks t where t.id = p_id;
  if v_task.pid is distinct from p_worker or v_task.execution is distinct from p_execution
     or not coalesce(durable._is_leased(v_task, p_version, p_now), false) then
    perform durable._fail_lease_lost(p_id, p_version);
  end if;
  select * into v_head from durable._executions h where h.execution = p_execution;
  if (v_head.status = 'cancelling' and p_seen <= v_head.cancel_seq)
     or (p_child < v_head.next_child and p_child <> all (v_head.reserved)) then
    perform durable._start_over();
  end if;
end
$$;
comment on function durable._check_commit(text, text, bigint, integer, integer, integer, bigint) is
  'The fence of a commit: WF002 if the lease is lost; then the transaction can only be rolled back. WF099 if the worker must replay, because it has not seen a request of cancellation, or because its row is recorded already. The caller holds task and head.';

create or replace function durable._do_starts(p_effects jsonb)
returns void language plpgsql volatile
as $$
begin
  perform r.id
  from (select e from jsonb_array_elements(p_effects) with ordinality as u (e, ord)
        where e ->> 'do' = 'start' order by u.ord offset 0) s
  cross join lateral durable.start_v1(
    e ->> 'workflow', e ->> 'args', e ->> 'id', e ->> 'key', e ->> 'queue', e ->> 'version', (e ->> 'delay')::bigint,
    (e ->> 'timeout')::bigint, (e ->> 'priority')::integer, '{}', '', (e ->> 'any_workflow')::boolean) r;
end
$$;
comment on function durable._do_starts(jsonb) is 'Starts the runs of a commit, in the order of the code.';

create or replace function durable._do_signals(p_effects jsonb)
returns void language plpgsql volatile
as $$
begin
  perform r.delivery
  from (select e from jsonb_array_elements(p_effects) with ordinality as u (e, ord)
        where e ->> 'do' = 'signal' order by u.ord offset 0) s
  cross join lateral durable.signal_v1(e ->> 'id', e ->> 'name', e ->> 'payload', e ->> 'key') r;
end
$$;
comment on function durable._do_signals(jsonb) is 'Sends the signals of a commit, in the order of the code.';

create or replace function durable._do_settles(p_effects jsonb)
returns void language plpgsql volatile
as $$
begin
  perform durable._fail_conflict(format('Promise %L is %s already, with another outcome.', s.id, r.state),
                                 format('select * from durable.result(%L)', s.id))
  from (select e ->> 'id' as id, e ->> 'state' as state, e ->> 'value' as value
        from jsonb_array_elements(p_effects) with ordinality as u (e, ord) where e ->> 'do' = 'settle' order by u.ord offset 0) s
  cross join lateral durable.promise_settle(s.id, s.state, s.value, durable._plain_headers()) r
  where (r.state, r.value_data) is distinct from (s.state, s.value);
end
$$;
comment on function durable._do_settles(jsonb) is
  'Settles the promises of a commit. WF003 for one that has another outcome already, because the transaction relies on its own.';

create or replace function durable.worker_commit_v1(
  p_worker text, p_execution bigint, p_id text, p_version integer, p_seen integer, p_child integer, p_name text, p_hash text,
  p_value text, p_effects jsonb)
returns json language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  if durable._is_autocommit() then
    perform durable._fail_conflict('The transaction that was to be committed is over.', 'Write nothing that ends it inside.');
  end if;
  perform durable._check_site();
  perform durable._check_payload(format('What the statements of transaction %L returned', p_name), p_value);
  perform durable._lock_starts(p_effects);
  perform durable._lock_commit(
    array(select distinct e ->> 'id' from jsonb_array_elements(p_effects) e where e ->> 'do' <> 'start'), p_id);
  v_now := durable._now_ms();
  perform durable._check_commit(p_id, p_worker, p_execution, p_version, p_seen, p_child, v_now);
  perform durable._append(
    array[row(p_execution, 'step_completed', p_child, 1, p_name, decode(p_hash, 'hex'), p_value)::durable._event], v_now, true);
  if p_effects <> '[]' then
    perform durable._do_starts(p_effects);
    perform durable._do_signals(p_effects);
    perform durable._do_settles(p_effects);
    perform durable._hint('durable_ready', v_now);
    perform durable._hint('durable_settled', v_now);
  end if;
  return durable._journal_from(p_execution, p_seen);
end
$$;
comment on function durable.worker_commit_v1(text, bigint, text, integer, integer, integer, text, text, text, jsonb) is
  'The last statement of a workflow''s transaction: the starts, signals and settlements that its code asked for, its journal row, the fence. Answers the journal from p_seen on. An error rolls back the user''s rows too: WF002 lease lost, WF099 replay, and the errors of start, signal and promise_settle.';
