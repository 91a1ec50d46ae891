-- The laws as queries. durable.check() is empty in a healthy database; a row is a bug of the engine or a hand in the tables.
-- Names follow the recovery protocol and the journal's catalogue; those that say the violation are kept as published.

create or replace function durable._check_promises()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, p.id, format('state %s, created %s, settled %s, timeout %s', p.state, p.created_at, p.settled_at, p.timeout_at)
  from durable._promises p
  cross join lateral (values
    ('orphan_invokes', p.state = 'pending' and p.target is not null
      and not exists (select from durable._tasks t where t.id = p.id)),
    ('settled_promise_has_fulfilled_task', p.state <> 'pending' and exists (select from durable._tasks t where t.id = p.id)),
    ('missing_ptimeout', p.timeout_at is null),
    ('timedout_settled_at_mismatch', p.state = 'rejected_timedout' and p.settled_at is distinct from p.timeout_at),
    ('promise_created_at_lte_timeout_at', p.created_at > p.timeout_at),
    ('promise_created_at_lte_now', p.created_at > durable._now_ms()),
    ('promise_settled_at_lte_now', p.settled_at > durable._now_ms()),
    ('promise_pending_created_before_deadline', p.state = 'pending' and p.created_at >= p.timeout_at),
    ('promise_settled_at_iff_not_pending', (p.state <> 'pending') <> (p.settled_at is not null)),
    ('promise_settled_at_lte_timeout_at', p.settled_at > p.timeout_at),
    ('promise_created_at_lte_settled_at', p.settled_at < p.created_at),
    ('promise_pending_has_no_value', p.state = 'pending' and p.value_data is not null),
    ('promise_deadline_verdict_matches_timer_tag',
      p.settled_at = p.timeout_at and p.state <> case when p.timer then 'resolved' else 'rejected_timedout' end),
    ('promise_deadline_settlement_has_no_value', p.settled_at = p.timeout_at and p.value_data is not null),
    ('promise_timer_not_targeted', p.timer and p.target is not null),
    ('promise_external_if_targeted_or_timer', not p.external and (p.timer or p.target is not null)),
    ('promise_target_deliverable', durable._canonical_address(p.target) is distinct from p.target),
    ('promise_head_is_its_own', p.head is not null
      and not exists (select from durable._executions h where h.execution = p.head and h.id = p.id)),
    ('promise_owner_exists', p.execution is not null and not exists (
      select from durable._executions h where h.execution = p.execution and p.id = h.id || '.' || p.child))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_promises() is 'Laws of single promises and of their tasks and heads.';

create or replace function durable._check_tasks()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, t.id, format('state %s, version %s, pid %s', t.state, t.version, t.pid)
  from durable._tasks t
  left join durable._promises p on p.id = t.id
  cross join lateral (values
    ('orphan_tasks', p.id is null),
    ('task_iff_targeted_promise', p.id is not null and p.target is null),
    ('settled_task_promise_settled', p.state <> 'pending'),
    ('pending_task_no_ttimeout', t.state = 'pending' and t.retry_at is null),
    ('acquired_task_no_lease', t.state = 'acquired' and t.expires_at is null),
    ('task_acquired_iff_has_pid', (t.state = 'acquired') <> (t.pid is not null)),
    ('task_acquired_iff_has_ttl', (t.state = 'acquired') <> (t.ttl is not null)),
    ('task_acquired_version_positive', t.state = 'acquired' and t.version < 1),
    ('suspended_task_has_ttimeout', t.state = 'suspended' and (t.retry_at is not null or t.expires_at is not null)),
    ('task_halted_is_cleared', t.state = 'halted' and (t.retry_at is not null or t.expires_at is not null)),
    ('suspended_no_callback', t.state = 'suspended' and p.state = 'pending' and p.timeout_at > durable._now_ms()
      and not exists (select from durable._callbacks c where c.awaiter_id = t.id)),
    ('suspended_with_consumed_callbacks', t.state = 'suspended'
      and exists (select from durable._resumes r where r.task_id = t.id)),
    ('task_deadline_is_promise_timeout', t.deadline <> p.timeout_at),
    ('task_queue_is_target', t.queue is distinct from durable._queue_of(p.target)),
    ('task_head_is_promise_head', t.execution is distinct from p.head)
  ) as v (law, broken)
  where v.broken
  union all
  select 'fulfilled_task_has_ttimeout', r.task_id, 'wake reason ' || r.awaited_id || ' without a task'
  from durable._resumes r where not exists (select from durable._tasks t where t.id = r.task_id)
$$;
comment on function durable._check_tasks() is 'Laws of tasks, leases and wake reasons.';

create or replace function durable._check_waiters()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'suspended_with_consumed_callbacks', c.awaited_id, 'settled, but ' || c.awaiter_id || ' is still registered'
  from durable._callbacks c join durable._promises p on p.id = c.awaited_id and p.state <> 'pending'
  union all
  select 'callback_awaiter_no_target', c.awaiter_id, 'awaits ' || c.awaited_id
  from durable._callbacks c left join durable._promises w on w.id = c.awaiter_id where w.target is null
  union all
  select 'promise_awaiter_is_not_self', c.awaiter_id, null from durable._callbacks c where c.awaiter_id = c.awaited_id
  union all
  select 'listener_for_settled_promise', l.awaited_id, l.address
  from durable._listeners l join durable._promises p on p.id = l.awaited_id and p.state <> 'pending'
  union all
  select 'promise_obligations_require_external', o.awaited_id, o.who
  from (select c.awaited_id, c.awaiter_id as who from durable._callbacks c
        union all select l.awaited_id, l.address from durable._listeners l) o
  left join durable._promises p on p.id = o.awaited_id where p.external is not true
  union all
  select 'listener_addresses_deliverable', l.awaited_id, l.address
  from durable._listeners l where durable._canonical_address(l.address) is distinct from l.address
  union all
  select 'outbox_unblock_names_settled_promise', u.promise_id, u.address
  from durable._unblocks u left join durable._promises p on p.id = u.promise_id where p.state is null or p.state = 'pending'
  union all
  select 'outbox_unblock_address_deliverable', u.promise_id, u.address
  from durable._unblocks u where durable._canonical_address(u.address) is distinct from u.address
  union all
  select 'config_retry_positive', s.name, s.value from durable.settings s where s.name = 'retry_offer_ms' and s.value::bigint <= 0
$$;
comment on function durable._check_waiters() is 'Laws of callbacks, listeners and unblock rows.';

create or replace function durable._check_heads()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('status %s, task %s, promise %s', h.status, t.state, p.state)
  from durable._executions h
  left join durable._promises p on p.id = h.id
  left join durable._tasks t on t.id = h.id
  cross join lateral (values
    ('head_has_promise', p.head is distinct from h.execution),
    ('C-2 pending_iff_live', (p.state = 'pending') <> (h.status in ('running', 'blocked', 'cancelling'))),
    ('C-3 suspended_iff_blocked', t.state = 'suspended' and h.status <> 'blocked'),
    ('C-3 acquired_is_not_fresh_blocked', t.state = 'acquired' and h.status = 'blocked' and t.version < 2),
    ('X-5 wait_is_on_pending_children', h.status = 'blocked' and p.timeout_at > durable._now_ms()
      and h.wait_left is distinct from (
      select case when h.wait_kind = 'all' then count(*) else least(count(*), 1) end
      from unnest(h.waiting_on) n
      join durable._promises c on c.id = h.id || '.' || n and c.execution = h.execution and c.state = 'pending')),
    ('blocked_run_has_its_callbacks', h.status = 'blocked' and exists (
      select from unnest(h.waiting_on) n
      join durable._promises c on c.id = h.id || '.' || n and c.state = 'pending'
      where not exists (select from durable._callbacks k where k.awaited_id = c.id and k.awaiter_id = h.id))),
    ('R2 open_attempts_are_held', t.state in ('pending', 'suspended', 'halted')
      and exists (select from unnest(h.open_attempts) a where a > 0)),
    ('problem_only_while_halted', h.problem is not null and t.state is distinct from 'halted' and p.state = 'pending')
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_heads() is 'Laws that tie heads to promises and tasks (C-2, C-3, X-5).';

create or replace function durable._check_folds()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('next_seq %s of %s, next_child %s, reserved %s', h.next_seq, f.width, h.next_child, h.reserved)
  from durable._executions h
  left join lateral (
    select coalesce(sum(durable._width(j.type)), 0) as width,
           max(j.child) filter (where durable._allocates(j.type)) as last_child,
           count(*) filter (where durable._allocates(j.type)) as carried,
           count(distinct j.child) filter (where durable._allocates(j.type)) as distinct_children,
           array_agg(j.child) filter (where durable._allocates(j.type)) as children,
           count(*) filter (where j.type = 'S') as starts,
           count(*) filter (where j.type in ('C', 'F', 'Y')) as ends,
           (array_agg(durable._status_after(j.type) order by j.seq desc)
             filter (where durable._status_after(j.type) is not null))[1] as status
    from durable._journal j where j.execution = h.execution and j.bucket = h.bucket
  ) f on true
  cross join lateral (values
    ('C-4 next_seq_is_journal_length', h.next_seq <> f.width),
    ('INV-4 status_is_fold', h.status is distinct from f.status),
    ('X-1 started_once', f.starts <> 1),
    ('S-3 at_most_one_end', f.ends > 1),
    ('A-1 next_child_follows_journal', h.next_child <> coalesce(f.last_child + 1, 0)),
    ('A-1 children_carried_once', f.carried <> f.distinct_children),
    ('A-1 gaps_are_reserved', h.reserved is distinct from coalesce(
      (select array_agg(n order by n) from generate_series(0, h.next_child - 1) n where n <> all (f.children)), '{}'))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_folds() is 'Heads equal the fold of their journals (INV-4, C-4, A-1, X-1, S-3).';

create or replace function durable._check_journal()
returns table (law text, id text, detail text) language sql stable
as $$
  with row as (
    select j.*, lag(j.seq + durable._width(j.type)) over w as expected, lag(j.type) over w as type_before
    from durable._journal j window w as (partition by j.execution order by j.seq)
  ), invoke as (
    select l.execution, l.seq, l.event, l.attempt, l.child,
           lag(l.event) over w as before, lag(l.attempt) over w as attempt_before
    from durable._logical l where l.event like 'Invoke%'
    window w as (partition by l.execution, l.child order by l.seq)
  )
  select 'S-1 seq_is_dense', r.execution::text, 'seq ' || r.seq from row r where r.seq <> coalesce(r.expected, 0)
  union all
  select 'S-4 nothing_after_the_end', r.execution::text, 'seq ' || r.seq from row r where r.type_before in ('C', 'F', 'Y')
  union all
  select 'journal_row_has_a_head', r.execution::text, 'seq ' || r.seq
  from row r where not exists (select from durable._executions h where h.execution = r.execution and h.bucket = r.bucket)
  union all
  select 'SE-1..4 attempts_alternate', i.execution::text,
         format('seq %s, child %s, %s(%s) after %s(%s)', i.seq, i.child, i.event, i.attempt, i.before, i.attempt_before)
  from invoke i
  where case i.event
    when 'InvokeScheduled' then i.before is not null
    when 'InvokeStarted' then not coalesce((i.before = 'InvokeScheduled' and i.attempt = 1)
                                           or (i.before = 'InvokeRetrying' and i.attempt = i.attempt_before + 1), false)
    else not coalesce(i.before = 'InvokeStarted' and i.attempt = i.attempt_before, false) end
  union all
  select 'CF-1 X-2 timer_fired_once_after_scheduled', r.execution::text, 'child ' || r.child
  from row r where r.type in ('T', 'Z') group by r.execution, r.child
  having count(*) filter (where r.type = 'T') <> 1 or count(*) filter (where r.type = 'Z') > 1
      or min(r.seq) filter (where r.type = 'Z') < min(r.seq) filter (where r.type = 'T')
$$;
comment on function durable._check_journal() is 'Laws of journals by themselves (S-1, S-4, SE-1 to SE-4, X-2, X-3, CF-1).';

create or replace function durable._check_children()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'C-1 settled_iff_resolved_in_owner', p.id, format('state %s, %s resolver rows', p.state, f.resolvers)
  from durable._promises p
  join durable._executions o on o.execution = p.execution
  cross join lateral (
    select count(*) filter (where j.type in ('Z', 'd', 'D')) as resolvers,
           count(*) filter (where j.type in ('T', 'I', 'X')) as intents
    from durable._journal j where j.execution = o.execution and j.bucket = o.bucket and j.child = p.child
  ) f
  where f.intents <> 1 or f.resolvers > 1 or (p.state = 'pending' and f.resolvers > 0)
     or (p.state <> 'pending' and f.resolvers = 0 and o.status in ('running', 'blocked', 'cancelling'))
  union all
  select 'C-5 open_attempt_of_child_run', t.id, format('attempt %s, open %s', t.attempt, t.attempt_open)
  from durable._tasks t
  join durable._promises p on p.id = t.id
  join durable._executions o on o.execution = p.execution and o.status in ('running', 'blocked', 'cancelling')
  cross join lateral (
    select count(*) filter (where j.type = 'b') as started, count(*) filter (where j.type = 'i') as ended
    from durable._journal j where j.execution = o.execution and j.bucket = o.bucket and j.child = p.child
  ) f
  where f.started <> t.attempt or (f.started > f.ended) <> t.attempt_open
  union all
  select 'C-5 open_steps_of_head', h.id, format('open %s', h.open_steps)
  from durable._executions h
  cross join lateral (
    select coalesce(array_agg(u.child order by u.child), '{}') as children from (
      select distinct on (j.child) j.child, durable._attempt_after(j.type, j.attempt) as attempt
      from durable._journal j
      where j.execution = h.execution and j.bucket = h.bucket and durable._is_local(j.type)
      order by j.child, j.seq desc) u where u.attempt <> 0
  ) f
  where f.children is distinct from h.open_steps
$$;
comment on function durable._check_children() is 'Promises and tasks of children agree with the owner''s journal (C-1, C-5).';

create or replace function durable.check()
returns table (law text, id text, detail text) language sql stable
as $$
  select * from durable._check_promises()
  union all select * from durable._check_tasks()
  union all select * from durable._check_waiters()
  union all select * from durable._check_heads()
  union all select * from durable._check_folds()
  union all select * from durable._check_journal()
  union all select * from durable._check_children()
$$ set search_path = '';
comment on function durable.check() is
  'One row for each violated law: its name, the object, what was seen. Empty when all is well. Reads everything: on a big database run it on a replica.';
