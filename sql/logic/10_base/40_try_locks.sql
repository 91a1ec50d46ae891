-- Locks of the engine itself: its turns, claims and sweeps take what is free and leave out the rest, so they never wait for a
-- transaction of a user. They wait only for a turn of the engine, and only if it is older: it will be over in a moment.
-- A row that a function answers as missed exists, but another session has locked it. Rows are read in a statement after the lock.

create or replace function durable._turn_key(p_xid xid)
returns bigint language sql immutable parallel safe
as $$ select (1685417580::bigint << 32) + p_xid::text::bigint $$;
comment on function durable._turn_key(xid) is 'Advisory lock by which a turn of the engine is known: by the number of its transaction.';

create or replace function durable._mark_turn(p_alone boolean default durable._stands_alone())
returns void language plpgsql volatile
as $$
begin
  perform durable._may_lock();
  if p_alone then
    perform pg_try_advisory_xact_lock(durable._turn_key(pg_current_xact_id()::xid));
  end if;
end
$$;
comment on function durable._mark_turn(boolean) is
  'Before it locks what others need, a turn says that it is one. Not within a transaction block of a user''s, which may stay open for long. p_alone: as of the beginning of the turn.';

create or replace function durable._await_turn(p_holder xid)
returns boolean language plpgsql volatile
as $$
begin
  if age(p_holder) <= age(pg_current_xact_id()::xid) or pg_try_advisory_xact_lock_shared(durable._turn_key(p_holder)) then
    return false;
  end if;
  -- shared: an exclusive lock would look like a mark
  perform pg_advisory_xact_lock_shared(durable._turn_key(p_holder));
  return true;
exception when lock_not_available then
  return false;
end
$$ set lock_timeout = '100ms';
comment on function durable._await_turn(xid) is
  'Waits for the end of a turn that is marked and older, up to 100 ms: a process may have been stopped in the middle of one. Anybody else is not waited for: false. A multixact is no mark.';

create or replace function durable._await_turns(p_holders text[])
returns boolean language plpgsql volatile
as $$
begin
  return (select coalesce(bool_or(durable._await_turn(h::xid)), false) from unnest(p_holders) h);
end
$$;
comment on function durable._await_turns(text[]) is 'True if turns of the engine were waited for, so that what they held can be tried again.';

create or replace function durable._take_promises(p_ids text[])
returns text[] language plpgsql volatile
as $$
declare
  v_missed text[] := p_ids;
  v_had text[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    v_had := array(select p.id from durable._promises p where p.id = any (v_missed) order by p.id for no key update skip locked);
    if cardinality(v_had) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(p.id), '{}'), array_agg(distinct p.xmax::text) into v_missed, v_holders
    from durable._promises p where p.id = any (array(select unnest(v_missed) except select unnest(v_had)));
    exit when v_missed = '{}' or not durable._await_turns(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._take_promises(text[]) is 'Class 1, to settle or to await. Answers what it missed.';

create or replace function durable._take_tasks(p_ids text[], p_away boolean)
returns text[] language plpgsql volatile
as $$
declare
  v_missed text[] := p_ids;
  v_had text[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    if p_away then
      v_had := array(select t.id from durable._tasks t where t.id = any (v_missed) order by t.id for update skip locked);
    else
      v_had := array(select t.id from durable._tasks t where t.id = any (v_missed) order by t.id for no key update skip locked);
    end if;
    if cardinality(v_had) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(t.id), '{}'), array_agg(distinct t.xmax::text) into v_missed, v_holders
    from durable._tasks t where t.id = any (array(select unnest(v_missed) except select unnest(v_had)));
    exit when v_missed = '{}' or not durable._await_turns(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._take_tasks(text[], boolean) is
  'Class 2. p_away: the holder loses its right, so a user''s fence is respected. Answers what it missed.';

create or replace function durable._take_heads(p_executions bigint[])
returns bigint[] language plpgsql volatile
as $$
declare
  v_missed bigint[] := p_executions;
  v_had bigint[];
  v_holders text[];
begin
  for v_round in 1..3 loop
    v_had := array(select h.execution from durable._executions h
                   where h.execution = any (v_missed) order by h.execution for no key update skip locked);
    if cardinality(v_had) = cardinality(v_missed) then
      return '{}';
    end if;
    select coalesce(array_agg(h.execution), '{}'), array_agg(distinct h.xmax::text) into v_missed, v_holders
    from durable._executions h where h.execution = any (array(select unnest(v_missed) except select unnest(v_had)));
    exit when v_missed = '{}' or not durable._await_turns(v_holders);
  end loop;
  return v_missed;
end
$$;
comment on function durable._take_heads(bigint[]) is 'Class 3. Answers what it missed.';

create or replace function durable._take_promise(p_id text)
returns boolean language plpgsql volatile
as $$
begin
  perform from durable._promises p where p.id = p_id for no key update skip locked;
  return found;
end
$$;
comment on function durable._take_promise(text) is 'Class 1, for one promise: false if somebody else has it at this moment.';

create or replace function durable._take_task(p_id text)
returns durable._tasks language plpgsql volatile
as $$
declare
  v_task durable._tasks;
begin
  select * into v_task from durable._tasks t where t.id = p_id for update skip locked;
  return v_task;
end
$$;
comment on function durable._take_task(text) is
  'Class 2, for one task that is to end; all null if there is none or somebody else has it at this moment.';

create or replace function durable._take_head(p_execution bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.execution = p_execution for no key update skip locked;
  return v_head;
end
$$;
comment on function durable._take_head(bigint) is 'Class 3, for one head; all null as for a task.';

create or replace function durable._hindered(p_ids text[], p_tasks text[], p_heads bigint[])
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
comment on function durable._hindered(text[], text[], bigint[]) is
  'Which of these promises cannot be settled now, because these tasks and heads were missed: their own, those of their owners or of who awaits them.';

create or replace function durable._take_chain(
  p_ids text[], out ids text[], out awaiters text[], out tasks text[], out heads bigint[])
language plpgsql volatile
as $$
declare
  v_heads bigint[];
  v_beside text[];
begin
  ids := p_ids; awaiters := '{}'; tasks := '{}'; heads := '{}';
  if p_ids = '{}' then
    return;
  end if;
  awaiters := durable._awaiters_of(p_ids);
  tasks := durable._take_tasks(p_ids, true);
  if awaiters <> '{}' then
    tasks := tasks || durable._take_tasks(awaiters, false);
  end if;
  v_heads := coalesce(durable._heads_of(p_ids, p_ids || awaiters), '{}');
  heads := durable._take_heads(v_heads);
  if tasks <> '{}' or heads <> '{}' then
    ids := array(select unnest(p_ids) except select unnest(durable._hindered(p_ids, tasks, heads)));
  end if;
  v_beside := durable._take_beside(ids, v_heads);
  if v_beside <> '{}' then
    ids := array(select unnest(ids) except select unnest(v_beside));
    tasks := tasks || v_beside;
  end if;
end
$$;
comment on function durable._take_chain(text[]) is
  'Classes 2 to 4 for a sweep that settles promises, which it has locked. ids: what can be settled whole. tasks, heads: what was missed; among tasks also promises with a side row that was.';

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

create or replace function durable._try_adoptions(p_awaited text[])
returns boolean language plpgsql volatile
as $$
begin
  return not durable._begins_chain(p_awaited) or pg_try_advisory_xact_lock(1685417575, 0);
end
$$;
comment on function durable._try_adoptions(text[]) is '_lock_adoptions for a turn, which does not wait: false while another transaction has it.';
