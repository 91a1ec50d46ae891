-- Which runs have ended so: the filter of fork_many, beside matching_runs for those that live. Failed ones are found by the
-- index of their instants. Completed ones are in no index, because a completion must not write one: the heads of all runs are
-- walked from the newest on, and an instant of start ends that walk.

create or replace function durable._has_error(p_state text, p_value text, p_error text)
returns boolean language sql stable
as $$ select coalesce(durable._json(durable._error_of(p_state, p_value)) ->> 'type' = p_error, false) $$;
comment on function durable._has_error(text, text, text) is
  'True if a run with this end failed with an error of this class; a class has its name without its module.';

create or replace function durable._matching_failed(
  p_workflow text, p_state text, p_tags jsonb, p_error text, p_ended tstzrange, p_started tstzrange, p_after durable._promises,
  p_at_most integer)
returns text[] language plpgsql stable
as $$
begin
  return array(
    select p.id from durable._promises p
    cross join lateral (select h.workflow from durable._executions h where h.execution = p.head offset 0) h
    where isfinite(p.failed_at) and p.failure = p_state
      and p.failed_at >= coalesce(lower(p_ended), '-infinity') and p.failed_at <= coalesce(p_after.failed_at, 'infinity')
      and p.failed_at < coalesce(upper(p_ended), 'infinity')
      and (p_after.id is null or p.failed_at < p_after.failed_at or p.id < p_after.id)
      and (p_workflow is null or h.workflow = p_workflow) and (p_tags is null or p.tags @> p_tags)
      and p_started @> durable._at(p.created_at) and (p_error is null or durable._has_error(p.state, p.value_data, p_error))
    order by p.failed_at desc, p.id desc limit p_at_most);
end
$$;
comment on function durable._matching_failed(
  text, text, jsonb, text, tstzrange, tstzrange, durable._promises, integer) is
  'Runs that failed, timed out or were cancelled within a span, the latest end first, from a run on. A portion reads what failed in the span before that run.';

create or replace function durable._matching_heads(
  p_workflow text, p_state text, p_tags jsonb, p_error text, p_ended tstzrange, p_started tstzrange, p_after bigint,
  p_at_most integer)
returns text[] language plpgsql stable
as $$
declare
  v_one record;
  v_found text[] := '{}';
  v_earlier integer := 0;
begin
  for v_one in
    select h.workflow, h.previous, p.id, p.state, p.value_data, p.tags, durable._at(p.created_at) as born,
           durable._at(p.settled_at) as ended
    from durable._executions h
    cross join lateral (select r.* from durable._promises r where r.id = h.id offset 0) p
    where h.execution < coalesce(p_after, 9223372036854775807) and p.head = h.execution
    order by h.execution desc
  loop
    v_earlier := case when v_one.previous is not null then v_earlier
                      when v_one.born < lower(p_started) then v_earlier + 1 else 0 end;
    if v_one.state <> 'pending' and (p_state is null or v_one.state = 'resolved')
       and p_ended @> v_one.ended and p_started @> v_one.born
       and (p_workflow is null or v_one.workflow = p_workflow) and (p_tags is null or v_one.tags @> p_tags)
       and (p_error is null or durable._has_error(v_one.state, v_one.value_data, p_error)) then
      v_found := v_found || v_one.id;
    end if;
    exit when cardinality(v_found) = p_at_most or v_earlier = 1000;
  end loop;
  return v_found;
end
$$ set enable_sort = off set jit = off;
comment on function durable._matching_heads(
  text, text, jsonb, text, tstzrange, tstzrange, bigint, integer) is
  'Runs that completed, or that ended in any way (no state), the newest first, from a run on. Heads are numbered in the order of births, except among starts that are under way together, so a thousand that were all born before the span end the walk.';

create or replace function durable.matching_ended_runs(
  workflow text default null, state text default null, tags jsonb default null, error text default null,
  ended_after timestamptz default null, ended_before timestamptz default null, started_after timestamptz default null,
  started_before timestamptz default null, after text default null, at_most integer default 1000)
returns text[] language plpgsql volatile
as $$
declare
  v_last durable._promises;
begin
  if $2 not in ('completed', 'failed', 'timed_out', 'cancelled') then
    perform durable._fail_invalid(
      format('%L is no state of a run that has ended.', $2),
      'The states are completed, failed, timed_out and cancelled; null means any. durable.matching_runs has the others.');
  elsif $10 is null or $10 not between 1 and 10000 then
    perform durable._fail_invalid('at_most is between 1 and 10000.', 'Take the rest with after => the last id of the answer.');
  elsif $3 is not null and not durable._are_tags($3) then
    perform durable._fail_invalid('Tags are a JSON object of strings.');
  elsif $5 >= $6 or $7 >= $8 then
    perform durable._fail_invalid('A span of instants begins before it ends.');
  end if;
  if $9 is not null then
    select * into v_last from durable._promises p where p.id = $9 and p.head is not null;
    if not found then
      perform durable._fail_not_found('run', $9, 'It was removed meanwhile: begin again without after.');
    end if;
  end if;
  return case when $2 in ('failed', 'timed_out', 'cancelled')
    then durable._matching_failed($1, $2, $3, $4, tstzrange($5, $6), tstzrange($7, $8), v_last, $10)
    else durable._matching_heads($1, $2, $3, $4, tstzrange($5, $6), tstzrange($7, $8), v_last.head, $10) end;
end
$$;
comment on function durable.matching_ended_runs(
  text, text, jsonb, text, timestamptz, timestamptz, timestamptz, timestamptz, text, integer) is
  'Ids of runs that have ended, child runs included: select durable.matching_ended_runs(workflow => ''pay'', state => ''failed'', ended_after => now() - interval ''1 hour''). By workflow, state, tags, class of the error (without its module), and instants of end and of start (from, to before). The latest come first, at_most so many (1000); for the next portion: after => the last id. Failed, timed_out and cancelled ones cost what ended so in the span; completed ones, and all (no state), are looked for among all runs from the newest on, back to started_after: give it where there are many. WF001 after is gone, WF004.';
