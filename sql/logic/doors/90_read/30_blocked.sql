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
    select g.id, g.xmax from durable._progress g where g.id = any (p_ids)
    union all
    select c.id, c.xmax from durable._code_waits c where c.id = any (p_ids)
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

create or replace function durable._is_running(p_xid text)
returns boolean language plpgsql stable
as $$
declare
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
  return pg_xact_status((v_next + ((p_xid::bigint - v_next + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress';
exception when invalid_parameter_value then
  return false;
end
$$;
comment on function durable._is_running(text) is
  'Whether the transaction or subtransaction of this number, as rows store it, has not ended; false for a number that no transaction has.';

create or replace function durable._locks_of_others()
returns table (pid integer, type text, xid text, class bigint, kind smallint, is_engine boolean, writes boolean)
language sql stable
as $$
  with lock as materialized (
    select l.* from pg_catalog.pg_locks l
    where l.granted and l.pid <> pg_backend_pid()
      -- advisory locks and tables of other databases of the server look the same
      and (l.locktype = 'transactionid'
           or l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
  ), engine as (
    -- turns and ticks are over in a moment, and nobody is to end them (_engine_xact_key)
    select l.pid from lock l where l.locktype = 'advisory' and l.classid::bigint = 1685417580 and l.mode = 'ExclusiveLock'
  )
  select l.pid, l.locktype, l.transactionid::text, l.classid::bigint, l.objsubid, l.pid in (select e.pid from engine e),
         l.locktype = 'transactionid' and exists (
           select from lock t join pg_catalog.pg_class c on c.oid = t.relation and c.relnamespace = 'durable'::regnamespace
           where t.pid = l.pid and t.locktype = 'relation' and t.mode in ('RowShareLock', 'RowExclusiveLock'))
  from lock l where l.mode = 'ExclusiveLock' and l.locktype in ('transactionid', 'advisory')
$$;
comment on function durable._locks_of_others() is
  'Transaction numbers and advisory locks of all other sessions. is_engine: a turn or tick. writes: the transaction has locked or written rows of the engine.';

create or replace function durable._holders_of_tables()
returns integer[] language sql stable
as $$
  select coalesce(array_agg(distinct l.pid), '{}')
  from pg_catalog.pg_locks l
  join pg_catalog.pg_database d on d.oid = l.database and d.datname = current_database()
  join pg_catalog.pg_class c on c.oid = l.relation and c.relnamespace = 'durable'::regnamespace
  where l.granted and l.pid <> pg_backend_pid() and l.locktype = 'relation'
    and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
$$;
comment on function durable._holders_of_tables() is
  'Sessions that have locked a whole table of the engine against writers, as alter table and create index do.';

create or replace function durable._prepared_with_tables()
returns text[] language sql stable
as $$
  select array(
    select distinct x.gid from pg_catalog.pg_prepared_xacts x
    -- its locks have no process: what they have in common is a number of their own
    join pg_catalog.pg_locks t on t.pid is null and t.locktype = 'transactionid' and t.transactionid = x.transaction
    join pg_catalog.pg_locks l on l.pid is null and l.locktype = 'relation' and l.virtualtransaction = t.virtualtransaction
    join pg_catalog.pg_class c on c.oid = l.relation and c.relnamespace = 'durable'::regnamespace
    where x.database = current_database()
      and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
$$;
comment on function durable._prepared_with_tables() is
  'Prepared transactions that have locked a whole table of the engine against writers.';

create or replace function durable._lockers(p_ids text[])
returns table (id text, xid text) language sql stable
as $$
  with row_lock as materialized (
    select p.id, p.xmax::text as xid from durable._promises p where p.id = any (p_ids)
    union
    select t.id, t.xmax::text from durable._tasks t where t.id = any (p_ids)
    union
    select h.id, h.xmax::text from durable._promises p join durable._executions h on h.execution = any (array[p.head])
    where p.id = any (p_ids)
    union
    select d.id, d.xmax::text from durable._schedules d where d.id = any (p_ids)
    union
    select d.schedule, d.xmax::text from durable._schedule_instants d where d.schedule = any (p_ids)
    union
    select s.id, s.xid from durable._side_locks(p_ids) s
  )
  select r.id, r.xid from row_lock r
  union
  select r.id, m.xid from row_lock r cross join lateral unnest(durable._multixact_members(r.xid)) as m (xid)
$$;
comment on function durable._lockers(text[]) is
  'The numbers of transactions that have locked or changed the promises, tasks, heads, side rows or schedules of these ids, ended ones included.';

create or replace function durable._holders(p_ids text[])
returns table (id text, pid integer) language plpgsql stable
as $$
begin
  -- first, because nothing else could be read
  return query select i, h from unnest(p_ids) i cross join unnest(durable._holders_of_tables()) h;
  if found or durable._prepared_with_tables() <> '{}' then
    return;
  end if;
  return query
  with lock as materialized (
    select * from durable._locks_of_others()
  ), member as materialized (
    select * from durable._lockers(p_ids)
  ), holder as (
    select m.id, l.pid from member m join lock l on l.xid = m.xid and not l.is_engine
    union
    -- a subtransaction, which no list of locks names: it belongs to an older transaction that writes here
    select m.id, l.pid from member m join lock l on l.writes and not l.is_engine and age(l.xid::xid) > age(m.xid::xid)
    where m.xid not in (select x.xid from lock x where x.xid is not null) and durable._is_running(m.xid)
      and m.xid not in (select x.transaction::text from pg_catalog.pg_prepared_xacts x)
  )
  select x.id, x.pid from holder x
  union
  -- runs begin to wait for other runs one after the other (_lock_adoptions)
  select i, l.pid from unnest(p_ids) i
  join lock l on l.type = 'advisory' and l.class = 1685417575 and l.kind = 2 and not l.is_engine
  where i not in (select y.id from holder y);
end
$$;
comment on function durable._holders(text[]) is
  'Sessions, other than turns and ticks of the engine, whose open transactions hold the promises, tasks, heads, side rows or schedules of these ids, a whole table, or the lock of adoptions. A lock of a savepoint is known by the number of the subtransaction alone: then all sessions are answered that may be it.';

create or replace function durable._prepared_holders(p_ids text[])
returns table (id text, gid text, owner name, since timestamptz) language plpgsql stable
as $$
declare
  v_of_tables text[];
begin
  if not exists (select from pg_catalog.pg_prepared_xacts x where x.database = current_database()) then
    return;
  end if;
  v_of_tables := durable._prepared_with_tables();
  if v_of_tables <> '{}' then
    return query select i, x.gid, x.owner, x.prepared from unnest(p_ids) i cross join pg_catalog.pg_prepared_xacts x
                 where x.gid = any (v_of_tables);
    return;
  elsif durable._holders_of_tables() <> '{}' then
    return;  -- nothing else can be read
  end if;
  return query
  with prepared as materialized (
    select x.* from pg_catalog.pg_prepared_xacts x where x.database = current_database()
  )
  select distinct m.id, x.gid, x.owner, x.prepared
  from durable._lockers(p_ids) m
  join prepared x on x.transaction::text = m.xid
                     -- a subtransaction
                     or (age(x.transaction) > age(m.xid::xid) and durable._is_running(m.xid)
                         and m.xid not in (select y.transaction::text from prepared y)
                         and m.xid not in (select l.xid from durable._locks_of_others() l where l.xid is not null));
end
$$;
comment on function durable._prepared_holders(text[]) is
  'Prepared transactions that hold the promises, tasks, heads, side rows or schedules of these ids, or a whole table. They have no session; a lock of a savepoint may be of any that is older.';

create or replace view durable.blocked as
select h.id, array_agg(distinct b.worker) as workers, h.pid, h."user", h.application, h.state, h.since, h.query
from (select w.id as worker, unnest(w.blocked || w.unrenewed) as id from durable._workers w) b
cross join lateral (
  select s.id, a.pid, a.usename as "user", a.application_name as application, a.state, a.xact_start as since, a.query
  from durable._holders(array[b.id]) s join pg_catalog.pg_stat_activity a on a.pid = s.pid
  union all
  select p.id, null, p.owner, 'the prepared transaction ' || p.gid, 'prepared', p.since, null
  from durable._prepared_holders(array[b.id]) p) h
group by h.id, h.pid, h."user", h.application, h.state, h.since, h.query;
comment on view durable.blocked is
  'Runs and promises that cannot go on because a transaction has locked them: the workers that report it, the session with the lock, and since when. All others go on. The query and state of other roles are visible with pg_read_all_stats. To end a session: select pg_terminate_backend(pid); a prepared transaction, which has none: rollback prepared ''<its name>''.';
comment on column durable.blocked.id is 'The run or promise that cannot go on.';
comment on column durable.blocked.workers is 'The workers that have left it out for more than a second.';
comment on column durable.blocked.pid is 'Process of the session with the lock; null for a prepared transaction.';
comment on column durable.blocked."user" is 'Its role.';
comment on column durable.blocked.application is 'Its application name, or the name of the prepared transaction.';
comment on column durable.blocked.state is 'Mostly idle in transaction.';
comment on column durable.blocked.since is 'When its transaction began, or was prepared.';
comment on column durable.blocked.query is 'Its last statement, whole, with the values in it.';

create or replace function durable.worker_blocked_v1(p_worker text, p_ids text[])
returns json language plpgsql volatile
as $$
begin
  update durable._workers w set blocked = p_ids
  where w.id = any (array(select x.id from durable._workers x
                          -- a report a second, each a version of the row as long as the lock lasts
                          where x.id = p_worker and x.blocked <> p_ids for no key update skip locked));
  return (
    select coalesce(jsonb_agg(x.holder), '[]')::json
    from (
      select jsonb_build_object('id', h.id) || durable._session(h.pid) as holder from durable._holders(p_ids) h
      union all
      -- workers of 0.1.0 read a number as pid
      select jsonb_build_object('id', p.id, 'pid', 0, 'user', p.owner, 'state', 'prepared', 'query', '', 'prepared', p.gid,
                                'age_ms', durable._now_ms() - (extract(epoch from p.since) * 1000)::bigint)
      from durable._prepared_holders(p_ids) p) x
    where x.holder is not null);
end
$$ set lock_timeout = '1s';
comment on function durable.worker_blocked_v1(text, text[]) is
  'A worker reports the ids that it has left out for more than a second because another session has locked them; the empty array when none is left. Answers the sessions, for its log (durable._session), and prepared transactions by their names.';
