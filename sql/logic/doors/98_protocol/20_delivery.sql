-- The questions of a gateway or a courier: which addresses have something due, and messages for many members in one call.
-- Nothing is held for a member meanwhile: an offered task comes again after retry_offer_ms, an unblock until it is acknowledged.

create or replace function durable._due_queues(p_now bigint)
returns setof text language plpgsql stable
as $$
begin
  return query
    with recursive queue (name) as (
      (select t.queue from durable._tasks t where t.state = 'pending' and t.workflow is null order by t.queue limit 1)
      union all
      select (select t.queue from durable._tasks t
              where t.state = 'pending' and t.workflow is null and t.queue > q.name order by t.queue limit 1)
      from queue q where q.name is not null
    )
    select q.name from queue q
    where exists (select from durable._tasks t
                  where t.queue = q.name and t.state = 'pending' and t.workflow is null and t.retry_at <= p_now
                    and t.deadline > p_now);
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._due_queues(bigint) is
  'Queues with a task that protocol clients serve and that is due. It steps from queue to queue along the index, however many tasks wait in each.';

create or replace function durable._due_listeners(p_now bigint)
returns setof text language plpgsql stable
as $$
begin
  return query
    with recursive listener (address) as (
      (select u.address from durable._unblocks u order by u.address limit 1)
      union all
      select (select u.address from durable._unblocks u where u.address > l.address order by u.address limit 1)
      from listener l where l.address is not null
    )
    select l.address from listener l
    where exists (select from durable._unblocks u where u.address = l.address and u.claimed_until <= p_now);
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._due_listeners(bigint) is 'Addresses with an unblock message that is due, found in the same way.';

create or replace function durable.addresses_due(p_prefix text default '')
returns table (address text, execute boolean, unblock boolean) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  return query
    select x.address, bool_or(x.is_task), bool_or(not x.is_task)
    from (
      select case when q like '%://%' then q else 'poll://any@' || q end as address, true as is_task
      from durable._due_queues(v_now) q
      union all
      select l, false from durable._due_listeners(v_now) l) x
    where starts_with(x.address, coalesce(p_prefix, ''))
    group by x.address order by x.address collate "C";
end
$$;
comment on function durable.addresses_due(text) is
  'Addresses that begin with p_prefix and have a message due: execute, a task for protocol clients; unblock, a promise that settled. A courier asks for http, a gateway for poll:// and its groups, where poll://any@group stands for all members of the group.';

create or replace function durable._parsed_members(p_members text[])
returns table (n integer, address text, member_group text, pid text) language sql immutable
as $$
  select u.n::integer, u.address, split_part(u.place, '/', 1), substr(u.place, strpos(u.place, '/') + 1)
  from (select m.address, m.n, case when m.address like 'poll://uni@%/%' then substr(m.address, 12) end as place
        from unnest(p_members) with ordinality as m (address, n)) u
$$;
comment on function durable._parsed_members(text[]) is
  'Members by their addresses poll://uni@group/pid; any other address is a place of its own, without group.';

create or replace function durable._try_lock_due_offers(p_queue text, p_pids text[], p_limit integer, p_now bigint)
returns setof durable._tasks language plpgsql volatile
as $$
declare
  v_head_start bigint := durable._setting_int('prefer_ms');
begin
  return query
    select c.* from durable._tasks c
    where c.queue = p_queue and c.state = 'pending' and c.workflow is null and c.retry_at <= p_now and c.deadline > p_now
      and (c.released_until is null or c.released_until not between p_now + 1 and p_now + 10000
           or (cardinality(c.released_by) < 16 and not array_remove(p_pids, null) <@ c.released_by))
      and (c.preference is null or c.preference = any (p_pids) or c.retry_at <= p_now - v_head_start)
    order by c.priority, c.retry_at, c.id limit p_limit for update skip locked;
end
$$;
comment on function durable._try_lock_due_offers(text, text[], integer, bigint) is
  'Locks due tasks of a queue that one of these processes may be offered. Where a task prefers another process, that one has a head start of prefer_ms: it may be a member of another gateway. A place without processes waits after releases, like a process that has released it.';

create or replace function durable._place_for(
  p_task durable._tasks, p_places integer[], p_pids text[], p_room integer[], p_after integer, p_now bigint)
returns integer language plpgsql immutable
as $$
declare
  v_excluded text[] := case when p_task.released_until between p_now + 1 and p_now + 10000 then p_task.released_by else '{}' end;
  v_place integer := array_position(p_pids, p_task.preference);
  v_count integer := cardinality(p_places);
begin
  if p_room[p_places[v_place]] > 0 and p_task.preference <> all (v_excluded) then
    return v_place;
  end if;
  for n in p_after .. p_after + v_count - 1 loop
    v_place := n % v_count + 1;
    if p_room[p_places[v_place]] > 0 and coalesce(p_pids[v_place] <> all (v_excluded), true) then
      return v_place;
    end if;
  end loop;
  return null;
end
$$;
comment on function durable._place_for(durable._tasks, integer[], text[], integer[], integer, bigint) is
  'The member that gets a task: the preferred one if it has room, else the next one in turn that has, never one that has just released it. Null: none.';

create or replace function durable.task_offer_many(p_members text[], p_limits integer[])
returns table (address text, id text, version integer, headers jsonb) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
  v_room integer[] := p_limits;
  v_queue record;
  v_task durable._tasks;
  v_place integer;
begin
  if p_members is null or cardinality(p_members) is distinct from cardinality(p_limits) then
    perform durable._fail_invalid('Offers to many members: a limit for each of them.');
  end if;
  perform durable._check_site();
  for v_queue in
    select q.name, array_agg(m.n order by m.n) as places, array_agg(m.pid order by m.n) as pids
    from durable._parsed_members(p_members) m cross join lateral (values (m.address, 1), (m.member_group, 2)) as q (name, ord)
    where q.name is not null group by q.ord, q.name
    -- of a thousand members few have anything due
    having exists (select from durable._tasks t
                   where t.queue = q.name and t.state = 'pending' and t.workflow is null and t.retry_at <= v_now)
    order by q.ord, q.name
  loop
    v_place := 0;
    for v_task in
      select d.* from durable._try_lock_due_offers(v_queue.name, v_queue.pids, (
        select sum(greatest(v_room[p], 0))::integer from unnest(v_queue.places) p), v_now) d
    loop
      v_place := durable._place_for(v_task, v_queue.places, v_queue.pids, v_room, coalesce(v_place, 0), v_now);
      continue when v_place is null;
      v_room[v_queue.places[v_place]] := v_room[v_queue.places[v_place]] - 1;
      update durable._tasks t set retry_at = v_now + durable._setting_int('retry_offer_ms') where t.id = v_task.id;
      address := p_members[v_queue.places[v_place]];
      id := v_task.id;
      version := v_task.version;
      headers := coalesce(v_task.recv_headers, durable._invoke_headers(v_task.queue, v_task.id));
      return next;
    end loop;
  end loop;
end
$$;
comment on function durable.task_offer_many(text[], integer[]) is
  'Execute messages for many members at once, as durable.task_offer gives them for one queue: select * from durable.task_offer_many(array[''poll://uni@mail/a'', ''poll://uni@mail/b''], array[64, 64]). A member gets tasks of its own address and of its group, its limit at most; those of the group go round. A task that prefers a member goes to that one; if it is none of these, to another after prefer_ms. WF004, WF016.';

create or replace function durable.unblock_claim_many(
  p_addresses text[], p_limit integer default 100, p_ttl_ms integer default 5000)
returns table (promise_id text, address text, attempt integer, promise jsonb) language plpgsql volatile
as $$
begin
  return query
    select c.promise_id, c.address, c.attempt, durable._wire_promise(c.promise)
    from durable._claim_unblocks(coalesce(p_addresses, '{}'), p_limit, p_ttl_ms, p_ttl_ms) c;
end
$$;
comment on function durable.unblock_claim_many(text[], integer, integer) is
  'Unblock messages for any of these addresses, p_limit in all, as durable.unblock_claim gives them for one, but each for p_ttl_ms, however often it was claimed; the promise as the protocol sends it, and settled always. WF004, WF016.';

create or replace function durable.unblock_acknowledge_many(p_promise_ids text[], p_addresses text[])
returns integer language plpgsql volatile
as $$
declare
  v_count integer;
begin
  with free as materialized (
    select u.promise_id, u.address
    from unnest(p_promise_ids, p_addresses) as a (promise_id, address)
    join durable._unblocks u on u.promise_id = any (array[a.promise_id]) and u.address is not distinct from a.address
    for update of u skip locked
  )
  delete from durable._unblocks u using free f
  where u.promise_id = any (array[f.promise_id]) and u.address is not distinct from f.address;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable.unblock_acknowledge_many(text[], text[]) is
  'Deletes messages that their listeners have: the promise and the address of each, at the same places. Answers how many there were; those that another session has locked stay, and are due again when their claim ends.';

create or replace function durable.unblock_acknowledge_each(p_promise_ids text[], p_addresses text[])
returns table (promise_id text, address text) language plpgsql volatile
as $$
begin
  perform durable.unblock_acknowledge_many(p_promise_ids, p_addresses);
  return query
    select u.promise_id, u.address
    from unnest(p_promise_ids, p_addresses) as a (promise_id, address)
    join durable._unblocks u on u.promise_id = any (array[a.promise_id]) and u.address is not distinct from a.address;
end
$$;
comment on function durable.unblock_acknowledge_each(text[], text[]) is
  'Deletes messages as durable.unblock_acknowledge_many does, and answers those that stay because another session has locked them: select * from durable.unblock_acknowledge_each(array[''p''], array[''poll://any@mail'']). Acknowledge these once more.';
