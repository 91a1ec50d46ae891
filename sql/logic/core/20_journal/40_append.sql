-- The grammar of the journal and its one writer: guards, sequence numbers, and the update of heads. (The head of a run is its
-- row in _executions, a summary of its journal.) Callers hold the lock of every head to which they append. Here and in every
-- file, rows that are looked up for the elements of an array or CTE are joined by "key = any (array[x.key])": sql/README.md,
-- "How we write a look-up".

create or replace function durable._width(p_type durable.row_type)
returns integer language sql immutable parallel safe
as $$
  select case
    when p_type in ('step_completed', 'step_failed', 'first_attempt_failed') then 3
    when p_type in ('step_started', 'attempt_failed', 'last_attempt_completed', 'last_attempt_failed', 'child_settled') then 2
    else 1
  end
$$;
comment on function durable._width(durable.row_type) is 'How many logical events a row of this type stands for; equals cardinality(events) of journal_types().';

create or replace function durable._status_after(p_type durable.row_type)
returns text language sql immutable parallel safe
as $$
  select case p_type
    when 'execution_started' then 'running' when 'execution_resumed' then 'running' when 'execution_awaiting' then 'blocked'
    when 'cancel_requested' then 'cancelling' when 'execution_cancelled' then 'cancelled'
    when 'execution_completed' then 'completed' when 'execution_failed' then 'failed'
  end
$$;
comment on function durable._status_after(durable.row_type) is
  'The status of a run after the row; null for a row that does not change it. A head has the status after its last such row.';

create or replace function durable._status_at(p_place bigint, p_status text)
returns bigint language sql immutable parallel safe
as $$
  select p_place * 8
         + array_position(array['running', 'blocked', 'cancelling', 'completed', 'failed', 'cancelled'], p_status)
$$;
comment on function durable._status_at(bigint, text) is
  'A place in a journal and the status after it as one number, so that the largest number has the last status; null without a status.';

create or replace function durable._status_of(p_status_at bigint)
returns text language sql immutable parallel safe
as $$ select (array['running', 'blocked', 'cancelling', 'completed', 'failed', 'cancelled'])[p_status_at % 8] $$;
comment on function durable._status_of(bigint) is 'The status in a number of _status_at.';

create or replace function durable._may_append(p_status text, p_type durable.row_type, p_cleaning boolean default false)
returns boolean language sql immutable parallel safe
as $$
  select case
    when p_status in ('completed', 'failed', 'cancelled') then false
    when p_type in (
      'step_completed', 'step_failed', 'first_attempt_failed', 'step_started', 'child_run_scheduled', 'promise_registered',
      'timer_scheduled', 'random_generated', 'time_recorded', 'join_set_created', 'join_set_submitted', 'join_set_awaited')
      then p_status = 'running' or (p_cleaning and p_status = 'cancelling')
    when p_type in ('step_scheduled', 'execution_awaiting') then p_status = 'running'
    when p_type = 'signal_received' then p_status in ('running', 'blocked')
    when p_type = 'execution_resumed' then p_status = 'blocked'
    when p_type = 'execution_cancelled' then p_status = 'cancelling'
    when p_type = 'cancel_requested' then p_status in ('running', 'blocked')
    when p_type = 'execution_started' then false
    else true
  end
$$;
comment on function durable._may_append(text, durable.row_type, boolean) is
  'Guard by status: the row types that each of the six statuses allows. ExecutionStarted is written at birth only; nothing follows an end. p_cleaning: the row is from a worker that has seen the request of cancellation, so clean-up may take durable steps. It cannot wait in the journal, because that would end the status cancelling.';

create or replace function durable._attempt_after(p_type durable.row_type, p_attempt integer)
returns durable._attempt language sql immutable parallel safe
as $$
  select case
    when p_type in ('step_started', 'attempt_started') then row(p_attempt, 'running')::durable._attempt
    when durable._fails_attempt(p_type) then row(p_attempt + 1, 'due')::durable._attempt
    when p_type = 'step_scheduled' then row(1, 'due')::durable._attempt
    else row(null, 'complete')::durable._attempt
  end
$$;
comment on function durable._attempt_after(durable.row_type, integer) is 'The state of a local step after a row about it.';

create or replace function durable._open_attempt(p_head durable._executions, p_child integer)
returns durable._attempt language sql immutable parallel safe
as $$
  select case when p_child = any (p_head.open_steps) then row(
    p_head.open_attempts[array_position(p_head.open_steps, p_child)],
    case when p_head.open_running[array_position(p_head.open_steps, p_child)] then 'running' else 'due' end)::durable._attempt end
$$;
comment on function durable._open_attempt(durable._executions, integer) is
  'The state of a local step, read from the head; null if the step is not open.';

create or replace function durable._attempt_fits(p_type durable.row_type, p_attempt integer, p_before durable._attempt)
returns boolean language sql immutable parallel safe
as $$
  select case
    when p_type in ('step_completed', 'step_failed', 'first_attempt_failed', 'step_started')
      then p_before is null and p_attempt is not distinct from 1
    when p_type in ('open_step_completed', 'open_step_failed', 'open_attempt_failed')
      then coalesce(p_before.state = 'running' and p_before.number = p_attempt, false)
    when p_type in ('last_attempt_completed', 'last_attempt_failed', 'attempt_started', 'attempt_failed')
      then coalesce(p_before.state = 'due' and p_before.number = p_attempt, false)
    else true
  end
$$;
comment on function durable._attempt_fits(durable.row_type, integer, durable._attempt) is
  'Guards SE-1 to SE-4: starts and ends of attempts alternate, with numbers 1, 2, 3; nothing follows the completion.';

create or replace function durable._attempt_due(p_before durable._attempt)
returns text language sql immutable parallel safe
as $$
  select case p_before.state
    when 'running' then format('attempt %s is under way', p_before.number)
    when 'due' then format('attempt %s comes next', p_before.number)
    when 'complete' then 'the step is complete'
    else 'no step is open under that number'
  end
$$;
comment on function durable._attempt_due(durable._attempt) is 'The attempt that _attempt_fits expects, as text.';

create or replace function durable._gap_max()
returns integer language sql immutable parallel safe
as $$ select 1000000 $$;
comment on function durable._gap_max() is
  'The largest gap that one row may leave before its child number: the head keeps every number of a gap until the row with it is written.';

create or replace function durable._row_guard(
  p_execution bigint, p_type durable.row_type, p_child integer, p_status text, p_next_child integer, p_reserved integer[],
  p_cleaning boolean)
returns boolean language sql volatile
as $$
  select case
    when not durable._may_append(p_status, p_type, p_cleaning)
      then durable._fail_journal(p_execution, p_type, p_child, 'not allowed while ' || p_status)
    when durable._allocates(p_type) and p_child < p_next_child and p_child <> all (p_reserved)
      then durable._fail_journal(p_execution, p_type, p_child, 'that child number is taken')
    when durable._allocates(p_type) and p_child - p_next_child > durable._gap_max()
      then durable._fail_journal(p_execution, p_type, p_child,
             format('the next child is %s, and a gap has %s numbers at most', p_next_child, durable._gap_max()))
    else true
  end
$$;
comment on function durable._row_guard(bigint, durable.row_type, integer, text, integer, integer[], boolean) is
  'The guards of one row by status and child number. The arguments are the status, the next child and the reserved numbers before the row. True, or WF006.';

create or replace function durable._attempt_guard(
  p_execution bigint, p_type durable.row_type, p_child integer, p_attempt integer, p_before durable._attempt)
returns boolean language sql volatile
as $$
  select case
    when durable._attempt_fits(p_type, p_attempt, p_before) then true
    else durable._fail_journal(p_execution, p_type, p_child,
           format('attempt %s does not fit: %s', p_attempt, durable._attempt_due(p_before)))
  end
$$;
comment on function durable._attempt_guard(bigint, durable.row_type, integer, integer, durable._attempt) is
  'The guard of one row by attempt. p_before: the state of its step before the row. True, or WF006.';

create or replace function durable._append_each(p_events durable._event[], p_now bigint, p_cleaning boolean)
returns void language plpgsql volatile
as $$
begin
  with folded as (
    update durable._executions h
    set next_seq = h.next_seq + e.width, last_at = greatest(h.last_at, p_now),
        next_child = case when e.allocates then greatest(h.next_child, e.child + 1) else h.next_child end,
        reserved = case when not e.allocates or (e.child = h.next_child and h.reserved = '{}') then h.reserved
                        else durable._reserve(h.reserved, h.next_child, array[e.child]) end,
        status = coalesce(e.status, h.status),
        cancel_until = case when coalesce(e.status, h.status) = 'cancelling' then h.cancel_until end,
        waiting_on = case when e.status is null then h.waiting_on end,
        wait_kind = case when e.status is null then h.wait_kind end,
        wait_left = case when e.status is null then h.wait_left end
    from (
      select u.*, durable._width(u.type) as width, durable._status_after(u.type) as status,
             durable._allocates(u.type) as allocates, durable._is_local(u.type) as is_local
      from unnest(p_events) as u (execution, type, child, attempt, name, input_hash, data)
      offset 0) e
    where h.execution = any (array[e.execution])
      and durable._row_guard(h.execution, e.type, e.child, h.status, h.next_child, h.reserved, p_cleaning)
      and durable._attempt_guard(h.execution, e.type, e.child, e.attempt,
                                 case when e.is_local then durable._open_attempt(h, e.child) end)
    returning h.bucket, h.execution, h.next_seq - e.width as seq, h.last_at, e.type, e.child, e.attempt, e.name, e.input_hash,
              e.data
  )
  insert into durable._journal (bucket, execution, seq, ts, type, child, attempt, name, input_hash, data)
  select f.bucket, f.execution, f.seq, f.last_at, f.type, f.child, f.attempt, f.name, f.input_hash, f.data from folded f;
end
$$;
comment on function durable._append_each(durable._event[], bigint, boolean) is
  'Appends one row to each of some journals: rows and heads in one pass, because no row depends on another one.';

create or replace function durable._append_end(p_execution bigint, p_type durable.row_type, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_bucket integer;
  v_seq integer;
  v_at bigint;
begin
  update durable._executions h
  set next_seq = h.next_seq + 1, last_at = greatest(h.last_at, p_now), status = durable._status_after(p_type),
      cancel_until = null, waiting_on = null, wait_kind = null, wait_left = null
  where h.execution = p_execution and durable._may_append(h.status, p_type)
  returning h.bucket, h.next_seq - 1, h.last_at into v_bucket, v_seq, v_at;
  if not found then
    perform durable._fail_journal(p_execution, p_type, null, 'not allowed while ' || h.status)
    from durable._executions h where h.execution = p_execution;
  end if;
  insert into durable._journal (bucket, execution, seq, ts, type) values (v_bucket, p_execution, v_seq, v_at, p_type);
end
$$;
comment on function durable._append_end(bigint, durable.row_type, bigint) is
  'Appends the last row of one journal and updates its head: _append_each for one run.';

create or replace function durable._is_small_result(p_event durable._event)
returns boolean language sql immutable parallel safe
as $$
  select p_event.type in ('step_completed', 'step_failed')
     and (octet_length(p_event.data) >= 1024 or starts_with(p_event.data, durable._sub())) is not true
$$;
comment on function durable._is_small_result(durable._event) is
  'True for a result that is the only row of its step, so no open step is to be updated, and that is too small to be stored apart (_append).';

create or replace function durable._append_result(p_event durable._event, p_now bigint, p_cleaning boolean)
returns void language plpgsql volatile
as $$
declare
  v_width integer := durable._width(p_event.type);
  v_bucket integer;
  v_seq integer;
  v_at bigint;
begin
  update durable._executions h
  set next_seq = h.next_seq + v_width, last_at = greatest(h.last_at, p_now),
      next_child = greatest(h.next_child, p_event.child + 1),
      reserved = case when p_event.child = h.next_child and h.reserved = '{}' then h.reserved
                      else durable._reserve(h.reserved, h.next_child, array[p_event.child]) end
  where h.execution = p_event.execution
    and durable._row_guard(h.execution, p_event.type, p_event.child, h.status, h.next_child, h.reserved, p_cleaning)
    and durable._attempt_guard(h.execution, p_event.type, p_event.child, p_event.attempt, durable._open_attempt(h, p_event.child))
  returning h.bucket, h.next_seq - v_width, h.last_at into v_bucket, v_seq, v_at;
  insert into durable._journal (bucket, execution, seq, ts, type, child, attempt, name, input_hash, data)
  values (v_bucket, p_event.execution, v_seq, v_at, p_event.type, p_event.child, p_event.attempt, p_event.name,
          p_event.input_hash, p_event.data);
end
$$;
comment on function durable._append_result(durable._event, bigint, boolean) is
  'Appends one row of _is_small_result and updates its head, which exists: _append_each for one run. Its status stays.';

create or replace function durable._insert_all(p_events durable._event[], p_now bigint, p_cleaning boolean)
returns void language plpgsql volatile
as $$
begin
  insert into durable._journal (bucket, execution, seq, ts, type, child, attempt, name, input_hash, data)
  select b.bucket, b.execution, (b.next_seq + b.upto - durable._width(b.type))::integer, greatest(b.last_at, p_now),
         b.type, b.child, b.attempt, b.name, b.input_hash, b.data
  from (
    select h.bucket, h.next_seq, h.next_child, h.reserved, h.last_at, e.*,
           sum(durable._width(e.type)) over (partition by e.execution order by e.ord) as upto,
           coalesce(durable._status_of(max(durable._status_at(e.ord, durable._status_after(e.type))) over earlier),
                    h.status) as status,
           case when durable._is_local(e.type) then coalesce(
             lag(durable._attempt_after(e.type, e.attempt))
               over (partition by e.execution, e.child, durable._is_local(e.type) order by e.ord),
             durable._open_attempt(h, e.child)) end as attempt_before
    from unnest(p_events) with ordinality
           as e (execution, type, child, attempt, name, input_hash, data, ord)
    join durable._executions h on h.execution = any (array[e.execution])
    window earlier as (partition by e.execution order by e.ord rows between unbounded preceding and 1 preceding)
  ) b
  where durable._row_guard(b.execution, b.type, b.child, b.status, b.next_child, b.reserved, p_cleaning)
    and durable._attempt_guard(b.execution, b.type, b.child, b.attempt, b.attempt_before);
end
$$;
comment on function durable._insert_all(durable._event[], bigint, boolean) is
  'Appends rows in their order, each checked against the state that the rows before it leave.';

create or replace function durable._update_heads(p_events durable._event[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._executions h
  set next_seq = h.next_seq + n.width, last_at = greatest(h.last_at, p_now),
      next_child = greatest(h.next_child, n.last_child + 1),
      reserved = case
        when n.children is null or (h.reserved = '{}' and h.next_child + cardinality(n.children) = n.last_child + 1)
          then h.reserved
        else durable._reserve(h.reserved, h.next_child, n.children) end,
      status = coalesce(n.status, h.status),
      cancel_until = case when coalesce(n.status, h.status) = 'cancelling' then h.cancel_until end,
      waiting_on = case when n.status is null then h.waiting_on end,
      wait_kind = case when n.status is null then h.wait_kind end,
      wait_left = case when n.status is null then h.wait_left end
  from (
    select e.execution, sum(durable._width(e.type)) as width,
           max(e.child) filter (where durable._allocates(e.type)) as last_child,
           array_agg(e.child) filter (where durable._allocates(e.type)) as children,
           -- a sort within each group would cost more than the rest of the statement
           durable._status_of(max(durable._status_at(e.ord, durable._status_after(e.type)))) as status
    from unnest(p_events) with ordinality as e (execution, type, child, attempt, name, input_hash, data, ord)
    group by e.execution
  ) n
  where h.execution = any (array[n.execution]);
end
$$;
comment on function durable._update_heads(durable._event[], bigint) is 'Updates heads by the rows that _insert_all has appended.';

create or replace function durable._append(
  p_events durable._event[], p_now bigint, p_cleaning boolean default false, p_is_stored boolean default false)
returns void language plpgsql volatile
as $$
declare
  v_steps boolean;
  v_old boolean;
  v_signals boolean;
  v_join_sets boolean;
  v_is_each boolean;
  v_bytes integer;
begin
  if p_events = '{}' then
    return;
  elsif cardinality(p_events) = 1 and durable._is_small_result(p_events[1]) then
    perform durable._append_result(p_events[1], p_now, p_cleaning);
    return;
  end if;
  select bool_or(durable._is_local(e.type) and e.type not in ('step_completed', 'step_failed')),
         bool_or(durable._leaves_old_attempts(e.type, e.attempt)),
         bool_or(e.type in ('signal_delivered', 'signal_received')),
         bool_or(e.type in ('join_set_created', 'join_set_submitted', 'join_set_awaited')),
         max(case when starts_with(e.data, durable._sub()) then 2147483647 else octet_length(e.data) end)
  into v_steps, v_old, v_signals, v_join_sets, v_bytes from unnest(p_events) e;
  if v_bytes >= 1024 and not p_is_stored then
    -- two conditions, because a setting costs a look-up
    if v_bytes >= durable._setting_int('large_value_bytes') then
      p_events := durable._store_large(p_events);
    end if;
  end if;
  v_is_each := cardinality(p_events) = 1 or (select count(distinct e.execution) = count(*) from unnest(p_events) e);
  if v_is_each then
    perform durable._append_each(p_events, p_now, p_cleaning);
  else
    perform durable._insert_all(p_events, p_now, p_cleaning);
    perform durable._update_heads(p_events, p_now);
  end if;
  if v_steps then
    perform durable._update_open_steps(p_events);
  end if;
  if v_old then
    perform durable._remove_old_attempts(p_events);
  end if;
  if v_signals then
    perform durable._check_inboxes(p_events);
    perform durable._update_inboxes(p_events);
  end if;
  if v_join_sets then
    perform durable._update_join_sets(p_events);
  end if;
end
$$;
comment on function durable._append(durable._event[], bigint, boolean, boolean) is
  'The one writer of events, for any number of executions at once; waits are written by _await. WF006 if an event does not fit its journal. Updates heads, inboxes and join sets by it, and removes attempts that lie far back. p_is_stored: large values are stored already, and the events refer to them.';

create or replace function durable._update_open_steps(p_events durable._event[])
returns void language plpgsql volatile
as $$
begin
  update durable._executions h set open_steps = n.steps, open_attempts = n.attempts, open_running = n.running
  from (
    select g.execution,
           coalesce(array_agg(s.child order by s.child) filter (where s.state <> 'complete'), '{}') as steps,
           coalesce(array_agg(s.number order by s.child) filter (where s.state <> 'complete'), '{}') as attempts,
           coalesce(array_agg(s.state = 'running' order by s.child) filter (where s.state <> 'complete'), '{}') as running
    from (select distinct e.execution from unnest(p_events) e
          where durable._is_local(e.type) and e.type not in ('step_completed', 'step_failed')) g
    join durable._executions o on o.execution = any (array[g.execution])
    cross join lateral (
      select distinct on (u.child) u.child, (u.attempt).number, (u.attempt).state from (
        select w.child, durable._open_attempt(o, w.child) as attempt, 0::bigint as ord from unnest(o.open_steps) as w (child)
        union all
        select e.child, durable._attempt_after(e.type, e.attempt), e.ord
        from unnest(p_events) with ordinality as e (execution, type, child, attempt, name, input_hash, data, ord)
        where e.execution = g.execution and durable._is_local(e.type)
      ) u
      order by u.child, u.ord desc
    ) s
    group by g.execution
  ) n
  where h.execution = any (array[n.execution]);
end
$$;
comment on function durable._update_open_steps(durable._event[]) is
  'Updates the open local steps of heads: the last row about a step decides.';

create or replace function durable._reserve(p_reserved integer[], p_next integer, p_children integer[])
returns integer[] language sql immutable parallel safe
as $$
  select coalesce(array_agg(u.child order by u.child), '{}') from (
    select unnest(p_reserved) as child
    union all
    select generate_series(p_next, (select max(c) from unnest(p_children) c))
  ) u
  where u.child <> all (p_children)
$$;
comment on function durable._reserve(integer[], integer, integer[]) is
  'The reserved numbers after p_children were taken: gaps, for local steps and receives whose rows are still to come (law A-1).';

create or replace function durable._await(p_executions bigint[], p_waits durable._ending[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  with blocked as (
    update durable._executions h
    set next_seq = h.next_seq + 1, last_at = greatest(h.last_at, p_now), status = 'blocked', suspend_seq = h.next_seq + 1,
        waiting_on = w."on", wait_kind = w.kind,
        wait_left = case when w.kind = 'all' then cardinality(w."on") else 1 end
    from rows from (unnest(p_executions), unnest(p_waits))
      as w (execution, "do", "on", kind, value, error, retry_in, problem)
    where h.execution = any (array[w.execution])
      and durable._row_guard(h.execution, 'execution_awaiting', null, h.status, h.next_child, h.reserved, false)
    returning h.bucket, h.execution, h.next_seq - 1 as seq, h.last_at, w."on", w.kind, w.value
  )
  insert into durable._journal (bucket, execution, seq, ts, type, data)
  select b.bucket, b.execution, b.seq, b.last_at, 'execution_awaiting',
         (jsonb_build_object('on', to_jsonb(b."on"), 'kind', b.kind)
          || case when b.kind = 'signal' then jsonb_build_object('name', coalesce((
               select i.name from durable._inboxes i where i.execution = b.execution and i.receiver = b."on"[1] limit 1),
               b.value)) else '{}' end)::text
  from blocked b;
end
$$;
comment on function durable._await(bigint[], durable._ending[], bigint) is
  'Writes ExecutionAwaiting and marks the heads as blocked on the children of the wait. A wait for a signal without a registered receiver has the name of the signal as its value.';

create or replace function durable._bucket(p_now bigint)
returns integer language plpgsql stable
as $$
declare
  v_bucket integer;
begin
  select b.bucket into v_bucket from durable._buckets b where b.bucket = durable._week(p_now);
  if found then
    return v_bucket;
  end if;
  return coalesce(
    (select b.bucket from durable._buckets b where b.bucket <= durable._week(p_now) order by b.bucket desc limit 1),
    (select min(b.bucket) from durable._buckets b));
end
$$;
comment on function durable._bucket(bigint) is
  'The partition for a run that starts now: the one of this week, else the newest one before it, so that no start fails because a partition is missing.';

create or replace function durable._write_started(
  p_executions bigint[], p_bucket integer, p_data text, p_now bigint, p_attempt integer default null)
returns void language plpgsql volatile
as $$
begin
  insert into durable._journal (bucket, execution, seq, ts, type, attempt, data)
  select p_bucket, e, 0, p_now, 'execution_started', p_attempt, durable._stored_text(p_bucket, e, p_data)
  from unnest(p_executions) e;
end
$$;
comment on function durable._write_started(bigint[], integer, text, bigint, integer) is
  'Writes the first row of new journals. p_data: data that the promise does not have, which is the input of a later generation or the data of a client. p_attempt: the attempt of the run, from 2 on; null for the first.';

create or replace function durable._copy_rows(
  p_from bigint, p_to bigint, p_seqs integer[], p_changed integer[], p_types durable.row_type[], p_data text[])
returns void language sql volatile
as $$
  insert into durable._journal (bucket, execution, seq, ts, type, child, attempt, name, input_hash, data)
  select t.bucket, t.execution, (sum(durable._width(j.type)) over (order by j.seq) - durable._width(j.type))::integer, j.ts,
         coalesce(c.type, j.type), j.child, j.attempt,
         case when c.seq is null or not durable._settles_child(j.type) then j.name end, j.input_hash,
         case when c.seq is not null and durable._settles_child(j.type) then null
              when j.type <> 'execution_started' or f.previous is null
                then durable._stored_text(t.bucket, t.execution, d.text) end
  from durable._executions f
  join durable._executions t on t.execution = p_to
  join durable._journal j on j.execution = f.execution and j.bucket = f.bucket and j.seq = any (p_seqs)
  left join unnest(p_changed, p_types, p_data) as c (seq, type, data) on c.seq = j.seq
  cross join lateral (select coalesce(c.data, durable._data(j)) as text offset 0) d
  where f.execution = p_from
$$;
comment on function durable._copy_rows(bigint, bigint, integer[], integer[], durable.row_type[], text[]) is
  'Copies rows, named by their seq, to the journal of a head that has none yet, with dense numbers. The rows p_changed get another type and other data; a completion by reference then refers to the child of the copy. The caller holds both heads.';

create or replace function durable._rebuild_head(p_execution bigint)
returns void language sql volatile
as $$
  update durable._executions h
  set next_seq = f.width, last_at = f.last_at, next_child = f.next_child, open_steps = s.steps, open_attempts = s.attempts,
      open_running = s.running,
      reserved = array(
        select n from generate_series(h.first_child, f.next_child - 1) n
        except
        select j.child from durable._journal j
        where j.execution = p_execution and j.bucket = f.bucket and durable._allocates(j.type) order by 1)
  from (
    select j.bucket, sum(durable._width(j.type)) as width, max(j.ts) as last_at,
           coalesce(max(j.child) filter (where durable._allocates(j.type)) + 1, o.first_child) as next_child
    from durable._executions o
    join durable._journal j on j.execution = o.execution and j.bucket = o.bucket
    where o.execution = p_execution group by j.bucket, o.first_child
  ) f
  cross join lateral (
    select coalesce(array_agg(u.child order by u.child), '{}') as steps,
           coalesce(array_agg((u.attempt).number order by u.child), '{}') as attempts,
           coalesce(array_agg((u.attempt).state = 'running' order by u.child), '{}') as running
    from (
      select distinct on (j.child) j.child, durable._attempt_after(j.type, j.attempt) as attempt
      from durable._journal j
      where j.execution = p_execution and j.bucket = f.bucket and durable._is_local(j.type)
      order by j.child, j.seq desc
    ) u where (u.attempt).state <> 'complete'
  ) s
  where h.execution = p_execution
$$;
comment on function durable._rebuild_head(bigint) is
  'Computes the head of a running execution from its whole journal, which was copied and not appended row by row.';

create or replace function durable._code_to_run(p_workflow text, p_version text)
returns durable._run_code language plpgsql stable
as $$
declare
  v_known durable._workflows;
begin
  select * into v_known from durable._workflows w where w.name = p_workflow and w.version = p_version;
  return row(p_workflow, p_version, v_known.digest, coalesce(v_known.rules, 1))::durable._run_code;
end
$$;
comment on function durable._code_to_run(text, text) is
  'The digest and the rules with which a run of this workflow is born: those of the worker that announced it last, if there is one.';

create or replace function durable._begin(
  p_executions bigint[], p_ids text[], p_tenants text[], p_codes durable._run_code[], p_keys text[], p_now bigint,
  p_abandoned boolean[] default null)
returns void language plpgsql volatile
as $$
declare
  v_bucket integer := durable._bucket(p_now);
  v_count integer;
begin
  insert into durable._executions (execution, last_at, id, tenant, workflow, workflow_version, key, bucket, next_seq, abandoned,
                                   rules, digest)
  select r.execution, p_now, r.id, r.tenant, r.workflow, r.version, r.key, v_bucket, 1, coalesce(r.abandoned, false), r.rules,
         r.digest
  from unnest(p_executions, p_ids, p_tenants, p_codes, p_keys, p_abandoned)
         as r (execution, id, tenant, workflow, version, digest, rules, key, abandoned)
  -- two calls with keys in common insert them in the same order
  order by r.key collate "C", r.execution
  on conflict (tenant, workflow, key) where key is not null do nothing;
  get diagnostics v_count = row_count;
  if v_count < cardinality(p_executions) then
    perform durable._start_over();
  end if;
  perform durable._write_started(p_executions, v_bucket, null, p_now);
end
$$;
comment on function durable._begin(bigint[], text[], text[], durable._run_code[], text[], bigint, boolean[]) is
  'Creates heads with their ExecutionStarted, under numbers that the caller drew from _next_execution. WF099 if one of their keys was taken by a start without a lock on it; a caller with keys catches it.';

create or replace function durable._begin_one(
  p_execution bigint, p_id text, p_tenant text, p_code durable._run_code, p_key text, p_now bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  insert into durable._executions as h (execution, last_at, id, tenant, workflow, workflow_version, key, bucket, next_seq, rules,
                                        digest)
  values (p_execution, p_now, p_id, p_tenant, p_code.workflow, p_code.version, p_key,
          coalesce((select b.bucket from durable._buckets b where b.bucket = durable._week(p_now)), durable._bucket(p_now)), 1,
          p_code.rules, p_code.digest)
  on conflict (tenant, workflow, key) where key is not null do nothing
  returning h.* into v_head;
  if not found then
    return null;
  end if;
  insert into durable._journal (bucket, execution, seq, ts, type)
  values (v_head.bucket, p_execution, 0, p_now, 'execution_started');
  return v_head;
end
$$;
comment on function durable._begin_one(bigint, text, text, durable._run_code, text, bigint) is
  'The same for one head, in statements for one row, which cost a third of those for many. Answers the head; null, and nothing is written, if its key is taken.';

create or replace function durable._next_execution()
returns bigint language sql volatile
as $$ select nextval('durable._executions_execution_seq') $$;
comment on function durable._next_execution() is
  'A new number of a head. It is drawn before the promise is inserted, so that the promise is inserted with it.';
