-- The laws of journals and of their heads. Names carry the numbers of the journal's catalogue: S (shape), SE (sequences of
-- attempts), CF (causes), JS (join sets), INV, A and X (additions), C (agreement of journals and tables), R (rulings). Each
-- query reads the rows of its portion, which were fetched once, in one window or group.

create or replace function durable._follower(p_head durable._executions)
returns bigint language sql stable
as $$
  select n.execution
  from durable._journal j
  join durable._executions n on n.execution = any (array[(durable._json(durable._data(j)) ->> 'continued_as')::bigint])
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq = p_head.next_seq - 1
    and durable._ends_run(j.type)
    and n.previous = p_head.execution
$$;
comment on function durable._follower(durable._executions) is
  'The next generation of a run that continued as new or was tried again, as the last row of this one names it.';

create or replace function durable._is_fork(p_id text)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._forks f where f.id = p_id);
end
$$;
comment on function durable._is_fork(text) is 'Whether a run began as a copy. In PL/pgSQL, so that it is looked up only where a law asks.';

create or replace function durable._check_heads(p_runs int8multirange)
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('status %s, task %s, promise %s', h.status, t.state, p.state)
  from durable._heads_within(p_runs) h
  left join durable._promises p on p.id = any (array[h.id])
  left join durable._tasks t on t.id = any (array[h.id]) and t.execution = h.execution
  cross join lateral (select p.head is distinct from h.execution and durable._follower(h) is not null as is_followed) x
  cross join lateral (values
    ('head_has_promise', (p.head is not distinct from h.execution) = x.is_followed),
    ('C-2 pending_iff_live',
      not x.is_followed and (p.state = 'pending') <> (h.status in ('running', 'blocked', 'cancelling'))),
    ('C-2 status_is_the_verdict', not x.is_followed and p.state <> 'pending' and h.status <> case p.state
      when 'resolved' then 'completed' when 'rejected_canceled' then 'cancelled' else 'failed' end),
    ('C-3 suspended_iff_blocked', t.state = 'suspended' and h.status <> 'blocked' and not h.written_by_client),
    ('C-3 acquired_is_not_fresh_blocked',
      t.state = 'acquired' and h.status = 'blocked' and t.version < 2 and not h.written_by_client),
    ('R2 open_attempts_are_held', t.state in ('pending', 'suspended', 'halted') and not h.written_by_client
      and true = any (h.open_running)),
    ('problem_only_while_halted', h.problem is not null and t.state is distinct from 'halted' and p.state = 'pending'),
    ('cancelling_ends_by_itself', h.status = 'cancelling' and h.cancel_until is null and not h.written_by_client),
    ('suspended_within_the_journal', h.suspend_seq > h.next_seq),
    ('task_is_of_the_workflow_of_its_run', t.id is not null and case when h.written_by_client then t.workflow is not null
      else t.workflow is distinct from h.workflow or t.workflow_version is distinct from h.workflow_version end),
    ('problem_is_json', durable._is_unreadable(h.problem)),
    ('halted_run_has_a_problem', t.state = 'halted' and h.problem is null and not h.written_by_client),
    ('driven_run_was_acquired', coalesce(t.version, p.task_version) = 0 and p.head = h.execution
      and (h.status = 'blocked' or h.open_steps <> '{}' or (h.next_child > h.first_child and not h.written_by_client))
      and durable._is_fork(h.id) is not true)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_heads(int8multirange) is
  'Laws that tie heads to promises and tasks (C-2, C-3). A generation that has a next one ended before its promise.';

create or replace function durable._check_run_waits(p_runs int8multirange, p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with wait as (
    select h.execution, h.id, h.wait_kind, h.wait_left, h.waiting_on,
           p.id is not null or k.child is not null or i.receiver is not null
             or (h.written_by_client and (n = any (h.open_steps) or n >= h.next_child)) as is_open,
           p.id is not null and o.awaiter_id is null as deaf
    from (select * from durable._heads_within(p_runs) x where x.status = 'blocked') h
    cross join lateral unnest(h.waiting_on) n
    left join durable._promises p on p.id = any (array[h.id || '.' || n]) and p.execution = h.execution and p.state = 'pending'
    left join lateral (select c.awaiter_id from durable._callbacks c
                       where c.awaited_id = p.id and c.awaiter_id = h.id and c.child < 0 limit 1) o on true
    left join lateral (select c.child from durable._callbacks c
                       where c.awaiter_id = h.id and c.child = n and c.child >= 0 limit 1) k on true
    left join lateral (select b.receiver from durable._inboxes b
                       where b.execution = h.execution and b.receiver = n limit 1) i on true
  )
  select v.law, w.id, format('waits for %s of %s, %s open', w.wait_kind, w.waiting_on, w.open)
  from (
    select x.id, x.wait_kind, x.wait_left, x.waiting_on, count(*) filter (where x.is_open) as open, bool_or(x.deaf) as deaf
    from wait x group by x.execution, x.id, x.wait_kind, x.wait_left, x.waiting_on
  ) w
  join durable._promises p on p.id = any (array[w.id]) and p.timeout_at > durable._now_ms()
  cross join lateral (values
    ('X-5 wait_is_on_pending_children', w.wait_left is distinct from case
      when w.wait_kind = 'all' then w.open when w.open = cardinality(w.waiting_on) then 1 else 0 end),
    ('blocked_run_has_its_callbacks', w.deaf)
  ) as v (law, broken)
  where v.broken
  union all
  select 'INV-4 wait_is_the_last_of_the_journal', h.id,
         format('%s of %s, suspended at %s, journal %s', h.wait_kind, h.waiting_on, h.suspend_seq, l.data)
  from (select distinct on (j.execution) j.execution, j.seq, j.data, j.before
        from (select r.execution, r.seq, r.type, r.data, lag(r.type) over (partition by r.execution order by r.seq) as before
              from unnest(p_rows) r) j
        where j.type = 'execution_awaiting' order by j.execution, j.seq desc) l
  join durable._executions h on h.execution = any (array[l.execution]) and h.status = 'blocked'
  cross join lateral durable._json(l.data) g
  where g -> 'on' is distinct from to_jsonb(h.waiting_on) or g ->> 'kind' is distinct from h.wait_kind
     -- attempts that the wait gave up stand between the suspend and the wait
     or (h.suspend_seq <= l.seq and not h.written_by_client and l.before <> 'open_attempt_failed')
$$;
comment on function durable._check_run_waits(int8multirange, durable._journal_line[]) is
  'A blocked run waits for the children that its journal names and that are open, and each of them resumes it when it ends (INV-4, X-5): children, adopted promises, receives. A client that keeps its own journal may also wait for its own steps and for the next receipt.';

create or replace function durable._removed_before(p_type durable.row_type, p_attempt integer, p_before integer)
returns integer language sql immutable parallel safe
as $$ select case when durable._is_local(p_type) and p_attempt > p_before + 1 then p_attempt - p_before - 1 else 0 end $$;
comment on function durable._removed_before(durable.row_type, integer, integer) is
  'How many attempts of a local step were removed before this row; p_before: the attempt of the row about the step before it.';

create or replace function durable._check_head_counters(p_runs int8multirange, p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with fold as (
    select j.execution, j.bucket, sum(durable._width(j.type)) filter (where j.type is not null) as width, max(j.ts) as last_at,
           max(j.ts) filter (where not durable._ends_run(j.type)) as before_end,
           min(j.ts) filter (where j.seq = 0) as started_at,
           min(j.seq) as first, max(j.seq + durable._width(j.type)) as beyond,
           max(j.child) filter (where durable._allocates(j.type)) as last_child,
           min(j.child) filter (where durable._allocates(j.type)) as first_child,
           count(*) filter (where durable._allocates(j.type)) as carried,
           array_agg(distinct j.child) filter (where durable._allocates(j.type)) as children,
           count(*) filter (where j.type = 'execution_started') as starts,
           min(j.seq) filter (where j.type = 'execution_started') as start,
           count(*) filter (where durable._ends_run(j.type)) as ends, coalesce(sum(j.removed), 0) as removed,
           min(j.seq) filter (where j.type = 'cancel_requested') as request,
           durable._status_of(max(durable._status_at(j.seq, durable._status_after(j.type)))) as status
    from (select x.execution, x.bucket, x.seq, x.ts, x.type, x.child, durable._removed_before(x.type, x.attempt, lag(x.attempt)
                   over (partition by x.execution, x.child, durable._is_local(x.type) order by x.seq)) as removed
          from unnest(p_rows) x
          union all
          select h.execution, h.bucket, null, null, null, null, null from durable._heads_within(p_runs) h) j
    group by j.execution, j.bucket)
  select v.law, coalesce(h.id, f.execution::text),
         format('rows %s to %s, next_seq %s of %s, children %s to %s, reserved %s', f.first, f.beyond, h.next_seq, l.events,
                h.first_child, h.next_child, h.reserved)
  from fold f
  left join durable._executions h on h.execution = any (array[f.execution]) and h.bucket = f.bucket
  left join durable._executions b on b.execution = any (array[h.previous])
  left join durable._promises p on p.id = any (array[h.id]) and p.head = h.execution
  cross join lateral (select cardinality(coalesce(f.children, '{}')) as count) c
  -- an attempt that was removed had two events; a fork counts on from those that were left to copy
  cross join lateral (select coalesce(f.width, 0) + 2 * f.removed as most) m
  cross join lateral (select case when f.removed > 0 and durable._is_fork(h.id) then greatest(f.width, least(f.beyond, m.most))
                                  else m.most end as events offset 0) l
  cross join lateral (values
    ('journal_row_has_a_head', h.execution is null),
    ('S-1 INV-2 seq_is_dense', f.first <> 0 or f.beyond <> l.events),
    ('C-4 next_seq_is_journal_length', h.next_seq <> l.events),
    ('head_knows_when_its_journal_grew', h.last_at <> f.last_at),
    ('journal_was_written_in_the_past', f.last_at > durable._latest(durable._now_ms())),
    ('run_settles_when_its_journal_ends', f.ends > 0 and (p.settled_at > f.last_at
      or (p.settled_at < least(f.last_at, p.timeout_at - 1) and f.last_at > f.before_end))),
    ('run_is_born_with_its_journal', h.previous is null and p.created_at <> f.started_at
      and not (p.tags ? 'resonate:schedule' and p.created_at < f.started_at) and durable._is_fork(h.id) is not true),
    ('INV-4 status_agrees_with_journal', h.status <> coalesce(f.status, '')),
    ('X-1 started_once', f.starts > 1),
    ('S-2 INV-1 starts_with_started', h.execution is not null and f.start is distinct from 0),
    ('S-3 at_most_one_end', f.ends > 1),
    ('A-1 next_child_follows_journal', h.next_child <> coalesce(f.last_child + 1, h.first_child)),
    ('A-1 children_carried_once', f.carried > c.count),
    ('A-1 gaps_are_reserved', cardinality(h.reserved) <> h.next_child - h.first_child - c.count
      or f.first_child < h.first_child or h.reserved && f.children
      or exists (select from unnest(h.reserved) r group by r having count(*) > 1 or r < h.first_child or r >= h.next_child)),
    ('INV-6 child_has_one_owner', f.first_child < b.next_child),
    ('cancel_seq_is_the_request', h.cancel_seq is distinct from f.request and (h.cancel_seq is not null
      or h.status = 'cancelling'))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_head_counters(int8multirange, durable._journal_line[]) is
  'Heads agree with their journals (INV-4, C-4, A-1, X-1, S-1 to S-3). The child numbers of a generation begin above those of the one before, so no child has two owners (INV-6). A run that was settled as cancelled had no request before.';

create or replace function durable._is_of_run(p_type durable.row_type)
returns boolean language sql immutable parallel safe
as $$
  select p_type in ('execution_started', 'execution_awaiting', 'execution_resumed', 'execution_completed', 'execution_failed',
                    'execution_cancelled', 'cancel_requested', 'signal_delivered')
$$;
comment on function durable._is_of_run(durable.row_type) is 'Whether a row is about the run as a whole, and not about one of its calls.';

create or replace function durable._is_capture(p_type durable.row_type, p_name text, p_data text)
returns boolean language sql immutable parallel safe
as $$
  select case p_type
    when 'time_recorded' then p_data ~ '^[0-9]{1,16}$'
    when 'random_generated' then case p_name
      when 'random' then p_data ~ '^[0-9.]+(e-?[0-9]+)?$' when 'randint' then p_data ~ '^-?[0-9]+$'
      when 'choice' then p_data ~ '^[0-9]+$' when 'shuffle' then p_data ~ '^"[0-9a-f]{32}"$'
      when 'uuid4' then p_data ~ '^"[0-9a-f-]{36}"$' when 'uuid7' then p_data ~ '^"[0-9a-f-]{36}"$' end end
$$;
comment on function durable._is_capture(durable.row_type, text, text) is
  'Whether a captured value is what the call of that name captures: false, if it is not; null, if it may be anything, as a client records.';

create or replace function durable._is_of_fork(p_execution bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (
    select from durable._executions h join durable._forks f on f.id = any (array[h.id]) where h.execution = p_execution);
end
$$;
comment on function durable._is_of_fork(bigint) is
  'Whether a journal is that of a fork: whoever makes one may put any value in the place of another, and make a fork of that.';

create or replace function durable._check_rows(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with row as (
    select j.execution, j.seq, j.type, j.ts, j.child, j.has_data, j.is_unreadable, j.name, j.data,
           max(j.attempt) filter (where durable._is_local(j.type)) over (partition by j.execution) as attempts,
           lag(j.type) over w as before, lag(j.ts) over w as ts_before,
           lag(j.seq + durable._width(j.type)) over w as expected, bool_or(j.type = 'cancel_requested') over w as requested,
           max(durable._status_at(j.seq, durable._status_after(j.type)))
             over (w rows between unbounded preceding and 1 preceding) as status_at
    from unnest(p_rows) j window w as (partition by j.execution order by j.seq)
  ), placed as materialized (
    select r.*, durable._status_of(r.status_at) as status from row r
  )
  select v.law, r.execution::text, format('seq %s, type %s, while %s, at %s after %s', r.seq, r.type, r.status, r.ts, r.ts_before)
  from placed r
  cross join lateral (values
    -- numbers are free where attempts were removed: _check_head_counters counts them
    ('fused_rows_follow_each_other', r.seq <> coalesce(r.expected, 0)
      and not (r.seq > r.expected and coalesce(r.attempts, 0) >= 2 * durable._recent_attempts())),
    ('S-4 INV-3 nothing_after_the_end', durable._ends_run(r.before)),
    ('S-5 cancelled_was_requested', r.type = 'execution_cancelled' and not r.requested),
    ('X-4 resumed_only_while_blocked', r.type = 'execution_resumed' and r.status <> 'blocked'),
    ('row_fits_the_status_before_it', r.before is not null and not durable._may_append(r.status, r.type, true)),
    ('time_does_not_go_back', r.ts < r.ts_before),
    ('data_of_a_row_is_json', r.is_unreadable),
    ('captured_value_is_of_its_kind',
      case when durable._is_capture(r.type, r.name, r.data) is false then not durable._is_of_fork(r.execution) end),
    ('row_of_the_run_has_no_child', r.child is not null and durable._is_of_run(r.type)),
    ('result_is_there',
      not r.has_data and (durable._completes_step(r.type) or r.type in ('random_generated', 'time_recorded'))),
    ('row_of_a_call_has_its_number', r.child is null and (durable._allocates(r.type) or durable._resolves(r.type)))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_rows(durable._journal_line[]) is
  'The shape of journals (S-4, S-5, X-4): a row covers as many sequence numbers as its type has events, the status before the row allows its type, and no row is older than the one before it. All that a replay needs is there and can be read; the values of children, promises and signals stand elsewhere.';

create or replace function durable._ends_before_request(p_head durable._executions)
returns table (child integer, seq integer, request integer) language plpgsql stable
as $$
begin
  return query
  select d.child, d.seq, q.seq
  from durable._journal q
  join durable._journal d on d.execution = q.execution and d.bucket = q.bucket and durable._settles_child(d.type)
       and d.seq < q.seq and d.ts = q.ts and d.xmin = q.xmin and d.cmin = q.cmin
  join durable._promises p
    on p.id = any (array[p_head.id || '.' || d.child]) and p.state = 'rejected_canceled' and p.head is not null
  where q.execution = p_head.execution and q.bucket = p_head.bucket and q.type = 'cancel_requested';
end
$$;
comment on function durable._ends_before_request(durable._executions) is
  'Cancelled child runs whose ends precede the request that ended them: one statement wrote both. In PL/pgSQL, so that runs without a cancellation cost nothing.';

create or replace function durable._check_causes(p_runs int8multirange)
returns table (law text, id text, detail text) language sql stable
as $$
  select 'request_stands_before_what_it_ends', h.id,
         format('child %s ends at seq %s, the request is at %s', e.child, e.seq, e.request)
  from (select * from durable._heads_within(p_runs) x where x.status = 'cancelled' offset 0) h
  cross join lateral durable._ends_before_request(h) e
$$;
comment on function durable._check_causes(int8multirange) is
  'A forced cancellation writes the request first, then its effects on children.';

create or replace function durable._retries_of(p_execution bigint, p_bucket integer)
returns table (child integer, retries bigint, policy jsonb) language plpgsql stable
as $$
begin
  return query
  select j.child, (max(j.attempt) filter (where durable._fails_attempt(j.type)))
                  - count(*) filter (where durable._fails_attempt(j.type) and g -> 'interrupted' = 'true'),
         (array_agg(coalesce(g -> 'retry', g -> 'retry_policy'))
           filter (where j.type in ('step_scheduled', 'step_started', 'first_attempt_failed')))[1]
  from durable._journal j cross join lateral durable._json(durable._data(j)) g
  where j.execution = p_execution and j.bucket = p_bucket
    and (durable._fails_attempt(j.type) or j.type in ('step_scheduled', 'step_started')) group by j.child;
end
$$;
comment on function durable._retries_of(bigint, integer) is
  'How often local steps failed and were tried again, and the retry policies that bound the retries. In PL/pgSQL, so that journals without failures cost nothing.';

create or replace function durable._check_invocations(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with invoke as (
    select j.*, durable._schedules_invocation(j.type) as plans,
           j.type in ('step_completed', 'step_failed', 'first_attempt_failed', 'step_started', 'attempt_started',
                      'attempt_failed', 'last_attempt_completed', 'last_attempt_failed', 'child_run_started',
                      'child_settled') as starts,
           durable._fails_attempt(j.type) or j.type = 'child_run_interrupted' as retries,
           durable._completes_invocation(j.type) as completes
    from unnest(p_rows) j
    where durable._is_local(j.type) or durable._settles_child(j.type)
       or j.type in ('child_run_scheduled', 'promise_registered', 'child_run_started', 'child_run_interrupted')
  ), row as (
    select i.*, lag(i.type) over w as before, lag(i.attempt) over w as attempt_before,
           coalesce(bool_or(i.plans) over w, false) as planned,
           coalesce(max(i.attempt) filter (where i.starts) over w, 0) as started,
           max(i.attempt) filter (where durable._fails_attempt(i.type)) over (partition by i.execution, i.child) as last,
           lag(i.starts and not i.retries and not i.completes) over w as is_open, lag(i.retries) over w as is_due,
           lag(i.name) over w as name_before, lag(i.input_hash) over w as hash_before,
           coalesce(bool_or(i.completes) over (w rows between unbounded preceding and 1 preceding), false) as completed
    from invoke i window w as (partition by i.execution, i.child order by i.seq)
  )
  select v.law, r.execution::text,
         format('seq %s, child %s, %s(%s) after %s(%s)', r.seq, r.child, r.type, r.attempt, r.before, r.attempt_before)
  from row r
  cross join lateral (values
    ('SE-1 INV-5 started_was_scheduled', r.starts and not r.planned),
    ('SE-2 completed_was_started', r.completes and r.started = 0),
    ('SE-3 retried_attempt_was_started', r.retries and r.attempt > r.started),
    ('X-3 attempts_are_of_one_step', durable._is_local(r.type) and (r.name <> r.name_before or r.input_hash <> r.hash_before)),
    ('SE-4 nothing_after_the_completion', r.completed and (r.starts or r.retries or r.completes)),
    ('X-3 attempts_alternate', r.plans and r.before is not null
      or r.starts and not coalesce(case
           when r.plans or r.before in ('step_scheduled', 'child_run_scheduled', 'promise_registered') then r.attempt = 1
           when r.is_due then r.attempt > r.attempt_before end, false)
      or (r.retries or r.completes) and not r.starts and not coalesce(r.is_open and r.attempt = r.attempt_before, false))
  ) as v (law, broken)
  where v.broken
  union all
  select 'the_last_attempts_are_kept', h.execution::text,
         format('seq %s, child %s, attempt %s after %s of %s', r.seq, r.child, r.attempt, r.attempt_before, r.last)
  from row r
  join durable._executions h on h.execution = any (array[r.execution])
  where durable._removed_before(r.type, r.attempt, r.attempt_before) > 0
    and (h.rules < 3 or h.written_by_client
         or (coalesce(r.attempt > durable._oldest_recent(r.last), true) and durable._is_fork(h.id) is not true))
  union all
  select 'SE-5 retries_within_the_policy', e.execution::text, format('child %s, %s retries, %s', r.child, r.retries, r.policy)
  from (select j.execution, j.bucket from unnest(p_rows) j
        where durable._fails_attempt(j.type) group by j.execution, j.bucket) e
  cross join lateral durable._retries_of(e.execution, e.bucket) r
  where r.retries > durable._most_attempts(r.policy) - 1
$$;
comment on function durable._check_invocations(durable._journal_line[]) is
  'Laws of invocations (SE-1 to SE-5, X-3). An interrupted attempt is no failure. Without a recorded policy retries have no bound. Only attempts that lie far back are missing, and only where _remove_old_attempts removes them; a fork may be made of a journal that was longer.';

create or replace function durable._past_waits(p_rows durable._journal_line[])
returns table (execution bigint, seq integer, "on" jsonb, kind text, name text, resumed integer) language sql stable
as $$
  select w.execution, w.seq, g -> 'on', g ->> 'kind', g ->> 'name', w.resumed
  from (
    select j.execution, j.seq, j.type, j.data,
           case when lead(j.type) over t = 'execution_resumed' then lead(j.seq) over t end as resumed
    from unnest(p_rows) j
    where durable._ends_run(j.type) or j.type in ('execution_awaiting', 'execution_resumed', 'cancel_requested')
    window t as (partition by j.execution order by j.seq)
  ) w
  cross join lateral durable._json(w.data) g
  where w.type = 'execution_awaiting'
$$;
comment on function durable._past_waits(durable._journal_line[]) is 'All waits of the journals, and where each was resumed.';

create or replace function durable._members_of(p_rows durable._journal_line[])
returns table (execution bigint, seq integer, kind text, name text, resumed integer, child integer, made_by durable.row_type,
               made_at integer, receipt_of text, resolved_at integer)
language sql stable
as $$
  with row as (
    select w.execution, w.seq, w.kind, w.name, w.resumed, m::integer as child, null::durable.row_type as type,
           null::integer as place
    from durable._past_waits(p_rows) w cross join lateral jsonb_array_elements_text(w."on") m
    union all
    select j.execution, null, null, j.name, null, j.child, j.type, j.seq
    from unnest(p_rows) j where durable._allocates(j.type) or durable._resolves(j.type)
  )
  select * from (
    select r.execution, r.seq, r.kind, r.name, r.resumed, r.child,
           max(r.type) filter (where durable._allocates(r.type)) over c,
           min(r.place) filter (where durable._allocates(r.type)) over c,
           max(r.name) filter (where r.type = 'signal_received') over c,
           min(r.place) filter (where durable._resolves(r.type)) over c
    from row r window c as (partition by r.execution, r.child)) x
  where x.seq is not null
$$;
comment on function durable._members_of(durable._journal_line[]) is
  'The children of each wait (seq): the type of the row that created the child, the signal of which it is the receipt, and where it resolved.';

create or replace function durable._gave_up(p_head durable._executions, p_child integer)
returns boolean language plpgsql stable
as $$
begin
  return (p_child >= p_head.next_child or p_child = any (p_head.reserved))
    and p_child < (select n.first_child from durable._executions n where n.execution = durable._follower(p_head));
end
$$;
comment on function durable._gave_up(durable._executions, integer) is
  'Whether a generation that has a next one may have had a receive of that number that got no signal: its inboxes name no receiver any more, and the next generation counts on above it. In PL/pgSQL, so that only such waits cost a look-up.';

create or replace function durable._check_members(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with member as materialized (
    select * from durable._members_of(p_rows)
  )
  select v.law, k.execution::text, format('seq %s waits for %s, resumed at %s', k.seq, k.child, k.resumed)
  from member k
  join durable._executions h on h.execution = any (array[k.execution])
  left join lateral (select b.name from durable._inboxes b
                     where b.execution = k.execution and b.receiver = k.child limit 1) i on k.made_by is null
  cross join lateral (values
    ('R6 X-5 wait_is_for_what_can_resolve', case
      when k.made_by = 'signal_received' then k.made_at < k.seq
      when k.made_by is null then i.name is null and h.cancel_seq is null and h.status <> 'cancelled'
        and not (h.written_by_client and k.kind = 'signal') and durable._gave_up(h, k.child) is not true
      else k.made_by in ('random_generated', 'time_recorded', 'join_set_created') or k.made_at > k.seq end),
    ('X-5 wait_is_for_what_is_open',
      k.made_by is distinct from 'signal_received' and k.resolved_at < k.seq and not h.written_by_client),
    ('R7 wait_for_a_signal_is_for_its_receipt', k.kind = 'signal' and case
      when k.made_by is null then i.name <> k.name
      else k.made_by <> 'signal_received' or k.receipt_of is distinct from k.name end)
  ) as v (law, broken)
  where v.broken
  union all
  select 'X-4 resumed_when_its_wait_was_over', k.execution::text,
         format('seq %s, resumed at %s: %s of %s over', k.seq, k.resumed, count(*) filter (where k.resolved_at < k.resumed),
                count(*))
  from member k where k.resumed is not null
  group by k.execution, k.seq, k.kind, k.resumed
  having case when k.kind = 'any' then not coalesce(bool_or(k.resolved_at < k.resumed), false)
              else not bool_and(coalesce(k.resolved_at < k.resumed, false)) end
  union all
  select v.law, w.execution::text, format('seq %s: %s of %s', w.seq, w.kind, w."on")
  from durable._past_waits(p_rows) w
  cross join lateral (select jsonb_array_length(w."on") as count) n
  cross join lateral (values
    ('CF-4 signal_wait_is_on_its_receipt', w.kind = 'signal' and (n.count <> 1 or w.name is null)),
    ('X-5 single_wait_is_for_one_child', w.kind = 'single' and n.count > 1),
    ('X-5 wait_names_each_child_once',
      n.count = 0 or n.count <> (select count(distinct x) from jsonb_array_elements(w."on") x))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_members(durable._journal_line[]) is
  'Waits named children that could still resolve (CF-4, R6, R7, X-5), and each was resumed when it was over (X-4). A receive has a number before its row; until then its inbox has that number, unless the run was asked to end, because then no receive gets the signal, or its generation has ended (_gave_up).';
