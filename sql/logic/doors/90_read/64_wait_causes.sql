-- Why a suspended run waits, and what a promise, a schedule or an id that nothing has is.

create or replace function durable._unread(p_execution bigint)
returns text[] language sql stable
as $$
  select nullif(array(select i.name from durable._inboxes i
                      where i.execution = p_execution
                        and (i.delivered > i.received or i.backlog_upto > i.backlog_from + i.delivered)
                      order by i.name limit 5), '{}')
$$;
comment on function durable._unread(bigint) is
  'Names of signals that were sent to a run and that its code has not received, five at most; null for none.';

create or replace function durable._ranked_waits(p_head durable._executions, p_now bigint)
returns table (kind text, wait text, id text, name text, until bigint, param_data text, place bigint, waits bigint)
language sql stable
as $$
  select w.kind, w.wait, w.id, w.name, case w.kind when 'timer' then w.due_at else least(w.due_at, w.timer) end, w.param_data,
         row_number() over (order by case t.state when 'halted' then 1 when 'pending' then 2 when 'suspended' then 3
                                                  when 'acquired' then 4 else 0 end, w.child),
         count(*) over ()
  from (select x.*, min(x.due_at) filter (where x.kind = 'timer' and p_head.wait_kind = 'any') over () as timer,
               bool_or(x.kind <> 'timer') over () as has_others
        from durable._waits x where x.execution = p_head.execution) w
  left join lateral (select q.state from durable._tasks q where q.id = w.id offset 0) t on true
  -- the first completion ends such a wait, so a timer is the limit of the others
  where w.kind <> 'timer' or w.timer is null or not w.has_others or w.due_at <= p_now
$$;
comment on function durable._ranked_waits(durable._executions, bigint) is
  'The open waits of a run, first those that are set aside or not running. waits: how many there are.';

create or replace function durable._wait_causes(p_head durable._executions, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_unread text[] := durable._unread(p_head.execution);
  v_at bigint := (select j.ts from durable._journal j
                  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.type = 'execution_awaiting'
                  order by j.seq desc limit 1);
  v_wait record;
begin
  for v_wait in select * from durable._ranked_waits(p_head, p_now) w where w.place <= 10 order by w.place loop
    return next durable._because(
      v_wait.kind, coalesce(v_wait.name, v_wait.id),
      concat(case v_wait.kind when 'timer' then 'sleeps' else 'waits for ' || v_wait.wait end,
             durable._since(v_at, p_now), durable._until(v_wait.until, p_now),
             case v_wait.kind when 'signal' then '; not received yet: ' || array_to_string(v_unread, ', ') end),
      v_at, v_wait.until,
      jsonb_build_object('promise', v_wait.id, 'wait', p_head.wait_kind,
                         'key', case v_wait.kind when 'row' then durable._json(v_wait.param_data) end,
                         'unread', case v_wait.kind when 'signal' then to_jsonb(v_unread) end),
      case when v_wait.kind <> 'timer' or v_wait.until <= p_now then v_wait.id end);
  end loop;
  if v_wait.waits > 10 then
    return next durable._because('more', 'more', format('waits for %s more', v_wait.waits - 10), v_at,
                                 p_details => jsonb_build_object('count', v_wait.waits - 10));
  end if;
end
$$;
comment on function durable._wait_causes(durable._executions, bigint) is
  'The waits of a suspended run, ten at most and a row for the others. until: when the promise expires, or the first timer of a wait that any completion ends. A signal that lies unreceived may be the misspelt one.';

create or replace function durable._callback_causes(p_task durable._tasks, p_now bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from (select c.awaited_id as id from durable._callbacks c
        where c.awaited_id > p_task.id || '.' and c.awaited_id < p_task.id || '/' and c.awaiter_id = p_task.id
        union
        select c.awaited_id from durable._callbacks c
        where c.awaiter_id = p_task.id and c.child < 0 and not starts_with(c.awaited_id, c.awaiter_id || '.')
        order by id limit 10) a
  join durable._promises p on p.id = any (array[a.id])
  cross join lateral durable._because(
    case when p.target is null then 'promise' else 'remote_call' end, a.id,
    format('waits for promise %s%s', a.id, durable._until(p.due_at, p_now)), null, p.due_at, p_leads_to => a.id) b
$$;
comment on function durable._callback_causes(durable._tasks, bigint) is
  'The promises that a suspended task of a protocol client waits for, ten at most.';

create or replace function durable._watch_causes(p_promise durable._promises)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._row_waits w
  join durable._watches x on x.id = any (array[w.watch])
  join durable.watches v on v.schema = x.namespace and v.watch = x.table_name || '.' || x.name
  cross join lateral durable._because(
    'watch', v.watch, format('watch %s does not see every change: %s; call durable.watch(...) again', v.watch, v.state),
    p_details => jsonb_build_object('state', v.state)) b
  where w.promise_id = p_promise.id and v.state <> 'ok'
$$;
comment on function durable._watch_causes(durable._promises) is 'A wait for a row whose watch is broken.';

create or replace function durable._promise_causes(p_promise durable._promises, p_is_asked boolean, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_span text := durable._since(p_promise.created_at, p_now) || durable._until(p_promise.due_at, p_now);
begin
  if p_promise.timer then
    return next durable._because('timer', p_promise.id, 'is a timer' || v_span, p_promise.created_at, p_promise.due_at);
  elsif not coalesce(p_promise.param_headers ? 'durable:until', false) then
    return next durable._because(
      'unsettled', p_promise.id, format('is not settled%s; durable.resolve(%L, ...) settles it', v_span, p_promise.id),
      p_promise.created_at, p_promise.due_at);
  else
    return query select * from durable._watch_causes(p_promise);
    if not found and p_is_asked then
      return next durable._because(
        'row', p_promise.param_headers ->> 'durable:until',
        format('waits for row %s %s%s', p_promise.param_headers ->> 'durable:until', p_promise.param_data, v_span),
        p_promise.created_at, p_promise.due_at);
    end if;
  end if;
end
$$;
comment on function durable._promise_causes(durable._promises, boolean, bigint) is
  'A pending promise without a task: a timer, a row that is not there, or a promise that others settle. p_is_asked: the promise itself is asked about.';

create or replace function durable._end_cause(p_promise durable._promises, p_now bigint)
returns durable._cause language plpgsql stable
as $$
declare
  v_error jsonb := case when p_promise.state <> 'resolved' then durable._json(durable._plain_error(p_promise)) end;
  v_cause text := case when p_promise.head is null then p_promise.state else coalesce(p_promise.failure, 'completed') end;
  v_verb text := case v_cause
    when 'timed_out' then 'timed out' when 'cancelled' then 'was cancelled' when 'rejected_canceled' then 'was cancelled'
    when 'resolved' then 'was resolved' when 'rejected' then 'was rejected' when 'rejected_timedout' then 'expired'
    else v_cause end;
begin
  return durable._because(
    v_cause, p_promise.id,
    concat(format('%s %s ago (%s)', v_verb, durable._span(p_now - p_promise.settled_at),
                  durable._clock_time(p_promise.settled_at, p_now)),
           ': ' || case when v_error is not null then durable._error_line(v_error) end),
    p_promise.settled_at, p_details => jsonb_build_object('error', v_error));
end
$$;
comment on function durable._end_cause(durable._promises, bigint) is 'How a run or promise ended: it waits for nothing.';

create or replace function durable._unread_causes(p_execution bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from (select sum(s.unread) as total, string_agg(format('%s (%s)', s.name, s.unread), ', ') filter (where s.place <= 5)
                 || case when max(s.place) > 5 then ', ...' else '' end as names,
               jsonb_object_agg(s.name, s.unread) as counts
        from (select u.name, u.unread, row_number() over (order by u.name) as place
              from durable.unread_signals_v1(array[p_execution]) u) s
        having count(*) > 0) a
  cross join lateral durable._because(
    'unread', a.names,
    format('ended without receiving %s: %s', case a.total when 1 then 'a signal' else a.total || ' signals' end, a.names),
    p_details => jsonb_build_object('signals', a.counts)) b
$$;
comment on function durable._unread_causes(bigint) is
  'The signals that a run left unread when it ended: whoever sent them, and waits for an answer, gets none.';

create or replace function durable._schedule_cause(p_schedule durable._schedules, p_now bigint)
returns durable._cause language plpgsql stable
as $$
begin
  if p_schedule.paused_at is not null then
    return durable._because(
      'schedule_paused', p_schedule.id,
      concat(format('is a schedule (%s, %s), paused%s', p_schedule.cron, p_schedule.timezone,
                    durable._since(p_schedule.paused_at, p_now)),
             ' by ' || p_schedule.paused_by, ': ' || p_schedule.pause_reason, '; ',
             'goes on ' || durable._then(p_schedule.paused_until, p_now) || ', or by ',
             format('durable.resume_schedule(%L)', p_schedule.id),
             case when p_schedule.paused_until is null then ' lets it go on' end),
      p_schedule.paused_at, p_schedule.paused_until);
  elsif p_schedule.next_run_at <= p_now then
    return durable._overdue_cause(p_schedule.next_run_at, p_schedule.id, 'was due', 'fires it', p_now);
  end if;
  return durable._because(
    'schedule', p_schedule.id,
    concat('is a schedule (', p_schedule.cron, ', ', p_schedule.timezone, '): fires ',
           durable._then(durable._shown_next(p_schedule), p_now),
           ', the last time ' || durable._span(p_now - p_schedule.last_run_at) || ' ago'),
    p_schedule.last_run_at, durable._shown_next(p_schedule));
end
$$;
comment on function durable._schedule_cause(durable._schedules, bigint) is 'When a schedule fires, or why it does not: it is paused, or nothing ticks.';

create or replace function durable._schedule_causes(p_id text, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_latest constant text := (select s.latest from durable._schedules s where s.id = p_id);
  v_instant durable._schedule_instants;
  v_buffered bigint;
begin
  select count(*) into v_buffered from durable._schedule_instants i where i.schedule = p_id and i.outcome = 'buffered';
  if v_buffered > 0 then
    return next durable._because(
      'buffered', p_id, concat(durable._counted(v_buffered, 'instant'), case v_buffered when 1 then ' waits' else ' wait' end,
                               ' for the end of run ', v_latest),
      p_details => jsonb_build_object('instants', v_buffered, 'run', v_latest), p_leads_to => v_latest);
  end if;
  for v_instant in
    select distinct on (x.outcome) x.* from (
      select i.* from durable._schedule_instants i where i.schedule = p_id order by i.at desc limit 100) x
    where x.outcome in ('skipped', 'missed') and x.recorded_at > p_now - 86400000 order by x.outcome desc, x.at desc
  loop
    return next durable._because(
      v_instant.outcome, p_id,
      concat(case when v_instant.at = v_instant.upto then 'the instant ' || durable._clock_time(v_instant.at, p_now) || ' was '
             else concat('the instants from ', durable._clock_time(v_instant.at, p_now), ' to ',
                         durable._clock_time(v_instant.upto, p_now), ' were ') end,
             v_instant.outcome, ': ' || nullif(v_instant.reason, '')), v_instant.recorded_at);
  end loop;
end
$$;
comment on function durable._schedule_causes(text, bigint) is
  'The instants of a schedule that wait, and the latest that it left out within a day; nothing for an id that is none.';

create or replace function durable._near_ids(p_id text)
returns text[] language plpgsql stable
as $$
begin
  return array(
    select n.id from (
      (select p.id from durable._promises p where p.id > p_id order by p.id limit 20)
      union all
      (select p.id from durable._promises p where p.id < p_id order by p.id desc limit 20)) n
    cross join lateral (select count(*) as pairs from generate_series(1, length(p_id) - 1) i
                        where strpos(n.id, substr(p_id, i, 2)) > 0 offset 0) a
    where 2 * a.pairs >= length(p_id) - 1 and length(n.id) < 2 * length(p_id) + 8
    order by a.pairs desc, abs(length(n.id) - length(p_id)), n.id limit 3);
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._near_ids(text) is
  'Up to three ids that look like this one, among its neighbours in the order of ids: it costs the same however many there are.';

create or replace function durable._unknown_cause(p_id text, p_now bigint)
returns durable._cause language plpgsql stable
as $$
declare
  v_run text := substring(p_id from E'^(.*)\\.[0-9]{1,9}$');
  v_removed durable._removed;
  v_step record;
  v_schedule durable._schedules;
  v_near text[];
begin
  select * into v_removed from durable._removed r where r.id = any (p_id || durable._ancestors(p_id)) limit 1;
  if found then
    return durable._because(
      'removed', v_removed.id, format('ended as %s %s ago and was removed %s ago', v_removed.state,
                                      durable._span(p_now - v_removed.ended_at), durable._span(p_now - v_removed.removed_at)),
      v_removed.ended_at, p_details => jsonb_build_object('state', v_removed.state));
  end if;
  select s.state, s.name into v_step from durable.steps s
  where s.run = v_run and s.child = substring(p_id from E'\\.([0-9]{1,9})$')::integer;
  if found then
    return durable._because('step_of', v_step.name, format('is step %s of run %s: %s', v_step.name, v_run, v_step.state),
                            p_details => jsonb_build_object('run', v_run, 'state', v_step.state),
                            p_leads_to => case v_step.state when 'pending' then v_run end);
  end if;
  select * into v_schedule from durable._schedules s where s.id = p_id;
  if found then
    return durable._schedule_cause(v_schedule, p_now);
  end if;
  v_near := nullif(durable._near_ids(p_id), '{}');
  return durable._because('unknown', p_id, concat('no run, promise or schedule has this id',
                                                  '; near are ' || array_to_string(v_near, ', ')),
                          p_details => jsonb_build_object('near', v_near));
end
$$;
comment on function durable._unknown_cause(text, bigint) is
  'An id that no promise has: it was removed, is a step or a schedule, or is none of ours.';
