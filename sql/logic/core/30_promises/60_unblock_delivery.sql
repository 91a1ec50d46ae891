-- Delivery of unblock messages: a courier claims them, a message that is not acknowledged is claimed again, an acknowledged one
-- is deleted. A gateway decides itself which messages it puts off; for other couriers claims grow longer with each attempt.

create or replace function durable._try_lock_due_unblocks(p_addresses text[], p_limit integer, p_now bigint)
returns table (promise_id text, address text) language plpgsql volatile
as $$
begin
  if p_addresses is null then
    return query
      select u.promise_id, u.address from durable._unblocks u
      where u.claimed_until <= p_now order by u.claimed_until limit p_limit for update skip locked;
  else
    return query
      select d.promise_id, d.address from unnest(p_addresses) as a (address)
      cross join lateral (
        select u.promise_id, u.address from durable._unblocks u
        where u.address = a.address and u.claimed_until <= p_now
        order by u.claimed_until limit p_limit for update skip locked) d
      limit p_limit;
  end if;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._try_lock_due_unblocks(text[], integer, bigint) is
  'Locks messages that are due: never claimed, or claimed and not acknowledged in time. Skips those that another courier has locked.';

create or replace function durable._claim_unblocks(p_addresses text[], p_limit integer, p_ttl_ms integer, p_max_ms integer)
returns table (promise_id text, address text, attempt integer, promise durable.promise_record)
language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if p_limit is null or p_limit not between 1 and 1000 or p_ttl_ms is null or p_ttl_ms < 1 then
    perform durable._fail_invalid('A claim takes 1 to 1000 messages, each for at least 1 ms.');
  end if;
  perform durable._check_site();
  return query
  with due as materialized (
    select d.promise_id, d.address from durable._try_lock_due_unblocks(p_addresses, p_limit, v_now) d
  ), claimed as (
    update durable._unblocks u
    set attempts = u.attempts + 1,
        claimed_until = v_now + durable._backoff_ms(p_ttl_ms, p_max_ms, u.attempts)
    from due d where u.promise_id = any (array[d.promise_id]) and u.address is not distinct from d.address
    returning u.promise_id, u.address, u.attempts
  )
  select c.promise_id, c.address, c.attempts, durable._promise_record(p)
  from claimed c join durable._promises p on p.id = any (array[c.promise_id])
  order by c.promise_id, c.address;
end
$$;
comment on function durable._claim_unblocks(text[], integer, integer, integer) is
  'Claims messages for these addresses (null: for any), for p_ttl_ms, twice that with the next attempt, and so on up to p_max_ms. WF004.';

create or replace function durable.unblock_claim(
  p_address text default null, p_limit integer default 100, p_ttl_ms integer default 5000)
returns table (promise_id text, address text, attempt integer, promise durable.promise_record)
language plpgsql volatile
as $$
begin
  return query select * from durable._claim_unblocks(
    case when p_address is not null then array[p_address] end, p_limit, p_ttl_ms, greatest(p_ttl_ms, 3600000));
end
$$;
comment on function durable.unblock_claim(text, integer, integer) is
  'Messages "this promise settled" for an address (null: for any), to be delivered now. Each is handed out again after p_ttl_ms, twice that, and so on up to an hour, until unblock_acknowledge. WF004, WF016.';

create or replace function durable.unblock_acknowledge(p_promise_id text, p_address text)
returns boolean language plpgsql volatile
as $$
begin
  delete from durable._unblocks u where u.promise_id = p_promise_id and u.address is not distinct from p_address;
  return found;
end
$$;
comment on function durable.unblock_acknowledge(text, text) is
  'Deletes a message that its listener has. False if it was acknowledged before.';
