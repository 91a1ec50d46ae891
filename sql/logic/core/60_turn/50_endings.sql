-- Endings: how a report leaves its run (suspended, halted, released, settled, continued), or keeps its lease and renews it. The
-- caller holds all locks and has given the verdicts; each function handles all reports of one kind at once.

create or replace function durable._open_of(p_head durable._executions, p_children integer[])
returns integer[] language plpgsql stable
as $$
begin
  return array(
    select distinct n from unnest(p_children) n
    where (select count(*) from durable._callbacks c where c.awaited_id = p_head.id || '.' || n and c.awaiter_id = p_head.id) > 0
       or (select count(*) from durable._callbacks c where c.awaiter_id = p_head.id and c.child = n and c.child >= 0) > 0
       or (select count(*) from durable._inboxes i where i.execution = p_head.execution and i.receiver = n) > 0);
end
$$;
comment on function durable._open_of(durable._executions, integer[]) is
  'Those of the children, adopted promises and receives included, that are still open and will resume the run. Counts, because an exists becomes a join that may read all callbacks first.';

create or replace function durable._wait_fits(p_wait durable._ending, p_head durable._executions)
returns boolean language plpgsql stable
as $$
declare
  v_count integer := coalesce(cardinality(p_wait."on"), 0);
  v_open integer[];
begin
  if v_count = 0 or (p_wait.kind in ('single', 'any', 'all', 'signal')) is not true
     or (p_wait.kind in ('single', 'signal') and v_count > 1) then
    return false;
  elsif p_head.status = 'blocked' then
    v_open := durable._open_of(p_head, p_head.waiting_on);
    return coalesce(p_head.waiting_on @> p_wait."on" and p_wait."on" @> v_open
                    and (cardinality(v_open) = 1 or (p_wait.kind = 'all') = (p_head.wait_kind = 'all')), false);
  elsif p_wait.kind = 'signal' and not exists (
      select from durable._inboxes i where i.execution = p_head.execution and i.receiver = p_wait."on"[1]) then
    return false;
  end if;
  return cardinality(durable._open_of(p_head, p_wait."on")) = v_count;
end
$$;
comment on function durable._wait_fits(durable._ending, durable._executions) is
  'True if the wait can end: it names open children only, and a wait for a signal names a receive (CF-4). A run that is blocked already, because it was continued after a halt, may only wait for the same children again, with or without those that have resolved since (R20).';

create or replace function durable._end_suspends(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_invalid text[];
  v_fresh text[];
  v_open bigint[];
begin
  select coalesce(array_agg(b.id) filter (where u.fits), '{}'), coalesce(array_agg(b.id) filter (where not u.fits), '{}'),
         coalesce(array_agg(b.id) filter (where u.fits and h.status = 'running'), '{}'),
         array_agg(b.execution) filter (where u.fits and true = any (h.open_running))
  into v_ids, v_invalid, v_fresh, v_open
  from unnest(p_reports) b
  join durable._executions h on h.execution = any (array[b.execution])
  -- "offset 0": once for each report
  cross join lateral (select durable._wait_fits(b.ending, h) offset 0) as u (fits)
  where b.verdict = 'ok' and (b.ending)."do" = 'suspend' and h.status in ('running', 'blocked')
    and b.outcomes = '{}' and durable._has_seen(row(b.*)::durable._run_report, h);
  if v_open is not null then
    perform durable._interrupt(v_open, 'given up', p_now);
  end if;
  perform durable._await(array(select b.execution from unnest(p_reports) b where b.id = any (v_fresh)),
                         array(select b.ending from unnest(p_reports) b where b.id = any (v_fresh)), p_now);
  if v_open is not null or v_ids <> v_fresh then
    update durable._executions h set suspend_seq = b.next
    from unnest(p_reports) b
    where h.execution = any (array[b.execution])
      and (b.execution = any (v_open) or (b.id = any (v_ids) and b.id <> all (v_fresh)));
  end if;
  perform durable._suspend(v_ids);
  return durable._set_aside_runs(v_invalid, array_fill(
    '{"type": "Nondeterminism", "message": "the wait is not one that the journal knows: nothing would ever end it"}'::text,
    array[cardinality(v_invalid)]), p_now);
end
$$;
comment on function durable._end_suspends(durable._run_report[], bigint) is
  'Suspends the runs whose coroutine has seen everything; steps that the code gave up while they ran are closed first. A warm coroutine gets the rows after its report as a tail. Answers the queues that got ready tasks.';

create or replace function durable._end_halts(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
begin
  return (
    select durable._set_aside_runs(coalesce(array_agg(b.id), '{}'), array_agg((b.ending).problem), p_now)
    from unnest(p_reports) b where b.verdict = 'ok' and (b.ending)."do" = 'halt');
end
$$;
comment on function durable._end_halts(durable._run_report[], bigint) is
  'Sets runs aside whose reports or verdicts ask for it. Answers the queues that got ready tasks.';

create or replace function durable._end_releases(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_free text[];
  v_queues text[];
begin
  v_free := array(select b.id from unnest(p_reports) b where b.verdict = 'ok' and (b.ending)."do" = 'release' order by b.id);
  if v_free = '{}' then
    return '{}';
  end if;
  perform durable._interrupt(array(select b.execution from unnest(p_reports) b where b.id = any (v_free)), 'released', p_now);
  update durable._executions h set suspend_seq = case when b.seen < b.seq then b.seen else b.next end
  from unnest(p_reports) b where b.id = any (v_free) and h.execution = any (array[b.execution]) and (b.ending).retry_in > 0;
  v_queues := durable._release_tasks(
    v_free, array(select (b.ending).retry_in from unnest(p_reports) b where b.id = any (v_free) order by b.id), p_now);
  with due_now as (
    update durable._tasks t set retry_at = p_now
    from unnest(p_reports) b
    join durable._executions h on h.execution = any (array[b.execution])
    where b.id = any (v_free) and t.id = any (array[b.id]) and t.retry_at > p_now
      and not durable._has_seen(row(b.*)::durable._run_report, h)
    returning t.queue
  )
  select v_queues || coalesce(array_agg(distinct e.queue), '{}') into v_queues from due_now e;
  update durable._tasks t set preference = null
  from unnest(p_reports) b where b.id = any (v_free) and t.id = any (array[b.id]) and b.seen < b.seq and b.seq < b.next;
  return v_queues;
end
$$;
comment on function durable._end_releases(durable._run_report[], bigint) is
  'Releases the tasks of reports that ask for it; at once if the run has rows that the coroutine has not seen. A worker that claims its own run again gets the rows that its coroutine has not seen, or the whole journal if rows of others precede its own. Returns queues of released tasks that are ready.';

create or replace function durable._end_settles(p_reports durable._run_report[], p_texts text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_states text[];
  v_data text[];
  v_versions integer[];
begin
  select array_agg(b.id),
         -- the id of a child has a dot; the task of such a run is looked up
         array_agg(case when strpos(b.id, '.') = 0 then b.version end),
         array_agg(case when (b.ending)."do" = 'complete' then 'resolved'
                        when (b.ending)."do" = 'cancel' and h.status = 'cancelling' then 'rejected_canceled'
                        else 'rejected' end),
         array_agg(case when (b.ending)."do" = 'cancel' then durable._cancelled(durable._cancel_reason(h))
                        else coalesce((b.ending).error, durable._whole((b.ending).value, p_texts)) end)
  into v_ids, v_versions, v_states, v_data
  from unnest(p_reports) b
  left join durable._executions h on h.execution = any (array[case when (b.ending)."do" = 'cancel' then b.execution end])
  where durable._has_ended(b.verdict, b.ending);
  if v_ids is null then
    return '{}';
  end if;
  return durable._settle(
    v_ids, v_states, array_fill(null::jsonb, array[cardinality(v_ids)]), v_data, p_now, p_versions => v_versions,
    p_last => case when cardinality(p_texts) > 0 then '{}' else array(
      select b.event from unnest(p_reports) b where durable._is_last(b.verdict, b.ending, b.event)) end);
end
$$;
comment on function durable._end_settles(durable._run_report[], text[], bigint) is
  'Settles the promises of runs that completed, failed, or finished their clean-up after a request of cancellation. p_texts: as of _write_reports.';

create or replace function durable._renew(p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._tasks t set expires_at = p_now + t.ttl, crashes = 0, suspect = false
  where t.id = any (array(select b.id from unnest(p_reports) b where b.verdict = 'ok'))
    and durable._is_leased(t, t.version, p_now)
    and (t.expires_at - p_now < t.ttl / 2
         or ((t.crashes > 0 or t.suspect) and t.id = any (array(
               select b.id from unnest(p_reports) b cross join lateral unnest(b.outcomes) o where o.begun is not true))));
end
$$;
comment on function durable._renew(durable._run_report[], bigint) is
  'Renews leases in their second half only: a renewal in every turn would cost an eighth more WAL, for nothing. An attempt that ended makes the run''s crashes forgotten; one that only began does not, because it may be the one that kills its workers.';

create or replace function durable._end_reports(
  p_reports durable._run_report[], p_endings text[], p_texts text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[] := '{}';
begin
  if 'suspend' = any (p_endings) then
    v_queues := durable._end_suspends(p_reports, p_now);
  end if;
  if p_endings && '{complete,fail,cancel}' then
    v_queues := v_queues || durable._end_settles(p_reports, p_texts, p_now);
  end if;
  if 'halt' = any (p_endings) then
    v_queues := v_queues || durable._end_halts(p_reports, p_now);
  end if;
  if 'release' = any (p_endings) then
    v_queues := v_queues || durable._end_releases(p_reports, p_now);
  end if;
  if 'continue' = any (p_endings) then
    v_queues := v_queues || durable._end_continues(p_reports, p_now);
  end if;
  if p_endings && '{suspend,continue}' or array_position(p_endings, null) is not null then
    perform durable._renew(p_reports, p_now);
  end if;
  return v_queues;
end
$$;
comment on function durable._end_reports(durable._run_report[], text[], text[], bigint) is
  'Handles the endings of the reports, by kind, and renews the leases of runs that go on: those without an ending, and those whose ending may have been refused. Returns the queues that got ready tasks.';
