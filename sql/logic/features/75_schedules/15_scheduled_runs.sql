-- Runs of schedules: the id and the arguments of the run of one instant, and its start. A run of a schedule begins like any
-- other, at the time at which the schedule fires; its id and its arguments name the instant.

create or replace function durable._expansion(p_template text, p_id text, p_at bigint)
returns text language sql immutable parallel safe
as $$ select replace(replace(p_template, '{{.timestamp}}', p_at::text), '{{.id}}', p_id) $$;
comment on function durable._expansion(text, text, bigint) is
  'The id of the promise of one instant. The schedule''s id is inserted last, so that no part of it is taken for a placeholder.';

create or replace function durable._instant_text(p_at bigint, p_timezone text)
returns text language sql stable
as $$
  select to_char(timezone(p_timezone, durable._at(p_at)), 'YYYY-MM-DD"T"HH24:MI:SS')
         || case when z.seconds < 0 then '-' else '+' end || lpad((abs(z.seconds) / 3600)::text, 2, '0')
         || ':' || lpad((abs(z.seconds) / 60 % 60)::text, 2, '0')
  from (select durable._utc_offset(p_timezone, p_at / 1000) as seconds) z
$$;
comment on function durable._instant_text(bigint, text) is
  'An instant as the clocks of a time zone show it, with its offset: 2026-03-01T03:00:00+01:00. So its date is the date there.';

create or replace function durable._occurrence_id(p_schedule durable._schedules, p_at bigint)
returns text language sql stable
as $$
  select durable._expansion(
    case when p_schedule.workflow is null then p_schedule.promise_id
         else replace(p_schedule.promise_id, '{{.instant}}',
                      to_char(timezone('UTC', durable._at(p_at)), 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) end, p_schedule.id, p_at)
$$;
comment on function durable._occurrence_id(durable._schedules, bigint) is
  'The id of the promise or run of one instant.';

create or replace function durable._runs_of_schedule(p_schedule text, p_before text, p_most integer)
returns setof text language sql stable
as $$
  with recursive run (id) as (
    select p_before collate "C"
    union all
    -- ids of runs have one length, and what lies below a run begins with its id: from run to run, whatever lies between
    select (select left(p.id, length(p_schedule) + 21) from durable._promises p
            where p.id >= p_schedule || '-0' and p.id < r.id order by p.id desc limit 1)
    from run r where r.id is not null)
  select r.id from run r where r.id is not null offset 1 limit p_most
$$;
comment on function durable._runs_of_schedule(text, text, integer) is
  'The ids of the latest runs of a schedule before an id, the latest first: one descent of an index for each.';

create or replace function durable._last_result(p_schedule durable._schedules, p_at bigint)
returns text language plpgsql stable
as $$
declare
  v_before constant text := durable._occurrence_id(p_schedule, p_at);
  v_result text := (
    select durable._from_envelope(p.value_data)
    from durable._runs_of_schedule(p_schedule.id, v_before, 100) r
    join durable._promises p on p.id = any (array[r])
    where p.state = 'resolved' and p.tags ->> 'resonate:schedule' = p_schedule.id
    order by p.id desc limit 1);
begin
  return case when durable._json(v_result) is null then 'null' else v_result end;
end
$$;
comment on function durable._last_result(durable._schedules, bigint) is
  'The result of the run of the latest instant before this one that has completed, as JSON text; null if none of 100 has.';

create or replace function durable._input_at(p_schedule durable._schedules, p_at bigint, p_begins_at bigint)
returns text language plpgsql stable
as $$
declare
  v_text text := p_schedule.promise_param_data;
begin
  if strpos(v_text, '{{.') = 0 then
    return v_text;
  end if;
  v_text := replace(replace(replace(v_text, '{{.instant}}', durable._instant_text(p_at, p_schedule.timezone)),
                            '{{.timestamp}}', p_at::text),
                    '{{.fired_at}}', durable._instant_text(p_begins_at, p_schedule.timezone));
  -- last, because a result is no template
  return case when strpos(v_text, '"{{.last_result}}"') = 0 then v_text
              else replace(v_text, '"{{.last_result}}"', durable._last_result(p_schedule, p_at)) end;
end
$$;
comment on function durable._input_at(durable._schedules, bigint, bigint) is
  'The arguments of the run of one instant, which begins at p_begins_at, as JSON text. An instant needs no escapes in JSON.';

create or replace function durable._start_occurrences(p_schedule durable._schedules, p_instants bigint[])
returns text[] language plpgsql volatile
as $$
declare
  v_request durable._start_request := row(
    p_schedule.workflow, null, null, null, null, p_schedule.queue, p_schedule.workflow_version, null,
    nullif(p_schedule.promise_timeout, durable._never()), p_schedule.priority,
    p_schedule.promise_tags || jsonb_build_object('resonate:schedule', p_schedule.id), p_schedule.tenant, true);
  v_begins_at bigint := durable._now_ms();
  v_ids text[];
  v_texts text[];
begin
  if p_schedule.jitter > 0 then
    v_begins_at := greatest(v_begins_at, p_instants[1] + abs(
      hashtextextended(durable._occurrence_id(p_schedule, p_instants[1]), 0) % (p_schedule.jitter + 1)));
    v_request.delay_ms := v_begins_at - durable._now_ms();
  end if;
  select array_agg(o.id order by i.at), array_agg(durable._input_at(p_schedule, i.at, v_begins_at) order by i.at)
  into v_ids, v_texts
  from unnest(p_instants) as i (at)
  cross join lateral (select durable._occurrence_id(p_schedule, i.at) as id) o
  where not exists (select from durable._removed r where r.id = any (array[o.id]))
    and not exists (select from durable._promises c where c.id >= o.id || '.' and c.id < o.id || '/');
  if v_ids is null or durable._insert_runs(v_request, v_texts, v_ids, null) = '{}' then
    return '{}';
  end if;
  return array[p_schedule.queue];
end
$$;
comment on function durable._start_occurrences(durable._schedules, bigint[]) is
  'Starts the runs of instants of a locked schedule whose names are locked too. An id that exists, or that was removed, is left as it is: its instant passes. Waits only for a session that is just creating the same id. A schedule with a jitter fires one instant at a time. Answers the queue, if a run began.';
