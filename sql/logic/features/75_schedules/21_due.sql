-- The instants of a schedule that are due, the locks on what they create, and what is written when they have fired.

create or replace function durable._try_lock_family(p_id text)
returns boolean language sql volatile
as $$
  select coalesce(bool_and(pg_try_advisory_xact_lock_shared(1685417574, hashtext(a.id))), true)
         and (durable._ancestors(p_id) = '{}' or durable._try_lock_out_bulk_starts())
  from unnest(durable._ancestors(p_id)) as a (id)
$$;
comment on function durable._try_lock_family(text) is
  '_lock_family for a sweep, which holds rows and so must not wait: false while another session starts a run that would be an ancestor of this id.';

create or replace function durable._try_lock_occurrence(p_schedule durable._schedules, p_at bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_id text := durable._occurrence_id(p_schedule, p_at);
begin
  if p_schedule.workflow is null then
    return durable._try_lock_family(v_id);
  end if;
  return pg_try_advisory_xact_lock(1685417574, hashtext(v_id));
end
$$;
comment on function durable._try_lock_occurrence(durable._schedules, bigint) is
  'The lock on the id of one instant: of a promise that of its ancestors, of a run the one that a start takes. False while another session creates a run or promise above or below it.';

create or replace function durable._is_evaluable(p_schedule durable._schedules)
returns boolean language plpgsql stable
as $$
begin
  perform durable._schedule_next(p_schedule.cron, p_schedule.timezone, p_schedule.created_at);
  return true;
exception when sqlstate 'WF004' or datetime_field_overflow or invalid_parameter_value then
  return false;
end
$$;
comment on function durable._is_evaluable(durable._schedules) is
  'False for a schedule whose cron expression is none, or whose time zone this server does not know (any more).';

create or replace function durable._due_instants(p_schedule durable._schedules, p_now bigint, p_most integer)
returns bigint[] language plpgsql volatile
as $$
declare
  v_instants bigint[];
begin
  v_instants := durable._instants(p_schedule.cron, p_schedule.timezone, p_schedule.next_run_at - 1, p_now, p_most);
  for n in 1 .. cardinality(v_instants) - 1 loop
    if not durable._try_lock_occurrence(p_schedule, v_instants[n]) then
      return v_instants[1:n];
    end if;
  end loop;
  return v_instants;
exception when invalid_parameter_value or datetime_field_overflow or sqlstate 'WF004' then
  return array[p_now + 3600000];
end
$$;
comment on function durable._due_instants(durable._schedules, bigint, integer) is
  'The instants of a schedule to fire now, p_most of them at most, and then the instant at which it is due again. A schedule that cannot be evaluated any more, because its time zone left this server, is due again in an hour, so that it does not stop the others.';

create or replace function durable._update_schedule(p_row durable._schedules)
returns void language plpgsql volatile
as $$
begin
  update durable._schedules s
  set cron = p_row.cron, timezone = p_row.timezone, begins_at = p_row.begins_at, next_run_at = p_row.next_run_at,
      paused_at = p_row.paused_at, priority = p_row.priority, declared = p_row.declared, promise_timeout = p_row.promise_timeout,
      promise_param_data = p_row.promise_param_data, promise_tags = p_row.promise_tags, workflow = p_row.workflow,
      workflow_version = p_row.workflow_version, queue = p_row.queue, last_run_at = p_row.last_run_at,
      paused_until = p_row.paused_until, paused_by = p_row.paused_by, pause_reason = p_row.pause_reason,
      overlap = p_row.overlap, catch_up = p_row.catch_up, jitter = p_row.jitter, starts_at = p_row.starts_at,
      ends_at = p_row.ends_at, max_runs = p_row.max_runs, runs_left = p_row.runs_left, pause_after = p_row.pause_after,
      latest = p_row.latest, poll_at = p_row.poll_at
  where s.id = p_row.id;
end
$$;
comment on function durable._update_schedule(durable._schedules) is 'Writes what may change in a schedule. The caller holds its row.';
