-- The laws of the calls of runs: signals, join sets, children, promises of others, and the next generation. The rows of tables
-- beside the journal are grouped with the journal rows and compared.

create or replace function durable._check_signals(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with recorded as (
    select j.execution, j.name, j.attempt, j.type, j.seq, j.has_data,
           row_number() over (partition by j.execution, j.type, j.name order by j.seq) as place,
           min(j.seq) filter (where j.type = 'signal_delivered') over d as delivered_at,
           count(*) filter (where j.type = 'signal_received') over (d order by j.seq) as receipts
    from unnest(p_rows) j where j.type in ('signal_delivered', 'signal_received')
    window d as (partition by j.execution, j.name, j.attempt)
  )
  select v.law, t.execution::text, format('seq %s, signal %s, delivery %s', t.seq, t.name, t.attempt)
  from recorded t
  cross join lateral (values
    ('CF-2 received_was_delivered', t.type = 'signal_received' and (coalesce(t.delivered_at > t.seq, true) or t.has_data)),
    ('CF-3 delivery_received_once', t.type = 'signal_received' and t.receipts > 1),
    ('X-6 deliveries_are_dense', t.type = 'signal_delivered' and t.attempt is distinct from t.place),
    ('receipts_are_in_order', t.type = 'signal_received' and t.attempt is distinct from t.place)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_signals(durable._journal_line[]) is
  'Laws of signals (CF-2, CF-3, X-6). The payload of a receipt is that of its delivery, so the row of the receipt has none.';

create or replace function durable._check_signal_tables(p_runs int8multirange, p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with span as (
    select lower(s.span) as first, upper(s.span) as beyond from unnest(p_runs) as s (span)
  ), inbox as (
    select x.* from span s
    cross join lateral (
      select i.* from durable._inboxes i where i.execution >= s.first and i.execution < s.beyond offset 0) x
  ), stored as (
    select x.* from span s
    cross join lateral (
      select i.* from durable._signals i where i.execution >= s.first and i.execution < s.beyond offset 0) x
  ), recorded as (
    select j.* from unnest(p_rows) j where j.type in ('signal_delivered', 'signal_received')
  )
  select 'inbox_agrees_with_journal', x.execution::text,
         format('signal %s: %s delivered, %s received more than in the journal', x.name, sum(x.delivered), sum(x.received))
  from (select i.execution, i.name, i.delivered, i.received from inbox i
        union all
        select r.execution, r.name, -(r.type = 'signal_delivered')::integer, -(r.type = 'signal_received')::integer
        from recorded r) x
  group by x.execution, x.name having sum(x.delivered) <> 0 or sum(x.received) <> 0
  union all
  select 'payload_of_a_signal_is_json', k.execution::text, format('signal %s, delivery %s', k.name, k.delivery)
  from stored k where durable._is_unreadable(k.data)
  union all
  select v.law, i.execution::text,
         format('signal %s, numbers %s to %s: %s rows, the last %s', i.name, i.backlog_from + 1, i.backlog_upto, k.rows, k.last)
  from inbox i
  join durable._executions h on h.execution = any (array[i.execution])
  join durable._promises p on p.id = any (array[h.id]) and p.head = i.execution
  cross join lateral (
    select count(*) as rows, max(b.number) as last, bool_or(durable._is_unreadable(b.data)) as unreadable,
           bool_or(s.delivery is not null and row(s.key, s.data) is distinct from row(b.key, b.data)) as differ
    from durable._backlog b
    left join durable._signals s on s.execution = any (array[i.execution]) and s.name = any (array[i.name])
         and s.delivery = any (array[b.number - i.backlog_from])
    where b.id = p.id and b.name = i.name and b.number > i.backlog_from offset 0) k
  cross join lateral (values
    ('backlog_has_what_its_inbox_counts', k.rows <> i.backlog_upto - i.backlog_from or k.last > i.backlog_upto),
    ('backlog_was_delivered_as_it_is', k.differ),
    ('payload_of_a_signal_is_json', k.unreadable)
  ) as v (law, broken)
  where i.backlog_upto is not null and v.broken
  union all
  select 'signal_is_its_delivery', x.execution::text, format('signal %s, delivery %s', x.name, x.delivery)
  from (select k.execution, k.name, k.delivery, 1 as balance from stored k
        union all
        select t.execution, t.name, t.attempt, -1 from recorded t where t.type = 'signal_delivered') x
  group by x.execution, x.name, x.delivery having sum(x.balance) <> 0
  union all
  select 'receiver_is_a_number_to_come', i.execution::text, format('signal %s, receiver %s', i.name, i.receiver)
  from inbox i
  left join durable._executions h on h.execution = any (array[i.execution])
  where i.receiver is not null and (i.receiver < h.next_child and i.receiver <> all (h.reserved)) is not false
  union all
  select 'receiver_waits_for_one_signal', i.execution::text, format('receiver %s of %s signals', i.receiver, count(*))
  from inbox i where i.receiver is not null group by i.execution, i.receiver having count(*) > 1
$$;
comment on function durable._check_signal_tables(int8multirange, durable._journal_line[]) is
  'Inboxes and signals agree with the journal, and that of a present generation with the backlog. A waiting receive has a number that no row has yet.';

create or replace function durable._check_join_sets(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with row as (
    select j.*, case when j.type = 'join_set_created' then j.child
                     when j.type in ('join_set_submitted', 'join_set_awaited') then j.attempt end as join_set,
           durable._schedules_invocation(j.type) as plans, durable._completes_invocation(j.type) as completes
    from unnest(p_rows) j where j.child is not null
  ), recorded as (
    select r.*, min(r.seq) filter (where r.plans) over i as scheduled_at,
           min(r.seq) filter (where r.completes) over i as completed_at,
           count(*) filter (where r.type = 'join_set_created') over s as created,
           count(*) filter (where r.type = 'join_set_awaited') over s as taken,
           count(*) filter (where r.type = 'join_set_submitted') over s as submitted,
           count(*) filter (where r.type = 'join_set_submitted') over m as joined,
           count(*) filter (where r.type = 'join_set_awaited') over m as given,
           count(*) filter (where r.type = 'join_set_submitted') over c as memberships
    from row r
    window i as (partition by r.execution, r.child),
           s as (partition by r.execution, r.join_set order by r.seq),
           m as (partition by r.execution, r.join_set, r.child order by r.seq),
           c as (partition by r.execution, r.child order by r.seq)
  ), ordered as (
    select t.*, max(t.completed_at) filter (where t.type = 'join_set_awaited')
             over (s rows between unbounded preceding and 1 preceding) as taken_before
    from recorded t where t.type in ('join_set_submitted', 'join_set_awaited')
    window s as (partition by t.execution, t.join_set order by t.seq)
  )
  select v.law, o.execution::text, format('seq %s, type %s, set %s, child %s', o.seq, o.type, o.join_set, o.child)
  from ordered o
  left join durable._executions h on h.execution = any (array[o.execution])
  cross join lateral (values
    ('JS-1 submitted_to_what_was_created', o.type = 'join_set_submitted' and o.created = 0),
    ('member_was_scheduled_before', o.type = 'join_set_submitted' and coalesce(o.scheduled_at > o.seq, true)),
    ('JS-2 nothing_submitted_once_taken_from', o.type = 'join_set_submitted' and o.taken > 0),
    ('JS-3 taken_was_submitted', o.type = 'join_set_awaited' and o.joined = 0),
    ('JS-4 taken_was_completed', o.type = 'join_set_awaited' and coalesce(o.completed_at > o.seq, true)),
    ('JS-5 taken_once', o.type = 'join_set_awaited' and o.given > 1),
    ('JS-6 not_more_taken_than_submitted', o.type = 'join_set_awaited' and o.taken > o.submitted),
    ('JS-7 member_of_one_set_once', o.type = 'join_set_submitted' and o.memberships > 1),
    ('taken_in_the_order_of_completion',
      o.type = 'join_set_awaited' and o.completed_at < o.taken_before and not h.written_by_client),
    ('R10 taken_result_is_that_of_its_completion', o.type = 'join_set_awaited' and o.has_data)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_join_sets(durable._journal_line[]) is
  'Laws of join sets (JS-1 to JS-7). A member is an invocation, scheduled before it is submitted. Its result is that of its completion, so the row that takes it has none. Our own code takes the first member that completed.';

create or replace function durable._check_join_set_tables(p_runs int8multirange, p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with span as (
    select lower(s.span) as first, upper(s.span) as beyond from unnest(p_runs) as s (span)
  ), recorded as (
    select j.* from unnest(p_rows) j where j.type in ('join_set_created', 'join_set_submitted', 'join_set_awaited')
  )
  select 'join_set_agrees_with_journal', x.execution::text, format('set %s', x.child)
  from (
    select k.execution, k.child, true as stored, k.closed as was_closed, false as created, false as closed from span s
    cross join lateral (
      select j.* from durable._join_sets j where j.execution >= s.first and j.execution < s.beyond offset 0) k
    union all
    select t.execution, case t.type when 'join_set_created' then t.child else t.attempt end, false, false,
           t.type = 'join_set_created', t.type = 'join_set_awaited'
    from recorded t where t.type in ('join_set_created', 'join_set_awaited')) x
  group by x.execution, x.child
  having (bool_or(x.stored) or bool_or(x.created))
     and (bool_or(x.stored) <> bool_or(x.created) or bool_or(x.was_closed) <> bool_or(x.closed))
  union all
  select 'member_agrees_with_journal', x.execution::text,
         format('child %s: set %s of %s', x.child, max(x.stored_set), max(x.recorded_set))
  from (
    select k.execution, k.child, k.join_set as stored_set, k.taken as was_taken, null::integer as recorded_set, false as taken
    from span s
    cross join lateral (select m.* from durable._members m where m.execution >= s.first and m.execution < s.beyond offset 0) k
    union all
    select t.execution, t.child, null, false, case t.type when 'join_set_submitted' then t.attempt end,
           t.type = 'join_set_awaited'
    from recorded t where t.type in ('join_set_submitted', 'join_set_awaited')) x
  group by x.execution, x.child
  having num_nonnulls(max(x.stored_set), max(x.recorded_set)) > 0
     and (max(x.stored_set) is distinct from max(x.recorded_set) or bool_or(x.was_taken) <> bool_or(x.taken))
$$;
comment on function durable._check_join_set_tables(int8multirange, durable._journal_line[]) is 'The tables of join sets and members agree with the journal.';

create or replace function durable._recorded_children(p_rows durable._journal_line[])
returns table (execution bigint, bucket integer, child integer, type durable.row_type, intents bigint,
               completed_by durable.row_type, resolvers bigint, local_ends bigint, attempts bigint, ended bigint, named bigint,
               name text, adopted text, has_data boolean, scheduled_at integer, fired bigint, fired_at integer,
               fires_ts bigint, timer_data text, is_nobodys boolean, run_name text, run_hash bytea, owner_ts bigint)
language sql stable
as $$
  select * from (
    select j.execution, j.bucket, j.child, min(j.type) filter (where durable._allocates(j.type)),
           count(*) filter (where durable._schedules_promise(j.type)),
           min(j.type) filter (where durable._resolves(j.type)),
           count(*) filter (where durable._settles_child(j.type) or j.type = 'timer_fired'),
           count(*) filter (where durable._completes_step(j.type) and not durable._schedules_step(j.type)),
           count(*) filter (where j.type = 'child_run_started'), count(*) filter (where j.type = 'child_run_interrupted'),
           count(*) filter (where durable._settles_child(j.type) and j.name is not null),
           max(j.name) filter (where durable._settles_child(j.type)), max(j.name) filter (where j.type = 'promise_registered'),
           bool_or(j.has_data) filter (where durable._settles_child(j.type)),
           min(j.seq) filter (where j.type = 'timer_scheduled'),
           count(*) filter (where j.type = 'timer_fired'), min(j.seq) filter (where j.type = 'timer_fired'),
           min(j.ts) filter (where j.type = 'timer_fired'),
           max(j.data) filter (where j.type = 'timer_scheduled'),
           coalesce(bool_or(j.has_data) filter (where j.type = 'child_run_scheduled'), false),
           max(j.name) filter (where j.type = 'child_run_scheduled'),
           (array_agg(j.input_hash) filter (where j.type = 'child_run_scheduled'))[1],
           max(max(j.ts)) over (partition by j.execution, j.bucket)
    from unnest(p_rows) j where j.type not in ('join_set_submitted', 'join_set_awaited')
    group by j.execution, j.bucket, j.child) as x (execution, bucket, child)
  where x.child is not null
$$;
comment on function durable._recorded_children(durable._journal_line[]) is
  'The children in journals: kind, the row type and the name of the completion, the attempts of a child run, the instant and the firing of a timer, and when the last row of the journal was written.';

create or replace function durable._input_hash(p_name text, p_param text)
returns bytea language sql immutable parallel safe
as $$ select substr(sha256(convert_to(p_name, 'UTF8') || E'\\x00'::bytea || convert_to(p_param, 'UTF8')), 1, 8) $$;
comment on function durable._input_hash(text, text) is
  'The hash of a call, as workers record it: of its name and of the text of its arguments. It is the last of the two that a row may have.';

create or replace function durable._check_children(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, coalesce(h.id || '.', '') || t.child,
         format('kind %s, completed by %s %s, state %s', t.type, t.completed_by, t.name, coalesce(p.state, 'no promise'))
  from durable._recorded_children(p_rows) t
  left join durable._executions h on h.execution = any (array[t.execution]) and h.bucket = t.bucket
  left join durable._promises p on p.id = any (array[h.id || '.' || t.child]) and p.execution = h.execution
  left join durable._tasks k on k.id = any (array[case when p.state = 'pending' then p.id end])
  left join durable._promises f on f.id = any (array[t.name])
  left join durable._executions c on c.execution = any (array[p.head])
  left join lateral (select c.awaited_id from durable._callbacks c
                     where c.awaiter_id = h.id and c.child = t.child and c.child >= 0 limit 1) w on t.adopted is not null
  cross join lateral (
    select h.status in ('running', 'blocked', 'cancelling') as live, t.adopted is not null and p.id is null as adopts,
           coalesce(durable._settles_child(t.completed_by), false) as is_done,
           case when t.timer_data is not null then (durable._json(t.timer_data) ->> 'fire_at')::bigint end as fire_at,
           case when t.timer_data is not null then (durable._json(t.timer_data) ->> 'duration')::bigint end as duration) o
  cross join lateral (values
    ('C-1 child_has_its_promise', t.type in ('child_run_scheduled', 'timer_scheduled') and p.id is null and h.id is not null
      and not t.is_nobodys),
    ('C-1 settled_iff_resolved_in_owner', p.id is not null and (
      t.intents <> 1 or t.resolvers > 1 or (p.state = 'pending' and t.resolvers > 0)
      or (p.state <> 'pending' and t.resolvers = 0
          and (o.live or p.settled_at < least(t.owner_ts, p.timeout_at - 1))))),
    ('C-5 open_attempt_of_child_run', o.live and k.id is not null
      and (t.attempts <> k.attempt or (t.attempts > t.ended) <> k.attempt_open)),
    ('C-6 result_comes_as_its_kind_does', case
      when t.type in ('child_run_scheduled', 'promise_registered') then t.local_ends > 0 or t.completed_by = 'timer_fired'
      when t.type = 'timer_scheduled' then t.local_ends > 0 or t.completed_by <> 'timer_fired'
      when t.type is not null then t.resolvers > 0 end),
    ('C-6 result_is_that_of_the_promise', o.is_done and case
      when t.named > 0 then t.has_data or t.name is distinct from t.adopted or f.id is null or f.state = 'pending'
      when p.id is null then not (t.has_data and t.completed_by = 'child_settled' and t.adopted <> '')
      else t.has_data or p.state = 'pending' end),
    ('CF-1 fired_was_scheduled', coalesce(t.scheduled_at, t.fired_at + 1) > t.fired_at),
    ('X-2 timer_fired_once', t.fired > 1),
    ('timer_is_due_when_its_promise_is', t.type = 'timer_scheduled' and p.id is not null
      and (o.fire_at is null or p.timeout_at <> greatest(o.fire_at, p.created_at + 1)
           or (o.fire_at <> durable._later(p.created_at, o.duration) and not h.written_by_client))),
    ('C-1 child_is_of_its_kind', p.id is not null and case t.type
      when 'child_run_scheduled' then (p.head is null and p.state = 'pending') or c.workflow <> t.run_name
      when 'promise_registered' then p.timer or (c.written_by_client is false and durable._is_plain(p.param_headers))
      when 'timer_scheduled' then not p.timer end),
    ('child_run_has_the_input_of_its_call',
      substr(t.run_hash, octet_length(t.run_hash) - 7) <> durable._input_hash(t.run_name, p.param_data)
      and durable._is_plain(p.param_headers)),
    ('timer_does_not_fire_early', t.fires_ts < p.settled_at),
    ('R13 adopted_promise_is_awaited',
      o.adopts and not o.is_done and o.live and w.awaited_id is distinct from t.adopted and t.completed_by is null)
  ) as v (law, broken)
  -- a local step without a promise and without rows of other kinds has laws of its own
  where (p.id is not null or t.intents > 0 or t.resolvers > 0) and v.broken
$$;
comment on function durable._check_children(durable._journal_line[]) is
  'Promises, tasks and callbacks of children agree with the owner''s journal (C-1, C-5, C-6, CF-1, X-2, R13). An owner that has ended records nothing more (R16). A deadline verdict may be written after its instant, hence after the end of the owner. Only an adoption that was refused has its error in the row.';

create or replace function durable._check_open_steps(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with open as (
    select u.execution, u.bucket, array_agg(u.child order by u.child) filter (where u.is_open) as children,
           array_agg((u.attempt).number order by u.child) filter (where u.is_open) as attempts,
           array_agg((u.attempt).state = 'running' order by u.child) filter (where u.is_open) as running
    from (
      select s.*, (s.attempt).state <> 'complete' as is_open from (
        select j.execution, j.bucket, j.child,
               (array_agg(durable._attempt_after(j.type, j.attempt) order by j.seq desc))[1] as attempt
        from unnest(p_rows) j where durable._is_local(j.type) or j.type = 'execution_started'
        group by j.execution, j.bucket, j.child) s) u
    group by u.execution, u.bucket
  )
  select 'C-5 open_steps_of_head', h.id, format('open %s, attempts %s, running %s', h.open_steps, h.open_attempts, h.open_running)
  from open o
  join durable._executions h on h.execution = any (array[o.execution]) and h.bucket = o.bucket
  where coalesce(o.children, '{}') <> h.open_steps or coalesce(o.attempts, '{}') <> h.open_attempts
     or coalesce(o.running, '{}') <> h.open_running
$$;
comment on function durable._check_open_steps(durable._journal_line[]) is
  'The head of a run has exactly the local steps that are open in the journal (C-5).';

create or replace function durable._is_adopted(p_head durable._executions, p_child integer, p_awaited text)
returns boolean language plpgsql stable
as $$
begin
  return coalesce((
    select bool_or(j.type = 'promise_registered' and j.name = p_awaited) and not bool_or(durable._settles_child(j.type))
    from durable._journal j where j.execution = p_head.execution and j.bucket = p_head.bucket and j.child = p_child), false);
end
$$;
comment on function durable._is_adopted(durable._executions, integer, text) is
  'Whether a journal has an open adoption of that promise under that child number.';

create or replace function durable._check_adoptions(p_runs int8multirange)
returns table (law text, id text, detail text) language sql stable
as $$
  select 'R13 adopted_promise_has_its_row', h.id, format('%s as child %s', k.awaited_id, k.child)
  from (
    select h, k.child, k.awaited_id from durable._heads_within(p_runs) h
    cross join lateral (
      select c.child, c.awaited_id from durable._callbacks c where c.awaiter_id = h.id and c.child >= 0 offset 0) k
    offset 0) k
  cross join lateral (select (k.h).*) h
  join durable._promises p on p.id = any (array[h.id]) and p.head = h.execution
  left join durable._promises o on o.id = any (array[h.id || '.' || k.child])
  where o.id is not null or not durable._is_adopted(k.h, k.child, k.awaited_id)
$$;
comment on function durable._check_adoptions(int8multirange) is
  'A run with a callback as an adopter has an open adoption of that promise in its journal (R13).';

create or replace function durable._check_run_generations(p_runs int8multirange)
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, h.id, format('execution %s after %s, children from %s, %s removed', h.execution, h.previous,
                                h.first_child, coalesce(h.generations_removed, 0))
  from (select * from durable._heads_within(p_runs) x
        where x.previous is not null or x.generations_removed is not null offset 0) h
  left join durable._executions b on b.execution = any (array[h.previous])
  cross join lateral (select durable._follower(b) as execution) n
  cross join lateral (values
    ('generation_follows_one_that_ended', h.generations_removed is null and (b.id is distinct from h.id
      or b.status not in ('completed', 'failed') or n.execution is distinct from h.execution)),
    ('removed_generations_are_gone', h.generations_removed is not null and b.id is not null),
    ('removed_generations_are_counted', h.generations_removed < 1 or (h.generations_removed is not null and h.previous is null)),
    ('generation_is_of_the_same_workflow', h.workflow <> b.workflow or h.tenant <> b.tenant),
    ('generation_numbers_go_on', h.first_child < b.next_child),
    ('generation_has_one_successor', n.execution <> h.execution)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_run_generations(int8multirange) is
  'Generations of one run: each ends with a row that names the next, and child numbers continue. The oldest that is left says how many were removed before it.';

create or replace function durable._check_belongings(p_runs int8multirange)
returns table (law text, id text, detail text) language sql stable
as $$
  select 'what_a_run_left_has_its_head', x.execution::text, x.kind
  from (
    select distinct t.execution, t.kind from unnest(p_runs) as s (span)
    cross join lateral (
      select g.execution, 'signals' as kind from durable._signals g
      where g.execution >= lower(s.span) and g.execution < upper(s.span)
      union all
      select i.execution, 'inbox' from durable._inboxes i
      where i.execution >= lower(s.span) and i.execution < upper(s.span)
      union all
      select j.execution, 'join set' from durable._join_sets j
      where j.execution >= lower(s.span) and j.execution < upper(s.span)
      union all
      select m.execution, 'members' from durable._members m
      where m.execution >= lower(s.span) and m.execution < upper(s.span) offset 0) t
  ) x
  left join durable._executions h on h.execution = any (array[x.execution])
  where h.execution is null
$$;
comment on function durable._check_belongings(int8multirange) is
  'Inboxes, signals, join sets and members belong to a run that exists.';

create or replace function durable._has_calls(p_rows durable._journal_line[])
returns boolean language sql stable
as $$ select exists (select from unnest(p_rows) j where j.name in ('durable.call_v1', 'durable.call_result_v1')) $$;
comment on function durable._has_calls(durable._journal_line[]) is 'Whether a portion has steps of content-addressed calls.';

create or replace function durable._check_recorded_calls(p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with step as (
    select j.execution, j.bucket, j.seq, durable._completes_step(j.type) as completes,
           bool_or(coalesce(j.name in ('durable.call_v1', 'durable.call_result_v1'), false))
             over (partition by j.execution, j.child) as is_call
    from unnest(p_rows) j where durable._schedules_step(j.type) or durable._completes_step(j.type)
  )
  select 'I22 recorded_call_names_its_exec', s.execution::text, format('seq %s, exec %s: %s %s', s.seq, a.exec, e.kind, e.sub)
  from step s
  join durable._journal d
    on d.execution = any (array[s.execution]) and d.bucket = any (array[s.bucket]) and d.seq = any (array[s.seq])
  cross join lateral (select durable._json(durable._data(d)) as answer) x
  cross join lateral (
    select x.answer ->> 'exec' as exec, x.answer ->> 'node' as node, x.answer ->> 'dag' as dag) a
  left join durable._objects e on e.id = any (array[case when a.exec ~ '^[0-9a-f]{64}$' then decode(a.exec, 'hex') end])
  where s.is_call and s.completes and a.exec is not null
    and case when e.id is null then durable._readable_setting('call_results_days') = 0  -- or collected since
             else e.kind <> 'exec' or e.refs is distinct from array[decode(a.node, 'hex'), decode(a.dag, 'hex')] end
$$;
comment on function durable._check_recorded_calls(durable._journal_line[]) is
  'The law of calls in journals: the execution that one found, or ended with, is one of its node with that result.';

create or replace function durable._check_runs(p_runs int8multirange)
returns table (law text, id text, detail text) language plpgsql stable
as $$
declare
  v_rows durable._journal_line[] := durable._rows_within(p_runs);
  v_types durable.row_type[] := (select array_agg(distinct j.type) from unnest(v_rows) j);
begin
  return query select * from durable._check_heads(p_runs);
  return query select * from durable._check_head_counters(p_runs, v_rows);
  return query select * from durable._check_rows(v_rows);
  return query select * from durable._check_invocations(v_rows);
  return query select * from durable._check_open_steps(v_rows);
  return query select * from durable._check_children(v_rows);
  return query select * from durable._check_adoptions(p_runs);
  return query select * from durable._check_signal_tables(p_runs, v_rows);
  return query select * from durable._check_join_set_tables(p_runs, v_rows);
  return query select * from durable._check_run_generations(p_runs);
  return query select * from durable._check_belongings(p_runs);
  return query select * from durable._check_values(p_runs, v_rows);
  if 'execution_awaiting' = any (v_types) then
    return query select * from durable._check_run_waits(p_runs, v_rows);
    return query select * from durable._check_members(v_rows);
  end if;
  if v_types && array['signal_delivered', 'signal_received']::durable.row_type[] then
    return query select * from durable._check_signals(v_rows);
  end if;
  if v_types && array['join_set_created', 'join_set_submitted', 'join_set_awaited']::durable.row_type[] then
    return query select * from durable._check_join_sets(v_rows);
  end if;
  if 'execution_cancelled' = any (v_types) then
    return query select * from durable._check_causes(p_runs);
  end if;
  if durable._has_calls(v_rows) then
    return query select * from durable._check_recorded_calls(v_rows);
  end if;
end
$$;
comment on function durable._check_runs(int8multirange) is
  'All laws of the journals, heads and tables of a portion of runs. Laws about rows that few journals have are checked only where such rows exist.';
