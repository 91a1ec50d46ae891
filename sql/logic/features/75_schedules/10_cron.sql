-- A cron expression in a time zone stands for a set of instants. Everything here asks for the next member of that set, so a
-- walk never stands still, never goes back, and does not depend on where it began. When clocks change, the set is this:
--   minute or hour begins with * (every 15 minutes, each hour): every real instant whose local time matches. The hour that
--     is left out has none, the hour that comes twice has them twice.
--   minute and hour are given (at 2:30): once for each local time. Local times that are left out come together as one
--     instant, the first after the gap; those that come twice count the first time only.
-- Days come from the calendar alone, instants from the two offsets around a day: no zone has two changes within three days.

create or replace function durable._cron_value(p_text text, p_low integer, p_names text[])
returns integer language plpgsql immutable parallel safe
as $$
declare
  v_name constant text := upper(p_text collate "C");
begin
  if p_text ~ '^[0-9]{1,3}$' then
    return p_text::integer;
  end if;
  for n in 1 .. coalesce(cardinality(p_names), 0) loop
    if v_name in (p_names[n], left(p_names[n], 3)) then
      return p_low - 1 + n;
    end if;
  end loop;
  return null;
end
$$;
comment on function durable._cron_value(text, integer, text[]) is
  'A number, or a name by its place in p_names, whole or its first three letters; null: neither.';

create or replace function durable._cron_nth(p_field text, p_item text, p_names text[])
returns integer language plpgsql immutable
as $$
declare
  v_parts text[];
  v_weekday integer;
begin
  if p_field = 'day of month' then
    v_parts := regexp_match(p_item, '^L(-([0-9]|[12][0-9]|30))?$', 'i');
    return case when v_parts is not null then -1 - coalesce(v_parts[2]::integer, 0) end;
  elsif p_field <> 'day of week' then
    return null;
  end if;
  v_parts := regexp_match(p_item, '^([0-7]|[A-Z]{3,9})(L|#([1-5]))$', 'i');
  v_weekday := durable._cron_value(v_parts[1], 0, p_names) % 7;
  return v_weekday + 7 * coalesce(v_parts[3]::integer, 6);
end
$$;
comment on function durable._cron_nth(text, text, text[]) is
  'A day that depends on the length of its month. Of a month: L is -1, the last day, and L-3 the third before it, -4. Of a week: FRI#2, the second Friday, is 5 + 7 * 2, and FRIL, the last one, 5 + 7 * 6. Null: none.';

create or replace function durable._fail_cron_item(p_field text, p_item text)
returns void language plpgsql immutable
as $$
begin
  perform durable._fail_invalid(
    format('Cron, %s: %L is not understood.', p_field, p_item),
    case when p_item ~* '^(L|[0-9]{1,2})W$'
           then 'W, the nearest workday, is not offered: write MON-FRI, and look at the date in the workflow.'
         when p_item ~* '^H($|[(/])' then 'H is a word of Jenkins: write a value; a jitter spreads the starts.'
         when p_item ~* '(L|#)' and p_field like 'day%'
           then 'The last day of a month is L, or L-3, in its field; of weekdays FRIL is the last Friday, FRI#2 the second.'
         else '' end);
end
$$;
comment on function durable._fail_cron_item(text, text) is
  'Raises WF004 for a part of a field, with what to write in the place of words of other systems.';

create or replace function durable._cron_field(p_field text, p_text text, p_low integer, p_high integer, p_names text[])
returns integer[] language plpgsql immutable
as $$
declare
  v_size constant integer := p_high - p_low + 1;
  v_top constant integer := p_high + (p_field = 'day of week')::integer;
  v_set integer[] := '{}';
  v_sorted integer[] := '{}';
  v_nth integer;
  v_any boolean := false;
  v_item text;
  v_parts text[];
  v_step integer;
  v_from integer;
  v_to integer;
begin
  if p_text = '*' then
    return null;
  end if;
  foreach v_item in array string_to_array(p_text, ',') loop
    v_nth := durable._cron_nth(p_field, v_item, p_names);
    if v_nth is not null then
      v_sorted := v_sorted || v_nth;
      continue;
    end if;
    v_parts := regexp_match(v_item, '^([*?]|[0-9A-Za-z]+)(-([0-9A-Za-z]+))?(/([0-9]{1,4}))?$');
    if v_parts is null or (v_parts[1] in ('*', '?') and v_parts[3] is not null)
       or (v_parts[1] = '?' and p_field not like 'day%') then
      perform durable._fail_cron_item(p_field, v_item);
    end if;
    v_step := coalesce(v_parts[5]::integer, 1);
    if v_step not between 1 and v_size then
      perform durable._fail_invalid(format('Cron, %s: the step in %L must be between 1 and %s.', p_field, v_item, v_size));
    end if;
    v_from := case when v_parts[1] in ('*', '?') then p_low else durable._cron_value(v_parts[1], p_low, p_names) end;
    v_to := case when v_parts[1] in ('*', '?') then p_high
                 when v_parts[3] is not null then durable._cron_value(v_parts[3], p_low, p_names)
                 when v_parts[5] is not null then greatest(v_from, p_high) else v_from end;
    if v_from is null or v_to is null then
      perform durable._fail_cron_item(p_field, v_item);
    elsif not (v_from between p_low and v_top and v_to between p_low and v_top) then
      perform durable._fail_invalid(format('Cron, %s: %L goes beyond %s to %s.', p_field, v_item, p_low, v_top));
    elsif v_to < v_from and p_field = 'day of month' then
      perform durable._fail_invalid(format('Cron, %s: %L runs backwards, and months differ in length.', p_field, v_item));
    end if;
    v_any := v_any or (v_parts[1] in ('*', '?') and v_step = 1);
    v_to := case when v_to < v_from then v_to + v_size else v_to end;
    for n in v_from .. v_to by v_step loop
      v_set := v_set || (p_low + (n - p_low) % v_size);
    end loop;
  end loop;
  for n in p_low .. p_high loop
    if n = any (v_set) then
      v_sorted := v_sorted || n;
    end if;
  end loop;
  return case when not v_any then v_sorted end;
end
$$;
comment on function durable._cron_field(text, text, integer, integer, text[]) is
  'The values of one field in order, after those of _cron_nth; null for any. a/s means from a on. A range may pass the end of its field (FRI-MON, 22-2), except in days of a month; weekday 7 is Sunday. A step longer than the field is refused, because it would never come. WF004.';

create or replace function durable._cron_alias(p_cron text)
returns text language sql immutable parallel safe
as $$
  select case lower(btrim(p_cron, E' \t\n\r'))
    when '@hourly' then '0 * * * *' when '@daily' then '0 0 * * *' when '@midnight' then '0 0 * * *'
    when '@weekly' then '0 0 * * 0' when '@monthly' then '0 0 1 * *'
    when '@yearly' then '0 0 1 1 *' when '@annually' then '0 0 1 1 *' else btrim(p_cron, E' \t\n\r') end
$$;
comment on function durable._cron_alias(text) is 'A cron expression, or the one that a word as @daily stands for.';

create or replace function durable._cron_fields(p_cron text)
returns table (
  seconds integer[], minutes integer[], hours integer[], days integer[], months integer[], weekdays integer[],
  either boolean, wild boolean)
language plpgsql immutable
as $$
declare
  v_text constant text := coalesce(durable._cron_alias(p_cron), '');
  v_parts text[] := regexp_split_to_array(v_text, E'[ \\t\\n\\r]+');
begin
  if octet_length(v_text) not between 1 and 512 then
    perform durable._fail_invalid(format('A cron expression has 1 to 512 bytes, this one has %s.', octet_length(v_text)));
  elsif v_text like '@%' and cardinality(v_parts) < 5 then
    perform durable._fail_invalid(
      format('Cron: %L is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.', v_text),
      'An interval is written without @: every 90 minutes.');
  elsif cardinality(v_parts) = 7 then
    perform durable._fail_invalid(format('Cron %L has a year, the seventh field, which is not understood.', v_text),
                                  'Write six fields, and the begin and the end of the schedule.');
  elsif cardinality(v_parts) not in (5, 6) then
    perform durable._fail_invalid(format('Cron %L has %s fields.', v_text, cardinality(v_parts)),
                                  'Give five (minute hour day month weekday) or six, with the second first.');
  elsif cardinality(v_parts) = 5 then
    v_parts := array_prepend('0', v_parts);
  end if;
  return query select
    durable._cron_field('second', v_parts[1], 0, 59, null), durable._cron_field('minute', v_parts[2], 0, 59, null),
    durable._cron_field('hour', v_parts[3], 0, 23, null), durable._cron_field('day of month', v_parts[4], 1, 31, null),
    durable._cron_field('month', v_parts[5], 1, 12,
                        '{JANUARY,FEBRUARY,MARCH,APRIL,MAY,JUNE,JULY,AUGUST,SEPTEMBER,OCTOBER,NOVEMBER,DECEMBER}'),
    durable._cron_field('day of week', v_parts[6], 0, 6,
                        '{SUNDAY,MONDAY,TUESDAY,WEDNESDAY,THURSDAY,FRIDAY,SATURDAY}'),
    v_parts[4] !~ '^[*?]' and v_parts[6] !~ '^[*?]', v_parts[2] like '*%' or v_parts[3] like '*%';
end
$$;
comment on function durable._cron_fields(text) is
  'A cron expression as sets of values, null for any; weekdays from Sunday = 0. either: both day fields are restricted (neither begins with * or ?), so a day needs to match only one of them, as in Vixie''s cron. wild: minute or hour begins with *. WF004.';

create or replace function durable._cron_day(
  p_months integer[], p_days integer[], p_weekdays integer[], p_either boolean, p_from date, p_last date)
returns date language plpgsql immutable
as $$
declare
  v_day date := p_from;
  v_number integer;
  v_left integer;
  v_weekday integer;
  v_by_number boolean;
  v_by_name boolean;
begin
  while v_day <= p_last loop
    if not coalesce(extract(month from v_day)::integer = any (p_months), true) then
      v_day := (v_day - extract(day from v_day)::integer + 1 + interval '1 month')::date;
      continue;
    end if;
    v_number := extract(day from v_day);
    v_weekday := extract(dow from v_day);
    v_left := (date_trunc('month', v_day) + interval '1 month')::date - v_day;
    v_by_number := coalesce(array[v_number, -v_left] && p_days, true);
    v_by_name := coalesce(
      array[v_weekday, v_weekday + 7 * ((v_number + 6) / 7), case when v_left <= 7 then v_weekday + 42 end] && p_weekdays, true);
    if (v_by_number and v_by_name) or (p_either and (v_by_number or v_by_name)) then
      return v_day;
    end if;
    v_day := v_day + 1;
  end loop;
  return null;
end
$$;
comment on function durable._cron_day(integer[], integer[], integer[], boolean, date, date) is
  'The first matching day of the calendar from p_from to p_last, or null.';

create or replace function durable._at_least(p_set integer[], p_value integer, p_high integer)
returns integer language plpgsql immutable
as $$
declare
  v_each integer;
begin
  if p_set is null then
    return case when p_value <= p_high then p_value end;
  end if;
  foreach v_each in array p_set loop
    if v_each >= p_value then
      return v_each;
    end if;
  end loop;
  return null;
end
$$;
comment on function durable._at_least(integer[], integer, integer) is
  'The first value of an ordered set that is not below p_value, or null; a null set has all values up to p_high.';

create or replace function durable._cron_time(p_hours integer[], p_minutes integer[], p_seconds integer[], p_from bigint)
returns integer language plpgsql immutable
as $$
declare
  v_from constant bigint := greatest(p_from, 0);
  v_hour integer;
  v_minute integer;
  v_second integer;
begin
  if v_from >= 86400 then
    return null;
  end if;
  v_hour := durable._at_least(p_hours, (v_from / 3600)::integer, 23);
  if v_hour = v_from / 3600 then
    v_minute := durable._at_least(p_minutes, (v_from / 60 % 60)::integer, 59);
    if v_minute = v_from / 60 % 60 then
      v_second := durable._at_least(p_seconds, (v_from % 60)::integer, 59);
      if v_second is null then
        v_minute := durable._at_least(p_minutes, v_minute + 1, 59);
      end if;
    end if;
    if v_minute is null then
      v_hour := durable._at_least(p_hours, v_hour + 1, 23);
    end if;
  end if;
  return v_hour * 3600 + coalesce(v_minute, durable._at_least(p_minutes, 0, 59)) * 60
         + coalesce(v_second, durable._at_least(p_seconds, 0, 59));
end
$$;
comment on function durable._cron_time(integer[], integer[], integer[], bigint) is
  'The first matching time of a day that is not before p_from, both in seconds since midnight; null if there is none.';

create or replace function durable._utc_offset(p_timezone text, p_at bigint)
returns bigint language sql stable parallel safe
as $$ select extract(epoch from timezone(p_timezone, to_timestamp(p_at)))::bigint - p_at $$;
comment on function durable._utc_offset(text, bigint) is
  'The seconds by which local time is ahead of UTC at an instant, in seconds since the epoch.';

create or replace function durable._clock_change(p_timezone text, p_from bigint, p_to bigint)
returns bigint language plpgsql stable
as $$
declare
  v_before constant bigint := durable._utc_offset(p_timezone, p_from);
  v_from bigint := p_from;
  v_to bigint := p_to;
begin
  while v_to - v_from > 1 loop
    if durable._utc_offset(p_timezone, (v_from + v_to) / 2) = v_before then
      v_from := (v_from + v_to) / 2;
    else
      v_to := (v_from + v_to) / 2;
    end if;
  end loop;
  return v_to;
end
$$;
comment on function durable._clock_change(text, bigint, bigint) is
  'The first instant with the new offset, where the offsets at p_from and p_to differ and change once between.';

create or replace function durable._cron_in_day(
  p_hours integer[], p_minutes integer[], p_seconds integer[], p_wild boolean, p_timezone text, p_midnight bigint, p_after bigint)
returns bigint language plpgsql stable
as $$
declare
  v_old constant bigint := durable._utc_offset(p_timezone, p_midnight - 86400);
  v_new constant bigint := durable._utc_offset(p_timezone, p_midnight + 172800);
  v_change bigint;
  v_at bigint;
begin
  v_at := p_midnight - v_old + durable._cron_time(p_hours, p_minutes, p_seconds, p_after + 1 + v_old - p_midnight);
  if v_old = v_new then
    return v_at;
  end if;
  v_change := durable._clock_change(p_timezone, p_midnight - 86400, p_midnight + 172800);
  if v_at < v_change then
    return v_at;
  end if;
  if not p_wild and v_new > v_old and p_after < v_change and v_change + v_new > p_midnight + durable._cron_time(
      p_hours, p_minutes, p_seconds, v_change + v_old - p_midnight) then
    return v_change;
  end if;
  return p_midnight - v_new + durable._cron_time(p_hours, p_minutes, p_seconds, greatest(
    p_after + 1 + v_new, v_change + v_new, case when not p_wild then v_change + v_old end) - p_midnight);
end
$$;
comment on function durable._cron_in_day(integer[], integer[], integer[], boolean, text, bigint, bigint) is
  'The first instant after p_after in one local day, or null. p_midnight is the midnight of the day as if it were UTC; all in seconds. On a day near a change of clocks: first times before the change, then those in the gap, then those after it, without given times that have passed already.';

create or replace function durable._cron_instants(
  p_cron text, p_timezone text, p_after bigint, p_until bigint, p_most integer)
returns bigint[] language plpgsql stable
as $$
declare
  v_fields record;
  v_after bigint := floor(p_after / 1000.0)::bigint;
  v_day date;
  v_last date;
  v_at bigint;
  v_instants bigint[] := '{}';
begin
  select * into v_fields from durable._cron_fields(p_cron) f;
  loop
    v_day := timezone(p_timezone, to_timestamp(v_after + 1))::date - 1;
    v_last := (v_day + interval '97 months')::date;
    v_at := null;
    loop
      v_day := durable._cron_day(v_fields.months, v_fields.days, v_fields.weekdays, v_fields.either, v_day, v_last);
      exit when v_day is null;
      v_at := least(v_at, durable._cron_in_day(v_fields.hours, v_fields.minutes, v_fields.seconds, v_fields.wild, p_timezone,
                                               (v_day - date '1970-01-01') * 86400::bigint, v_after));
      -- clocks that are set back over midnight make days overlap, so the next day is checked too
      v_last := case when v_at is null then v_last else least(v_last, v_day + 1) end;
      v_day := v_day + 1;
    end loop;
    v_instants := v_instants || v_at * 1000;
    exit when v_at is null or v_at * 1000 > p_until or cardinality(v_instants) > p_most;
    v_after := v_at;
  end loop;
  return v_instants;
end
$$;
comment on function durable._cron_instants(text, text, bigint, bigint, integer) is
  'The instants after p_after up to p_until, p_most of them at most, and then the next one after them: null if there is none within eight years, the longest interval between two 29 February. All in ms. WF004; 22023 for an unknown time zone.';
