-- Sessions that have locked rows which the engine leaves out. The engine waits for no user, so pg_locks shows no waiter:
-- workers report the rows that they missed, and the sessions are found by the rows themselves.

create or replace function durable._multixact_members(p_xmax text)
returns text[] language plpgsql stable
as $$
begin
  return array(select m.xid::text from pg_get_multixact_members(p_xmax::xid) m);
exception when invalid_parameter_value or internal_error then
  return '{}';
end
$$;
comment on function durable._multixact_members(text) is
  'The transactions that share the lock of a row; none if p_xmax is the number of a transaction, which looks the same.';

create or replace function durable._side_locks(p_ids text[])
returns table (id text, xid text) language sql stable
as $$
  select s.id, s.xid::text from (
    select c.awaited_id as id, c.xmax as xid from durable._callbacks c where c.awaited_id = any (p_ids)
    union all
    select c.awaiter_id, c.xmax from unnest(p_ids) as u (id)
    join durable._callbacks c on c.awaited_id > u.id || '.' and c.awaited_id < u.id || '/' and c.awaiter_id = u.id
    union all
    select c.awaiter_id, c.xmax from durable._callbacks c where c.awaiter_id = any (p_ids) and c.child >= 0
    union all
    select l.awaited_id, l.xmax from durable._listeners l where l.awaited_id = any (p_ids)
    union all
    select r.task_id, r.xmax from durable._resumes r where r.task_id = any (p_ids)
    union all
    select w.promise_id, w.xmax from durable._row_waits w where w.promise_id = any (p_ids)
    union all
    select p.id, x.xmax from durable._promises p
    cross join lateral (
      select w.xmax from durable._row_waits w where w.execution = any (array[p.head])
      union all
      select i.xmax from durable._inboxes i where i.execution = any (array[p.head])
      union all
      select j.xmax from durable._join_sets j where j.execution = any (array[p.head])
      union all
      select m.xmax from durable._members m where m.execution = any (array[p.head])) x
    where p.id = any (p_ids)) s
  where s.xid <> 0
$$;
comment on function durable._side_locks(text[]) is
  'Transactions that have locked or changed side rows of these promises and runs, ended ones included.';

create or replace function durable._holders(p_ids text[])
returns table (id text, pid integer) language plpgsql stable
as $$
begin
  return query
  with lock as materialized (
    select l.locktype, l.transactionid::text as xid, l.classid::bigint as class, l.objsubid as kind, l.pid
    from pg_catalog.pg_locks l
    where l.granted and l.mode = 'ExclusiveLock' and l.locktype in ('transactionid', 'advisory')
      and l.pid is distinct from pg_backend_pid()
      -- advisory locks of other databases of the server look the same
      and (l.locktype = 'transactionid'
           or l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
      -- turns and ticks of the engine end in a moment, and an operator must not end them (_engine_xact_key)
      and not exists (select from pg_catalog.pg_locks m where m.pid = l.pid and m.granted and m.locktype = 'advisory'
                      and m.classid::bigint = 1685417580 and m.mode = 'ExclusiveLock')
  ), row_lock as materialized (
    select p.id, p.xmax::text as xid from durable._promises p where p.id = any (p_ids)
    union
    select t.id, t.xmax::text from durable._tasks t where t.id = any (p_ids)
    union
    select h.id, h.xmax::text from durable._promises p join durable._executions h on h.execution = any (array[p.head])
    where p.id = any (p_ids)
    union
    select s.id, s.xid from durable._side_locks(p_ids) s
  ), holder as (
    select r.id, l.pid from row_lock r join lock l on l.locktype = 'transactionid' and l.xid = r.xid
    union
    select r.id, l.pid from row_lock r cross join lateral unnest(durable._multixact_members(r.xid)) as m (xid)
    join lock l on l.locktype = 'transactionid' and l.xid = m.xid
  )
  select x.id, x.pid from holder x
  union
  -- runs begin to wait for other runs one after the other (_lock_adoptions)
  select i, l.pid from unnest(p_ids) i join lock l on l.locktype = 'advisory' and l.class = 1685417575 and l.kind = 2
  where i not in (select y.id from holder y);
end
$$;
comment on function durable._holders(text[]) is
  'Sessions, other than turns and ticks of the engine, whose open transactions have locked the promises, tasks, heads or side rows of these ids, or the lock of adoptions.';

create or replace view durable.blocked as
select h.id, array_agg(distinct b.worker) as workers, a.pid, a.usename as "user", a.application_name as application,
       a.state, a.xact_start as since, a.query
from (select w.id as worker, unnest(w.blocked || w.unrenewed) as id from durable._workers w) b
cross join lateral durable._holders(array[b.id]) h
join pg_catalog.pg_stat_activity a on a.pid = h.pid
group by h.id, a.pid, a.usename, a.application_name, a.state, a.xact_start, a.query;
comment on view durable.blocked is
  'Runs and promises that cannot go on because a transaction has locked them: the workers that report it, the session with the lock, and since when. All others go on. The query and state of other roles are visible with pg_read_all_stats. To end a session: select pg_terminate_backend(pid).';

create or replace function durable.worker_blocked_v1(p_worker text, p_ids text[])
returns json language plpgsql volatile
as $$
begin
  update durable._workers w set blocked = p_ids
  where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for no key update skip locked));
  return (
    select coalesce(json_agg(json_build_object(
             'id', h.id, 'pid', a.pid, 'user', coalesce(a.usename, ''), 'state', coalesce(a.state, ''),
             'age_ms', coalesce(durable._now_ms() - (extract(epoch from a.xact_start) * 1000)::bigint, 0),
             'query', left(coalesce(a.query, ''), 200))), '[]')
    from durable._holders(p_ids) h join pg_catalog.pg_stat_activity a on a.pid = h.pid);
end
$$;
comment on function durable.worker_blocked_v1(text, text[]) is
  'A worker reports the ids that it has left out for more than a second because another session has locked them; the empty array when none is left. Answers the sessions, for its log.';
