-- Every lock that waits. One order: worker rows, promises by id, tasks by id, heads by number; nobody who holds a later
-- class waits for an earlier one, so there is no cycle. Claims and sweeps use SKIP LOCKED in their own files and never wait.
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

create or replace function durable._lock_rest(p_worker text)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform from durable._resting r where r.worker = p_worker for update;
end
$$;
comment on function durable._lock_rest(text) is
  'Class 0, for the goodbye of a worker: waits for the start that hands it a run at this moment, which waits for nobody from there on.';

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

create or replace function durable._lock_promise(p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform from durable._promises p where p.id = p_id for no key update;
end
$$;
comment on function durable._lock_promise(text) is 'Class 1, as _lock_promises, for one promise.';

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

create or replace function durable._lock_task(p_id text)
returns durable._tasks language plpgsql volatile
as $$
declare
  v_task durable._tasks;
begin
  select * into v_task from durable._tasks t where t.id = p_id for no key update;
  return v_task;
end
$$;
comment on function durable._lock_task(text) is
  'Class 2, as _lock_tasks, for one task whose promise is locked already; answers it, all null if there is none.';

create or replace function durable._lock_free_tasks(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  return array(select t.id from durable._tasks t where t.id = any (p_ids) order by t.id for no key update skip locked);
end
$$;
comment on function durable._lock_free_tasks(text[]) is
  'Class 2 for renewals, which never wait: one transaction that somebody left open over one task must not cost a worker all its leases. What is locked cannot be taken by a sweep either.';

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

create or replace function durable._lock_head(p_execution bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.execution = p_execution for no key update;
  return v_head;
end
$$;
comment on function durable._lock_head(bigint) is 'Class 3, for one head; answers it, all null if there is none.';

create or replace function durable._ancestors(p_id text)
returns text[] language sql immutable parallel safe
as $$
  select array(
    select array_to_string(s.parts[1:n], '.')
    from (select string_to_array(p_id, '.') as parts,
                 cardinality(string_to_array(substring(p_id from '(?:\.\d{1,9})+$'), '.')) - 1 as numbers) s
    cross join generate_series(cardinality(s.parts) - 1, cardinality(s.parts) - s.numbers, -1) n)
$$;
comment on function durable._ancestors(text) is 'Ids of the runs whose descendant this id would be: x.1.2 has x.1 and x.';

create or replace function durable._lock_families(p_ids text[], p_runs boolean)
returns void language plpgsql volatile
as $$
begin
  perform case when f.is_own then pg_advisory_xact_lock(1685417574, f.hash)
               else pg_advisory_xact_lock_shared(1685417574, f.hash) end
  from (
    select u.hash, bool_or(u.is_own) as is_own from (
      select hashtext(i) as hash, true as is_own from unnest(p_ids) i where p_runs
      union all
      select hashtext(a), false from unnest(p_ids) i cross join lateral unnest(durable._ancestors(i)) a) u
    group by u.hash order by u.hash) f;
end
$$;
comment on function durable._lock_families(text[], boolean) is
  'The locks of _lock_family for any number of ids, in the order of their hashes, which is the one order: a run and its descendant are never started in one call.';

create or replace function durable._lock_family(p_id text, p_run boolean)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  if p_run or durable._ancestors(p_id) <> '{}' then
    perform pg_advisory_xact_lock_shared(1685417578, 0);
    perform durable._lock_families(array[p_id], p_run);
  end if;
end
$$;
comment on function durable._lock_family(text, boolean) is
  'Before a promise with an id of its creator''s choice is born: a run waits for creators of what would be its children, and they for it. Ids without a number at the end pass freely.';

create or replace function durable._key_name(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$ select p_tenant || '/' || p_workflow || '/' || p_key $$;
comment on function durable._key_name(text, text, text) is 'What the lock of an idempotency key is taken on; null without a key.';

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
  if v_count > 1000 then
    -- the server has room for some thousand locks in all
    perform pg_advisory_xact_lock(1685417578, 0);
    return;
  end if;
  perform pg_advisory_xact_lock_shared(1685417578, 0);
  perform pg_advisory_xact_lock(1685417572, k.hash)
  from (select distinct hashtext(x) as hash from unnest(v_keys) x order by 1) k;
  perform durable._lock_families(v_ids, true);
end
$$;
comment on function durable._lock_names(text[], text[]) is
  'Class 0 of starts: keys (_key_name), then ids, each in the order of their hashes. Two starts with one key wait for each other, before any row: only one of them may draw an id. Many at once shut all others out instead.';

create or replace function durable._lock_name(p_key text, p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock(), pg_advisory_xact_lock_shared(1685417578, 0),
          case when p_key is not null then pg_advisory_xact_lock(1685417572, hashtext(p_key)) end,
          case when p_id is not null then pg_advisory_xact_lock(1685417574, hashtext(p_id)) end;
end
$$;
comment on function durable._lock_name(text, text) is
  'The same for one key and one id, or null, where the id lies below no other.';

create or replace function durable._lock_adoptions(p_awaited text[])
returns void language plpgsql volatile
as $$
begin
  if coalesce(p_awaited, '{}') = '{}' then
    return;
  end if;
  -- what has no target never waits, so it is on no circle; one that does not exist yet may come with a target
  if (select count(*) from durable._promises p where p.id = any (p_awaited) and p.target is null)
     < (select count(distinct a) from unnest(p_awaited) a) then
    perform durable._may_lock();
    perform pg_advisory_xact_lock(1685417575, 0);
  end if;
end
$$;
comment on function durable._lock_adoptions(text[]) is
  'After the heads, so that who holds it waits for nobody and only its commit is waited for: runs that begin to wait for other runs do so one after the other, so that two of them cannot close a circle that neither sees. Who waits for plain promises only passes.';

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
  'Classes 1 to 3 after a function of the user''s has run in this transaction, which may have locked whatever it liked, rows of its own and later classes too. So it never waits where the database would have to look for a deadlock: it tries for half a second, and false means that the caller begins anew.';

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
