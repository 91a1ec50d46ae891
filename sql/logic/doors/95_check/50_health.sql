-- The health of a database: conditions that no law can report, because all rows are still right.

create or replace view durable._snapshots as
select a.pid, coalesce(nullif(a.application_name, ''), a.backend_type, 'a session') as name, a.usename::text as role,
       case when a.backend_type is null then 'blind: its state and since when are not to be seen' else a.state end as state,
       age(a.backend_xmin) as transactions, (extract(epoch from a.xact_start) * 1000)::bigint as since
from pg_catalog.pg_stat_activity a
-- of sessions of other roles the type is hidden, and the user is not; an autovacuum worker has none
where a.backend_xmin is not null and a.pid <> pg_backend_pid() and a.usesysid is not null
  -- a transaction sees sessions as it saw them first: by now the database of one may be gone, and has no name
  and (a.datid is null or a.datid = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
union all
select null, 'the prepared transaction ' || x.gid, x.owner::text, 'prepared', age(x.transaction),
       (extract(epoch from x.prepared) * 1000)::bigint
from pg_catalog.pg_prepared_xacts x where x.database = current_database()
union all
select s.active_pid, 'the replication slot ' || s.slot_name, null, null, age(s.xmin), null
from pg_catalog.pg_replication_slots s where s.xmin is not null;
comment on view durable._snapshots is
  'Sessions with an old snapshot of this database, which prevents the removal of dead rows: its age in transactions, and its instant if that is known. A role without pg_read_all_stats is blind to the state of sessions of other roles, not to their snapshots.';

create or replace function durable._ago(p_ms bigint)
returns text language sql immutable parallel safe
as $$ select to_char(make_interval(secs => greatest(p_ms, 0) / 1000), 'FMHH24:MI:SS') $$;
comment on function durable._ago(bigint) is 'Milliseconds as hours, minutes and seconds, for people.';

create or replace function durable._bloated(p_bytes bigint)
returns table (name text, bytes bigint, rows bigint) language sql stable
as $$
  select x.name, x.bytes, x.rows
  from (select c.relname::text as name, pg_relation_size(c.oid) as bytes,
               greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::bigint as rows
        from pg_catalog.pg_class c
        where c.relnamespace = 'durable'::regnamespace and c.relkind = 'r' and 'vacuum_truncate=off' = any (c.reloptions)) x
  where x.bytes > p_bytes and x.bytes > 16384 * x.rows order by x.bytes desc limit 1
$$;
comment on function durable._bloated(bigint) is
  'The largest table of live work that is larger than p_bytes and has less than one row in two pages: what a backlog has left. Such tables keep their size, because giving it back locks them.';

create or replace view durable.health as
with clock as (select durable._now_ms() as now)
select 'site' as subject, s.state <> 'copy' as ok,
       case s.state when 'adopted' then format('adopted at %s by %s', s.adopted_at, s.adopted_by)
         when 'idle copy' then 'a copy in which nothing could run: its first use adopts it'
         else format('this database is a copy (%s) of the one that was adopted (%s): nothing runs here', s.here, s.home) end
         || coalesce('; timeline ' || s.timeline || ' since ' || s.timeline_since, '')
         || coalesce(', before that ' || s.previous_timeline, '')
         as detail,
       'If the original does not run any more, or this is to run beside it, type: pyengine db adopt' as hint
from durable.site s
union all
select 'journal partitions', m.missing is null,
       coalesce('none for week ' || m.missing, 'there for this week and the next'),
       'As the owner of the schema: select durable._create_partitions(); it tells why they are not made.'
from (select string_agg(w::text, ' and ' order by w) as missing
      from clock c cross join lateral generate_series(durable._week(c.now), durable._week(c.now) + 1) w
      where not exists (select from durable._buckets b where b.bucket = w)) m
union all
select 'oldest snapshot', coalesce(s.transactions <= 200000 and (s.since is null or s.since >= c.now - 600000), true),
       case when s.transactions is null then 'none'
         else format('%s%s%s: %s transactions old', s.name, ', process ' || s.pid, ', role ' || s.role, s.transactions)
              || case when s.since is null then '' else format(', from %s ago', durable._ago(c.now - s.since)) end
              || coalesce(', ' || s.state, '') end,
       'Claims get slower while it lasts, because no row that died since can be removed. End that transaction.'
from clock c
left join lateral (select * from durable._snapshots x
                   order by x.since < c.now - 600000 desc nulls last, x.transactions desc limit 1) s on true
union all
select 'notification queue', n.usage < 0.5, format('%s %% full', round((100 * n.usage)::numeric)),
       'A session that listens has been in a transaction for long: end it. From 90 % on no hints are sent, and work waits for polls.'
from (select pg_notification_queue_usage() as usage) n
union all
select 'live tables', b.name is null,
       case when b.name is null then 'none is much larger than its rows'
         else format('%s has %s for %s rows', b.name, pg_size_pretty(b.bytes), b.rows) end,
       'Reading live work reads all of it. As the owner, in a quiet moment: vacuum (truncate) durable.' || coalesce(b.name, '_tasks')
from (select 1) x left join lateral durable._bloated(67108864) b on true
union all
select 'encoding', e.encoding = 'UTF8',
       case when e.encoding = 'UTF8' then 'every text can be stored'
         else format('the database has %s: a text with other letters halts its run', e.encoding) end,
       format('Dump it, and restore it into another one: create database %I encoding ''UTF8'' locale ''C'' template template0',
              current_database() || '_utf8')
from (select current_setting('server_encoding') as encoding) e
union all
select 'clock', x.ahead <= 1000,
       case when x.ahead <= 1000 then 'not behind what was written'
         else format('set back: something was written %s ahead of it', durable._ago(x.ahead)) end,
       'All that waits for an instant waits longer, by as much. Nothing else is to be done, unless the clock is wrong now.'
from clock c
cross join lateral (
  select coalesce(greatest(
    (select max(w.seen_at) from durable._workers w),
    (select h.last_at from durable._executions h order by h.execution desc limit 1)) - c.now, 0) as ahead) x
union all
select 'settings', s.odd is null, coalesce('unreadable: ' || s.odd, 'all of their kind'),
       'select durable.set_setting(name, value); functions that read it fail.'
from (select string_agg(format('%s = %L', x.name, x.value), ', ' order by x.name) as odd
      from durable.settings x where durable._is_odd_setting(x.name, x.value)) s
union all
select 'schedules', s.odd is null,
       coalesce('not to be evaluated: ' || s.odd,
                case when s.read < 200 then 'all can be evaluated' else 'the 200 that are due next can be evaluated' end),
       'Their cron expression or time zone is unknown to this server: they are tried again each hour. durable.schedule(...) mends one.'
from (select string_agg(x.id, ', ' order by x.id) filter (where not x.is_evaluable) as odd, count(*) as read
      -- to evaluate one takes half a millisecond; durable.check() does all
      from (select n.id, durable._is_evaluable(n) as is_evaluable
            from durable._schedules n where n.paused_at is null order by n.next_run_at limit 200) x) s
union all
-- who pauses one knows it; after failures nobody does
select 'paused schedules', coalesce(not p.failed, true),
       case when p.listed is null then 'none'
         else p.listed || case when p.read > 10 then format(', and %s more', p.read - 10) else '' end end,
       'Once their runs succeed: durable.resume_schedule(id). durable.schedule_instants tells of their instants.'
from clock c
cross join lateral (
  select count(*) as read, bool_or(x.paused_by = 'pyengine' and x.pause_after is not null) as failed,
         string_agg(format('%s (%s)', x.id, concat_ws(', ', x.paused_by, 'for ' || durable._ago(c.now - x.paused_at),
                                                      left(x.pause_reason, 200))), ', ' order by x.n)
           filter (where x.n <= 10) as listed
  from (select s.id, s.paused_at, s.paused_by, s.pause_after, s.pause_reason, row_number() over (order by s.paused_at desc) as n
        from durable._schedules s where s.paused_at is not null order by s.paused_at desc limit 1000) x) p
union all
select 'missed instants', m.listed is null,
       coalesce('left out since yesterday: ' || m.listed, 'none since yesterday'),
       'No tick came within their catch_up. Where they are wanted: durable.backfill_schedule(id, since, until, dry_run => false).'
from clock c
cross join lateral (
  select string_agg(x.schedule, ', ' order by x.schedule) as listed
  from (select distinct y.schedule
        from (select i.schedule from durable._schedule_instants i
              where i.outcome = 'missed' and i.recorded_at > c.now - 86400000 order by i.recorded_at desc limit 1000) y
        order by 1 limit 20) x) m
union all
select 'due work', coalesce(d.at >= c.now - 60000, true),
       case when d.at is null then 'nothing waits' else format('the oldest was due %s ago', durable._ago(c.now - d.at)) end,
       'select durable.tick(); tells why it is not done. A transaction that holds its run may be in the way.'
from clock c
cross join lateral (
  select min(x.at) as at from (
    (select p.due_at::bigint as at from durable._promises p where p.due_at <= c.now order by p.due_at limit 1)
    union all
    select min(t.expires_at)::bigint from durable._tasks t where t.state = 'acquired' and t.pid >= '' and t.expires_at <= c.now
    union all
    select min(s.next_run_at)::bigint from durable._schedules s where s.next_run_at <= c.now) x) d
union all
select 'retention', r.problem is null, coalesce(r.problem, 'no sweep has failed'),
       'What is due stays until the sweep succeeds. It is tried again ten minutes later.'
from (select string_agg(x.subject || ': ' || x.problem, '; ' order by x.subject) as problem
      from durable._retention x where x.problem is not null) r
union all
select 'ticks of workers', t.last >= c.now - 60000 is not false,
       case when t.id is null then 'no worker is there'
         else format('the last success of %s was %s ago', t.id, durable._ago(c.now - t.last)) end,
       'Timers, lost leases and schedules wait. The log of that worker tells why; select durable.tick(); may too.'
from clock c
left join lateral (
  select w.id, coalesce(w.ticked_at, w.started_at)::bigint as last from durable._workers w
  where w.seen_at > c.now - 120000 order by 2 limit 1) t on true;
comment on view durable.health is
  'Whether the engine keeps up with time, one row for each question, with advice where ok is false: select * from durable.health where not ok. The questions: whether the database is where it was adopted; partitions of the journal for this week and the next; the clock, if it was set back; settings that cannot be read; schedules that cannot be evaluated, among the 200 that are due next; schedules that are paused, which is not ok after failures; instants that were missed within a day; the oldest snapshot of a session (over 10 minutes or 200,000 transactions); the server''s queue of notifications; tables of live work that a backlog has left large (over 64 MB and two pages a row); whether the database has the encoding UTF8; work that has been due for a minute; the worker that has not ticked for the longest time.';
comment on column durable.health.subject is 'The question.';
comment on column durable.health.ok is 'Whether all is well with it.';
comment on column durable.health.detail is 'The finding.';
comment on column durable.health.hint is 'The advice where ok is false.';
