-- Builtins: functions over lists, sets and maps that run where they are called and are recorded as execs like any call. They see
-- the ids of parts and never their bytes, because equal values have equal ids.

create or replace function durable._builtin_signature(p_name text)
returns text[] language sql immutable parallel safe
as $$
  select case p_name
    when 'list/construct' then '{any*}' when 'list/append' then '{list,any*}' when 'list/concat' then '{list*}'
    when 'list/get' then '{list,i64}' when 'list/length' then '{list}'
    when 'set/construct' then '{any*}' when 'set/union' then '{set*}' when 'set/contains' then '{set,any}'
    when 'set/length' then '{set}'
    when 'map/construct' then '{any*}' when 'map/set' then '{map,any,any}' when 'map/get' then '{map,any}'
    when 'map/contains' then '{map,any}' when 'map/keys' then '{map}' when 'map/length' then '{map}' end::text[]
$$;
comment on function durable._builtin_signature(text) is 'Types of the arguments of a builtin; one with a star, which is the last, stands for any number. Null: there is no such builtin.';

create or replace function durable._argument_flaw(p_signature text[], p_subs text[])
returns text language sql immutable parallel safe
as $$
  select case
    when cardinality(p_subs) < cardinality(p_signature) - (p_signature[cardinality(p_signature)] like '%*')::integer
         or (cardinality(p_subs) > cardinality(p_signature) and p_signature[cardinality(p_signature)] not like '%*')
      then format('takes %s, got %s arguments', array_to_string(p_signature, ', '), cardinality(p_subs))
    else (
      select format('argument %s is a %s, not a %s', x.place, x.sub, x.wanted)
      from (select s.place, s.sub, rtrim(p_signature[least(s.place, cardinality(p_signature))], '*') as wanted
            from unnest(p_subs) with ordinality s (sub, place)) x
      where x.wanted not in ('any', x.sub) order by x.place limit 1) end
$$;
comment on function durable._argument_flaw(text[], text[]) is 'How arguments of these types differ from a signature; null: they do not.';

create or replace function durable._sorted_pairs(p_pairs bytea[])
returns bytea[] language sql immutable parallel safe
as $$
  select coalesce(array_agg(p_pairs[n + side] order by p_pairs[n], n, side), '{}')
  from generate_series(1, cardinality(p_pairs), 2) n cross join generate_series(0, 1) side
$$;
comment on function durable._sorted_pairs(bytea[]) is 'Keys and values in turn, in the order of the keys'' ids.';

create or replace function durable._with_entry(p_pairs bytea[], p_key bytea, p_value bytea)
returns bytea[] language sql immutable parallel safe
as $$
  select durable._sorted_pairs(coalesce(array_agg(p_pairs[n + side] order by n, side), '{}') || p_key || p_value)
  from generate_series(1, cardinality(p_pairs), 2) n cross join generate_series(0, 1) side where p_pairs[n] <> p_key
$$;
comment on function durable._with_entry(bytea[], bytea, bytea) is 'Keys and values of a map with another value for a key.';

create or replace function durable._built(
  p_name text, p_ids bytea[], p_values durable._objects[], out sub text, out scalar bytea, out refs bytea[], out id bytea)
language plpgsql immutable
as $$
declare
  v_first bytea[] := p_values[1].refs;
  v_place bigint;
begin
  case p_name
    when 'list/construct' then sub := 'list'; refs := p_ids;
    when 'list/append' then sub := 'list'; refs := v_first || p_ids[2:];
    when 'list/concat' then
      sub := 'list';
      refs := (select coalesce(array_agg(r.id order by v.place, r.place), '{}')
               from (select x.refs, row_number() over () as place from unnest(p_values) x) v
               cross join lateral unnest(v.refs) with ordinality r (id, place));
    when 'list/get' then
      v_place := ('x' || encode(p_values[2].scalar, 'hex'))::bit(64)::bigint;
      v_place := case when v_place < 0 then v_place + cardinality(v_first) else v_place end;
      id := case when v_place between 0 and cardinality(v_first) - 1 then v_first[v_place + 1] end;
    when 'set/construct' then sub := 'set'; refs := array(select distinct i from unnest(p_ids) i order by i);
    when 'set/union' then
      sub := 'set';
      refs := array(select distinct r from unnest(p_values) v cross join lateral unnest(v.refs) r order by r);
    when 'set/contains' then sub := 'bool'; scalar := case when p_ids[2] = any (v_first) then E'\\x01' else E'\\x00' end;
    when 'map/construct' then sub := 'map'; refs := durable._sorted_pairs(p_ids);
    when 'map/set' then sub := 'map'; refs := durable._with_entry(v_first, p_ids[2], p_ids[3]);
    when 'map/get' then id := v_first[2 * array_position(durable._every(v_first, 1, 2), p_ids[2])];
    when 'map/contains' then
      sub := 'bool';
      scalar := case when p_ids[2] = any (durable._every(v_first, 1, 2)) then E'\\x01' else E'\\x00' end;
    when 'map/keys' then sub := 'list'; refs := durable._every(v_first, 1, 2);
    when 'map/length' then sub := 'i64'; scalar := int8send(cardinality(v_first) / 2);
    else sub := 'i64'; scalar := int8send(cardinality(v_first));
  end case;
end
$$;
comment on function durable._built(text, bytea[], durable._objects[]) is
  'The result of a builtin whose arguments fit: a new datum, or the id of a part of one. All null: there is no such part.';

create or replace function durable._builtin_error(p_type text, p_message text)
returns durable._object[] language sql stable
as $$
  select array_agg(row(d.*)::durable._object)
  from durable._datums(jsonb_build_object('message', p_message, 'type', p_type, 'origin', 'dml'), true, '$') d
$$;
comment on function durable._builtin_error(text, text) is 'The datum of a builtin that failed, not put yet; it is the last.';

create or replace function durable._run_builtin(
  p_name text, p_ids bytea[], out status text, out objects durable._object[], out datum bytea)
language plpgsql stable
as $$
declare
  v_values durable._objects[] := array(
    select row(o.*)::durable._objects from unnest(p_ids) with ordinality i (id, place)
    join durable._objects o on o.id = any (array[i.id]) order by i.place);
  v_flaw text := durable._argument_flaw(durable._builtin_signature(p_name), array(select v.sub from unnest(v_values) v));
  v_built record;
begin
  status := 'error';
  if v_flaw is null then
    select * into v_built from durable._built(p_name, p_ids, v_values) b;
  end if;
  if v_flaw is not null then
    objects := durable._builtin_error('TypeError', p_name || ' ' || v_flaw);
  elsif v_built.sub = 'map' and (cardinality(p_ids) % 2 = 1 and p_name = 'map/construct'
                                 or durable._datum_flaw('map', null, v_built.refs) is not null) then
    objects := durable._builtin_error('ValueError', p_name || ' takes pairs of keys and values, no key twice');
  elsif v_built.sub is not null then
    status := 'ok';
    objects := array[row(null, 'datum', v_built.sub, v_built.scalar, v_built.refs, '{}')::durable._object];
  elsif v_built.id is null then
    objects := durable._builtin_error(case p_name when 'map/get' then 'KeyError' else 'IndexError' end,
                                      p_name || ': there is no such member');
  else
    status := 'ok';
    datum := v_built.id;
    objects := '{}';
  end if;
  datum := coalesce(datum, (select durable._object_id(o.kind, o.sub, o.scalar, o.refs, o.names)
                            from unnest(objects[cardinality(objects):]) o));
end
$$;
comment on function durable._run_builtin(text, bytea[]) is
  'The outcome of a builtin for datums: its status, the id of its datum, and the objects that are to be put for it.';

create or replace function durable.builtin(function text, inputs bytea[], scope text default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_name text := regexp_replace($1, '^dml://', '');
  v_node durable._object[] := durable._call_object('builtin', 'dml://' || v_name, $2);
  v_inputs record;
  v_run record;
  v_ids bytea[];
  v_exec bytea;
  v_status text;
begin
  if durable._builtin_signature(v_name) is null then
    perform durable._fail_no_route('dml://' || v_name, '{dml://list/...,dml://set/...,dml://map/...}');
  elsif $3 is not null then
    perform durable._ref($3, '{index}');
  end if;
  select * into v_inputs from durable._inputs_of($3, $2) i;
  select * into v_run from durable._run_builtin(v_name, v_inputs.value_ids) r;
  v_node[2].id := durable._object_id('node', 'builtin', null, v_node[2].refs, '{}');
  v_ids := durable._put_objects(
    v_node || v_run.objects || row(null, 'exec', v_run.status, null, array[v_node[2].id, v_run.datum], '{}')::durable._object);
  v_exec := v_ids[cardinality(v_ids)];
  if $3 is not null then
    perform durable._lock_scope($3);
    perform durable._pin(array[row($3, v_node[2].id, v_exec, v_inputs.execs, false)::durable._new_pin], null, durable._now_ms());
    v_exec := (select p.exec_id from durable._pins p where p.scope = $3 and p.node_id = v_node[2].id);
  end if;
  v_status := (select o.sub from durable._objects o where o.id = v_exec);
  return jsonb_build_object('node', durable._hex(v_node[2].id), 'exec', durable._hex(v_exec), 'status', v_status,
                            'datum', (select durable._hex(o.refs[2]) from durable._objects o where o.id = v_exec));
end
$$ set lock_timeout = '1s';
comment on function durable.builtin(text, bytea[], text) is
  'Runs a builtin at once and records it as an exec: select durable.builtin(''list/get'', array[list_node, place_node], ''exp-7''). In a scope it is pinned, and an earlier pin stays. A failure, as a place that a list does not have, is a result with the status error and a datum that describes it. WF001, WF013 for an unknown builtin, WF014 for an input without a value.';

create or replace function durable._run_builtins(p_scope text, p_nodes bytea[])
returns void language plpgsql volatile
as $$
declare
  v_one record;
  v_inputs record;
  v_run record;
  v_exec durable._object;
  v_objects durable._object[] := '{}';
  v_pins durable._new_pin[] := '{}';
begin
  for v_one in
    select n.id, regexp_replace(durable._text_of(f.scalar), '^dml://', '') as name, n.refs[2:] as inputs, p.inputs as execs
    from unnest(p_nodes) as x (id)
    join durable._objects n on n.id = any (array[x.id])
    join durable._objects f on f.id = any (array[n.refs[1]])
    left join durable._pins p on p.scope = p_scope and p.node_id = any (array[x.id])
  loop
    select i.value_ids, i.execs into v_inputs from durable._inputs_of(p_scope, v_one.inputs) i;
    continue when v_one.execs = v_inputs.execs;
    if durable._builtin_signature(v_one.name) is null then
      perform durable._fail_no_route('dml://' || v_one.name, '{dml://list/...,dml://set/...,dml://map/...}');
    end if;
    select * into v_run from durable._run_builtin(v_one.name, v_inputs.value_ids) r;
    v_exec := row(durable._object_id('exec', v_run.status, null, array[v_one.id, v_run.datum], '{}'), 'exec', v_run.status, null,
                  array[v_one.id, v_run.datum], '{}'::text[]);
    v_objects := v_objects || v_run.objects || v_exec;
    v_pins := v_pins || row(p_scope, v_one.id, v_exec.id, v_inputs.execs, true)::durable._new_pin;
  end loop;
  if v_pins <> '{}' then
    perform durable._put_objects(v_objects);
    perform durable._pin(v_pins, null, durable._now_ms());
  end if;
end
$$;
comment on function durable._run_builtins(text, bytea[]) is
  'Runs builtins in a scope and pins what they give, except those whose pin was made from the inputs that are pinned now. WF013, WF014, WF015.';

create or replace function durable._evaluate_builtins(p_scope text, p_nodes bytea[])
returns void language plpgsql volatile
as $$
declare
  v_left bytea[] := array(
    with recursive below (id) as (
      select o.id from unnest(p_nodes) as n (id)
      join durable._objects o on o.id = any (array[n.id]) and o.kind = 'node' and o.sub = 'builtin'
      union
      select i.id from below b
      join durable._objects o on o.id = any (array[b.id])
      cross join lateral unnest(o.refs[2:]) r (id)
      join durable._objects i on i.id = any (array[r.id]) and i.kind = 'node' and i.sub = 'builtin')
    select b.id from below b);
  v_ready bytea[];
begin
  while v_left <> '{}' loop
    -- the round of a builtin is its height, so all sessions pin in one order
    v_ready := array(select o.id from unnest(v_left) as l (id)
                     join durable._objects o on o.id = any (array[l.id]) where not o.refs[2:] && v_left);
    perform durable._run_builtins(p_scope, v_ready);
    v_left := array(select l.id from unnest(v_left) as l (id) where l.id <> all (v_ready));
  end loop;
end
$$;
comment on function durable._evaluate_builtins(text, bytea[]) is
  'Gives the builtins among these nodes, and below them, the values that their inputs have in a scope now. WF013, WF014 for a call that has no result there, WF015.';
