-- Values as JSON. JSON alone has neither bytes nor sets, and jsonb takes 1e16 for an integer, so a value travels with its type:
-- {"i64": 5}, {"f64": "1e+16"}, {"bytes": "<base64>"}, {"list": [...]}, {"map": [[key, value], ...]}.

create or replace function durable._fail_value(p_path text, p_flaw text)
returns void language plpgsql volatile
as $$
begin
  perform durable._fail_invalid(format('Value at %s: %s.', p_path, p_flaw));
end
$$;
comment on function durable._fail_value(text, text) is 'Raises WF004 with the place of a value within another.';

create or replace function durable._f64_bytes(p_number double precision)
returns bytea language sql immutable parallel safe
as $$
  select case when p_number = 'NaN' then E'\\x7ff8000000000000'::bytea when p_number = 0 then E'\\x0000000000000000'::bytea
              else float8send(p_number) end
$$;
comment on function durable._f64_bytes(double precision) is 'The one encoding of a number: one NaN, and no zero with a sign.';

create or replace function durable._f64_text(p_scalar bytea)
returns text language plpgsql immutable
as $$
declare
  v_bits bit(64) := ('x' || encode(p_scalar, 'hex'))::bit(64);
  v_exponent integer := substring(v_bits from 2 for 11)::integer;
  v_mantissa bigint := (v_bits & x'000fffffffffffff')::bigint;
  v_sign integer := 1 - 2 * substring(v_bits from 1 for 1)::integer;
begin
  if v_exponent = 2047 then
    return case when v_mantissa <> 0 then 'NaN' when v_sign = 1 then 'Infinity' else '-Infinity' end;
  end if;
  return (v_sign * (case when v_exponent = 0 then v_mantissa else v_mantissa + 4503599627370496 end)::double precision
          * power(2::double precision, greatest(v_exponent, 1) - 1075))::text;
end
$$ set extra_float_digits = 1;
comment on function durable._f64_text(bytea) is 'The shortest text that is read as this number again.';

create or replace function durable._text_scalar(p_tag text, p_value jsonb, p_path text)
returns bytea language plpgsql immutable
as $$
declare
  v_text text := p_value #>> '{}';
begin
  if jsonb_typeof(p_value) <> 'string' then
    perform durable._fail_value(p_path, format('a %s is written as a text', p_tag));
  elsif p_tag = 'bytes' then
    return decode(v_text, 'base64');
  elsif p_tag = 'uri' then
    if durable._is_uri(v_text) is not true then
      perform durable._fail_value(p_path, 'a URI is in the normal form of RFC 3986');
    elsif v_text like 'dml:%' then
      perform durable._fail_value(p_path, 'URIs of the scheme dml are reserved');
    end if;
  end if;
  return convert_to(normalize(v_text, nfc), 'UTF8');
exception when invalid_parameter_value then
  perform durable._fail_value(p_path, 'bytes are written in base64');
  return null;
end
$$;
comment on function durable._text_scalar(text, jsonb, text) is 'Bytes of a value that JSON writes as a text: bytes, string, uri. WF004 with its place.';

create or replace function durable._number_scalar(p_tag text, p_value jsonb, p_path text)
returns bytea language plpgsql immutable
as $$
declare
  v_text text := p_value #>> '{}';
begin
  if p_tag = 'f64' and v_text ~ E'^(?:-?\\d+(?:[.]\\d*)?(?:[eE][+-]?\\d+)?|NaN|-?Infinity)$' then
    return durable._f64_bytes(v_text::double precision);
  elsif p_tag = 'i64' and v_text ~ E'^-?\\d+$' then
    return int8send(v_text::bigint);
  end if;
  perform durable._fail_value(p_path, format('%s is no %s', left(p_value::text, 60), p_tag));
  return null;
exception when numeric_value_out_of_range then
  perform durable._fail_value(p_path, format('%s is outside the range of %s', left(p_value::text, 60), p_tag));
  return null;
end
$$;
comment on function durable._number_scalar(text, jsonb, text) is
  'Bytes of a number, which is a JSON number or a text. WF004 with its place, also outside the range.';

create or replace function durable._scalar(p_tag text, p_value jsonb, p_path text)
returns bytea language plpgsql immutable
as $$
declare
  v_scalar bytea;
begin
  if p_tag = 'null' and p_value = 'null' then
    return null;
  elsif p_tag = 'bool' and jsonb_typeof(p_value) = 'boolean' then
    return case when p_value::boolean then E'\\x01' else E'\\x00' end;
  elsif p_tag in ('i64', 'f64') then
    return durable._number_scalar(p_tag, p_value, p_path);
  elsif p_tag in ('bytes', 'string', 'uri') then
    v_scalar := durable._text_scalar(p_tag, p_value, p_path);
    if octet_length(v_scalar) > 1048576 then
      perform durable._fail_too_large(format('Value at %s', p_path), octet_length(v_scalar), 1048576,
                                      'Store it elsewhere and pass its URI.');
    end if;
    return v_scalar;
  end if;
  perform durable._fail_value(p_path, format('%s is no %s', left(p_value::text, 60), p_tag));
  return null;
end
$$;
comment on function durable._scalar(text, jsonb, text) is 'Bytes of a value that has no parts. WF004 and WF008 with its place.';

create or replace function durable._tagged(p_value jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_value)
    when 'null' then '{"null": null}'
    when 'boolean' then jsonb_build_object('bool', p_value)
    when 'number' then jsonb_build_object(case when p_value::text ~ '[.]' then 'f64' else 'i64' end, p_value)
    when 'string' then jsonb_build_object('string', p_value)
    when 'array' then jsonb_build_object('list', p_value)
    else jsonb_build_object('map', (
      select coalesce(jsonb_agg(jsonb_build_array(m.key, m.value)), '[]') from jsonb_each(p_value) m)) end
$$;
comment on function durable._tagged(jsonb) is 'Plain JSON with its type at the top: a number with a point is an f64, any other an i64; an object is a map.';

create or replace function durable._datum_parts(p_tag text, p_parts jsonb, p_plain boolean, p_path text)
returns setof durable._object language plpgsql immutable
as $$
declare
  v_part record;
  v_one durable._object;
  v_refs bytea[] := '{}';
begin
  for v_part in
    select case when p_tag = 'map' then e.value -> x.side else e.value end as value,
           format('%s[%s]%s', p_path, e.place - 1, case when p_tag = 'map' then (array['.key', '.value'])[x.side + 1] end) as path
    from jsonb_array_elements(p_parts) with ordinality e (value, place)
    cross join generate_series(0, case when p_tag = 'map' then 1 else 0 end) x (side)
    order by e.place, x.side
  loop
    for v_one in select * from durable._datums(v_part.value, p_plain, v_part.path) loop
      return next v_one;
    end loop;
    v_refs := v_refs || v_one.id;
  end loop;
  if p_tag = 'set' then
    v_refs := array(select r.id from unnest(v_refs) r (id) order by r.id);
  elsif p_tag = 'map' then
    v_refs := coalesce((select array_agg(v_refs[n + side] order by v_refs[n], n, side)
                        from generate_series(1, cardinality(v_refs), 2) n cross join generate_series(0, 1) side), '{}');
  end if;
  if durable._datum_flaw(p_tag, null, v_refs) is not null then
    perform durable._fail_value(p_path, format('two members of a %s are equal', p_tag));
  end if;
  return next row(durable._object_id('datum', p_tag, null, v_refs, '{}'), 'datum', p_tag, null, v_refs, '{}')::durable._object;
end
$$;
comment on function durable._datum_parts(text, jsonb, boolean, text) is 'The objects of a list, set or map: those of its parts, then itself. WF004 if two are equal that must not be.';

create or replace function durable._datums(p_value jsonb, p_plain boolean, p_path text)
returns setof durable._object language plpgsql immutable
as $$
declare
  v_value jsonb := case when p_plain then durable._tagged(p_value) else p_value end;
  v_tag text;
  v_content jsonb;
  v_scalar bytea;
begin
  if jsonb_typeof(v_value) = 'object' then
    select min(m.key), (array_agg(m.value))[1] into v_tag, v_content from jsonb_each(v_value) m having count(*) = 1;
  end if;
  if v_tag in ('list', 'set', 'map') and jsonb_typeof(v_content) = 'array'
     and (v_tag <> 'map' or not jsonb_path_exists(v_content, 'strict $[*] ? (@.type() != "array" || @.size() != 2)')) then
    return query select * from durable._datum_parts(v_tag, v_content, p_plain, p_path);
  elsif v_tag in ('null', 'bool', 'i64', 'f64', 'bytes', 'string', 'uri') then
    v_scalar := durable._scalar(v_tag, v_content, p_path);
    return next row(durable._object_id('datum', v_tag, v_scalar, '{}', '{}'), 'datum', v_tag, v_scalar, '{}',
                    '{}')::durable._object;
  else
    perform durable._fail_value(p_path, format(
      '%s is no value with its type: null, bool, i64, f64, bytes, string, uri, list, set, or map of pairs', left(v_value::text, 60)));
  end if;
end
$$;
comment on function durable._datums(jsonb, boolean, text) is
  'The objects of a value, not put yet, its parts before it. p_plain: it is JSON without types. WF004 and WF008 name the place of what is wrong.';

create or replace function durable._put_value(p_value jsonb, p_plain boolean)
returns bytea language plpgsql volatile
as $$
declare
  v_objects durable._object[];
begin
  if p_value is null then
    perform durable._fail_invalid('A value is not null; JSON has a null of its own: ''null''.');
  elsif durable._is_deep(p_value) then
    perform durable._fail_invalid('A value is nested deeper than 500 levels of JSON.', 'Flatten it.');
  end if;
  v_objects := array(select row(d.*)::durable._object from durable._datums(p_value, p_plain, '$') d);
  return (durable._put_objects(v_objects))[cardinality(v_objects)];
end
$$;
comment on function durable._put_value(jsonb, boolean) is 'Puts a value with all its parts; answers the id of its datum.';

create or replace function durable.datum_put(value jsonb)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put_value($1, false);
end
$$;
comment on function durable.datum_put(jsonb) is
  'Puts a value that is written with its types: select durable.datum_put(''{"list": [{"i64": 1}, {"f64": "NaN"}, {"uri": "s3://a/b"}]}''). Texts are put in Unicode form NFC. WF004 and WF008 name the place of what is wrong, and nothing is put.';

create or replace function durable._scalar_json(p_datum durable._objects)
returns jsonb language sql immutable
as $$
  select jsonb_build_object(p_datum.sub, case
    when p_datum.sub in ('list', 'set', 'map') then '[]'::jsonb
    when p_datum.sub = 'bool' then to_jsonb(p_datum.scalar = E'\\x01')
    when p_datum.sub = 'i64' then to_jsonb(('x' || encode(p_datum.scalar, 'hex'))::bit(64)::bigint)
    when p_datum.sub = 'f64' then to_jsonb(durable._f64_text(p_datum.scalar))
    when p_datum.sub = 'bytes' then to_jsonb(translate(encode(p_datum.scalar, 'base64'), E'\n', ''))
    when p_datum.sub in ('string', 'uri') then to_jsonb(durable._text_of(p_datum.scalar)) end)
$$;
comment on function durable._scalar_json(durable._objects) is 'A datum without parts, with its type.';

create or replace function durable._level_json(p_level bytea[], p_ids bytea[], p_values jsonb[])
returns table (id bytea, value jsonb) language plpgsql stable
as $$
begin
  return query
    with part as materialized (
      select o.id, o.sub, r.place, b.value
      from unnest(p_level) l (id) join durable._objects o on o.id = any (array[l.id])
      cross join lateral unnest(o.refs) with ordinality r (id, place)
      join unnest(p_ids, p_values) b (id, value) on b.id = r.id
    )
    select p.id, jsonb_build_object(p.sub, jsonb_agg(p.value order by p.place))
    from part p where p.sub <> 'map' group by p.id, p.sub
    union all
    select k.id, jsonb_build_object('map', jsonb_agg(jsonb_build_array(k.value, v.value) order by k.place))
    from part k join part v on v.id = k.id and v.place = k.place + 1 where k.sub = 'map' and k.place % 2 = 1 group by k.id;
end
$$ set enable_nestloop = off set jit = off;
comment on function durable._level_json(bytea[], bytea[], jsonb[]) is
  'Datums with parts, with their types, out of their parts, which are made already. Without nested loops: the planner does not know how many there are.';

create or replace function durable._unfold(p_id bytea)
returns jsonb language plpgsql stable
as $$
declare
  v_order bytea[];
  v_levels integer[];
  v_excised bytea;
  v_ids bytea[];
  v_values jsonb[];
  v_level_ids bytea[];
begin
  with recursive reached (id, level) as (
    select p_id, 0
    union
    select r.id, w.level + 1 from reached w
    join durable._objects o on o.id = any (array[w.id]) cross join lateral unnest(o.refs) r (id)
  )
  select array_agg(x.id), array_agg(x.level) into v_order, v_levels
  from (select w.id, max(w.level) as level from reached w group by w.id) x;
  v_excised := (select o.id from unnest(v_order) i (id) join durable._objects o on o.id = any (array[i.id])
                where o.excised_at is not null limit 1);
  if v_excised is not null then
    perform durable._fail_excised(v_excised);
  end if;
  select array_agg(o.id), array_agg(durable._scalar_json(o)) into v_ids, v_values
  from unnest(v_order) i (id) join durable._objects o on o.id = any (array[i.id]) where o.refs = '{}';
  -- a part is on a later level than all that it is in
  for v_level in reverse (select max(l) from unnest(v_levels) l) - 1 .. 0 loop
    v_level_ids := array(select x.id from unnest(v_order, v_levels) x (id, level) where x.level = v_level);
    select v_ids || array_agg(m.id), v_values || array_agg(m.value) into v_ids, v_values
    from durable._level_json(v_level_ids, v_ids, v_values) m;
  end loop;
  return v_values[cardinality(v_values)];
end
$$;
comment on function durable._unfold(bytea) is 'A datum with parts, with its types, each part made once. WF015.';

create or replace function durable._datum_json(p_id bytea)
returns jsonb language plpgsql stable
as $$
declare
  v_one durable._objects;
  v_flaw text;
begin
  select * into v_one from durable._objects o where o.id = p_id;
  if v_one.id is null then
    perform durable._fail_not_found('object', durable._hex(p_id), 'Read the ids from durable.objects.');
  elsif v_one.excised_at is not null then
    perform durable._fail_excised(p_id);
  elsif v_one.kind <> 'datum' then
    perform durable._fail_invalid(format('Object %s is a %s and no datum.', durable._hex(p_id), v_one.kind));
  end if;
  if v_one.refs = '{}' then
    return durable._scalar_json(v_one);
  end if;
  v_flaw := durable._unfolded_flaw(p_id);
  if v_flaw is not null then
    perform durable._fail_unfolded(p_id, v_flaw);
  end if;
  return durable._unfold(p_id);
end
$$;
comment on function durable._datum_json(bytea) is 'A value with its types. WF001, WF004 also for one that is too much once it is unfolded, WF015.';

create or replace function durable.datum(id bytea)
returns jsonb language plpgsql stable
as $$
begin
  return durable._datum_json($1);
end
$$;
comment on function durable.datum(bytea) is
  'A value as durable.datum_put takes it. An i64 may be larger than 2^53, which some readers of JSON round. WF001, WF004 for an object that is no datum or that has more than a million parts, 64 MiB or 500 levels once it is unfolded, WF015 if a part was excised.';

create or replace function durable._plain_json(p_value jsonb)
returns jsonb language plpgsql immutable
as $$
declare
  v_tag text;
  v_content jsonb;
begin
  select m.key, m.value into v_tag, v_content from jsonb_each(p_value) m;
  if v_tag in ('list', 'set') then
    return (select coalesce(jsonb_agg(durable._plain_json(e.value) order by e.place), '[]')
            from jsonb_array_elements(v_content) with ordinality e (value, place));
  elsif v_tag = 'map' and not jsonb_path_exists(v_content, '$[*][0] ? (!exists(@.string))') then
    return (select coalesce(jsonb_object_agg(e.value -> 0 ->> 'string', durable._plain_json(e.value -> 1)), '{}')
            from jsonb_array_elements(v_content) e);
  elsif v_tag = 'f64' and v_content #>> '{}' !~ '[a-z]{2}' then
    return to_jsonb((v_content #>> '{}')::numeric);
  elsif v_tag = 'map' or v_tag in ('bytes', 'uri') then
    return p_value;
  end if;
  return v_content;
end
$$;
comment on function durable._plain_json(jsonb) is 'A value as people read it: without types where plain JSON has the type.';
