-- The laws of large values: references lead to values, and values belong to a journal that refers to them.

create or replace function durable._list_hash(p_prefix bytea, p_data text)
returns bytea language plpgsql immutable
as $$
declare
  v_hash bytea := p_prefix;
  v_form text;
begin
  if left(p_data, 3) <> all (array[durable._sub() || 'f[', durable._sub() || 't[']) and p_prefix = durable._empty_list()
     or left(p_data, 3) <> all (array[durable._sub() || 'f,', durable._sub() || 't,']) and p_prefix <> durable._empty_list() then
    return '';
  end if;
  -- a reference becomes a text, so that JSON can take the list apart; an element that stands there itself has less than 256 bytes
  for v_form in
    select case when octet_length(e.value::text) < 256 then e.value::text
                else durable._sub() || trim('" ' from e.value::text) end
    from json_array_elements(('[' || regexp_replace(
      substr(p_data, 4), durable._sub() || E'([0-9a-f]{64}\\]?)', '"' || repeat(' ', 256) || E'\\1"', 'g') || ']')::json)
      with ordinality as e (value, ord)
    order by e.ord
  loop
    v_hash := sha256(v_hash || convert_to(v_form, 'UTF8'));
  end loop;
  return v_hash;
exception when invalid_text_representation then
  return '';
end
$$;
comment on function durable._list_hash(bytea, text) is
  'The hash under which a list with that beginning is stored: that of its beginning, and of each further element; nothing that is a hash, if the data is no list.';

create or replace function durable._check_values(p_runs int8multirange, p_rows durable._journal_line[])
returns table (law text, id text, detail text) language sql stable
as $$
  with stored as (
    select x.* from unnest(p_runs) as s (span)
    cross join lateral (select v.* from durable._journal_values v
                        where v.execution >= lower(s.span) and v.execution < upper(s.span) offset 0) x
  ), referred as (
    select j.execution, 'seq ' || j.seq as source, r.hash
    from (select l.execution, l.bucket, l.seq from unnest(p_rows) l where l.has_references) w
    join durable._journal j on j.execution = any (array[w.execution]) and j.bucket = w.bucket and j.seq = w.seq
    cross join lateral durable._references_in(j.data) as r (hash)
    union all
    select v.execution, 'value ' || encode(v.hash, 'hex'), r.hash
    from stored v cross join lateral durable._references_in(v.data) as r (hash)
    union all
    select v.execution, 'value ' || encode(v.hash, 'hex'), v.prefix from stored v where v.prefix <> durable._empty_list()
  ), known as (
    select x.execution, x.hash, max(x.source) as source,
           bool_or(x.is_stored) as is_stored, bool_or(not x.is_stored) as is_referred
    from (select v.execution, v.hash, true as is_stored, null as source from stored v
          union all
          select r.execution, r.hash, false, r.source from referred r) x
    group by x.execution, x.hash
  )
  select 'LV-1 reference_leads_to_a_value', k.execution::text, format('%s refers to %s', k.source, encode(k.hash, 'hex'))
  from known k where not k.is_stored
  union all
  select 'LV-2 value_is_referred_to', k.execution::text, format('value %s', encode(k.hash, 'hex'))
  from known k where not k.is_referred
  union all
  select 'LV-3 value_is_under_its_hash', v.execution::text, format('value %s', encode(v.hash, 'hex'))
  from stored v
  where v.hash <> case when v.prefix is null then durable._value_hash(v.data) else durable._list_hash(v.prefix, v.data) end
  union all
  select 'LV-4 value_is_in_the_partition_of_its_journal', v.execution::text,
         format('value %s in %s, journal in %s', encode(v.hash, 'hex'), v.bucket, h.bucket)
  from stored v left join durable._executions h on h.execution = any (array[v.execution])
  where h.bucket is distinct from v.bucket
$$;
comment on function durable._check_values(int8multirange, durable._journal_line[]) is
  'Laws of large values (LV-1 to LV-4); a list is under the hash of its beginning and its elements. Values never refer to each other in a circle, because a hash contains the hashes that it refers to.';
