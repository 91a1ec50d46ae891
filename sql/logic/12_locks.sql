-- Every lock that waits. One order: worker rows, promises by id, tasks by id, heads by number; nobody who holds a later
-- class waits for an earlier one, so there is no cycle. Claims and sweeps use SKIP LOCKED in their own files and never wait.
-- Lock first, then read in a new statement: a statement's snapshot predates its own waiting.

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

create or replace function durable._lock_family(p_id text, p_run boolean)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  if p_run then
    perform pg_advisory_xact_lock(1685417574, hashtext(p_id));
  end if;
  perform pg_advisory_xact_lock_shared(1685417574, hashtext(a.id)) from unnest(durable._ancestors(p_id)) as a (id);
end
$$;
comment on function durable._lock_family(text, boolean) is
  'Before a promise with an id of its creator''s choice is born: a run waits for creators of what would be its children, and they for it. Ids without a number at the end pass freely.';

create or replace function durable._lock_key(p_tenant text, p_workflow text, p_key text)
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  perform pg_advisory_xact_lock(1685417572, hashtext(p_tenant || '/' || p_workflow || '/' || p_key));
end
$$;
comment on function durable._lock_key(text, text, text) is
  'Two starts with one key wait for each other, before any row: only one of them may draw an id.';

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
