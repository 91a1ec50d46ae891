-- durable.check(): the division of the database into portions, and the check of each by all laws. A portion has about 10,000
-- events or 2,000 promises, so a check of any size sorts little and keeps nothing. It goes through runs by number, then through
-- ids in order. The space between two heads or two promises belongs to a portion too, so rows without a head or promise are
-- found.

create or replace function durable._after(p_id text)
returns text language sql immutable parallel safe
as $$ select p_id || chr(1) $$;
comment on function durable._after(text) is 'The first id after this one in the order of ids.';

create or replace function durable._runs_from(p_first bigint)
returns int8multirange language plpgsql stable
as $$
begin
  return (
    select int8multirange(int8range(p_first, coalesce(
      -- the head that fills the portion, or the last one of the largest number of heads
      min(x.execution) filter (where x.events >= 10000 or x.place = 2000) + 1, 9223372036854775807)))
    from (
      select h.execution, sum(h.next_seq) over w as events, row_number() over w as place
      from (select e.execution, e.next_seq from durable._executions e
            where e.execution >= p_first order by e.execution limit 2000) h
      window w as (order by h.execution)) x);
end
$$ set enable_sort = off set jit = off;
comment on function durable._runs_from(bigint) is
  'The portion of runs that begins with this number; the last portion has no end.';

create or replace function durable._ids_from(p_first text)
returns text language plpgsql stable
as $$
begin
  return coalesce(
    (select p.id from durable._promises p where p.id >= p_first order by p.id offset 2000 limit 1),
    durable._after(greatest(
      p_first collate "C",
      (select p.id from durable._promises p order by p.id desc limit 1),
      (select t.id from durable._tasks t order by t.id desc limit 1),
      (select k.awaited_id from durable._callbacks k order by k.awaited_id desc limit 1),
      (select l.awaited_id from durable._listeners l order by l.awaited_id desc limit 1),
      (select r.task_id from durable._resumes r order by r.task_id desc limit 1),
      (select u.promise_id from durable._unblocks u order by u.promise_id desc limit 1),
      (select w.promise_id from durable._row_waits w order by w.promise_id desc limit 1),
      (select r.id from durable._removed r order by r.id desc limit 1),
      (select f.id from durable._forks f order by f.id desc limit 1))));
end
$$ set enable_sort = off set jit = off;
comment on function durable._ids_from(text) is
  'The end of the portion of ids that begins with this one: after 2000 promises, or after the last id of any table.';

create or replace function durable._runs_before(
  p_last bigint, p_since bigint, out heads bigint[], out last bigint, out is_end boolean)
returns record language plpgsql stable
as $$
begin
  select array_agg(x.execution) filter (where x.born >= p_since), min(x.execution),
         count(*) < 1000 or not coalesce(bool_or(x.born >= p_since), false)
  into heads, last, is_end
  from (
    select h.execution, (select j.ts from durable._journal j
                         where j.execution = h.execution and j.bucket = h.bucket and j.seq = 0) as born
    from durable._executions h where h.execution < p_last order by h.execution desc limit 1000) x;
end
$$ set enable_sort = off set jit = off;
comment on function durable._runs_before(bigint, bigint) is
  'The heads among a thousand, backwards from a number, that began since an instant. Heads are numbered in the order of their births, except among starts that are under way together, so a thousand older heads in a row end the search.';

create or replace function durable._check_trees(p_heads bigint[])
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_from text[];
  v_to text[];
  v_runs int8multirange;
begin
  -- a run and its descendants; a run that is a descendant of another one in the list is left out
  select array_agg(s.first), array_agg(s.beyond) into v_from, v_to from (
    select x.first, x.beyond, max(x.beyond collate "C") over (
             order by x.first collate "C", x.beyond collate "C" desc rows between unbounded preceding and 1 preceding) as reached
    from (
      select distinct y.first, y.beyond from durable._executions h
      cross join lateral (values (h.id, durable._after(h.id)), (h.id || '.', h.id || '/')) as y (first, beyond)
      where h.execution = any (p_heads)) x) s
  where s.reached is null or s.beyond collate "C" > s.reached;
  return query select x.law, x.id, x.detail from durable._check_ids(v_from, v_to) x;
  for v_runs in
    select range_agg(int8range(x.execution, x.execution + 1))
    from (select h.execution, sum(h.next_seq) over (order by h.execution) / 10000 as portion
          from durable._executions h where h.execution = any (p_heads)) x
    group by x.portion order by x.portion
  loop
    return query select x.law, x.id, x.detail from durable._check_runs(v_runs) x;
  end loop;
end
$$;
comment on function durable._check_trees(bigint[]) is 'All laws of these runs and of the promises below them.';

create or replace function durable._check_run(p_id text)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_heads bigint[];
begin
  v_heads := array(
    select distinct g.execution from durable._promises_within(
      array[p_id, p_id || '.'], array[durable._after(p_id), p_id || '/']) p
    cross join lateral durable._generations(array[p.head]) g where p.head is not null);
  if v_heads = '{}' then
    return query select x.law, x.id, x.detail
      from durable._check_ids(array[p_id, p_id || '.'], array[durable._after(p_id), p_id || '/']) x;
  else
    return query select * from durable._check_trees(v_heads);
  end if;
end
$$;
comment on function durable._check_run(text) is 'All laws of a run or promise and its descendants, with all generations.';

create or replace function durable._check_since(p_since bigint)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_some record;
  v_heads bigint[];
  v_last bigint := 9223372036854775807;
  v_ids text[];
begin
  loop
    select * into v_some from durable._runs_before(v_last, p_since) r;
    return query select * from durable._check_trees(coalesce(v_some.heads, '{}'));
    v_last := v_some.last;
    exit when v_some.is_end;
  end loop;
  for v_heads in
    select array_agg(x.execution) from (
      select h.execution, row_number() over () / 1000 as portion
      from durable._tasks t
      join durable._executions h on h.execution = any (array[t.execution])
      cross join lateral (
        select j.ts from durable._journal j where j.execution = h.execution and j.bucket = h.bucket
        order by j.seq desc limit 1) l
      where l.ts >= p_since) x
    group by x.portion
  loop
    return query select * from durable._check_trees(v_heads);
  end loop;
  v_ids := array(select p.id from durable._promises p
                 where p.execution is null and p.head is null and p.created_at >= p_since order by p.created_at, p.id);
  return query select x.law, x.id, x.detail
    from durable._check_ids(v_ids, array(select durable._after(i) from unnest(v_ids) i)) x;
end
$$ set enable_sort = off set jit = off;
comment on function durable._check_since(bigint) is
  'All laws of the runs that began since an instant, of the live ones whose journal has grown since, and of promises without a run that were created since.';

create or replace function durable.check_portion(after jsonb default null)
returns table (broken durable.check_record[], runs bigint, promises bigint, more jsonb) language plpgsql stable
as $$
declare
  v_runs int8multirange;
  v_from text := coalesce($1 ->> 'id', '');
  v_to text;
  v_object bytea := decode($1 ->> 'object', 'hex');
  -- a variable: as an argument the look-up would be inlined, and made again for each object
  v_next bytea := durable._objects_to(v_object);
begin
  if $1 ? 'object' then
    broken := array(select row(x.law, x.id, x.detail)::durable.check_record from durable._check_objects(v_object, v_next) x);
    runs := 0;
    promises := 0;
    more := case when v_next is not null then jsonb_build_object('object', durable._hex(v_next)) end;
  elsif $1 ? 'id' then
    v_to := durable._ids_from(v_from);
    broken := array(select row(x.law, x.id, x.detail)::durable.check_record
                    from durable._check_ids(array[v_from], array[v_to]) x);
    promises := (select count(*) from durable._promises p where p.id >= v_from and p.id < v_to);
    runs := 0;
    more := case when exists (select from durable._promises p where p.id >= v_to) then jsonb_build_object('id', v_to)
                 when exists (select from durable._objects) or exists (select from durable._refs) then '{"object": ""}' end;
  else
    v_runs := durable._runs_from(coalesce(($1 ->> 'run')::bigint, -9223372036854775808));
    broken := array(select row(x.law, x.id, x.detail)::durable.check_record from durable._check_runs(v_runs) x);
    if $1 is null then
      broken := broken || array(
        select row(x.law, x.id, x.detail)::durable.check_record
        from (select * from durable._check_setup() union all select * from durable._check_schedules()
              union all select * from durable._check_row_events()
              union all select * from durable._check_all_calls()) x);
    end if;
    runs := (select count(*) from durable._heads_within(v_runs));
    promises := 0;
    more := case when upper(v_runs) < 9223372036854775807 then jsonb_build_object('run', upper(v_runs))
                 else '{"id": ""}' end;
  end if;
  return next;
end
$$;
comment on function durable.check_portion(jsonb) is
  'One portion of durable.check(): the violations in it, how many runs and promises it had, and where to continue (after); more is null after the last one. Each portion may be a transaction of its own.';

create or replace function durable.check(id text default null, since interval default null)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_portion record;
  v_after jsonb;
begin
  if $1 is not null and $2 is not null then
    perform durable._fail_invalid('A check is of one run or of what happened since, not both.');
  elsif $2 is not null then
    return query select distinct x.* from durable._check_since(durable._now_ms() - durable._ms($2)) x;
    return;
  elsif $1 is not null then
    if not exists (select from durable._promises p where p.id = $1) then
      perform durable._fail_not_found('promise', $1);
    end if;
    return query select distinct x.* from durable._check_run($1) x;
    return;
  end if;
  loop
    select * into v_portion from durable.check_portion(v_after);
    return query select b.* from unnest(v_portion.broken) b;
    v_after := v_portion.more;
    exit when v_after is null;
  end loop;
end
$$;
comment on function durable.check(text, interval) is
  'One row for each violated law: its name, the object, the values; no row if all laws hold. check() reads everything, in portions: on a big database run it on a replica, or use pyengine check, which shows its progress. check(''order-42'') reads a run with its descendants; its parent''s journal is checked with the parent. check(since => ''1 hour'') reads the runs that began since then and the live ones whose journal has grown; only the complete check reads runs that began before and have ended since. WF001, WF004.';
