-- Identity: the id of an object is the hash of what it is. Python computes the same ids (pyengine/features/calls/identity.py),
-- and both are tested against tests/features/calls/vectors.json. A change of this encoding is a new version in the tag, never a
-- silent re-hash.

create or replace function durable._object_id(p_kind text, p_sub text, p_scalar bytea, p_refs bytea[], p_names text[])
returns bytea language plpgsql immutable parallel safe
as $$
declare
  v_bytes bytea := convert_to('durable/1/' || p_kind || '/' || p_sub, 'UTF8') || E'\\x00'::bytea
                   || int4send(coalesce(octet_length(p_scalar), 0)) || coalesce(p_scalar, '')
                   || int4send(coalesce(cardinality(p_refs), 0));
begin
  if cardinality(p_refs) = 1 then
    v_bytes := v_bytes || p_refs[1];
  elsif cardinality(p_refs) > 1 then
    v_bytes := v_bytes || (select string_agg(r.id, '' order by r.place) from unnest(p_refs) with ordinality r (id, place));
  end if;
  v_bytes := v_bytes || int4send(coalesce(cardinality(p_names), 0));
  if cardinality(p_names) > 0 then
    v_bytes := v_bytes || (
      select string_agg(int4send(octet_length(b.name)) || b.name, '' order by n.place)
      from unnest(p_names) with ordinality n (name, place) cross join lateral (select convert_to(n.name, 'UTF8') as name) b);
  end if;
  return sha256(v_bytes);
end
$$;
comment on function durable._object_id(text, text, bytea, bytea[], text[]) is
  'SHA-256 of: durable/1/kind/sub, a zero byte, length and bytes of the scalar, number of refs and each ref (32 bytes), number of names and each name with its length (UTF-8). Lengths and numbers have 4 bytes, big endian; null counts as empty. Kinds of keys, which are no objects: key/value and key/exec.';

create or replace function durable._hex(p_id bytea)
returns text language sql immutable parallel safe
as $$ select encode(p_id, 'hex') $$;
comment on function durable._hex(bytea) is 'An id as people and JSON write it.';

create or replace function durable._unhex(p_hex text)
returns bytea language plpgsql immutable parallel safe
as $$
begin
  if p_hex !~ '^[0-9a-f]{64}$' then
    perform durable._fail_invalid(format('%L is no id: 64 hexadecimal digits in lower case.', left(p_hex, 80)));
  end if;
  return decode(p_hex, 'hex');
end
$$;
comment on function durable._unhex(text) is 'The id that 64 hexadecimal digits write. Null for null, WF004 for anything else.';

create or replace function durable._no_object()
returns bytea language sql immutable parallel safe
as $$ select decode(repeat('00', 32), 'hex') $$;
comment on function durable._no_object() is '32 zero bytes: the place of a ref that a commit does not have.';

create or replace function durable._text_of(p_bytes bytea)
returns text language plpgsql immutable parallel safe
as $$
begin
  return convert_from(p_bytes, 'UTF8');
exception when character_not_in_repertoire or untranslatable_character then
  return null;
end
$$;
comment on function durable._text_of(bytea) is 'UTF-8 as text; null if it is none, or has a NUL, which no text of PostgreSQL has.';

create or replace function durable._is_uri(p_uri text)
returns boolean language plpgsql immutable parallel safe
as $$
declare
  v_host text := regexp_replace(substring(p_uri from '^[^:]+://(?:[^/?#@]*@)?([^/?#@]*)'), '%[0-9A-F]{2}', '', 'g');
begin
  return p_uri ~ E'^[a-z][a-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\\[\\]@!$&''()*+,;=-]|%[0-9A-F]{2})*$'
         and p_uri !~ '%(?:2D|2E|5F|7E|3[0-9]|[46][1-9A-F]|[57][0-9A])'
         and p_uri !~ '^[^:/?#]+:(?:[^?#]*/)?[.]{1,2}(?:[/?#]|$)'
         and v_host is not distinct from lower(v_host);
end
$$;
comment on function durable._is_uri(text) is
  'A URI in the normal form of RFC 3986: scheme and host in lower case, digits of escapes in upper case, no escape of a letter, digit, hyphen, dot, underscore or tilde, no path segment that is . or .., nothing outside ASCII.';

create or replace function durable._is_sorted(p_ids bytea[])
returns boolean language sql immutable parallel safe
as $$ select p_ids = array(select distinct i from unnest(p_ids) i order by i) $$;
comment on function durable._is_sorted(bytea[]) is 'Ascending, none twice.';

create or replace function durable._is_sorted(p_names text[])
returns boolean language sql immutable parallel safe
as $$ select p_names = array(select distinct i collate "C" as name from unnest(p_names) i order by name) $$;
comment on function durable._is_sorted(text[]) is 'Ascending by their bytes, none twice.';

create or replace function durable._every(p_ids bytea[], p_first integer, p_step integer)
returns bytea[] language sql immutable parallel safe
as $$ select array(select p_ids[n] from generate_series(p_first, cardinality(p_ids), p_step) n) $$;
comment on function durable._every(bytea[], integer, integer) is 'Each p_step-th id, from p_first on: the keys of a map, the nodes of a commit.';

create or replace function durable._parents(p_scalar bytea)
returns bigint language sql immutable parallel safe
as $$ select ('x' || encode(p_scalar, 'hex'))::bit(32)::bigint $$;
comment on function durable._parents(bytea) is 'Number of the parents of a commit, by its scalar.';

create or replace function durable._is_nan(p_scalar bytea)
returns boolean language plpgsql immutable parallel safe
as $$
declare
  v_bits bit(64) := ('x' || encode(p_scalar, 'hex'))::bit(64);
begin
  return v_bits & x'7ff0000000000000' = x'7ff0000000000000' and v_bits & x'000fffffffffffff' <> x'0000000000000000';
end
$$;
comment on function durable._is_nan(bytea) is 'Whether the 8 bytes of an f64 are no number.';

create or replace function durable._datum_flaw(p_sub text, p_scalar bytea, p_refs bytea[])
returns text language plpgsql immutable parallel safe
as $$
declare
  v_text text;
begin
  if p_sub = 'bool' and p_scalar not in (E'\\x00', E'\\x01') then
    return 'a bool is the byte 00 or 01';
  elsif p_sub = 'f64' and p_scalar = E'\\x8000000000000000' then
    return 'zero has no sign';
  elsif p_sub = 'f64' and p_scalar <> E'\\x7ff8000000000000' and durable._is_nan(p_scalar) then
    return 'NaN is 7ff8000000000000';
  elsif p_sub in ('string', 'uri') then
    v_text := durable._text_of(p_scalar);
    return case when v_text is null then 'a text is UTF-8 without NUL'
                when v_text is not nfc normalized then 'a text is in Unicode form NFC'
                when p_sub = 'uri' and not durable._is_uri(v_text) then 'a URI is in the normal form of RFC 3986' end;
  elsif p_sub = 'set' and not durable._is_sorted(p_refs) then
    return 'members of a set are sorted by id, none twice';
  elsif p_sub = 'map' and not durable._is_sorted(durable._every(p_refs, 1, 2)) then
    return 'entries of a map are sorted by the id of their key, none twice';
  end if;
  return null;
end
$$;
comment on function durable._datum_flaw(text, bytea, bytea[]) is 'The law of canonical bytes or order that a datum breaks; null: none.';

create or replace function durable._object_flaw(p_kind text, p_sub text, p_scalar bytea, p_refs bytea[], p_names text[])
returns text language plpgsql immutable parallel safe
as $$
declare
  v_nodes bigint;
begin
  if p_kind = 'datum' then
    return durable._datum_flaw(p_sub, p_scalar, p_refs);
  elsif p_kind = 'dag' and (p_names[1] <> '' or '' = any (p_names[2:]) or not durable._is_sorted(p_names)) then
    return 'names of a DAG are sorted, none twice, and the empty name is its root''s';
  elsif p_kind = 'tree' and ('' = any (p_names) or not durable._is_sorted(p_names)) then
    return 'names of a tree are sorted, none twice, none empty';
  elsif p_kind = 'commit' then
    v_nodes := durable._parents(p_scalar) + 2;
    return case when v_nodes not between 2 and cardinality(p_refs) + 1 or (cardinality(p_refs) + 1 - v_nodes) % 3 <> 0
                  then 'a commit has its tree, as many parents as it counts, and three refs for each exec'
                when not durable._is_sorted(durable._every(p_refs, v_nodes::integer, 3))
                  then 'execs of a commit are sorted by node, one each' end;
  end if;
  return null;
end
$$;
comment on function durable._object_flaw(text, text, bytea, bytea[], text[]) is
  'The law of canonical bytes or order that a content breaks, in words; null: none. Its other laws are in durable._lawful_object.';

create or replace function durable._ref_kind(p_kind text, p_sub text, p_scalar bytea, p_place bigint)
returns text language sql immutable parallel safe
as $$
  select case p_kind
    when 'datum' then 'datum'
    when 'node' then case when p_sub = 'import' then 'dag' when p_sub = 'literal' then 'datum'
                          when p_place = 1 then 'uri' else 'node' end
    when 'dag' then 'node'
    when 'tree' then 'dag'
    when 'exec' then case when p_place = 1 then 'call or builtin' else 'dag or datum' end
    when 'request' then case when p_place = 1 then 'node' else 'map' end
    when 'commit' then case when p_place = 1 then 'tree' when p_place <= durable._parents(p_scalar) + 1 then 'commit'
                            else (array['call or builtin', 'exec', 'map or none'])[
                              (p_place - durable._parents(p_scalar) - 2) % 3 + 1] end end
$$;
comment on function durable._ref_kind(text, text, bytea, bigint) is 'The kind of object that an object has at a place of its refs.';
