-- Every lock that waits: those of verbs, which run in transactions of users. One order: objects by id, promises by id, tasks by
-- id, heads by number (a head is the row of a run in _executions), refs by name. A session that holds a later class never waits
-- for an earlier one, so there is no cycle. The engine's own locks, which never wait for a user, stand in
-- 10_base/40_try_locks.sql.
-- No function owns the order, because a session learns in one class which rows it needs of the next. These repeat it whole:
-- _lock_settlement, _lock_commit and _try_lock_after_call in this file, _try_lock_settlement in 10_base/40_try_locks.sql,
-- _lock_fenced and task_suspend in 40_tasks, _try_lock_reports in 60_turn, _lock_client_event in 70_history, task_complete_v0
-- in 80_v0, and _lock_live_runs in 90_read. A change of the order is a change of all of them; the other verbs lock a task and
-- then its head.
-- Names: _lock_x waits until it has every lock. _try_lock_x takes the locks that are free, by SKIP LOCKED or a try, and answers
-- what it locked or what it missed, or true or false. No other name begins with one of the two words, or with _take_.
-- Lock first, then read in a new statement: a statement's snapshot predates its own waiting. One row by its key may be read
-- by the statement that locks it, because that answers the row as it is after the wait.

create or replace function durable._check_may_lock()
returns void language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform durable._fail_conflict(
      format('This transaction is %s: if it had to wait here for another session, it would not see what that has changed.',
             upper(current_setting('transaction_isolation'))),
      'Use BEGIN ISOLATION LEVEL READ COMMITTED, which a session with another default_transaction_isolation says each time.');
  elsif current_setting('durable.fenced', true) <> '' then
    perform durable._fail_conflict(format('The transaction has fenced task %L, and this call locks what comes before a fence.',
                                          current_setting('durable.fenced', true)),
                                   'Call durable.fence last, right before the commit.');
  end if;
end
$$;
comment on function durable._check_may_lock() is
  'Raises WF003 where waiting would be wrong: above READ COMMITTED, and after durable.fence, whose task lock comes later in the order.';

create or replace function durable._lock_objects(p_ids bytea[])
returns bytea[] language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  return array(select o.id from durable._objects o where o.id = any (p_ids) order by o.id for key share);
end
$$;
comment on function durable._lock_objects(bytea[]) is
  'Class 0, before all others: these objects stay until the commit. Everybody may have this lock at once; only collection is kept away, which passes over locked rows. Answers the objects that are there.';

create or replace function durable._lock_schedule(p_id text)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  perform durable._check_may_lock();
  select * into v_schedule from durable._schedules s where s.id = p_id for update;
  return v_schedule;
end
$$;
comment on function durable._lock_schedule(text) is
  'Class 0, before all others: locks and answers a schedule; null if there is none.';

create or replace function durable._lock_refs(p_names text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._refs r where r.name = any (p_names) order by r.name for no key update;
end
$$;
comment on function durable._lock_refs(text[]) is 'Class 4, names of commits: after promises, tasks and heads.';

create or replace function durable._lock_scope(p_name text)
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._refs r where r.name = p_name and r.kind = 'index' for key share;
  if not found then
    perform durable._fail_not_found('scope', p_name, 'select durable.scope_open(...) makes one.');
  end if;
end
$$;
comment on function durable._lock_scope(text) is
  'Class 4: a scope in which something is to be pinned stays until the commit. Everybody may have this lock at once; only its drop is kept away. WF001.';

create or replace function durable._lock_ref_to_drop(p_name text)
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._refs r where r.name = p_name for update;
end
$$;
comment on function durable._lock_ref_to_drop(text) is
  'Class 4: a name that is to be dropped. Waits for the commits of the calls that are being made in the scope, so that the drop sees them.';

create or replace function durable._lock_excisions()
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform pg_advisory_xact_lock(1685417583, 0);
end
$$;
comment on function durable._lock_excisions() is
  'Excisions are committed one after the other, so the number of the latest one stands for all before it. Only they wait for each other.';

create or replace function durable._lock_promises(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._promises p where p.id = any (p_ids) order by p.id for no key update;
end
$$;
comment on function durable._lock_promises(text[]) is
  'Class 1. One mode for settling and awaiting alike: two modes in one pass would need two passes, hence two orders.';

create or replace function durable._lock_tasks(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._tasks t where t.id = any (p_ids) order by t.id for no key update;
end
$$;
comment on function durable._lock_tasks(text[]) is
  'Class 2, where the lease stays: the worker''s own turn, a resume. A user''s fence (FOR KEY SHARE) does not conflict with it.';

create or replace function durable._try_lock_free_tasks(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  return array(select t.id from durable._tasks t where t.id = any (p_ids) order by t.id for no key update skip locked);
end
$$;
comment on function durable._try_lock_free_tasks(text[]) is
  'Class 2 for renewals, which never wait: one transaction that was left open over one task must not cost a worker all its leases. A sweep cannot take a locked task either. Answers the tasks that it locked.';

create or replace function durable._lock_tasks_to_revoke(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  perform from durable._tasks t where t.id = any (p_ids) order by t.id for update;
end
$$;
comment on function durable._lock_tasks_to_revoke(text[]) is
  'Class 2, where a lease is given or revoked: acquire, halt, settlement from outside. Waits for the commit of a user''s fence.';

create or replace function durable._lock_fence(p_id text)
returns void language plpgsql volatile
as $$
begin
  if p_id = current_setting('durable.fenced', true) then
    perform set_config('durable.fenced', '', true);
  end if;
  perform durable._check_may_lock();
  perform from durable._tasks t where t.id = p_id for key share;
  perform set_config('durable.fenced', p_id, true);
end
$$;
comment on function durable._lock_fence(text) is
  'Class 2, for a user''s own transaction. Turns and renewals pass; a takeover of the task waits for the commit. The transaction remembers the fence and may fence no other task afterwards, because a turn that ends two fenced runs locks them in an order of its own.';

create or replace function durable._lock_heads(p_executions bigint[])
returns void language plpgsql volatile
as $$
begin
  perform from durable._executions h where h.execution = any (p_executions) order by h.execution for no key update;
end
$$;
comment on function durable._lock_heads(bigint[]) is 'Class 3: the rows of runs in _executions.';

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

create or replace function durable._detached_id(p_id text, p_child integer)
returns text language sql immutable parallel safe
as $$
  select case when octet_length(n.plain) - octet_length(f.first) <= 60 then n.plain
              else f.first || '~' || left(encode(sha256(convert_to(n.plain, 'UTF8')), 'hex'), 32) end
  from (select p_id || '.' || p_child as plain) n
  cross join lateral (select regexp_replace(n.plain, E'(~[0-9a-f]{32})?(\\.[0-9]{1,9})*$', '') as first) f
$$;
comment on function durable._detached_id(text, integer) is
  'The id of a detached run: that of a child, or, if it would be more than 60 bytes longer than the id of the first run of the chain, that id, a tilde and a hash. pyengine/core/protocol/child_ids.py says the same.';

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
comment on function durable._is_free(integer) is 'True if no other session has this lock at this moment. The lock is given back at once.';

create or replace function durable._is_owned(p_key integer)
returns boolean language plpgsql volatile
as $$
declare
  v_shared boolean;
begin
  begin
    -- an exclusive try would take another session that asks the same for an owner
    v_shared := pg_try_advisory_xact_lock_shared(p_key, 0);
    perform durable._start_over();
  exception when sqlstate 'WF099' then
    null;
  end;
  return not v_shared;
end
$$;
comment on function durable._is_owned(integer) is
  'True if another session has this lock for itself alone at this moment. Nothing is kept, and sessions that ask at once do not see each other.';

create or replace function durable._try_lock_out_bulk_starts()
returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock_shared(1685417582, 0) and durable._is_free(1685417578) $$;
comment on function durable._try_lock_out_bulk_starts() is
  'From here to the commit no bulk start (_lock_bulk_start) begins; false if one is under way.';

create or replace function durable._lock_out_bulk_starts()
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
comment on function durable._lock_out_bulk_starts() is
  'The same for the creation of a promise or run below an id that does not exist. Waits for the commit of the bulk starts that are under way, because one of them may start a run with that id.';

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
    perform durable._lock_out_bulk_starts();
  end if;
end
$$;
comment on function durable._lock_families(text[], boolean) is
  'The locks of _lock_family for any number of ids, in the order of their hashes. That is the one order, because no call starts a run and its descendant. Where an ancestor does not exist, bulk starts are locked out as well.';

create or replace function durable._lock_family(p_id text, p_run boolean)
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  if p_run or durable._ancestors(p_id) <> '{}' then
    perform durable._lock_families(array[p_id], p_run);
  end if;
end
$$;
comment on function durable._lock_family(text, boolean) is
  'Before a promise with a chosen id is created: the start of a run and the creations of promises that would be its children wait for each other. An id without a number at the end needs no lock.';

create or replace function durable._key_name(p_tenant text, p_workflow text, p_key text)
returns text language sql immutable parallel safe
as $$ select p_tenant || '/' || p_workflow || '/' || p_key $$;
comment on function durable._key_name(text, text, text) is 'The name on which an idempotency key is locked; null without a key.';

create or replace function durable._most_names()
returns integer language sql immutable parallel safe
as $$ select 1000 $$;
comment on function durable._most_names() is
  'The largest number of names that one call locks one by one: the server has room for some thousand locks in all.';

create or replace function durable._try_lock_bulk_start(p_ids text[])
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
comment on function durable._try_lock_bulk_start(text[]) is 'Takes the locks of _lock_bulk_start; false if another session has one of them.';

create or replace function durable._lock_bulk_start(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  for v_round in 0..26 loop
    begin
      if durable._try_lock_bulk_start(p_ids) then
        return;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- a session that waited in the queue here would block the sessions behind it
      perform pg_sleep(durable._backoff_ms(1, 100, v_round) / 1000.0);
    end;
  end loop;
  perform durable._fail_busy(format('The ancestors of %s ids', cardinality(p_ids)));
end
$$;
comment on function durable._lock_bulk_start(text[]) is
  'For a bulk start: one with more names than are locked one by one. A start with the same id or key waits for it at the unique indexes, in their order. So this lock excludes only the purge, and the creation of a promise or run below an id that does not exist; each of the two excludes it. It tries again for two seconds, without standing in the queue of a lock, and raises 55P03.';

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
  perform durable._check_may_lock();
  if v_count > durable._most_names() then
    perform durable._lock_bulk_start(v_ids);
    return;
  end if;
  perform pg_advisory_xact_lock(1685417572, k.hash)
  from (select distinct hashtext(x) as hash from unnest(v_keys) x order by 1) k;
  perform durable._lock_families(v_ids, true);
end
$$;
comment on function durable._lock_names(text[], text[]) is
  'Class 0 of starts: keys (_key_name), then ids, each in the order of their hashes. Two starts with one key wait for each other before they write a row, because only one of them may draw an id. A bulk start locks no names.';

create or replace function durable._lock_name(p_key text, p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock(),
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
  'True if one of these promises can itself wait for others. A promise without target never waits, so no circle contains it; one that does not exist yet may be created with a target.';

create or replace function durable._lock_adoptions(p_awaited text[])
returns void language plpgsql volatile
as $$
begin
  if durable._begins_chain(p_awaited) then
    perform durable._check_may_lock();
    perform pg_advisory_xact_lock(1685417575, 0);
  end if;
end
$$;
comment on function durable._lock_adoptions(text[]) is
  'Taken after the heads, so that its holder waits for no other lock. Runs begin to wait for other runs one after the other, so that two of them cannot close a circle that neither sees. Waits for promises without target need no lock.';

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
  'Heads that the settlement of p_settle updates: those of the promises, of their owners, and of the awaiting tasks p_tasks.';

create or replace function durable._awaiters_of(p_ids text[])
returns text[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(distinct c.awaiter_id), '{}') from durable._callbacks c where c.awaited_id = any (p_ids));
end
$$;
comment on function durable._awaiters_of(text[]) is
  'Tasks that the settlement of p_ids may resume. Stable once the promises are locked, because a registration takes the same lock.';

create or replace function durable._lock_settlement(p_ids text[])
returns void language plpgsql volatile
as $$
declare
  v_awaiters text[];
begin
  perform durable._lock_promises(p_ids);
  v_awaiters := durable._awaiters_of(p_ids);
  perform durable._lock_tasks_to_revoke(p_ids || v_awaiters);
  perform durable._lock_heads(durable._heads_of(p_ids, p_ids || v_awaiters));
end
$$;
comment on function durable._lock_settlement(text[]) is 'All locks of a settlement from outside, in the one order.';

create or replace function durable._try_lock_service_call(p_id text)
returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock(1685417576, hashtext(p_id)) $$;
comment on function durable._try_lock_service_call(text) is
  'Locks a task of a service for this transaction, so that no two sessions call its function at once.';

create or replace function durable._try_lock_after_call(p_promise text, p_task text)
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
  perform from durable._tasks t where t.id = any (v_tasks) and t.id <> all (durable._try_lock_free_tasks(v_tasks));
  if found then
    return false;
  end if;
  v_heads := durable._heads_of(array[p_promise], v_tasks);
  return (select count(*) from (
            select from durable._executions h where h.execution = any (v_heads)
            order by h.execution for no key update skip locked) l) = coalesce(cardinality(v_heads), 0);
end
$$;
comment on function durable._try_lock_after_call(text, text) is
  'Locks a task and, if p_promise is given, all that its settlement needs; false if another session has one of the locks.';

create or replace function durable._lock_after_call(p_promise text, p_task text)
returns boolean language plpgsql volatile
as $$
begin
  for v_round in 0..15 loop
    begin
      if durable._try_lock_after_call(p_promise, p_task) then
        return true;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- its locks are given back, so that no session is blocked while this one waits for the rest
      perform pg_sleep(durable._backoff_ms(1, 50, v_round) / 1000.0);
    end;
  end loop;
  return false;
end
$$;
comment on function durable._lock_after_call(text, text) is
  'Classes 1 to 3 after a function of a user has run in this transaction. That function may hold any locks, also of later classes, so this never stands in the queue of a lock: it tries again for half a second. False: the caller must start again.';

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
  perform durable._lock_tasks_to_revoke(p_ids || v_awaiters || p_own);
  perform durable._lock_heads(durable._heads_of(p_ids, p_ids || v_awaiters || p_own));
end
$$;
comment on function durable._lock_commit(text[], text) is
  'All locks of a workflow''s transaction: the promises and runs that it changes, as a settlement locks them, and its own task, whose lease stays.';

create or replace function durable._lock_site()
returns void language plpgsql volatile
as $$
begin
  perform from durable._site s for update;
end
$$;
comment on function durable._lock_site() is
  'The row of the site, for an adoption, before its other locks. Everybody else only tries it, so nobody who waits for it holds anything.';
