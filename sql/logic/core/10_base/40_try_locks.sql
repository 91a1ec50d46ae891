-- Locks of the engine itself: its turns, claims and sweeps lock what is free and leave out the rest, so they never wait for a
-- transaction of a user. They wait only for an older transaction of the engine, which commits in a moment. Such a transaction
-- is known by its mark: an advisory lock on its own number.
-- A row that a function answers as missed exists, but another session has locked it. Rows are read in a statement after the lock.

create or replace function durable._engine_xact_key(p_xid xid)
returns bigint language sql immutable parallel safe
as $$ select (1685417580::bigint << 32) + p_xid::text::bigint $$;
comment on function durable._engine_xact_key(xid) is 'The mark of a transaction of the engine: the key of an advisory lock, made from the number of the transaction.';

create or replace function durable._mark_engine_xact(p_autocommit boolean default durable._is_autocommit())
returns void language plpgsql volatile
as $$
begin
  perform durable._check_may_lock();
  if p_autocommit then
    perform pg_try_advisory_xact_lock(durable._engine_xact_key(pg_current_xact_id()::xid));
  end if;
end
$$;
comment on function durable._mark_engine_xact(boolean) is
  'Marks the current transaction as one of the engine, before it locks rows that others need. A transaction block of a user gets no mark, because it may stay open for long. p_autocommit: whether there was no transaction block when the statement began.';

create or replace function durable._await_engine_xact(p_holder xid)
returns boolean language plpgsql volatile
as $$
begin
  if age(p_holder) <= age(pg_current_xact_id()::xid) or pg_try_advisory_xact_lock_shared(durable._engine_xact_key(p_holder)) then
    return false;
  end if;
  -- shared: an exclusive lock would look like a mark
  perform pg_advisory_xact_lock_shared(durable._engine_xact_key(p_holder));
  return true;
exception when lock_not_available then
  return false;
end
$$ set lock_timeout = '100ms';
comment on function durable._await_engine_xact(xid) is
  'Waits for the end of an older transaction of the engine, up to 100 ms, because its process may have been stopped. False at once for every other transaction, and for a multixact, which has no mark.';

create or replace function durable._await_engine_xacts(p_holders text[])
returns boolean language plpgsql volatile
as $$
begin
  return (select coalesce(bool_or(durable._await_engine_xact(h::xid)), false) from unnest(p_holders) h);
end
$$;
comment on function durable._await_engine_xacts(text[]) is 'True if one of these transactions was waited for, so that its rows can be tried again.';

create or replace function durable._try_lock_promises(p_ids text[])
returns text[] language plpgsql volatile
as $$
declare
  v_missed text[] := p_ids;
  v_locked text[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    v_locked := array(select p.id from durable._promises p
                      where p.id = any (v_missed) order by p.id for no key update skip locked);
    if cardinality(v_locked) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(p.id), '{}'), array_agg(distinct p.xmax::text) into v_missed, v_holders
    from durable._promises p where p.id = any (array(select unnest(v_missed) except select unnest(v_locked)));
    exit when v_missed = '{}' or not durable._await_engine_xacts(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._try_lock_promises(text[]) is 'Class 1, to settle or to await. Answers what it missed.';

create or replace function durable._try_lock_tasks(p_ids text[], p_revoke boolean)
returns text[] language plpgsql volatile
as $$
declare
  v_missed text[] := p_ids;
  v_locked text[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    if p_revoke then
      v_locked := array(select t.id from durable._tasks t
                        where t.id = any (v_missed) order by t.id for update skip locked);
    else
      v_locked := array(select t.id from durable._tasks t
                        where t.id = any (v_missed) order by t.id for no key update skip locked);
    end if;
    if cardinality(v_locked) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(t.id), '{}'), array_agg(distinct t.xmax::text) into v_missed, v_holders
    from durable._tasks t where t.id = any (array(select unnest(v_missed) except select unnest(v_locked)));
    exit when v_missed = '{}' or not durable._await_engine_xacts(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._try_lock_tasks(text[], boolean) is
  'Class 2. p_revoke: the lease is revoked, so a user''s fence is respected. Answers what it missed.';

create or replace function durable._try_lock_heads(p_executions bigint[])
returns bigint[] language plpgsql volatile
as $$
declare
  v_missed bigint[] := p_executions;
  v_locked bigint[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    v_locked := array(select h.execution from durable._executions h
                      where h.execution = any (v_missed) order by h.execution for no key update skip locked);
    if cardinality(v_locked) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(h.execution), '{}'), array_agg(distinct h.xmax::text) into v_missed, v_holders
    from durable._executions h where h.execution = any (array(select unnest(v_missed) except select unnest(v_locked)));
    exit when v_missed = '{}' or not durable._await_engine_xacts(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._try_lock_heads(bigint[]) is 'Class 3. Answers what it missed.';

create or replace function durable._try_lock_promise(p_id text)
returns boolean language plpgsql volatile
as $$
begin
  perform from durable._promises p where p.id = p_id for no key update skip locked;
  return found;
end
$$;
comment on function durable._try_lock_promise(text) is 'Class 1, for one promise: false if another session has locked it.';

create or replace function durable._try_lock_task(p_id text, p_revoke boolean)
returns durable._tasks language plpgsql volatile
as $$
declare
  v_task durable._tasks;
begin
  if p_revoke then
    select * into v_task from durable._tasks t where t.id = p_id for update skip locked;
  else
    select * into v_task from durable._tasks t where t.id = p_id for no key update skip locked;
  end if;
  return v_task;
end
$$;
comment on function durable._try_lock_task(text, boolean) is
  'Class 2, for one task; all null if there is none or another session has locked it. p_revoke: as for _try_lock_tasks.';

create or replace function durable._try_lock_hint(p_channel text)
returns boolean language plpgsql volatile
as $$
begin
  perform from durable._hints h where h.channel = p_channel for no key update skip locked;
  return found;
end
$$;
comment on function durable._try_lock_hint(text) is
  'The row that says when a hint of a channel was last sent: false if there is none, or if another session has locked it.';

create or replace function durable._try_lock_head(p_execution bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.execution = p_execution for no key update skip locked;
  return v_head;
end
$$;
comment on function durable._try_lock_head(bigint) is 'Class 3, for one head; all null as for a task.';

create or replace function durable._busy_settlements(p_ids text[], p_tasks text[], p_heads bigint[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select p.id from durable._promises p
    where p.id = any (p_ids)
      and (p.id = any (p_tasks) or p.head = any (p_heads) or p.execution = any (p_heads)
           or exists (select from durable._callbacks c left join durable._tasks t on t.id = c.awaiter_id
                      where c.awaited_id = p.id and (c.awaiter_id = any (p_tasks) or t.execution = any (p_heads)))));
end
$$;
comment on function durable._busy_settlements(text[], text[], bigint[]) is
  'Those of the promises that cannot be settled now, because these tasks and heads were missed: their own, those of their owners, or those of their awaiters.';

create or replace function durable._try_lock_settlement(
  p_ids text[], out ids text[], out awaiters text[], out tasks text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_heads bigint[];
  v_blocked text[];
begin
  ids := p_ids; awaiters := '{}'; tasks := '{}'; heads := '{}';
  if p_ids = '{}' then
    return;
  end if;
  awaiters := durable._awaiters_of(p_ids);
  tasks := durable._try_lock_tasks(p_ids, true);
  if awaiters <> '{}' then
    tasks := tasks || durable._try_lock_tasks(awaiters, false);
  end if;
  v_heads := coalesce(durable._heads_of(p_ids, p_ids || awaiters), '{}');
  heads := durable._try_lock_heads(v_heads);
  if tasks <> '{}' or heads <> '{}' then
    ids := array(select unnest(p_ids) except select unnest(durable._busy_settlements(p_ids, tasks, heads)));
  end if;
  v_blocked := durable._try_lock_promise_side_rows(ids, v_heads);
  if v_blocked <> '{}' then
    ids := array(select unnest(ids) except select unnest(v_blocked));
    tasks := tasks || v_blocked;
  end if;
end
$$;
comment on function durable._try_lock_settlement(text[]) is
  'Classes 2 to 4 for a sweep that settles promises, which it has locked. ids: the promises that can be settled. tasks, heads: the ones that were missed; tasks also names promises with a side row that was missed.';

create or replace function durable._locked_ids(p_ids text[], p_heads bigint[])
returns text[] language plpgsql stable
as $$
begin
  if p_heads = '{}' then
    return p_ids;
  end if;
  return array(select unnest(p_ids) union select h.id from durable._executions h where h.execution = any (p_heads) limit 100);
end
$$;
comment on function durable._locked_ids(text[], bigint[]) is 'The ids of locked runs and promises, 100 at most, for the answer.';

create or replace function durable._try_lock_adoptions(p_awaited text[])
returns boolean language plpgsql volatile
as $$
begin
  return not durable._begins_chain(p_awaited) or pg_try_advisory_xact_lock(1685417575, 0);
end
$$;
comment on function durable._try_lock_adoptions(text[]) is '_lock_adoptions for a turn, which does not wait: false while another transaction has it.';

create or replace function durable._try_lock_site()
returns boolean language plpgsql volatile
as $$
begin
  perform from durable._site s for update skip locked;
  return found;
end
$$;
comment on function durable._try_lock_site() is 'The row of the site: false if another session has locked it, or there is none.';

create or replace function durable._try_lock_idle_copy()
returns boolean language plpgsql volatile
as $$
begin
  return durable._try_lock_site() and pg_try_advisory_xact_lock(1685417585, 0);
end
$$;
comment on function durable._try_lock_idle_copy() is
  'The same for the adoption of a copy in which nothing could run. The advisory lock shows other sessions, until the commit, that it is so.';

create or replace function durable._try_lock_schedule(p_id text)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
begin
  select * into v_schedule from durable._schedules s where s.id = p_id for update skip locked;
  return v_schedule;
end
$$;
comment on function durable._try_lock_schedule(text) is 'Locks and answers a schedule; null if it is locked, or not there.';

create or replace function durable._try_lock_cancellations(p_limit integer)
returns bigint[] language plpgsql volatile
as $$
begin
  return array(select c.number from durable._cancellations c order by c.number limit p_limit for update skip locked);
end
$$;
comment on function durable._try_lock_cancellations(integer) is
  'Requests to cancel child runs, the oldest first. Before all other classes; whoever writes one waits for none.';

create or replace function durable._try_lock_code_waits(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  return array(select c.id from durable._code_waits c where c.id = any (p_ids) order by c.id for update skip locked);
end
$$;
comment on function durable._try_lock_code_waits(text[]) is 'Side rows of runs that wait for their code. Answers the ones that it locked.';

create or replace function durable._try_lock_later_sweep(p_subject text, p_at bigint)
returns text language plpgsql volatile
as $$
begin
  return (select r.subject from durable._retention r where r.subject = p_subject and r.due_at > p_at
          for no key update skip locked);
end
$$;
comment on function durable._try_lock_later_sweep(text, bigint) is
  'A sweep of retention that is due after that instant; null if it is due before, or locked.';

create or replace function durable._is_disconnected(p_number bigint)
returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock_shared(1685417570, (p_number & 2147483647)::integer) $$;
comment on function durable._is_disconnected(bigint) is
  'True if no session holds the presence lock of that worker: its connection is gone. The lock is tried shared, so that two sessions which try it never see each other as the worker.';

create or replace function durable._try_lock_rows(p_bucket integer, p_execution bigint, p_seqs integer[])
returns boolean language plpgsql volatile
as $$
begin
  return cardinality(p_seqs) = (
    select count(*) from (
      select from durable._journal j
      where j.execution = p_execution and j.bucket = p_bucket and j.seq = any (p_seqs) for update skip locked) k);
end
$$;
comment on function durable._try_lock_rows(integer, bigint, integer[]) is
  'Locks rows of a journal; false if somebody has locked one.';

create or replace function durable._try_lock_values(p_bucket integer, p_execution bigint)
returns boolean language plpgsql volatile
as $$
begin
  return (select count(*) from durable._journal_values v where v.bucket = p_bucket and v.execution = p_execution) = (
    select count(*) from (
      select from durable._journal_values v where v.bucket = p_bucket and v.execution = p_execution for update skip locked) k);
end
$$;
comment on function durable._try_lock_values(integer, bigint) is
  'Locks the values of a run that stand apart; false if somebody has locked one.';
