-- Removal of what ended: whole trees, a run with all its generations, children, journals, signals and waits. It waits for no
-- lock: a locked row is left for the next time, so that it never makes other sessions wait. Rows to which remaining rows refer
-- remain too. 28_generations.sql removes parts of runs that live, 87_retention/30_retention.sql finds what is old enough.

create or replace function durable._tree(p_roots text[])
returns table (root text, id text, head bigint, is_open boolean, is_live boolean, settled_at bigint) language sql stable
as $$
  -- no join: for a join the planner may read all ids if only ids are asked for
  select p.id, p.id, p.head, p.state = 'pending', p.state = 'pending' and p.target is not null, p.settled_at
  from durable._promises p where p.id = any (p_roots)
  union all
  select r.id, p.id, p.head, p.state = 'pending', p.state = 'pending' and p.target is not null, p.settled_at
  from unnest(p_roots) as r (id)
  cross join lateral (
    select c.id, c.head, c.state, c.target, c.settled_at from durable._promises c
    where c.id >= r.id || '.' and c.id < r.id || '/' and c.execution is not null
      and substr(c.id, length(r.id) + 1) ~ E'^(\\.\\d{1,9})+$'
      -- a count, because an exists becomes a join that may read all promises
      and (select count(*) from durable._promises o where o.id = r.id and o.head is not null) > 0) p
$$;
comment on function durable._tree(text[]) is
  'Promises of trees: roots, and the descendants of those that are runs. Live: a run or task that has not ended; open: a promise that is pending.';

create or replace function durable._generations(p_heads bigint[])
returns table (execution bigint, bucket integer, key text) language sql stable
as $$
  with recursive g as (
    select h.execution, h.previous, h.bucket, h.key from durable._executions h where h.execution = any (p_heads)
    union all
    select b.execution, b.previous, b.bucket, b.key from g
    join durable._executions b on b.execution = any (array[g.previous])
  )
  select g.execution, g.bucket, g.key from g
$$;
comment on function durable._generations(bigint[]) is 'Heads of runs and of all their earlier generations.';

create or replace function durable._try_lock_ended_trees(p_roots text[], p_before bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_roots text[];
  v_ids text[] := array(select t.id from durable._tree(p_roots) t);
  v_heads bigint[];
begin
  v_ids := array(select u.id from unnest(v_ids) as u (id) except all
                 select l.id from (select p.id from durable._promises p where p.id = any (v_ids)
                                   order by p.id for update skip locked) l);
  -- read again, now that the rows cannot change
  v_roots := array(
    select t.root from durable._tree(p_roots) t group by t.root
    having bool_and(t.id <> all (v_ids) and not t.is_live and (t.is_open or t.settled_at < p_before)));
  v_heads := array(select g.execution from durable._generations(
    array(select t.head from durable._tree(v_roots) t where t.head is not null)) g);
  v_heads := array(select u.execution from unnest(v_heads) as u (execution) except all
                   select l.execution from (select h.execution from durable._executions h where h.execution = any (v_heads)
                                            order by h.execution for update skip locked) l);
  if v_heads = '{}' then
    return v_roots;
  end if;
  return array(
    select t.root from durable._tree(v_roots) t
    left join lateral durable._generations(array[t.head]) g on t.head is not null
    group by t.root having bool_and(t.head is null or g.execution <> all (v_heads)));
end
$$;
comment on function durable._try_lock_ended_trees(text[], bigint) is
  'Locks trees that ended before an instant: promises by id, heads by number. A tree of which one lock is missed is left out.';

create or replace function durable._try_lock_starts(p_roots text[])
returns text[] language plpgsql volatile
as $$
begin
  if not durable._try_lock_out_bulk_starts() then
    return '{}';
  end if;
  return array(
    select p.id from durable._promises p left join durable._executions h on h.execution = any (array[p.head])
    where p.id = any (p_roots) and pg_try_advisory_xact_lock(1685417574, hashtext(p.id))
      and (h.key is null or pg_try_advisory_xact_lock(1685417572, hashtext(durable._key_name(h.tenant, h.workflow, h.key)))));
end
$$;
comment on function durable._try_lock_starts(text[]) is
  'The locks of starts with the ids and keys of these promises: a start that has one is about to answer with such a run. Answers those that were got.';

create or replace function durable._in_user_tables(p_ids text[])
returns text[] language plpgsql stable
as $$
declare
  v_key record;
  v_found text[];
  v_all text[] := '{}';
begin
  for v_key in
    select c.conrelid::regclass as relation, a.attname, has_table_privilege(c.conrelid, 'select') as may_read
    from pg_catalog.pg_constraint c
    join pg_catalog.pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
    where c.confrelid = 'durable._promises'::regclass and c.contype = 'f' and c.conparentid = 0
      and c.confdeltype in ('a', 'r')
  loop
    if not v_key.may_read then
      return p_ids;
    end if;
    execute format('select array(select distinct x.%I::text from %s x where x.%1$I = any ($1))', v_key.attname, v_key.relation)
      into v_found using p_ids;
    v_all := v_all || v_found;
  end loop;
  return v_all;
end
$$;
comment on function durable._in_user_tables(text[]) is
  'Those of the promises to which rows of users'' tables refer by a foreign key without an action (on delete cascade or set null); all of them if such a table may not be read. This query precedes the delete, which would check each promise alone.';

create or replace function durable._needed(p_roots text[], p_heads bigint[])
returns table (root text, reason text) language plpgsql volatile
as $$
declare
  v_tree text[] := array(select t.id from durable._tree(p_roots) t);
  v_heads bigint[] := p_heads || array(select g.execution from durable._generations(
    array(select t.head from durable._tree(p_roots) t where t.head is not null)) g);
  v_rows text[] := durable._in_user_tables(v_tree);
  v_woken text[];
  v_undelivered text[];
  v_read text[];
begin
  v_woken := array(select r.awaited_id from durable._resumes r
                   where r.awaited_id = any (v_tree) and not starts_with(r.awaited_id, r.task_id || '.'));
  v_undelivered := array(select u.promise_id from durable._unblocks u where u.promise_id = any (v_tree));
  v_read := array(select j.name from durable._journal j
                  where j.name = any (v_tree) and durable._settles_child(j.type) and j.execution <> all (v_heads));
  return query
  select t.root, max(n.reason) from durable._tree(p_roots) t
  cross join lateral (select case
    when t.id = any (v_rows) then 'row'
    when t.id = any (v_undelivered) then 'undelivered'
    when t.id = any (v_read) then 'journal'
    when t.id = any (v_woken) then 'awaited'
    when t.is_open and (
      exists (select from durable._listeners l where l.awaited_id = any (array[t.id]))
      or exists (select from durable._callbacks c join durable._tasks w on w.id = any (array[c.awaiter_id])
                 where c.awaited_id = any (array[t.id]))) then 'awaited' end as reason) n
  where n.reason is not null group by t.root;
end
$$;
comment on function durable._needed(text[], bigint[]) is
  'The trees to which other rows refer, and the reason: a row of a user''s table, a message that is not delivered, a journal that reads a result, or a wait (row, undelivered, journal, awaited). Trees that refer to each other are examined together. p_heads: journals that go with them, and may refer to them.';

create or replace function durable._delete_heads(p_heads bigint[])
returns void language plpgsql volatile
as $$
declare
  v_bucket integer;
begin
  for v_bucket in select distinct h.bucket from durable._executions h where h.execution = any (p_heads) loop
    delete from durable._journal j where j.bucket = v_bucket and j.execution = any (p_heads);
    delete from durable._journal_values v where v.bucket = v_bucket and v.execution = any (p_heads);
  end loop;
  delete from durable._signals s where s.execution = any (p_heads);
  delete from durable._inboxes i where i.execution = any (p_heads);
  delete from durable._members m where m.execution = any (p_heads);
  delete from durable._join_sets j where j.execution = any (p_heads);
  delete from durable._executions h where h.execution = any (p_heads);
end
$$;
comment on function durable._delete_heads(bigint[]) is 'Deletes locked heads with their journals and all that belongs to these.';

create or replace function durable._delete_trees(p_roots text[])
returns integer language plpgsql volatile
as $$
declare
  v_tree text[] := array(select t.id from durable._tree(p_roots) t);
begin
  perform durable._delete_heads(array(select g.execution from durable._generations(
    array(select t.head from durable._tree(p_roots) t where t.head is not null)) g));
  delete from durable._row_waits w where w.promise_id = any (v_tree);
  delete from durable._forks f where f.id = any (v_tree);
  delete from durable._progress g where g.id = any (v_tree);
  delete from durable._removed_signals s where s.id = any (v_tree);
  delete from durable._backlog b where b.id = any (v_tree);
  delete from durable._code_waits c
  where c.id = any (array(select x.id from durable._code_waits x where x.id = any (v_tree) for update skip locked));
  delete from durable._callbacks c where c.awaited_id = any (v_tree);
  delete from durable._callbacks c where c.awaiter_id = any (v_tree) and c.child >= 0;
  delete from durable._callbacks c
  where c.awaiter_id = any (v_tree) and c.child < 0 and not starts_with(c.awaited_id, c.awaiter_id || '.');
  delete from durable._promises p where p.id = any (v_tree);
  return cardinality(v_tree);
end
$$;
comment on function durable._delete_trees(text[]) is
  'Deletes locked trees to which no row refers. Answers how many promises.';

create or replace function durable._remove(p_roots text[], p_now bigint)
returns integer language plpgsql volatile
as $$
begin
  insert into durable._removed (id, state, ended_at, removed_at, tenant, workflow, key)
  select p.id, p.state, p.settled_at, p_now, p.tenant, h.workflow, h.key
  from durable._promises p left join durable._executions h on h.execution = any (array[p.head])
  where p.id = any (p_roots);
  return durable._delete_trees(p_roots);
end
$$;
comment on function durable._remove(text[], bigint) is
  'Removes locked trees to which no row refers, and remembers their roots. Answers how many promises.';

create or replace function durable._counts(p_reasons text[])
returns jsonb language sql immutable
as $$
  select coalesce(jsonb_object_agg(w.reason, w.count), '{}')
  from (select u.reason, count(*) as count from unnest(p_reasons) as u (reason) group by u.reason) w
$$;
comment on function durable._counts(text[]) is 'How often each name occurs.';

create or replace function durable._sums(p_one jsonb, p_other jsonb)
returns jsonb language sql immutable
as $$
  select coalesce(jsonb_object_agg(k.key, k.count), '{}') from (
    select e.key, sum(e.value::integer) as count
    from (select * from jsonb_each_text(p_one) union all select * from jsonb_each_text(p_other)) e group by e.key) k
$$;
comment on function durable._sums(jsonb, jsonb) is 'The sum of two counts by name.';

create or replace function durable._remove_ended(
  p_roots text[], p_before bigint, out runs integer, out promises integer, out kept jsonb)
returns record language plpgsql volatile
as $$
declare
  v_roots text[];
  v_needed text[];
  v_reasons text[] := '{}';
  v_more text[];
  v_one record;
  v_root text;
begin
  runs := 0;
  promises := 0;
  v_roots := durable._try_lock_ended_trees(durable._try_lock_starts(p_roots), p_before);
  loop
    select coalesce(array_agg(n.root), '{}'), array_agg(n.reason) into v_needed, v_more from durable._needed(v_roots, '{}') n;
    exit when v_needed = '{}';
    -- a tree that remains may keep others that it refers to
    v_reasons := v_reasons || v_more;
    v_roots := array(select r from unnest(v_roots) r except select o from unnest(v_needed) o);
  end loop;
  if v_roots <> '{}' then
    runs := cardinality(v_roots);
    promises := durable._remove(v_roots, durable._now_ms());
  end if;
  kept := durable._counts(
    v_reasons || array_fill('busy'::text, array[cardinality(p_roots) - runs - cardinality(v_reasons)]));
exception when foreign_key_violation or lock_not_available then
  -- a row that was inserted meanwhile, or a user's table that is being altered
  runs := 0;
  promises := 0;
  kept := jsonb_build_object(case sqlstate when '55P03' then 'busy' else 'row' end, 1);
  if cardinality(p_roots) > 1 then
    kept := '{}';
    foreach v_root in array p_roots loop
      select * into v_one from durable._remove_ended(array[v_root], p_before) r;
      runs := runs + v_one.runs;
      promises := promises + v_one.promises;
      kept := durable._sums(kept, v_one.kept);
    end loop;
  end if;
end
$$ set lock_timeout = '100ms';
comment on function durable._remove_ended(text[], bigint) is
  'Removes those of the trees that ended before an instant and to which no row refers. Answers how many of the others were kept, and why: row, undelivered, journal, awaited (see _needed), busy (another session has locked a part, or a part has not ended). A row of a user''s table that a foreign key deletes or changes is waited for 100 ms, less than deadlock_timeout; if that fails for some, each tree is tried alone.';

create or replace function durable._begin_purge(p_older_than interval, p_most integer, p_place_fits boolean)
returns bigint language plpgsql volatile
as $$
begin
  if p_older_than is null or p_older_than < interval '0' or p_most is null or p_most < 1 then
    perform durable._fail_invalid('A purge has an age (older_than => ''30 days'') and removes one row or more.');
  elsif p_older_than > interval '0' and p_older_than < interval '1 hour' then
    perform durable._fail_invalid(
      format('older_than is %s: a purge takes an age of an hour or more, or ''0'' for all that has ended.', p_older_than),
      'A number without a unit is in seconds. Write the unit: older_than => ''30 days''.');
  elsif not p_place_fits then
    perform durable._fail_invalid('A purge continues where the one before it ended (after => its more), or starts again (null).');
  end if;
  perform durable._check_may_lock();
  return greatest(durable._now_ms() - durable._ms(p_older_than), 0);
end
$$;
comment on function durable._begin_purge(interval, integer, boolean) is
  'Checks the arguments of a purge and answers the instant before which what it removes has ended. An age below an hour is refused, because ''30'' is 30 seconds; 0 is not. p_place_fits: after has the form of its more. WF003 above READ COMMITTED, WF004.';
