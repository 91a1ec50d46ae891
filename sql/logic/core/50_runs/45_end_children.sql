-- A tick cancels the child runs that their parents have left (30_promises/15_left_children.sql) with all that is below them, as a
-- cancellation by hand does, but without waiting for anybody.

create or replace function durable._cancel_children(
  p_limit integer, out asked integer, out full_batch boolean, out locked text[], out queues text[])
language plpgsql volatile
as $$
declare
  v_numbers bigint[];
  v_family text[];
  v_ids text[];
  v_missed text[];
  v_chain record;
  v_reason text;
  v_now bigint;
begin
  asked := 0; full_batch := false; locked := '{}'; queues := '{}';
  if not exists (select from durable._cancellations) then
    return;
  end if;
  v_numbers := durable._try_lock_cancellations(p_limit);
  for v_reason, v_family in
    select c.reason::text, array_agg(distinct c.id) from durable._cancellations c
    where c.number = any (v_numbers) group by c.reason order by c.reason
  loop
    v_family := durable._family(v_family, false);
    v_ids := array(select unnest(v_family) except select unnest(durable._try_lock_promises(v_family)));
    select * into v_chain from durable._try_lock_settlement(v_ids) c;
    -- what was missed, or was started since the query, is asked again by itself: no cancellation reaches below a run twice
    v_missed := array(select unnest(durable._family(v_family, false)) except select unnest(v_chain.ids));
    perform durable._ask_to_cancel(v_missed, v_reason::jsonb);
    locked := (locked || v_missed)[1:100];
    v_now := durable._now_ms();
    v_ids := array(select t.id from durable._tasks t where t.id = any (v_chain.ids) and t.deadline > v_now);
    queues := queues || durable._cancel_locked(v_ids, v_reason, durable._grace_ms(null), false, v_now);
    asked := asked + cardinality(v_ids);
  end loop;
  delete from durable._cancellations c where c.number = any (v_numbers);
  -- those that somebody holds are no reason for the next tick at once
  full_batch := cardinality(v_numbers) = p_limit and asked > 0;
end
$$;
comment on function durable._cancel_children(integer) is
  'Cancels the child runs that their parents have left, with the runs below them and the setting cancel_grace_ms. locked: those that other sessions have locked now.';
