-- All that time starts: promise deadlines, lost leases, schedules, journal partitions ahead, retention; and the end of waits
-- for rows, which commits of users leave to be done. Any number of callers, bounded, SKIP LOCKED; a missed call only delays.
-- It stands above all concerns, because it starts the housekeeping of each.

create or replace function durable._gone_workers(p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_free text[] := array(select w.id from durable._workers w where w.present and durable._is_disconnected(w.number));
  -- found missing at an instant to come: the clock was set back, and the grace begins again
  v_changed text[] := array(select w.id from durable._workers w
                            where (w.missing_at is null) = (w.id = any (v_free)) or w.missing_at > p_now);
begin
  if v_changed <> '{}' then
    update durable._workers w set missing_at = case when w.id = any (v_free) then p_now end
    where w.id = any (array(select x.id from durable._workers x where x.id = any (v_changed) for no key update skip locked))
      and ((w.missing_at is null) = (w.id = any (v_free)) or w.missing_at > p_now);
  end if;
  return array(select w.id from durable._workers w
               where w.id = any (v_free) and w.missing_at <= p_now - durable._setting_int('presence_grace_ms'));
end
$$;
comment on function durable._gone_workers(bigint) is
  'Workers whose presence lock was found free twice, presence_grace_ms apart, without a heartbeat in between.';

create or replace function durable._gone_in(p_now bigint)
returns bigint language plpgsql stable
as $$
declare
  v_grace_ms bigint;
begin
  if not exists (select from durable._workers w where w.present and w.missing_at is not null) then
    return null;
  end if;
  v_grace_ms := durable._setting_int('presence_grace_ms');
  return (select min(w.missing_at) + v_grace_ms - p_now from durable._workers w
          where w.present and w.missing_at > p_now - v_grace_ms);
end
$$;
comment on function durable._gone_in(bigint) is
  'Milliseconds until the next worker that was found missing once counts as gone, if it stays missing; null if there is none, and if all of them are gone already.';

create or replace function durable._forget_workers(p_gone text[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  delete from durable._workers w where w.id = any (array(
    select x.id from durable._workers x
    where ((x.id = any (p_gone) and x.missing_at is not null)
           or (not x.present and x.seen_at not between p_now - 3600000 and durable._latest(p_now)))
      and not exists (select from durable._tasks t where t.pid = x.id and t.state = 'acquired')
    for update skip locked));
  delete from durable._idle_workers i where i.worker = any (array(
    select x.worker from durable._idle_workers x
    where x.worker >= '' and not exists (select from durable._workers w where w.id = x.worker) for update skip locked));
end
$$;
comment on function durable._forget_workers(text[], bigint) is
  'Deletes workers that are gone or were not seen for an hour and hold nothing. Skips locked rows: a heartbeat holds its row and waits for tasks that the sweep has.';

create or replace function durable._could_not_renew(p_task durable._tasks, p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._workers w
                 where w.id = p_task.pid and p_task.id = any (w.unrenewed)
                   and w.seen_at between p_now - p_task.ttl + 1 and p_now + p_task.ttl);
end
$$;
comment on function durable._could_not_renew(durable._tasks, bigint) is
  'True if the worker of the task is alive and could not renew the lease, because another session had locked the task.';

create or replace function durable._lease_reaches(p_now bigint, p_ttl bigint)
returns bigint language sql immutable parallel safe
as $$ select p_now + p_ttl + 5000 $$;
comment on function durable._lease_reaches(bigint, bigint) is
  'The latest end of a lease of that length: later ones are from before the clock was set back. Other sessions read the clock a little later than a tick.';

create or replace function durable._try_lock_expired_tasks(
  p_gone text[], p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select t.id from durable._tasks t
      where t.state = 'acquired' and t.pid >= '' and t.deadline > p_now
        and (t.pid = any (p_gone) or (t.expires_at <= p_now and not durable._could_not_renew(t, p_now))
             or t.expires_at > durable._lease_reaches(p_now, t.ttl))
        and t.id <> all (p_tried) and (t.owner is null or t.owner <> all (p_missed))
      limit p_limit for update skip locked) x);
end
$$;
comment on function durable._try_lock_expired_tasks(text[], bigint, integer, text[], bigint[]) is
  'Locks tasks whose lease ended or would end too late, or whose worker is gone, except p_tried and children of p_missed. Reads only acquired tasks, through the index on pid.';

create or replace function durable._try_lock_overdue_cancels(p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id from durable._executions h
      join durable._promises p on p.id = any (array[h.id])
      where h.cancel_until is not null and h.cancel_until <= p_now and h.execution <> all (p_missed)
        and p.state = 'pending' and p.timeout_at > p_now and p.id <> all (p_tried)
        and (p.execution is null or p.execution <> all (p_missed))
      order by h.cancel_until limit p_limit for no key update of p skip locked) x);
end
$$;
comment on function durable._try_lock_overdue_cancels(bigint, integer, text[], bigint[]) is
  'Locks the promises of runs that did not end within their grace, except p_tried, runs of the heads p_missed and their children.';

create or replace function durable._create_partition(p_table regclass, p_week integer, p_comment text)
returns boolean language plpgsql volatile
as $$
begin
  if durable._partition_of(p_table, p_week, false) is not null then
    return false;
  end if;
  execute format('create table %s_%s (like %1$s including all) with ('
                 'autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_freeze_min_age = 0)', p_table, p_week);
  execute format('alter table %s attach partition %1$s_%s for values in (%2$s)', p_table, p_week);
  execute format('comment on table %s_%s is %L', p_table, p_week, p_comment);
  return true;
end
$$;
comment on function durable._create_partition(regclass, integer, text) is
  'Creates the partition of a table for a week; false if there is one already, made from outside under whatever name.';

create or replace function durable._create_partitions()
returns integer language plpgsql volatile security definer
as $$
declare
  v_week integer;
  v_made boolean;
  v_count integer := 0;
begin
  if not durable._may_alter_journal() then
    perform durable._fail_forbidden('This role does not delete journals, so it makes no partitions of them.',
                                    'grant delete on durable._journal to ...');
  end if;
  for v_week in
    select w from generate_series(durable._week(durable._now_ms()), durable._week(durable._now_ms()) + 4) w
    where not exists (select from durable._buckets b where b.bucket = w)
  loop
    if not pg_try_advisory_xact_lock(1685417573, 0) then
      return v_count;
    end if;
    if not exists (select from durable._buckets b where b.bucket = v_week) then
      v_made := durable._create_partition('durable._journal', v_week,
                                          'Journal of runs that started in this week since the epoch.');
      perform durable._create_partition('durable._journal_values', v_week,
                                        'Large values of journals of this week since the epoch.');
      insert into durable._buckets (bucket) values (v_week);
      v_count := v_count + v_made::integer;
    end if;
  end loop;
  return v_count;
end
$$ set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set jit = off set quote_all_identifiers = off;
comment on function durable._create_partitions() is
  'Creates the journal partitions of this week and the four after it. With the rights of the owner, because workers may not create tables; so it takes nothing from its caller, and names and values are numbers. WF011 for a role that may not delete journals. They are attached, because "partition of" would wait for every open transaction that touched the journal, and the engine behind it; a session that alters the journal at this moment is waited for 100 ms. A partition that was created from outside, under whatever name, is used as it is.';

create or replace function durable._ensure_partitions(p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_missing integer := 5 - (select count(*) from durable._buckets b
                            where b.bucket between durable._week(p_now) and durable._week(p_now) + 4);
  v_problem text;
begin
  if v_missing > 0 then
    begin
      perform durable._create_partitions();
    exception when others then
      get stacked diagnostics v_problem = message_text;
      return format('no journal partition could be made: %s', v_problem);
    end;
  end if;
  return null;
end
$$;
comment on function durable._ensure_partitions(bigint) is
  'Makes the partitions of the next weeks. An error is answered and undone, and fails nothing else.';

create or replace function durable._paused()
returns boolean language sql immutable parallel safe
as $$ select false $$;
comment on function durable._paused() is 'Whether time is moved by hand only; sql/debug replaces this function.';

create or replace function durable._odd_schedules(p_now bigint)
returns text language plpgsql stable
as $$
begin
  return (
    select 'schedules whose cron expression or time zone this server does not know are put off by an hour: '
           || string_agg(s.id, ', ' order by s.id)
    from durable._schedules s where s.next_run_at = p_now + 3600000 and not durable._is_evaluable(s));
end
$$;
comment on function durable._odd_schedules(bigint) is
  'The warning of a tick that could not evaluate schedules; null if it evaluated all that were due.';

create or replace function durable._sweep_schedules(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_fired integer;
  v_queues text[];
begin
  if not exists (select from durable._schedules s where s.next_run_at <= p_now) then
    return null;
  end if;
  select f.fired, f.queues into v_fired, v_queues from durable._fire_free_schedules(p_now, p_limit) f;
  if v_fired = 0 then
    return null;
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', v_fired, 'next_due_ms', durable._due_in(p_now),
                            'more', true, 'hints', to_jsonb(v_queues), 'warning', durable._odd_schedules(p_now));
end
$$;
comment on function durable._sweep_schedules(integer, bigint) is
  'The answer of a tick that fired schedules; null if none was due, or other sweeps have them. In a transaction of its own, because the creation of promises may wait for a session that creates the same, and must hold nothing then.';

create or replace function durable._left_schedules(p_now bigint)
returns text[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select s.id from durable._schedules s where s.next_run_at <= p_now order by s.next_run_at limit 20) x);
end
$$;
comment on function durable._left_schedules(bigint) is
  'Schedules that are due still after a sweep that fired none: other sessions have locked them, or create their promises. 20 at most, for the answer.';

create or replace function durable._sweep_tests(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_waits integer := durable._sweep_rows(p_limit, p_now);
begin
  if v_waits = 0 then
    return null;
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'waits', v_waits, 'next_due_ms', durable._due_in(p_now),
                            'more', true, 'hints', '[]'::jsonb);
end
$$;
comment on function durable._sweep_tests(integer, bigint) is
  'The answer of a tick that tested waits for rows; null if none was due. In a transaction of its own, because it reads tables of users, and must hold nothing then.';

create or replace function durable._try_lock_due_promises(p_now bigint, p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id from durable._promises p
      where p.due_at <= p_now and p.id <> all (p_tried) and (p.execution is null or p.execution <> all (p_missed))
      order by p.due_at limit p_limit for no key update skip locked) x);
end
$$;
comment on function durable._try_lock_due_promises(bigint, integer, text[], bigint[]) is
  'Locks promises past their deadline, except p_tried and those whose owner is in p_missed.';

create or replace function durable._locked_due(p_now bigint, p_tried text[])
returns text[] language plpgsql volatile
as $$
begin
  return (
    select coalesce(array_agg(x.id), '{}') from (
      select p.id, p.xmax from durable._promises p
      where p.due_at <= p_now and p.id <> all (p_tried) and p.xmax <> 0
      order by p.due_at limit 20) x
    where pg_try_advisory_xact_lock_shared(durable._engine_xact_key(x.xmax)));
end
$$;
comment on function durable._locked_due(bigint, text[]) is
  'Promises past their deadline that _try_lock_due_promises skipped because another session has locked them, other than a turn or tick of the engine: 20 at most, for the answer.';

create or replace function durable._try_lock_due_settlements(
  p_kind text, p_now bigint, p_limit integer, p_tried text[], p_missed bigint[],
  out ids text[], out tasks text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_tried text[] := p_tried;
  v_due text[];
  v_chain record;
begin
  ids := '{}'; tasks := '{}'; heads := p_missed;
  for v_round in 1..10 loop
    v_due := case p_kind
      when 'deadline' then durable._try_lock_due_promises(p_now, p_limit - cardinality(ids), v_tried, heads)
      when 'cancellation' then durable._try_lock_overdue_cancels(p_now, p_limit - cardinality(ids), v_tried, heads)
      when 'row' then durable._try_lock_reported_waits(p_limit - cardinality(ids), v_tried, heads) end;
    exit when v_due = '{}';
    select * into v_chain from durable._try_lock_settlement(v_due) c;
    ids := ids || v_chain.ids;
    tasks := tasks || v_chain.tasks;
    heads := heads || v_chain.heads;
    v_tried := v_tried || v_due;
    exit when cardinality(v_chain.ids) = cardinality(v_due) or cardinality(ids) = p_limit;
  end loop;
  if p_kind = 'deadline' and cardinality(ids) < p_limit then
    tasks := tasks || durable._locked_due(p_now, v_tried);
  end if;
end
$$;
comment on function durable._try_lock_due_settlements(text, bigint, integer, text[], bigint[]) is
  'Locks promises of a kind that are to be settled (past their deadline, past the grace of a cancellation, waits for rows with a result), and all rows that their settlement needs. Locked rows are left out, and others take their places. tasks and heads: the ones that were missed; p_missed: heads that were missed before.';

create or replace function durable._try_lock_expired_tasks_with_heads(
  p_gone text[], p_now bigint, p_limit integer, out ids text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_tried text[] := '{}';
  v_some text[];
  v_missed bigint[];
begin
  ids := '{}'; heads := '{}';
  for v_round in 1..10 loop
    v_some := durable._try_lock_expired_tasks(p_gone, p_now, p_limit - cardinality(ids), v_tried, heads);
    exit when v_some = '{}';
    v_missed := durable._try_lock_heads(coalesce(durable._heads_of(v_some, v_some), '{}'));
    heads := heads || v_missed;
    ids := ids || array(
      select t.id from durable._tasks t
      where t.id = any (v_some) and (t.execution is null or t.execution <> all (heads))
        and (t.owner is null or t.owner <> all (heads)));
    exit when v_missed = '{}' or cardinality(ids) = p_limit;
    v_tried := v_tried || v_some;
  end loop;
end
$$;
comment on function durable._try_lock_expired_tasks_with_heads(text[], bigint, integer) is
  'Locks tasks whose lease is lost, with their heads and those of their owners. Tasks with a locked head are left out, and others take their places. heads: the ones that were missed.';

create or replace function durable._settle_due(
  p_now bigint, p_limit integer, out ended integer, out full_batch boolean, out locked text[], out queues text[])
language plpgsql volatile
as $$
declare
  v_due record;
  v_overdue record;
  v_reported record;
  v_rows durable._row_outcome[];
  v_ids text[];
  v_now bigint;
begin
  select * into v_due from durable._try_lock_due_settlements('deadline', p_now, p_limit, '{}', '{}') d;
  select * into v_overdue
  from durable._try_lock_due_settlements('cancellation', p_now, p_limit - cardinality(v_due.ids), v_due.ids, v_due.heads) d;
  select * into v_reported
  from durable._try_lock_due_settlements('row', p_now, p_limit, v_due.ids || v_overdue.ids, v_overdue.heads) d;
  v_rows := durable._row_wait_outcomes(v_reported.ids);
  v_ids := v_due.ids || v_overdue.ids || array(select r.promise_id from unnest(v_rows) r);
  v_now := durable._now_ms();
  queues := durable._settle(
    v_ids, array(select case when e = any (v_overdue.ids) then 'rejected_canceled' end from unnest(v_due.ids || v_overdue.ids) e)
           || array(select r.state from unnest(v_rows) r),
    array_fill(null::jsonb, array[cardinality(v_ids)]),
    array(select (select durable._cancelled(durable._cancel_reason(h)) from durable._executions h
                  where h.execution = any (array(select t.execution from durable._tasks t
                                                 where t.id = any (v_overdue.ids) and t.id = e)))
          from unnest(v_due.ids || v_overdue.ids) e) || array(select r.data::text from unnest(v_rows) r), v_now);
  perform durable._forget_row_events(p_limit);
  ended := cardinality(v_ids);
  full_batch := greatest(cardinality(v_due.ids || v_overdue.ids), cardinality(v_rows)) = p_limit;
  locked := durable._locked_ids(v_due.tasks || v_overdue.tasks || v_reported.tasks, v_reported.heads);
end
$$;
comment on function durable._settle_due(bigint, integer) is
  'Settles promises past their deadline, runs whose grace of a cancellation is over, and waits for rows that have a result. locked: ids that other sessions have locked, so that something was left out.';

create or replace function durable._sweep_expired_leases(
  p_now bigint, p_limit integer, out lost integer, out locked text[], out queues text[])
language plpgsql volatile
as $$
declare
  v_gone text[] := durable._gone_workers(p_now);
  v_taken record;
  v_ids text[];
  v_now bigint;
begin
  select * into v_taken from durable._try_lock_expired_tasks_with_heads(v_gone, p_now, p_limit) l;
  v_now := durable._now_ms();
  v_ids := array(select t.id from durable._tasks t
                 where t.id = any (v_taken.ids) and durable._is_leased(t, t.version, v_now)
                   and (t.expires_at <= v_now or t.pid = any (v_gone)));
  queues := durable._revoke_leases(v_ids, 'lease lost', v_now);
  if cardinality(v_ids) < cardinality(v_taken.ids) then
    update durable._tasks t set expires_at = v_now + t.ttl
    where t.id = any (v_taken.ids) and t.state is not distinct from 'acquired'
      and t.expires_at > durable._lease_reaches(v_now, t.ttl);
  end if;
  perform durable._forget_workers(v_gone, v_now);
  lost := cardinality(v_ids);
  locked := durable._locked_ids('{}', v_taken.heads);
end
$$;
comment on function durable._sweep_expired_leases(bigint, integer) is
  'Revokes leases that were not renewed in time, or whose worker is gone, and forgets such workers. A lease from before the clock was set back ends one lease from now, unless it is renewed, so that none is endless. locked: as of _settle_due.';

create or replace function durable._try_lock_sweep(p_now bigint)
returns durable._retention language plpgsql volatile
as $$
declare
  v_sweep durable._retention;
begin
  if (exists (select from durable._retention) and not exists (
       select from durable._retention r where r.due_at not between p_now + 1 and p_now + 90000000))
     or not pg_try_advisory_xact_lock(1685417579, 0) then
    return null;
  end if;
  select * into v_sweep from durable._retention r
  where r.due_at not between p_now + 1 and p_now + 90000000 order by r.due_at limit 1 for no key update skip locked;
  if not exists (select from durable._retention r where r.subject = 'runs') then
    insert into durable._retention (due_at, subject) values (p_now + 3600000, 'runs');
  elsif v_sweep.subject = 'runs' then
    insert into durable._retention (due_at, subject)
    select p_now, s.subject
    from (select exists (select from durable._objects) or exists (select from durable._claims) as there) o
    cross join lateral (values
      ('calls', o.there), ('objects', o.there),
      ('callbacks', exists (select from durable._callbacks c where c.id <> '') and pg_try_advisory_xact_lock(1685417579, 1))
    ) as s (subject, is_wanted)
    where s.is_wanted
    on conflict on constraint retention_pk do nothing;
  end if;
  return v_sweep;
end
$$;
comment on function durable._try_lock_sweep(bigint) is
  'The sweep of retention that is due for the longest time, or, after the clock was set back, in more than the longest pause; all null if none is, or another session is at one. Its row is written only under this advisory lock, which is tried. The sweeps of calls and objects begin where there are objects or claims; that of callbacks with the first of them, or here, if nobody has noted that one.';

create or replace function durable._sweep_retention(p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_sweep durable._retention := durable._try_lock_sweep(p_now);
  v_part record;
  v_problem text;
begin
  if v_sweep.subject is null then
    return null;
  end if;
  begin
    case v_sweep.subject
      when 'runs' then select * into v_part from durable._sweep_runs(v_sweep.place, p_now) s;
      when 'calls' then select * into v_part from durable._sweep_calls(v_sweep.place, p_now) s;
      when 'objects' then select * into v_part from durable._sweep_objects(v_sweep.place, p_now) s;
      when 'callbacks' then select s.*, null::jsonb as place into v_part from durable._sweep_callbacks(p_now) s;
    end case;
  exception when others or query_canceled then
    -- the other sweeps, and the rest of the tick, go on
    v_problem := format('%s (SQLSTATE %s)', sqlerrm, sqlstate);
    select v_sweep.place as place, 600000::bigint as due_in, 0 as removed into v_part;
  end;
  update durable._retention r set place = v_part.place, due_at = p_now + v_part.due_in, problem = v_problem
  where r.subject = v_sweep.subject;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'removed', v_part.removed,
                            'next_due_ms', durable._due_in(p_now), 'more', true, 'hints', '[]'::jsonb, 'problem', v_problem);
end
$$;
comment on function durable._sweep_retention(bigint) is
  'The answer of a tick that did one portion of one sweep of retention: of runs, of calls, of objects, or of callbacks of the older API; also if there was nothing to remove; null if none was due. A sweep that fails is left for ten minutes, and its problem is kept. In a transaction of its own: see durable._sweep_runs.';

create or replace function durable.tick_v1(p_limit integer, p_schedules boolean default true)
returns jsonb language plpgsql volatile
as $$
declare
  v_limit integer := least(p_limit, durable._setting_int('sweep_limit'));
  v_settled record;
  v_leases record;
  v_offered record;
  v_locked text[];
  v_queues text[];
  v_now bigint := durable._now_ms();
  v_answer jsonb;
begin
  if durable._paused() or durable._is_copy() then
    return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'next_due_ms', null, 'more', false,
                              'hints', '[]'::jsonb, 'problem', case when not durable._paused() then durable._copy_problem() end);
  end if;
  if p_schedules then
    v_answer := coalesce(durable._sweep_schedules(v_limit, v_now), durable._sweep_tests(v_limit, v_now),
                         durable._sweep_retention(v_now));
  end if;
  if v_answer is not null then
    return v_answer;
  end if;
  perform durable._mark_engine_xact();
  select * into v_settled from durable._settle_due(v_now, v_limit) s;
  select * into v_leases from durable._sweep_expired_leases(v_now, v_limit) l;
  select * into v_offered from durable._offer_to_their_code(v_now, v_limit) o;
  v_queues := v_settled.queues || v_leases.queues || v_offered.queues;
  v_locked := v_settled.locked || v_leases.locked || v_offered.locked
              || case when p_schedules then durable._left_schedules(v_now) end;
  v_now := durable._now_ms();
  return jsonb_build_object('promises', v_settled.ended, 'leases', v_leases.lost, 'schedules', 0,
    'next_due_ms', durable._due_in(v_now, case when v_locked <> '{}' then v_now + 1 else 0 end), 'locked', v_locked,
    'more', v_settled.full_batch or v_leases.lost = v_limit
      or exists (select from durable._schedules s where not p_schedules and s.next_run_at <= v_now),
    'hints', to_jsonb(array(select distinct q from unnest(v_queues) q)),
    'gone_in_ms', durable._gone_in(v_now), 'warning', durable._record_timeline(v_now), 'problem', durable._ensure_partitions(v_now));
end
$$ set lock_timeout = '1s';
comment on function durable.tick_v1(integer, boolean) is
  'One round of a tick, the first of these that is due: firing schedules (p_schedules: a caller that has just fired some, or tested waits, passes false, so that neither delays the other); testing waits for rows; settling promises that are due or whose waits for rows have a result, ending cancelled runs whose grace is over, taking lost leases, and letting halted runs go on whose code is back, at most p_limit of each. Answers what it did, the ms until something is due, whether to call it again, the ms until a worker that was found missing counts as gone, the ids that other sessions have locked, for which work was left out, a problem of its own, and a warning. In a copy that was not adopted it does nothing, and its problem says so.';

create or replace function durable._sweep_for_people()
returns jsonb language plpgsql volatile
as $$
declare
  -- randomly if waits for rows are due too, because testing them needs a transaction without locks
  v_fired jsonb := durable.tick_v1(500, not durable._rows_due(durable._now_ms()) or random() < 0.5);
  v_answer jsonb := v_fired;
begin
  if (v_fired ->> 'schedules')::integer > 0 then
    v_answer := durable.tick_v1(500, false);
    v_answer := v_answer || jsonb_build_object('schedules', v_fired -> 'schedules',
                                               'hints', (v_fired -> 'hints') || (v_answer -> 'hints'));
  end if;
  if v_answer -> 'hints' <> '[]' then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return v_answer || jsonb_build_object('served', 0,
    'more', (v_answer ->> 'more')::boolean or exists (select from durable.next_service_v1()));
end
$$;
comment on function durable._sweep_for_people() is
  'One bounded round of housekeeping, for both schedules and deadlines, with its hints.';

create or replace function durable._serve_for_people()
returns jsonb language plpgsql volatile
as $$
declare
  v_answer jsonb;
begin
  v_answer := (select durable._serve(n.id) from durable.next_service_v1() n);
  if v_answer is null then
    -- every ready task is locked, or served by another session: this transaction has no locks
    return durable._sweep_for_people();
  end if;
  if (v_answer ->> 'served')::integer > 0 then
    perform durable._hint('durable_ready', durable._now_ms());
    perform durable._hint('durable_settled', durable._now_ms());
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'next_due_ms', 0, 'more', true,
                            'hints', coalesce(v_answer -> 'hints', '[]'), 'served', coalesce(v_answer -> 'served', '0'));
end
$$;
comment on function durable._serve_for_people() is
  'Serves one task, alone in its transaction: its locks must not be held while a sweep waits. Not pinned, because the function runs under the settings of the session.';

create or replace function durable._tick()
returns jsonb language plpgsql volatile
as $$
begin
  -- randomly, so that a backlog of one kind never delays the other
  if durable.services_due_v1() = 0 and not durable._paused() and random() < 0.75 then
    return durable._serve_for_people();
  end if;
  return durable._sweep_for_people();
end
$$;
comment on function durable._tick() is 'Serves one task of a service, or does one round of housekeeping.';

create or replace function durable.tick()
returns jsonb language sql volatile
as $$ select durable._tick() $$;
comment on function durable.tick() is
  'For people and for pg_cron where no worker runs: serves one task of a service (durable.serve) or does one bounded round of housekeeping, for both schedules and deadlines. Call it again while it answers "more".';

select durable._create_partitions();
