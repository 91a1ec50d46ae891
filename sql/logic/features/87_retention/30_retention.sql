-- Retention: finds runs, promises and earlier generations that ended long ago and has them removed (76_removal/26_removal.sql,
-- 76_removal/28_generations.sql), remembers their ids for a while, and drops journal partitions that are empty.

create or replace function durable._ended_runs(
  p_before bigint, p_after bigint, p_limit integer, out roots text[], out generations bigint[], out last bigint)
returns record language plpgsql stable
as $$
declare
  v_one record;
  v_read integer := 0;
  v_events bigint := 0;
  v_full boolean := false;
  v_aged boolean := false;
begin
  roots := '{}';
  generations := '{}';
  for v_one in
    select h.execution, h.id, h.next_seq, p.settled_at, p.head = h.execution and p.execution is null as is_root,
           p.head <> h.execution and p.state = 'pending' as is_earlier,
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
    elsif v_one.is_earlier and v_one.born < p_before then
      generations := generations || v_one.execution;
      v_events := v_events + v_one.next_seq;
    end if;
    v_full := cardinality(roots) + cardinality(generations) >= p_limit or v_events >= 10000;
    exit when v_full;
  end loop;
  if not v_full and (v_read < 1000 or not v_aged) then
    last := null;
  end if;
end
$$ set enable_sort = off set jit = off;
comment on function durable._ended_runs(bigint, bigint, integer) is
  'Runs without a parent that ended before an instant, and earlier generations of runs that live that began before it, in the order of their heads, from a head on: among 1000 heads at most, and no more generations once they have 10,000 events. Last: the head after which to continue; null if there are no more. Heads are numbered in the order of their births, except among starts that are under way together, so 1000 heads that were all born since end the search.';

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
  p_before bigint, p_after jsonb, p_limit integer,
  out runs integer, out promises integer, out generations integer, out kept jsonb, out more jsonb)
returns record language plpgsql volatile
as $$
declare
  v_runs record;
  v_promises record;
  v_roots text[];
  v_heads bigint[] := '{}';
  v_earlier record;
begin
  generations := 0;
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
    v_heads := v_runs.generations;
    more := case when v_runs.last is null then '{"created_at": 0, "id": ""}' else jsonb_build_object('run', v_runs.last) end;
  end if;
  select r.runs, r.promises, r.kept into runs, promises, kept from durable._remove_ended(v_roots, p_before) r;
  if v_heads <> '{}' then
    select * into v_earlier from durable._remove_generations(v_heads, p_before) r;
    generations := v_earlier.generations;
    promises := promises + v_earlier.promises;
    kept := durable._sums(kept, v_earlier.kept);
  end if;
end
$$ set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off;
comment on function durable._purge(bigint, jsonb, integer) is
  'One portion of a purge: runs and earlier generations first, then promises without a run, from a position on. Answers the next position; null after the last portion.';

create or replace function durable.purge(older_than interval, max_runs integer default 1000, after jsonb default null)
returns table (runs integer, promises integer, generations integer, kept jsonb, more jsonb) language plpgsql volatile
as $$
declare
  v_before bigint := durable._begin_purge($1, $2, coalesce(
    $3 ->> 'run' ~ E'^\\d{1,18}$' or ($3 ->> 'created_at' ~ E'^\\d{1,16}$' and $3 ->> 'id' is not null), $3 is null));
  v_part record;
begin
  runs := 0;
  promises := 0;
  generations := 0;
  kept := '{}';
  more := $3;
  loop
    select * into v_part from durable._purge(v_before, more, least($2 - runs - generations, 100));
    more := v_part.more;
    runs := runs + v_part.runs;
    promises := promises + v_part.promises;
    generations := generations + v_part.generations;
    kept := durable._sums(kept, v_part.kept);
    exit when more is null or runs + generations >= $2;
  end loop;
  return next;
end
$$;
comment on function durable.purge(interval, integer, jsonb) is
  'Removes runs, then free-standing promises, that ended this long ago, the oldest first, each with all its children; and earlier generations of runs that live, except the last before the present one: select * from durable.purge(''30 days''). The age is an hour or more, or ''0'': a number without a unit is in seconds. max_runs is for runs and generations together. While more is not null, call it again: with after => more it continues after the rows that it has examined; without after it starts again with those that it kept before. Runs and generations that are still needed remain and are counted by reason in kept: row (a foreign key of yours), journal (another run reads the result), awaited, undelivered, busy. Ids and keys are remembered for the setting removed_ids_days: no such run starts again. To run by itself: set_setting(''retention_days'', ''30''). WF003 above READ COMMITTED, WF004.';

create or replace function durable._forget_removed(p_now bigint, p_limit integer)
returns integer language plpgsql volatile
as $$
declare
  v_before bigint := p_now - durable._setting_int('removed_ids_days') * 86400000;
  v_ids integer;
  v_keys integer;
begin
  delete from durable._removed r where r.id = any (array(
    select x.id from durable._removed x
    where x.removed_at < v_before order by x.removed_at limit p_limit for update skip locked));
  get diagnostics v_ids = row_count;
  delete from durable._removed_signals s where (s.id, s.name, s.key) in (
    select x.id, x.name, x.key from durable._removed_signals x
    where x.removed_at < v_before order by x.removed_at limit p_limit for update skip locked);
  get diagnostics v_keys = row_count;
  return v_ids + v_keys;
end
$$;
comment on function durable._forget_removed(bigint, integer) is
  'Forgets removed ids, and keys of signals to removed generations, after removed_ids_days.';

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

create or replace function durable._is_empty_bucket(p_bucket integer)
returns boolean language sql stable
as $$
  select not exists (select from durable._journal j where j.bucket = p_bucket)
     and not exists (select from durable._journal_values v where v.bucket = p_bucket)
$$;
comment on function durable._is_empty_bucket(integer) is 'True if no journal of that week has a row any more.';

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
    select p.runs + p.generations, p.more into removed, place from durable._purge(v_before, p_place, 100) p;
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
  'One portion: removes trees and earlier generations by retention_days, or forgets ids, moves rows or drops a partition. Answers how many, the next place (null: from the start) and the ms until then. In a transaction of its own, because it reads tables of users, drops partitions, and has locked rows that it then kept, out of the order of locks.';

create or replace function durable._sweep_callbacks(p_now bigint, out removed integer, out due_in bigint)
language plpgsql volatile
as $$
declare
  v_tasks text[] := durable._try_lock_free_tasks(array(
    select distinct c.awaiter_id from durable._callbacks c where c.id <> '' and c.timeout_at <= p_now limit 500));
begin
  delete from durable._callbacks c where c.id <> '' and c.timeout_at <= p_now and c.awaiter_id = any (v_tasks);
  get diagnostics removed = row_count;
  if durable._offer_again(v_tasks, p_now) <> '{}' then
    perform durable._hint('durable_ready', p_now);
  end if;
  due_in := coalesce((select least(greatest(min(c.timeout_at) - p_now, 1000), 60000) from durable._callbacks c where c.id <> ''
                      having count(*) > 0), 3600000);
end
$$;
comment on function durable._sweep_callbacks(bigint) is
  'Drops callbacks that ran out, of 500 awaiters at most; an awaiter that has no other is offered again. A locked one is left to the next time, a second later. It comes each minute while there are any, because a callback may have come without a word to it, and else each hour.';

create or replace function durable._try_lock_sweep(p_now bigint)
returns durable._retention language plpgsql volatile
as $$
declare
  v_sweep durable._retention;
begin
  if (exists (select from durable._retention) and not exists (
       select from durable._retention r where r.due_at not between p_now + 1 and p_now + 90000000))
     or not pg_try_advisory_xact_lock(1685417579, 0) then
    return null;
  end if;
  select * into v_sweep from durable._retention r
  where r.due_at not between p_now + 1 and p_now + 90000000 order by r.due_at limit 1 for no key update skip locked;
  if not exists (select from durable._retention r where r.subject = 'runs') then
    insert into durable._retention (due_at, subject) values (p_now + 3600000, 'runs');
  elsif v_sweep.subject = 'runs' then
    insert into durable._retention (due_at, subject)
    select p_now, s.subject
    from (select exists (select from durable._objects) or exists (select from durable._claims) as there) o
    cross join lateral (values
      ('calls', o.there), ('objects', o.there),
      ('callbacks', exists (select from durable._callbacks c where c.id <> '') and pg_try_advisory_xact_lock(1685417579, 1))
    ) as s (subject, is_wanted)
    where s.is_wanted
    on conflict on constraint retention_pk do nothing;
  end if;
  return v_sweep;
end
$$;
comment on function durable._try_lock_sweep(bigint) is
  'The sweep of retention that is due for the longest time, or, after the clock was set back, in more than the longest pause; all null if none is, or another session is at one. Its row is written only under this advisory lock, which is tried. The sweeps of calls and objects begin where there are objects or claims; that of callbacks with the first of them, or here, if nobody has noted that one.';

create or replace function durable._sweep_retention(p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_sweep durable._retention := durable._try_lock_sweep(p_now);
  v_part record;
  v_problem text;
begin
  if v_sweep.subject is null then
    return null;
  end if;
  begin
    case v_sweep.subject
      when 'runs' then select * into v_part from durable._sweep_runs(v_sweep.place, p_now) s;
      when 'calls' then select * into v_part from durable._sweep_calls(v_sweep.place, p_now) s;
      when 'objects' then select * into v_part from durable._sweep_objects(v_sweep.place, p_now) s;
      when 'callbacks' then select s.*, null::jsonb as place into v_part from durable._sweep_callbacks(p_now) s;
    end case;
  exception when others or query_canceled then
    -- the other sweeps, and the rest of the tick, go on
    v_problem := format('%s (SQLSTATE %s)', sqlerrm, sqlstate);
    select v_sweep.place as place, 600000::bigint as due_in, 0 as removed into v_part;
  end;
  update durable._retention r set place = v_part.place, due_at = p_now + v_part.due_in, problem = v_problem
  where r.subject = v_sweep.subject;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'removed', v_part.removed,
                            'next_due_ms', durable._due_in(p_now), 'more', true, 'hints', '[]'::jsonb, 'problem', v_problem);
end
$$;
comment on function durable._sweep_retention(bigint) is
  'The answer of a tick that did one portion of one sweep of retention: of runs, of calls, of objects, or of callbacks of the older API; also if there was nothing to remove; null if none was due. A sweep that fails is left for ten minutes, and its problem is kept. In a transaction of its own: see durable._sweep_runs.';
