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
begin
  return array[v_uri, row(null, 'node', p_sub, null, array[v_uri.id] || coalesce(p_inputs, '{}'), '{}'::text[])::durable._object];
end
$$;
comment on function durable._call_object(text, text, bytea[]) is 'The objects of a call or builtin, not put yet: the function and the node, which is the last.';

create or replace function durable.node_call(function text, inputs bytea[])
returns bytea language plpgsql volatile
as $$
begin
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

create or replace function durable.node_import(dag bytea)
returns bytea language plpgsql volatile
as $$
begin
  return durable._put('node', 'import', null, array[$1]);
end
$$;
comment on function durable.node_import(bytea) is 'Puts the node that stands for the root of another DAG. WF001, WF004.';

create or replace function durable._put_exec(p_node bytea, p_status text, p_result bytea)
returns bytea language plpgsql volatile
as $$
declare
  v_node durable._objects;
  v_kind text;
begin
  select * into v_node from durable._objects o where o.id = p_node;
  v_kind := (select o.kind from durable._objects o where o.id = p_result);
  if v_node.kind = 'node' and v_kind <> (case v_node.sub when 'call' then 'dag' else 'datum' end) then
    perform durable._fail_invalid(format('The result of a %s is no %s.', v_node.sub, v_kind));
  end if;
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
