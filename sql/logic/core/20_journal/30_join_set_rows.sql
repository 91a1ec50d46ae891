-- Join sets and their members, updated by rows about them, and the guards that read them. Called by _append only, under the
-- lock of the head. A member is looked up by a subquery with a limit, which is never joined: where only its key is asked for, a
-- plan that was made while the table was empty would read the whole index.

create or replace function durable._is_invocation(p_execution bigint, p_child integer)
returns boolean language plpgsql stable
as $$
begin
  if exists (select from durable._executions h where h.execution = p_execution and p_child = any (h.open_steps))
     or exists (select from durable._promises p
                where p.id = any (array(select h.id || '.' || p_child from durable._executions h where h.execution = p_execution))
                  and not p.timer) then
    return true;
  end if;
  return exists (select from durable._executions h
                 join durable._journal j on j.execution = h.execution and j.bucket = h.bucket
                 where h.execution = p_execution and j.child = p_child and durable._schedules_invocation(j.type));
end
$$;
comment on function durable._is_invocation(bigint, integer) is
  'Whether the child is an invocation, the only kind with a result that a join set can hand out. Reads the journal only for an invocation that is complete or adopted.';

create or replace function durable._check_submits(p_events durable._event[])
returns void language plpgsql stable
as $$
begin
  perform durable._fail_journal(e.execution, e.type, e.child, v.why)
  from (
    select x.*, bool_or(x.type = 'join_set_awaited') over (partition by x.execution, x.join_set order by x.ord) as closed_here,
           count(*) filter (where x.type = 'join_set_submitted') over (partition by x.execution, x.child order by x.ord) as times,
           min(x.ord) filter (where x.type = 'join_set_created') over (partition by x.execution, x.join_set) as created_at,
           min(x.ord) filter (where durable._allocates(x.type)) over (partition by x.execution, x.child) as scheduled_at
    from (
      select o.*, case when o.type = 'join_set_created' then o.child
                       when o.type in ('join_set_submitted', 'join_set_awaited') then o.attempt end as join_set
      from unnest(p_events) with ordinality as o (execution, type, child, attempt, name, input_hash, data, ord)) x
  ) e
  left join lateral (select o.* from durable._join_sets o
                     where o.execution = e.execution and o.child = e.attempt limit 1) s on true
  left join lateral (select o.* from durable._members o where o.execution = e.execution and o.child = e.child limit 1) m on true
  cross join lateral (select case
    when s.child is null or e.created_at > e.ord then format('%s is no join set', e.attempt)
    when s.closed or e.closed_here then 'the join set is closed'
    when m.child is not null or e.times > 1 then 'it is in a join set already'
    when e.scheduled_at > e.ord then 'it was not scheduled before'
    when not durable._is_invocation(e.execution, e.child) then 'only an invocation can be a member'
    end as why) v
  where e.type = 'join_set_submitted' and v.why is not null;
end
$$;
comment on function durable._check_submits(durable._event[]) is
  'Guards JS-1, JS-2, JS-7: a member is an invocation that was scheduled before, is in one set only, which was created before, and is submitted before the first result of the set is taken. The rows of one call are checked in their order.';

create or replace function durable._check_takes(p_events durable._event[])
returns void language plpgsql stable
as $$
begin
  perform durable._fail_journal(e.execution, e.type, e.child, v.why)
  from (
    select x.*, count(*) filter (where x.type = 'join_set_awaited') over (w order by x.ord) as times,
           bool_or(x.type in ('child_run_scheduled', 'promise_registered')) over w as created_here,
           max(x.ord) filter (where durable._allocates(x.type) or durable._resolves(x.type)) over w as last_at
    from unnest(p_events) with ordinality as x (execution, type, child, attempt, name, input_hash, data, ord)
    window w as (partition by x.execution, x.child)
  ) e
  join durable._executions h on h.execution = any (array[e.execution])
  left join lateral (select o.* from durable._members o where o.execution = e.execution and o.child = e.child limit 1) m on true
  left join durable._promises p on p.id = any (array[h.id || '.' || e.child])
  cross join lateral (select case
    when m.join_set is distinct from e.attempt then 'it is not in that join set'
    when m.taken or e.times > 1 then 'its result was taken before'
    when e.created_here or e.last_at > e.ord or p.state = 'pending' or e.child = any (h.open_steps) or exists (
      select from durable._callbacks c where c.awaiter_id = h.id and c.child = m.child and c.child >= 0)
      then 'it is not complete'
    end as why) v
  where e.type = 'join_set_awaited' and v.why is not null;
end
$$;
comment on function durable._check_takes(durable._event[]) is
  'Guards JS-3 to JS-6: the child that is taken is a member, complete, and was not taken before. A promise that the same call creates does not exist yet, and a child that a later row completes is not complete at this row.';

create or replace function durable._update_join_sets(p_events durable._event[])
returns void language plpgsql volatile
as $$
begin
  insert into durable._join_sets (execution, child)
  select e.execution, e.child from unnest(p_events) e where e.type = 'join_set_created';
  perform durable._check_submits(p_events);
  insert into durable._members (execution, child, join_set)
  select e.execution, e.child, e.attempt from unnest(p_events) e where e.type = 'join_set_submitted';
  perform durable._check_takes(p_events);
  update durable._members m set taken = true
  from unnest(p_events) e
  where e.type = 'join_set_awaited' and m.execution = any (array[e.execution]) and m.child = any (array[e.child]);
  update durable._join_sets s set closed = true
  from unnest(p_events) e
  where e.type = 'join_set_awaited' and s.execution = any (array[e.execution]) and s.child = any (array[e.attempt])
    and not s.closed;
end
$$;
comment on function durable._update_join_sets(durable._event[]) is
  'Creates sets and members, and marks members that were taken. The checks stand in between, because one turn may do all three; a refusal undoes them together.';
