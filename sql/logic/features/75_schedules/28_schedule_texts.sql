-- Expressions of schedules in words, for people who do not read cron.

create or replace function durable._field_text(p_text text, p_low integer, p_names text[])
returns text language plpgsql immutable
as $$
declare
  v_text text := '';
  v_part text;
begin
  for v_part in select m[1] from regexp_matches(p_text, '([0-9]+|[A-Za-z]+|[^0-9A-Za-z]+)', 'g') m loop
    v_text := v_text || case
      when v_part = '-' then ' to ' when v_part = ',' then ', ' when v_part = '/' then ', in steps of '
      when v_text like '% in steps of ' or p_names is null then v_part
      else coalesce(initcap(
        p_names[(durable._cron_value(v_part, p_low, p_names) - p_low) % cardinality(p_names) + 1]), v_part) end;
  end loop;
  return v_text;
end
$$;
comment on function durable._field_text(text, integer, text[]) is
  'One field in words: ranges, lists and names. p_low: the number of the first name.';

create or replace function durable._day_text(p_day text, p_weekday text)
returns text language plpgsql immutable
as $$
declare
  v_names constant text[] := '{SUNDAY,MONDAY,TUESDAY,WEDNESDAY,THURSDAY,FRIDAY,SATURDAY}';
  v_nth constant text[] := regexp_match(p_weekday, '^([0-7]|[A-Za-z]{3,9})(L|l|#([1-5]))$');
  v_by_day constant text := case
    when p_day in ('*', '?') then null when upper(p_day) = 'L' then 'on the last day of the month'
    else 'on day ' || durable._field_text(p_day, 1, null) || ' of the month' end;
  v_by_weekday constant text := case
    when p_weekday in ('*', '?') then null
    when v_nth is not null then format(
      'on the %s %s of the month', coalesce(('{first,second,third,fourth,fifth}'::text[])[v_nth[3]::integer], 'last'),
      durable._field_text(v_nth[1], 0, v_names))
    else 'on ' || durable._field_text(p_weekday, 0, v_names) end;
begin
  return concat_ws(case when p_day like '*%' or p_weekday like '*%' then ' and ' else ' or ' end, v_by_day, v_by_weekday);
end
$$;
comment on function durable._day_text(text, text) is 'The days of a cron expression in words; empty: every day.';

create or replace function durable._time_text(p_second text, p_minute text, p_hour text)
returns text language sql immutable
as $$
  select case when p_second in ('0', '00') then '' when p_second = '*' then 'every second, '
              when p_second like '*/%' then format('every %s seconds, ', substr(p_second, 3))
              else format('at second %s, ', durable._field_text(p_second, 0, null)) end
         || case when p_minute ~ '^[0-9]+$' and p_hour ~ '^[0-9]+(,[0-9]+)*$'
                   then 'at ' || (select string_agg(lpad(h, 2, '0') || ':' || lpad(p_minute, 2, '0'), ', ' order by h::integer)
                                  from regexp_split_to_table(p_hour, ',') h)
                 when p_minute = '*' and p_hour = '*' then 'every minute'
                 when p_minute like '*/%' and p_hour = '*' then format('every %s minutes', substr(p_minute, 3))
                 else case when p_minute = '*' then 'every minute'
                           when p_minute like '*/%' then format('every %s minutes', substr(p_minute, 3))
                           else 'at minute ' || durable._field_text(p_minute, 0, null) end
                      || case when p_hour = '*' then ' of every hour'
                              when p_hour like '*/%' then format(' of every %s hours', substr(p_hour, 3))
                              else ' of hour ' || durable._field_text(p_hour, 0, null) end end
$$;
comment on function durable._time_text(text, text, text) is 'The times of a cron expression in words.';

create or replace function durable._cron_text(p_cron text)
returns text language plpgsql immutable
as $$
declare
  v_parts text[] := regexp_split_to_array(durable._cron_alias(p_cron), E'[ \t\n\r]+');
begin
  if p_cron ~* '^every' then
    return lower(p_cron);
  elsif p_cron ~* '^at' then
    return 'once, ' || lower(left(p_cron, 2)) || substr(p_cron, 3);
  elsif cardinality(v_parts) = 5 then
    v_parts := array_prepend('0', v_parts);
  end if;
  return concat_ws(
    ' ', durable._time_text(v_parts[1], v_parts[2], v_parts[3]), nullif(durable._day_text(v_parts[4], v_parts[6]), ''),
    case when v_parts[5] <> '*' then 'in ' || durable._field_text(
      v_parts[5], 1, '{JANUARY,FEBRUARY,MARCH,APRIL,MAY,JUNE,JULY,AUGUST,SEPTEMBER,OCTOBER,NOVEMBER,DECEMBER}') end);
end
$$;
comment on function durable._cron_text(text) is 'One expression in words.';

create or replace function durable._schedule_text(p_when text, p_timezone text)
returns text language plpgsql stable
as $$
begin
  return (select string_agg(durable._cron_text(u.x), '; and ' order by u.n)
          from unnest(durable._when_parts(p_when)) with ordinality u (x, n)) || ', ' || p_timezone;
end
$$;
comment on function durable._schedule_text(text, text) is
  'When a schedule fires, in words and in its own zone: at 03:00 on Monday to Friday, Europe/Berlin.';
