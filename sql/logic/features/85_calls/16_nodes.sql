-- Nodes, DAGs and execs: the puts of one object each, for people and for the other files.

create or replace function durable._put(p_kind text, p_sub text, p_scalar bytea, p_refs bytea[], p_names text[] default '{}')
returns bytea language plpgsql volatile
as $$
begin
  return (durable._put_objects(array[row(null, p_kind, p_sub, p_scalar, p_refs, p_names)::durable._object]))[1];
end
$$;
comment on function durable._put(text, text, bytea, bytea[], text[]) is 'Puts one object and answers its id.';

create or replace function durable._uri_object(p_uri text)
returns durable._object language plpgsql immutable
as $$
begin
  if durable._is_uri(p_uri) is not true then
    perform durable._fail_invalid(format('%L is no URI in normal form.', left(p_uri, 200)),
                                  'A URI has a scheme and host in lower case, %41-style escapes only where they are needed, and no /../.');
  end if;
  return row(durable._object_id('datum', 'uri', convert_to(p_uri, 'UTF8'), '{}', '{}'), 'datum', 'uri', convert_to(p_uri, 'UTF8'),
             '{}'::bytea[], '{}'::text[])::durable._object;
end
$$;
comment on function durable._uri_object(text) is 'The datum of a URI, not put yet. WF004 unless it is in normal form.';

create or replace function durable._call_object(p_sub text, p_function text, p_inputs bytea[])
returns durable._object[] language plpgsql immutable
as $$
declare
  v_uri durable._object := durable._uri_object(p_function);
  v_refs bytea[] := array[v_uri.id] || coalesce(p_inputs, '{}');
begin
  return array[v_uri, row(durable._object_id('node', p_sub, null, v_refs, '{}'), 'node', p_sub, null, v_refs,
                          '{}'::text[])::durable._object];
end
$$;
comment on function durable._call_object(text, text, bytea[]) is 'The objects of a call or builtin, not put yet: the function and the node, which is the last.';

create or replace function durable.node_call(function text, inputs bytea[])
returns bytea language plpgsql volatile
as $$
begin
  if $1 like 'dml:%' then
    perform durable._fail_invalid('Functions of the scheme dml are builtins.', 'Call durable.builtin.');
  end if;
  return (durable._put_objects(durable._call_object('call', $1, $2)))[2];
end
$$;
comment on function durable.node_call(text, bytea[]) is
  'Puts the node of a call, whose id is known before anything runs: select durable.node_call(''dml+exec://local/sort'', array[durable.literal(''[2, 1]'')]). Nothing is started. WF001, WF004.';

create or replace function durable.node_literal(datum bytea)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put('node', 'literal', null, array[$1]);
end
$$;
comment on function durable.node_literal(bytea) is 'Puts the node of a value that is there as a datum. WF001, WF004.';

create or replace function durable.literal(value jsonb)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put('node', 'literal', null, array[durable._put_value($1, true)]);
end
$$;
comment on function durable.literal(jsonb) is
  'Puts the node of a value in plain JSON: select durable.literal(''{"rows": [1, 2.5]}''). A number with a point is an f64, any other an i64; jsonb writes 1e16 without a point. WF004 and WF008 name the place of what is wrong.';

create or replace function durable.node_import(dag bytea)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put('node', 'import', null, array[$1]);
end
$$;
comment on function durable.node_import(bytea) is 'Puts the node that stands for the root of another DAG. WF001, WF004.';

create or replace function durable._put_request(p_node bytea, p_meta jsonb)
returns bytea language plpgsql volatile
as $$
begin
  if jsonb_typeof(p_meta) is distinct from 'object' then
    perform durable._fail_invalid('A request is a JSON object.');
  end if;
  return durable._put('request', '', null, array[p_node, durable._put_value(p_meta, true)]);
end
$$;
comment on function durable._put_request(bytea, jsonb) is
  'Puts the request of a call: resources, queue, priority, labels. It is part of no key. WF004 unless it is an object.';

create or replace function durable._put_exec(p_node bytea, p_status text, p_result bytea)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put('exec', p_status, null, array[p_node, p_result]);
end
$$;
comment on function durable._put_exec(bytea, text, bytea) is
  'Puts the record that a call or builtin gave this: a DAG for a call, also if it failed, a datum for a builtin. Two runs with one result are one record. WF001, WF004, WF015.';

create or replace function durable.dag_put(root bytea, names jsonb default '{}')
returns bytea language plpgsql volatile
as $$
declare
  v_names text[];
  v_nodes bytea[];
begin
  if jsonb_typeof($2) is distinct from 'object' or $1 is null then
    perform durable._fail_invalid('A DAG has a root, and names as an object of ids: {"step": "<64 hexadecimal digits>"}.');
  end if;
  select array_agg(x.name order by x.name collate "C"), array_agg(durable._unhex(x.node) order by x.name collate "C")
  into v_names, v_nodes
  from (select normalize(n.key, nfc) as name, n.value as node from jsonb_each_text($2) n) x;
  return durable._put('dag', '', null, array[$1] || coalesce(v_nodes, '{}'), array[''] || coalesce(v_names, '{}'));
end
$$;
comment on function durable.dag_put(bytea, jsonb) is
  'Puts a DAG: its root node, which is its value, and nodes with names, by which people look inside: select durable.dag_put(root, ''{"parsed": "<id>"}''). WF001, WF004.';

create or replace function durable._node_json(p_id bytea)
returns jsonb language plpgsql stable
as $$
declare
  v_one durable._objects;
  v_function text;
begin
  select * into v_one from durable._objects o where o.id = p_id;
  if v_one.sub = 'literal' then
    return jsonb_build_object('value', durable._plain_json(durable._datum_json(v_one.refs[1])));
  elsif v_one.sub = 'import' then
    return jsonb_build_object('import', durable._hex(v_one.refs[1]));
  end if;
  v_function := (select durable._text_of(o.scalar) from durable._objects o where o.id = v_one.refs[1]);
  return jsonb_build_object(v_one.sub, v_function, 'inputs', (
    select coalesce(jsonb_agg(durable._hex(r.id) order by r.place), '[]')
    from unnest(v_one.refs[2:]) with ordinality r (id, place)));
end
$$;
comment on function durable._node_json(bytea) is 'A node as people read it: its value, its import, or its function and inputs.';

create or replace function durable.dag(id bytea)
returns jsonb language plpgsql stable
as $$
declare
  v_dag durable._objects;
begin
  select * into v_dag from durable._objects o where o.id = $1;
  if v_dag.kind is distinct from 'dag' then
    perform durable._fail_not_found('DAG', durable._hex($1), 'Read the ids from durable.objects.');
  elsif v_dag.excised_at is not null then
    perform durable._fail_excised($1);
  end if;
  return jsonb_build_object(
    'dag', durable._hex($1), 'root', durable._hex(v_dag.refs[1]), 'value', durable._node_json(v_dag.refs[1]),
    'nodes', (select coalesce(jsonb_object_agg(v_dag.names[n], jsonb_build_object('node', durable._hex(v_dag.refs[n]))
                                                               || durable._node_json(v_dag.refs[n])), '{}')
              from generate_series(2, cardinality(v_dag.refs)) n));
end
$$;
comment on function durable.dag(bytea) is 'A DAG as people read it: its root with its value, and its named nodes. WF001, WF015.';

create or replace function durable._pinned_result(p_scope text, p_node bytea)
returns bytea language sql stable
as $$
  select e.refs[2] from durable._pins p join durable._objects e on e.id = any (array[p.exec_id])
  where p.scope = p_scope and p.node_id = p_node and e.sub = 'ok'
$$;
comment on function durable._pinned_result(text, bytea) is
  'The result of a call or builtin in a scope, by its pin; null: none. Execs that a scope has not pinned may come from anywhere, and count for nothing.';

create or replace function durable._value_end(p_scope text, p_dag bytea)
returns durable._objects language plpgsql stable
as $$
declare
  v_id bytea := p_dag;
  v_next durable._objects;
  v_end durable._objects;
begin
  -- only calls whose results are calls of each other lead further than this
  for v_step in 1..1000 loop
    select * into v_next from durable._objects o where o.id = v_id;
    exit when not found;
    v_end := v_next;
    exit when v_end.kind = 'datum' or v_end.excised_at is not null;
    v_id := case when v_end.kind = 'dag' or v_end.sub in ('literal', 'import') then v_end.refs[1]
                 else durable._pinned_result(p_scope, v_end.id) end;
  end loop;
  return v_end;
end
$$;
comment on function durable._value_end(text, bytea) is
  'Where the way from a DAG to its value ends: through its root, DAGs that it imports, and results of calls that the scope has pinned. A datum is the value; an excised object or a call without a result is why there is none; all null: there is no such DAG.';

create or replace function durable._dag_datum(p_scope text, p_dag bytea)
returns bytea language sql stable
as $$ select e.id from durable._value_end(p_scope, p_dag) e where e.kind = 'datum' and e.excised_at is null $$;
comment on function durable._dag_datum(text, bytea) is 'The datum that a DAG stands for in a scope; null: it has no value there that can be read.';

create or replace function durable._readable_in(p_scope text, p_dag bytea)
returns text language plpgsql volatile
as $$
declare
  v_status text := durable.closure_status(p_dag);
  v_end durable._objects;
begin
  if v_status = 'ok' then
    v_end := durable._value_end(p_scope, p_dag);
    return case when v_end.excised_at is not null then 'excised'
                when v_end.kind = 'datum' then durable.closure_status(v_end.id) else 'missing' end;
  end if;
  return v_status;
end
$$;
comment on function durable._readable_in(text, bytea) is
  'Whether a scope can read a result: ok, with all that it reaches; missing: it is not here, or its root is a call that the scope has no result of; excised.';

create or replace function durable.dag_value(id bytea, scope text default null)
returns jsonb language plpgsql stable
as $$
declare
  v_end durable._objects;
begin
  if not exists (select from durable._objects o where o.id = $1 and o.kind = 'dag') then
    perform durable._fail_not_found('DAG', durable._hex($1), 'Read the ids from durable.objects.');
  end if;
  v_end := durable._value_end($2, $1);
  if v_end.excised_at is not null then
    perform durable._fail_excised(v_end.id);
  elsif v_end.kind <> 'datum' then
    perform durable._fail_input_unresolved(
      v_end.id, case when $2 is null then 'the result of a call is read in a scope'
                     else format('it has no result in scope %L', $2) end);
  end if;
  return durable._datum_json(v_end.id);
end
$$;
comment on function durable.dag_value(bytea, text) is
  'The value of a DAG, with its types: that of its root, through imports. A root that is a call or builtin has the result that the scope has pinned: select durable.dag_value(dag, ''exp-7''). WF001, WF014 if there is none, WF015.';
