-- Collection of objects that nothing refers to. Objects refer to older ones only, so there is no cycle and no marking: an object
-- that no other object, name, pin or call refers to can go, and then those to which it referred are looked at. It passes over
-- locked objects, and a put locks what it refers to, so neither waits for the other for longer than one portion takes.

create or replace function durable._is_used_by_calls(p_object durable._objects, p_now bigint)
returns boolean language plpgsql stable
as $$
declare
  v_days bigint := durable._setting_int('call_results_days');
begin
  if p_object.kind = 'node' then
    return exists (select from durable._call_attempts a where a.node_id = p_object.id)
           or exists (select from durable._call_waiters w where w.node_id = p_object.id);
  elsif p_object.kind = 'exec' then
    return exists (select from durable._pins p where p.exec_id = p_object.id)
           or exists (select from durable._call_steps s where s.exec_id = p_object.id)
           or exists (select from durable._call_attempts a
                      where a.node_id = p_object.refs[1] and a.exec_id = p_object.id
                            and (v_days = 0 or a.ended_at >= p_now - v_days * 86400000))
           or exists (select from durable._objects o
                      where o.refs @> array[p_object.refs[1]] and o.refs <> '{}' and o.kind not in ('exec', 'request'));
  elsif p_object.kind = 'request' then
    return exists (select from durable._call_attempts a where a.node_id = p_object.refs[1] and a.request_id = p_object.id);
  elsif p_object.kind = 'dag' then
    return exists (select from durable._claims c where c.dag_id = p_object.id)
           or exists (select from durable._call_attempts a where a.outcome_dag = p_object.id and a.ended_at is null);
  end if;
  return false;
end
$$;
comment on function durable._is_used_by_calls(durable._objects, bigint) is
  'Whether a pin, step, attempt or claim needs an object. Results of attempts are shared for the setting call_results_days. An exec also stays as long as a DAG or node has its node, so that people can see what it has given.';

create or replace function durable._is_used(p_object durable._objects, p_before bigint, p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._object_uses u where u.id = p_object.id and u.used_at >= p_before)
         or exists (select from durable._objects o where o.refs @> array[p_object.id] and o.refs <> '{}')
         or exists (select from durable._refs r where r.commit_id = p_object.id)
         or durable._is_used_by_calls(p_object, p_now);
end
$$;
comment on function durable._is_used(durable._objects, bigint, bigint) is
  'Whether an object is referred to, or was put again since an instant. Its caller has locked it and reads in a new statement.';

create or replace function durable._collect(
  p_ids bytea[], p_before bigint, p_now bigint, out removed integer, out freed bytea[])
language plpgsql volatile
as $$
declare
  v_ids bytea[] := array(
    select o.id from durable._objects o
    where o.id = any (p_ids) and o.created_at < p_before and o.excised_at is null order by o.id for update skip locked);
  v_unused bytea[];
begin
  removed := 0;
  freed := '{}';
  if v_ids = '{}' then
    return;
  end if;
  v_unused := array(select o.id from durable._objects o
                    where o.id = any (v_ids) and not durable._is_used(o, p_before, p_now));
  delete from durable._object_uses u where u.id = any (v_ids) and u.used_at < p_before;
  with gone as (
    delete from durable._objects o where o.id = any (v_unused) returning o.refs
  )
  select count(*), coalesce((select array_agg(distinct r.id) from gone g cross join lateral unnest(g.refs) r (id)), '{}')
  into removed, freed from gone;
exception when foreign_key_violation or lock_not_available then
  -- a table of the user's that refers to one of them, or one that is locked by hand
  removed := 0;
  freed := '{}';
  if cardinality(p_ids) > 1 then
    select coalesce(sum(c.removed), 0), coalesce(array_agg(f.id) filter (where f.id is not null), '{}') into removed, freed
    from unnest(p_ids) i (id)
    cross join lateral durable._collect(array[i.id], p_before, p_now) c
    left join lateral unnest(c.freed) f (id) on true;
  end if;
end
$$ set lock_timeout = '100ms';
comment on function durable._collect(bytea[], bigint, bigint) is
  'Removes those of the objects that are older than an instant and not used. Answers how many, and the refs that they had. If a row elsewhere prevents it, each is tried alone.';

create or replace function durable._collect_from(
  p_before bigint, p_place jsonb, p_limit integer, p_now bigint, out removed integer, out examined integer, out more jsonb)
language plpgsql volatile
as $$
declare
  v_left bytea[];
  v_last record;
  v_part record;
begin
  removed := 0;
  select array_agg(x.id order by x.created_at, x.id), count(*) into v_left, examined from (
    select o.created_at, o.id from durable._objects o
    where o.excised_at is null and o.created_at < p_before
          and (o.created_at, o.id) > (coalesce((p_place ->> 'created_at')::bigint, -1),
                                      coalesce(durable._unhex(p_place ->> 'id'), ''))
    order by o.created_at, o.id limit p_limit) x;
  if examined = p_limit then
    select o.created_at, o.id into v_last from durable._objects o where o.id = v_left[examined];
    more := jsonb_build_object('created_at', v_last.created_at, 'id', durable._hex(v_last.id));
  end if;
  while cardinality(v_left) > 0 and removed <= 10 * p_limit + 1000 loop
    select * into v_part from durable._collect(v_left[: 1000], p_before, p_now) c;
    removed := removed + v_part.removed;
    -- an exec stays as long as something else has its node, which may have been one of those that went
    v_left := v_left[1001 :] || v_part.freed || array(
      select o.id from durable._objects o where o.kind = 'exec' and o.refs[1] = any (v_part.freed));
  end loop;
end
$$;
comment on function durable._collect_from(bigint, jsonb, integer, bigint) is
  'One portion of a collection: so many objects from a place on, oldest first, and what only they referred to, as long as that is no more than ten times as much. The rest is found by the next collection.';

create or replace function durable.objects_collect(
  older_than interval default '1 day', max_objects integer default 1000, after jsonb default null)
returns table (removed integer, examined integer, more jsonb) language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if $1 is null or $1 < interval '1 hour' or $2 is null or $2 < 1 then
    perform durable._fail_invalid('Objects are collected from an age of one hour on, one or more at a time.');
  elsif $3 is not null and not coalesce($3 ->> 'created_at' ~ E'^\\d{1,16}$' and $3 ->> 'id' ~ '^[0-9a-f]{64}$', false) then
    perform durable._fail_invalid('Collection goes on behind the place that the call before it answered as more.');
  end if;
  perform durable._check_may_lock();
  return query select c.removed, c.examined, c.more from durable._collect_from(v_now - durable._ms($1), $3, $2, v_now) c;
end
$$;
comment on function durable.objects_collect(interval, integer, jsonb) is
  'Removes a portion of the objects that nothing refers to and that were last put this long ago: select * from durable.objects_collect(''1 day''). While it answers more there may be more: call it again with after => its answer. Names, pins, live calls, results that are shared (setting call_results_days), steps and rows of your tables with a foreign key to durable._objects keep what they refer to. Objects that are locked at the moment are passed over. durable.tick() does it by itself, once a day: setting unused_objects_days. WF003 above READ COMMITTED, WF004.';

create or replace function durable._sweep_objects(
  p_place jsonb, p_now bigint, out removed integer, out place jsonb, out due_in bigint)
language plpgsql volatile
as $$
declare
  v_days bigint := durable._setting_int('unused_objects_days');
begin
  removed := 0;
  if v_days > 0 then
    select c.removed, c.more into removed, place from durable._collect_from(p_now - v_days * 86400000, p_place, 200, p_now) c;
  end if;
  due_in := case when place is null then 86400000 else 100 end;
end
$$;
comment on function durable._sweep_objects(jsonb, bigint) is
  'A portion of the daily collection: what it removed, its next place (null: it is at the end), and the ms until then.';
