-- Messages of the older API: invoke, resume and notify, made from execute and unblock of the newer one. Order, offers and
-- repetition are those of task_offer and unblock_claim; only names and forms differ.

create or replace function durable._task_messages_v0(p_ids text[], p_versions integer[])
returns setof jsonb language plpgsql stable
as $$
begin
  return query
    select jsonb_build_object(
      'type', case when r.leaves is null then 'invoke' else 'resume' end,
      'task', jsonb_strip_nulls(jsonb_build_object('id', o.id, 'counter', o.version + 1, 'rootPromiseId', o.id,
                                                   'leafPromiseIds', r.leaves)))
    from unnest(p_ids, p_versions) with ordinality as o (id, version, ord)
    cross join lateral (
      select jsonb_agg(x.awaited_id order by x.awaited_id) as leaves from durable._resumes x where x.task_id = any (array[o.id])
    ) r
    order by o.ord;
end
$$;
comment on function durable._task_messages_v0(text[], integer[]) is
  'One message for each offered task: resume, with the promises that completed since it was last acquired as leaves; else invoke.';

create or replace function durable.messages_v0(p_address text, p_limit integer default 100)
returns setof jsonb language plpgsql volatile
as $$
declare
  v_address text := durable._canonical_address(p_address);
  v_ids text[];
  v_versions integer[];
begin
  if v_address is null then
    perform durable._fail_invalid(format('Address %L cannot be routed.', p_address));
  elsif p_limit is null or p_limit not between 1 and 1000 then
    perform durable._fail_invalid(format('A look takes 1 to 1000 messages, not %s.', coalesce(p_limit::text, 'null')));
  end if;
  select array_agg(o.id order by o.ord), array_agg(o.version order by o.ord) into v_ids, v_versions
  from durable.task_offer(durable._queue_of(v_address), p_limit, durable._preference_of(v_address))
    with ordinality as o (id, version, headers, ord);
  return query select t.m from durable._task_messages_v0(v_ids, v_versions) as t (m);
  return query
    select jsonb_build_object('type', 'notify', 'promise', durable._read_v0(u.promise_id, 0), 'address', u.address)
    from durable.unblock_claim(durable._canonical_listener(p_address), p_limit) u;
end
$$;
comment on function durable.messages_v0(text, integer) is
  'Older API: the messages for an address, at most p_limit of tasks and as many notifications. Tasks: task_claim_v0 takes the counter; they come again after retry_offer_ms until a process acquires them. Notifications come again until unblock_acknowledge(promise, address). WF004.';
