-- Callbacks: registration, and the resume stage of the settlement chain, in which awaiters become pending. No function here
-- writes a promise. Tasks are joined by a left join wherever the other side drives: rows of their table come and go all the
-- time, and a plan that starts from a table which was empty reads its whole index for each row of the other side.

create or replace function durable._register(p_awaited text[], p_awaiter text)
returns void language sql volatile
as $$
  insert into durable._callbacks (awaited_id, awaiter_id) select a.id, p_awaiter from unnest(p_awaited) as a (id)
  on conflict do nothing
$$;
comment on function durable._register(text[], text) is
  'Registers a task on promises that the caller has locked and found pending and external.';

-- Finds runs that would wait for themselves. The callback of a run on its own child is created with the child, which awaits
-- nothing yet and which only its parent awaits; no run awaits a new fork. So the last callback of a circle is one of an
-- adoption. Adoptions of promises that can wait are made one after the other (_lock_adoptions), so a check of each against the
-- callbacks that exist is exact for runs. Callbacks of protocol clients count as awaits too, but circles of tasks without a
-- journal are left to those clients.

create or replace function durable._may_close_circle(p_awaited text[], p_awaiters text[], p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return exists (
    with recursive reach (root, id) as (
      select distinct n.awaiter collate "C", n.awaiter collate "C" from unnest(p_awaited, p_awaiters) as n (awaited, awaiter)
      where (select count(*) from durable._tasks t where t.id = n.awaited and t.deadline > p_now) > 0
      union
      select r.root, e.awaiter
      from reach r
      cross join lateral (
        select c.awaiter_id from durable._callbacks c where c.awaited_id = any (array[r.id])
        union all
        select n.awaiter collate "C" from unnest(p_awaited, p_awaiters) as n (awaited, awaiter)
        where n.awaited = r.id) as e (awaiter)
      where (select count(*) from durable._tasks t where t.id = e.awaiter and t.deadline > p_now) > 0
    )
    select from reach r
    join unnest(p_awaited, p_awaiters) as n (awaited, awaiter) on n.awaiter = r.root and n.awaited = r.id);
end
$$;
comment on function durable._may_close_circle(text[], text[], bigint) is
  'Whether any of these new awaits could be part of a circle, if all of them are made. One statement for a whole turn, because most turns close no circle.';

create or replace function durable._circle(
  p_awaited text, p_awaiter text, p_more_awaited text[], p_more_awaiters text[], p_now bigint)
returns text[] language plpgsql stable
as $$
declare
  v_ids text[] := array[p_awaiter];
  v_via text[] := array[null::text];
  v_level text[] := v_ids;
  v_found text[];
  v_circle text[] := array[p_awaiter, p_awaited];
begin
  while p_awaited <> all (v_ids) loop
    select coalesce(array_agg(x.awaiter), '{}'), coalesce(array_agg(x.via), '{}') into v_level, v_found from (
      select distinct on (e.awaiter) e.awaiter, l.id as via
      from unnest(v_level) as l (id)
      cross join lateral (
        select c.awaiter_id from durable._callbacks c where c.awaited_id = any (array[l.id])
        union all
        select n.awaiter collate "C" from unnest(p_more_awaited, p_more_awaiters) as n (awaited, awaiter)
        where n.awaited = l.id) as e (awaiter)
      where e.awaiter <> all (v_ids)
        and (select count(*) from durable._tasks t where t.id = e.awaiter and t.deadline > p_now) > 0
      order by e.awaiter, l.id) x;
    if v_level = '{}' then
      return null;
    end if;
    v_ids := v_ids || v_level;
    v_via := v_via || v_found;
  end loop;
  while v_circle[cardinality(v_circle)] <> p_awaiter loop
    v_circle := v_circle || v_via[array_position(v_ids, v_circle[cardinality(v_circle)])];
  end loop;
  return v_circle;
end
$$;
comment on function durable._circle(text, text, text[], text[], bigint) is
  'The shortest circle that p_awaiter closes if it awaits p_awaited, given the callbacks and p_more: p_awaiter, p_awaited, the promise that p_awaited awaits, ..., p_awaiter. Null if there is none. A promise that is settled or past its deadline awaits nothing.';

create or replace function durable._is_there(p_worker durable._workers, p_now bigint)
returns boolean language plpgsql volatile
as $$
begin
  return p_worker.missing_at is null
     and case when p_worker.present then not durable._is_disconnected(p_worker.number)
              else p_worker.seen_at > p_now - 2 * durable._setting_int('lease_ttl_ms') end;
end
$$;
comment on function durable._is_there(durable._workers, bigint) is
  'True if a worker is there now, as far as its presence lock or its last sign of life tells.';

create or replace function durable._prefer_until(p_preference text, p_now bigint)
returns bigint language plpgsql stable
as $$
begin
  -- called for each resumed run, so it asks for no lock: that a worker is gone is known to the next tick
  return (select p_now + durable._setting_int(case when w.keeps then 'lease_ttl_ms' else 'prefer_ms' end)
          from durable._workers w
          where w.id = p_preference
            and (w.present or (w.keeps and w.seen_at > p_now - 2 * durable._setting_int('lease_ttl_ms')))
            and (not w.keeps or w.missing_at is null));
end
$$;
comment on function durable._prefer_until(text, bigint) is
  'Until when only the preferred worker may claim a resumed task; null if that worker is not present. For one that keeps its runs it is the length of a lease, in which it takes them unless it is gone.';

create or replace function durable._reserved_until(p_worker text, p_from bigint, p_now bigint)
returns bigint language plpgsql volatile
as $$
begin
  return (select p_from + durable._setting_int('lease_ttl_ms') from durable._workers w
          where w.id = p_worker and w.keeps and durable._is_there(w, p_now));
end
$$;
comment on function durable._reserved_until(text, bigint, bigint) is
  'Until when only this worker may claim a task that it gives back or creates, and that is ready from p_from on; null unless it keeps its runs.';

create or replace function durable._is_stale(p_until bigint, p_now bigint)
returns boolean language plpgsql stable
as $$
begin
  return p_until > p_now + greatest(durable._setting_int('prefer_ms'), durable._setting_int('lease_ttl_ms')) + 5000;
end
$$;
comment on function durable._is_stale(bigint, bigint) is
  'Whether a preference was written before the clock was set back: it would last longer than any may.';

create or replace function durable._offer_again(p_tasks text[], p_now bigint)
returns text[] language plpgsql volatile strict
as $$
declare
  v_queues text[];
begin
  with free as (
    update durable._tasks t set state = 'pending', retry_at = p_now
    where t.id = any (p_tasks) and t.state is not distinct from 'suspended' and t.execution is null and t.deadline > p_now
      and not exists (select from durable._callbacks c
                      where c.awaited_id > t.id || '.' and c.awaited_id < t.id || '/' and c.awaiter_id = t.id)
      and not exists (select from durable._callbacks c
                      where c.awaiter_id = t.id and c.child < 0 and not starts_with(c.awaited_id, c.awaiter_id || '.'))
    returning t.queue)
  select coalesce(array_agg(distinct f.queue), '{}') into v_queues from free f;
  return v_queues;
end
$$;
comment on function durable._offer_again(text[], bigint) is
  'Offers suspended tasks of protocol clients again whose last callback ran out, because nothing else would wake them. The caller has locked them. Answers their queues.';

create or replace function durable._fire(p_settled durable._settled[], p_now bigint)
returns table (resumed bigint[], queues text[], expired text[]) language plpgsql volatile
as $$
begin
  return query
  with gone as (
    delete from durable._callbacks c using unnest(p_settled) s
    where c.awaited_id = any (array[s.id])
    returning c.awaited_id, c.awaiter_id, c.id, c.timeout_at <= s.settled_at as is_over, c.recv, c.recv_headers, s.execution,
              c.child >= 0 as adopted, case when c.child >= 0 then c.child else s.child end as child
  ), awaiter as (
    select t.id, t.state, t.execution, t.retry_at, h.status, h.wait_kind, h.wait_left, h.written_by_client,
           array_agg(g.awaited_id) as awaited,
           count(distinct g.child)
             filter (where (g.adopted or g.execution = t.execution) and g.child = any (h.waiting_on)) as hits,
           bool_or(h.written_by_client or (not g.adopted and g.execution is distinct from t.execution)) as stranger,
           min(g.recv) as recv
    from gone g
    left join durable._tasks t on t.id = any (array[g.awaiter_id])
    left join durable._executions h on h.execution = any (array[t.execution])
    where coalesce(t.deadline > p_now, false) and g.is_over is not true
    group by t.id, h.execution
  ), verdict as (
    select a.*, case
        when a.execution is null then a.state = 'suspended'
        else a.status = 'blocked' and not a.written_by_client and a.hits > 0
             and (a.wait_kind <> 'all' or a.wait_left <= a.hits) end as satisfied
    from awaiter a
  ), woken as (
    update durable._tasks t
    set state = 'pending', retry_at = p_now, recv = v.recv,
        recv_headers = case when v.recv is not null then (
          select g.recv_headers from gone g
          where g.awaiter_id = v.id and g.recv = v.recv and not g.is_over order by g.id limit 1) end,
        queue = case when v.recv is null then t.queue else durable._queue_of(v.recv) end,
        preference = coalesce(durable._preference_of(v.recv), t.preference),
        prefer_until = durable._prefer_until(coalesce(durable._preference_of(v.recv), t.preference), p_now)
    from verdict v where t.id = any (array[v.id]) and (v.satisfied or v.stranger) and v.state = 'suspended'
    returning t.queue
  ), due_now as (
    update durable._tasks t set retry_at = p_now
    from verdict v where t.id = any (array[v.id]) and v.state = 'pending' and v.execution is not null and v.retry_at > p_now
    returning t.queue
  ), counted as (
    update durable._executions h
    set wait_left = case when v.wait_kind = 'all' then greatest(h.wait_left - v.hits, 0) else 0 end
    from verdict v
    where h.execution = any (array[v.execution]) and v.hits > 0 and not v.satisfied
      and (v.wait_kind = 'all' or v.written_by_client)
  ), buffer as (
    insert into durable._resumes (task_id, awaited_id)
    select distinct v.id, x from verdict v, unnest(v.awaited) x where v.satisfied or v.stranger or v.state <> 'suspended'
    on conflict do nothing
  )
  select (select array_agg(v.execution order by v.execution) from verdict v where v.satisfied and v.execution is not null),
         (select coalesce(array_agg(distinct u.queue), '{}')
          from (select w.queue from woken w union all select e.queue from due_now e) u),
         (select array_agg(g.awaiter_id) filter (where g.is_over) from gone g);
end
$$;
comment on function durable._fire(durable._settled[], bigint) is
  'Consumes the callbacks of settled promises. Outcomes for an awaiter: absent, fulfilled, expired (nothing is done); resumed (suspended and satisfied); buffered or duplicate (a row of _resumes). A run that waits for all of some promises is resumed once. A halted run only stops being blocked. A promise that the run neither created nor adopted resumes it without a journal event. A callback whose promise settled at or after the timeout of the callback is dropped; one with a recv sends the resume to that address. Returns the resumed runs and their queues, and the awaiters of what was dropped (expired). The caller holds all locks.';
