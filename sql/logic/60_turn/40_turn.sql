-- The worker's turn: one call, one transaction, for every run that has something to report.
-- Order, once for all reports: promises, tasks, the claim (SKIP LOCKED), heads, the clock, a verdict each, the writes.

create or replace function durable._rows(
  p_execution bigint, p_bucket integer, p_id text, p_from integer, p_upto integer)
returns table ("rows" json, started_at bigint, input text) language sql stable
as $$
  select coalesce(json_agg(json_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'),
           case when s.delivery is not null then s.data when p.id is null then j.data when p.state = 'resolved' then p.value_data
                else durable._error_of(p.state, p.value_data) end,
           case when s.delivery is not null then true else p.state = 'resolved' end) order by j.seq), '[]'),
         min(j.ts) filter (where j.seq = 0), min(j.data) filter (where j.seq = 0)
  from durable._journal j
  left join durable._promises p
    on p.id = any (array[case when durable._settles_child(j.type) then coalesce(j.name, p_id || '.' || j.child) end])
  left join durable._signals s on s.execution = any (array[case when j.type = 'signal_received' then j.execution end])
       and s.name = any (array[j.name]) and s.delivery = any (array[j.attempt])
  where j.execution = any (array[p_execution]) and j.bucket = p_bucket and j.seq >= p_from and j.seq < p_upto
$$;
comment on function durable._rows(bigint, integer, text, integer, integer) is
  'Journal rows [seq, type, child, attempt, name, hash, data, ok] with the values of children and signals, for replay; and, if the first is among them, when it was written and the input that it holds. Inlined: its caller''s plan runs through the runs without a call for each.';

create or replace function durable._journal_from(p_execution bigint, p_seen integer)
returns json language plpgsql stable
as $$
begin
  return (
    select json_build_object('next', h.next_seq, 'rows', r."rows")
    from durable._executions h
    cross join lateral durable._rows(h.execution, h.bucket, h.id, p_seen, h.next_seq) r
    where h.execution = p_execution);
end
$$;
comment on function durable._journal_from(bigint, integer) is 'The journal of one run from p_seen on, and the number after it.';

create or replace function durable.worker_journal_v1(p_worker text, p_execution bigint, p_id text, p_version integer)
returns json language sql volatile
as $$
  select durable._journal_from(h.execution, 0)
  from durable._executions h
  join durable._tasks t on t.id = any (array[h.id])
  where h.execution = p_execution and h.id = p_id and t.pid = p_worker and durable._is_leased(t, p_version, durable._now_ms())
$$;
comment on function durable.worker_journal_v1(text, bigint, text, integer) is
  'The whole journal of a held run, to replay it from the start; null if the lease is lost.';

create or replace function durable._first_row(p_execution bigint, p_bucket integer, out started_at bigint, out input text)
language plpgsql stable
as $$
begin
  select j.ts, j.data into started_at, input from durable._journal j
  where j.execution = p_execution and j.bucket = p_bucket and j.seq = 0;
end
$$;
comment on function durable._first_row(bigint, integer) is 'When a journal began, and the input that it holds if its promise does not.';

create or replace function durable._claimable(
  p_worker text, p_queues text[], p_codes text[], p_want integer, p_had text[], p_but bigint[],
  out ids text[], out executions bigint[], out owners bigint[], out warm text[])
language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  select coalesce(array_agg(x.id), '{}'), coalesce(array_agg(x.execution), '{}'), coalesce(array_agg(x.owner), '{}'),
         coalesce(array_agg(x.id) filter (where x.preference = p_worker), '{}')
  into ids, executions, owners, warm
  from (
    select r.*
    from unnest(p_queues) as q (queue)
    cross join lateral (
      select t.id, t.execution, t.owner, t.preference from durable._tasks t
      where t.queue = q.queue and t.state = 'pending' and t.retry_at <= v_now and t.deadline > v_now
        and (t.prefer_until is null or t.prefer_until <= v_now or t.preference = p_worker)
        and durable._code(t.workflow, t.workflow_version) = any (p_codes)
        and t.id <> all (p_had) and t.execution <> all (p_but) and (t.owner is null or t.owner <> all (p_but))
      order by t.priority, t.retry_at
      limit p_want for update skip locked) r
    limit p_want) x;
end
$$;
comment on function durable._claimable(text, text[], text[], integer, text[], bigint[]) is
  'Locks up to p_want ready tasks that this worker can run, skipping what others hold, p_had, and runs of the heads p_but or whose owners those are. owners: at the same places, null for none; warm: those whose coroutine it has.';

create or replace function durable._take_claim(
  p_worker text, p_queues text[], p_codes text[], p_want integer,
  out ids text[], out heads bigint[], out warm text[], out owned boolean, out missed bigint[])
language plpgsql volatile
as $$
declare
  v_some record;
  v_missed bigint[];
  v_resumed text[];
  v_tried text[] := '{}';
  -- a look that finds nothing draws no transaction number
  v_alone boolean := durable._stands_alone();
begin
  ids := '{}'; heads := '{}'; warm := '{}'; missed := '{}'; owned := false;
  for v_round in 1..4 loop
    select * into v_some
    from durable._claimable(p_worker, p_queues, p_codes, p_want - cardinality(ids), v_tried, missed) c;
    exit when v_some.ids = '{}';
    if v_alone and v_round = 1 then
      perform durable._mark_turn(true);
    end if;
    v_missed := durable._take_heads(
      v_some.executions || array(select distinct o from unnest(v_some.owners) o where o is not null));
    v_resumed := durable._take_resumes(v_some.ids);
    if v_resumed <> '{}' then
      v_missed := v_missed || array(select c.execution from unnest(v_some.ids, v_some.executions) as c (id, execution)
                                    where c.id = any (v_resumed));
    end if;
    if v_missed = '{}' and v_round = 1 then
      ids := v_some.ids; heads := v_some.executions; warm := v_some.warm;
      owned := array_remove(v_some.owners, null) <> '{}';
      return;
    end if;
    v_tried := v_tried || v_some.ids;
    missed := missed || v_missed;
    select ids || coalesce(array_agg(c.id), '{}'), heads || coalesce(array_agg(c.execution), '{}'),
           warm || coalesce(array_agg(c.id) filter (where c.id = any (v_some.warm)), '{}'),
           owned or coalesce(bool_or(c.owner is not null), false)
    into ids, heads, warm, owned
    from unnest(v_some.ids, v_some.executions, v_some.owners) as c (id, execution, owner)
    where c.execution <> all (v_missed) and (c.owner is null or c.owner <> all (v_missed));
    exit when v_missed = '{}' or cardinality(ids) = p_want;
    if v_round = 4 then
      -- who holds so many must not hide the others for as long
      update durable._tasks t set retry_at = durable._now_ms() + 500 where t.id = any (v_tried) and t.id <> all (ids);
    end if;
  end loop;
end
$$;
comment on function durable._take_claim(text, text[], text[], integer) is
  'Locks up to p_want ready tasks with their heads, those of their owners and their resumes. A run of which one is missed is left out, without costing another its place; if there are many, they are put back for half a second.';

create or replace function durable._take_reports(
  p_batch durable._turn_batch,
  out busy bigint[], out held text[], out awaiters text[], out owned boolean)
language plpgsql volatile
as $$
declare
  v_promises text[] := '{}';
  v_tasks text[] := '{}';
  v_others text[];
  v_heads bigint[] := array(select b.execution from unnest(p_batch.reports) b);
  v_beside bigint[];
  v_owners bigint[] := '{}';
begin
  busy := '{}'; held := '{}'; awaiters := '{}';
  if p_batch.settles <> '{}' or p_batch.adopts <> '{}' then
    v_promises := durable._take_promises(p_batch.settles || p_batch.adopts);
  end if;
  if p_batch.settles <> '{}' then
    awaiters := durable._awaiters_of(p_batch.settles);
    v_tasks := durable._take_tasks(p_batch.settles, true);
  end if;
  v_others := array(select b.id from unnest(p_batch.reports) b where b.id <> all (p_batch.settles));
  if awaiters <> '{}' then
    v_others := array(select unnest(v_others) union select unnest(awaiters) except select unnest(p_batch.settles));
  end if;
  if v_others <> '{}' then
    v_tasks := v_tasks || durable._take_tasks(v_others, false);
  end if;
  if p_batch.settles <> '{}' then
    v_owners := array(select distinct t.owner from durable._tasks t where t.id = any (p_batch.settles) and t.owner is not null);
  end if;
  owned := v_owners <> '{}';
  if owned or awaiters <> '{}' then
    v_heads := array(
      select unnest(v_heads || v_owners)
      union
      select t.execution from durable._tasks t where t.id = any (awaiters) and t.execution is not null);
  end if;
  v_beside := v_heads;
  v_heads := durable._take_heads(v_heads);
  v_tasks := v_tasks || durable._take_side_rows(p_batch, v_beside, v_others);
  if v_promises <> '{}' or v_tasks <> '{}' or v_heads <> '{}' then
    v_others := v_promises || v_tasks || durable._hindered(p_batch.settles, v_tasks, v_heads);
    busy := array(select b.execution from unnest(p_batch.reports) b
                  where b.id = any (v_others) or b.execution = any (v_heads)
                     or exists (select from unnest(b.commands) a where a."do" = 'adopt' and a.name = any (v_promises)));
    held := durable._locked_ids(v_promises || v_tasks, v_heads);
  end if;
  if p_batch.adopts <> '{}' and not durable._try_adoptions(p_batch.adopts) then
    busy := busy || array(select b.execution from unnest(p_batch.reports) b
                          where exists (select from unnest(b.commands) a where a."do" = 'adopt'));
    held := held || p_batch.adopts;
  end if;
end
$$;
comment on function durable._take_reports(durable._turn_batch) is
  'Locks what reports need, each whole or not at all: its task and head; where it settles, its promise, who awaits it and its owner''s head; what it adopts; the side rows that it writes. busy: reports that cannot have it now, because of held. awaiters: tasks that this turn may wake. owned: what is settled has owners, whose journals record it.';

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
  'Those children, adopted promises and receives among them, that have not resolved yet and will wake the run. Counts, because an exists becomes a join that may read all callbacks first.';

create or replace function durable._wait_fits(p_wait durable._ending, p_head durable._executions)
returns boolean language sql stable
as $$
  select coalesce(case
    when cardinality(p_wait."on") = 0 or (p_wait.kind in ('single', 'any', 'all', 'signal')) is not true then false
    when p_wait.kind in ('single', 'signal') and cardinality(p_wait."on") > 1 then false
    when p_head.status <> 'blocked' then cardinality(durable._open_of(p_head, p_wait."on")) = cardinality(p_wait."on")
      and (p_wait.kind <> 'signal' or (select count(*) from durable._inboxes i
                                       where i.execution = p_head.execution and i.receiver = p_wait."on"[1]) > 0)
    else p_head.waiting_on @> p_wait."on" and p_wait."on" @> o.children
         and (cardinality(o.children) = 1 or (p_wait.kind = 'all') = (p_head.wait_kind = 'all')) end, false)
  from (select case when p_head.status = 'blocked' then durable._open_of(p_head, p_head.waiting_on) end) as o (children)
$$;
comment on function durable._wait_fits(durable._ending, durable._executions) is
  'The wait can end: all it names are open children, and a signal''s is a receive (CF-4). A run that is blocked already, having been continued after a halt, may only wait for the same again, with or without what resolved since (R20).';

create or replace function durable._end_suspends(p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_ids text[];
  v_bad text[];
  v_fresh text[];
  v_open bigint[];
begin
  select coalesce(array_agg(b.id) filter (where u.fits), '{}'), coalesce(array_agg(b.id) filter (where not u.fits), '{}'),
         coalesce(array_agg(b.id) filter (where u.fits and h.status = 'running'), '{}'),
         array_agg(b.execution) filter (where u.fits and true = any (h.open_running))
  into v_ids, v_bad, v_fresh, v_open
  from unnest(p_reports) b
  join durable._executions h on h.execution = any (array[b.execution])
  cross join lateral (select durable._wait_fits(b.ending, h)) as u (fits)
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
  perform durable._halt_runs(v_bad, array_fill(
    '{"type": "Nondeterminism", "message": "the wait is not one that the journal knows: nothing would ever end it"}'::text,
    array[cardinality(v_bad)]), p_now);
end
$$;
comment on function durable._end_suspends(durable._run_report[], bigint) is
  'Suspends the runs whose coroutine has seen everything; steps that it gave up while they ran are closed first. Rows after its report are the tail that a warm coroutine gets.';

create or replace function durable._end_halts(p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  perform durable._halt_runs(array_agg(b.id), array_agg((b.ending).problem), p_now)
  from unnest(p_reports) b where b.verdict = 'ok' and (b.ending)."do" = 'halt' having count(*) > 0;
end
$$;
comment on function durable._end_halts(durable._run_report[], bigint) is 'Sets runs aside, as their reports or their judge ask for.';

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
  v_queues := durable._let_go(
    v_free, array(select (b.ending).retry_in from unnest(p_reports) b where b.id = any (v_free) order by b.id), p_now);
  with early as (
    update durable._tasks t set retry_at = p_now
    from unnest(p_reports) b
    join durable._executions h on h.execution = any (array[b.execution])
    where b.id = any (v_free) and t.id = any (array[b.id]) and t.retry_at > p_now
      and not durable._has_seen(row(b.*)::durable._run_report, h)
    returning t.queue
  )
  select v_queues || coalesce(array_agg(distinct e.queue), '{}') into v_queues from early e;
  update durable._tasks t set preference = null
  from unnest(p_reports) b where b.id = any (v_free) and t.id = any (array[b.id]) and b.seen < b.seq and b.seq < b.next;
  return v_queues;
end
$$;
comment on function durable._end_releases(durable._run_report[], bigint) is
  'Releases what the reports ask for, not later than now if something came that the coroutine has not seen; returns queues of released tasks that are ready. A worker that comes back to a run of its own gets what its coroutine has not seen, or all of it if rows of others lie before its own.';

create or replace function durable._end_settles(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_states text[];
  v_data text[];
  v_versions integer[];
begin
  select array_agg(b.id),
         -- the id of a child has a dot; who has one is looked at
         array_agg(case when strpos(b.id, '.') = 0 then b.version end),
         array_agg(case when (b.ending)."do" = 'complete' then 'resolved'
                        when (b.ending)."do" = 'cancel' and h.status = 'cancelling' then 'rejected_canceled'
                        else 'rejected' end),
         array_agg(case when (b.ending)."do" = 'cancel' then durable._cancelled(durable._cancel_reason(h))
                        else coalesce((b.ending).error, (b.ending).value) end)
  into v_ids, v_versions, v_states, v_data
  from unnest(p_reports) b
  left join durable._executions h on h.execution = any (array[case when (b.ending)."do" = 'cancel' then b.execution end])
  where durable._has_ended(b.verdict, b.ending);
  if v_ids is null then
    return '{}';
  end if;
  return durable._settle(
    v_ids, v_states, array_fill(null::jsonb, array[cardinality(v_ids)]), v_data, p_now, p_versions => v_versions,
    p_last => array(select b.event from unnest(p_reports) b where durable._is_last(b.verdict, b.ending, b.event)));
end
$$;
comment on function durable._end_settles(durable._run_report[], bigint) is 'Settles the promises of runs that completed, failed or cleaned up after a request of cancellation.';

create or replace function durable._renew(p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._tasks t set expires_at = p_now + t.ttl, crashes = 0
  where t.id = any (array(select b.id from unnest(p_reports) b where b.verdict = 'ok'))
    and durable._is_leased(t, t.version, p_now)
    and (t.expires_at - p_now < t.ttl / 2
         or (t.crashes > 0 and t.id = any (array(select b.id from unnest(p_reports) b where b.outcomes <> '{}'))));
end
$$;
comment on function durable._renew(durable._run_report[], bigint) is
  'Renews leases in their second half only: a renewal in every turn costs an eighth more WAL and buys nothing.';

create or replace function durable._hand_out(p_executions bigint[], p_warm text[])
returns json[] language plpgsql stable
as $$
begin
  return array(
    select durable._claimed_run(t, h, f.seq,
             case when h.previous is null then p.param_data
                  else coalesce(r.input, (durable._first_row(h.execution, h.bucket)).input) end,
             coalesce(r.started_at, (durable._first_row(h.execution, h.bucket)).started_at), r."rows")
    from unnest(p_executions) as x (execution)
    join durable._executions h on h.execution = any (array[x.execution])
    join durable._tasks t on t.id = any (array[h.id])
    join durable._promises p on p.id = any (array[h.id])
    cross join lateral (select case when h.id = any (p_warm) then coalesce(h.suspend_seq, 0) else 0 end) as f (seq)
    cross join lateral durable._rows(h.execution, h.bucket, h.id, f.seq, h.next_seq) r
    order by x.execution);
end
$$;
comment on function durable._hand_out(bigint[], text[]) is
  'Claimed runs that have a journal, with it; of those that the worker has warm, what came after their suspend.';

create or replace function durable._claim(
  p_ids text[], p_owned boolean, p_worker text, p_ttl_ms integer, p_warm text[], p_codes text[], p_digests text[],
  p_now bigint)
returns json language plpgsql volatile
as $$
declare
  v_tasks json[];
  v_begun bigint[];
  v_other bigint[];
begin
  select array_agg(durable._claimed_run(t, h, 0, p.param_data, p.created_at, '[]') order by h.execution) filter (where n.is_new),
         array_agg(h.execution) filter (where not n.is_new),
         array_agg(h.execution) filter (where durable._code(t.workflow, t.workflow_version) = any (p_codes)
           and encode(h.digest, 'hex') is distinct from durable._digest_of(t.workflow, t.workflow_version, p_codes, p_digests))
  into v_tasks, v_begun, v_other
  from durable._acquire(p_ids, p_worker, p_ttl_ms, p_now, p_owned) t
  join durable._executions h on h.execution = any (array[t.execution])
  join durable._promises p on p.id = any (array[t.id])
  cross join lateral (
    -- a run that has done nothing yet has no row but the first, which tells no more than its promise; a fork has its origin's
    select h.next_seq = 1 and h.previous is null
           and (not exists (select from durable._forks)
                or (select count(*) from durable._forks k where k.id = any (array[h.id])) = 0) offset 0) as n (is_new);
  if v_begun is not null then
    v_tasks := v_tasks || durable._hand_out(v_begun, p_warm);
  end if;
  if v_other is not null then
    update durable._executions h
    set digest = decode(durable._digest_of(h.workflow, h.workflow_version, p_codes, p_digests), 'hex')
    where h.execution = any (v_other);
  end if;
  return coalesce(array_to_json(v_tasks), '[]');
end
$$;
comment on function durable._claim(text[], boolean, text, integer, text[], text[], text[], bigint) is
  'Acquires locked tasks and hands them out with input and journal; rows are none for a run that has done nothing yet; a worker that has the coroutine warm gets what came after its suspend.';

create or replace function durable._verdicts(p_reports durable._run_report[])
returns json language plpgsql stable
as $$
begin
  return (
    select json_build_object('execution', json_agg(b.execution), 'verdict', json_agg(b.verdict),
      'state', json_agg(case when b.verdict = 'lost' then 'lost' when k.goes_on then 'acquired'
                             when t.state is null then 'done'
                             when t.state = 'pending' or t.version > b.version then 'released' else t.state end),
      'seq', json_agg(b.seq), 'next', json_agg(b.next))
    from unnest(p_reports) b
    cross join lateral (select b.verdict = 'ok' and (b.ending)."do" is null) as k (goes_on)
    left join durable._tasks t
      on t.id = any (array[case when not k.goes_on and not durable._has_ended(b.verdict, b.ending) then b.id end]));
end
$$;
comment on function durable._verdicts(durable._run_report[]) is 'The answer to each report, as parallel arrays: a third cheaper for both sides than an object each.';

create or replace function durable._tails(p_reports durable._run_report[], p_news boolean, p_now bigint)
returns json language plpgsql stable
as $$
begin
  -- the plan of the answer reaches into every partition of the journal, and mostly there is nothing to tell
  if not p_news and not exists (select from unnest(p_reports) b where b.seen < b.seq) then
    return '[]';
  end if;
  return (
    select coalesce(json_agg(json_build_array(b.execution, x."rows", y."rows")), '[]')
    from unnest(p_reports) b
    join durable._executions h
      on h.execution = any (array[case when not durable._has_ended(b.verdict, b.ending) then b.execution end])
    left join durable._tasks t on t.id = any (array[b.id])
    cross join lateral durable._rows(h.execution, h.bucket, h.id, b.seen, b.seq) x
    cross join lateral durable._rows(h.execution, h.bucket, h.id, b.next, h.next_seq) y
    where b.verdict = 'ok' and durable._is_leased(t, b.version, p_now) is true and (b.seen < b.seq or b.next < h.next_seq));
end
$$;
comment on function durable._tails(durable._run_report[], boolean, bigint) is
  'For held runs: rows that others appended before and after what the report wrote, [execution, before, after]. p_news: this turn itself may have brought them some.';

create or replace function durable._write_reports(p_batch durable._turn_batch, p_now bigint)
returns durable._run_report[] language plpgsql volatile
as $$
declare
  v_events durable._event[] := array(select b.event from unnest(p_batch.reports) b where b.event is distinct from null
                                     and not durable._is_last(b.verdict, b.ending, b.event));
begin
  if p_batch.has_commands then
    v_events := v_events || durable._command_events(p_batch.reports, p_now);
  end if;
  if p_batch.has_several then
    v_events := v_events || durable._outcome_events(p_batch.reports, p_now);
  end if;
  perform durable._check_retries(v_events);
  perform durable._append(v_events, p_now, true);
  if not p_batch.has_several then
    return p_batch.reports;
  end if;
  return array(
    select durable._with_verdict(
             b, b.verdict, b.seq,
             case when durable._is_last(b.verdict, b.ending, b.event) then b.next else coalesce(h.next_seq, b.next) end, b.event)
    from unnest(p_batch.reports) b left join durable._executions h on h.execution = any (array[b.execution]) order by b.id);
end
$$;
comment on function durable._write_reports(durable._turn_batch, bigint) is
  'Appends the commands and outcomes of judged reports, except the last result of a run that ends with it; answers the reports with the numbers after their rows.';

create or replace function durable._answer_commands(p_reports durable._run_report[], p_adopted text[], p_now bigint)
returns durable._run_report[] language plpgsql volatile
as $$
declare
  v_news bigint[];
begin
  if not exists (select from unnest(p_reports) b cross join lateral unnest(b.commands) a
                 where a."do" in ('receive', 'adopt', 'until')) then
    return p_reports;
  end if;
  v_news := durable._adopt(p_reports, p_adopted, p_now) || durable._take_buffered(p_reports, p_now)
            || durable._await_rows(p_reports, p_now);
  return array(
    select case when (b.ending)."do" = 'suspend' and b.execution = any (v_news) then durable._with_ending(b, null) else b end
    from unnest(p_reports) b order by b.id);
end
$$;
comment on function durable._answer_commands(durable._run_report[], text[], bigint) is
  'Answers at once what it can: buffered signals, promises of others that are settled or cannot be awaited. A run that got something does not suspend; the rows are in its tail.';

create or replace function durable._end_reports(p_reports durable._run_report[], p_endings text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[] := '{}';
begin
  if 'suspend' = any (p_endings) then
    perform durable._end_suspends(p_reports, p_now);
  end if;
  if p_endings && '{complete,fail,cancel}' then
    v_queues := durable._end_settles(p_reports, p_now);
  end if;
  if 'halt' = any (p_endings) then
    perform durable._end_halts(p_reports, p_now);
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
comment on function durable._end_reports(durable._run_report[], text[], bigint) is
  'Ends what the reports end, by kind, and renews the leases of those that go on: with no ending, or with one that may have been refused. Returns the queues that got ready tasks.';

create or replace function durable._write_turn(
  p_batch durable._turn_batch, p_worker text, p_now bigint, out reports durable._run_report[], out queues text[])
language plpgsql volatile
as $$
declare
  v_batch durable._turn_batch := p_batch;
  v_endings text[] := p_batch.endings;
begin
  queues := '{}';
  if not (p_batch.has_commands or p_batch.has_outcomes) then
    reports := durable._give_end_verdicts(p_batch.reports, p_worker, p_now);
  else
    v_batch.reports := durable._give_verdicts(p_batch, p_worker, p_now);
    reports := durable._write_reports(v_batch, p_now);
    -- a verdict may halt a run
    v_endings := v_endings || 'halt'::text;
  end if;
  if p_batch.has_commands then
    queues := durable._make_children(reports, p_now);
    reports := durable._answer_commands(reports, p_batch.adopts, p_now);
  end if;
  queues := queues || durable._end_reports(reports, v_endings, p_now);
end
$$;
comment on function durable._write_turn(durable._turn_batch, text, bigint) is
  'Judges the reports and does what they ask for. Answers them as they are now, and the queues that got ready tasks. The caller holds all locks.';

create or replace function durable._distinct(p_texts text[])
returns text[] language plpgsql immutable parallel safe
as $$
begin
  if cardinality(p_texts) < 2 then
    return p_texts;
  end if;
  return array(select distinct t from unnest(p_texts) t);
end
$$;
comment on function durable._distinct(text[]) is 'Each text once; a function, so that what calls it needs no plan for it.';

create or replace function durable._woken_warm(p_awaiters text[], p_worker text, p_now bigint)
returns text[] language plpgsql stable
as $$
begin
  if p_awaiters = '{}' then
    return '{}';
  end if;
  -- a task whose resumes may be locked is left to the next claim, which looks
  return array(select t.id from durable._tasks t where t.id = any (p_awaiters) and durable._ready(t, p_now)
               and t.preference = p_worker and t.execution is not null
               and (select count(*) from durable._resumes r where r.task_id = t.id and r.xmax <> 0) = 0);
end
$$;
comment on function durable._woken_warm(text[], text, bigint) is
  'Those of the tasks that are ready now and whose coroutine this worker has warm.';

create or replace function durable._turn_without_reports(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_want integer, p_ttl_ms integer)
returns json language plpgsql volatile
as $$
declare
  v_claim record;
  v_head durable._executions;
  v_tasks json := '[]';
  v_answer durable._turn_answer;
  v_now bigint;
begin
  perform durable._may_lock();
  select * into v_claim from durable._take_claim(p_worker, p_queues, p_codes, greatest(p_want, 0)) c;
  v_now := durable._now_ms();
  if cardinality(v_claim.ids) = 1 and not v_claim.owned then
    select * into v_head from durable._executions h where h.execution = v_claim.heads[1];
    v_tasks := durable._claim_single(v_claim.ids[1], v_head, p_worker, p_ttl_ms, p_codes, p_digests, v_now);
  end if;
  if v_tasks is null or cardinality(v_claim.ids) > 1 or v_claim.owned then
    v_tasks := durable._claim(v_claim.ids, v_claim.owned, p_worker, p_ttl_ms, v_claim.warm, p_codes, p_digests, v_now);
  end if;
  v_answer := durable._answer(v_now);
  v_answer.tasks := v_tasks;
  v_answer.due_in := case when p_want > 0 then coalesce(durable._due_in(v_now), durable._never()) end;
  v_answer.held := durable._locked_ids('{}', v_claim.missed);
  return row_to_json(v_answer);
end
$$;
comment on function durable._turn_without_reports(text, text[], text[], text[], integer, integer) is
  'A turn without reports, which only claims. One new run is claimed by the single-row path.';

create or replace function durable._without(p_reports jsonb, p_executions bigint[])
returns jsonb language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(b), '[]') from jsonb_array_elements(p_reports) b
  where (b ->> 'execution')::bigint <> all (p_executions)
$$;
comment on function durable._without(jsonb, bigint[]) is 'The reports of all other runs.';

create or replace function durable._turn(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_want integer, p_reports jsonb, p_ttl_ms integer,
  p_notify boolean)
returns json language plpgsql volatile
as $$
declare
  v_batch durable._turn_batch := durable._read_reports(p_reports);
  v_answer durable._turn_answer;
  v_taken record;
  v_written record;
  v_claim text[] := '{}';
  v_warm text[] := '{}';
  v_owned boolean := false;
  v_missed bigint[] := '{}';
  v_woken text[] := '{}';
  v_now bigint;
begin
  perform durable._check_reports(v_batch, pg_column_size(p_reports));
  if v_batch.has_commands then
    v_batch.adopts := durable._adopted_by(v_batch.reports);
  end if;
  perform durable._mark_turn();
  select * into v_taken from durable._take_reports(v_batch) t;
  if v_taken.busy <> '{}' then
    -- from here on the turn is what it would be without them
    v_batch := durable._read_reports(durable._without(p_reports, v_taken.busy), v_batch.adopts);
  end if;
  if p_want > 0 then
    select c.ids, c.warm, c.owned, c.missed into v_claim, v_warm, v_owned, v_missed
    from durable._take_claim(p_worker, p_queues, p_codes, p_want) c;
  end if;
  v_now := durable._now_ms();
  v_answer := durable._answer(v_now);
  select * into v_written from durable._write_turn(v_batch, p_worker, v_now) t;
  if p_want >= 0 then
    v_woken := durable._woken_warm(v_taken.awaiters, p_worker, v_now);
  end if;
  if v_claim <> '{}' or v_woken <> '{}' then
    v_answer.tasks := durable._claim(v_claim || v_woken, v_owned or v_woken <> '{}', p_worker, p_ttl_ms, v_warm || v_woken,
                                     p_codes, p_digests, v_now);
  end if;
  v_answer.settled := v_batch.settles <> '{}';
  if p_notify and v_answer.settled then
    perform durable._notify('durable_settled');
  end if;
  v_answer.verdicts := durable._verdicts(v_written.reports);
  v_answer.tails := durable._tails(
    v_written.reports, v_batch.has_commands or v_taken.owned or v_taken.awaiters <> '{}' or v_owned, v_now);
  v_answer.hints := durable._distinct(v_written.queues);
  if p_want > 0 or v_batch.has_commands or cardinality(v_written.reports) > 1 then
    v_answer.due_in := coalesce(durable._due_in(v_now), durable._never());
  end if;
  v_answer.busy := v_taken.busy;
  v_answer.held := durable._locked_ids(v_taken.held, v_missed);
  return row_to_json(v_answer);
end
$$;
comment on function durable._turn(text, text[], text[], text[], integer, jsonb, integer, boolean) is
  'A turn with any number of reports, which may also claim. p_codes: the workflows that the worker can run.';

create or replace function durable.worker_turn_v1(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_want integer, p_reports jsonb, p_ttl_ms integer,
  p_notify boolean default false, p_idle_ms integer default 0)
returns json language plpgsql volatile
as $$
declare
  v_answer json;
begin
  if coalesce(p_reports, '[]') = '[]' then
    return durable._turn_without_reports(p_worker, p_queues, p_codes, p_digests, p_want, p_ttl_ms);
  elsif p_want <= 0 and durable._is_single_end(p_reports) then
    v_answer := durable._end_single(p_worker, p_reports -> 0, p_notify, p_idle_ms);
  end if;
  if v_answer is null then
    return durable._turn(p_worker, p_queues, p_codes, p_digests, p_want, p_reports, p_ttl_ms, p_notify);
  elsif p_notify then
    perform durable._notify('durable_settled');
  end if;
  return v_answer;
end
$$;
comment on function durable.worker_turn_v1(text, text[], text[], text[], integer, jsonb, integer, boolean, integer) is
  'One round trip of a worker: takes reports (outcomes, commands, ending), claims up to p_want tasks, renews. p_codes: what it can run, as worker_hello_v1 answered; p_digests: of that code, at the same places. p_want < 0 claims nothing, not even what this turn woke. Verdicts ok, stale, lost; none of them spoils the others. due_in: milliseconds to the next deadline of all, 2^53-1 for none; null: a lone report did not look. p_notify: it sends the hint that something settled with its own commit. p_idle_ms > 0: if this ends one run and does nothing else, its worker rests again for so long, as by worker_idle_v1; rests: it does.';

create or replace function durable.worker_watch_v1(p_worker text)
returns integer language sql stable
as $$
  select case when exists (select from durable._tasks t where t.state = 'acquired' and t.pid <> p_worker)
              then 1 else -1 end * (select count(*)::integer from durable._workers w where w.present or w.id = p_worker)
$$;
comment on function durable.worker_watch_v1(text) is
  'How many workers share the watch over leases: positive while others hold tasks, so that tick is called often; else negative.';
