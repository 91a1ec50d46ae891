-- Calls of a user's function by its name with JSON arguments, for steps in SQL and services. Names come from the catalogue
-- only, values are passed as one parameter. A caller must not have pinned its search path or plan settings, because the
-- function runs under those of the session. The engine holds no lock during the call: no turn waits for a user's code, and no
-- lock of the engine blocks a user's row.

create or replace function durable._functions_named(p_name text)
returns oid[] language plpgsql stable
as $$
declare
  v_parts text[];
begin
  if p_name is null or p_name !~ E'^[^(]+(\\(.*\\))?$' or durable._canonical_function(split_part(p_name, '(', 1)) is null then
    perform durable._fail_invalid(
      format('%L is no name of a function with its schema.', p_name),
      'Write schema.function, and where several have that name the types too: billing.close(date).');
  elsif strpos(p_name, '(') > 0 then
    return array(select f from (select to_regprocedure(p_name)::oid as f) x where f is not null);
  end if;
  v_parts := parse_ident(p_name);
  return array(
    select p.oid from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where n.nspname = v_parts[1] and p.proname = v_parts[2] order by p.oid::regprocedure::text);
end
$$;
comment on function durable._functions_named(text) is 'Functions, procedures and aggregates of that name, or the one with those argument types. WF004.';

create or replace function durable._inputs(p_function oid)
returns table (ord integer, name text, type oid, is_needed boolean) language sql stable
as $$
  select i.ord, i.name, i.type, i.ord <= i.needed
  from (
    select row_number() over (order by a.ord)::integer as ord, nullif(a.name, '') as name, a.type,
           p.pronargs - p.pronargdefaults as needed
    from pg_catalog.pg_proc p
    cross join lateral unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes, p.proargnames)
      with ordinality as a (type, mode, name, ord)
    where p.oid = p_function and coalesce(a.mode, 'i') in ('i', 'b', 'v')) i
$$;
comment on function durable._inputs(oid) is
  'Input parameters of a function, numbered from 1; a parameter without a default is needed.';

create or replace function durable._takes(p_function oid, p_args jsonb)
returns boolean language sql stable
as $$
  select case jsonb_typeof(p_args)
    when 'array' then (select coalesce(jsonb_array_length(p_args) between count(*) filter (where i.is_needed) and count(*), false)
                       from durable._inputs(p_function) i)
    else not exists (
           select from jsonb_object_keys(p_args) k
           where not exists (select from durable._inputs(p_function) i where i.name = k))
         and not exists (select from durable._inputs(p_function) i where i.is_needed and not coalesce(p_args ? i.name, false)) end
$$;
comment on function durable._takes(oid, jsonb) is 'Whether the function can be called with these arguments, by position (array) or by name (object).';

create or replace function durable._written(p_function oid)
returns text language sql stable
as $$ select format('%s(%s)', split_part(p_function::regprocedure::text, '(', 1), pg_get_function_arguments(p_function)) $$;
comment on function durable._written(oid) is 'A function with its parameters, for people.';

create or replace function durable._check_callable(p_function oid)
returns void language plpgsql stable
as $$
declare
  v_name text := p_function::regprocedure::text;
  v_proc record;
begin
  select p.prokind, p.prorettype, p.proargmodes, p.pronamespace, t.typname, t.typtype into v_proc
  from pg_catalog.pg_proc p join pg_catalog.pg_type t on t.oid = p.prorettype where p.oid = p_function;
  if v_proc.prokind <> 'f' then
    perform durable._fail_invalid(
      format('%s is %s.', v_name, case v_proc.prokind when 'p' then 'a procedure' when 'a' then 'an aggregate'
                                                      else 'a window function' end),
      'Make it a function: it is called within one transaction, and its result is recorded.');
  elsif v_proc.typtype = 'p' and v_proc.typname not in ('void', 'record') or
        v_proc.typname = 'record' and v_proc.typtype = 'p' and v_proc.proargmodes is null then
    perform durable._fail_invalid(format('%s returns %s, which cannot be recorded.', v_name, v_proc.typname),
                                  'Return a named type, jsonb, a table (...) or void.');
  elsif exists (select from durable._inputs(p_function) i join pg_catalog.pg_type t on t.oid = i.type where t.typtype = 'p') then
    perform durable._fail_invalid(format('%s has a parameter whose type its caller decides.', durable._written(p_function)),
                                  'JSON does not say which: wrap it in a function with named types.');
  elsif not has_schema_privilege(v_proc.pronamespace, 'usage') or not has_function_privilege(p_function, 'execute') then
    perform durable._fail_invalid(
      format('%s may not execute %s.', current_user, v_name),
      format('grant usage on schema %s to %I; grant execute on function %s to %I;', split_part(v_name, '.', 1), current_user,
             v_name, current_user));
  end if;
end
$$;
comment on function durable._check_callable(oid) is
  'Raises WF004 for a function that cannot be called with JSON, or not by this user, with advice.';

create or replace function durable._pick_function(p_name text, p_args jsonb)
returns oid language plpgsql stable
as $$
declare
  v_named oid[] := durable._functions_named(p_name);
  v_fit oid[];
begin
  if v_named = '{}' then
    perform durable._fail_not_found('function', p_name, E'Create it, or look for it with \\df schema.*');
  elsif p_args is null or jsonb_typeof(p_args) not in ('array', 'object') then
    perform durable._fail_invalid('Arguments are a JSON array (by position) or a JSON object (by name).');
  end if;
  if cardinality(v_named) = 1 then
    perform durable._check_callable(v_named[1]);
  end if;
  v_fit := array(select f from unnest(v_named) f where durable._takes(f, p_args));
  if v_fit = '{}' then
    perform durable._fail_invalid(
      format('No function %s takes %s.', p_name, case jsonb_typeof(p_args)
        when 'array' then jsonb_array_length(p_args) || ' arguments by position'
        else 'arguments named ' || coalesce((select string_agg(k, ', ') from jsonb_object_keys(p_args) k), '(none)') end),
      'There is ' || (select string_agg(durable._written(f), ' and ') from unnest(v_named) f));
  elsif cardinality(v_fit) > 1 then
    perform durable._fail_invalid(
      format('Several functions %s take these arguments.', p_name),
      'Say which: ' || (select string_agg(quote_literal(f::regprocedure::text), ' or ') from unnest(v_fit) f));
  end if;
  perform durable._check_callable(v_fit[1]);
  return v_fit[1];
end
$$;
comment on function durable._pick_function(text, jsonb) is
  'The one function of that name which takes these arguments. WF001 if there is none; WF004 if none or several fit, or if it cannot be called.';

create or replace function durable._call_text(p_function oid, p_args jsonb)
returns text language sql stable
as $$
  select format(
    case when p.prorettype = 'void'::regtype then 'select case when (%2$s)::text is not null then null::jsonb end %1$s'
         when p.proretset
           then 'select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(r)), ''[]'') %1$s cross join lateral %2$s as r'
         else 'select pg_catalog.to_jsonb(%2$s) %1$s' end,
    case when g.columns is null then 'from (select) x'
         else format('from pg_catalog.jsonb_to_record($1) as x (%s)', g.columns) end,
    format('%I.%I(%s)', n.nspname, p.proname, coalesce(g.arguments, '')))
  from pg_catalog.pg_proc p
  join pg_catalog.pg_namespace n on n.oid = p.pronamespace
  cross join lateral (
    select string_agg(format('a%s %s', i.ord, format_type(i.type, null)), ', ' order by i.ord) as columns,
           string_agg(case when p.provariadic <> 0 and i.ord = p.pronargs then 'variadic ' else '' end
                      || case when jsonb_typeof(p_args) = 'object' then format('%I => ', i.name) else '' end
                      || format('x.a%s', i.ord), ', ' order by i.ord) as arguments
    from durable._inputs(p_function) i
    where case jsonb_typeof(p_args) when 'array' then i.ord <= jsonb_array_length(p_args) else p_args ? i.name end) g
  where p.oid = p_function
$$;
comment on function durable._call_text(oid, jsonb) is
  'The statement that calls a function: identifiers and types from the catalogue, the values in $1. A set is returned as an array.';

create or replace function durable._call_values(p_function oid, p_args jsonb)
returns jsonb language sql stable
as $$
  select coalesce(jsonb_object_agg('a' || i.ord, case jsonb_typeof(p_args) when 'array' then p_args -> (i.ord - 1)
                                                      else p_args -> i.name end), '{}')
  from durable._inputs(p_function) i
  where case jsonb_typeof(p_args) when 'array' then i.ord <= jsonb_array_length(p_args) else p_args ? i.name end
$$;
comment on function durable._call_values(oid, jsonb) is 'The arguments, numbered as _call_text numbers them.';

create or replace function durable._call_function(p_name text, p_args jsonb)
returns text language plpgsql volatile
as $$
declare
  v_function oid := durable._pick_function(p_name, p_args);
  v_value jsonb;
begin
  execute durable._call_text(v_function, p_args) into v_value using durable._call_values(v_function, p_args);
  -- a deferred constraint would fail at the commit, when its error can no longer be recorded
  set constraints all immediate;
  return coalesce(v_value::text, 'null');
end
$$;
comment on function durable._call_function(text, jsonb) is
  'Calls a function of a user under the session''s own settings and answers its result as JSON text. Its errors pass unchanged.';

create or replace function durable._is_final(p_sqlstate text)
returns boolean language sql immutable parallel safe
as $$ select left(p_sqlstate, 2) in ('0A', '42', 'WF') $$;
comment on function durable._is_final(text) is
  'True if another attempt would fail the same way: the call is wrong (unknown function, wrong arguments, no right), or the engine refuses it.';

create or replace function durable._passes(p_sqlstate text)
returns boolean language sql immutable parallel safe
as $$
  select p_sqlstate in ('53000', '53100', '53200', '53300', '57P01', '57P02', '57P03', '57P05', '58000', '58030', '25P03',
                        '25P04')
$$;
comment on function durable._passes(text) is
  'True if the error is about the state of the server and not about the call (disk full, out of memory, too many connections, a shutdown): the attempt is lost, and the same call may succeed later. Our client has the same list.';

create or replace function durable._sql_error(
  p_sqlstate text, p_message text, p_detail text, p_hint text, p_constraint text, p_table text)
returns text language sql immutable parallel safe
as $$
  select jsonb_build_object(
    'type', 'SqlError', 'module', 'pyengine', 'kind', 'UserError', 'message', e.message,
    'args', jsonb_build_array(e.message), 'retryable', not durable._is_final(p_sqlstate),
    'data', jsonb_build_object('sqlstate', p_sqlstate, 'detail', left(nullif(p_detail, ''), 100000),
                               'hint', left(nullif(p_hint, ''), 100000), 'constraint', nullif(p_constraint, ''),
                               'table', nullif(p_table, ''), 'retryable', not durable._is_final(p_sqlstate)))::text
  from (select left(p_message, 100000) as message) e
$$;
comment on function durable._sql_error(text, text, text, text, text, text) is
  'An error of a function in the form of a run''s error: data has sqlstate, detail, hint, constraint and table. The package reads it as a SqlError.';
