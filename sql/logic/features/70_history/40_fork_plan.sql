-- Forks, the plan: the rows that a fork copies, the values that it replaces, and the errors of a request. Rows before a
-- position never change (failures that lie far back may go, and then are not copied), so all of this is read and checked before
-- anything is locked or written (70_history/50_fork.sql).
--
-- A fork at position 6. A row covers the numbers up to the next row, and is copied whole or not at all.
--
--   seq  row                      child   in the fork
--     0  execution_started                copied
--     1  step_completed           0       copied; a value that is given for child 0 takes the place of its result
--     4  child_run_scheduled      1       copied; the child run is not complete in the copy, so the fork starts its own
--     5  execution_awaiting               left out, because that wait was not over
--   - - - - - - - - - - - - - - - - - - - position 6
--     6  child_settled            1       left out
--     8  execution_resumed                left out
--     9  first_attempt_failed     2       left out; the fork begins step 2 again, with its first attempt

create or replace function durable._prefix(p_execution bigint, p_upto integer)
returns table (seq integer, type durable.row_type, child integer, attempt integer, name text, input_hash bytea, copied boolean)
language sql stable
as $$
  with bounds as (
    select h.execution, h.id, h.bucket, h.first_child,
           min(j.seq) filter (where j.type = 'cancel_requested') as cancelled,
           max(j.seq) filter (where j.type = 'execution_resumed' and j.seq < p_upto) as resumed
    from durable._executions h
    join durable._journal j on j.execution = h.execution and j.bucket = h.bucket
    where h.execution = p_execution group by h.execution
  ), known as (
    select b.*, (select coalesce(max(c.child) + 1, b.first_child) from durable._journal c
                 where c.execution = b.execution and c.bucket = b.bucket and c.seq < b.cancelled
                   and durable._allocates(c.type)) as next_child
    from bounds b
  )
  select j.seq, j.type, j.child, j.attempt, j.name, j.input_hash, case
    when j.seq + durable._width(j.type) > p_upto then false
    when durable._ends_run(j.type) or j.type = 'cancel_requested' then false
    when j.type = 'execution_awaiting' then j.seq < coalesce(k.resumed, 0)
    when j.seq < coalesce(k.cancelled, p_upto) then true
    -- from here on the clean-up of a run that was asked to end: only completions of earlier calls
    when j.child >= k.next_child or j.type in ('join_set_created', 'join_set_submitted', 'join_set_awaited') then false
    when durable._settles_child(j.type) then not exists (
      select from durable._promises p
      where p.id = any (array[k.id || '.' || j.child]) and p.head is not null and p.state = 'rejected_canceled')
    else true
  end
  from known k
  join durable._journal j on j.execution = k.execution and j.bucket = k.bucket
$$;
comment on function durable._prefix(bigint, integer) is
  'All rows of a journal, and whether a fork at this position copies each. It copies the rows that end before the position, but no end of the run, no request to cancel and no wait that was not over. After such a request it copies only completions of earlier calls, because a clean-up belongs to the run that was cancelled; and no end of a child run that was cancelled with its parent, because the fork starts that child again.';

create or replace function durable._fork_children(p_execution bigint, p_upto integer)
returns table (child integer, type durable.row_type, name text, input_hash bytea, began integer, ended integer, delivery integer,
               copied boolean, complete boolean, attempt durable._attempt, started integer, is_started boolean)
language sql stable
as $$
  select r.child, (array_agg(r.type) filter (where durable._allocates(r.type)))[1],
         max(r.name) filter (where durable._allocates(r.type)),
         (array_agg(r.input_hash) filter (where durable._allocates(r.type)))[1],
         min(r.seq) filter (where durable._allocates(r.type)),
         min(r.seq) filter (where durable._resolves(r.type)),
         max(r.attempt) filter (where r.type = 'signal_received'),
         bool_or(r.copied and durable._allocates(r.type)),
         bool_or(r.copied and (durable._resolves(r.type) or r.type in ('random_generated', 'time_recorded', 'join_set_created'))),
         (array_agg(durable._attempt_after(r.type, r.attempt) order by r.seq desc)
           filter (where r.copied and durable._is_local(r.type)))[1],
         (count(*) filter (where r.copied and r.type = 'child_run_started'))::integer,
         count(*) filter (where r.copied and r.type = 'child_run_started')
           > count(*) filter (where r.copied and r.type = 'child_run_interrupted')
  from durable._prefix(p_execution, p_upto) r
  where r.child is not null and r.type not in ('join_set_submitted', 'join_set_awaited')
  group by r.child
$$;
comment on function durable._fork_children(bigint, integer) is
  'The children of a journal: kind (the type of the first row), the numbers of beginning and end, whether a fork at this position copies each of them, and the attempts in the copy: attempt for a local step, started and is_started for a child run.';

create or replace function durable._fork_backlog(p_execution bigint, p_upto integer)
returns table (name text, delivery integer, key text, data text) language sql stable
as $$
  select b.name, (b.number - i.backlog_from)::integer, b.key, b.data
  from durable._executions h
  join durable._inboxes i on i.execution = h.execution and i.backlog_from < i.backlog_upto
  join durable._backlog b on b.id = any (array[h.id]) and b.name = any (array[i.name]) and b.number > i.backlog_from
  where h.execution = p_execution and (b.execution is distinct from p_execution or b.seq <= p_upto)
$$;
comment on function durable._fork_backlog(bigint, integer) is
  'The backlog with which a present generation began, and what had come behind it before a position of its journal.';

create or replace function durable._fork_signals(p_execution bigint, p_upto integer)
returns table (key text, seq integer) language sql stable
as $$
  select format('signal:%s:%s', x.name, x.number), min(x.seq)
  from (select r.name, r.attempt as number, r.seq
        from durable._prefix(p_execution, p_upto) r where r.copied and r.type = 'signal_delivered'
        union all
        select b.name, b.delivery, null from durable._fork_backlog(p_execution, p_upto) b) x
  group by x.name, x.number
$$;
comment on function durable._fork_signals(bigint, integer) is
  'The signals that a fork at this position gets, as keys of set_values: those delivered before it, and the backlog.';

create or replace function durable._fork_names(p_execution bigint, p_upto integer)
returns text language sql stable
as $$
  select string_agg(x.word, ', ' order by x.place, x.word) filter (where x.place <= 20)
         || case when max(x.place) > 20 then format(' and %s more', max(x.place) - 20) else '' end
  from (
    select u.word, row_number() over (order by u.seq) as place from (
      select c.began as seq, c.child || coalesce(' (' || c.name || ')', '') as word
      from durable._fork_children(p_execution, p_upto) c
      where c.type not in ('timer_scheduled', 'join_set_created', 'signal_received')
      union all
      select s.seq, s.key from durable._fork_signals(p_execution, p_upto) s) u
  ) x
$$;
comment on function durable._fork_names(bigint, integer) is 'The calls whose values can be set, for an error message; null if there are none.';

create or replace function durable._fork_position(p_head durable._executions, p_seq integer, p_step text)
returns integer language plpgsql stable
as $$
declare
  v_seq integer := p_seq;
  v_names text;
begin
  if p_step is not null then
    select min(j.seq) filter (where j.name = p_step), string_agg(distinct quote_literal(j.name), ', ')
    into v_seq, v_names
    from durable._executions h
    join durable._journal j on j.execution = h.execution and j.bucket = h.bucket
    where h.execution = p_head.execution and (durable._schedules_invocation(j.type) or j.type = 'timer_scheduled');
    if v_seq is null then
      perform durable._fail_not_found(format('step, child or promise of run %L with the name', p_head.id), p_step,
                                      format('Its journal has %s.', coalesce(v_names, 'none yet')));
    end if;
  elsif p_seq is null then
    v_seq := p_head.next_seq - (p_head.status in ('completed', 'failed', 'cancelled'))::integer;
  elsif p_seq not between 1 and p_head.next_seq then
    perform durable._fail_invalid(
      format('Run %L has %s events: a fork takes over the first 1 to %s of them, not %s.', p_head.id, p_head.next_seq,
             p_head.next_seq, p_seq),
      format('select seq, event, name from durable.journal_events where id = %L order by seq', p_head.id));
  end if;
  return (select max(j.seq + durable._width(j.type)) from durable._journal j
          where j.execution = p_head.execution and j.bucket = p_head.bucket
            and (j.seq = 0 or j.seq + durable._width(j.type) <= v_seq));
end
$$;
comment on function durable._fork_position(durable._executions, integer, text) is
  'The number of the event before which a fork begins: after the given number of events, at the first event of a name, or after all events but the end. If that is within a step that was written as a whole, before the step. WF001, WF004.';

create or replace function durable._fork_keys(p_execution bigint, p_upto integer, p_keys text[])
returns table (key text, target text, child integer, why text) language sql stable
as $$
  with child as materialized (
    select * from durable._fork_children(p_execution, p_upto)
  ), named as (
    select c.name, count(*) filter (where c.copied) as copies,
           coalesce(min(c.child) filter (where c.copied), (array_agg(c.child order by c.began))[1]) as child
    from child c where c.name = any (p_keys) and c.type <> 'signal_received' group by c.name
  ), signal as (
    select g.key from durable._fork_signals(p_execution, p_upto) g
  )
  select k.key,
         case when c.type = 'signal_received' then format('signal:%s:%s', c.name, c.delivery)
              else coalesce(c.child::text, s.key) end,
         case when c.type <> 'signal_received' then c.child end,
         case when s.key is not null then null
              when c.child is null then 'the run has nothing of that name or number there'
              when n.copies > 1 then format('%s children have that name: say which by its number', n.copies)
              when c.type = 'signal_received' and not c.copied then 'that signal is received later; send it to the fork'
              when c.type in ('timer_scheduled', 'join_set_created') then 'a timer and a join set have no value' end
  from unnest(p_keys) as k (key)
  left join signal s on s.key = k.key
  left join named n on n.name = k.key
  left join child c on c.child = case when s.key is null then
    case when k.key ~ '^[0-9]{1,9}$' then k.key::integer else n.child end end
$$;
comment on function durable._fork_keys(bigint, integer, text[]) is
  'The calls that the keys of set_values name: the number of a child, or signal:<name>:<n>; or the problem. A name means the only child of that name in the copy, else the first one after it.';

create or replace function durable._fork_reach(p_execution bigint, p_upto integer, p_children integer[])
returns integer language sql stable
as $$
  select coalesce(min(r.seq), 2147483647) from durable._prefix(p_execution, p_upto) r
  where coalesce(r.child <> all (p_children), true)
    and (r.type = 'cancel_requested' or (r.seq + durable._width(r.type) > p_upto
                          and (durable._resolves(r.type) or durable._schedules_promise(r.type) or durable._ends_run(r.type)
                               or r.type in ('random_generated', 'time_recorded', 'join_set_created'))))
$$;
comment on function durable._fork_reach(bigint, integer, integer[]) is
  'The position up to which the code certainly comes when no child but p_children resolves. Values for later calls would precede the calls, and the numbers of other calls would be missing.';

create or replace function durable._fork_values(p_head durable._executions, p_upto integer, p_values jsonb)
returns jsonb language plpgsql stable
as $$
declare
  v_key text;
  v_problem text;
  v_targets text[];
  v_children integer[];
begin
  if p_values = '{}' then
    return p_values;
  end if;
  select (array_agg(k.key order by k.key) filter (where k.why is not null))[1],
         (array_agg(k.why order by k.key) filter (where k.why is not null))[1],
         array_agg(k.target), coalesce(array_agg(k.child) filter (where k.child is not null), '{}')
  into v_key, v_problem, v_targets, v_children
  from durable._fork_keys(p_head.execution, p_upto, array(select e.k from jsonb_object_keys(p_values) as e (k))) k;
  if v_key is null then
    select t into v_key from unnest(v_targets) t group by t having count(*) > 1 limit 1;
    v_problem := 'two keys mean it';
  end if;
  if v_key is null then
    select c.child, 'it is called later than at the position: fork at a later one' into v_key, v_problem
    from durable._fork_children(p_head.execution, p_upto) c,
         lateral (select durable._fork_reach(p_head.execution, p_upto, v_children) as seq) r
    where c.child = any (v_children) and not c.copied
      and c.began >= case when c.child < (select max(x.child) from durable._fork_children(p_head.execution, p_upto) x
                                          where x.copied) then 2147483647 else r.seq end limit 1;
  end if;
  if v_key is not null then
    perform durable._fail_invalid(
      format('set_values has %L for run %L and its first %s events, but %s.', v_key, p_head.id, p_upto, v_problem),
      coalesce('There are ' || durable._fork_names(p_head.execution, p_upto) || '.',
               'Before that position the run called nothing: there is no value to set.'));
  end if;
  return (select jsonb_object_agg(k.target, p_values -> k.key)
          from durable._fork_keys(p_head.execution, p_upto, array(select e.k from jsonb_object_keys(p_values) as e (k))) k);
end
$$;
comment on function durable._fork_values(durable._executions, integer, jsonb) is
  'The replaced values, by the number of the child or by signal:<name>:<n>. WF004 for a key without a call.';

create or replace function durable._check_fork(
  p_head durable._executions, p_seq integer, p_step text, p_values jsonb, p_new_id text, p_queue text)
returns void language plpgsql stable
as $$
begin
  if p_seq is not null and p_step is not null then
    perform durable._fail_invalid('A fork is at a seq or before a step, not both.');
  elsif p_values is null or jsonb_typeof(p_values) <> 'object' then
    perform durable._fail_invalid(
      'set_values is a JSON object: {"<number or name of a child>": <value>, "signal:<name>:<n>": <payload>}.');
  end if;
  perform durable._check_payload(format('The value for %L', e.key), e.value::text) from jsonb_each(p_values) e;
  perform durable._check_start(p_head.workflow, '[]', p_new_id, coalesce(p_queue, 'default'), p_head.workflow_version);
  perform durable._check_options(null, p_queue, null, null, 0, '{}', p_head.tenant);
  if exists (select from durable._promises p where p.id = p_new_id) then
    perform durable._fail_conflict(format('Id %L is taken.', p_new_id), 'Use another new_id, or none.');
  end if;
end
$$;
comment on function durable._check_fork(durable._executions, integer, text, jsonb, text, text) is
  'Checks the arguments of a fork. WF003, WF004, WF008.';

create or replace function durable._adopted(p_from durable._executions, p_upto integer, p_values jsonb)
returns table (child integer, name text, state text) language sql stable
as $$
  select c.child, c.name, f.state
  from durable._fork_children(p_from.execution, p_upto) c
  left join durable._promises f on f.id = any (array[c.name])
  where c.copied and not c.complete and c.type = 'promise_registered' and not p_values ? c.child::text
    and not exists (select from durable._promises p where p.id = any (array[p_from.id || '.' || c.child]))
$$;
comment on function durable._adopted(durable._executions, integer, jsonb) is
  'Promises of others for which the copied part waits; state is null for one that was removed.';

create or replace function durable._check_adopted(p_from durable._executions, p_upto integer, p_values jsonb)
returns text[] language plpgsql stable
as $$
declare
  v_missing text;
  v_names text[];
begin
  select min(a.name) filter (where a.state is null), coalesce(array_agg(a.name), '{}') into v_missing, v_names
  from durable._adopted(p_from, p_upto, p_values) a;
  if v_missing is not null then
    perform durable._fail_not_found('promise', v_missing, 'The run waits for it; fork before that, or set a value for it.');
  end if;
  return v_names;
end
$$;
comment on function durable._check_adopted(durable._executions, integer, jsonb) is
  'The ids of these promises, to be locked. WF001 if one was removed.';
