-- When a schedule fires: one expression, or several with a semicolon between them.
--   0 3 * * mon-fri            a cron expression (10_cron.sql)
--   every 90 minutes           an interval, counted from 1970 in UTC, so it does not depend on when it was written;
--   every 6h offset 10m          an offset moves it
--   at 2026-03-01 09:00        once: local time in the zone of the schedule, or an instant if it ends with Z or an offset
-- Each stands for a set of instants, and several for all instants of theirs.

create or replace function durable._interval_ms(p_when text, p_text text)
returns bigint language plpgsql immutable
as $$
declare
  v_interval interval;
begin
  v_interval := p_text::interval;
  if extract(year from v_interval) <> 0 or extract(month from v_interval) <> 0 then
    perform durable._fail_invalid(format('%L: a month has no fixed length.', p_when),
                                  'Write a cron expression: 0 0 1 * * is the first of each month.');
  end if;
  return round(extract(epoch from v_interval) * 1000);
exception when invalid_datetime_format or datetime_field_overflow or interval_field_overflow or numeric_value_out_of_range then
  perform durable._fail_invalid(format('%L: %L is no interval.', p_when, p_text),
                                'every 90 minutes, every 6h offset 10m, every 1 day');
  return null;
end
$$;
comment on function durable._interval_ms(text, text) is 'The length of an interval in ms; p_when names the expression. WF004.';

create or replace function durable._every_next(p_when text, p_after bigint)
returns bigint language plpgsql immutable
as $$
declare
  v_parts constant text[] := regexp_match(p_when, '^every[[:space:]]+(.+?)([[:space:]]+offset[[:space:]]+(.+))?$', 'i');
  v_step constant bigint := durable._interval_ms(p_when, coalesce(v_parts[1], ''));
  v_offset constant bigint := coalesce(durable._interval_ms(p_when, v_parts[3]), 0);
begin
  if v_step not between 1000 and 366 * 86400000::bigint then
    perform durable._fail_invalid(format('%L: an interval has 1 second to 366 days.', p_when));
  elsif v_offset not between 0 and v_step - 1 then
    perform durable._fail_invalid(format('%L: an offset is shorter than its interval, and not below zero.', p_when));
  elsif v_step % 1000 <> 0 or v_offset % 1000 <> 0 then
    perform durable._fail_invalid(format('%L: a run is named after a whole second.', p_when));
  end if;
  return p_after + v_step - ((p_after - v_offset) % v_step + v_step) % v_step;
end
$$;
comment on function durable._every_next(text, bigint) is
  'The first instant after p_after whose distance from 1970-01-01 UTC plus the offset is a multiple of the interval. WF004.';

create or replace function durable._once(p_when text, p_timezone text)
returns bigint language plpgsql stable
as $$
declare
  v_parts constant text[] := regexp_match(
    p_when, '^at[[:space:]]+([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]+([0-9]{2}:[0-9]{2}(:[0-9]{2})?)[[:space:]]*'
            '(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$', 'i');
  v_midnight bigint;
  v_time time;
begin
  if v_parts is null then
    perform durable._fail_invalid(format('%L is no instant.', p_when), 'at 2026-03-01 09:00, or at 2026-03-01T09:00+01:00');
  end if;
  if v_parts[4] is not null then
    return extract(epoch from (v_parts[1] || ' ' || v_parts[2] || v_parts[4])::timestamptz) * 1000;
  end if;
  v_midnight := (v_parts[1]::date - date '1970-01-01') * 86400::bigint;
  v_time := v_parts[2]::time;
  return 1000 * durable._cron_in_day(
    array[extract(hour from v_time)::integer], array[extract(minute from v_time)::integer],
    array[extract(second from v_time)::integer], false, p_timezone, v_midnight, v_midnight - 172800);
exception when invalid_datetime_format or datetime_field_overflow then
  perform durable._fail_invalid(format('%L: the calendar has no such day, or the clock no such time.', p_when));
  return null;
end
$$;
comment on function durable._once(text, text) is
  'The instant of an expression that fires once. A change of clocks does to a local time what it does to a cron expression with hour and minute. WF004; 22023 for an unknown time zone.';

create or replace function durable._when_next(p_when text, p_timezone text, p_after bigint)
returns bigint language plpgsql stable
as $$
begin
  if p_when ~* '^every([[:space:]]|$)' then
    return durable._every_next(p_when, p_after);
  elsif p_when ~* '^at([[:space:]]|$)' then
    return nullif(greatest(durable._once(p_when, p_timezone), p_after), p_after);
  end if;
  return (durable._cron_instants(p_when, p_timezone, p_after, p_after, 0))[1];
end
$$;
comment on function durable._when_next(text, text, bigint) is
  'The first instant of one expression after p_after, or null. WF004; 22023 for an unknown time zone.';

create or replace function durable._when_parts(p_when text)
returns text[] language plpgsql immutable
as $$
declare
  v_parts constant text[] := array(select btrim(x, E' \t\n\r') from regexp_split_to_table(coalesce(p_when, ''), ';') x);
begin
  if cardinality(v_parts) > 16 then
    perform durable._fail_invalid(format('A schedule has 16 expressions at most, this one has %s.', cardinality(v_parts)));
  elsif cardinality(v_parts) > 1 and '' = any (v_parts) then
    perform durable._fail_invalid(format('One of the expressions in %L is empty.', p_when));
  end if;
  return v_parts;
end
$$;
comment on function durable._when_parts(text) is 'The expressions of a schedule. WF004.';

create or replace function durable._instants(p_when text, p_timezone text, p_after bigint, p_until bigint, p_most integer)
returns bigint[] language plpgsql stable
as $$
declare
  v_parts text[];
  v_next bigint[];
  v_at bigint;
  v_instants bigint[] := '{}';
begin
  if p_when !~* '(;|^[[:space:]]*(at|every)([[:space:]]|$))' then
    return durable._cron_instants(p_when, p_timezone, p_after, p_until, p_most);
  end if;
  v_parts := durable._when_parts(p_when);
  v_next := array(select durable._when_next(x, p_timezone, p_after) from unnest(v_parts) with ordinality u (x, n) order by u.n);
  loop
    v_at := (select min(x) from unnest(v_next) x);
    v_instants := v_instants || v_at;
    exit when v_at is null or v_at > p_until or cardinality(v_instants) > p_most;
    for n in 1 .. cardinality(v_parts) loop
      if v_next[n] = v_at then
        v_next[n] := durable._when_next(v_parts[n], p_timezone, v_at);
      end if;
    end loop;
  end loop;
  return v_instants;
end
$$;
comment on function durable._instants(text, text, bigint, bigint, integer) is
  'The instants of all expressions of a schedule after p_after up to p_until, p_most of them at most, and then the next one after them: null if there is none (of cron: within eight years). All in ms. WF004; 22023 for an unknown time zone.';

create or replace function durable._schedule_next(p_when text, p_timezone text, p_after_ms bigint)
returns bigint language plpgsql stable
as $$
begin
  return (durable._instants(p_when, p_timezone, p_after_ms, p_after_ms, 0))[1];
exception when invalid_parameter_value then
  perform durable._fail_invalid(format('Time zone %L is not known to this server.', p_timezone));
  return null;
end
$$;
comment on function durable._schedule_next(text, text, bigint) is
  'The first instant of a schedule''s expressions strictly after p_after_ms, or null if there is none. WF004.';

create or replace function durable._instant_ms(p_at timestamptz)
returns bigint language sql stable
as $$
  select case when isfinite(p_at) then least(greatest(floor(extract(epoch from p_at) * 1000), 0), durable._never())::bigint
              when p_at > '2000-01-01' then durable._never() when p_at < '2000-01-01' then 0 end
$$;
comment on function durable._instant_ms(timestamptz) is 'An instant in ms since the epoch, not before it and not after never.';
