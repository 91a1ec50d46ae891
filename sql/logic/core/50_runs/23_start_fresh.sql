-- Skip this file on a first reading. It starts runs whose ids were drawn at random for this call, by one statement for all of
-- them: a client that has several starts of one workflow at the same time sends them together. Any other case is left to a call
-- for each, and nothing is written.

create or replace function durable._are_fresh(p_args text[], p_ids text[])
returns boolean language sql stable
as $$
  select coalesce(bool_and(coalesce(
           u.id ~ '^[0-9a-f]{32}$' and jsonb_typeof(u.args::jsonb) in ('array', 'object')
           and octet_length(u.args) <= durable._setting_int('payload_max_bytes') and not durable._is_deep(u.args::jsonb),
           false)), false)
  from unnest(p_args, p_ids) as u (args, id)
$$;
comment on function durable._are_fresh(text[], text[]) is
  'True if each of these runs has arguments that pass the checks of a start, and an id that looks like one drawn at random.';

create or replace function durable.start_fresh_v1(
  p_workflow text, p_queue text, p_version text, p_delay_ms bigint, p_timeout_ms bigint, p_priority integer, p_tags jsonb,
  p_tenant text, p_any_workflow boolean, p_args text[], p_ids text[], p_notify boolean)
returns boolean language plpgsql volatile
as $$
declare
  v_request durable._start_request := row(
    p_workflow, '[]', '[]', null, null, coalesce(p_queue, durable._own_queue(p_workflow, p_version)), p_version, p_delay_ms,
    p_timeout_ms, p_priority, p_tags, p_tenant, p_any_workflow);
begin
  if cardinality(p_args) is distinct from cardinality(p_ids) or durable._is_surely_valid(v_request) is not true
     or not durable._are_fresh(p_args, p_ids) then
    return false;
  end if;
  if not p_any_workflow then
    perform durable._check_workflow(p_workflow);
  end if;
  perform durable._adopt_idle_copy();
  perform durable._insert_fresh_runs(v_request, p_args, p_ids, durable._now_ms());
  if p_notify then
    perform durable._notify('durable_ready');
  end if;
  return true;
end
$$;
comment on function durable.start_fresh_v1(
  text, text, text, bigint, bigint, integer, jsonb, text, boolean, text[], text[], boolean) is
  'For clients of the package: starts runs of one workflow, one for each of p_ids, which the caller drew at random for this call. p_notify: notifies workers with the commit. True: all were started. False: none was, and a call of durable.start_v1 for each run starts it or says what is wrong with it. WF001; 23505 if one of the ids exists, because the call was sent twice.';
