-- All that time starts: promise deadlines, lost leases, journal partitions ahead, and by hooks the housekeeping of features, such
-- as schedules, waits for rows, retention. Any number of callers, bounded, SKIP LOCKED; a missed call only delays.
-- It stands above all concerns, because it starts the housekeeping of each.

create or replace function durable._gone_workers(p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_free text[] := array(select w.id from durable._workers w where w.present and durable._is_disconnected(w.number));
  -- found missing at an instant to come: the clock was set back, and the grace begins again
  v_changed text[] := array(select w.id from durable._workers w
                            where (w.missing_at is null) = (w.id = any (v_free)) or w.missing_at > p_now);
begin
  if v_changed <> '{}' then
    update durable._workers w set missing_at = case when w.id = any (v_free) then p_now end
    where w.id = any (array(select x.id from durable._workers x where x.id = any (v_changed) for no key update skip locked))
      and ((w.missing_at is null) = (w.id = any (v_free)) or w.missing_at > p_now);
  end if;
  return array(select w.id from durable._workers w
               where w.id = any (v_free) and w.missing_at <= p_now - durable._setting_int('presence_grace_ms'));
end
$$;
comment on function durable._gone_workers(bigint) is
  'Workers whose presence lock was found free twice, presence_grace_ms apart, without a heartbeat in between.';

create or replace function durable._gone_in(p_now bigint)
returns bigint language plpgsql stable
as $$
declare
  v_grace_ms bigint;
begin
  if not exists (select from durable._workers w where w.present and w.missing_at is not null) then
    return null;
  end if;
  v_grace_ms := durable._setting_int('presence_grace_ms');
  return (select min(w.missing_at) + v_grace_ms - p_now from durable._workers w
          where w.present and w.missing_at > p_now - v_grace_ms);
end
$$;
comment on function durable._gone_in(bigint) is
  'Milliseconds until the next worker that was found missing once counts as gone, if it stays missing; null if there is none, and if all of them are gone already.';

create or replace function durable._forget_workers(p_gone text[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  delete from durable._workers w where w.id = any (array(
    select x.id from durable._workers x
    where ((x.id = any (p_gone) and x.missing_at is not null)
           or (not x.present and x.seen_at not between p_now - 3600000 and durable._latest(p_now)))
      and not exists (select from durable._tasks t where t.pid = x.id and t.state = 'acquired')
    for update skip locked));
  delete from durable._idle_workers i where i.worker = any (array(
    select x.worker from durable._idle_workers x
    where x.worker >= '' and not exists (select from durable._workers w where w.id = x.worker) for update skip locked));
end
$$;
comment on function durable._forget_workers(text[], bigint) is
  'Deletes workers that are gone or were not seen for an hour and hold nothing. Skips locked rows: a heartbeat holds its row and waits for tasks that the sweep has.';

create or replace function durable._could_not_renew(p_task durable._tasks, p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._workers w
                 where w.id = p_task.pid and p_task.id = any (w.unrenewed)
                   and w.seen_at between p_now - p_task.ttl + 1 and p_now + p_task.ttl);
end
$$;
comment on function durable._could_not_renew(durable._tasks, bigint) is
  'True if the worker of the task is alive and could not renew the lease, because another session had locked the task.';

create or replace function durable._lease_reaches(p_now bigint, p_ttl bigint)
returns bigint language sql immutable parallel safe
as $$ select p_now + p_ttl + 5000 $$;
comment on function durable._lease_reaches(bigint, bigint) is
  'The latest end of a lease of that length: later ones are from before the clock was set back. Other sessions read the clock a little later than a tick.';

create or replace function durable._try_lock_expired_tasks(
  p_gone text[], p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select t.id from durable._tasks t
      where t.state = 'acquired' and t.pid >= '' and t.deadline > p_now
        and (t.pid = any (p_gone) or (t.expires_at <= p_now and not durable._could_not_renew(t, p_now))
             or t.expires_at > durable._lease_reaches(p_now, t.ttl))
        and t.id <> all (p_tried) and (t.owner is null or t.owner <> all (p_missed))
      limit p_limit for update skip locked) x);
end
$$;
comment on function durable._try_lock_expired_tasks(text[], bigint, integer, text[], bigint[]) is
  'Locks tasks whose lease ended or would end too late, or whose worker is gone, except p_tried and children of p_missed. Reads only acquired tasks, through the index on pid.';

create or replace function durable._try_lock_overdue_cancels(p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id from durable._executions h
      join durable._promises p on p.id = any (array[h.id])
      where h.cancel_until is not null and h.cancel_until <= p_now and h.execution <> all (p_missed)
        and p.state = 'pending' and p.timeout_at > p_now and p.id <> all (p_tried)
        and (p.execution is null or p.execution <> all (p_missed))
      order by h.cancel_until limit p_limit for no key update of p skip locked) x);
end
$$;
comment on function durable._try_lock_overdue_cancels(bigint, integer, text[], bigint[]) is
  'Locks the promises of runs that did not end within their grace, except p_tried, runs of the heads p_missed and their children.';

create or replace function durable._paused()
returns boolean language sql immutable parallel safe
as $$ select false $$;
comment on function durable._paused() is 'Whether time is moved by hand only; sql/debug replaces this function.';

create or replace function durable._left_schedules(p_now bigint)
returns text[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select s.id from durable._schedules s where s.next_run_at <= p_now order by s.next_run_at limit 20) x);
end
$$;
comment on function durable._left_schedules(bigint) is
  'Schedules that are due still after a sweep that fired none: other sessions have locked them, or create their promises. 20 at most, for the answer.';

create or replace function durable._try_lock_due_promises(p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id from durable._promises p
      where p.due_at <= p_now and p.id <> all (p_tried) and (p.execution is null or p.execution <> all (p_missed))
      order by p.due_at limit p_limit for no key update skip locked) x);
end
$$;
comment on function durable._try_lock_due_promises(bigint, integer, text[], bigint[]) is
  'Locks promises past their deadline, except p_tried and those whose owner is in p_missed.';

create or replace function durable._locked_due(p_now bigint, p_tried text[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id, p.xmax from durable._promises p
      where p.due_at <= p_now and p.id <> all (p_tried) and p.xmax <> 0
      order by p.due_at limit 20) x
    where pg_try_advisory_xact_lock_shared(durable._engine_xact_key(x.xmax)));
end
$$;
comment on function durable._locked_due(bigint, text[]) is
  'Promises past their deadline that _try_lock_due_promises skipped because another session has locked them, other than a turn or tick of the engine: 20 at most, for the answer.';

create or replace function durable._try_lock_due_settlements(
  p_kind text, p_now bigint, p_limit integer, p_tried text[], p_missed bigint[],
  out ids text[], out tasks text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_tried text[] := p_tried;
  v_due text[];
  v_chain record;
begin
  ids := '{}'; tasks := '{}'; heads := p_missed;
  for v_round in 1..10 loop
    v_due := case p_kind
      when 'deadline' then durable._try_lock_due_promises(p_now, p_limit - cardinality(ids), v_tried, heads)
      when 'cancellation' then durable._try_lock_overdue_cancels(p_now, p_limit - cardinality(ids), v_tried, heads)
      when 'reported' then durable._try_lock_reported_waits(p_limit - cardinality(ids), v_tried, heads) end;
    exit when v_due = '{}';
    select * into v_chain from durable._try_lock_settlement(v_due) c;
    ids := ids || v_chain.ids;
    tasks := tasks || v_chain.tasks;
    heads := heads || v_chain.heads;
    v_tried := v_tried || v_due;
    exit when cardinality(v_chain.ids) = cardinality(v_due) or cardinality(ids) = p_limit;
  end loop;
  if p_kind = 'deadline' and cardinality(ids) < p_limit then
    tasks := tasks || durable._locked_due(p_now, v_tried);
  end if;
end
$$;
comment on function durable._try_lock_due_settlements(text, bigint, integer, text[], bigint[]) is
  'Locks promises of a kind that are to be settled (past their deadline, past the grace of a cancellation, waits for rows with a result), and all rows that their settlement needs. Locked rows are left out, and others take their places. tasks and heads: the ones that were missed; p_missed: heads that were missed before.';

create or replace function durable._try_lock_expired_tasks_with_heads(
  p_gone text[], p_now bigint, p_limit integer, out ids text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_tried text[] := '{}';
  v_some text[];
  v_missed bigint[];
begin
  ids := '{}'; heads := '{}';
  for v_round in 1..10 loop
    v_some := durable._try_lock_expired_tasks(p_gone, p_now, p_limit - cardinality(ids), v_tried, heads);
    exit when v_some = '{}';
    v_missed := durable._try_lock_heads(coalesce(durable._heads_of(v_some, v_some), '{}'));
    heads := heads || v_missed;
    ids := ids || array(
      select t.id from durable._tasks t
      where t.id = any (v_some) and (t.execution is null or t.execution <> all (heads))
        and (t.owner is null or t.owner <> all (heads)));
    exit when v_missed = '{}' or cardinality(ids) = p_limit;
    v_tried := v_tried || v_some;
  end loop;
end
$$;
comment on function durable._try_lock_expired_tasks_with_heads(text[], bigint, integer) is
  'Locks tasks whose lease is lost, with their heads and those of their owners. Tasks with a locked head are left out, and others take their places. heads: the ones that were missed.';

create or replace function durable._settle_due(
  p_now bigint, p_limit integer, out ended integer, out full_batch boolean, out locked text[], out queues text[])
language plpgsql volatile
as $$
declare
  v_due record;
  v_overdue record;
  v_reported record;
  v_outcomes durable._row_outcome[];
  v_ids text[];
  v_now bigint;
begin
  select * into v_due from durable._try_lock_due_settlements('deadline', p_now, p_limit, '{}', '{}') d;
  select * into v_overdue
  from durable._try_lock_due_settlements('cancellation', p_now, p_limit - cardinality(v_due.ids), v_due.ids, v_due.heads) d;
  select * into v_reported
  from durable._try_lock_due_settlements('reported', p_now, p_limit, v_due.ids || v_overdue.ids, v_overdue.heads) d;
  v_outcomes := durable._reported_outcomes(v_reported.ids);
  v_ids := v_due.ids || v_overdue.ids || array(select r.promise_id from unnest(v_outcomes) r);
  v_now := durable._now_ms();
  queues := durable._settle(
    v_ids, array(select case when e = any (v_overdue.ids) then 'rejected_canceled' end from unnest(v_due.ids || v_overdue.ids) e)
           || array(select r.state from unnest(v_outcomes) r),
    array_fill(null::jsonb, array[cardinality(v_ids)]),
    array(select (select durable._cancelled(durable._cancel_reason(h)) from durable._executions h
                  where h.execution = any (array(select t.execution from durable._tasks t
                                                 where t.id = any (v_overdue.ids) and t.id = e)))
          from unnest(v_due.ids || v_overdue.ids) e) || array(select r.data::text from unnest(v_outcomes) r), v_now);
  perform durable._forget_reported(p_limit);
  ended := cardinality(v_ids);
  full_batch := greatest(cardinality(v_due.ids || v_overdue.ids), cardinality(v_outcomes)) = p_limit;
  locked := durable._locked_ids(v_due.tasks || v_overdue.tasks || v_reported.tasks, v_reported.heads);
end
$$;
comment on function durable._settle_due(bigint, integer) is
  'Settles promises past their deadline, runs whose grace of a cancellation is over, and waits for rows that have a result. locked: ids that other sessions have locked, so that something was left out.';

create or replace function durable._sweep_expired_leases(
  p_now bigint, p_limit integer, out lost integer, out locked text[], out queues text[])
language plpgsql volatile
as $$
declare
  v_gone text[] := durable._gone_workers(p_now);
  v_taken record;
  v_ids text[];
  v_now bigint;
begin
  select * into v_taken from durable._try_lock_expired_tasks_with_heads(v_gone, p_now, p_limit) l;
  v_now := durable._now_ms();
  v_ids := array(select t.id from durable._tasks t
                 where t.id = any (v_taken.ids) and durable._is_leased(t, t.version, v_now)
                   and (t.expires_at <= v_now or t.pid = any (v_gone)));
  queues := durable._revoke_leases(v_ids, 'lease lost', v_now);
  if cardinality(v_ids) < cardinality(v_taken.ids) then
    update durable._tasks t set expires_at = v_now + t.ttl
    where t.id = any (v_taken.ids) and t.state is not distinct from 'acquired'
      and t.expires_at > durable._lease_reaches(v_now, t.ttl);
  end if;
  perform durable._forget_workers(v_gone, v_now);
  lost := cardinality(v_ids);
  locked := durable._locked_ids('{}', v_taken.heads);
end
$$;
comment on function durable._sweep_expired_leases(bigint, integer) is
  'Revokes leases that were not renewed in time, or whose worker is gone, and forgets such workers. A lease from before the clock was set back ends one lease from now, unless it is renewed, so that none is endless. locked: as of _settle_due.';

create or replace function durable.tick_v1(p_limit integer, p_schedules boolean default true)
returns jsonb language plpgsql volatile
as $$
declare
  v_limit integer := least(p_limit, durable._setting_int('sweep_limit'));
  v_settled record;
  v_leases record;
  v_offered record;
  v_children record;
  v_locked text[];
  v_queues text[];
  v_now bigint := durable._now_ms();
  v_answer jsonb;
begin
  if durable._paused() or durable._is_copy() then
    return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'next_due_ms', null, 'more', false,
                              'hints', '[]'::jsonb, 'problem', case when not durable._paused() then durable._copy_problem() end);
  end if;
  if p_schedules then
    v_answer := coalesce(durable._sweep_schedules(v_limit, v_now), durable._sweep_tests(v_limit, v_now),
                         durable._sweep_retention(v_now));
  end if;
  if v_answer is not null then
    return v_answer;
  end if;
  perform durable._mark_engine_xact();
  select * into v_settled from durable._settle_due(v_now, v_limit) s;
  select * into v_leases from durable._sweep_expired_leases(v_now, v_limit) l;
  select * into v_offered from durable._offer_to_their_code(v_now, v_limit) o;
  select * into v_children from durable._cancel_children(v_limit) c;
  v_queues := v_settled.queues || v_leases.queues || v_offered.queues || v_children.queues;
  v_locked := v_settled.locked || v_leases.locked || v_offered.locked || v_children.locked
              || case when p_schedules then durable._left_schedules(v_now) end;
  v_now := durable._now_ms();
  return jsonb_build_object('promises', v_settled.ended + v_children.asked, 'leases', v_leases.lost, 'schedules', 0,
    'next_due_ms', durable._due_in(v_now, case when v_locked <> '{}' then v_now + 1 else 0 end), 'locked', v_locked,
    'more', v_settled.full_batch or v_children.full_batch or v_leases.lost = v_limit
      or exists (select from durable._schedules s where not p_schedules and s.next_run_at <= v_now),
    'hints', to_jsonb(array(select distinct q from unnest(v_queues) q)),
    'gone_in_ms', durable._gone_in(v_now), 'warning', durable._record_timeline(v_now), 'problem', durable._ensure_partitions(v_now));
end
$$ set lock_timeout = '1s';
comment on function durable.tick_v1(integer, boolean) is
  'One round of a tick, the first of these that is due: firing schedules (p_schedules: a caller that has just fired some, or tested waits, passes false, so that neither delays the other); testing waits for rows; settling promises that are due or whose waits for rows have a result, ending cancelled runs whose grace is over, taking lost leases, cancelling child runs whose parents have left them, and letting halted runs go on whose code is back, at most p_limit of each. Answers what it did, the ms until something is due, whether to call it again, the ms until a worker that was found missing counts as gone, the ids that other sessions have locked, for which work was left out, a problem of its own, and a warning. In a copy that was not adopted it does nothing, and its problem says so.';
