-- The laws of the protocol as queries: promises, tasks, waiters, messages, schedules. 20_check_journal.sql has the laws of
-- journals and heads, 40_check_portions.sql has durable.check(). A row is a bug of the engine or a change of the tables by
-- hand. Names are those of the protocol's catalogue, also where they name the violation; a number of its list (P02) stands
-- before a name of our own. A fulfilled task is a settled promise with a task_version. There is no outbox for execute messages:
-- a pending task is its own message.

create or replace function durable._check_promises(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, p.id, format('state %s, created %s, settled %s, timeout %s', p.state, p.created_at, p.settled_at, p.timeout_at)
  from durable._promises_within(p_from, p_to) p
  cross join (select durable._latest(durable._now_ms()) as latest) c
  cross join lateral (values
    ('missing_ptimeout', p.timeout_at is null),
    ('P02 promise_timeout_at_not_negative', p.timeout_at < 0),
    ('P03 promise_created_at_not_negative', p.created_at < 0),
    ('well_formed_promise_created_at_lte_timeout_at', p.created_at > p.timeout_at),
    ('well_formed_promise_created_at_lte_now', p.created_at > c.latest),
    ('well_formed_promise_settled_at_lte_now', p.settled_at > c.latest),
    ('well_formed_promise_pending_created_before_deadline', p.state = 'pending' and p.created_at >= p.timeout_at),
    ('well_formed_promise_settled_at_iff_not_pending', (p.state <> 'pending') <> (p.settled_at is not null)),
    ('well_formed_promise_settled_at_lte_timeout_at', p.settled_at > p.timeout_at),
    ('well_formed_promise_created_at_lte_settled_at', p.settled_at < p.created_at),
    ('well_formed_promise_pending_has_no_value',
      p.state = 'pending' and (p.value_data is not null or p.value_headers <> '{}')),
    ('timedout_settled_at_mismatch', p.state = 'rejected_timedout' and p.settled_at is distinct from p.timeout_at),
    ('well_formed_promise_timedout_is_server_owned',
      p.state = 'rejected_timedout' and p.settled_at is distinct from p.timeout_at),
    ('well_formed_promise_deadline_verdict_matches_timer_tag',
      p.settled_at = p.timeout_at and p.state <> case when p.timer then 'resolved' else 'rejected_timedout' end),
    ('well_formed_promise_deadline_settlement_has_no_value',
      p.settled_at = p.timeout_at and (p.value_data is not null or p.value_headers <> '{}')),
    ('ikey_complete_is_of_a_client_verdict',
      p.ikey_complete is not null and (p.state = 'pending' or p.settled_at is not distinct from p.timeout_at)),
    ('well_formed_promise_timer_not_targeted', p.timer and p.target is not null and durable._strict()),
    ('well_formed_promise_target_is_nonempty', p.target = ''),
    ('failed_run_says_how_and_when', p.failure is distinct from durable._failure(p.head, p.state)
      or p.failed_at is distinct from case when p.failure is not null then to_timestamp(p.settled_at / 1000.0) end),
    -- not its value or error: whoever settles it from outside may give any text, or none
    ('input_of_a_run_is_json',
      p.head is not null and durable._is_plain(p.param_headers) and durable._is_unreadable(p.param_data)),
    ('promise_external_if_targeted_or_timer', not p.external and (p.timer or p.target is not null))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_promises(text[], text[]) is 'Laws of single promises.';

create or replace function durable._check_tags(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, p.id, format('timer %s, external %s, target %s, timeout %s, tags %s', p.timer, p.external, p.target,
                             p.timeout_at, p.tags)
  from durable._promises_within(p_from, p_to) p
  cross join lateral (select p.tags ->> 'resonate:delay' as delay,
                             coalesce(p.tags ->> 'resonate:timer' = 'true', false) as timer) g
  cross join lateral (values
    ('promise_timer_agrees_with_tags', g.timer <> p.timer and p.execution is null),
    ('promise_external_agrees_with_tags', p.tags ->> 'resonate:external' = 'true' and not p.external),
    ('promise_target_agrees_with_tags', p.target is not null and p.head is null and not p.tags ? 'resonate:target'),
    ('P22 promise_delay_needs_a_target', g.delay is not null and p.target is null),
    ('P23 promise_delay_is_an_instant', g.delay !~ '^[0-9]{1,16}$'),
    ('well_formed_promise_delay_before_deadline',
      case when g.delay ~ '^[0-9]{1,16}$' then g.delay::bigint >= p.timeout_at end),
    ('P29 P30 P31 promise_is_in_the_tree_of_its_tags', not durable._in_its_tree(p.id, p.tags))
  ) as v (law, broken)
  where (p.tags <> '{}' or p.timer or (p.target is not null and p.head is null)) and v.broken
$$;
comment on function durable._check_tags(text[], text[]) is
  'Reserved tags agree with the columns that rules read, and with the id. A promise may be external without the tag: then it is awaited.';

create or replace function durable._check_ties(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, p.id, format('state %s, target %s, task %s, task version %s', p.state, p.target, t.state, p.task_version)
  from durable._promises_within(p_from, p_to) p
  left join durable._tasks t on t.id = any (array[p.id])
  left join durable._executions h on h.execution = any (array[p.head])
  left join durable._executions o on o.execution = any (array[p.execution])
  cross join lateral (values
    ('orphan_invokes', p.state = 'pending' and p.target is not null and t.id is null),
    ('consistent_task_iff_targeted_promise', (p.target is not null) <> (t.id is not null or p.task_version is not null)),
    ('consistent_settled_promise_has_fulfilled_task', p.state <> 'pending' and t.id is not null),
    ('consistent_settled_task_promise_settled', p.state = 'pending' and p.task_version is not null),
    ('T02 task_version_not_negative', p.task_version < 0 or t.version < 0),
    ('promise_head_is_its_own', p.head is not null and h.id is distinct from p.id),
    ('promise_tenant_is_that_of_its_run', p.tenant <> coalesce(h.tenant, o.tenant)),
    ('run_of_a_client_is_a_call',
      p.head is not null and not durable._is_plain(p.param_headers) and durable._call_in(p.param_data) is null),
    ('promise_owner_exists', p.execution is not null and p.id is distinct from o.id || '.' || p.child),
    ('C-1 child_is_counted_by_its_owner',
      p.child < o.first_child or p.child >= o.next_child or p.child = any (o.reserved))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_ties(text[], text[]) is
  'Laws that tie promises to tasks, heads and owners. The journal of the owner has a row with the number of each child.';

create or replace function durable._waits_for_something(p_task durable._tasks)
returns boolean language plpgsql stable
as $$
begin
  return exists (
      select from durable._callbacks k
      where k.awaited_id > p_task.id || '.' and k.awaited_id < p_task.id || '/' and k.awaiter_id = p_task.id)
    or exists (select from durable._callbacks k where k.awaiter_id = p_task.id and k.child >= 0)
    or exists (
      select from durable._callbacks k
      where k.awaiter_id = p_task.id and k.child < 0 and not starts_with(k.awaited_id, k.awaiter_id || '.'))
    or exists (select from durable._inboxes i where i.execution = p_task.execution and i.receiver is not null);
end
$$;
comment on function durable._waits_for_something(durable._tasks) is
  'Whether a suspended task has a wait that can resume it: for a child, for a promise that it adopted, for any other promise, for a signal. Each kind is looked up in its own index.';

create or replace function durable._check_tasks(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, t.id, format('state %s, version %s, pid %s, promise %s', t.state, t.version, t.pid, p.state)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._tasks x where x.id >= s.first and x.id < s.beyond offset 0) t
  cross join (select durable._now_ms() as now_ms) c
  left join durable._promises p on p.id = any (array[t.id])
  left join durable._executions h on h.execution = any (array[t.execution])
  cross join lateral (select t.state = 'suspended' and exists (
    select from durable._resumes r where r.task_id = any (array[t.id])) as is_woken) m
  cross join lateral (select t.state <> 'suspended' or durable._waits_for_something(t) as is_called) w
  cross join lateral (values
    ('orphan_tasks', p.id is null),
    ('pending_task_no_ttimeout', t.state = 'pending' and t.retry_at is null),
    ('well_formed_task_pending_iff_has_retry_at', (t.state = 'pending') <> (t.retry_at is not null)),
    ('acquired_task_no_lease', t.state = 'acquired' and t.expires_at is null),
    ('well_formed_task_acquired_iff_has_expires_at', (t.state = 'acquired') <> (t.expires_at is not null)),
    ('well_formed_task_acquired_iff_has_pid', (t.state = 'acquired') <> (t.pid is not null)),
    ('well_formed_task_acquired_iff_has_ttl', (t.state = 'acquired') <> (t.ttl is not null)),
    ('well_formed_task_ttl_positive', t.ttl <= 0),
    ('well_formed_task_acquired_version_positive', t.state = 'acquired' and t.version < 1),
    ('suspended_task_has_ttimeout', t.state = 'suspended' and (t.retry_at is not null or t.expires_at is not null)),
    ('well_formed_task_suspended_is_cleared',
      t.state = 'suspended' and num_nonnulls(t.pid, t.ttl, t.expires_at, t.retry_at) > 0),
    ('well_formed_task_halted_is_cleared', t.state = 'halted' and num_nonnulls(t.pid, t.ttl, t.expires_at, t.retry_at) > 0),
    ('fulfilled_task_has_ttimeout', p.state <> 'pending' and (t.retry_at is not null or t.expires_at is not null)),
    ('well_formed_task_fulfilled_is_cleared',
      p.state <> 'pending' and num_nonnulls(t.pid, t.ttl, t.expires_at, t.retry_at) > 0),
    ('suspended_no_callback',
      t.state = 'suspended' and p.state = 'pending' and p.timeout_at > c.now_ms and not w.is_called),
    ('consistent_suspended_task_holds_rung',
      t.state = 'suspended' and p.state = 'pending' and p.timeout_at > c.now_ms and not w.is_called),
    ('suspended_with_consumed_callbacks', m.is_woken),
    ('well_formed_task_suspended_has_no_resumes', m.is_woken),
    ('task_attempts_are_acquires', t.owner is null and t.attempt > greatest(t.version, 0)),
    ('task_deadline_is_promise_timeout', t.deadline <> p.timeout_at),
    ('task_was_acquired_in_the_past', t.acquired_at > durable._latest(c.now_ms)),
    ('lease_ends_within_its_length', t.expires_at - t.ttl > durable._latest(c.now_ms)),
    -- the longest that a setting can say
    ('preference_ends_within_its_length', t.prefer_until - 9999999999 > durable._latest(c.now_ms)),
    ('task_releases_belong_together', num_nonnulls(nullif(t.releases, 0), t.released_by, t.released_until) not in (0, 3)
      or t.released_until > durable._latest(c.now_ms)),
    ('task_head_is_promise_head', t.execution is distinct from p.head),
    ('task_owner_is_promise_owner', t.owner is distinct from p.execution),
    ('task_rules_are_head_rules', t.rules <> h.rules),
    ('consistent_outbox_execute_address_is_target_tag',
      p.target is not null and t.queue is distinct from durable._queue_of(coalesce(t.recv, p.target))
        and (t.workflow is null or t.queue <> t.workflow)),
    ('task_recv_only_while_pending', t.recv is not null and t.state not in ('pending', 'halted')),
    ('task_recv_headers_need_a_recv', t.recv_headers is not null and t.recv is null)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_tasks(text[], text[]) is
  'Laws of tasks and leases. A run that waits for a signal is resumed by the signal: its receive takes the place of a callback.';

create or replace function durable._check_children_left(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select 'no_child_outlives_its_parent', t.id, format('%s is %s, and %s has ended', t.id, h.status, o.id)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._tasks x
                      where x.id >= s.first and x.id < s.beyond and x.owner is not null offset 0) t
  join durable._executions h on h.execution = any (array[t.execution])
  join durable._executions o on o.execution = any (array[t.owner])
  join durable._promises p on p.id = any (array[o.id]) and p.head = o.execution and p.state <> 'pending'
  where o.rules >= 4 and h.abandoned is not true and h.status <> 'cancelling'
    and (select count(*) from durable._cancellations c where c.id = t.id) = 0
$$;
comment on function durable._check_children_left(text[], text[]) is
  'Under rules 4 and newer no child run goes on after its parent has ended, except those that were started to outlive it; one is being cancelled, or is to be. Children of earlier generations are not meant.';

create or replace function durable._check_resumes(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, r.task_id, format('wake reason %s: %s', r.awaited_id, coalesce(p.state, 'no such promise'))
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._resumes x where x.task_id >= s.first and x.task_id < s.beyond offset 0) r
  left join durable._tasks t on t.id = any (array[r.task_id])
  left join durable._promises p on p.id = any (array[r.awaited_id])
  cross join lateral (values
    ('well_formed_task_fulfilled_is_cleared', t.id is null),
    ('resume_names_a_settled_promise', p.state is null or p.state = 'pending')
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_resumes(text[], text[]) is 'Laws of the reasons for which suspended tasks were woken.';

create or replace function durable._check_waiters(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, k.awaited_id, format('%s, awaited by %s: %s', coalesce(p.state, 'no such promise'), k.awaiter_id, t.state)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._callbacks x where x.awaited_id >= s.first and x.awaited_id < s.beyond offset 0) k
  left join durable._promises p on p.id = any (array[k.awaited_id])
  left join durable._promises w on w.id = any (array[k.awaiter_id])
  left join durable._tasks t on t.id = any (array[k.awaiter_id])
  cross join lateral (values
    ('P13 callback_for_settled_promise', p.state <> 'pending'),
    ('suspended_with_consumed_callbacks', p.state <> 'pending' and t.state = 'suspended'),
    ('callback_awaiter_no_target', w.target is null),
    ('consistent_callback_awaiter_is_targeted', w.target is null),
    ('well_formed_promise_awaiter_is_not_self', k.awaited_id = k.awaiter_id),
    ('well_formed_promise_obligations_require_external', p.external is not true),
    ('adopting_awaiter_is_a_run', k.child >= 0 and w.head is null),
    ('callback_id_iff_recv', (k.id <> '') <> (k.recv is not null)),
    ('callback_id_iff_timeout', (k.id <> '') <> (k.timeout_at is not null)),
    ('callback_recv_headers_need_a_recv', k.recv_headers is not null and k.recv is null)
  ) as v (law, broken)
  where v.broken
  union all
  select v.law, l.awaited_id, format('%s, %s listens', coalesce(p.state, 'no such promise'), l.address)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._listeners x where x.awaited_id >= s.first and x.awaited_id < s.beyond offset 0) l
  left join durable._promises p on p.id = any (array[l.awaited_id])
  cross join lateral (values
    ('listener_for_settled_promise', p.state <> 'pending'),
    ('well_formed_promise_obligations_require_external', p.external is not true)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_waiters(text[], text[]) is 'Laws of callbacks and listeners.';

create or replace function durable._check_addresses(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  with span as (
    select s.first, s.beyond from unnest(p_from, p_to) as s (first, beyond)
  ), stored (law, id, address, tag) as materialized (
    select 'promise_target_deliverable', p.id, p.target, p.tags ->> 'resonate:target'
    from durable._promises_within(p_from, p_to) p where p.target is not null or p.tags ? 'resonate:target'
    union all
    select 'task_recv_deliverable', t.id, t.recv, null from span s
    cross join lateral (select x.* from durable._tasks x where x.id >= s.first and x.id < s.beyond offset 0) t
    union all
    select 'callback_recv_deliverable', k.awaited_id, k.recv, null from span s
    cross join lateral (select x.* from durable._callbacks x where x.awaited_id >= s.first and x.awaited_id < s.beyond offset 0) k
    union all
    select 'consistent_listener_addresses_deliverable', l.awaited_id, l.address, null from span s
    cross join lateral (select x.* from durable._listeners x where x.awaited_id >= s.first and x.awaited_id < s.beyond offset 0) l
    union all
    select 'consistent_outbox_unblock_address_deliverable', u.promise_id, u.address, null from span s
    cross join lateral (select x.* from durable._unblocks x where x.promise_id >= s.first and x.promise_id < s.beyond offset 0) u
  ), bad as materialized (
    select a.address, a.tag, durable._canonical_address(a.address) is distinct from a.address as is_odd,
           a.tag is not null and durable._canonical_address(a.tag) is distinct from a.address as is_astray
    from (select x.address, x.tag from stored x group by x.address, x.tag) a
  )
  select v.law, x.id, v.detail
  from bad b
  join stored x on x.address is not distinct from b.address and x.tag is not distinct from b.tag
  cross join lateral (values
    (x.law, b.address, b.is_odd),
    ('promise_target_agrees_with_tags', format('target %s, tagged %s', b.address, b.tag), b.is_astray)
  ) as v (law, detail, broken)
  where (b.is_odd or b.is_astray) and v.broken
$$;
comment on function durable._check_addresses(text[], text[]) is
  'Every stored address is canonical, and a target is that of its tag. Each address is checked once, because the check is expensive and many rows share an address.';

create or replace function durable._check_messages(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, u.promise_id, format('%s, to %s, %s attempts', coalesce(p.state, 'no such promise'), u.address, u.attempts)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._unblocks x where x.promise_id >= s.first and x.promise_id < s.beyond offset 0) u
  cross join (select durable._now_ms() as now_ms) c
  left join durable._promises p on p.id = any (array[u.promise_id])
  cross join lateral (values
    ('consistent_outbox_unblock_names_settled_promise', p.state is null or p.state = 'pending'),
    ('unblock_not_older_than_its_settlement', u.created_at < p.settled_at),
    ('unblock_claims_are_counted', (u.claimed_until > 0) <> (u.attempts > 0)),
    ('unblock_was_made_in_the_past', u.created_at > durable._latest(c.now_ms)),
    -- the longest that a claim or a deferral can be
    ('unblock_is_claimed_for_a_while', u.claimed_until - 2147483647 > durable._latest(c.now_ms))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_messages(text[], text[]) is 'Laws of unblock messages.';

create or replace function durable._follows_cron(p_schedule durable._schedules)
returns boolean language plpgsql stable
as $$
begin
  return p_schedule.next_run_at = least(durable._nominal_next(p_schedule), p_schedule.poll_at);
exception when sqlstate 'WF004' or datetime_field_overflow or invalid_parameter_value then
  return true;
end
$$;
comment on function durable._follows_cron(durable._schedules) is
  'Whether a schedule is due at its next instant, or before it for one that is buffered. A schedule that cannot be evaluated any more, because its time zone left this server, is not checked.';

create or replace function durable._check_schedules()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, s.id, format('%s, created %s, last %s, next %s', s.cron, s.created_at, s.last_run_at, s.next_run_at)
  from durable._schedules s
  cross join (select durable._latest(durable._now_ms()) as latest,
                     durable._now_ms() - 86400000 * durable._readable_setting('removed_ids_days') as forgotten) c
  cross join lateral (select durable._occurrence_id(s, s.last_run_at) as occurrence,
                             substring(s.promise_tags ->> 'resonate:delay' from '^[0-9]{1,16}$')::bigint as delay) o
  left join durable._promises p on p.id = o.occurrence
  cross join lateral (values
    ('S04 schedule_promise_timeout_not_negative', s.promise_timeout < 0),
    ('well_formed_schedule_created_at_lte_next_run_at', s.created_at > s.next_run_at),
    ('well_formed_schedule_created_at_lte_last_run_at', s.created_at > s.last_run_at),
    ('well_formed_schedule_last_run_at_lt_next_run_at', s.last_run_at >= s.next_run_at),
    ('well_formed_schedule_promise_tags_not_timer_targeted', s.promise_tags ->> 'resonate:timer' = 'true'
      and s.promise_tags ? 'resonate:target' and durable._strict()),
    ('S06 schedule_last_run_has_its_promise', p.id is null and s.workflow is null and octet_length(o.occurrence) between 1 and 512
      and not durable._is_of_calls(o.occurrence)
      and coalesce(o.delay < s.last_run_at + s.promise_timeout, true)
      and (s.promise_tags ? 'resonate:target' or durable._in_its_tree(o.occurrence, s.promise_tags))
      and not exists (
        select from durable._promises a where a.id = any (durable._ancestors(o.occurrence)) and a.head is not null)
      -- what was removed is remembered for so long
      and s.last_run_at > c.forgotten
      and not exists (select from durable._removed r where r.id = any (o.occurrence || durable._ancestors(o.occurrence)))),
    ('schedule_was_made_in_the_past', greatest(s.created_at, s.last_run_at, s.paused_at) > c.latest),
    ('schedule_can_create', s.promise_id = '' or jsonb_typeof(s.promise_tags -> 'resonate:target') is not null
        and durable._canonical_address(s.promise_tags ->> 'resonate:target') is null
      or s.workflow is not null and jsonb_typeof(durable._json(s.promise_param_data)) not in ('array', 'object')),
    ('schedule_can_be_evaluated', not durable._is_evaluable(s)),
    ('S07 S08 schedule_next_run_follows_cron', not durable._follows_cron(s)),
    ('schedule_polls_while_an_instant_is_buffered', s.paused_at is null and (s.poll_at is null) <> (not exists (
        select from durable._schedule_instants i where i.schedule = s.id and i.outcome = 'buffered')))
  ) as v (law, broken)
  where v.broken
  union all
  select case when s.id is null then 'schedule_instant_has_its_schedule' else 'schedule_instant_is_accounted_once' end,
         i.schedule, format('%s, instant %s', i.outcome, i.at)
  from durable._schedule_instants i
  left join durable._schedules s on s.id = i.schedule
  where s.id is null or (i.at = i.upto and i.outcome in ('skipped', 'buffered') and exists (
    select from durable._promises p
    where p.id = any (array[durable._occurrence_id(s, i.at)]) and p.tags ->> 'resonate:schedule' = s.id))
$$;
comment on function durable._check_schedules() is
  'Laws of schedules. An instant that promise_create would refuse has no promise, and retention may have removed one.';

create or replace function durable._check_keys(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  with span as (
    select s.first, s.beyond from unnest(p_from, p_to) as s (first, beyond)
  )
  select 'store_promise_ids_unique', x.id, count(*)::text
  from span s cross join lateral (select p.id from durable._promises p where p.id >= s.first and p.id < s.beyond offset 0) x
  group by x.id having count(*) > 1
  union all
  select 'store_task_ids_unique', x.id, count(*)::text
  from span s cross join lateral (select t.id from durable._tasks t where t.id >= s.first and t.id < s.beyond offset 0) x
  group by x.id having count(*) > 1
  union all
  select 'store_outbox_keys_unique', x.promise_id, x.address
  from span s
  cross join lateral (select u.* from durable._unblocks u where u.promise_id >= s.first and u.promise_id < s.beyond offset 0) x
  group by x.promise_id, x.address having count(*) > 1
  union all
  select 'well_formed_promise_callbacks_unique', x.awaited_id, x.awaiter_id
  from span s
  cross join lateral (select k.* from durable._callbacks k where k.awaited_id >= s.first and k.awaited_id < s.beyond offset 0) x
  group by x.awaited_id, x.awaiter_id, x.id, x.child having count(*) > 1
  union all
  select 'well_formed_promise_listeners_unique', x.awaited_id, x.address
  from span s
  cross join lateral (select l.* from durable._listeners l where l.awaited_id >= s.first and l.awaited_id < s.beyond offset 0) x
  group by x.awaited_id, x.address having count(*) > 1
  union all
  select 'well_formed_task_resumes_unique', x.task_id, x.awaited_id
  from span s
  cross join lateral (select r.* from durable._resumes r where r.task_id >= s.first and r.task_id < s.beyond offset 0) x
  group by x.task_id, x.awaited_id having count(*) > 1
$$;
comment on function durable._check_keys(text[], text[]) is 'The laws of the primary keys, also if a key was dropped.';

create or replace function durable._strays_from(p_fork bigint, p_origin durable._executions, p_record durable._forks)
returns boolean language plpgsql stable
as $$
begin
  return exists (
    select from durable._executions h
    join durable._journal j on j.execution = h.execution and j.bucket = h.bucket and j.seq > 0 and j.ts < p_record.at
         and j.child is not null and not p_record.replaced ? j.child::text
    where h.execution = p_fork and not exists (
      select from durable._journal o
      where o.execution = p_origin.execution and o.bucket = p_origin.bucket and o.ts = j.ts and o.child = j.child
        and o.type = j.type and o.seq < p_record.seq and o.name is not distinct from j.name
        and o.attempt is not distinct from j.attempt and o.input_hash is not distinct from j.input_hash));
end
$$;
comment on function durable._strays_from(bigint, durable._executions, durable._forks) is
  'Whether a fork has a row about a call, older than itself, that its origin does not have before the position of the fork; values that were replaced excepted.';

create or replace function durable._check_remains(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  with span as (
    select s.first, s.beyond from unnest(p_from, p_to) as s (first, beyond)
  ), gone as (
    select x.* from span s
    cross join lateral (select r.* from durable._removed r where r.id >= s.first and r.id < s.beyond offset 0) x
  )
  select 'removed_in_the_past', r.id, format('removed %s', r.removed_at)
  from gone r where r.removed_at > durable._latest(durable._now_ms())
  union all
  select 'removed_id_has_no_promise', p.id, format('%s, created %s, removed %s', p.state, p.created_at, r.removed_at)
  from gone r join durable._promises p on p.id = any (array[r.id])
  union all
  select 'removed_key_has_no_run', h.id, format('key %s of %s, which was removed', r.key, r.id)
  from gone r
  join durable._executions h
    on h.tenant = any (array[r.tenant]) and h.workflow = any (array[r.workflow]) and h.key = any (array[r.key])
  where r.key is not null
  union all
  select 'removed_signals_are_of_a_run', x.id, format('key %s of signal %s', x.key, x.name)
  from span s
  cross join lateral (select g.* from durable._removed_signals g where g.id >= s.first and g.id < s.beyond offset 0) x
  left join durable._promises p on p.id = any (array[x.id])
  where p.head is null
  union all
  select v.law, x.id, format('signal %s, number %s', x.name, x.number)
  from span s
  cross join lateral (select b.* from durable._backlog b where b.id >= s.first and b.id < s.beyond offset 0) x
  left join durable._promises p on p.id = any (array[x.id])
  left join durable._inboxes i on i.execution = any (array[p.head]) and i.name = any (array[x.name])
  left join durable._executions e on e.execution = any (array[x.execution])
  cross join lateral (values
    ('backlog_is_counted_in_an_inbox', i.backlog_upto is null),
    ('backlog_came_to_its_run', e.id <> x.id or x.seq not between 1 and e.next_seq or (e.id is null and x.execution > p.head))
  ) as v (law, broken)
  where v.broken
  union all
  select v.law, f.id, format('made from %s, execution %s, at %s', f.origin_id, f.origin, f.seq)
  from span s
  cross join lateral (select x.* from durable._forks x where x.id >= s.first and x.id < s.beyond offset 0) f
  left join durable._promises p on p.id = any (array[f.id])
  left join durable._executions o on o.execution = any (array[f.origin])
  cross join lateral (values
    ('fork_has_its_run', p.head is null),
    ('fork_names_its_origin', o.id <> f.origin_id),
    ('fork_was_made_in_the_past', f.at > durable._latest(durable._now_ms())),
    ('fork_begins_within_its_origin', f.seq not between 0 and o.next_seq),
    ('fork_copies_its_origin', o.id = f.origin_id and durable._strays_from(p.head, o, f))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_remains(text[], text[]) is 'Laws of tombstones, a removed id or key has no rows, keys of removed signals and backlogs are of runs that exist; and of forks, as far as their origin is kept.';

create or replace function durable._number(p_json jsonb)
returns bigint language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_json) = 'number' and p_json::numeric between 0 and 9007199254740991 then p_json::bigint
              else -1 end
$$;
comment on function durable._number(jsonb) is 'A whole number in a document; -1, which is none of an execution or row, where there is none.';

create or replace function durable._check_progress(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, g.id, format('value %L, set at %s of journal %s, which has %s events', n.name, n.seq, n.execution, h.next_seq)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._progress x where x.id >= s.first and x.id < s.beyond offset 0) g
  left join durable._promises p on p.id = any (array[g.id])
  left join lateral (
    select null::text, g.execution, g.seq, null where g.seq is not null
    union all
    select k.key, durable._number(k.value -> 0), durable._number(k.value -> 1), k.value ->> 2 from jsonb_each(g.named) k
  ) as n (name, execution, seq, value) on true
  left join durable._executions h on h.execution = any (array[n.execution])
  cross join lateral (values
    ('progress_is_of_a_task', p.target is null),
    ('progress_is_of_its_own_journal', h.id is distinct from case when n.execution <> 0 then g.id end),
    ('progress_was_made_in_the_past', g.changed_at > durable._latest(durable._now_ms())),
    ('progress_value_is_json', durable._is_unreadable(n.value)),
    ('progress_is_within_the_journal', n.seq < 0 or n.seq > h.next_seq)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_progress(text[], text[]) is
  'Laws of progress and named values: they are of a run or task that is there, and were set at a position of its journal.';

create or replace function durable._check_setup()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'well_formed_config_retry_positive', s.name, s.value
  from durable.settings s where s.name = 'retry_offer_ms' and s.value ~ '^-?0*[0-9]{1,15}$' and s.value::bigint <= 0
  union all
  select 'setting_is_of_its_kind', s.name, s.value from durable.settings s where durable._is_odd_setting(s.name, s.value)
  union all
  select 'site_was_adopted_in_the_past', x.identity, format('adopted %s, timeline since %s', x.adopted_at, x.timeline_at)
  from durable._site x where greatest(x.adopted_at, x.timeline_at) > durable._latest(durable._now_ms())
  union all
  select 'site_has_its_row', current_database(), null where not exists (select from durable._site)
  union all
  select 'worker_was_there_in_the_past', w.id, format('started %s, seen %s, ticked %s', w.started_at, w.seen_at, w.ticked_at)
  from durable._workers w where greatest(w.started_at, w.seen_at, w.ticked_at, w.missing_at) > durable._latest(durable._now_ms())
  union all
  select 'store_schedule_ids_unique', s.id, count(*)::text from durable._schedules s group by s.id having count(*) > 1
  union all
  select 'callback_ids_unique', k.id, string_agg(k.awaited_id, ', ')
  from durable._callbacks k where k.id <> '' group by k.id having count(*) > 1
$$;
comment on function durable._check_setup() is
  'Laws of rows outside of all portions: settings, the site, workers, schedules, and the names of callbacks of the older API.';

create or replace function durable._check_ids(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select x.* from durable._check_promises(p_from, p_to) x
  union all select x.* from durable._check_tags(p_from, p_to) x
  union all select x.* from durable._check_ties(p_from, p_to) x
  union all select x.* from durable._check_tasks(p_from, p_to) x
  union all select x.* from durable._check_children_left(p_from, p_to) x
  union all select x.* from durable._check_resumes(p_from, p_to) x
  union all select x.* from durable._check_waiters(p_from, p_to) x
  union all select x.* from durable._check_addresses(p_from, p_to) x
  union all select x.* from durable._check_messages(p_from, p_to) x
  union all select x.* from durable._check_keys(p_from, p_to) x
  union all select x.* from durable._check_remains(p_from, p_to) x
  union all select x.* from durable._check_progress(p_from, p_to) x
  union all select x.* from durable._check_row_waits(p_from, p_to) x
$$;
comment on function durable._check_ids(text[], text[]) is
  'All laws of promises, tasks, waiters and messages whose ids lie in the spans.';
