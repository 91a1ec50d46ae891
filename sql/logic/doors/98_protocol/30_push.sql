-- Messages that a courier pushes: it claims unblocks for each address as far as that has room, holds what it sends, and gives
-- up what could not be delivered for too long. Tasks it takes by task_offer_many, where an http address is a member.

create or replace function durable.unblock_claim_each(
  p_addresses text[], p_limits integer[], p_ttl_ms integer default 5000)
returns table (promise_id text, address text, attempt integer, age_ms bigint, promise jsonb) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if p_addresses is null or cardinality(p_addresses) is distinct from cardinality(p_limits) then
    perform durable._fail_invalid('Messages for each of these addresses: a limit for each of them.');
  end if;
  for n in 1 .. cardinality(p_addresses) loop
    return query
      select c.promise_id, c.address, c.attempt, v_now - u.created_at, durable._wire_promise(c.promise)
      from durable._claim_unblocks(array[p_addresses[n]], p_limits[n], p_ttl_ms, p_ttl_ms) c
      join durable._unblocks u on u.promise_id = any (array[c.promise_id]) and u.address is not distinct from c.address;
  end loop;
end
$$;
comment on function durable.unblock_claim_each(text[], integer[], integer) is
  'Unblock messages as durable.unblock_claim_many gives them, with a limit for each address: select * from durable.unblock_claim_each(array[''https://hook.example''], array[16]). age_ms: since when the message waits. WF004, WF016.';

create or replace function durable.unblock_defer_many(p_promise_ids text[], p_addresses text[], p_ms bigint[])
returns integer language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_count integer;
begin
  with deferred as materialized (
    select u.promise_id, u.address, d.ms
    from unnest(p_promise_ids, p_addresses, p_ms) as d (promise_id, address, ms)
    join durable._unblocks u on u.promise_id = any (array[d.promise_id]) and u.address is not distinct from d.address
    for update of u skip locked
  )
  update durable._unblocks u set claimed_until = v_now + least(d.ms, 2147483647) from deferred d
  where u.promise_id = any (array[d.promise_id]) and u.address is not distinct from d.address;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable.unblock_defer_many(text[], text[], bigint[]) is
  'Messages that are not to be claimed within so many ms from now: a request with them is open, or has failed. The promise, the address and the ms of each, at the same places. Answers how many there were; those that another session has locked stay as they are.';

create or replace function durable.task_offer_defer_many(p_ids text[], p_versions integer[], p_ms bigint[])
returns integer language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_count integer;
begin
  -- a pending task has a retry_at; its state would allow the index of all ready tasks
  with deferred as materialized (
    select t.id, d.ms
    from unnest(p_ids, p_versions, p_ms) as d (id, version, ms)
    join durable._tasks t on t.id = any (array[d.id]) and t.version = d.version and t.retry_at is not null
    for update of t skip locked
  )
  update durable._tasks t set retry_at = greatest(t.retry_at, v_now + d.ms) from deferred d where t.id = any (array[d.id]);
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable.task_offer_defer_many(text[], integer[], bigint[]) is
  'Tasks at these versions that are not to be offered within so many ms from now, because a request that offers them is open. The id, the version and the ms of each, at the same places. Answers how many still waited to be acquired.';

create or replace function durable.unblock_expire(p_address text, p_age_ms bigint)
returns integer language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_count integer;
begin
  with next_due as materialized (
    select u.promise_id, u.created_at from durable._unblocks u
    where u.address = p_address order by u.claimed_until limit 1000 for update skip locked
  )
  delete from durable._unblocks u using next_due d
  where d.created_at <= v_now - p_age_ms
    and u.promise_id = any (array[d.promise_id]) and u.address is not distinct from p_address;
  get diagnostics v_count = row_count;
  return v_count;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable.unblock_expire(text, bigint) is
  'Deletes messages for an address that have waited for p_age_ms or more, because it cannot be reached: of the 1000 that are due first. Answers how many.';
