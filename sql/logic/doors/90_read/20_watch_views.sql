-- Views of watches, and the laws of waits for rows. A broken law is a bug of the engine or a change of the tables by hand.

create or replace view durable.watches as
select w.table_name || '.' || w.name as watch, w.namespace as schema, w.relation as "table", w.columns as key, w.condition,
       case when p.problem is not null then p.problem
            when t.hanging < t.expected then 'triggers missing'
            when t.firing < t.expected then 'triggers disabled'
            else 'ok' end as state,
       r.waits, r.untested
from durable._watches w
cross join lateral durable._watch_problem(w) as p (problem)
cross join lateral (
  select 4 * count(distinct f.member) as expected, count(g.oid) as hanging,
         count(g.oid) filter (where g.tgenabled in ('O', 'A')) as firing
  from durable._family_of(w.relation) as f (member)
  left join pg_catalog.pg_trigger g on g.tgrelid = f.member and g.tgfoid = 'durable._row_changed()'::regprocedure
       and encode(g.tgargs, 'escape') = w.id || E'\\000'
) t
cross join lateral (
  select count(*) as waits, count(*) filter (where x.test_at is not null) as untested
  from durable._row_waits x where x.watch = w.id
) r;
comment on view durable.watches is
  'Conditions on rows of tables for which runs may wait. The table has the name that it had when it was watched. state: ok, or the reason why its triggers do not see every change (table dropped, owner not trusted, key column missing, key column has another type, triggers missing, triggers disabled); then call durable.watch again. waits: runs that wait; untested: those that the triggers do not report yet.';

create or replace function durable._check_row_waits(p_from text[], p_to text[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, w.promise_id, format('%s, watch %s, key %s', coalesce(p.state, 'no such promise'), w.watch, w.key)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._row_waits x where x.promise_id >= s.first and x.promise_id < s.beyond offset 0) w
  left join durable._promises p on p.id = any (array[w.promise_id])
  left join durable._executions h on h.execution = any (array[w.execution])
  left join durable._watches x on x.id = any (array[w.watch])
  cross join lateral (values
    ('row_wait_has_a_pending_promise', p.state is distinct from 'pending'),
    ('row_wait_is_of_its_owner', p.execution is distinct from w.execution),
    ('row_wait_ends_with_its_run', w.test_at is null and h.status in ('completed', 'failed', 'cancelled')),
    ('row_wait_has_a_key_of_its_watch', not (w.key ?& x.columns)),
    ('row_wait_has_its_watch', x.id is null),
    ('row_wait_is_tested_soon', w.test_at > durable._latest(durable._now_ms())),
    ('row_wait_has_the_key_of_its_promise', w.key is distinct from durable._json(p.param_data))
  ) as v (law, broken)
  where v.broken
  union all
  select 'row_promise_has_a_wait', p.id, p.param_headers ->> 'durable:until'
  from durable._promises_within(p_from, p_to) p
  left join durable._row_waits w on w.promise_id = any (array[p.id])
  where p.state = 'pending' and p.param_headers ? 'durable:until' and p.execution is not null and w.promise_id is null
$$;
comment on function durable._check_row_waits(text[], text[]) is 'A wait for a row is there exactly while its promise is pending.';

create or replace function durable._check_row_events()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'row_event_names_a_promise', e.promise_id, format('watch %s, key %s', e.watch, e.key)
  from durable._row_events e
  left join durable._promises p on p.id = any (array[e.promise_id])
  where e.promise_id is not null and p.id is null
$$;
comment on function durable._check_row_events() is
  'A row event names a promise that exists. It may be late: the sweep deletes it once the promise is settled.';
