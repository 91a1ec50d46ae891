-- The words of durable.why: spans, instants, counts and errors as short texts, and a cause made of them. Instants are in the time
-- zone of the session.

create or replace function durable._span(p_ms bigint)
returns text language sql immutable parallel safe
as $$
  select case when p_ms < 1000 then greatest(p_ms, 0) || ' ms'
              when p_ms < 60000 then p_ms / 1000 || ' s'
              when p_ms < 3600000 then p_ms / 60000 || ' min'
              when p_ms < 172800000 then concat(p_ms / 3600000, ' h', ' ' || nullif(p_ms % 3600000 / 60000, 0) || ' min')
              else p_ms / 86400000 || ' d' end
$$;
comment on function durable._span(bigint) is 'A span as a short text, rounded down: 412 ms, 12 s, 3 min, 2 h 5 min, 9 d.';

create or replace function durable._clock_time(p_at bigint, p_now bigint)
returns text language sql stable
as $$
  select case when p_at is not null and durable._at(p_at) is null then 'never' else
    case durable._at(p_at)::date - durable._at(p_now)::date
      when 0 then '' when 1 then 'tomorrow ' when -1 then 'yesterday ' else to_char(durable._at(p_at), 'YYYY-MM-DD ') end
    || to_char(durable._at(p_at), case when abs(p_at - p_now) < 600000 then 'FMHH24:MI:SS' else 'FMHH24:MI' end) end
$$;
comment on function durable._clock_time(bigint, bigint) is
  'An instant as a short text: 9:00, 9:00:12 (within ten minutes), tomorrow 9:00, 2026-12-24 9:00, never.';

create or replace function durable._since(p_at bigint, p_now bigint)
returns text language sql stable
as $$ select coalesce(' since ' || durable._span(p_now - p_at), '') $$;
comment on function durable._since(bigint, bigint) is 'The part of a sentence that says since when; empty for null.';

create or replace function durable._until(p_at bigint, p_now bigint)
returns text language sql stable
as $$
  select case when durable._at(p_at) is null then ''
              else concat(', until ', durable._clock_time(p_at, p_now),
                          case when p_at - p_now < 3600000 then format(' (in %s)', durable._span(p_at - p_now)) end) end
$$;
comment on function durable._until(bigint, bigint) is
  'The part of a sentence that says until when: ", until tomorrow 9:00", ", until 16:05 (in 12 min)"; empty for null and for never.';

create or replace function durable._then(p_at bigint, p_now bigint)
returns text language sql stable
as $$
  select case when p_at <= p_now then 'now'
              when p_at - p_now < 3600000 then 'in ' || durable._span(p_at - p_now)
              else durable._clock_time(p_at, p_now) end
$$;
comment on function durable._then(bigint, bigint) is 'When something comes: now, in 12 s, tomorrow 9:00.';

create or replace function durable._times(p_count bigint)
returns text language sql immutable parallel safe
as $$ select case p_count when 1 then 'once' when 2 then 'twice' else p_count || ' times' end $$;
comment on function durable._times(bigint) is 'once, twice, 3 times.';

create or replace function durable._counted(p_count bigint, p_noun text)
returns text language sql immutable parallel safe
as $$ select p_count || ' ' || p_noun || case p_count when 1 then '' else 's' end $$;
comment on function durable._counted(bigint, text) is '1 worker, 3 workers.';

create or replace function durable._error_line(p_error jsonb)
returns text language sql immutable parallel safe
as $$
  select case when length(x.line) > 300 then left(x.line, 297) || '...' else x.line end
  from (select regexp_replace(
    case when jsonb_typeof(p_error) = 'object'
         then coalesce(nullif(concat_ws(': ', p_error ->> 'type', nullif(p_error ->> 'message', '')), ''), p_error::text)
         else coalesce(p_error #>> '{}', 'no reason given') end, E'\\s+', ' ', 'g') as line) x
$$;
comment on function durable._error_line(jsonb) is 'An error on one line: its class and its message, 300 characters at most.';

create or replace function durable._because(
  p_cause text, p_name text, p_sentence text, p_since bigint default null, p_until bigint default null,
  p_details jsonb default '{}', p_leads_to text default null)
returns durable._cause language sql immutable parallel safe
as $$
  select row(p_cause, p_name, p_sentence, p_since, nullif(p_until, durable._never()), jsonb_strip_nulls(p_details),
             p_leads_to)::durable._cause
$$;
comment on function durable._because(text, text, text, bigint, bigint, jsonb, text) is 'A cause. p_until: never means none.';
