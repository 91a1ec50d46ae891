-- The start of a run that has not begun, moved to another instant.

create or replace function durable._moved_start(p_at timestamptz, p_delay interval, p_now bigint)
returns bigint language plpgsql stable
as $$
begin
  if (p_at is null) = (p_delay is null) or p_delay < interval '0' or not isfinite(p_at) then
    perform durable._fail_invalid(
      'A run is moved to an instant (at => timestamptz) or by a delay from now on (delay => interval, not negative): to one of the two.',
      'select durable.reschedule(''order-42'', delay => ''2 hours''); delay => ''0'' is now.');
  end if;
  return greatest(coalesce(floor(extract(epoch from p_at) * 1000)::bigint, p_now + durable._ms(p_delay)), p_now);
end
$$;
comment on function durable._moved_start(timestamptz, interval, bigint) is
  'The instant to which a start is moved, in ms; what has passed is now. WF004.';

create or replace function durable.reschedule(id text, at timestamptz default null, delay interval default null)
returns timestamptz language plpgsql volatile
as $$
declare
  v_task durable._tasks;
  v_now bigint;
  v_at bigint := durable._moved_start($2, $3, durable._now_ms());
begin
  perform durable._find_run($1);
  perform durable._lock_tasks_to_revoke(array[$1]);
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = $1;
  if not found or v_task.deadline <= v_now then
    perform durable._fail_ended($1);
  elsif v_task.version > 0 then
    perform durable._fail_conflict(format('Run %L has begun, so its start cannot be moved.', $1),
                                   format('select state from durable.runs where id = %L; select durable.pause(%L)', $1, $1));
  elsif v_task.state <> 'pending' then
    perform durable._fail_conflict(format('Run %L is set aside, so it does not start.', $1),
                                   format('select durable.resume(%L); then move its start.', $1));
  elsif v_at >= v_task.deadline then
    perform durable._fail_invalid(format('Run %L would start at %s, and its deadline is %s.', $1, durable._at(v_at),
                                         durable._at(v_task.deadline)), 'Move it to an instant before that.');
  end if;
  update durable._tasks t set retry_at = v_at where t.id = $1;
  perform durable._hint('durable_ready', v_now);
  return durable._at(v_at);
end
$$;
comment on function durable.reschedule(text, timestamptz, interval) is
  'Moves the start of a run that has not begun, to an instant or to a delay from now on, and answers that instant: select durable.reschedule(''order-42'', delay => ''2 hours''). An instant that has passed means now: it starts at once. Its deadline stays. WF001, WF003 it has begun, is set aside or has ended, WF004.';
