-- The journal's grammar and its one writer: guards, sequence numbers, fused widths and the fold into the head.
-- Callers hold the lock of every head they append to.
-- Here and in every file: a stored row that is looked up for each element of an array or CTE is joined by
-- "key = any (array[x.key])". Such a clause can only drive an index look-up; with "key = x.key" a plan that was made while the
-- table was empty may read the whole index instead, and stays (tests/sql/test_plans.py).

create or replace function durable.journal_types()
returns table (type "char", events text[], allocates boolean, resolves boolean)
language sql immutable parallel safe
as $$
  values
    ('S'::"char", array['ExecutionStarted'], false, false),
    ('C', array['ExecutionCompleted'], false, false),
    ('F', array['ExecutionFailed'], false, false),
    ('Q', array['CancelRequested'], false, false),
    ('Y', array['ExecutionCancelled'], false, false),
    ('L', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('E', array['InvokeScheduled', 'InvokeStarted', 'InvokeCompleted'], true, true),
    ('f', array['InvokeScheduled', 'InvokeStarted', 'InvokeRetrying'], true, false),
    ('l', array['InvokeScheduled', 'InvokeStarted'], true, false),
    ('s', array['InvokeStarted'], false, false),
    ('r', array['InvokeRetrying'], false, false),
    ('t', array['InvokeStarted', 'InvokeRetrying'], false, false),
    ('c', array['InvokeCompleted'], false, true),
    ('e', array['InvokeCompleted'], false, true),
    ('k', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('K', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('I', array['InvokeScheduled'], true, false),
    ('X', array['InvokeScheduled'], true, false),
    ('b', array['InvokeStarted'], false, false),
    ('i', array['InvokeRetrying'], false, false),
    ('d', array['InvokeCompleted'], false, true),
    ('D', array['InvokeStarted', 'InvokeCompleted'], false, true),
    ('T', array['TimerScheduled'], true, false),
    ('Z', array['TimerFired'], false, true),
    ('n', array['RandomGenerated'], true, false),
    ('m', array['TimeRecorded'], true, false),
    ('A', array['ExecutionAwaiting'], false, false),
    ('W', array['ExecutionResumed'], false, false)
$$;
comment on function durable.journal_types() is
  'The closed list of row types: the logical events of each, whether it takes a new child number, whether it resolves its child. L E f l s r t c e k K are local steps (values in the row); I b i d D are child runs (values in their promises), X external promises.';

create or replace function durable._width(p_type "char")
returns integer language sql immutable parallel safe
as $$
  select case
    when p_type in ('L', 'E', 'f') then 3
    when p_type in ('l', 't', 'k', 'K', 'D') then 2
    else 1
  end
$$;
comment on function durable._width("char") is 'How many logical events a row of this type stands for; equals cardinality(events) of journal_types().';

create or replace function durable._allocates(p_type "char")
returns boolean language sql immutable parallel safe
as $$ select p_type in ('L', 'E', 'f', 'l', 'I', 'X', 'T', 'n', 'm') $$;
comment on function durable._allocates("char") is 'The row takes a new child number.';

create or replace function durable._status_after(p_type "char")
returns text language sql immutable parallel safe
as $$
  select case p_type
    when 'S' then 'running' when 'A' then 'blocked' when 'W' then 'running' when 'Q' then 'cancelling'
    when 'C' then 'completed' when 'F' then 'failed' when 'Y' then 'cancelled'
  end
$$;
comment on function durable._status_after("char") is 'Status that the row leads to; null where it changes none. Status is the fold of this.';

create or replace function durable._may_append(p_status text, p_type "char")
returns boolean language sql immutable parallel safe
as $$
  select case
    when p_status in ('completed', 'failed', 'cancelled') then false
    when p_type in ('L', 'E', 'f', 'l', 'I', 'X', 'T', 'n', 'm', 'A') then p_status = 'running'
    when p_type = 'W' then p_status = 'blocked'
    when p_type = 'Y' then p_status = 'cancelling'
    when p_type = 'Q' then p_status in ('running', 'blocked')
    when p_type = 'S' then false
    else true
  end
$$;
comment on function durable._may_append(text, "char") is 'Guard by status: what each of the six statuses admits. One ExecutionStarted, at birth; nothing after an end.';

create or replace function durable._attempt_after(p_type "char", p_attempt integer)
returns integer language sql immutable parallel safe
as $$
  select case
    when p_type in ('l', 's') then p_attempt
    when p_type in ('f', 'r', 't') then -p_attempt
    else 0
  end
$$;
comment on function durable._attempt_after("char", integer) is
  'What a row leaves of a local step: its open attempt, minus the attempt that failed, or 0 once it is complete.';

create or replace function durable._attempt_fits(p_type "char", p_attempt integer, p_before integer)
returns boolean language sql immutable parallel safe
as $$
  select case
    when p_type in ('L', 'E', 'f', 'l') then p_before is null and p_attempt is not distinct from 1
    when p_type in ('c', 'e', 'r') then p_before is not distinct from p_attempt and p_attempt > 0
    when p_type in ('k', 'K', 's', 't') then p_before is not distinct from 1 - p_attempt and p_attempt > 1
    else true
  end
$$;
comment on function durable._attempt_fits("char", integer, integer) is
  'Guard of SE-1 to SE-4: starts and ends of attempts alternate, numbered 1, 2, 3; nothing follows the completion.';

create or replace function durable._is_local(p_type "char")
returns boolean language sql immutable parallel safe
as $$ select p_type in ('L', 'E', 'f', 'l', 's', 'r', 't', 'c', 'e', 'k', 'K') $$;
comment on function durable._is_local("char") is 'The row is about a local step.';

create or replace function durable._append(p_events durable._event[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if p_events = '{}' then
    return;
  end if;
  insert into durable._journal (bucket, execution, seq, ts, type, child, attempt, name, input_hash, data)
  select b.bucket, b.execution, (b.next_seq + b.upto - durable._width(b.type))::integer, p_now,
         b.type, b.child, b.attempt, b.name, b.input_hash, b.data
  from (
    select h.bucket, h.next_seq, h.next_child, h.reserved, e.*,
           sum(durable._width(e.type)) over (partition by e.execution order by e.ord) as upto,
           coalesce(max(durable._status_after(e.type)) over previous, h.status) as status,
           case when durable._is_local(e.type) then coalesce(
             lag(durable._attempt_after(e.type, e.attempt)) over (partition by e.execution, e.child order by e.ord),
             h.open_attempts[array_position(h.open_steps, e.child)]) end as attempt_before
    from unnest(p_events) with ordinality
           as e (execution, type, child, attempt, name, input_hash, data, ord)
    join durable._executions h on h.execution = any (array[e.execution])
    window previous as (partition by e.execution order by e.ord rows between 1 preceding and 1 preceding)
  ) b
  where case
    when not durable._may_append(b.status, b.type)
      then durable._fail_journal(b.execution, b.type, b.child, 'not allowed while ' || b.status)
    when durable._allocates(b.type) and b.child < b.next_child and not b.child = any (b.reserved)
      then durable._fail_journal(b.execution, b.type, b.child, 'that child number is taken')
    when not durable._attempt_fits(b.type, b.attempt, b.attempt_before)
      then durable._fail_journal(b.execution, b.type, b.child,
             format('attempt %s does not follow %s', b.attempt, coalesce(b.attempt_before::text, 'nothing')))
    else true
  end;
  perform durable._fold(p_events);
end
$$;
comment on function durable._append(durable._event[], bigint) is
  'The one writer of the journal, for any number of executions at once. WF006 if an event does not fit its journal. Then folds them into the heads.';

create or replace function durable._fold(p_events durable._event[])
returns void language plpgsql volatile
as $$
declare
  v_steps boolean;
begin
  update durable._executions h
  set next_seq = h.next_seq + n.width,
      next_child = greatest(h.next_child, n.last_child + 1),
      reserved = case
        when n.children is null or (h.reserved = '{}' and h.next_child + cardinality(n.children) = n.last_child + 1)
          then h.reserved
        else durable._reserve(h.reserved, h.next_child, n.children) end,
      status = coalesce(n.status, h.status),
      waiting_on = case when n.status is null then h.waiting_on end,
      wait_kind = case when n.status is null then h.wait_kind end,
      wait_left = case when n.status is null then h.wait_left end
  from (
    select e.execution, sum(durable._width(e.type)) as width,
           max(e.child) filter (where durable._allocates(e.type)) as last_child,
           array_agg(e.child) filter (where durable._allocates(e.type)) as children,
           (array_agg(durable._status_after(e.type) order by e.ord desc)
             filter (where durable._status_after(e.type) is not null))[1] as status
    from unnest(p_events) with ordinality as e (execution, type, child, attempt, name, input_hash, data, ord)
    where e.type <> 'A'
    group by e.execution
  ) n
  where h.execution = any (array[n.execution]);
  select exists (select from unnest(p_events) e where e.type in ('f', 'l', 's', 'r', 't', 'c', 'e', 'k', 'K')) into v_steps;
  if v_steps then
    perform durable._fold_steps(p_events);
  end if;
end
$$;
comment on function durable._fold(durable._event[]) is
  'Brings the heads up to what was appended. An ExecutionAwaiting is folded by _await, which knows the wait.';

create or replace function durable._fold_steps(p_events durable._event[])
returns void language plpgsql volatile
as $$
begin
  update durable._executions h set open_steps = n.steps, open_attempts = n.attempts
  from (
    select g.execution,
           coalesce(array_agg(s.child order by s.child) filter (where s.attempt <> 0), '{}') as steps,
           coalesce(array_agg(s.attempt order by s.child) filter (where s.attempt <> 0), '{}') as attempts
    from (select distinct e.execution from unnest(p_events) e) g
    join durable._executions o on o.execution = any (array[g.execution])
    cross join lateral (
      select distinct on (u.child) u.child, u.attempt from (
        select w.child, w.attempt, 0::bigint as ord from unnest(o.open_steps, o.open_attempts) as w (child, attempt)
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
comment on function durable._fold_steps(durable._event[]) is 'Keeps the open local steps of the heads: the last row about a step decides.';

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
  'Reserved numbers after p_children were taken: gaps are local steps whose rows are still to come (law A-1).';

create or replace function durable._await(p_executions bigint[], p_waits durable._ending[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  perform durable._append(array(
    select row(w.execution, 'A', null, null, null, null,
               jsonb_build_object('on', to_jsonb(w."on"), 'kind', w.kind)::text)::durable._event
    from rows from (unnest(p_executions), unnest(p_waits))
      as w (execution, "do", "on", kind, value, error, retry_in, problem)), p_now);
  update durable._executions h
  set next_seq = h.next_seq + 1, status = 'blocked', suspend_seq = h.next_seq + 1,
      waiting_on = w."on", wait_kind = w.kind,
      wait_left = case when w.kind = 'all' then cardinality(w."on") else 1 end
  from rows from (unnest(p_executions), unnest(p_waits))
    as w (execution, "do", "on", kind, value, error, retry_in, problem)
  where h.execution = any (array[w.execution]);
end
$$;
comment on function durable._await(bigint[], durable._ending[], bigint) is 'Writes ExecutionAwaiting and blocks the heads on what it names.';

create or replace function durable._bucket(p_now bigint)
returns integer language plpgsql stable
as $$
begin
  return coalesce(
    (select b.bucket from durable._buckets b where b.bucket <= durable._week(p_now) order by b.bucket desc limit 1),
    (select min(b.bucket) from durable._buckets b));
end
$$;
comment on function durable._bucket(bigint) is 'Partition for a run that starts now: this week''s, else the newest before it, so a start never fails for want of a partition.';

create or replace function durable._begin(
  p_executions bigint[], p_ids text[], p_tenants text[], p_workflows text[], p_versions text[], p_key text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_bucket integer := durable._bucket(p_now);
begin
  insert into durable._executions (execution, id, tenant, workflow, workflow_version, key, bucket, next_seq)
  select r.execution, r.id, r.tenant, r.workflow, r.version, p_key, v_bucket, 1
  from unnest(p_executions, p_ids, p_tenants, p_workflows, p_versions) as r (execution, id, tenant, workflow, version);
  insert into durable._journal (bucket, execution, seq, ts, type)
  select v_bucket, e, 0, p_now, 'S' from unnest(p_executions) e;
end
$$;
comment on function durable._begin(bigint[], text[], text[], text[], text[], text, bigint) is
  'Makes heads, under numbers that the caller drew from _next_execution, with their ExecutionStarted.';

create or replace function durable._next_execution()
returns bigint language sql volatile
as $$ select nextval('durable._executions_execution_seq') $$;
comment on function durable._next_execution() is 'A fresh head number. Drawn before the promise is inserted, so that it is inserted once and whole.';
