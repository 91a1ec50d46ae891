-- Every lock that waits: those of verbs, which run in transactions of users. One order: promises by id, tasks by id, heads by
-- number. A session that holds a later class never waits for an earlier one, so there is no cycle. The engine's own locks, which
-- never wait for a user, stand in 10_base/40_try_locks.sql.
-- Lock first, then read in a new statement: a statement's snapshot predates its own waiting. One row by its key may be read
-- by the statement that locks it, because that answers the row as it is after the wait.

create or replace function durable._may_lock()
returns void language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform durable._fail_conflict('The transaction reads one snapshot, so it cannot see what it waited for.',
                                   'Use BEGIN ISOLATION LEVEL READ COMMITTED.');
  elsif current_setting('durable.fenced', true) <> '' then
    perform durable._fail_conflict(format('The transaction has fenced task %L, and what it asks for now locks what comes before.',
                                          current_setting('durable.fenced', true)),
                                   'Call durable.fence last, right before the commit.');
  end if;
end
$$;
comment on function durable._may_lock() is
  'Raises WF003 where waiting would be wrong: above READ COMMITTED, and after durable.fence, whose task lock comes later in the order.';

create or replace function durable._lock_promises(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform from durable._promises p where p.id = any (p_ids) order by p.id for no key update;
end
$$;
comment on function durable._lock_promises(text[]) is
  'Class 1. One mode for settling and awaiting alike: two modes in one pass would need two passes, hence two orders.';

create or replace function durable._lock_tasks(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform from durable._tasks t where t.id = any (p_ids) order by t.id for no key update;
end
$$;
comment on function durable._lock_tasks(text[]) is
  'Class 2, where the holder keeps its right: own turn, waking. Lets a user''s fence (FOR KEY SHARE) pass.';

create or replace function durable._lock_free_tasks(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  return array(select t.id from durable._tasks t where t.id = any (p_ids) order by t.id for no key update skip locked);
end
$$;
comment on function durable._lock_free_tasks(text[]) is
  'Class 2 for renewals, which never wait: one transaction that somebody left open over one task must not cost a worker all its leases. A task that is locked cannot be taken by a sweep either.';

create or replace function durable._lock_tasks_away(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform from durable._tasks t where t.id = any (p_ids) order by t.id for update;
end
$$;
comment on function durable._lock_tasks_away(text[]) is
  'Class 2, where the holder loses its right: acquire, halt, settlement from outside. Waits for the commit of a user''s fence.';

create or replace function durable._lock_fence(p_id text)
returns void language plpgsql volatile
as $$
begin
  if p_id = current_setting('durable.fenced', true) then
    perform set_config('durable.fenced', '', true);
  end if;
  perform durable._may_lock();
  perform from durable._tasks t where t.id = p_id for key share;
  perform set_config('durable.fenced', p_id, true);
end
$$;
comment on function durable._lock_fence(text) is
  'Class 2, for a user''s own transaction: lets turns and renewals pass, makes a takeover wait for the commit. The transaction remembers it: afterwards it may only fence that one again: a turn that ends two fenced runs takes them in its own order.';

create or replace function durable._lock_heads(p_executions bigint[])
returns void language plpgsql volatile
as $$
begin
  perform from durable._executions h where h.execution = any (p_executions) order by h.execution for no key update;
end
$$;
comment on function durable._lock_heads(bigint[]) is 'Class 3.';

create or replace function durable._ancestors(p_id text)
returns text[] language sql immutable parallel safe
as $$
  select array(
    select array_to_string(s.parts[1:n], '.')
    from (select string_to_array(p_id, '.') as parts,
                 cardinality(string_to_array(substring(p_id from E'(?:\\.\\d{1,9})+$'), '.')) - 1 as numbers) s
    cross join generate_series(cardinality(s.parts) - 1, cardinality(s.parts) - s.numbers, -1) n)
$$;
comment on function durable._ancestors(text) is 'Ids of the runs whose descendant this id would be: x.1.2 has x.1 and x.';

create or replace function durable._is_free(p_key integer)
returns boolean language plpgsql volatile
as $$
declare
  v_free boolean;
begin
  begin
    v_free := pg_try_advisory_xact_lock(p_key, 0);
    perform durable._start_over();
  exception when sqlstate 'WF099' then
    null;
  end;
  return v_free;
end
$$;
comment on function durable._is_free(integer) is 'True if no other session holds this lock at this moment. The lock is not kept.';

create or replace function durable._try_beside_many()
returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock_shared(1685417582, 0) and durable._is_free(1685417578) $$;
comment on function durable._try_beside_many() is
  'From here to the commit no start of very many begins (_lock_many); false if one is under way. Never waits.';

create or replace function durable._lock_beside_many()
returns void language plpgsql volatile
as $$
begin
  perform pg_advisory_xact_lock_shared(1685417582, 0);
  begin
    perform pg_advisory_xact_lock(1685417578, 0);
    perform durable._start_over();
  exception when sqlstate 'WF099' then
    return;
  end;
end
$$;
comment on function durable._lock_beside_many() is
  'The same for who makes a promise or a run below an id that does not exist: waits until the starts of very many that are under way are committed, because one of them may be of that id.';

create or replace function durable._lock_families(p_ids text[], p_runs boolean)
returns void language plpgsql volatile
as $$
declare
  v_above text[] := array(select distinct a from unnest(p_ids) i cross join lateral unnest(durable._ancestors(i)) a);
begin
  perform case when f.is_own then pg_advisory_xact_lock(1685417574, f.hash)
               else pg_advisory_xact_lock_shared(1685417574, f.hash) end
  from (
    select u.hash, bool_or(u.is_own) as is_own from (
      select hashtext(i) as hash, true as is_own from unnest(p_ids) i where p_runs
      union all
      select hashtext(a), false from unnest(v_above) a) u
    group by u.hash order by u.hash) f;
  if (select count(*) from durable._promises p where p.id = any (v_above)) < cardinality(v_above) then
    perform durable._lock_beside_many();
  end if;
end
$$;
comment on function durable._lock_families(text[], boolean) is
  'The locks of _lock_family for any number of ids, in the order of their hashes, which is the one order: a run and its descendant are never started in one call. Where what they lie below does not exist, also that against _lock_many.';

create or replace function durable._lock_family(p_id text, p_run boolean)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  if p_run or durable._ancestors(p_id) <> '{}' then
    perform durable._lock_families(array[p_id], p_run);
  end if;
end
$$;
comment on function durable._lock_family(text, boolean) is
  'Before a promise with an id of its creator''s choice is born: a run waits for creators of what would be its children, and they for it. Ids without a number at the end pass freely.';

create or replace function durable._key_name(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$ select p_tenant || '/' || p_workflow || '/' || p_key $$;
comment on function durable._key_name(text, text, text) is 'The name on which an idempotency key is locked; null without a key.';

create or replace function durable._most_names()
returns integer language sql immutable parallel safe
as $$ select 1000 $$;
comment on function durable._most_names() is
  'So many names of one call are locked one by one: the server has room for some thousand locks in all.';

create or replace function durable._try_many(p_ids text[])
returns boolean language plpgsql volatile
as $$
declare
  v_hashes integer[] := array(
    select distinct hashtext(a) from unnest(p_ids) i cross join lateral unnest(durable._ancestors(i)) a order by 1);
begin
  if cardinality(v_hashes) > 1000 then
    perform durable._fail_invalid(
      format('The ids of this call lie below %s others, and 1000 is the most.', cardinality(v_hashes)),
      'Start them in portions, each in a transaction of its own.');
  end if;
  return case when v_hashes = '{}' then pg_try_advisory_xact_lock_shared(1685417578, 0)
              else pg_try_advisory_xact_lock(1685417578, 0) end
         and durable._is_free(1685417582)
         and (select coalesce(bool_and(pg_try_advisory_xact_lock_shared(1685417574, h)), true) from unnest(v_hashes) h);
end
$$;
comment on function durable._try_many(text[]) is 'Takes the locks of _lock_many; false if one of them is taken at this moment.';

create or replace function durable._lock_many(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  for v_round in 0..26 loop
    begin
      if durable._try_many(p_ids) then
        return;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- who waited here would stand in the way of those who come after him
      perform pg_sleep(least(0.001 * 2 ^ v_round, 0.1));
    end;
  end loop;
  perform durable._fail_busy(format('What %s ids lie below', cardinality(p_ids)));
end
$$;
comment on function durable._lock_many(text[]) is
  'For a start with more names than are locked one by one. A start with the same id or key meets it in the unique indexes, in their order, and waits there. So this lock excludes only the purge and the creation of a promise or run below an id that does not exist, and each of those excludes it. It tries for two seconds and never waits: 55P03.';

create or replace function durable._lock_names(p_keys text[], p_ids text[])
returns void language plpgsql volatile
as $$
declare
  v_keys text[] := array_remove(p_keys, null);
  v_ids text[] := array_remove(p_ids, null);
  v_count integer := coalesce(cardinality(v_keys), 0) + coalesce(cardinality(v_ids), 0);
begin
  if v_count = 0 then
    return;
  end if;
  perform durable._may_lock();
  if v_count > durable._most_names() then
    perform durable._lock_many(v_ids);
    return;
  end if;
  perform pg_advisory_xact_lock(1685417572, k.hash)
  from (select distinct hashtext(x) as hash from unnest(v_keys) x order by 1) k;
  perform durable._lock_families(v_ids, true);
end
$$;
comment on function durable._lock_names(text[], text[]) is
  'Class 0 of starts: keys (_key_name), then ids, each in the order of their hashes. Two starts with one key wait for each other, before any row: only one of them may draw an id. Very many at once are not locked by name.';

create or replace function durable._lock_name(p_key text, p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock(),
          case when p_key is not null then pg_advisory_xact_lock(1685417572, hashtext(p_key)) end,
          case when p_id is not null then pg_advisory_xact_lock(1685417574, hashtext(p_id)) end;
end
$$;
comment on function durable._lock_name(text, text) is
  'The same for one key and one id, or null, where the id lies below no other.';

create or replace function durable._begins_chain(p_awaited text[])
returns boolean language plpgsql stable
as $$
begin
  return coalesce(p_awaited, '{}') <> '{}'
    and (select count(*) from durable._promises p where p.id = any (p_awaited) and p.target is null)
        < (select count(distinct a) from unnest(p_awaited) a);
end
$$;
comment on function durable._begins_chain(text[]) is
  'True if some of these can themselves wait for others. A promise without target never waits, so it is on no circle; one that does not exist yet may be created with a target.';

create or replace function durable._lock_adoptions(p_awaited text[])
returns void language plpgsql volatile
as $$
begin
  if durable._begins_chain(p_awaited) then
    perform durable._may_lock();
    perform pg_advisory_xact_lock(1685417575, 0);
  end if;
end
$$;
comment on function durable._lock_adoptions(text[]) is
  'Taken after the heads, so that its holder waits for nothing but its commit. Runs that begin to wait for other runs do so one after the other, so that two of them cannot close a circle that neither sees. Waits for plain promises pass.';

create or replace function durable._heads_of(p_settle text[], p_tasks text[])
returns bigint[] language plpgsql stable
as $$
begin
  return (
    select array_agg(u.execution) from (
      select p.head as execution from durable._promises p where p.id = any (p_settle) and p.head is not null
      union
      select p.execution from durable._promises p where p.id = any (p_settle) and p.execution is not null
      union
      select t.execution from durable._tasks t where t.id = any (p_tasks) and t.execution is not null
    ) u);
end
$$;
comment on function durable._heads_of(text[], text[]) is
  'Heads that settling p_settle touches: their own, their owners'', and those of the awaiting tasks p_tasks.';

create or replace function durable._awaiters_of(p_ids text[])
returns text[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(distinct c.awaiter_id), '{}') from durable._callbacks c where c.awaited_id = any (p_ids));
end
$$;
comment on function durable._awaiters_of(text[]) is
  'Tasks that settling p_ids may wake. Stable once the promises are locked: registering takes the same lock.';

create or replace function durable._lock_settlement(p_ids text[])
returns void language plpgsql volatile
as $$
declare
  v_awaiters text[];
begin
  perform durable._lock_promises(p_ids);
  v_awaiters := durable._awaiters_of(p_ids);
  perform durable._lock_tasks_away(p_ids || v_awaiters);
  perform durable._lock_heads(durable._heads_of(p_ids, p_ids || v_awaiters));
end
$$;
comment on function durable._lock_settlement(text[]) is 'All locks of a settlement from outside, in the one order.';

create or replace function durable._try_serve(p_id text)
returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock(1685417576, hashtext(p_id)) $$;
comment on function durable._try_serve(text) is
  'Takes a task of a service for this transaction, so that two do not call its function at once; never waits.';

create or replace function durable._try_late(p_promise text, p_task text)
returns boolean language plpgsql volatile
as $$
declare
  v_tasks text[] := array[p_task];
  v_heads bigint[];
begin
  if p_promise is not null then
    perform from durable._promises p where p.id = p_promise for no key update skip locked;
    if not found then
      return false;
    end if;
    v_tasks := v_tasks || durable._awaiters_of(array[p_promise]);
    perform from durable._tasks t where t.id = p_task for update skip locked;
    if not found and exists (select from durable._tasks t where t.id = p_task) then
      -- the weaker lock below would pass a user's fence, and the settlement would wait for it
      return false;
    end if;
  end if;
  perform from durable._tasks t where t.id = any (v_tasks) and t.id <> all (durable._lock_free_tasks(v_tasks));
  if found then
    return false;
  end if;
  v_heads := durable._heads_of(array[p_promise], v_tasks);
  return (select count(*) from (
            select from durable._executions h where h.execution = any (v_heads)
            order by h.execution for no key update skip locked) l) = coalesce(cardinality(v_heads), 0);
end
$$;
comment on function durable._try_late(text, text) is
  'Locks a task, and if p_promise is given all that its settlement needs; false if any of it is taken at this moment.';

create or replace function durable._lock_late(p_promise text, p_task text)
returns boolean language plpgsql volatile
as $$
begin
  for v_round in 0..15 loop
    begin
      if durable._try_late(p_promise, p_task) then
        return true;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- what it got is given back, so that nobody is held up for what it did not get
      perform pg_sleep(least(0.001 * 2 ^ v_round, 0.05));
    end;
  end loop;
  return false;
end
$$;
comment on function durable._lock_late(text, text) is
  'Classes 1 to 3 after a function of a user has run in this transaction. That function may hold any locks, of later classes too, so this never waits in the database''s queue: it tries for half a second. False: the caller has to start again.';

create or replace function durable._lock_commit(p_ids text[], p_own text)
returns void language plpgsql volatile
as $$
declare
  v_awaiters text[];
begin
  if p_ids = '{}' then
    perform durable._lock_tasks(array[p_own]);
    perform durable._lock_heads(durable._heads_of('{}', array[p_own]));
    return;
  end if;
  perform durable._lock_promises(p_ids);
  v_awaiters := durable._awaiters_of(p_ids);
  perform durable._lock_tasks_away(p_ids || v_awaiters || p_own);
  perform durable._lock_heads(durable._heads_of(p_ids, p_ids || v_awaiters || p_own));
end
$$;
comment on function durable._lock_commit(text[], text) is
  'All locks of a workflow''s transaction: the promises and runs that it touches, as a settlement locks them, and its own task, which it keeps.';
