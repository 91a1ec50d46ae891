-- Writes on durable.schedules: an UPDATE does what durable.schedule, pause_schedule and resume_schedule do, a DELETE what
-- durable.unschedule does. Only columns that the statement changes are written, onto the row as it is once it is locked.

create or replace function durable._stored_columns(p_row jsonb)
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'cron', p_row -> 'cron', 'timezone', p_row -> 'timezone', 'workflow_version', p_row -> 'version', 'queue', p_row -> 'queue',
    'promise_param_data', p_row ->> 'args', 'priority', p_row -> 'priority', 'promise_tags', p_row -> 'tags',
    'promise_timeout', coalesce(durable._ms((p_row ->> 'deadline')::interval), durable._never()), 'overlap', p_row -> 'overlap',
    'catch_up', durable._ms((p_row ->> 'catch_up')::interval), 'jitter', durable._ms((p_row ->> 'jitter')::interval),
    'starts_at', durable._instant_ms((p_row ->> 'starts_at')::timestamptz),
    'ends_at', durable._instant_ms((p_row ->> 'ends_at')::timestamptz), 'max_runs', p_row -> 'max_runs',
    'pause_after', p_row -> 'pause_after')
$$;
comment on function durable._stored_columns(jsonb) is
  'A row of durable.schedules as columns of durable._schedules: those that an UPDATE may change, without a pause.';

create or replace function durable._differences(p_old jsonb, p_new jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select coalesce(jsonb_object_agg(n.key, n.value), '{}')
  from jsonb_each(p_new) n where n.value is distinct from p_old -> n.key
$$;
comment on function durable._differences(jsonb, jsonb) is 'The keys of p_new whose values differ from those of p_old.';

create or replace function durable._check_changes(p_schedule durable._schedules, p_changes jsonb)
returns void language plpgsql stable
as $$
declare
  v_pause constant text[] := '{state,pause_reason,paused_by,paused_until}';
  v_free constant text[] := '{args,catch_up,cron,deadline,ends_at,jitter,max_runs,overlap,pause_after,priority,queue,starts_at,'
                            'tags,timezone,version}';
  v_odd text[] := array(select k from jsonb_object_keys(p_changes) k where k <> all (v_pause) order by k);
begin
  if p_schedule.workflow is null and v_odd <> '{}' then
    perform durable._fail_invalid(
      format('Schedule %L creates promises: %s of it cannot be changed.', p_schedule.id, v_odd[1]),
      format('It can be paused; else select durable.unschedule(%L), and schedule it again.', p_schedule.id));
  end if;
  v_odd := array(select k from unnest(v_odd) k where k <> all (v_free));
  if v_odd <> '{}' then
    perform durable._fail_invalid(
      format('Schedule %L: %s cannot be changed.', p_schedule.id, v_odd[1]),
      case v_odd[1] when 'workflow' then 'durable.schedule(..., workflow => ..., replace => true) starts runs of another one.'
        else format('What can be changed: %s.', array_to_string(v_free || v_pause, ', ')) end);
  end if;
end
$$;
comment on function durable._check_changes(durable._schedules, jsonb) is
  'Refuses an UPDATE of columns that follow from others, or that name the schedule. WF004.';

create or replace function durable._with_changes(p_schedule durable._schedules, p_changes jsonb, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_row durable._schedules;
begin
  if p_changes = '{}' then
    return p_schedule;
  end if;
  v_row := jsonb_populate_record(p_schedule, p_changes);
  return durable._replaced(p_schedule, durable._schedule_of_runs(
    v_row.id, v_row.cron, v_row.timezone,
    row(v_row.workflow, durable._json(v_row.promise_param_data), v_row.promise_param_data, null, null, v_row.queue,
        v_row.workflow_version, null, nullif(v_row.promise_timeout, durable._never()), v_row.priority, v_row.promise_tags, '',
        true)::durable._start_request,
    row(v_row.overlap, v_row.catch_up, v_row.jitter, v_row.starts_at, v_row.ends_at, v_row.max_runs,
        v_row.pause_after)::durable._schedule_policy, v_row.declared, p_now));
end
$$;
comment on function durable._with_changes(durable._schedules, jsonb, bigint) is
  'A schedule of runs with other stored columns, checked as a new one is. WF004, WF008.';

create or replace function durable._with_state(p_schedule durable._schedules, p_changes jsonb, p_now bigint)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_state constant text := coalesce(
    p_changes ->> 'state', case when p_changes ? 'state' then 'null' when p_schedule.paused_at is null then 'active'
                                else 'paused' end);
begin
  if v_state not in ('active', 'paused') then
    perform durable._fail_invalid(format('Schedule %L: %L is no state to set.', p_schedule.id, v_state),
                                  'active or paused; ends_at makes that one is over.');
  elsif v_state = 'active' and p_changes - 'state' <> '{}' and p_schedule.paused_at is null then
    perform durable._fail_invalid(format('Schedule %L is not paused.', p_schedule.id), 'Set state = ''paused'' too.');
  elsif v_state = 'active' then
    return case when p_schedule.paused_at is null then p_schedule else durable._ended_pause(p_schedule, p_now) end;
  elsif p_changes = '{}' then
    return p_schedule;
  end if;
  return durable._paused(
    p_schedule, case when p_changes ? 'pause_reason' then p_changes ->> 'pause_reason' else p_schedule.pause_reason end,
    case when p_changes ? 'paused_until' then durable._instant_ms((p_changes ->> 'paused_until')::timestamptz)
         else p_schedule.paused_until end,
    coalesce(p_changes ->> 'paused_by', p_schedule.paused_by, session_user), p_now);
end
$$;
comment on function durable._with_state(durable._schedules, jsonb, bigint) is
  'A schedule that is paused, or goes on, as the columns about its pause say. WF004.';

create or replace function durable._write_schedule()
returns trigger language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
  v_changes jsonb;
  v_pause jsonb;
  v_now bigint;
begin
  if tg_op = 'INSERT' then
    perform durable._fail_invalid('A schedule is not inserted.',
                                  'select durable.schedule(''nightly'', ''0 3 * * *'', workflow => ''report'');');
  end if;
  v_schedule := durable._lock_schedule(old.id);
  if v_schedule.id is null then
    return null;
  elsif tg_op = 'DELETE' then
    perform durable.schedule_delete(old.id);
    return old;
  end if;
  v_now := durable._now_ms();
  v_changes := durable._differences(to_jsonb(old), to_jsonb(new));
  if v_changes <> '{}' then
    perform durable._check_changes(v_schedule, v_changes);
    v_schedule := durable._with_changes(
      v_schedule, durable._differences(durable._stored_columns(to_jsonb(old)), durable._stored_columns(to_jsonb(new))), v_now);
    v_pause := v_changes - array(
      select k from jsonb_object_keys(v_changes) k where k <> all ('{state,pause_reason,paused_by,paused_until}'));
    v_schedule := durable._with_state(v_schedule, v_pause, v_now);
    perform durable._update_schedule(durable._with_next(v_schedule, v_now));
  end if;
  select * into new from durable.schedules s where s.id = old.id;
  return new;
end
$$;
comment on function durable._write_schedule() is
  'Writes a row of durable.schedules. A row that another session has deleted meanwhile is passed over. WF003, WF004, WF008.';

create or replace trigger write_schedule instead of insert or update or delete on durable.schedules
  for each row execute function durable._write_schedule();
comment on trigger write_schedule on durable.schedules is 'Lets the view be updated.';
