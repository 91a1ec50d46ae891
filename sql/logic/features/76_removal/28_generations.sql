-- Earlier generations of runs that live, which ended long ago: each goes with the trees of its children, once all of these have
-- ended, the oldest first, so that the chain has no gap. The present generation stays, and the one before it, which says how
-- the run got there and which no turn writes; so the head of a run at work is never touched. The oldest head that stays knows
-- how many went before it, and its column previous goes on to name the last of them.

create or replace function durable._closed_generations(p_heads bigint[], p_before bigint)
returns table (execution bigint, id text, removed integer, next bigint, place integer) language sql stable
as $$
  with recursive closed as materialized (
    select h.execution, h.id, h.previous, h.generations_removed, p.head,
           (durable._json(durable._data(j)) ->> 'continued_as')::bigint as next
    from durable._executions h
    join durable._promises p on p.id = any (array[h.id]) and p.head <> h.execution
    join durable._journal j on j.execution = any (array[h.execution]) and j.bucket = h.bucket and j.seq = h.next_seq - 1
    where h.execution = any (p_heads) and durable._ends_run(j.type) and j.ts < p_before
  ), chain as (
    select c.execution, c.id, c.generations_removed, c.next, c.head, 1 as place from closed c
    -- a count, because an exists becomes a join
    where (select count(*) from durable._executions b where b.execution = c.previous) = 0
    union all
    select n.execution, n.id, n.generations_removed, n.next, n.head, c.place + 1
    from chain c join closed n on n.execution = any (array[c.next])
  )
  select c.execution, c.id, c.generations_removed, c.next, c.place from chain c where c.next <> c.head
$$;
comment on function durable._closed_generations(bigint[], bigint) is
  'Those of the generations that ended before an instant and stand at the beginning of what is left of their run, in their order, with the next one of each; never the one before the present generation. removed: how many are gone before it.';

create or replace function durable._try_lock_generations(p_heads bigint[], p_before bigint)
returns bigint[] language plpgsql volatile
as $$
declare
  v_heads bigint[] := array(
    select x.execution from durable._closed_generations(p_heads, p_before) g
    cross join lateral (values (g.execution), (g.next)) as x (execution));
begin
  v_heads := array(select l.execution from (select h.execution from durable._executions h where h.execution = any (v_heads)
                                            order by h.execution for update skip locked) l);
  -- read again, now that the rows cannot change
  return array(select g.execution from durable._closed_generations(v_heads, p_before) g where g.next = any (v_heads));
end
$$;
comment on function durable._try_lock_generations(bigint[], bigint) is
  'Locks generations that may go, each with the next one, and answers those that were got.';

create or replace function durable._children_of(p_heads bigint[])
returns table (execution bigint, id text, is_open boolean) language sql stable
as $$
  select h.execution, p.id, p.state = 'pending' and not p.timer
  from durable._executions h
  cross join lateral generate_series(h.first_child, h.next_child - 1) as n
  join durable._promises p on p.id = any (array[h.id || '.' || n]) and p.execution = h.execution
  where h.execution = any (p_heads)
$$;
comment on function durable._children_of(bigint[]) is
  'Promises that these generations own. Open: pending, and not a timer, so that the next generation may know of it.';

create or replace function durable._busy_children(p_heads bigint[], p_ended text[])
returns table (execution bigint, reason text) language plpgsql volatile
as $$
declare
  v_ids text[] := array(select c.id from durable._children_of(p_heads) c);
  v_busy text[] := array(select u.id from unnest(v_ids) as u (id) except select e.id from unnest(p_ended) as e (id))
                   || array(select c.id from durable._children_of(p_heads) c where c.is_open);
  v_needed text[];
  v_reasons text[];
begin
  select coalesce(array_agg(n.root), '{}'), array_agg(n.reason) into v_needed, v_reasons
  from durable._needed(v_ids, p_heads) n;
  return query
  select p.execution, max(u.reason)
  from (select b.id, 'busy' as reason from unnest(v_busy) as b (id)
        union all select n.id, n.reason from unnest(v_needed, v_reasons) as n (id, reason)) u
  join durable._promises p on p.id = any (array[u.id])
  group by p.execution;
end
$$;
comment on function durable._busy_children(bigint[], text[]) is
  'The generations that have children which did not end or to which other rows refer, and the reason, as durable.purge counts it. p_ended: children whose trees have ended and are locked.';

create or replace function durable._delete_generations(p_heads bigint[], p_before bigint, p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_promises integer;
begin
  update durable._executions n set generations_removed = x.removed
  from (select (array_agg(g.next order by g.place desc))[1] as next, coalesce(max(g.removed), 0) + count(*) as removed
        from durable._closed_generations(p_heads, p_before) g where g.execution = any (p_heads) group by g.id) x
  where n.execution = any (array[x.next]);
  insert into durable._removed_signals (removed_at, delivery, id, name, key)
  select distinct on (h.id, s.name, s.key) p_now, s.delivery, h.id, s.name, s.key
  from durable._executions h join durable._signals s on s.execution = any (array[h.execution])
  where h.execution = any (p_heads) and s.key is not null
  order by h.id, s.name, s.key, h.execution
  on conflict on constraint removed_signals_pk do update set removed_at = excluded.removed_at;
  v_promises := durable._delete_trees(array(select c.id from durable._children_of(p_heads) c));
  perform durable._delete_heads(p_heads);
  return v_promises;
end
$$;
comment on function durable._delete_generations(bigint[], bigint, bigint) is
  'Deletes locked generations with the trees of their children, after it has noted their number and the keys of their signals. Answers how many promises.';

create or replace function durable._remove_generations(
  p_heads bigint[], p_before bigint, out generations integer, out promises integer, out kept jsonb)
returns record language plpgsql volatile
as $$
declare
  v_heads bigint[];
  v_ended text[];
  v_stay bigint[];
  v_more text[];
  v_reasons text[] := '{}';
  v_one record;
begin
  generations := 0;
  promises := 0;
  kept := '{}';
  v_heads := durable._try_lock_generations(p_heads, p_before);
  if v_heads = '{}' then
    return;
  end if;
  v_ended := durable._try_lock_ended_trees(array(select c.id from durable._children_of(v_heads) c), p_before);
  loop
    select coalesce(array_agg(b.execution), '{}'), array_agg(b.reason) into v_stay, v_more
    from durable._busy_children(v_heads, v_ended) b;
    exit when v_stay = '{}';
    -- a generation that stays keeps all that follow, and what they refer to
    v_reasons := v_reasons || v_more;
    v_heads := array(select g.execution from durable._closed_generations(
      array(select h from unnest(v_heads) h except select s from unnest(v_stay) s), p_before) g);
  end loop;
  if v_heads <> '{}' then
    generations := cardinality(v_heads);
    promises := durable._delete_generations(v_heads, p_before, durable._now_ms());
  end if;
  kept := durable._counts(v_reasons);
exception when foreign_key_violation or lock_not_available then
  -- as in _remove_ended
  generations := 0;
  promises := 0;
  kept := jsonb_build_object('row', 1);
  if (select count(distinct h.id) from durable._executions h where h.execution = any (p_heads)) > 1 then
    kept := '{}';
    for v_one in
      select r.* from (select array_agg(h.execution) as heads from durable._executions h
                       where h.execution = any (p_heads) group by h.id) x
      cross join lateral durable._remove_generations(x.heads, p_before) r
    loop
      generations := generations + v_one.generations;
      promises := promises + v_one.promises;
      kept := durable._sums(kept, v_one.kept);
    end loop;
  end if;
end
$$ set lock_timeout = '100ms';
comment on function durable._remove_generations(bigint[], bigint) is
  'Removes those of the generations that ended before an instant and to whose children no row refers. Answers how many of the others have children that keep them, and why, as _remove_ended does; if a row of a user''s table is waited for in vain, each run is tried alone.';
