-- How much a value is once it is unfolded. An object may refer to one part many times: a few rows that refer to each other twice
-- mean more than any reader has memory for. Puts and readers look at the meaning, which costs as many look-ups as there are rows.

create or replace function durable._unfolded(
  p_id bytea, p_parts_max integer, p_bytes_max integer, out parts numeric, out bytes numeric, out is_deep boolean)
language plpgsql stable
as $$
declare
  v_ids bytea[] := array[p_id];
  v_counts numeric[] := '{1}';
  v_level record;
begin
  parts := 0;
  bytes := 0;
  for v_depth in 0..500 loop
    with here as materialized (
      select o.refs, coalesce(octet_length(o.scalar), 0) as bytes, f.n
      from unnest(v_ids, v_counts) f (id, n) join durable._objects o on o.id = any (array[f.id])
    )
    select (select sum(h.n) from here h) as parts, (select sum(h.n * h.bytes) from here h) as bytes,
           array_agg(x.id) as ids, array_agg(x.n) as counts into v_level
    from (select r.id, sum(h.n) as n from here h cross join lateral unnest(h.refs) r (id) group by r.id) x;
    parts := parts + coalesce(v_level.parts, 0);
    bytes := bytes + coalesce(v_level.bytes, 0);
    is_deep := v_level.ids is not null;
    exit when not is_deep or parts > p_parts_max or bytes > p_bytes_max;
    v_ids := v_level.ids;
    v_counts := v_level.counts;
  end loop;
end
$$;
comment on function durable._unfolded(bytea, integer, integer) is
  'How many parts a datum has, itself included, and how many bytes those have, once each part is written where it is referred to; and whether it is nested deeper than 500 levels. Counts level by level, each row once a level, and stops above p_parts_max and p_bytes_max.';

create or replace function durable._unfolded_flaw(p_id bytea)
returns text language sql stable
as $$
  select case when u.parts > 1000000 then 'it has more than 1000000 parts'
              when u.bytes > 67108864 then 'its texts and bytes have more than 67108864 bytes'
              when u.is_deep then 'it is nested deeper than 500 levels' end
  from durable._unfolded(p_id, 1000000, 67108864) u
$$;
comment on function durable._unfolded_flaw(bytea) is 'Why a datum is too much for its readers; null: it is not.';

create or replace function durable._is_long(p_id bytea)
returns boolean language sql stable
as $$ select u.parts > 6553 or u.bytes > 65536 or u.is_deep from durable._unfolded(p_id, 6553, 65536) u $$;
comment on function durable._is_long(bytea) is
  'Whether a datum is longer than 64 KiB as JSON for certain, where each part has 10 bytes, or too deep. Tells it without making the JSON.';

create or replace function durable._check_unfolded(p_objects durable._object[])
returns void language plpgsql volatile
as $$
declare
  v_top bytea;
  v_flaw text;
begin
  -- what is in another of them is no more than that one
  for v_top in
    select o.id from unnest(p_objects) o where o.kind = 'datum' and o.refs <> '{}'
    except
    select r.id from unnest(p_objects) o cross join lateral unnest(o.refs) r (id) where o.kind = 'datum'
  loop
    v_flaw := durable._unfolded_flaw(v_top);
    if v_flaw is not null then
      perform durable._fail_unfolded(v_top, v_flaw);
    end if;
  end loop;
end
$$;
comment on function durable._check_unfolded(durable._object[]) is
  'Whether new datums can be unfolded by their readers. Their ids are known, and they are inserted. WF004.';
