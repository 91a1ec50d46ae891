-- JSON schemas of types that Python code declares, compared with values by their JSON type and by the keys of an object, and no
-- deeper: senders in any language are refused what no reader could take. The rest of a type is checked where it is read.

create or replace function durable._schema_branches(p_schema jsonb)
returns table (branch jsonb) language sql immutable parallel safe
as $$
  with recursive part as (
    select p_schema as branch, 0 as depth
    union all
    select n.branch, b.depth + 1
    from part b
    cross join lateral (
      select p_schema -> '$defs' -> replace(b.branch ->> '$ref', '#/$defs/', '') where b.branch ? '$ref'
      union all
      select o.branch from jsonb_array_elements(coalesce(b.branch -> 'anyOf', b.branch -> 'oneOf')) as o (branch)) n (branch)
    where b.depth < 8)
  select case when s.branch ?| '{$ref,anyOf,oneOf}' then '{}' else s.branch end
  from part s
  where s.depth = 8 or not s.branch ?| '{$ref,anyOf,oneOf}'
$$;
comment on function durable._schema_branches(jsonb) is
  'The alternatives of a JSON schema: its references and unions resolved, 8 levels deep; what lies deeper allows everything.';

create or replace function durable._schema_types(p_branch jsonb)
returns text[] language plpgsql immutable parallel safe
as $$
begin
  return array(
    select distinct replace(t.type, 'integer', 'number')
    from (
      select x as type from jsonb_array_elements_text(
        case jsonb_typeof(p_branch -> 'type') when 'array' then p_branch -> 'type'
          when 'string' then jsonb_build_array(p_branch -> 'type') end) x
      union all
      select jsonb_typeof(e) from jsonb_array_elements(p_branch -> 'enum') e where not p_branch ? 'type') t
    order by 1);
end
$$;
comment on function durable._schema_types(jsonb) is 'The JSON types that one alternative of a schema allows; empty for any.';

create or replace function durable._schema_fault(p_schema jsonb, p_value json)
returns text language plpgsql immutable
as $$
declare
  v_type text := json_typeof(p_value);
  v_fits boolean;
  v_missing text;
  v_types text;
begin
  select bool_or(f.is_type and m.missing is null), min(m.missing) filter (where f.is_type),
         string_agg(distinct array_to_string(t.types, ' or '), ' or ')
  into v_fits, v_missing, v_types
  from durable._schema_branches(p_schema) b
  cross join lateral (select durable._schema_types(b.branch) as types offset 0) t
  cross join lateral (select t.types = '{}' or v_type = any (t.types) as is_type) f
  cross join lateral (
    select string_agg(quote_literal(k), ', ') as missing
    from jsonb_array_elements_text(case when v_type = 'object' then b.branch -> 'required' end) k
    where p_value -> k is null) m;
  return case
    when v_fits is distinct from false then null
    when v_missing is not null then format('lacks %s', v_missing)
    else format('is of type %s, not %s', v_type, v_types) end;
exception when untranslatable_character then
  -- an escape that no text of the server can be: the reader of the value checks it
  return null;
end
$$;
comment on function durable._schema_fault(jsonb, json) is
  'Why a value does not fit a JSON schema, as the end of a sentence: by the type of the value and the keys of an object, and no deeper. Null if it fits.';
