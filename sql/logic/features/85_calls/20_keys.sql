-- Keys of calls: which values go in, what shares one result, which adapter serves a function. A key that cannot be computed fails
-- the call: there is no weaker key to fall back to.

create or replace function durable._call_promise(p_execution_key bytea)
returns text language sql immutable parallel safe
as $$ select 'call:' || encode(p_execution_key, 'hex') $$;
comment on function durable._call_promise(bytea) is 'Id of the promise of an attempt.';

create or replace function durable._call_key(p_promise text)
returns bytea language sql immutable parallel safe
as $$ select case when p_promise ~ '^call:[0-9a-f]{64}$' then decode(substr(p_promise, 6), 'hex') end $$;
comment on function durable._call_key(text) is 'The execution key in the id of the promise of an attempt; null for any other id.';

create or replace function durable._execution_key(p_value_key bytea, p_generation integer)
returns bytea language sql immutable parallel safe
as $$ select durable._object_id('key', 'exec', int4send(p_generation), array[p_value_key], '{}') $$;
comment on function durable._execution_key(bytea, integer) is
  'Idempotency key of an attempt towards backends: the same inputs in the same generation, always the same key.';

create or replace function durable._value_key(p_salt text, p_scope text, p_function_id bytea, p_values bytea[])
returns bytea language sql immutable parallel safe
as $$
  select durable._object_id(
    'key', 'value', convert_to(p_salt, 'UTF8') || coalesce(E'\\x00'::bytea || convert_to(p_scope, 'UTF8'), ''),
    p_function_id || p_values, '{}')
$$;
comment on function durable._value_key(text, text, bytea, bytea[]) is
  'Identity of a function applied to values in a cache namespace; p_scope: of a call that is not shared, else null. A salt has no zero byte, so the two never meet.';

create or replace function durable._named_adapter(p_function text)
returns text language sql immutable parallel safe
as $$ select substring(p_function from E'^dml[+]exec://([a-z0-9][a-z0-9._-]{0,63})(?:[/?#]|$)') $$;
comment on function durable._named_adapter(text) is 'The adapter that a function URI names itself: dml+exec://<adapter>/...; else null.';

create or replace function durable._adapter_of(p_function text)
returns text language plpgsql stable
as $$
declare
  v_adapter text := durable._named_adapter(p_function);
begin
  if v_adapter is null and not starts_with(p_function, 'dml+exec:') then
    select r.adapter into v_adapter from durable._routes r
    where starts_with(p_function, r.prefix) order by octet_length(r.prefix) desc limit 1;
  end if;
  if v_adapter is null then
    perform durable._fail_no_route(p_function, array(select r.prefix from durable._routes r order by r.prefix limit 20));
  end if;
  return v_adapter;
end
$$;
comment on function durable._adapter_of(text) is 'The adapter that serves a function: the one that its URI names, or the route of the longest prefix. WF013.';

create or replace function durable._served_as(p_function text, p_adapter text)
returns text language sql immutable parallel safe
as $$
  select p_adapter || coalesce(substring(p_function from E'^dml[+]exec://python[.][^/?#]+/([?][^/?#@\\s]{1,160})$'), '')
$$;
comment on function durable._served_as(text, text) is
  'The name under which workers serve a function: its adapter; for a memo function with the version after it, so a worker that has another version is never offered it.';

create or replace function durable.call_route(prefix text, adapter text)
returns text language plpgsql volatile
as $$
begin
  if $1 is null or $1 !~ '^[a-z][a-z0-9+.-]*:' or starts_with($1, 'dml') then
    perform durable._fail_invalid('A route begins with the scheme of a URI and a colon, and is not for dml: or dml+exec:.');
  elsif $2 !~ '^[a-z0-9][a-z0-9._-]{0,63}$' then
    perform durable._fail_invalid('The name of an adapter has 1 to 64 small letters, digits, dots, underscores and hyphens.');
  elsif $2 is null then
    delete from durable._routes r where r.prefix = $1;
    return null;
  end if;
  insert into durable._routes as r (prefix, adapter) values ($1, $2)
  on conflict on constraint routes_pk do update set adapter = excluded.adapter;
  return $2;
end
$$;
comment on function durable.call_route(text, text) is
  'Lets an adapter serve the functions whose URIs begin with a prefix: select durable.call_route(''s3://spark/'', ''spark''). The longest prefix counts; null as adapter removes the route. WF004.';

create or replace function durable._is_open(p_attempt durable._call_attempts)
returns boolean language sql immutable
as $$ select coalesce(p_attempt.ended_at, -1) = -1 $$;
comment on function durable._is_open(durable._call_attempts) is
  'The row has not been closed; for rows known by key. "ended_at is null" would let the planner read the partial index of all open attempts instead.';

create or replace function durable._is_live(p_execution_key bytea, p_now bigint)
returns boolean language sql stable
as $$
  select exists (select from durable._promises p
                 where p.id = durable._call_promise(p_execution_key) and p.state = 'pending' and p.timeout_at > p_now)
$$;
comment on function durable._is_live(bytea, bigint) is 'The attempt goes on: its promise is pending and before its deadline.';

create or replace function durable._status_in(p_scope text, p_node bytea)
returns text language plpgsql stable
as $$
begin
  return coalesce((
    select case when durable._is_live(a.execution_key, durable._now_ms()) then 'the call is running'
                else 'the call was given up' end
    from durable._call_waiters w
    join durable._call_attempts a on a.execution_key = any (array[w.execution_key])
    where w.scope = p_scope and w.node_id = p_node order by a.created_at desc, a.generation desc limit 1),
    'it was never called in this scope');
end
$$;
comment on function durable._status_in(text, bytea) is 'State of a call without a result in a scope, in words.';

create or replace function durable._inputs_of(
  p_scope text, p_nodes bytea[], out value_ids bytea[], out execs bytea[])
language plpgsql stable
as $$
declare
  v_node bytea;
  v_status text;
begin
  select coalesce(array_agg(x.value order by x.place), '{}'), coalesce(array_agg(x.exec order by x.place), '{}')
  into value_ids, execs from (
    select i.place, coalesce(p.exec_id, durable._no_object()) as exec, case
        when o.sub = 'literal' then o.refs[1]
        when o.sub = 'import' then durable._dag_datum(p_scope, o.refs[1])
        when e.sub = 'ok' and o.sub = 'builtin' then e.refs[2]
        when e.sub = 'ok' then durable._dag_datum(p_scope, e.refs[2]) end as value
    from unnest(p_nodes) with ordinality as i (id, place)
    left join durable._objects o on o.id = any (array[i.id]) and o.kind = 'node'
    left join durable._pins p on p.scope = p_scope and p.node_id = any (array[i.id]) and o.sub in ('call', 'builtin')
    left join durable._objects e on e.id = any (array[p.exec_id])) x;
  if array_position(value_ids, null) is not null then
    v_node := p_nodes[array_position(value_ids, null)];
    select case when o.id is null then 'there is no such node'
                when o.kind <> 'node' then 'it is no node, but a ' || o.kind
                when o.excised_at is not null then 'it was excised'
                when e.sub = 'error' then 'the call failed'
                when e.id is not null then 'its result is gone'
                when o.sub in ('call', 'builtin') then durable._status_in(p_scope, v_node)
                else 'it has no value' end
    into v_status from (select v_node as id) n
    left join durable._objects o on o.id = n.id
    left join durable._pins p on p.scope = p_scope and p.node_id = n.id
    left join durable._objects e on e.id = p.exec_id;
    perform durable._fail_input_unresolved(v_node, v_status);
  end if;
end
$$;
comment on function durable._inputs_of(text, bytea[]) is
  'Values of input nodes as a scope sees them, and the executions that stand for them: a literal has its datum, a call the value of its pinned result. WF014 with the first one that has none.';
