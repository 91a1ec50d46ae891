-- The laws of journals, heads and what stands beside them, and durable.check(), which asks all laws. Names carry the numbers of
-- the journal's catalogue: S (shape), SE (sequences of attempts), CF (causes), JS (join sets), INV, A and X (additions), C (that
-- journals and tables agree), R (rulings). Each query passes over the journal once, in a window or a group: nothing here may
-- look a journal up again for each of its rows.

create or replace function durable._check_heads()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('status %s, task %s, promise %s', h.status, t.state, p.state)
  from durable._executions h
  left join durable._promises p on p.id = h.id
  left join durable._tasks t on t.id = h.id and t.execution = h.execution
  left join (select distinct s.previous from durable._executions s) x on x.previous = h.execution
  cross join lateral (values
    ('head_has_promise', (p.head is not distinct from h.execution) <> (x.previous is null)),
    ('C-2 pending_iff_live',
      x.previous is null and (p.state = 'pending') <> (h.status in ('running', 'blocked', 'cancelling'))),
    ('C-3 suspended_iff_blocked', t.state = 'suspended' and h.status <> 'blocked' and not h.kept_by_client),
    ('C-3 acquired_is_not_fresh_blocked',
      t.state = 'acquired' and h.status = 'blocked' and t.version < 2 and not h.kept_by_client),
    ('R2 open_attempts_are_held', t.state in ('pending', 'suspended', 'halted') and not h.kept_by_client
      and exists (select from unnest(h.open_attempts) a where a > 0)),
    ('problem_only_while_halted', h.problem is not null and t.state is distinct from 'halted' and p.state = 'pending'),
    ('cancelling_ends_by_itself', h.status = 'cancelling' and h.cancel_until is null and not h.kept_by_client)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_heads() is
  'Laws that tie heads to promises and tasks (C-2, C-3). A generation that another one followed has ended before its promise.';

create or replace function durable._check_waits()
returns table (law text, id text, detail text) language sql stable
as $$
  with wait as (
    select h.execution, h.id, h.wait_kind, h.wait_left, h.waiting_on,
           p.id is not null or k.child is not null or i.receiver is not null
             or (h.kept_by_client and (n = any (h.open_steps) or n >= h.next_child)) as open,
           p.id is not null and o.awaiter_id is null as deaf
    from durable._executions h
    cross join lateral unnest(h.waiting_on) n
    left join durable._promises p on p.id = h.id || '.' || n and p.execution = h.execution and p.state = 'pending'
    left join (select distinct c.awaited_id, c.awaiter_id from durable._callbacks c where c.child < 0) o
              on o.awaited_id = p.id and o.awaiter_id = h.id
    left join durable._callbacks k on k.awaiter_id = h.id and k.child = n and k.child >= 0
    left join durable._inboxes i on i.execution = h.execution and i.receiver = n
    where h.status = 'blocked'
  )
  select v.law, w.id, format('waits for %s of %s, %s open', w.wait_kind, w.waiting_on, w.open)
  from (
    select x.id, x.wait_kind, x.wait_left, x.waiting_on, count(*) filter (where x.open) as open, bool_or(x.deaf) as deaf
    from wait x group by x.execution, x.id, x.wait_kind, x.wait_left, x.waiting_on
  ) w
  join durable._promises p on p.id = w.id and p.timeout_at > durable._now_ms()
  cross join lateral (values
    ('X-5 wait_is_on_pending_children', w.wait_left is distinct from case
      when w.wait_kind = 'all' then w.open when w.open = cardinality(w.waiting_on) then 1 else 0 end),
    ('blocked_run_has_its_callbacks', w.deaf)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_waits() is
  'A blocked run waits for what is open, and is called when it ends (X-5): children, adopted promises, receives. A client that keeps its own journal may wait for steps of its own and for the receipt to come.';

create or replace function durable._check_folds()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('next_seq %s of %s, children %s to %s, reserved %s', h.next_seq, f.width, h.first_child,
                             h.next_child, h.reserved)
  from durable._executions h
  left join (
    select j.execution, j.bucket, sum(durable._width(j.type)) as width,
           max(j.child) filter (where durable._allocates(j.type)) as last_child,
           min(j.child) filter (where durable._allocates(j.type)) as first_child,
           count(*) filter (where durable._allocates(j.type)) as carried,
           array_agg(distinct j.child) filter (where durable._allocates(j.type)) as children,
           count(*) filter (where j.type = 'S') as starts, min(j.seq) filter (where j.type = 'S') as start,
           count(*) filter (where j.type in ('C', 'F', 'Y')) as ends, min(j.seq) filter (where j.type = 'Q') as request,
           (array_agg(durable._status_after(j.type) order by j.seq desc)
             filter (where durable._status_after(j.type) is not null))[1] as status
    from durable._journal j group by j.execution, j.bucket
  ) f on f.execution = h.execution and f.bucket = h.bucket
  cross join lateral (select cardinality(coalesce(f.children, '{}')) as count) c
  cross join lateral (values
    ('C-4 next_seq_is_journal_length', h.next_seq is distinct from f.width),
    ('INV-4 status_is_fold', h.status is distinct from f.status),
    ('X-1 started_once', f.starts > 1),
    ('S-2 INV-1 starts_with_started', f.start is distinct from 0),
    ('S-3 at_most_one_end', f.ends > 1),
    ('A-1 next_child_follows_journal', h.next_child is distinct from coalesce(f.last_child + 1, h.first_child)),
    ('A-1 children_carried_once', f.carried > c.count),
    ('A-1 gaps_are_reserved', cardinality(h.reserved) <> h.next_child - h.first_child - c.count
      or f.first_child < h.first_child or h.reserved && f.children
      or exists (select from unnest(h.reserved) r group by r having count(*) > 1 or r < h.first_child or r >= h.next_child)),
    ('cancel_seq_is_the_request', h.cancel_seq is distinct from f.request and (h.cancel_seq is not null
      or h.status = 'cancelling'))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_folds() is
  'Heads equal the fold of their journals (INV-4, C-4, A-1, X-1, S-2, S-3). Who was settled as cancelled had no request before.';

create or replace function durable._check_rows()
returns table (law text, id text, detail text) language sql stable
as $$
  with row as (
    select j.execution, j.seq, j.type, lag(j.type) over w as before,
           lag(j.seq + durable._width(j.type)) over w as expected, bool_or(j.type = 'Q') over w as requested,
           -- the last row before it that changed the status, and which of the letters that was
           max(j.seq::bigint * 8 + nullif(strpos('SWAQCFY', j.type::text), 0))
             over (w rows between unbounded preceding and 1 preceding) as turn
    from durable._journal j window w as (partition by j.execution order by j.seq)
  ), judged as materialized (
    select r.*, durable._status_after(substr('SWAQCFY', (r.turn % 8)::integer, 1)::"char") as status from row r
  )
  select v.law, r.execution::text, format('seq %s, type %s, while %s', r.seq, r.type, r.status)
  from judged r
  cross join lateral (values
    ('fused_rows_follow_each_other', r.seq <> coalesce(r.expected, 0)),
    ('S-4 INV-3 nothing_after_the_end', r.before in ('C', 'F', 'Y')),
    ('S-5 cancelled_was_requested', r.type = 'Y' and not r.requested),
    ('X-4 resumed_only_while_blocked', r.type = 'W' and r.status <> 'blocked'),
    ('row_fits_the_status_before_it', r.before is not null and not durable._may_append(r.status, r.type, true))
  ) as v (law, broken)
  where v.broken
  union all
  select 'S-1 INV-2 seq_is_dense', j.execution::text, format('%s to %s', min(j.seq), max(j.seq + durable._width(j.type)))
  from durable._journal j group by j.execution
  having min(j.seq) <> 0 or max(j.seq + durable._width(j.type)) <> sum(durable._width(j.type))
  union all
  select 'journal_row_has_a_head', j.execution::text, format('%s rows from seq %s', count(*), min(j.seq))
  from durable._journal j
  left join durable._executions h on h.execution = j.execution and h.bucket = j.bucket
  where h.execution is null group by j.execution
$$;
comment on function durable._check_rows() is
  'The shape of journals (S-1, S-4, S-5, X-4): a row covers as many sequence numbers as its type has events, and each is one that the status before it admits.';

create or replace function durable._check_invocations()
returns table (law text, id text, detail text) language sql stable
as $$
  with started as (
    select l.execution, l.child, l.attempt, min(l.seq) as seq
    from durable._logical l where l.event = 'InvokeStarted' group by l.execution, l.child, l.attempt
  ), invoke as (
    select l.execution, l.child, l.seq, l.event, l.attempt,
           lag(l.event) over w as before, lag(l.attempt) over w as attempt_before,
           count(*) filter (where l.event = 'InvokeScheduled') over p as scheduled,
           count(*) filter (where l.event = 'InvokeStarted') over p as started,
           count(*) filter (where l.event = 'InvokeCompleted') over p as completed
    from durable._logical l where l.event like 'Invoke%'
    window w as (partition by l.execution, l.child order by l.seq),
           p as (partition by l.execution, l.child order by l.seq rows between unbounded preceding and 1 preceding)
  )
  select v.law, i.execution::text,
         format('seq %s, child %s, %s(%s) after %s(%s)', i.seq, i.child, i.event, i.attempt, i.before, i.attempt_before)
  from invoke i
  left join started s on s.execution = i.execution and s.child = i.child and s.attempt = i.attempt and i.event = 'InvokeRetrying'
  cross join lateral (values
    ('SE-1 INV-5 started_was_scheduled', i.event = 'InvokeStarted' and i.scheduled = 0),
    ('SE-2 completed_was_started', i.event = 'InvokeCompleted' and i.started = 0),
    ('SE-3 retried_attempt_was_started', i.event = 'InvokeRetrying' and coalesce(s.seq > i.seq, true)),
    ('SE-4 nothing_after_the_completion', i.event <> 'InvokeScheduled' and i.completed > 0),
    ('X-3 attempts_alternate', case i.event
      when 'InvokeScheduled' then i.before is not null
      when 'InvokeStarted' then not coalesce((i.before = 'InvokeScheduled' and i.attempt = 1)
                                             or (i.before = 'InvokeRetrying' and i.attempt = i.attempt_before + 1), false)
      else not coalesce(i.before = 'InvokeStarted' and i.attempt = i.attempt_before, false) end)
  ) as v (law, broken)
  where v.broken
  union all
  select 'SE-5 retries_within_the_policy', r.execution::text, format('child %s, %s retries, %s', r.child, r.retries, g.policy)
  from (
    select j.execution, j.child, count(*) as retries from durable._journal j
    where j.type in ('f', 'r', 't') and durable._json(j.data) -> 'interrupted' is distinct from 'true'
    group by j.execution, j.child
  ) r
  join durable._journal s on s.execution = r.execution and s.child = r.child and s.type in ('o', 'l', 'f')
  cross join lateral (select coalesce(d -> 'retry', d -> 'retry_policy') as policy from durable._json(s.data) d) g
  where r.retries > (g.policy ->> 'max_attempts')::numeric - 1
$$;
comment on function durable._check_invocations() is
  'Laws of invocations (SE-1 to SE-5, X-3). An attempt that was interrupted is no failure; without a recorded policy there is no bound.';

create or replace function durable._check_timers()
returns table (law text, id text, detail text) language sql stable
as $$
  with timer as (
    select j.execution, j.child, j.seq, j.type, count(*) filter (where j.type = 'T') over w as scheduled,
           count(*) filter (where j.type = 'Z') over w as fired
    from durable._journal j where j.type in ('T', 'Z')
    window w as (partition by j.execution, j.child order by j.seq)
  )
  select v.law, t.execution::text, format('seq %s, child %s', t.seq, t.child)
  from timer t
  cross join lateral (values
    ('CF-1 fired_was_scheduled', t.scheduled = 0),
    ('X-2 timer_fired_once', t.type = 'Z' and t.fired > 1)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_timers() is 'Laws of timers (CF-1, X-2).';

create or replace function durable._check_signals()
returns table (law text, id text, detail text) language sql stable
as $$
  with told as (
    select j.execution, j.name, j.attempt, j.type, j.seq, j.data,
           row_number() over (partition by j.execution, j.type, j.name order by j.seq) as place,
           min(j.seq) filter (where j.type = 'g') over d as delivered_at,
           count(*) filter (where j.type = 'v') over (d order by j.seq) as receipts
    from durable._journal j where j.type in ('g', 'v') window d as (partition by j.execution, j.name, j.attempt)
  )
  select v.law, t.execution::text, format('seq %s, signal %s, delivery %s', t.seq, t.name, t.attempt)
  from told t
  cross join lateral (values
    ('CF-2 received_was_delivered', t.type = 'v' and (coalesce(t.delivered_at > t.seq, true) or t.data is not null)),
    ('CF-3 delivery_received_once', t.type = 'v' and t.receipts > 1),
    ('X-6 deliveries_are_dense', t.type = 'g' and t.attempt is distinct from t.place),
    ('receipts_are_in_order', t.type = 'v' and t.attempt is distinct from t.place)
  ) as v (law, broken)
  where v.broken
  union all
  select v.law, j.execution::text, format('seq %s: %s', j.seq, j.data)
  from durable._journal j
  cross join lateral durable._json(j.data) g
  left join durable._journal r on r.execution = j.execution and r.type = 'v' and r.child = (g #>> '{on,0}')::integer
       and g ->> 'kind' = 'signal'
  cross join lateral (values
    ('CF-4 signal_wait_is_on_its_receipt', g ->> 'kind' = 'signal'
      and (jsonb_array_length(g -> 'on') <> 1 or g ->> 'name' is null or r.name <> g ->> 'name')),
    ('X-5 wait_names_each_child_once', jsonb_array_length(g -> 'on') = 0
      or jsonb_array_length(g -> 'on') <> (select count(distinct x) from jsonb_array_elements(g -> 'on') x))
  ) as v (law, broken)
  where j.type = 'A' and v.broken
$$;
comment on function durable._check_signals() is
  'Laws of signals and of what waits say (CF-2 to CF-4, X-5, X-6). The payload of a receipt is that of its delivery, so its row has none.';

create or replace function durable._check_kept_signals()
returns table (law text, id text, detail text) language sql stable
as $$
  with told as (
    select j.execution, j.name, count(*) filter (where j.type = 'g') as delivered,
           count(*) filter (where j.type = 'v') as received
    from durable._journal j where j.type in ('g', 'v') group by j.execution, j.name
  )
  select 'inbox_is_fold', coalesce(i.execution, t.execution)::text,
         format('signal %s: %s of %s delivered, %s of %s received', coalesce(i.name, t.name), i.delivered, t.delivered,
                i.received, t.received)
  from durable._inboxes i
  full join told t on t.execution = i.execution and t.name = i.name
  where coalesce(i.delivered, 0) <> coalesce(t.delivered, 0) or coalesce(i.received, 0) <> coalesce(t.received, 0)
  union all
  select 'signal_is_its_delivery', coalesce(s.execution, j.execution)::text,
         format('signal %s, delivery %s', coalesce(s.name, j.name), coalesce(s.delivery, j.attempt))
  from durable._signals s
  full join (select g.execution, g.name, g.attempt from durable._journal g where g.type = 'g') j
       on j.execution = s.execution and j.name = s.name and j.attempt = s.delivery
  where s.execution is null or j.execution is null
  union all
  select 'receiver_is_a_number_to_come', i.execution::text, format('signal %s, receiver %s', i.name, i.receiver)
  from durable._inboxes i
  left join durable._executions h on h.execution = i.execution
  where i.receiver is not null and (i.receiver < h.next_child and i.receiver <> all (h.reserved)) is not false
  union all
  select 'receiver_waits_for_one_signal', i.execution::text, format('receiver %s of %s signals', i.receiver, count(*))
  from durable._inboxes i where i.receiver is not null group by i.execution, i.receiver having count(*) > 1
$$;
comment on function durable._check_kept_signals() is
  'Inboxes and signals agree with the journal; who waits has a number that no row carries yet.';

create or replace function durable._check_join_sets()
returns table (law text, id text, detail text) language sql stable
as $$
  with invoked as (
    select j.execution, j.child, min(j.seq) filter (where j.type in ('L', 'E', 'f', 'l', 'o', 'I', 'X')) as scheduled_at,
           min(j.seq) filter (where j.type in ('L', 'E', 'c', 'e', 'k', 'K', 'd', 'D')) as completed_at
    from durable._journal j
    where j.type in ('L', 'E', 'f', 'l', 'o', 'I', 'X', 'c', 'e', 'k', 'K', 'd', 'D') group by j.execution, j.child
  ), row as (
    select j.execution, j.seq, j.type, j.child, j.join_set, j.data,
           count(*) filter (where j.type = 'j') over s as created, count(*) filter (where j.type = 'a') over s as taken,
           count(*) filter (where j.type = 'u') over s as submitted,
           count(*) filter (where j.type = 'u') over m as joined, count(*) filter (where j.type = 'a') over m as given,
           count(*) filter (where j.type = 'u') over c as memberships
    from (select x.*, case x.type when 'j' then x.child else x.attempt end as join_set
          from durable._journal x where x.type in ('j', 'u', 'a')) j
    window s as (partition by j.execution, j.join_set order by j.seq),
           m as (partition by j.execution, j.join_set, j.child order by j.seq),
           c as (partition by j.execution, j.child order by j.seq)
  )
  select v.law, r.execution::text, format('seq %s, type %s, set %s, child %s', r.seq, r.type, r.join_set, r.child)
  from row r
  left join invoked i on i.execution = r.execution and i.child = r.child
  cross join lateral (values
    ('JS-1 submitted_to_what_was_created', r.type = 'u' and r.created = 0),
    ('member_was_scheduled_before', r.type = 'u' and coalesce(i.scheduled_at > r.seq, true)),
    ('JS-2 nothing_submitted_once_taken_from', r.type = 'u' and r.taken > 0),
    ('JS-3 taken_was_submitted', r.type = 'a' and r.joined = 0),
    ('JS-4 taken_was_completed', r.type = 'a' and coalesce(i.completed_at > r.seq, true)),
    ('JS-5 taken_once', r.type = 'a' and r.given > 1),
    ('JS-6 not_more_taken_than_submitted', r.type = 'a' and r.taken > r.submitted),
    ('JS-7 member_of_one_set_once', r.type = 'u' and r.memberships > 1),
    ('R10 taken_result_is_that_of_its_completion', r.type = 'a' and r.data is not null)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_join_sets() is 'Laws of join sets (JS-1 to JS-7). A member is an invocation, scheduled before it is submitted. What is taken is the result that completed the member, so its row has none.';

create or replace function durable._check_kept_sets()
returns table (law text, id text, detail text) language sql stable
as $$
  with made as (
    select j.execution, case j.type when 'j' then j.child else j.attempt end as child, bool_or(j.type = 'j') as created,
           bool_or(j.type = 'a') as closed
    from durable._journal j where j.type in ('j', 'a') group by 1, 2
  ), member as (
    select j.execution, j.child, max(j.attempt) filter (where j.type = 'u') as join_set, bool_or(j.type = 'a') as taken
    from durable._journal j where j.type in ('u', 'a') group by 1, 2
  )
  select 'join_set_is_fold', coalesce(s.execution, m.execution)::text, format('set %s', coalesce(s.child, m.child))
  from durable._join_sets s
  full join (select x.* from made x where x.created) m on m.execution = s.execution and m.child = s.child
  where s.closed is distinct from m.closed
  union all
  select 'member_is_fold', coalesce(s.execution, m.execution)::text,
         format('child %s: set %s of %s', coalesce(s.child, m.child), s.join_set, m.join_set)
  from durable._members s
  full join (select x.* from member x where x.join_set is not null) m on m.execution = s.execution and m.child = s.child
  where s.join_set is distinct from m.join_set or s.taken is distinct from m.taken
$$;
comment on function durable._check_kept_sets() is 'The tables of join sets and members agree with the journal.';

create or replace function durable._check_children()
returns table (law text, id text, detail text) language sql stable
as $$
  with told as (
    select j.execution, j.bucket, j.child, count(*) filter (where j.type in ('Z', 'd', 'D')) as resolvers,
           count(*) filter (where j.type in ('T', 'I', 'X')) as intents,
           count(*) filter (where j.type = 'b') as started, count(*) filter (where j.type = 'i') as ended
    from durable._journal j where j.type in ('Z', 'd', 'D', 'T', 'I', 'X', 'b', 'i') group by j.execution, j.bucket, j.child
  )
  select 'C-1 settled_iff_resolved_in_owner', p.id, format('state %s, %s resolver rows', p.state, f.resolvers)
  from durable._promises p
  join durable._executions o on o.execution = p.execution
  left join told f on f.execution = o.execution and f.bucket = o.bucket and f.child = p.child
  where f.intents is distinct from 1 or f.resolvers > 1 or (p.state = 'pending' and f.resolvers > 0)
     or (p.state <> 'pending' and f.resolvers = 0 and o.status in ('running', 'blocked', 'cancelling'))
  union all
  select 'C-5 open_attempt_of_child_run', t.id, format('attempt %s, open %s', t.attempt, t.attempt_open)
  from durable._tasks t
  join durable._promises p on p.id = t.id
  join durable._executions o on o.execution = p.execution and o.status in ('running', 'blocked', 'cancelling')
  left join told f on f.execution = o.execution and f.bucket = o.bucket and f.child = p.child
  where coalesce(f.started, 0) <> t.attempt or (coalesce(f.started, 0) > coalesce(f.ended, 0)) <> t.attempt_open
  union all
  select 'C-5 open_steps_of_head', h.id, format('open %s, attempts %s', h.open_steps, h.open_attempts)
  from durable._executions h
  left join (
    select u.execution, array_agg(u.child order by u.child) as children, array_agg(u.attempt order by u.child) as attempts
    from (
      select distinct on (j.execution, j.child) j.execution, j.child, durable._attempt_after(j.type, j.attempt) as attempt
      from durable._journal j where durable._is_local(j.type)
      order by j.execution, j.child, j.seq desc) u
    where u.attempt <> 0 group by u.execution
  ) f on f.execution = h.execution
  where coalesce(f.children, '{}') <> h.open_steps or coalesce(f.attempts, '{}') <> h.open_attempts
  union all
  select 'C-6 result_is_that_of_the_promise', h.id,
         format('seq %s, child %s: %s', j.seq, j.child, coalesce(p.state, 'no promise'))
  from durable._journal j
  join durable._executions h on h.execution = j.execution
  left join durable._promises p on p.id = coalesce(j.name, h.id || '.' || j.child)
  where j.type in ('d', 'D') and (j.data is not null or p.id is null or p.state = 'pending')
    and not (j.type = 'D' and j.data is not null and j.name is null and p.id is null and exists (
      select from durable._journal x where x.execution = j.execution and x.child = j.child and x.type = 'X' and x.name <> ''))
$$;
comment on function durable._check_children() is
  'Promises and tasks of children agree with the owner''s journal (C-1, C-5, C-6). Once the owner has ended it records nothing more (R16).';

create or replace function durable._check_adopted()
returns table (law text, id text, detail text) language sql stable
as $$
  with adopted as (
    select h.id, h.execution, j.child, j.name, h.status in ('running', 'blocked', 'cancelling') as live
    from durable._journal j
    join durable._executions h on h.execution = j.execution
    left join durable._promises p on p.id = h.id || '.' || j.child
    where j.type = 'X' and p.id is null
  ), done as (
    select d.execution, d.child from durable._journal d where d.type = 'D'
  )
  select 'R13 adopted_promise_has_its_row', k.awaiter_id, format('%s as child %s', k.awaited_id, k.child)
  from durable._callbacks k
  left join durable._promises p on p.id = k.awaiter_id
  left join adopted a on a.execution = p.head and a.child = k.child and a.name = k.awaited_id
  left join done d on d.execution = a.execution and d.child = a.child
  where k.child >= 0 and (a.execution is null or d.execution is not null)
  union all
  select 'R13 adopted_promise_is_awaited', a.id, format('%s as child %s', a.name, a.child)
  from adopted a
  left join done d on d.execution = a.execution and d.child = a.child
  left join durable._callbacks k on k.awaiter_id = a.id and k.child = a.child and k.awaited_id = a.name
  where a.live and d.execution is null and k.awaiter_id is null
$$;
comment on function durable._check_adopted() is 'Promises of others that a run waits for: an alias in its journal, and a callback until they are settled (R13).';

create or replace function durable._check_generations()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('execution %s after %s, children from %s', h.execution, h.previous, h.first_child)
  from durable._executions h
  left join durable._executions b on b.execution = h.previous
  left join durable._journal e on e.execution = b.execution and e.bucket = b.bucket and e.type = 'C'
  left join (select s.previous, count(*) as count from durable._executions s group by s.previous) n on n.previous = h.previous
  cross join lateral (values
    ('generation_follows_one_that_ended', b.id is distinct from h.id or b.status <> 'completed'
      or durable._json(e.data) ->> 'continued_as' is distinct from h.execution::text),
    ('generation_numbers_go_on', h.first_child < b.next_child),
    ('generation_has_one_successor', n.count > 1)
  ) as v (law, broken)
  where h.previous is not null and v.broken
  union all
  select 'INV-6 child_has_one_owner', h.id || '.' || j.child, format('%s executions', count(distinct j.execution))
  from (select x.id from durable._executions x group by x.id having count(*) > 1) g
  join durable._executions h on h.id = g.id
  join durable._journal j on j.execution = h.execution and j.bucket = h.bucket and durable._allocates(j.type)
  group by h.id, j.child having count(distinct j.execution) > 1
$$;
comment on function durable._check_generations() is
  'Generations of one run: each ends by naming the next, and no child number is used by two of them (INV-6).';

create or replace function durable.check()
returns table (law text, id text, detail text) language sql stable
as $$
  select * from durable._check_promises()
  union all select * from durable._check_tags()
  union all select * from durable._check_ties()
  union all select * from durable._check_tasks()
  union all select * from durable._check_waiters()
  union all select * from durable._check_addresses()
  union all select * from durable._check_messages()
  union all select * from durable._check_schedules()
  union all select * from durable._check_keys()
  union all select * from durable._check_remains()
  union all select * from durable._check_row_waits()
  union all select * from durable._check_heads()
  union all select * from durable._check_waits()
  union all select * from durable._check_folds()
  union all select * from durable._check_rows()
  union all select * from durable._check_invocations()
  union all select * from durable._check_timers()
  union all select * from durable._check_signals()
  union all select * from durable._check_kept_signals()
  union all select * from durable._check_join_sets()
  union all select * from durable._check_kept_sets()
  union all select * from durable._check_children()
  union all select * from durable._check_adopted()
  union all select * from durable._check_generations()
$$ set search_path = '';
comment on function durable.check() is
  'One row for each violated law: its name, the object, what was seen. Empty when all is well. Reads everything: on a big database run it on a replica.';
