-- Steering of schedules by hand: a run now, and runs of instants that are over. The id of a run names its instant, so what ran
-- does not run again, and the row of an instant without a run goes when it gets one.

create or replace function durable._known_schedule_of_runs(p_id text, p_overlap text)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  perform durable._check_policy(p_id, row(p_overlap, null, null, null, null, null, null)::durable._schedule_policy);
  v_schedule := durable._lock_known_schedule(p_id);
  if v_schedule.workflow is null then
    perform durable._fail_invalid(format('Schedule %L creates promises; only one of runs can be steered.', p_id),
                                  'durable.create_promise makes a promise now.');
  end if;
  return v_schedule;
end
$$;
comment on function durable._known_schedule_of_runs(text, text) is 'Locks and answers a schedule of runs. WF001, WF004.';

create or replace function durable.trigger_schedule(id text, overlap text default null)
returns table (run text, outcome text) language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := durable._known_schedule_of_runs($1, $2);
  v_jitter constant bigint := v_schedule.jitter;
  v_now bigint;
  v_at bigint;
begin
  perform durable._adopt_idle_copy();
  v_now := durable._now_ms();
  v_at := v_now - v_now % 1000;
  perform durable._lock_names('{}', array[durable._occurrence_id(v_schedule, v_at)]);
  if v_schedule.runs_left = 0 then
    perform durable._fail_conflict(format('Schedule %L has started all of its %s runs.', $1, v_schedule.max_runs),
                                   'durable.schedule(..., max_runs => more, replace => true) raises the limit.');
  end if;
  v_schedule.jitter := 0;
  v_schedule := durable._fire_instant(v_schedule, v_at, coalesce($2, v_schedule.overlap), v_now);
  v_schedule.jitter := v_jitter;
  perform durable._update_schedule(durable._with_next(v_schedule, v_now));
  perform durable._hint('durable_ready', v_now);
  outcome := coalesce((select i.outcome from durable._schedule_instants i where i.schedule = v_schedule.id and i.at = v_at),
                      'started');
  run := case when outcome <> 'skipped' then durable._occurrence_id(v_schedule, v_at) end;
  return next;
end
$$;
comment on function durable.trigger_schedule(text, text) is
  'Starts a run of a schedule now, paused or not: select * from durable.trigger_schedule(''nightly''). Its instant is the current second, so two calls within a second are one run. While the latest run goes on, overlap decides, by default the schedule''s: outcome is started, skipped or buffered. Answers the id that the run has, or will have; null if it is skipped. A jitter does not hold for it. WF001, WF003 its limit of runs is reached, WF004.';

create or replace function durable._instants_between(p_schedule durable._schedules, p_since bigint, p_until bigint)
returns bigint[] language plpgsql stable
as $$
declare
  v_instants bigint[];
begin
  if p_since is null or p_until is null or p_until < p_since then
    perform durable._fail_invalid(
      format('Schedule %L: a range has a begin, and an end that is not before it.', p_schedule.id), 'since, then until');
  elsif p_until > durable._now_ms() then
    perform durable._fail_invalid(
      format('Schedule %L: a range ends in the past; what lies ahead fires by itself.', p_schedule.id),
      'until => now() is the latest end.');
  end if;
  v_instants := durable._instants(p_schedule.cron, p_schedule.timezone, p_since - 1, p_until, 10000);
  if v_instants[10001] <= p_until then
    perform durable._fail_invalid(format('Schedule %L has more than 10000 instants in that range.', p_schedule.id),
                                  format('Ask for less: the first 10000 end at %s.', durable._at(v_instants[10000])));
  end if;
  return v_instants[1:cardinality(v_instants) - 1];
end
$$;
comment on function durable._instants_between(durable._schedules, bigint, bigint) is
  'The instants of a range that is over, 10000 at most. WF004.';

create or replace function durable._backfill(
  p_schedule durable._schedules, p_instants bigint[], p_overlap text, p_now bigint)
returns table (started bigint, buffered bigint) language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := p_schedule;
begin
  delete from durable._schedule_instants i
  where i.schedule = p_schedule.id and i.at = any (p_instants) and i.upto = i.at and i.outcome <> 'buffered';
  if p_overlap = 'buffer_all' then
    -- the row of a time that begins with one of them keeps the rest of that time
    update durable._schedule_instants i set at = i.at + 1
    where i.schedule = p_schedule.id and i.at = any (p_instants) and i.at < i.upto;
    insert into durable._schedule_instants (schedule, at, upto, outcome, reason, recorded_at)
    select p_schedule.id, x, x, 'buffered', 'it was backfilled', p_now from unnest(p_instants) x
    on conflict do nothing;
    v_schedule := durable._start_buffered(v_schedule, p_now);
  else
    for n in 1 .. cardinality(p_instants) loop
      v_schedule := durable._start_instant(v_schedule, p_instants[n]);
    end loop;
    -- a run of its own instants that goes on stays the one that others wait for
    if durable._is_busy(p_schedule) then
      v_schedule.latest := p_schedule.latest;
    end if;
  end if;
  buffered := (select count(*) from durable._schedule_instants i
               where i.schedule = p_schedule.id and i.at = any (p_instants) and i.outcome = 'buffered');
  started := cardinality(p_instants) - buffered;
  perform durable._update_schedule(durable._with_next(v_schedule, p_now));
  perform durable._hint('durable_ready', p_now);
  return next;
end
$$;
comment on function durable._backfill(durable._schedules, bigint[], text, bigint) is
  'Starts instants that are over and have no run, or buffers them. The caller has locked the schedule and their ids.';

create or replace function durable.backfill_schedule(
  id text, since timestamptz, until timestamptz, overlap text default 'buffer_all', dry_run boolean default true)
returns table (instants bigint, started bigint, buffered bigint) language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
  v_instants bigint[];
  v_ids text[];
begin
  if $4 is null or $4 not in ('allow', 'buffer_all') then
    perform durable._fail_invalid(format('Schedule %L: a backfill knows no overlap %L.', $1, $4),
                                  'allow starts all runs at once, buffer_all one after the other.');
  end if;
  v_schedule := durable._known_schedule_of_runs($1, $4);
  v_instants := durable._instants_between(v_schedule, greatest(durable._instant_ms($2), v_schedule.starts_at),
                                          least(durable._instant_ms($3), v_schedule.ends_at));
  if not $5 then
    perform durable._adopt_idle_copy();
    v_ids := array(select durable._occurrence_id(v_schedule, x) from unnest(v_instants) x);
    perform durable._lock_names('{}', v_ids);
  end if;
  v_instants := array(
    select i.at from unnest(v_instants) as i (at)
    where not exists (select from durable._promises p where p.id = any (array[durable._occurrence_id(v_schedule, i.at)]))
      and not exists (select from durable._removed r where r.id = any (array[durable._occurrence_id(v_schedule, i.at)]))
    order by i.at limit v_schedule.runs_left);
  instants := cardinality(v_instants);
  started := 0;
  buffered := 0;
  if not $5 then
    select b.started, b.buffered into started, buffered
    from durable._backfill(v_schedule, v_instants, $4, durable._now_ms()) b;
  end if;
  return next;
end
$$;
comment on function durable.backfill_schedule(text, timestamptz, timestamptz, text, boolean) is
  'Starts runs of the instants of a range that is over, those that have no run: select * from durable.backfill_schedule(''nightly'', ''2026-03-01'', ''2026-03-08''). It only counts them, unless dry_run => false. overlap: buffer_all, one after the other, or allow, all at once. A limit of runs counts them too; with the overlap cancel the next instant leaves out those that wait. 10000 instants at most. WF001, WF004.';
