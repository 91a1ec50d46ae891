-- Schedules with policies: what becomes of an instant while the latest run goes on, what was missed, pauses, ends and limits.
-- Each instant is accounted for once: by its run, else by its row in _schedule_instants that says why there is none, else by the
-- row of a time in which none had one. A buffered instant has a row until its run starts; until then the schedule polls
-- that one every second or so, because the end of a run notifies no schedule.

create or replace function durable._has_policy(p_schedule durable._schedules)
returns boolean language sql immutable parallel safe
as $$
  select p_schedule.overlap <> 'allow' or p_schedule.jitter > 0 or p_schedule.catch_up is not null
         or p_schedule.max_runs is not null or p_schedule.pause_after is not null or p_schedule.starts_at is not null
         or p_schedule.ends_at is not null or p_schedule.poll_at is not null
$$;
comment on function durable._has_policy(durable._schedules) is
  'Whether a schedule fires one instant after the other; those without a policy fire all that are due at once.';

create or replace function durable._record_instant(
  p_schedule text, p_at bigint, p_upto bigint, p_outcome text, p_reason text, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  insert into durable._schedule_instants (schedule, at, upto, outcome, reason, recorded_at)
  values (p_schedule, p_at, p_upto, p_outcome, p_reason, p_now)
  on conflict do nothing;
  if not found and p_upto > p_at then
    -- the first instant of that time has a row of its own
    insert into durable._schedule_instants (schedule, at, upto, outcome, reason, recorded_at)
    values (p_schedule, p_at + 1, p_upto, p_outcome, p_reason, p_now)
    on conflict do nothing;
  end if;
end
$$;
comment on function durable._record_instant(text, bigint, bigint, text, text, bigint) is
  'Records why an instant, or the instants of a time, started no run. The caller has locked the schedule.';

create or replace function durable._is_pending(p_id text)
returns boolean language plpgsql volatile
as $$
begin
  return exists (select from durable._promises p where p.id = p_id and p.state = 'pending' and p.timeout_at > durable._now_ms());
end
$$;
comment on function durable._is_pending(text) is 'Whether a run or promise has not ended; its deadline ends it, before a sweep says so.';

create or replace function durable._is_busy(p_schedule durable._schedules)
returns boolean language sql volatile
as $$
  select durable._is_pending(p_schedule.latest)
         or durable._is_pending(durable._occurrence_id(p_schedule, p_schedule.last_run_at))
$$;
comment on function durable._is_busy(durable._schedules) is
  'Whether the latest run of a schedule goes on: the one that it started last, and that of its last instant.';

create or replace function durable._failures_in_row(p_schedule durable._schedules)
returns integer language plpgsql volatile
as $$
begin
  return (
    select count(*) from (
      select bool_and(x.failed) over (order by x.id collate "C" desc) as failed from (
        select p.id, p.state in ('rejected', 'rejected_timedout', 'pending') as failed
        from durable._runs_of_schedule(p_schedule.id, p_schedule.id || '-:', p_schedule.pause_after + 100) r
        join durable._promises p on p.id = any (array[r])
        where (p.state <> 'pending' or p.timeout_at <= durable._now_ms())
          and p.created_at >= coalesce(p_schedule.begins_at, 0) and p.tags ->> 'resonate:schedule' = p_schedule.id
        order by p.id desc limit p_schedule.pause_after) x) y
    where y.failed);
end
$$;
comment on function durable._failures_in_row(durable._schedules) is
  'How many of the latest runs of a schedule that have ended have failed or timed out, one after the other, since its last pause: pause_after at most. A hundred may go on beside them.';

create or replace function durable._start_instant(p_schedule durable._schedules, p_at bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
begin
  delete from durable._schedule_instants i where i.schedule = p_schedule.id and i.at = p_at and i.upto = p_at;
  if durable._start_occurrences(p_schedule, array[p_at]) <> '{}' then
    v_schedule.runs_left := v_schedule.runs_left - 1;
  end if;
  v_schedule.latest := durable._occurrence_id(p_schedule, p_at);
  return v_schedule;
end
$$;
comment on function durable._start_instant(durable._schedules, bigint) is
  'Starts the run of one instant, which is the latest from now on. An id that exists is left as it is. The caller has locked schedule and id.';

create or replace function durable._cancel_latest(p_schedule durable._schedules, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_roots constant text[] := array[p_schedule.latest, durable._occurrence_id(p_schedule, p_schedule.last_run_at)];
  v_ids constant text[] := durable._family(v_roots, false);
  v_free text[];
begin
  if durable._try_lock_promises(v_ids) <> '{}' then
    return;
  end if;
  v_free := (durable._try_lock_settlement(v_ids)).ids;
  if cardinality(v_free) < cardinality(v_ids)
     or exists (select unnest(durable._family(v_roots, false)) except select unnest(v_ids)) then
    return;
  end if;
  perform durable._cancel_locked(
    array(select t.id from durable._tasks t where t.id = any (v_ids) and t.deadline > p_now),
    to_jsonb(format('the next instant of schedule %s has come', p_schedule.id))::text, durable._grace_ms(null), false, p_now);
end
$$;
comment on function durable._cancel_latest(durable._schedules, bigint) is
  'Requests the end of the latest run and of the runs below it, unless another session holds one of them: the next look tries again. A second request changes nothing.';

create or replace function durable._buffer_instant(p_schedule durable._schedules, p_at bigint, p_overlap text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_most constant integer := case p_overlap when 'buffer_all' then 10000 else 1 end;
  v_is_full constant boolean := exists (
    select from durable._schedule_instants i where i.schedule = p_schedule.id and i.outcome = 'buffered'
    offset v_most - 1 limit 1);
begin
  if p_overlap = 'skip' then
    perform durable._record_instant(p_schedule.id, p_at, p_at, 'skipped',
                                    format('run %s had not ended', p_schedule.latest), p_now);
    return;
  elsif p_overlap = 'buffer_one' and v_is_full then
    perform durable._record_instant(p_schedule.id, p_at, p_at, 'skipped', 'another instant was buffered', p_now);
    return;
  elsif p_overlap = 'buffer_all' and v_is_full then
    perform durable._record_instant(p_schedule.id, p_at, p_at, 'skipped', '10000 instants were buffered', p_now);
    return;
  elsif p_overlap = 'cancel' then
    update durable._schedule_instants i set outcome = 'skipped', reason = 'a later instant took its place'
    where i.schedule = p_schedule.id and i.outcome = 'buffered';
    perform durable._cancel_latest(p_schedule, p_now);
  end if;
  perform durable._record_instant(p_schedule.id, p_at, p_at, 'buffered',
                                  format('run %s had not ended', p_schedule.latest), p_now);
end
$$;
comment on function durable._buffer_instant(durable._schedules, bigint, text, bigint) is
  'Records an instant that comes while the latest run goes on, as its overlap decides: skipped, or buffered.';

create or replace function durable._fire_instant(p_schedule durable._schedules, p_at bigint, p_overlap text, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
begin
  if exists (select from durable._promises p where p.id = durable._occurrence_id(p_schedule, p_at)) then
    delete from durable._schedule_instants i where i.schedule = p_schedule.id and i.at = p_at and i.upto = p_at;
    return p_schedule;
  elsif p_overlap <> 'allow' and (
       durable._is_busy(p_schedule) or exists (
         select from durable._schedule_instants i where i.schedule = p_schedule.id and i.outcome = 'buffered')) then
    perform durable._buffer_instant(p_schedule, p_at, p_overlap, p_now);
    return p_schedule;
  end if;
  return durable._start_instant(p_schedule, p_at);
end
$$;
comment on function durable._fire_instant(durable._schedules, bigint, text, bigint) is
  'Starts the run of an instant that has none, or does with it what p_overlap says while the latest run has not ended.';

create or replace function durable._start_buffered(p_schedule durable._schedules, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  v_at bigint;
begin
  if v_schedule.runs_left = 0 then
    update durable._schedule_instants i set outcome = 'skipped', reason = 'the limit of runs was reached'
    where i.schedule = p_schedule.id and i.outcome = 'buffered';
  elsif v_schedule.paused_at is null and not durable._is_busy(v_schedule) then
    select i.at into v_at from durable._schedule_instants i
    where i.schedule = p_schedule.id and i.outcome = 'buffered' order by i.at limit 1;
    if v_at is not null and durable._try_lock_occurrence(v_schedule, v_at) then
      v_schedule := durable._start_instant(v_schedule, v_at);
    end if;
  elsif v_schedule.overlap = 'cancel' and v_schedule.paused_at is null and exists (
      -- what was backfilled is older, and waits
      select from durable._schedule_instants i
      where i.schedule = p_schedule.id and i.outcome = 'buffered' and i.at >= v_schedule.last_run_at) then
    perform durable._cancel_latest(v_schedule, p_now);
  end if;
  return v_schedule;
end
$$;
comment on function durable._start_buffered(durable._schedules, bigint) is
  'Starts the run of the first instant that is buffered, if the latest run has ended; asks that one to end, if its overlap is cancel.';

create or replace function durable._ended_pause(p_schedule durable._schedules, p_until bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  v_since constant bigint := greatest(p_schedule.created_at, p_schedule.begins_at, p_schedule.last_run_at) + 1;
begin
  -- a clock that was set back may be behind its last instant
  if v_since <= p_until then
    perform durable._record_instant(p_schedule.id, v_since, p_until, 'paused', coalesce(p_schedule.pause_reason, ''),
                                    durable._now_ms());
  end if;
  v_schedule.begins_at := greatest(p_schedule.begins_at, p_until);
  v_schedule.paused_at := null;
  v_schedule.paused_until := null;
  v_schedule.paused_by := null;
  v_schedule.pause_reason := null;
  return v_schedule;
end
$$;
comment on function durable._ended_pause(durable._schedules, bigint) is
  'A schedule whose pause ends at p_until: its instants since the last one that fired have passed, and a row says so.';

create or replace function durable._without_missed(p_schedule durable._schedules, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  v_next bigint;
  v_cut constant bigint := p_now - p_schedule.catch_up - 1;
begin
  if p_schedule.catch_up is null then
    return p_schedule;
  end if;
  v_next := durable._nominal_next(p_schedule);
  if v_next <= v_cut then
    perform durable._record_instant(p_schedule.id, v_next, v_cut, 'missed', 'no tick came in time', p_now);
    v_schedule.begins_at := v_cut;
  end if;
  return v_schedule;
end
$$;
comment on function durable._without_missed(durable._schedules, bigint) is
  'The schedule without the instants that are older than its window: one row records them as missed.';

create or replace function durable._paused_for_failures(p_schedule durable._schedules, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
begin
  if p_schedule.pause_after is null or p_schedule.paused_at is not null then
    return p_schedule;
  elsif durable._failures_in_row(p_schedule) >= p_schedule.pause_after then
    v_schedule.paused_at := p_now;
    v_schedule.paused_by := 'pyengine';
    v_schedule.pause_reason := format('%s runs in a row have failed; the latest is %s', p_schedule.pause_after,
                                      p_schedule.latest);
  end if;
  return v_schedule;
end
$$;
comment on function durable._paused_for_failures(durable._schedules, bigint) is
  'The schedule, paused if as many of its latest runs as pause_after have failed.';

create or replace function durable._due_by_policy(p_schedule durable._schedules, p_now bigint, p_most integer)
returns bigint[] language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  v_instants bigint[];
begin
  v_schedule.next_run_at := durable._nominal_next(p_schedule);
  if v_schedule.next_run_at > p_now then
    return '{}';
  end if;
  v_instants := durable._due_instants(v_schedule, least(p_now, coalesce(p_schedule.ends_at, p_now)), p_most);
  return v_instants[1:cardinality(v_instants) - 1];
end
$$;
comment on function durable._due_by_policy(durable._schedules, bigint, integer) is
  'The instants of a schedule to fire now, p_most of them at most; their ids are locked.';

create or replace function durable._fire_instants(p_schedule durable._schedules, p_instants bigint[], p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
begin
  for n in 1 .. cardinality(p_instants) loop
    exit when v_schedule.runs_left = 0;
    v_schedule := durable._fire_instant(v_schedule, p_instants[n], v_schedule.overlap, p_now);
    v_schedule.last_run_at := p_instants[n];
  end loop;
  return v_schedule;
end
$$;
comment on function durable._fire_instants(durable._schedules, bigint[], bigint) is
  'Fires instants that are due, one after the other, until the limit of runs is reached.';

create or replace function durable._forget_instants(p_schedule text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_days constant bigint := durable._setting_int('retention_days');
begin
  if v_days > 0 then
    delete from durable._schedule_instants i
    where i.schedule = p_schedule and i.outcome <> 'buffered' and i.at in (
      select n.at from durable._schedule_instants n
      where n.schedule = p_schedule and n.at < p_now - 86400000 * v_days order by n.at limit 100);
  end if;
end
$$;
comment on function durable._forget_instants(text, bigint) is
  'Removes old rows of instants without a run, as retention removes old runs: 100 at most.';

create or replace function durable._with_next(p_schedule durable._schedules, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  -- a clock that was set back may be behind what the schedule has seen
  v_from constant bigint := greatest(p_now, p_schedule.created_at, p_schedule.last_run_at);
  v_since constant bigint := (
    select greatest(i.recorded_at, (select p.created_at from durable._promises p where p.id = p_schedule.latest))
    from durable._schedule_instants i
    where i.schedule = p_schedule.id and i.outcome = 'buffered' order by i.at limit 1);
begin
  v_schedule.poll_at := case when v_since is null then null
                             when p_schedule.paused_at is not null then p_schedule.paused_until
                             else v_from + least(greatest((p_now - v_since) / 20, 1000), 10000) end;
  v_schedule.next_run_at := least(durable._nominal_next(p_schedule), v_schedule.poll_at);
  return v_schedule;
end
$$;
comment on function durable._with_next(durable._schedules, bigint) is
  'The schedule, due at its next instant. If an instant is buffered it is due before: in a second, later the longer the latest run takes, after ten seconds at most; or when its pause ends.';

create or replace function durable._fire_by_policy(
  p_schedule durable._schedules, p_now bigint, p_most integer, out instants integer, out queues text[])
language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
  v_due bigint[] := '{}';
begin
  if v_schedule.paused_until <= p_now then
    v_schedule := durable._ended_pause(v_schedule, v_schedule.paused_until);
  end if;
  if v_schedule.workflow is not null then
    if not durable._is_pending(v_schedule.latest) and durable._is_busy(v_schedule) then
      -- the run of the last instant goes on, and was not the latest: a trigger was, or there was no policy
      v_schedule.latest := durable._occurrence_id(v_schedule, v_schedule.last_run_at);
    end if;
    v_schedule := durable._paused_for_failures(v_schedule, p_now);
    v_schedule := durable._without_missed(durable._start_buffered(v_schedule, p_now), p_now);
    v_due := durable._due_by_policy(v_schedule, p_now, p_most);
    v_schedule := durable._fire_instants(v_schedule, v_due, p_now);
    perform durable._forget_instants(v_schedule.id, p_now);
  end if;
  v_schedule := durable._with_next(v_schedule, p_now);
  queues := case when v_schedule.latest is distinct from p_schedule.latest then array[v_schedule.queue] else '{}' end;
  if v_schedule is not distinct from p_schedule then
    return;
  end if;
  perform durable._update_schedule(v_schedule);
  instants := cardinality(v_due);
end
$$;
comment on function durable._fire_by_policy(durable._schedules, bigint, integer) is
  'Fires a locked schedule as its policies say: ends its pause, starts what was buffered, leaves out what was missed, and treats each instant that is due. One of promises is due again after its pause. instants: how many were treated, null if nothing changed; queues: those that may have got runs.';
