-- Transfer: objects leave and come as one manifest, which is applied whole or not at all. It is JSON:
-- {"v": 1, "objects": [{"id", "kind", "sub", "scalar" in base64, "refs", "names"}], "ref": {"name", "commit", "version"}}.

create or replace function durable._manifest_object(p_object jsonb, p_place bigint)
returns durable._object language plpgsql immutable
as $$
begin
  if jsonb_typeof(p_object) is distinct from 'object' or jsonb_typeof(p_object -> 'kind') is distinct from 'string'
     or jsonb_typeof(coalesce(p_object -> 'refs', '[]')) <> 'array'
     or jsonb_typeof(coalesce(p_object -> 'names', '[]')) <> 'array'
     or coalesce(jsonb_typeof(p_object -> 'scalar'), 'null') not in ('null', 'string') then
    perform durable._fail_invalid(format('Object %s of the manifest is none.', p_place));
  end if;
  return row(durable._unhex(p_object ->> 'id'), p_object ->> 'kind', coalesce(p_object ->> 'sub', ''),
             decode(p_object ->> 'scalar', 'base64'),
             array(select durable._unhex(r.value)
                   from jsonb_array_elements_text(p_object -> 'refs') with ordinality r (value, place) order by r.place),
             array(select n.value
                   from jsonb_array_elements_text(p_object -> 'names') with ordinality n (value, place)
                   order by n.place))::durable._object;
exception when invalid_parameter_value then
  perform durable._fail_invalid(format('Object %s of the manifest: its scalar is no base64.', p_place));
  return null;
end
$$;
comment on function durable._manifest_object(jsonb, bigint) is 'An object of a manifest, its laws not checked yet. WF004.';

create or replace function durable.objects_import(manifest jsonb)
returns integer language plpgsql volatile
as $$
declare
  v_objects durable._object[];
  v_ids bytea[];
begin
  if $1 -> 'v' is distinct from '1' or jsonb_typeof($1 -> 'objects') is distinct from 'array' then
    perform durable._fail_invalid('A manifest is {"v": 1, "objects": [...]}.');
  end if;
  v_objects := array(select durable._manifest_object(o.value, o.place)
                     from jsonb_array_elements($1 -> 'objects') with ordinality o (value, place) order by o.place);
  v_ids := durable._put_objects(v_objects);
  if $1 ? 'ref' then
    perform durable._forward($1 #>> '{ref,name}', durable._unhex($1 #>> '{ref,commit}'), ($1 #>> '{ref,version}')::integer,
                             '{head,exec}');
  end if;
  return cardinality(v_ids);
end
$$;
comment on function durable.objects_import(jsonb) is
  'Puts the objects of a manifest and, if it names a ref, moves that forward to a commit of theirs: all of it or nothing. Each id is computed here; one that differs is refused by name. Answers the number of its objects. WF001 for a ref of an object that is neither here nor in it, WF003 for a commit that does not come after that of the ref, WF004, WF015.';

create or replace function durable._reached(p_tops bytea[], p_known bytea[])
returns setof bytea language sql stable
as $$
  with recursive known (id) as (
    select k.id from unnest(p_known) k (id)
    union
    select r.id from known k join durable._objects o on o.id = any (array[k.id]) cross join lateral unnest(o.refs) r (id)
  ), reached (id) as (
    select t.id from unnest(p_tops) t (id) where t.id not in (select k.id from known k)
    union
    select r.id from reached w join durable._objects o on o.id = any (array[w.id]) cross join lateral unnest(o.refs) r (id)
    where r.id <> durable._no_object() and r.id not in (select k.id from known k)
  )
  select r.id from reached r
$$;
comment on function durable._reached(bytea[], bytea[]) is 'Ids that these objects reach, themselves included, without those that the known ones reach.';

create or replace function durable.objects_export(tops bytea[], known bytea[] default '{}')
returns jsonb language plpgsql stable
as $$
declare
  v_ids bytea[] := array(select r from durable._reached($1, $2) r);
  v_missing bytea := (select i from unnest(v_ids) i where not exists (
    select from durable._objects o where o.id = any (array[i]) and o.excised_at is null) limit 1);
begin
  if exists (select from durable._objects o where o.id = v_missing) then
    perform durable._fail_excised(v_missing);
  elsif v_missing is not null then
    perform durable._fail_not_found('object', durable._hex(v_missing), 'Read the ids from durable.objects.');
  end if;
  return jsonb_build_object('v', 1, 'objects', (
    select coalesce(jsonb_agg(jsonb_build_object(
      'id', durable._hex(o.id), 'kind', o.kind, 'sub', o.sub, 'scalar', translate(encode(o.scalar, 'base64'), E'\n', ''),
      'refs', (select coalesce(jsonb_agg(durable._hex(r.id) order by r.place), '[]')
               from unnest(o.refs) with ordinality r (id, place)),
      'names', to_jsonb(o.names)) order by o.id), '[]')
    from durable._objects o where o.id = any (v_ids)));
end
$$;
comment on function durable.objects_export(bytea[], bytea[]) is
  'A manifest of these objects and all that they reach, without what the known ones reach, because the receiver has that: select durable.objects_export(array[commit], array[commit_of_the_receiver]). WF001, WF015.';
