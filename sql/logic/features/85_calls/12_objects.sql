-- Objects are put here and nowhere else. A put locks what its objects refer to, so that collection passes over it, then inserts
-- what is not there yet, in the order of the ids: two puts of one object wait for each other in one order, and for a second at
-- most, because many use the same values, and a transaction that put one may stay open. So every id in refs has its row at any
-- time, and an object is whole as long as nothing that it reaches was excised.

create or replace function durable._ids_of(p_objects durable._object[])
returns bytea[] language plpgsql volatile
as $$
declare
  v_one record;
  v_flaw text;
  v_ids bytea[] := '{}';
begin
  begin
    for v_one in select * from unnest(p_objects) with ordinality o (id, kind, sub, scalar, refs, names, place) loop
      perform row(0, null, null, 32, v_one.kind, v_one.sub, octet_length(v_one.scalar), coalesce(v_one.refs, '{}'),
                  coalesce(v_one.names, '{}'), null)::durable._lawful_object;
      v_flaw := durable._object_flaw(v_one.kind, v_one.sub, v_one.scalar, v_one.refs, v_one.names);
      v_ids := v_ids || durable._object_id(v_one.kind, v_one.sub, v_one.scalar, v_one.refs, v_one.names);
      if v_flaw is null and v_one.id <> v_ids[v_one.place] then
        v_flaw := format('its id is %s and not %s', durable._hex(v_ids[v_one.place]), durable._hex(v_one.id));
      end if;
      exit when v_flaw is not null;
    end loop;
  exception when check_violation then
    get stacked diagnostics v_flaw = constraint_name;
    v_flaw := 'the law is ' || v_flaw;
  end;
  if v_flaw is not null then
    perform durable._fail_invalid(format('Object %s of %s (%s): %s.', v_one.place, cardinality(p_objects),
                                         concat_ws(' ', v_one.kind, nullif(v_one.sub, '')), v_flaw));
  end if;
  return v_ids;
end
$$;
comment on function durable._ids_of(durable._object[]) is
  'Ids of new objects, computed here. WF004 for a content that is not lawful, and for an id that is not that of its content.';

create or replace function durable._ref_fits(p_expected text, p_kind text, p_sub text)
returns boolean language sql immutable parallel safe
as $$
  select case p_expected
    when 'uri' then p_kind = 'datum' and p_sub = 'uri'
    when 'map' then p_kind = 'datum' and p_sub = 'map'
    when 'map or none' then p_kind = 'datum' and p_sub = 'map'
    when 'call or builtin' then p_kind = 'node' and p_sub in ('call', 'builtin')
    when 'dag or datum' then p_kind in ('dag', 'datum')
    else p_kind = p_expected end
$$;
comment on function durable._ref_fits(text, text, text) is 'Whether an object is what durable._ref_kind expects.';

create or replace function durable._check_refs(p_objects durable._object[])
returns void language plpgsql volatile
as $$
declare
  v_wrong record;
begin
  select o.kind, r.id, e.expected, s.id is null as is_missing, s.excised_at is not null as is_excised into v_wrong
  from unnest(p_objects) o
  cross join lateral unnest(o.refs) with ordinality r (id, place)
  cross join lateral durable._ref_kind(o.kind, o.sub, o.scalar, r.place) e (expected)
  left join durable._objects s on s.id = any (array[r.id])
  where not coalesce(durable._ref_fits(e.expected, s.kind, s.sub), e.expected = 'map or none' and r.id = durable._no_object())
        or s.excised_at is not null
  limit 1;
  if v_wrong.is_excised then
    perform durable._fail_excised(v_wrong.id);
  elsif v_wrong.is_missing then
    perform durable._fail_not_found('object', durable._hex(v_wrong.id), 'Put what an object refers to before it, or with it.');
  elsif v_wrong.id is not null then
    perform durable._fail_invalid(format('The %s refers to %s, which is no %s.', v_wrong.kind, durable._hex(v_wrong.id),
                                         v_wrong.expected));
  end if;
end
$$;
comment on function durable._check_refs(durable._object[]) is
  'Whether the refs of objects that were just inserted are there and of the kind that they need. WF001, WF004, WF015.';

create or replace function durable._check_execs(p_objects durable._object[])
returns void language plpgsql volatile
as $$
declare
  v_wrong record;
begin
  select durable._hex(n.id) as node, n.sub, r.kind into v_wrong
  from unnest(p_objects) o
  join durable._objects n on n.id = any (array[o.refs[1]])
  join durable._objects r on r.id = any (array[o.refs[2]])
  where o.kind = 'exec' and r.kind <> case n.sub when 'call' then 'dag' else 'datum' end limit 1;
  if found then
    perform durable._fail_invalid(format('A %s is no result of %s, which is a %s.', v_wrong.kind, v_wrong.node, v_wrong.sub));
  end if;
  select durable._hex(e.id) as exec, durable._hex(o.refs[n]) as node into v_wrong
  from unnest(p_objects) o
  cross join lateral generate_series(durable._parents(o.scalar)::integer + 2, cardinality(o.refs), 3) n
  join durable._objects e on e.id = any (array[o.refs[n + 1]])
  where o.kind = 'commit' and e.refs[1] <> o.refs[n] limit 1;
  if found then
    perform durable._fail_invalid(format('A commit has exec %s for node %s, whose exec it is not.', v_wrong.exec, v_wrong.node));
  end if;
end
$$;
comment on function durable._check_execs(durable._object[]) is
  'Whether a call has a DAG and a builtin a datum as its result, and a commit each exec for its node. WF004.';

create or replace function durable._use_objects(p_ids bytea[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  insert into durable._object_uses (used_at, id)
  select p_now, o.id from durable._objects o
  where o.id = any (p_ids) and o.created_at < p_now - 1800000
        and not exists (select from durable._object_uses u where u.id = any (array[o.id]) and u.used_at >= p_now - 1800000)
  order by o.id;
end
$$;
comment on function durable._use_objects(bytea[], bigint) is
  'Objects that are older than half an hour are used now, as if they were new: collection leaves them for as long again.';

create or replace function durable._limit_wait()
returns text language plpgsql volatile
as $$
declare
  v_before text := current_setting('lock_timeout');
begin
  if v_before::interval not between '1 ms' and '1 s' then
    perform set_config('lock_timeout', '1s', true);
  end if;
  return v_before;
end
$$;
comment on function durable._limit_wait() is
  'Lets the next locks be waited for one second at most; answers the lock_timeout before, which the caller sets again. An error does that by itself.';

create or replace function durable._insert_objects(p_objects durable._object[], p_ids bytea[], p_absent integer, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_new durable._object[] := array(
    select distinct on (n.own)
      row(n.own, n.kind, n.sub, n.scalar, coalesce(n.refs, '{}'), coalesce(n.names, '{}'))::durable._object
    from unnest(p_objects, p_ids) n (id, kind, sub, scalar, refs, names, own)
    -- a count, because an exists becomes a join that may read all objects
    where (select count(*) from durable._objects o where o.id = n.own) = 0 order by n.own);
  v_count integer;
  v_timeout text := durable._limit_wait();
begin
  insert into durable._objects (created_at, id, kind, sub, scalar, refs, names)
  select p_now, o.id, o.kind, o.sub, o.scalar, o.refs, o.names from unnest(v_new) o order by o.id
  on conflict (id) do nothing;
  get diagnostics v_count = row_count;
  perform set_config('lock_timeout', v_timeout, true);
  -- others have put the rest at the same moment: that stays until the commit too
  if v_count < p_absent and exists (select unnest(p_ids) except select unnest(durable._lock_objects(p_ids))) then
    perform durable._fail_busy('An object that was just collected');
  end if;
  perform durable._check_refs(v_new);
  if exists (select from unnest(v_new) o where o.kind in ('exec', 'commit')) then
    perform durable._check_execs(v_new);
  end if;
  perform durable._check_unfolded(v_new);
end
$$;
comment on function durable._insert_objects(durable._object[], bytea[], integer, bigint) is
  'The objects of a put that are not there yet, in the order of their ids, and the check of their refs. p_absent: how many its caller has not found, and so not locked.';

create or replace function durable._put_objects(p_objects durable._object[])
returns bytea[] language plpgsql volatile
as $$
declare
  v_ids bytea[] := durable._ids_of(p_objects);
  v_locked bytea[] := durable._lock_objects(v_ids || array(
    select distinct r.id from unnest(p_objects) o cross join lateral unnest(o.refs) r (id)));
  v_there bytea[] := array(select unnest(v_ids) intersect select unnest(v_locked));
  v_absent integer := (select count(distinct i.id) from unnest(v_ids) i (id)) - cardinality(v_there);
  v_excised bytea := (select o.id from durable._objects o where o.id = any (v_there) and o.excised_at is not null limit 1);
  v_now bigint;
begin
  if v_excised is not null then
    perform durable._fail_excised(v_excised);
  end if;
  v_now := durable._now_ms();
  if v_absent > 0 then
    perform durable._insert_objects(p_objects, v_ids, v_absent, v_now);
  end if;
  if exists (select from durable._objects o where o.id = any (v_there) and o.created_at < v_now - 1800000) then
    perform durable._use_objects(v_there, v_now);
  end if;
  return v_ids;
end
$$;
comment on function durable._put_objects(durable._object[]) is
  'Puts objects, whole or not at all, and answers their ids in the order of the arguments. An object that is there already is left out. Call it before anything else of a transaction is locked. WF001 for a ref that is nowhere, WF004 for a content that is not lawful, an id that is not its own, or a value that is too much once it is unfolded, WF015 for what was excised, 55P03 if another session has put one of them and does not commit within a second.';
