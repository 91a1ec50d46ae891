-- Large values. A value of a journal row above the setting large_value_bytes is stored in _journal_values under its hash, and the
-- row has a reference to it. A list or map of that size is taken apart: elements of 256 bytes and more are stored by themselves,
-- and a list whose beginning the run has stored refers to it. So a conversation that each of n steps returns takes the space of n
-- messages, not of n * n / 2.
--
-- In data, the control character SUB, which JSON text never contains, marks what is not plain text:
--   SUB f    at the beginning: references follow; each is SUB and the 64 hex digits of a hash, and stands for that value
--   SUB t    at the beginning: the text after it is meant as it is: it begins with SUB itself, or it is a list or map that was
--            taken apart and has no reference, so that nobody looks for one in all of it
-- White space between the elements of a value that was taken apart is not kept.

create or replace function durable._sub()
returns text language sql immutable parallel safe
as $$ select E'\x1a' $$;
comment on function durable._sub() is 'The control character SUB, the mark of references.';

create or replace function durable._empty_list()
returns bytea language sql immutable parallel safe
as $$ select sha256('[') $$;
comment on function durable._empty_list() is 'The hash of the list without elements: the prefix of every first list.';

create or replace function durable._plain(p_text text)
returns text language sql immutable parallel safe
as $$ select case when starts_with(p_text, durable._sub()) then durable._sub() || 't' || p_text else p_text end $$;
comment on function durable._plain(text) is 'A text in the form of data, without references.';

create or replace function durable._reference(p_hash bytea)
returns text language sql immutable parallel safe
as $$ select durable._sub() || encode(p_hash, 'hex') $$;
comment on function durable._reference(bytea) is 'The reference to a stored value.';

create or replace function durable._parted(p_form text)
returns text language sql immutable parallel safe
as $$ select durable._sub() || case when position(durable._sub() in p_form) > 0 then 'f' else 't' end || p_form $$;
comment on function durable._parted(text) is 'A list or map that was taken apart, in the form of data.';

create or replace function durable._value_hash(p_data text)
returns bytea language sql immutable parallel safe
as $$ select sha256(convert_to(p_data, 'UTF8')) $$;
comment on function durable._value_hash(text) is 'The hash of a stored value that is no list.';

create or replace function durable._container_type(p_text text)
returns text language plpgsql immutable
as $$
begin
  return (
    select case when t.type = 'array' and json_array_length(v.json) > 0
                     or t.type = 'object' and exists (select from json_object_keys(v.json)) then t.type end
    from (select p_text::json as json offset 0) v cross join lateral json_typeof(v.json) as t (type));
exception when invalid_text_representation or untranslatable_character or statement_too_complex then
  return null;
end
$$;
comment on function durable._container_type(text) is
  'array or object for the JSON text of a list or map with elements; null for every other text, which is stored whole.';

create or replace function durable._insert_value(p_bucket integer, p_execution bigint, p_data text)
returns text language plpgsql volatile
as $$
declare
  v_hash bytea := durable._value_hash(p_data);
begin
  insert into durable._journal_values (bucket, execution, hash, data) values (p_bucket, p_execution, v_hash, p_data)
  on conflict do nothing;
  return durable._reference(v_hash);
end
$$;
comment on function durable._insert_value(integer, bigint, text) is 'Stores data that is no list under its hash. Answers the reference.';

create or replace function durable._insert_list(p_bucket integer, p_execution bigint, p_texts text[], p_forms text[])
returns text language plpgsql volatile
as $$
declare
  v_count integer := cardinality(p_forms);
  v_hashes bytea[] := array[durable._empty_list()];
  v_known integer;
begin
  for i in 1..v_count loop
    v_hashes := v_hashes || sha256(v_hashes[i] || convert_to(p_forms[i], 'UTF8'));
  end loop;
  -- from the end: a list that grew is found at the second or third look-up
  v_known := coalesce((
    select n.number from generate_series(v_count, 1, -1) as n (number)
    where exists (select from durable._journal_values v
                  where v.bucket = p_bucket and v.execution = p_execution and v.hash = v_hashes[n.number + 1])
    limit 1), 0);
  if v_known < v_count then
    insert into durable._journal_values (bucket, execution, hash, data)
    select p_bucket, p_execution, durable._value_hash(e.text), e.text
    from unnest(p_texts[v_known + 1:]) as e (text) where e.text is not null
    on conflict do nothing;
    insert into durable._journal_values (bucket, execution, hash, prefix, data)
    values (p_bucket, p_execution, v_hashes[v_count + 1], v_hashes[v_known + 1],
            durable._parted(case when v_known = 0 then '[' else ',' end || array_to_string(p_forms[v_known + 1:], ',')));
  end if;
  return durable._reference(v_hashes[v_count + 1]) || ']';
end
$$;
comment on function durable._insert_list(integer, bigint, text[], text[]) is
  'Stores a list, as far as the run has no list with which it begins. p_forms: its elements as they stand in data; p_texts: at the same places, elements to store by themselves, null for others. Answers the reference, with the closing bracket.';

create or replace function durable._store_value(p_bucket integer, p_execution bigint, p_text text, p_levels integer)
returns text language plpgsql volatile
as $$
declare
  v_limit bigint := durable._setting_int('large_value_bytes');
  v_type text;
  v_texts text[];
  v_forms text[];
begin
  v_type := case when p_levels > 0 and octet_length(p_text) >= v_limit then durable._container_type(p_text) end;
  if v_type is null then
    return durable._insert_value(p_bucket, p_execution, durable._plain(p_text));
  end if;
  if v_type = 'object' then
    return durable._insert_value(p_bucket, p_execution, durable._parted('{' || (
      select string_agg(to_json(e.key)::text || ':' || case
               when octet_length(e.value::text) < 256 then e.value::text
               else durable._store_value(p_bucket, p_execution, e.value::text, p_levels - 1) end, ',' order by e.ord)
      from json_each(p_text::json) with ordinality as e (key, value, ord)) || '}'));
  end if;
  select array_agg(case when octet_length(e.text) between 256 and v_limit - 1 then e.text end order by e.ord),
         array_agg(case
           when octet_length(e.text) < 256 then e.text
           when octet_length(e.text) < v_limit then durable._reference(durable._value_hash(e.text))
           else durable._store_value(p_bucket, p_execution, e.text, p_levels - 1) end order by e.ord)
  into v_texts, v_forms
  from (select a.value::text as text, a.ord from json_array_elements(p_text::json) with ordinality as a (value, ord)) e;
  return durable._insert_list(p_bucket, p_execution, v_texts, v_forms);
end
$$;
comment on function durable._store_value(integer, bigint, text, integer) is
  'Stores a value of a run and answers what stands in data in its place. Lists and maps above the limit are taken apart down to p_levels, below which they are stored whole.';

create or replace function durable._store_text(p_bucket integer, p_execution bigint, p_text text)
returns text language plpgsql volatile
as $$
begin
  return case
    when octet_length(p_text) >= durable._setting_int('large_value_bytes')
      then durable._sub() || 'f' || durable._store_value(p_bucket, p_execution, p_text, 8)
    else durable._plain(p_text) end;
end
$$;
comment on function durable._store_text(integer, bigint, text) is '_stored_text for a text that may be large.';

create or replace function durable._stored_text(p_bucket integer, p_execution bigint, p_text text)
returns text language sql volatile
as $$
  select case when octet_length(p_text) >= 1024 or starts_with(p_text, durable._sub())
              then durable._store_text(p_bucket, p_execution, p_text) else p_text end
$$;
comment on function durable._stored_text(integer, bigint, text) is
  'A value as it stands in the data of a journal row. A large one is stored, and the row refers to it. Inlined, so a small one costs one comparison.';

create or replace function durable._store_large(p_events durable._event[])
returns durable._event[] language plpgsql volatile
as $$
begin
  return array(
    select row(e.execution, e.type, e.child, e.attempt, e.name, e.input_hash,
               durable._stored_text(h.bucket, h.execution, e.data))::durable._event
    from unnest(p_events) with ordinality as e (execution, type, child, attempt, name, input_hash, data, ord)
    join durable._executions h on h.execution = any (array[e.execution])
    order by e.ord);
end
$$;
comment on function durable._store_large(durable._event[]) is 'The events with their data as journal rows have it. The caller has locked the heads.';

create or replace function durable._expand(p_bucket integer, p_execution bigint, p_prefix bytea, p_data text)
returns text language plpgsql stable
as $$
declare
  v_prefix bytea := p_prefix;
  v_data text := p_data;
  v_forms text[] := '{}';
begin
  if p_prefix is null and not starts_with(p_data, durable._sub() || 'f') then
    return case when starts_with(p_data, durable._sub() || 't') then substr(p_data, 3) else p_data end;
  end if;
  loop
    v_forms := v_forms || substr(v_data, 3);
    exit when v_prefix is null or v_prefix = durable._empty_list();
    select v.prefix, v.data into v_prefix, v_data from durable._journal_values v
    where v.bucket = p_bucket and v.execution = p_execution and v.hash = v_prefix;
    if not found then
      perform durable._fail_value_missing(p_execution, v_prefix);
    end if;
  end loop;
  return (
    select string_agg(
             case when s.ord = 1 then s.text
                  else coalesce(e.text, durable._fail_value_missing(p_execution, h.hash)) || substr(s.text, 65) end,
             '' order by f.ord desc, s.ord)
    from unnest(v_forms) with ordinality as f (form, ord)
    cross join lateral string_to_table(f.form, durable._sub()) with ordinality as s (text, ord)
    cross join lateral (select case when s.ord > 1 then decode(left(s.text, 64), 'hex') end as hash) h
    -- one look-up for each reference, whatever the planner thinks of the size of the table
    left join lateral (
      select durable._expand(p_bucket, p_execution, v.prefix, v.data) as text
      from durable._journal_values v
      where v.bucket = p_bucket and v.execution = p_execution and v.hash = h.hash
      offset 0) e on true);
end
$$;
comment on function durable._expand(integer, bigint, bytea, text) is
  'The text that data stands for, its references followed, and its prefix before it.';

create or replace function durable._data(p_row durable._journal)
returns text language sql stable
as $$
  select case when starts_with(p_row.data, durable._sub())
              then durable._expand(p_row.bucket, p_row.execution, null, p_row.data) else p_row.data end
$$;
comment on function durable._data(durable._journal) is
  'The data of a journal row, read from where it is stored. Inlined, so a row without references costs one comparison. XX001.';

create or replace function durable._size_of(p_bucket integer, p_execution bigint, p_prefix bytea, p_data text)
returns bigint language plpgsql stable
as $$
begin
  if p_prefix is null and not starts_with(p_data, durable._sub() || 'f') then
    return octet_length(p_data);
  end if;
  return octet_length(p_data) + (
    select coalesce(sum(case when v.prefix is null and left(v.data, 1) <> durable._sub() then octet_length(v.data)
                             else durable._size_of(p_bucket, p_execution, v.prefix, v.data) end), 0)
    from (select decode(left(s.text, 64), 'hex') as hash
          from string_to_table(case when starts_with(p_data, durable._sub() || 'f') then p_data end, durable._sub())
               with ordinality as s (text, ord) where s.ord > 2
          union all select p_prefix) r
    cross join lateral (select x.prefix, x.data from durable._journal_values x
                        where x.bucket = p_bucket and x.execution = p_execution and x.hash = r.hash offset 0) v);
end
$$;
comment on function durable._size_of(integer, bigint, bytea, text) is
  'Bytes of the text that durable._expand makes, more or less, without making it: large values are not read.';

create or replace function durable._data_size(p_row durable._journal)
returns bigint language sql stable
as $$ select durable._size_of(p_row.bucket, p_row.execution, null, p_row.data) $$;
comment on function durable._data_size(durable._journal) is 'Bytes of durable._data of that row, more or less, without reading large values.';

create or replace function durable._references_in(p_data text)
returns setof bytea language sql immutable
as $$
  select decode(m[1], 'hex')
  from regexp_matches(case when starts_with(p_data, durable._sub() || 'f') then p_data end,
                      durable._sub() || '([0-9a-f]{64})', 'g') m
$$;
comment on function durable._references_in(text) is 'The hashes to which data refers.';

create or replace function durable._references_of(p_row durable._journal)
returns bytea[] language sql immutable
as $$ select array(select durable._references_in(p_row.data)) $$;
comment on function durable._references_of(durable._journal) is 'The hashes to which a journal row refers.';

create or replace function durable._remove_values(p_bucket integer, p_execution bigint, p_hashes bytea[])
returns void language plpgsql volatile
as $$
declare
  v_hashes bytea[] := p_hashes;
begin
  while v_hashes <> '{}' loop
    with referred as materialized (
      select unnest(durable._references_of(j)) as hash from durable._journal j
      where j.bucket = p_bucket and j.execution = p_execution
      union
      select r.hash from durable._journal_values v
      cross join lateral (select durable._references_in(v.data) union all select v.prefix) as r (hash)
      where v.bucket = p_bucket and v.execution = p_execution
    ), gone as (
      delete from durable._journal_values v
      where v.bucket = p_bucket and v.execution = p_execution and v.hash = any (v_hashes)
        and not exists (select from referred r where r.hash = v.hash)
      returning v.prefix, v.data
    )
    select coalesce(array_agg(distinct r.hash) filter (where r.hash is not null), '{}') into v_hashes
    from gone g cross join lateral (select durable._references_in(g.data) union all select g.prefix) as r (hash);
  end loop;
end
$$;
comment on function durable._remove_values(integer, bigint, bytea[]) is
  'Removes those of the values of a run to which nothing refers any more, and then what only they referred to. Reads the rows of the run and, of its values, those that refer to others; of the rest it reads the beginning. The caller holds the head, and every row that refers to a value is written.';
