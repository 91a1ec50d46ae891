-- Tombstones: ids that were removed are not used again. Every entry point that creates an object under a given id calls this
-- check. Retention itself stands in 87_retention.

create or replace function durable._check_removed(
  p_ids text[], p_workflow text default null, p_tenant text default null, p_keys text[] default null)
returns void language plpgsql stable
as $$
declare
  v_one durable._removed;
begin
  select * into v_one from durable._removed r where r.id = any (p_ids) limit 1;
  if not found and p_keys is not null then
    select * into v_one from durable._removed r
    where r.tenant = p_tenant and r.workflow = p_workflow and r.key = any (p_keys) limit 1;
  end if;
  if v_one.id is not null then
    perform durable._fail_conflict(
      format('%s %L ended as %s at %s and was removed.', case when v_one.workflow is null then 'Promise' else 'Run' end, v_one.id,
             v_one.state, durable._at(v_one.ended_at))
        || case when v_one.key is null then '' else format(' It had the key %L.', v_one.key) end,
      'It does not run a second time: use another id or key, or none. Setting removed_ids_days says how long it is remembered.');
  end if;
end
$$;
comment on function durable._check_removed(text[], text, text, text[]) is
  'Refuses ids and keys of removed objects. The caller has the locks of starts for them, or its insert meets the row. WF003.';
