-- Locks of adapter workers. They wait for no user: a report whose rows another session has locked is answered busy and sent
-- again. Keys that another session is inserting show in no row; reports meet them first, for 50 ms (52_call_reports.sql). The
-- short pauses are for sessions that join an attempt, which are over in a moment.

create or replace function durable._try_lock_attempt(p_execution_key bytea)
returns boolean language plpgsql volatile
as $$
begin
  for v_round in 0..5 loop
    perform from durable._call_attempts a where a.execution_key = p_execution_key for no key update skip locked;
    if found then
      return true;
    elsif not exists (select from durable._call_attempts a where a.execution_key = p_execution_key) then
      return false;
    end if;
    perform pg_sleep(durable._backoff_ms(1, 32, v_round) / 1000.0);
  end loop;
  return false;
end
$$;
comment on function durable._try_lock_attempt(bytea) is 'An attempt, for a report; false if another session has it for more than a moment, or there is none.';

create or replace function durable._try_lock_report(p_execution_key bytea, p_settles boolean)
returns boolean language plpgsql volatile
as $$
declare
  v_id text := durable._call_promise(p_execution_key);
begin
  perform durable._check_may_lock();
  if p_settles then
    if durable._try_lock_promises(array[v_id]) <> '{}'
       or (select s.ids from durable._try_lock_settlement(array[v_id]) s) = '{}' then
      return false;
    end if;
  elsif durable._try_lock_tasks(array[v_id], true) <> '{}' then
    return false;
  end if;
  return durable._try_lock_attempt(p_execution_key);
end
$$;
comment on function durable._try_lock_report(bytea, boolean) is
  'All locks of a report: the task and the attempt, with p_settles all that the settlement needs. False if one of them is taken.';

create or replace function durable._try_lock_pins(p_pins durable._new_pin[])
returns boolean language plpgsql volatile
as $$
declare
  v_scopes text[] := array(select distinct n.scope from unnest(p_pins) n);
  v_rows tid[] := array(
    select (select p.ctid from durable._pins p where p.scope = n.scope and p.node_id = n.node_id)
    from unnest(p_pins) n where n.replaces);
begin
  if (select count(*) from (
        select from durable._refs l where l.name = any (v_scopes) order by l.name for key share skip locked) x)
     < cardinality(v_scopes) then
    return false;
  end if;
  -- in no order, because none is waited for; an order by would let the planner read the whole index
  return (select count(*) from (select from durable._pins p where p.ctid = any (v_rows) for no key update skip locked) l)
         = cardinality(array_remove(v_rows, null));
end
$$;
comment on function durable._try_lock_pins(durable._new_pin[]) is
  'The scopes of new pins, and the pins that they replace; false if one of them is taken.';

create or replace function durable._try_lock_polls(p_execution_key bytea, p_most integer)
returns tid[] language sql volatile
as $$
  select array(select l.ctid from durable._call_polls l
               where l.execution_key = p_execution_key and l.seq <= p_most for update skip locked)
$$;
comment on function durable._try_lock_polls(bytea, integer) is 'The polls of an attempt up to a number, to be forgotten.';

create or replace function durable._pause_after_loss(p_id text, p_lost integer)
returns bigint language sql stable
as $$
  select case when p_lost < 2 then 0
              else least((durable._backoff_ms(1000, 256000, p_lost - 2) * (1 + (hashtext(p_id) & 1023) / 1024.0))::bigint,
                         durable._setting_int('call_backoff_max_ms')) end
$$;
comment on function durable._pause_after_loss(text, integer) is
  'How long an attempt waits that has lost so many leases in a row: the second time a second or two, and each next time twice as long, up to call_backoff_max_ms. The times of two attempts differ, so one that kills its workers does not always kill the same others with them.';

create or replace function durable._try_lock_due_attempts(p_adapters text[], p_worker text, p_most integer, p_now bigint)
returns text[] language sql volatile
as $$
  select array(
    select x.id from unnest(p_adapters) as a (adapter)
    cross join lateral (
      select t.id, t.priority, t.retry_at from durable._tasks t
      where t.queue = 'adapter:' || a.adapter and t.state = 'pending' and t.workflow is null and t.retry_at <= p_now
        -- a promise that somebody made for this target is no attempt; with any () the attempt is looked up by its key
        and case when durable._call_key(t.id) is not null then exists (
              select from durable._call_attempts a where a.execution_key = any (array[durable._call_key(t.id)])) end
        and t.deadline > p_now and (t.crashes < 2 or t.retry_at + durable._pause_after_loss(t.id, t.crashes) <= p_now)
        and (t.released_until is null or t.released_until not between p_now + 1 and p_now + 10000
             or (p_worker <> all (t.released_by) and cardinality(t.released_by) < 16))
      order by t.priority, t.retry_at limit p_most for update skip locked) x
    order by x.priority, x.retry_at, x.id limit p_most)
$$;
comment on function durable._try_lock_due_attempts(text[], text, integer, bigint) is
  'Tasks of attempts that are due for these adapters, the first ones of all; not those that this worker has just given back.';

create or replace function durable._try_lock_cancels(p_adapters text[], p_most integer)
returns bytea[] language sql volatile
as $$
  select array(select a.execution_key from durable._call_attempts a
               where a.adapter = any (p_adapters) and a.cancel_due limit p_most for no key update skip locked)
$$;
comment on function durable._try_lock_cancels(text[], integer) is 'Attempts whose jobs are still to be cancelled.';

create or replace function durable._live_from(p_key bytea, p_limit integer)
returns bytea[] language sql stable
as $$
  select array(
    select x.execution_key from (
      (select a.execution_key from durable._call_attempts a
       where a.ended_at is null and a.execution_key >= p_key order by a.execution_key limit p_limit)
      union all
      (select a.execution_key from durable._call_attempts a
       where a.ended_at is null and a.execution_key < p_key order by a.execution_key limit p_limit)) x
    limit p_limit)
$$;
comment on function durable._live_from(bytea, integer) is
  'Live attempts from a key on, and from the beginning again after the last one. Keys are hashes, so a random key is a random place.';

create or replace function durable._try_lock_ended(p_limit integer, p_now bigint)
returns bytea[] language plpgsql volatile
as $$
declare
  -- a promise can be settled by hand at any time, which nothing says here: so some are looked at in each round
  v_keys bytea[] := durable._live_from(sha256(float8send(random())), least(p_limit, 50)) || array(
    select a.execution_key from durable._call_attempts a
    where a.ended_at is null and a.deadline <= p_now order by a.deadline limit p_limit);
begin
  return array(
    select a.execution_key from durable._call_attempts a
    left join durable._promises p on p.id = any (array[durable._call_promise(a.execution_key)])
    where a.execution_key = any (v_keys) and durable._is_open(a) and (p.id is null or p.state <> 'pending')
    limit p_limit for no key update of a skip locked);
end
$$;
comment on function durable._try_lock_ended(integer, bigint) is
  'Live attempts whose promises were settled behind their back, by their deadline or by a verb of promises: among those past their deadline, and among fifty others, each time from another place.';

create or replace function durable._try_lock_adapters(p_worker text, p_adapters text[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_new text[] := array(
    select distinct a from unnest(p_adapters) a
    where not exists (select from durable._adapters x where x.adapter = any (array[a]) and x.worker = p_worker));
begin
  if v_new <> '{}' then
    insert into durable._adapters (seen_at, worker, adapter) select p_now, p_worker, a from unnest(v_new) a order by a
    on conflict on constraint adapters_pk do nothing;
  end if;
  update durable._adapters x set seen_at = p_now
  where (x.adapter, x.worker) in (
    select y.adapter, y.worker from durable._adapters y
    where y.adapter = any (p_adapters) and y.worker = p_worker and y.seen_at not between p_now - 20000 and p_now
    for no key update skip locked);
end
$$;
comment on function durable._try_lock_adapters(text, text[], bigint) is 'Writes down that a worker serves these adapters, every 20 seconds at most: it counts as there for a minute, and while a transaction stays open each version of the row is kept.';

create or replace function durable._try_lock_old_adapters(p_before bigint)
returns text[] language sql volatile
as $$ select array(select a.worker from durable._adapters a where a.seen_at < p_before for update skip locked) $$;
comment on function durable._try_lock_old_adapters(bigint) is 'Workers that have not asked for work of an adapter since an instant.';
