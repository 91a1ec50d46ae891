-- Retention: removes trees that ended long ago, remembers their ids for a while, and drops journal partitions that are empty. A
-- tree is removed as a whole: a run with all its generations, children, journals, signals and waits. Retention waits for no
-- lock: a locked row is left for the next time, so that it never makes other sessions wait. Rows to which remaining rows refer
-- remain too.

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
  v_ids text[];
  v_heads bigint[];
begin
  -- the locks of starts with these ids and keys: a start that has one is about to answer with such a run
  if not durable._try_lock_out_bulk_starts() then
    return '{}';
  end if;
  v_roots := array(
    select p.id from durable._promises p left join durable._executions h on h.execution = any (array[p.head])
    where p.id = any (p_roots) and pg_try_advisory_xact_lock(1685417574, hashtext(p.id))
      and (h.key is null or pg_try_advisory_xact_lock(1685417572, hashtext(durable._key_name(h.tenant, h.workflow, h.key)))));
  v_ids := array(select t.id from durable._tree(v_roots) t);
  v_ids := array(select u.id from unnest(v_ids) as u (id) except all
                 select l.id from (select p.id from durable._promises p where p.id = any (v_ids)
                                   order by p.id for update skip locked) l);
  -- read again, now that the rows cannot change
  v_roots := array(
    select t.root from durable._tree(v_roots) t group by t.root
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
  'Locks trees that ended before an instant: names and keys, promises by id, heads by number. A tree of which one lock is missed is left out.';

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

create or replace function durable._needed(p_roots text[])
returns table (root text, reason text) language plpgsql volatile
as $$
declare
  v_tree text[] := array(select t.id from durable._tree(p_roots) t);
  v_heads bigint[] := array(select g.execution from durable._generations(
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
comment on function durable._needed(text[]) is
  'The trees to which other rows refer, and the reason: a row of a user''s table, a message that is not delivered, a journal that reads a result, or a wait (row, undelivered, journal, awaited). Trees that refer to each other are examined together.';

create or replace function durable._remove(p_roots text[], p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_tree text[] := array(select t.id from durable._tree(p_roots) t);
  v_heads bigint[];
  v_buckets integer[];
  v_bucket integer;
begin
  select array_agg(g.execution), array_agg(distinct g.bucket) into v_heads, v_buckets from durable._generations(
    array(select t.head from durable._tree(p_roots) t where t.head is not null)) g;
  insert into durable._removed (id, state, ended_at, removed_at, tenant, workflow, key)
  select p.id, p.state, p.settled_at, p_now, p.tenant, h.workflow, h.key
  from durable._promises p left join durable._executions h on h.execution = any (array[p.head])
  where p.id = any (p_roots);
  foreach v_bucket in array coalesce(v_buckets, '{}') loop
    delete from durable._journal j where j.bucket = v_bucket and j.execution = any (v_heads);
    delete from durable._journal_values v where v.bucket = v_bucket and v.execution = any (v_heads);
  end loop;
  delete from durable._signals s where s.execution = any (v_heads);
  delete from durable._inboxes i where i.execution = any (v_heads);
  delete from durable._members m where m.execution = any (v_heads);
  delete from durable._join_sets j where j.execution = any (v_heads);
  delete from durable._row_waits w where w.promise_id = any (v_tree);
  delete from durable._forks f where f.id = any (v_tree);
  delete from durable._progress g where g.id = any (v_tree);
  delete from durable._code_waits c
  where c.id = any (array(select x.id from durable._code_waits x where x.id = any (v_tree) for update skip locked));
  delete from durable._callbacks c where c.awaited_id = any (v_tree);
  delete from durable._callbacks c where c.awaiter_id = any (v_tree) and c.child >= 0;
  delete from durable._callbacks c
  where c.awaiter_id = any (v_tree) and c.child < 0 and not starts_with(c.awaited_id, c.awaiter_id || '.');
  delete from durable._executions h where h.execution = any (v_heads);
  delete from durable._promises p where p.id = any (v_tree);
  return cardinality(v_tree);
end
$$;
comment on function durable._remove(text[], bigint) is
  'Removes locked trees to which no row refers, and remembers their roots. Answers how many promises.';

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
  v_roots := durable._try_lock_ended_trees(p_roots, p_before);
  loop
    select coalesce(array_agg(n.root), '{}'), array_agg(n.reason) into v_needed, v_more from durable._needed(v_roots) n;
    exit when v_needed = '{}';
    -- a tree that remains may keep others that it refers to
    v_reasons := v_reasons || v_more;
    v_roots := array(select r from unnest(v_roots) r except select o from unnest(v_needed) o);
  end loop;
  if v_roots <> '{}' then
    runs := cardinality(v_roots);
    promises := durable._remove(v_roots, durable._now_ms());
  end if;
  kept := (select coalesce(jsonb_object_agg(w.reason, w.count), '{}') from (
             select u.reason, count(*) as count
             from unnest(v_reasons || array_fill('busy'::text, array[cardinality(p_roots) - runs - cardinality(v_reasons)]))
                   as u (reason)
             group by u.reason) w);
exception when foreign_key_violation or lock_not_available then
  -- a row that was inserted meanwhile, or a user's table that is being altered
  runs := 0;
  promises := 0;
  kept := jsonb_build_object('row', 1);
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

create or replace function durable._ended_runs(
  p_before bigint, p_after bigint, p_limit integer, out roots text[], out last bigint)
returns record language plpgsql stable
as $$
declare
  v_one record;
  v_read integer := 0;
  v_aged boolean := false;
begin
  roots := '{}';
  for v_one in
    select h.execution, h.id, p.settled_at, p.head = h.execution and p.execution is null as is_root,
           case when h.previous is null then p.created_at else (
             select j.ts from durable._journal j
             where j.execution = h.execution and j.bucket = h.bucket and j.seq = 0) end as born
    from durable._executions h
    join durable._promises p on p.id = any (array[h.id])
    where h.execution > p_after order by h.execution limit 1000
  loop
    v_read := v_read + 1;
    last := v_one.execution;
    v_aged := v_aged or v_one.born < p_before;
    if v_one.is_root and v_one.settled_at < p_before then
      roots := roots || v_one.id;
      exit when cardinality(roots) = p_limit;
    end if;
  end loop;
  if cardinality(roots) < p_limit and (v_read < 1000 or not v_aged) then
    last := null;
  end if;
end
$$ set enable_sort = off set jit = off;
comment on function durable._ended_runs(bigint, bigint, integer) is
  'Runs without a parent that ended before an instant, in the order of their heads, from a head on: among 1000 heads at most. Last: the head after which to continue; null if there are no more. Heads are numbered in the order of their births, except among starts that are under way together, so 1000 heads that were all born since end the search.';

create or replace function durable._ended_promises(
  p_before bigint, p_at bigint, p_id text, p_limit integer, out roots text[], out last_at bigint, out last_id text)
returns record language plpgsql stable
as $$
declare
  v_one record;
  v_read integer := 0;
begin
  roots := '{}';
  for v_one in
    select p.created_at, p.id, p.settled_at from durable._promises p
    where p.execution is null and p.head is null and (p.created_at, p.id) > (p_at, p_id) and p.created_at < p_before
    order by p.created_at, p.id limit 1000
  loop
    v_read := v_read + 1;
    last_at := v_one.created_at;
    last_id := v_one.id;
    if v_one.settled_at < p_before then
      roots := roots || v_one.id;
      exit when cardinality(roots) = p_limit;
    end if;
  end loop;
  if cardinality(roots) < p_limit and v_read < 1000 then
    last_at := null;
    last_id := null;
  end if;
end
$$ set enable_sort = off set jit = off;
comment on function durable._ended_promises(bigint, bigint, text, integer) is
  'Promises without a run that settled before an instant, in the order of their creation, from one on: among 1000 at most. Last: the one after which to continue; null if there are no more.';

create or replace function durable._purge(
  p_before bigint, p_after jsonb, p_limit integer, out runs integer, out promises integer, out kept jsonb, out more jsonb)
returns record language plpgsql volatile
as $$
declare
  v_runs record;
  v_promises record;
  v_roots text[];
begin
  if p_after ? 'created_at' then
    select * into v_promises from durable._ended_promises(
      p_before, (p_after ->> 'created_at')::bigint, p_after ->> 'id', p_limit) e;
    v_roots := v_promises.roots;
    if v_promises.last_at is not null then
      more := jsonb_build_object('created_at', v_promises.last_at, 'id', v_promises.last_id);
    end if;
  else
    select * into v_runs from durable._ended_runs(p_before, coalesce((p_after ->> 'run')::bigint, 0), p_limit) e;
    v_roots := v_runs.roots;
    more := case when v_runs.last is null then '{"created_at": 0, "id": ""}' else jsonb_build_object('run', v_runs.last) end;
  end if;
  select r.runs, r.promises, r.kept into runs, promises, kept from durable._remove_ended(v_roots, p_before) r;
end
$$ set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off;
comment on function durable._purge(bigint, jsonb, integer) is
  'One portion of a purge: runs first, then promises without a run, from a position on. Answers the next position; null after the last portion.';

create or replace function durable._begin_purge(p_older_than interval, p_most integer, p_place_fits boolean)
returns bigint language plpgsql volatile
as $$
begin
  if p_older_than is null or p_older_than < interval '0' or p_most is null or p_most < 1 then
    perform durable._fail_invalid('A purge has an age (older_than => ''30 days'') and removes one row or more.');
  elsif not p_place_fits then
    perform durable._fail_invalid('A purge continues where the one before it ended (after => its more), or starts again (null).');
  end if;
  perform durable._check_may_lock();
  return greatest(durable._now_ms() - durable._ms(p_older_than), 0);
end
$$;
comment on function durable._begin_purge(interval, integer, boolean) is
  'Checks the arguments of a purge and answers the instant before which what it removes has ended. p_place_fits: after has the form of its more. WF003 above READ COMMITTED, WF004.';

create or replace function durable.purge(older_than interval, max_runs integer default 1000, after jsonb default null)
returns table (runs integer, promises integer, kept jsonb, more jsonb) language plpgsql volatile
as $$
declare
  v_before bigint := durable._begin_purge($1, $2, coalesce(
    $3 ->> 'run' ~ E'^\\d{1,18}$' or ($3 ->> 'created_at' ~ E'^\\d{1,16}$' and $3 ->> 'id' is not null), $3 is null));
  v_part record;
begin
  runs := 0;
  promises := 0;
  kept := '{}';
  more := $3;
  loop
    select * into v_part from durable._purge(v_before, more, least($2 - runs, 100));
    more := v_part.more;
    runs := runs + v_part.runs;
    promises := promises + v_part.promises;
    kept := durable._sums(kept, v_part.kept);
    exit when more is null or runs >= $2;
  end loop;
  return next;
end
$$;
comment on function durable.purge(interval, integer, jsonb) is
  'Removes runs, then free-standing promises, that ended this long ago, the oldest first, each with all its children: select * from durable.purge(''30 days''). While more is not null, call it again: with after => more it continues after the rows that it has examined; without after it starts again with those that it kept before. Runs that are still needed remain and are counted by reason in kept: row (a foreign key of yours), journal (another run reads the result), awaited, undelivered, busy. Ids and keys are remembered for the setting removed_ids_days: no such run starts again. To run by itself: set_setting(''retention_days'', ''30''). WF003 above READ COMMITTED, WF004.';

create or replace function durable._forget_removed(p_now bigint, p_limit integer)
returns integer language plpgsql volatile
as $$
declare
  v_count integer;
begin
  delete from durable._removed r where r.id = any (array(
    select x.id from durable._removed x
    where x.removed_at < p_now - durable._setting_int('removed_ids_days') * 86400000
    order by x.removed_at limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable._forget_removed(bigint, integer) is 'Forgets removed ids after removed_ids_days.';

create or replace function durable._old_buckets(p_now bigint)
returns integer[] language sql stable
as $$
  select array(select b.bucket from durable._buckets b where b.bucket < durable._week(p_now) - 1 order by b.bucket)
  where exists (select from durable._buckets n where n.bucket = durable._week(durable._now_ms()))
$$;
comment on function durable._old_buckets(bigint) is
  'Journal partitions for which no start can be under way. Those of this week and last week stay; all stay while there is none for this week, because then starts use the newest.';

create or replace function durable._move_rows(p_before bigint, p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_bucket integer;
  v_one bigint;
  v_found bigint[];
begin
  foreach v_bucket in array coalesce(durable._old_buckets(p_before), '{}') loop
    v_found := '{}';
    v_one := 0;
    -- from run to run along the key: the partition may be long, the list may not
    while v_one is not null and cardinality(v_found) <= 100 loop
      v_found := v_found || v_one;
      v_one := (select j.execution from durable._journal j where j.bucket = v_bucket and j.execution > v_one
                order by j.execution limit 1);
    end loop;
    if v_one is null and cardinality(v_found) > 1 then
      v_found := array(
        select h.execution from durable._executions h
        left join durable._tasks t on t.id = any (array[h.id]) and t.execution = h.execution
        where h.execution = any (v_found) and h.bucket is not distinct from v_bucket
          and (t.id is null or t.id = any (durable._try_lock_free_tasks(array[t.id]))));
      v_found := array(select h.execution from durable._executions h where h.execution = any (v_found)
                       order by h.execution limit 20 for no key update skip locked);
      v_one := durable._bucket(p_now);
      update durable._journal j set bucket = v_one where j.bucket = v_bucket and j.execution = any (v_found);
      update durable._journal_values v set bucket = v_one where v.bucket = v_bucket and v.execution = any (v_found);
      update durable._executions h set bucket = v_one where h.execution = any (v_found);
      return cardinality(v_found);
    end if;
  end loop;
  return 0;
exception when lock_not_available then
  -- a row of a journal that a session locked by hand
  return 0;
end
$$ set lock_timeout = '100ms';
comment on function durable._move_rows(bigint, bigint) is
  'Moves the journals of the runs that remain in a partition which by its age should be empty into the partition of this week, if they are 100 or fewer, 20 at a time: task, then head, with SKIP LOCKED, so that no turn works on them. Answers how many.';

create or replace function durable._partition_of(p_table regclass, p_bucket integer, p_alone boolean)
returns oid language plpgsql stable
as $$
begin
  return (
    select c.oid from pg_catalog.pg_inherits i
    join pg_catalog.pg_class c on c.oid = i.inhrelid
    cross join lateral (select pg_get_expr(c.relpartbound, c.oid) as "values") b
    where i.inhparent = p_table
      and b."values" ~ format(case when p_alone then '^FOR VALUES IN [(]%s[)]$' else '[( ]%s[,)]' end, p_bucket));
end
$$;
comment on function durable._partition_of(regclass, integer, boolean) is
  'The partition of a table for a week, found by its bounds and not by its name, because it may have been created from outside. p_alone: it has no other week. Null if there is none.';

create or replace function durable._is_empty_bucket(p_bucket integer)
returns boolean language sql stable
as $$
  select not exists (select from durable._journal j where j.bucket = p_bucket)
     and not exists (select from durable._journal_values v where v.bucket = p_bucket)
$$;
comment on function durable._is_empty_bucket(integer) is 'True if no journal of that week has a row any more.';

create or replace function durable._may_alter_journal()
returns boolean language sql stable
as $$
  select has_table_privilege(r.name, 'durable._journal', 'DELETE') or not has_schema_privilege(r.name, 'durable', 'USAGE')
  from (select coalesce(nullif(current_setting('role'), 'none'), session_user) as name) r
$$;
comment on function durable._may_alter_journal() is
  'Whether the session may have partitions made and dropped, asked where current_user is the owner of the schema: its role deletes journals, as workers do. A role that may not use the schema has come through a function of the owner, as SDKs do through their facade.';

create or replace function durable._drop_partition()
returns boolean language plpgsql volatile security definer
as $$
declare
  v_bucket integer;
begin
  if not durable._may_alter_journal() then
    return null;
  end if;
  foreach v_bucket in array coalesce(durable._old_buckets(durable._now_ms()), '{}') loop
    if durable._partition_of('durable._journal', v_bucket, true) is not null and durable._is_empty_bucket(v_bucket) then
      execute 'lock table only durable._journal, only durable._journal_values in access exclusive mode';
      if durable._is_empty_bucket(v_bucket) then
        execute format('drop table %s', durable._partition_of('durable._journal', v_bucket, true)::regclass);
        if durable._partition_of('durable._journal_values', v_bucket, true) is not null then
          execute format('drop table %s', durable._partition_of('durable._journal_values', v_bucket, true)::regclass);
        end if;
        delete from durable._buckets b where b.bucket = v_bucket;
        return true;
      end if;
    end if;
  end loop;
  return false;
exception when lock_not_available or object_in_use or insufficient_privilege then
  -- without the right: another role created it
  return null;
end
$$ set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' set jit = off set quote_all_identifiers = off;
comment on function durable._drop_partition() is
  'Drops the journal partitions of one old week if they have no rows, with the rights of the owner, because workers have none; so it takes nothing from its caller. Its lock, ACCESS EXCLUSIVE on the journal, waits 50 ms at most, and so do the sessions behind it; then the drop is put off for a minute (null), and for a role that may not delete journals. The caller has no lock for which another session waits, so it is part of no circle.';

create or replace function durable._sweep_runs(
  p_place jsonb, p_now bigint, out removed integer, out place jsonb, out due_in bigint)
language plpgsql volatile
as $$
declare
  v_before bigint := p_now - durable._setting_int('retention_days') * 86400000;
  v_dropped boolean := false;
begin
  removed := 0;
  if v_before < p_now then
    select p.runs, p.more into removed, place from durable._purge(v_before, p_place, 100) p;
  end if;
  if place is null then
    removed := removed + durable._forget_removed(p_now, 1000);
    if removed = 0 and v_before < p_now then
      removed := durable._move_rows(v_before, p_now);
    end if;
    if removed = 0 then
      v_dropped := durable._drop_partition();
    end if;
  end if;
  due_in := case when place is not null or removed > 0 or v_dropped then 100 when v_dropped is null then 60000 else 3600000 end;
end
$$;
comment on function durable._sweep_runs(jsonb, bigint) is
  'One portion: removes trees by retention_days, or forgets ids, moves rows or drops a partition. Answers how many, the next place (null: from the start) and the ms until then. In a transaction of its own, because it reads tables of users, drops partitions, and has locked rows that it then kept, out of the order of locks.';
