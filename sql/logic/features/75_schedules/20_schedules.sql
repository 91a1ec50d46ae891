-- Schedules: the operations on them of the protocol. How their instants fire is in 21_due.sql to 24_firing.sql, the verbs for
-- people in 25_schedule_verbs.sql.

create or replace function durable._schedule_record(p_schedule durable._schedules)
returns durable.schedule_record language sql immutable
as $$
  select row(p_schedule.id, p_schedule.cron, p_schedule.timezone, p_schedule.promise_id, p_schedule.promise_timeout,
             p_schedule.promise_param_headers, p_schedule.promise_param_data, p_schedule.promise_tags, p_schedule.created_at,
             p_schedule.next_run_at, p_schedule.last_run_at)::durable.schedule_record
$$;
comment on function durable._schedule_record(durable._schedules) is 'A stored schedule as clients see it.';

create or replace function durable._check_schedule(p_id text, p_template text, p_timeout bigint, p_headers jsonb, p_tags jsonb)
returns void language plpgsql stable
as $$
begin
  if p_id is null or octet_length(p_id) not between 1 and 512 then
    perform durable._fail_invalid(
      format('A schedule id has 1 to 512 bytes, this one has %s.', coalesce(octet_length(p_id), 0)));
  elsif coalesce(p_template, '') = '' then
    perform durable._fail_invalid(format('Schedule %L: the template of the promise id is empty.', p_id));
  elsif p_timeout is null or p_timeout not between 0 and durable._never() then
    perform durable._fail_invalid(format('Schedule %L: promise_timeout must be between 0 and 2^53 - 1 ms.', p_id));
  elsif jsonb_typeof(p_headers) <> 'object'
        or exists (select from jsonb_path_query(p_headers, 'lax $.*') h where jsonb_typeof(h) <> 'string') then
    perform durable._fail_invalid(format('Schedule %L: headers must be a JSON object of strings.', p_id));
  elsif p_tags is null or jsonb_typeof(p_tags) <> 'object'
        or exists (select from jsonb_path_query(p_tags, 'lax $.*') t where jsonb_typeof(t) <> 'string') then
    perform durable._fail_invalid(format('Schedule %L: tags must be a JSON object of strings.', p_id));
  elsif p_tags ? 'resonate:target' and durable._canonical_address(p_tags ->> 'resonate:target') is null then
    perform durable._fail_invalid(format('Schedule %L: target %L cannot be routed.', p_id, p_tags ->> 'resonate:target'),
                                  'Use poll://any@group, poll://uni@group/id or http(s)://host/path.');
  elsif p_tags ? 'resonate:target' and p_tags ->> 'resonate:timer' = 'true' and durable._strict() then
    perform durable._fail_invalid(format('Schedule %L: a timer has no target.', p_id));
  elsif p_tags ? 'resonate:delay' and (not p_tags ? 'resonate:target' or coalesce(
      substring(p_tags ->> 'resonate:delay' from '^[0-9]{1,16}$')::bigint >= durable._never(), true)) then
    perform durable._fail_invalid(format('Schedule %L: resonate:delay is an instant in ms, with a target.', p_id));
  end if;
end
$$;
comment on function durable._check_schedule(text, text, bigint, jsonb, jsonb) is
  'Checks the arguments of a schedule, without cron and zone. Each promise that it creates is an origin of its own, whatever its id. Whether a delay ends before the deadline is checked at each instant. WF004.';

create or replace function durable._check_timezone(p_id text, p_timezone text)
returns void language plpgsql stable
as $$
begin
  if p_timezone is null
     or (p_timezone <> 'UTC' and not exists (select from pg_catalog.pg_timezone_names z where z.name = p_timezone)) then
    perform durable._fail_invalid(format('Schedule %L: time zone %L is not known to this server.', p_id, p_timezone),
                                  'Use a full name as Europe/Berlin: select name from pg_timezone_names.');
  end if;
end
$$;
comment on function durable._check_timezone(text, text) is
  'Refuses abbreviations of time zones: an abbreviation does not define when clocks change, and UTC+3 would be read as three hours behind. p_id: the schedule, for the error. WF004.';

create or replace function durable._nominal_next(p_schedule durable._schedules)
returns bigint language plpgsql stable
as $$
declare
  v_next bigint;
begin
  if p_schedule.runs_left = 0 or (p_schedule.paused_at is not null and p_schedule.paused_until is null) then
    return durable._never();
  end if;
  v_next := durable._schedule_next(p_schedule.cron, p_schedule.timezone, greatest(
    p_schedule.created_at, p_schedule.begins_at, p_schedule.last_run_at, p_schedule.paused_until, p_schedule.starts_at - 1));
  return case when v_next <= coalesce(p_schedule.ends_at, durable._never()) then v_next else durable._never() end;
end
$$;
comment on function durable._nominal_next(durable._schedules) is
  'The next instant of a schedule: after its creation, its begin, its last instant and its pause, and not after its end. Never, if there is none. WF004.';

create or replace function durable._shown_next(p_schedule durable._schedules)
returns bigint language plpgsql stable
as $$
begin
  return case when p_schedule.poll_at is null then p_schedule.next_run_at else durable._nominal_next(p_schedule) end;
exception when sqlstate 'WF004' then
  return null;
end
$$;
comment on function durable._shown_next(durable._schedules) is
  'The next instant of a schedule; null if its time zone left this server while an instant is buffered.';

create or replace function durable._first_instant(p_schedule durable._schedules)
returns bigint language plpgsql stable
as $$
declare
  v_message text;
  v_hint text;
  v_next bigint;
begin
  v_next := durable._nominal_next(p_schedule);
  if v_next = durable._never()
     and not exists (select from durable._schedules s where s.id = p_schedule.id and s.workflow = p_schedule.workflow
                       and s.cron = p_schedule.cron and s.timezone = p_schedule.timezone) then
    perform durable._fail_invalid(
      case when p_schedule.ends_at is null then format('%L stands for no instant of the next eight years.', p_schedule.cron)
           else format('%L stands for no instant before its end.', p_schedule.cron) end);
  end if;
  return v_next;
exception when sqlstate 'WF004' then
  get stacked diagnostics v_message = message_text, v_hint = pg_exception_hint;
  perform durable._fail_invalid(
    format('Schedule %L: %s', p_schedule.id, lower(left(v_message, 1)) || substr(v_message, 2)),
    coalesce(nullif(v_hint, ''), 'For example 0 3 * * mon-fri (minute hour day month weekday), or every 90 minutes.'));
  return null;
end
$$;
comment on function durable._first_instant(durable._schedules) is
  'The next instant of a schedule that somebody makes or changes. An error in its expression names the schedule, and one that never fires is refused, unless it has ended, and says when as before. WF004.';

create or replace function durable.schedule_get(p_id text)
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  select * into v_schedule from durable._schedules s where s.id = p_id;
  if not found then
    perform durable._fail_not_found('schedule', p_id);
  end if;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_get(text) is 'The schedule. WF001 if there is none.';

create or replace function durable.schedule_create(
  p_id text, p_cron text, p_promise_id text, p_promise_timeout bigint, p_promise_param_data text default null,
  p_promise_param_headers jsonb default null, p_promise_tags jsonb default '{}', p_timezone text default 'UTC')
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_now constant bigint := durable._now_ms();
  v_next bigint;
  v_first text;
  v_schedule durable._schedules;
begin
  perform durable._check_tags_size(format('schedule %L', p_id), p_promise_tags);
  perform durable._check_schedule(p_id, p_promise_id, p_promise_timeout, p_promise_param_headers, p_promise_tags);
  perform durable._check_payload(format('Parameter of schedule %L', p_id), p_promise_param_data);
  perform durable._check_timezone(p_id, p_timezone);
  v_schedule.id := p_id;
  v_schedule.cron := p_cron;
  v_schedule.timezone := p_timezone;
  v_schedule.created_at := v_now;
  v_next := durable._first_instant(v_schedule);
  v_first := durable._expansion(p_promise_id, p_id, v_next);
  if octet_length(v_first) > 512 then
    perform durable._fail_invalid(format('Schedule %L: promise ids from its template have more than 512 bytes.', p_id));
  elsif not durable._in_its_tree(v_first, p_promise_tags)
        or not durable._in_its_tree(durable._expansion(p_promise_id, p_id, 0), p_promise_tags) then
    -- a check that two ids pass, which differ from the first digit of the instant on, is passed by all
    perform durable._fail_invalid(
      format('Schedule %L: ids as %L do not begin with the origin, the branch and the parent of its tags.', p_id, v_first));
  end if;
  perform durable._check_may_lock();
  perform durable._adopt_idle_copy();
  loop
    insert into durable._schedules (id, cron, timezone, promise_id, promise_timeout, promise_param_data, promise_param_headers,
                                    promise_tags, created_at, next_run_at)
    values (p_id, p_cron, p_timezone, p_promise_id, p_promise_timeout, p_promise_param_data, p_promise_param_headers,
            p_promise_tags, v_now, v_next)
    on conflict do nothing;
    select * into v_schedule from durable._schedules s where s.id = p_id;
    -- not found: another session has deleted it meanwhile
    exit when found;
  end loop;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_create(text, text, text, bigint, text, jsonb, jsonb, text) is
  'Creates a schedule, or returns the one that has this id, unchanged. Its first instant is strictly after now. p_promise_id may contain {{.id}} and {{.timestamp}}; without the latter it fires once, because every later instant finds the first promise. WF004, WF008.';

create or replace function durable.schedule_delete(p_id text)
returns durable.schedule_record language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  perform durable._check_may_lock();
  delete from durable._schedules s where s.id = p_id returning s.* into v_schedule;
  if not found then
    perform durable._fail_not_found('schedule', p_id);
  end if;
  delete from durable._schedule_instants i where i.schedule = p_id;
  return durable._schedule_record(v_schedule);
end
$$;
comment on function durable.schedule_delete(text) is
  'Deletes a schedule and returns it as it was. Promises that it created stay. WF001 if there is none.';

create or replace function durable.schedule_search(
  p_tags jsonb default null, p_limit integer default 10, p_cursor text default null)
returns setof durable.schedule_record language plpgsql volatile
as $$
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform durable._fail_invalid(format('A search answers 1 to 1000 schedules, not %s.', coalesce(p_limit::text, 'null')));
  elsif jsonb_typeof(p_tags) <> 'object' then
    perform durable._fail_invalid('A search by tags takes a JSON object of strings.');
  elsif coalesce(p_tags, '{}') = '{}' then
    return query select r.* from durable._schedules s cross join lateral durable._schedule_record(s) r
                 where s.id > coalesce(p_cursor, '') order by s.id limit p_limit;
  else
    return query select r.* from durable._schedules s cross join lateral durable._schedule_record(s) r
                 where s.id > coalesce(p_cursor, '') and s.promise_tags @> p_tags order by s.id limit p_limit;
  end if;
end
$$;
comment on function durable.schedule_search(jsonb, integer, text) is
  'Schedules whose promise tags contain p_tags, by id, after the id p_cursor; null or {} for all. A full page ends with the next cursor. WF004.';
