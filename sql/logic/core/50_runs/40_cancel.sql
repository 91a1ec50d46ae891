-- Cancellation in two phases: the request, after which the code may clean up, and the end, by the code or when the grace is
-- over. Pause, resume and redrive stand here too.

create or replace function durable._cancelled(p_reason text)
returns text language sql immutable parallel safe
as $$
  select (jsonb_build_object('type', 'Cancelled', 'kind', 'Cancelled', 'message',
    coalesce(case when jsonb_typeof(r.reason) = 'string' then r.reason #>> '{}' else r.reason::text end, 'cancelled'))
    || case when r.reason is null then '{}' else jsonb_build_object('reason', r.reason) end)::text
  from (select nullif(p_reason::jsonb, 'null') as reason) r
$$;
comment on function durable._cancelled(text) is 'Error of a cancelled run; p_reason is JSON text or null.';

create or replace function durable._cancel_reason(p_head durable._executions)
returns text language sql stable
as $$
  select (durable._data(j)::jsonb -> 'reason')::text from durable._journal j
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq = p_head.cancel_seq
$$;
comment on function durable._cancel_reason(durable._executions) is 'Reason of the CancelRequested of a run, as JSON text; null if none was given.';

create or replace function durable._family(p_ids text[], p_all boolean)
returns text[] language plpgsql stable
as $$
begin
  return array(
    with recursive live (id, execution, asked) as (
      select p.id, p.head, h.status = 'cancelling' from durable._promises p
      join durable._executions h on h.execution = any (array[p.head])
      where p.id = any (p_ids) and p.state = 'pending'
      union
      select c.id, c.head, coalesce(h.status = 'cancelling', false) from live l
      join durable._promises c on c.id > l.id || '.' and c.id < l.id || '/' and c.execution = l.execution
           and c.state = 'pending' and c.target is not null
      left join durable._executions h on h.execution = any (array[c.head])
      where (p_all or not l.asked) and h.abandoned is not true
    )
    select l.id from live l order by l.id);
end
$$;
comment on function durable._family(text[], boolean) is
  'These runs, and the live runs below them that their cancellation reaches, and their calls to protocol clients. A child that was started after the request belongs to the clean-up; only p_all reaches it. Ids below a run begin with its own id, so they are neighbours in the key.';

create or replace function durable._lock_whole_family(p_ids text[], p_all boolean)
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_again text[];
begin
  loop
    v_ids := durable._family(p_ids, p_all);
    begin
      perform durable._lock_settlement(v_ids);
      v_again := durable._family(p_ids, p_all);
      exit when not exists (select unnest(v_again) except select unnest(v_ids));
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- the locks are given back, so that they can be taken in their order together with the new ones
      continue;
    end;
  end loop;
  return v_again;
end
$$;
comment on function durable._lock_whole_family(text[], boolean) is
  'Locks and answers the family of these runs. A turn may start children between the query and the locks; then both are repeated.';

create or replace function durable._fail_ended(p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._fail_conflict(
    format('Run %L has ended: %s.', p_id, (select case p.state when 'pending' then 'past its deadline' else p.state end
                                           from durable._promises p where p.id = p_id)),
    format('select * from durable.result(%L)', p_id));
end
$$;
comment on function durable._fail_ended(text) is
  'Raises WF003 with the end of the run. It takes no locks, because the caller may hold some.';

create or replace function durable._cancel_at_once(p_ids text[], p_reason text, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_count integer := cardinality(p_ids);
begin
  return durable._settle(p_ids, array_fill('rejected_canceled'::text, array[v_count]),
                         array_fill(durable._plain_headers(), array[v_count]),
                         array_fill(durable._cancelled(p_reason), array[v_count]), p_now);
end
$$;
comment on function durable._cancel_at_once(text[], text, bigint) is 'Ends runs as cancelled; their workers are fenced.';

create or replace function durable._graces(p_heads bigint[], p_grace_ms bigint)
returns table (execution bigint, grace_ms bigint) language sql stable
as $$
  with recursive family as materialized (
    select h.execution, p.execution as owner, h.rules from durable._executions h
    join durable._promises p on p.id = any (array[h.id]) where h.execution = any (p_heads)
  ), level (execution, depth) as (
    select f.execution, 0 from family f
    where f.owner is null or f.rules < 4 or not exists (select from family o where o.execution = f.owner)
    union all
    select f.execution, l.depth + 1 from level l join family f on f.owner = l.execution and f.rules >= 4
  )
  select l.execution, (p_grace_ms * ((l.depth + 2) / (2.0 * l.depth + 2)))::bigint from level l
$$;
comment on function durable._graces(bigint[], bigint) is
  'The grace of each run of a family that is cancelled: 1, 3/4, 4/6, 5/8 of it by levels, at least half. A parent waits for its child runs, and what they leave of its grace is for its own clean-up.';

create or replace function durable._request_cancel(p_ids text[], p_reason text, p_grace_ms bigint, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_heads bigint[];
  v_queues text[];
begin
  v_heads := array(select h.execution from durable._tasks t
                   join durable._executions h on h.execution = any (array[t.execution])
                   where t.id = any (p_ids) and h.status in ('running', 'blocked') order by t.execution);
  update durable._executions h set cancel_seq = h.next_seq where h.execution = any (v_heads);
  perform durable._append(array(
    select row(h.execution, 'cancel_requested', null, null, null, null, format('{"reason": %s%s}', coalesce(p_reason, 'null'),
      case when h.rules >= 4 then format(', "until": %s', durable._later(p_now, g.grace_ms)) end))::durable._event
    from durable._graces(v_heads, p_grace_ms) g join durable._executions h on h.execution = any (array[g.execution])
    order by h.execution), p_now);
  update durable._executions h set cancel_until = durable._later(p_now, g.grace_ms), problem = null
  from durable._graces(v_heads, p_grace_ms) g
  where h.execution = any (array[g.execution]);
  with woken as (
    update durable._tasks t set state = 'pending', retry_at = p_now, prefer_until = durable._prefer_until(t.preference, p_now)
    where t.id = any (p_ids) and t.execution = any (v_heads) and t.state is distinct from 'acquired'
    returning t.queue
  )
  select coalesce(array_agg(distinct w.queue), '{}') into v_queues from woken w;
  return v_queues;
end
$$;
comment on function durable._request_cancel(text[], text, bigint, bigint) is
  'Phase one: writes CancelRequested, for runs of rules 4 with the end of their grace, and makes runs that wait, are postponed or halted ready, so that a worker takes them through their clean-up. A second request changes nothing.';

create or replace function durable._is_between_attempts(p_task durable._tasks, p_now bigint)
returns boolean language sql stable
as $$
  select p_task.state = 'pending' and p_task.retry_at > p_now and p_task.crashes = 0
         and (select count(*) from durable._executions h
              where h.execution = p_task.execution and h.previous is not null and h.suspend_seq is null
                and h.next_child = h.first_child and h.open_steps = '{}') > 0
$$;
comment on function durable._is_between_attempts(durable._tasks, bigint) is
  'True for a run that failed and waits for its next attempt, whose code has not begun.';

create or replace function durable._cancel_locked(
  p_ids text[], p_reason text, p_grace_ms bigint, p_force boolean, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_never text[];
  v_asked text[];
begin
  v_never := array(select t.id from durable._tasks t
                   where t.id = any (p_ids) and (coalesce(p_force, false) or t.version = 0 or t.execution is null
                                                 or durable._is_between_attempts(t, p_now)) order by t.id);
  v_asked := array(select unnest(p_ids) except select unnest(v_never));
  return durable._request_cancel(v_asked, p_reason, p_grace_ms, p_now) || durable._cancel_at_once(v_never, p_reason, p_now);
end
$$;
comment on function durable._cancel_locked(text[], text, bigint, boolean, bigint) is
  'Cancels live runs that the caller holds: a run that never ran, or that waits for its next attempt, ends at once, so does a call to a protocol client, whose worker is fenced, and with force every run; the others get a request. Answers the queues that got ready tasks.';

create or replace function durable._grace_ms(p_grace interval)
returns bigint language plpgsql stable
as $$
declare
  v_grace bigint := coalesce(durable._ms(p_grace), durable._setting_int('cancel_grace_ms'));
begin
  if v_grace < 0 then
    perform durable._fail_invalid('The grace of a cancellation is not negative.');
  end if;
  return v_grace;
end
$$;
comment on function durable._grace_ms(interval) is
  'The grace in ms: the given one or the setting cancel_grace_ms. WF004 if negative.';

create or replace function durable.cancel_v1(p_id text, p_reason text, p_grace_ms bigint, p_force boolean)
returns table (state text, ready boolean) language plpgsql volatile
as $$
declare
  v_ids text[];
  v_queues text[];
  v_now bigint;
begin
  if p_grace_ms < 0 then
    perform durable._fail_invalid('The grace of a cancellation is not negative.');
  end if;
  perform durable._check_json('Reason of a cancellation', p_reason);
  perform durable._find_run(p_id);
  v_ids := durable._lock_whole_family(array[p_id], coalesce(p_force, false));
  v_now := durable._now_ms();
  v_ids := array(select t.id from durable._tasks t where t.id = any (v_ids) and t.deadline > v_now);
  if p_id <> all (v_ids) then
    if (durable._find_run(p_id)).state <> 'rejected_canceled' then
      perform durable._fail_ended(p_id);
    end if;
    return query select 'cancelled'::text, false;
    return;
  end if;
  v_queues := durable._cancel_locked(v_ids, p_reason, coalesce(p_grace_ms, durable._grace_ms(null)), p_force, v_now);
  return query select case when exists (select from durable._tasks t where t.id = p_id) then 'cancelling' else 'cancelled' end,
                      v_queues <> '{}';
end
$$;
comment on function durable.cancel_v1(text, text, bigint, boolean) is
  'For our clients: requests the cancellation of a run and of the live runs below it; ready: some of them wait for a worker. Sends no hint. WF001, WF003, WF004.';

create or replace function durable.cancel(
  id text, reason jsonb default null, grace interval default null, force boolean default false)
returns text language plpgsql volatile
as $$
declare
  v_answer record;
begin
  select * into v_answer from durable.cancel_v1($1, $2::text, durable._grace_ms($3), $4);
  if v_answer.ready then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  perform durable._hint('durable_settled', durable._now_ms());
  return v_answer.state;
end
$$;
comment on function durable.cancel(text, jsonb, interval, boolean) is
  'Cancels a run and its children: select durable.cancel(''order-42'', ''"customer called"''). Its code sees the request and may clean up for the grace (setting cancel_grace_ms), then it ends. A run that has not begun ends at once; force ends everything at once. Answers cancelling or cancelled; asking again is no error. Two of these in one transaction hold the first while they wait for the second, so two transactions that cross deadlock (40P01): durable.cancel_many cancels many at once. WF001, WF003 it has ended otherwise, WF004.';

create or replace function durable._cancel_by_settling(p_id text, p_data text)
returns void language plpgsql volatile
as $$
declare
  v_reason jsonb := nullif(durable._decoded(p_data), 'null');
begin
  perform durable.cancel(p_id, case when v_reason ? '__type' then v_reason -> 'message' else v_reason end);
end
$$;
comment on function durable._cancel_by_settling(text, text) is
  'A settlement as cancelled by a protocol client, of a run: a request of cancellation. Its value is the reason; of an error the message.';

create or replace function durable._paused_by_hand()
returns text language sql immutable parallel safe
as $$ select '{"type": "Paused", "message": "paused by hand; durable.resume(id) lets it go on"}' $$;
comment on function durable._paused_by_hand() is 'The problem of a run that was paused.';

create or replace function durable.pause(id text)
returns void language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  perform durable._find_run($1);
  perform durable._lock_tasks_to_revoke(array[$1]);
  perform durable._lock_heads(durable._heads_of('{}', array[$1]));
  v_now := durable._now_ms();
  if not exists (select from durable._tasks t where t.id = $1 and t.deadline > v_now) then
    perform durable._fail_ended($1);
  elsif exists (select from durable._tasks t where t.id = $1 and t.state <> 'halted') then
    perform durable._halt_runs(array[$1], array[durable._paused_by_hand()], v_now);
  end if;
end
$$;
comment on function durable.pause(text) is
  'Pauses a run until durable.resume(id): its worker is fenced, steps under way will run again, promises and signals still arrive. A run that is halted already stays so. Two of these in one transaction hold the first run while they wait for the second, so two transactions that cross deadlock (40P01): durable.pause_many pauses many at once. WF001, WF003.';

create or replace function durable.resume(id text)
returns void language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  perform durable._find_run($1);
  perform durable._lock_tasks_to_revoke(array[$1]);
  perform durable._lock_heads(durable._heads_of('{}', array[$1]));
  v_now := durable._now_ms();
  if not exists (select from durable._tasks t where t.id = $1 and t.deadline > v_now) then
    perform durable._fail_ended($1);
  elsif not exists (select from durable._tasks t where t.id = $1 and t.state = 'halted') then
    perform durable._fail_conflict(format('Run %L is not set aside: it goes on by itself.', $1),
                                   format('select state, problem from durable.runs where id = %L', $1));
  end if;
  perform durable.task_continue($1);
end
$$;
comment on function durable.resume(text) is
  'Lets a paused, halted or dead run go on, with the old code or the new. Two of these in one transaction hold the first run while they wait for the second, so two transactions that cross deadlock (40P01): durable.resume_many resumes many at once. WF001, WF003 it has ended, or it is not paused, halted or dead.';

create or replace function durable._is_dead(p_problem text)
returns boolean language sql immutable
as $$ select coalesce(p_problem::jsonb ->> 'type' = 'Crashed', false) $$;
comment on function durable._is_dead(text) is 'True for a run that was halted because its workers were lost too often.';

create or replace function durable._dead(p_ids text[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select t.id from durable._tasks t
    join durable._executions h on h.execution = any (array[t.execution])
    where t.state = 'halted' and (p_ids is null or t.id = any (p_ids)) and t.deadline > durable._now_ms()
      and durable._is_dead(h.problem) order by t.id);
end
$$;
comment on function durable._dead(text[]) is 'The dead ones among these runs, or all dead runs if p_ids is null.';

create or replace function durable.redrive(id text default null)
returns integer language plpgsql volatile
as $$
declare
  v_dead text[];
begin
  v_dead := durable._dead(case when $1 is not null then array[$1] end);
  -- all tasks before all heads; each run is then continued under these locks
  perform durable._lock_tasks_to_revoke(v_dead);
  perform durable._lock_heads(durable._heads_of('{}', v_dead));
  v_dead := durable._dead(v_dead);
  if v_dead = '{}' and $1 is not null then
    perform durable._find_run($1);
    perform durable._fail_conflict(format('Run %L is not dead.', $1),
                                   format('select state, problem from durable.runs where id = %L', $1));
  end if;
  perform durable._continue_tasks(v_dead, durable._now_ms());
  perform durable._hint('durable_ready', durable._now_ms()) where v_dead <> '{}';
  return cardinality(v_dead);
end
$$;
comment on function durable.redrive(text) is
  'Revives dead runs, those whose workers were lost too often: one, or all (id null). They go on from their journals. Answers how many. WF001, WF003.';
