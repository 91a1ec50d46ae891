-- Whether all that an object reaches is readable. All refs of an object are there at any time, so nothing is walked until
-- something was excised. From then on each top is walked once for each excision, and a walk stops at tops that were walked
-- before.

create or replace function durable._is_whole(p_id bytea, p_excision integer)
returns boolean language sql stable
as $$
  with recursive reached (id) as (
    select p_id
    union
    select r.id from reached w
    join durable._objects o on o.id = any (array[w.id])
    cross join lateral unnest(o.refs) r (id)
    where not exists (select from durable._closures c
                      where c.id = any (array[w.id]) and c.is_whole and c.excision >= p_excision)
  )
  select not exists (select from reached w join durable._objects o on o.id = any (array[w.id]) where o.excised_at is not null)
$$;
comment on function durable._is_whole(bytea, integer) is
  'Whether nothing that an object reaches was excised: a walk that stops at what was walked since this excision. The result of a call is not reached through its node: a scope pins it.';

create or replace function durable._remember_closure(p_id bytea, p_is_whole boolean, p_excision integer)
returns void language plpgsql volatile
as $$
begin
  if current_setting('transaction_read_only') = 'on'
     or not pg_try_advisory_xact_lock(1685417584, hashtext(durable._hex(p_id))) then
    return;
  end if;
  delete from durable._closures c where c.id = any (array(
    select x.id from durable._closures x where x.id = p_id for update skip locked));
  insert into durable._closures (excision, is_whole, id) values (p_excision, p_is_whole, p_id) on conflict (id) do nothing;
end
$$;
comment on function durable._remember_closure(bytea, boolean, integer) is
  'Stores the outcome of a walk, unless another transaction is at it. Never waits for one.';

create or replace function durable.closure_status(id bytea)
returns text language plpgsql volatile
as $$
declare
  v_excision integer;
  v_is_whole boolean;
begin
  if not exists (select from durable._objects o where o.id = $1) then
    return 'missing';
  end if;
  -- the number first: the walk sees this excision and all before it
  v_excision := (select max(o.excision) from durable._objects o where o.excision is not null);
  if v_excision is null then
    return 'ok';
  end if;
  v_is_whole := (select c.is_whole from durable._closures c
                 where c.id = $1 and (c.excision >= v_excision or not c.is_whole));
  if v_is_whole is null then
    v_is_whole := durable._is_whole($1, v_excision);
    perform durable._remember_closure($1, v_is_whole, v_excision);
  end if;
  return case when v_is_whole then 'ok' else 'excised' end;
end
$$;
comment on function durable.closure_status(bytea) is
  'ok: the object and all that it reaches is readable; missing: it is not here; excised: it or something that it reaches was. A look-up or two, however much it reaches; after an excision the first call for each object walks.';
