-- The public views of the site: where this database was adopted, and what an adoption would set going.

create or replace view durable.site as
select case when coalesce(current_setting('durable.site', true), '') = 'copy' then 'copy'
            when s.identity = durable._identity() then 'adopted'
            when durable._could_run() and not durable._was_idle(durable._identity()) then 'copy' else 'idle copy' end as state,
       s.system_identifier, d.datname as database, durable._at(s.adopted_at) as adopted_at, s.adopted_by, s.timeline,
       durable._at(s.timeline_at) as timeline_since, s.previous_timeline, durable._identity() as here, s.identity as home
from durable._site s left join pg_catalog.pg_database d on d.oid = s.database;
comment on view durable.site is
  'Where this database was adopted: its server, its database there, and the timeline of the server. state: adopted; copy, if it is elsewhere now, and nothing runs here before durable.adopt(); or idle copy, if nothing is here that could run, so that its first use adopts it.';

create or replace view durable.would_run as
with clock as (select durable._now_ms() as now)
select w.kind, count(*) as waiting, count(*) filter (where w.at <= c.now) as due,
       durable._at(min(w.at) filter (where w.at <= c.now)) as oldest_due
from clock c
cross join lateral (
  select case when starts_with(t.queue, 'adapter:') then 'calls' when starts_with(t.queue, 'sql://') then 'services'
              when t.workflow is not null then 'runs' else 'tasks of clients' end as kind,
         case t.state when 'pending' then t.retry_at::bigint when 'acquired' then c.now end as at
  from durable._tasks t
  union all
  select case when p.timer then 'timers' else 'deadlines' end as kind, p.due_at as at
  from durable._promises p where p.due_at is not null
  union all
  select 'schedules' as kind, s.next_run_at::bigint as at from durable._schedules s
  union all
  select 'messages' as kind, u.created_at::bigint as at from durable._unblocks u) w
group by w.kind;
comment on view durable.would_run is
  'Everything unfinished, by kind: what an adoption would set going. due: at once; oldest_due: since when the first of those has waited. Runs that a worker of the original holds count as due.';
