-- The settlement chain (settle, resume, execute) for any number of promises at once. Every settlement is made here: by a
-- client, by a worker, under a fence, by a deadline. The only UPDATE that moves a promise out of pending stands here.

create or replace function durable._failure(p_head bigint, p_state text)
returns text language sql immutable parallel safe
as $$
  select case when p_head is not null then case p_state
    when 'rejected' then 'failed' when 'rejected_timedout' then 'timed_out' when 'rejected_canceled' then 'cancelled' end end
$$;
comment on function durable._failure(bigint, text) is
  'How a run failed whose promise has this head and state; null for a run that did not, and for any other promise.';

create or replace function durable._verdict(p_state text, p_timer boolean, p_timeout_at bigint, p_now bigint)
returns text language sql immutable parallel safe
as $$ select case when p_timeout_at > p_now then p_state when p_timer then 'resolved' else 'rejected_timedout' end $$;
comment on function durable._verdict(text, boolean, bigint, bigint) is
  'The state in which a promise settles: the given one, or at or after its deadline the verdict of the deadline.';

create or replace function durable._settle_rows(
  p_ids text[], p_states text[], p_headers jsonb[], p_data text[], p_now bigint, p_keys text[], p_versions integer[])
returns durable._settled[] language plpgsql volatile
as $$
declare
  v_settled durable._settled[];
begin
  with settled as (
    update durable._promises p
    set state = durable._verdict(v.state, p.timer, p.timeout_at, p_now),
        settled_at = greatest(p.created_at, least(p_now, p.timeout_at)),
        failure = durable._failure(p.head, durable._verdict(v.state, p.timer, p.timeout_at, p_now)),
        failed_at = case when durable._failure(p.head, durable._verdict(v.state, p.timer, p.timeout_at, p_now)) is not null
                         then to_timestamp(greatest(p.created_at, least(p_now, p.timeout_at)) / 1000.0) end,
        value_headers = case when p.timeout_at > p_now then v.headers end,
        value_data = case when p.timeout_at > p_now then v.data end,
        ikey_complete = case when p.timeout_at > p_now then v.key end,
        task_version = coalesce(v.version, t.version)
    from unnest(p_ids, p_states, p_headers, p_data, p_keys, p_versions) with ordinality
      as v (id, state, headers, data, key, version, ord)
    left join durable._tasks t on t.id = any (array[case when v.version is null then v.id end])
    where p.id = any (array[v.id]) and p.state = 'pending' and (v.state is not null or p.timeout_at <= p_now)
    returning v.ord, p.id, p.state, p.execution, p.child, p.head, p.timer, p.settled_at, t.attempt::integer as attempt,
              t.attempt_open
  )
  select coalesce(array_agg(row(s.id, s.state, s.execution, s.child, s.head, s.timer, s.attempt, s.attempt_open, s.settled_at)
                            ::durable._settled order by s.ord), '{}')
  into v_settled from settled s;
  return v_settled;
end
$$;
comment on function durable._settle_rows(text[], text[], jsonb[], text[], bigint, text[], integer[]) is
  'Settles pending promises. At or after its deadline a promise gets the deadline verdict instead of the given one; a null state asks only for the deadline verdict. p_keys: idempotency keys of the older API. p_versions: versions of the tasks that the caller has read and whose promises are no children; the other tasks are looked up. A clock that was set back settles nothing before its birth.';

create or replace function durable._settle_single(
  p_id text, p_head bigint, p_state text, p_data text, p_version integer, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._promises p
  set state = p_state, settled_at = greatest(p_now, p.created_at), value_headers = null, value_data = p_data,
      ikey_complete = null, task_version = p_version, failure = durable._failure(p_head, p_state),
      failed_at = case when p_state <> 'resolved' then to_timestamp(greatest(p_now, p.created_at) / 1000.0) end
  where p.id = p_id;
  delete from durable._tasks t where t.id = p_id;
  perform durable._append_end(
    p_head, case p_state when 'resolved' then 'execution_completed'::durable.row_type else 'execution_failed' end, p_now);
end
$$;
comment on function durable._settle_single(text, bigint, text, text, integer, bigint) is
  'The settlement of one pending run that has no parent, awaiters or resumes and whose deadline has not come: the part of _settle that such a run needs.';

create or replace function durable._settle_later(p_settled durable._settled[], p_at bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._promises p
  set settled_at = least(p_at, p.timeout_at - 1),
      failed_at = case when p.failure is not null then to_timestamp(least(p_at, p.timeout_at - 1) / 1000.0) end
  where p.id = any (array(select s.id from unnest(p_settled) s)) and p.settled_at < least(p_at, p.timeout_at - 1);
end
$$;
comment on function durable._settle_later(durable._settled[], bigint) is
  'Moves the instant of settlements of this transaction on, after a clock was set back: none is older than the birth of its promise, and none of a child older than the end of its owner, so the laws can tell it from one whose row is missing.';

create or replace function durable._owner_events(
  p_settled durable._settled[], p_now bigint, out events durable._event[], out at bigint)
language plpgsql stable
as $$
begin
  select coalesce(array_agg(row(
    s.execution,
    case when s.timer then 'timer_fired'::durable.row_type
         when s.attempt_open then 'open_child_settled' else 'child_settled' end,
    s.child,
    case when s.timer then null when s.attempt_open then s.attempt else coalesce(s.attempt, 0) + 1 end,
    null, null, null)::durable._event order by s.ord) filter (where l.is_live), '{}'),
    coalesce(max(o.last_at) filter (where not l.is_live and o.last_at > p_now), p_now)
  into events, at
  from unnest(p_settled) with ordinality as s (id, state, execution, child, head, timer, attempt, attempt_open, settled_at, ord)
  join durable._executions o on o.execution = any (array[s.execution])
  cross join lateral (select o.status in ('running', 'blocked', 'cancelling') as is_live) l;
end
$$;
comment on function durable._owner_events(durable._settled[], bigint) is
  'The rows of settled children in their owners'' journals: TimerFired or InvokeCompleted, with InvokeStarted before it if no attempt is open. Owners that have ended record nothing (R16). at: p_now, or when an owner ended, if the clock was set back since.';

create or replace function durable._adopter_events(p_settled durable._settled[])
returns durable._event[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(row(t.execution, 'child_settled', c.child, 1, s.id, null, null)::durable._event
                              order by s.ord, c.child), '{}')
    from unnest(p_settled) with ordinality as s (id, state, execution, child, head, timer, attempt, attempt_open, settled_at, ord)
    join durable._callbacks c on c.awaited_id = any (array[s.id]) and c.child >= 0
    join durable._tasks t on t.id = any (array[c.awaiter_id])
    join durable._executions h on h.execution = any (array[t.execution]) and h.status in ('running', 'blocked', 'cancelling'));
end
$$;
comment on function durable._adopter_events(durable._settled[]) is
  'The rows in the journals of runs that adopted a settled promise (R13): InvokeStarted and InvokeCompleted, by the name of the promise.';

create or replace function durable._request_events(p_settled durable._settled[])
returns durable._event[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(row(s.head, 'cancel_requested', null, null, null, null, null)::durable._event order by s.ord), '{}')
    from unnest(p_settled) with ordinality as s (id, state, execution, child, head, timer, attempt, attempt_open, settled_at, ord)
    join durable._executions h on h.execution = any (array[s.head])
    where s.state = 'rejected_canceled' and h.status <> 'cancelling');
end
$$;
comment on function durable._request_events(durable._settled[]) is
  'CancelRequested of runs that are settled as cancelled without a request before. These rows precede those of their children, so that the cause stands first.';

create or replace function durable._end_events(p_settled durable._settled[])
returns durable._event[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(row(
      s.head,
      case s.state when 'resolved' then 'execution_completed'::durable.row_type
                   when 'rejected_canceled' then 'execution_cancelled' else 'execution_failed' end,
      null, null, null, null, null)::durable._event order by s.ord), '{}')
    from unnest(p_settled) with ordinality as s (id, state, execution, child, head, timer, attempt, attempt_open, settled_at, ord)
    where s.head is not null);
end
$$;
comment on function durable._end_events(durable._settled[]) is 'The last rows of a settled run''s own journal.';

create or replace function durable._end_waits(p_ids text[], p_heads bigint[])
returns void language plpgsql volatile
as $$
begin
  with gone as (delete from durable._row_waits w where w.promise_id = any (p_ids)),
       heard as (delete from durable._resumes r where r.task_id = any (p_ids))
  update durable._row_waits w set test_at = 0 where w.execution = any (p_heads);
end
$$;
comment on function durable._end_waits(text[], bigint[]) is
  'Ends the waits for rows of settled promises, deletes the resumes of their tasks, and makes the waits of runs that have ended due, so that the sweep ends them.';

create or replace function durable._settle(
  p_ids text[], p_states text[], p_headers jsonb[], p_data text[], p_now bigint, p_keys text[] default null,
  p_versions integer[] default null, p_last durable._event[] default '{}')
returns text[] language plpgsql volatile
as $$
declare
  v_settled durable._settled[];
  v_ids text[];
  v_heads bigint[];
  v_owned boolean;
  v_stopped boolean;
  v_at bigint;
  v_awaited boolean;
  v_listened boolean;
  v_waits boolean;
  v_events durable._event[] := p_last;
  v_resumed bigint[];
  v_queues text[] := '{}';
begin
  v_settled := durable._settle_rows(p_ids, p_states, p_headers, p_data, p_now, p_keys, p_versions);
  if v_settled = '{}' and p_last = '{}' then
    return '{}';
  end if;
  select array_agg(s.id), array_agg(s.head) filter (where s.head is not null), bool_or(s.execution is not null),
         bool_or(s.state in ('rejected_canceled', 'rejected_timedout')), greatest(p_now, max(s.settled_at))
  into v_ids, v_heads, v_owned, v_stopped, v_at from unnest(v_settled) s;
  delete from durable._tasks t where t.id = any (v_ids);
  select exists (select from durable._callbacks c where c.awaited_id = any (v_ids)),
         exists (select from durable._listeners l where l.awaited_id = any (v_ids)),
         exists (select from durable._row_waits w where w.promise_id = any (v_ids))
           or exists (select from durable._row_waits w where w.execution = any (v_heads))
           or exists (select from durable._resumes r where r.task_id = any (v_ids))
  into v_awaited, v_listened, v_waits;
  if v_waits then
    perform durable._end_waits(v_ids, v_heads);
  end if;
  v_events := v_events || case when v_stopped then durable._request_events(v_settled) end;
  if v_owned then
    select v_events || e.events, e.at into v_events, v_at from durable._owner_events(v_settled, v_at) e;
  end if;
  if v_at > p_now then
    perform durable._settle_later(v_settled, v_at);
  end if;
  if v_listened then
    perform durable._unblock(v_ids, v_at);
  end if;
  if v_awaited then
    v_events := v_events || durable._adopter_events(v_settled);
    select f.resumed, f.queues || durable._offer_again(f.expired, p_now) into v_resumed, v_queues
    from durable._fire(v_settled, p_now) f;
    v_events := v_events || array(select row(r.execution, 'execution_resumed', null, null, null, null, null)::durable._event
                                  from unnest(v_resumed) as r (execution));
  end if;
  perform durable._append(v_events || case when v_heads <> '{}' then durable._end_events(v_settled) end, v_at, p_last <> '{}');
  if v_stopped then
    perform durable._end_children(v_heads);
  end if;
  return v_queues;
end
$$;
comment on function durable._settle(text[], text[], jsonb[], text[], bigint, text[], integer[], durable._event[]) is
  'Settles promises whose locks (_lock_settlement) the caller holds: ends their tasks and waits for rows, notifies listeners, resumes awaiters, writes all journals, and asks the child runs to end that are left by runs which end without their code. p_versions: as of _settle_rows. p_last: rows before the last ones of some journals, results of steps that workers report, also for runs that clean up. Linear: it settles no other promise. Returns the queues that got ready tasks.';
