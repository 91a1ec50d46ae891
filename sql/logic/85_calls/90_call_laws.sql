-- The laws of calls as queries, for durable.check(). The numbers I2 to I20 are those of the plan of the executor; laws that are
-- CHECKs of the tables are queries here too, so that they are seen where a constraint was dropped. The laws of objects stand with
-- objects, those of leases with tasks.

create or replace function durable._check_attempts()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._call_promise(a.execution_key), format('phase %s, promise %s, task %s, ended %s, exec %s', a.phase,
                                                               p.state, t.state, a.ended_at, durable._hex(a.exec_id))
  from durable._call_attempts a
  cross join (select durable._now_ms() as now_ms) n
  left join durable._calls c on c.value_key = a.value_key
  left join durable._promises p on p.id = durable._call_promise(a.execution_key)
  left join durable._tasks t on t.id = p.id
  left join durable._objects e on e.id = a.exec_id and e.kind = 'exec'
  cross join lateral (values
    ('I2 attempt_exec_is_of_its_outcome',
      a.exec_id is not null
      and case when e.id is null then durable._setting_int('call_results_days') = 0  -- or collected since
               else e.excised_at is null and e.refs is distinct from array[a.node_id, a.outcome_dag] end),
    ('I3 attempt_records_nothing_while_live', (a.phase = 'poll_adapter') <> (a.outcome_dag is null)
      or (a.exec_id is not null and a.ended_at is null)),
    ('I4 attempt_agrees_with_its_promise',
      case when a.exec_id is not null then p.state <> 'resolved' else p.state = 'resolved' end
      or (a.ended_at is not null and p.state = 'pending')),
    ('I10 execution_key_is_derived', a.execution_key <> durable._execution_key(a.value_key, a.generation)),
    ('I11 attempt_waits_for_time_only', t.state = 'suspended'),
    ('I12 attempt_knows_where_to_resume', a.phase not in ('poll_adapter', 'integrate_ok', 'integrate_error')),
    ('I13 attempt_within_budget', a.failures > a.budget + 1),
    ('I18 exec_status_agrees_with_the_outcome', e.sub <> substr(a.phase, 11)),
    ('attempt_belongs_to_a_call', c.value_key is null or a.generation > c.generation),
    ('attempt_deadline_is_that_of_its_promise',
      p.id is not null and a.deadline is distinct from nullif(p.timeout_at, durable._never())),
    ('attempt_is_in_the_queue_of_its_adapter',
      a.served_as <> durable._served_as(c.function, a.adapter) or t.queue <> 'adapter:' || a.served_as),
    ('attempt_has_an_error_iff_given_up', (a.error is not null) <> (a.ended_at is not null and a.exec_id is null)),
    ('attempt_times_are_past', greatest(a.created_at, a.ended_at) > n.now_ms or a.ended_at < a.created_at)
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_attempts() is 'Laws of single attempts. The promise of one that ended may be removed, and its result collected.';

create or replace function durable._check_generations()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'I9 generations_have_no_gap', durable._hex(c.value_key),
         format('latest %s, %s attempts, %s removed', c.generation, count(a.value_key), c.removed)
  from durable._calls c left join durable._call_attempts a on a.value_key = c.value_key
  group by c.value_key
  having count(a.value_key) + c.removed <> c.generation + 1 or max(a.generation) > c.generation
  union all
  select 'I10 value_key_is_derived', durable._hex(c.value_key), c.function
  from durable._calls c where c.value_key <> durable._value_key(c.salt, c.scope, c.function_id, c.inputs)
  union all
  select 'I8 one_live_attempt_of_a_call', durable._hex(a.value_key), format('generations %s', array_agg(a.generation))
  from durable._call_attempts a join durable._calls c on c.value_key = a.value_key
  where a.ended_at is null and a.share and a.step_id is null and a.generation >= c.results_from
    and durable._is_live(a.execution_key, durable._now_ms())
  group by a.value_key having count(*) > 1
  union all
  select 'I14 live_promise_has_its_attempt', p.id, p.state
  from durable._promises p
  where p.id >= 'call:' and p.id < 'call;' and p.id ~ '^call:[0-9a-f]{64}$' and p.state = 'pending'
    and not exists (select from durable._call_attempts a where p.id = durable._call_promise(a.execution_key))
$$;
comment on function durable._check_generations() is 'Laws of value keys, their attempts and promises. Calls that are not shared may run side by side.';

create or replace function durable._check_waits()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'I7 result_is_pinned_for_all_waiters', durable._hex(w.node_id), format('scope %s', w.scope)
  from durable._call_waiters w
  join durable._call_attempts a on a.execution_key = w.execution_key and a.exec_id is not null
  join durable._refs r on r.name = w.scope and r.created_at <= a.created_at
  where not exists (select from durable._pins p where p.scope = w.scope and p.node_id = w.node_id)
  union all
  select 'waiter_has_its_attempt', durable._hex(w.node_id), format('scope %s', w.scope)
  from durable._call_waiters w
  where not exists (select from durable._call_attempts a where a.execution_key = w.execution_key)
  union all
  select 'live_attempt_has_a_waiter', durable._call_promise(a.execution_key), a.adapter
  from durable._call_attempts a
  where a.ended_at is null and not exists (select from durable._call_waiters w where w.execution_key = a.execution_key)
  union all
  select 'running_call_has_its_scope', durable._hex(w.node_id), format('scope %s', w.scope)
  from durable._call_waiters w
  join durable._call_attempts a on a.execution_key = w.execution_key and a.ended_at is null
  left join durable._refs r on r.name = w.scope
  where r.kind is distinct from 'index'
  union all
  select 'step_was_given_something_that_is_there', s.step_id, durable._hex(s.node_id)
  from durable._call_steps s
  where (s.execution_key is not null
         and not exists (select from durable._call_attempts a where a.execution_key = s.execution_key))
     or (s.exec_id is not null
         and not exists (select from durable._objects e where e.id = s.exec_id and e.refs[1] = s.node_id))
$$;
comment on function durable._check_waits() is 'Laws of waiters and steps.';

create or replace function durable._check_pins()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(p.node_id), format('scope %s, exec %s, version %s', p.scope, durable._hex(p.exec_id), p.version)
  from durable._pins p
  left join durable._objects e on e.id = p.exec_id and e.kind = 'exec'
  left join durable._objects r on r.id = e.refs[2]
  left join durable._refs s on s.name = p.scope
  cross join lateral (values
    ('I5 pin_is_of_its_node', e.refs[1] <> p.node_id),
    ('I6 pinned_result_is_here', e.id is null or (e.excised_at is null and r.id is null)),
    ('I16 pin_is_the_last_of_its_history', not exists (
      select from durable._pin_log l
      where l.scope = p.scope and l.node_id = p.node_id and l.version = p.version and l.exec_id = p.exec_id)),
    ('pin_belongs_to_a_scope', s.kind is distinct from 'index')
  ) as v (law, broken)
  where v.broken
  union all
  select 'I15 pins_are_a_chain', durable._hex(b.node_id), format('scope %s, version %s', b.scope, b.version)
  from durable._pin_log b
  where b.prev_exec is not null and not exists (
    select from durable._pin_log a
    where a.scope = b.scope and a.node_id = b.node_id and a.version = b.version - 1 and a.exec_id = b.prev_exec)
    and exists (select from durable._pin_log o where o.scope = b.scope and o.node_id = b.node_id and o.id < b.id)
$$;
comment on function durable._check_pins() is 'Laws of pins and their history, whose beginning retention may have removed. A result that was excised stays pinned, and is refused to whoever asks.';

create or replace function durable._check_claims()
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._claim_promise(c.execution_key), format('promise %s, job %s, outcome %s', p.state, c.job_id, c.outcome)
  from durable._claims c
  left join durable._promises p on p.id = durable._claim_promise(c.execution_key)
  cross join lateral (values
    ('I19 claim_job_is_recorded_whole', (c.backend is null) <> (c.job_id is null)),
    ('I19 claim_has_its_promise', p.id is null and c.outcome is null),
    ('I20 settled_claim_has_an_outcome', (p.state <> 'pending') <> (c.outcome is not null)),
    ('I20 claim_outcome_names_a_dag', (c.outcome is null) <> (c.dag_id is null))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_claims() is 'Laws of claims of orchestrators.';

create or replace function durable._check_all_calls()
returns table (law text, id text, detail text) language sql stable
as $$
  select x.* from durable._check_attempts() x
  union all select x.* from durable._check_generations() x
  union all select x.* from durable._check_waits() x
  union all select x.* from durable._check_pins() x
  union all select x.* from durable._check_claims() x
$$;
comment on function durable._check_all_calls() is 'All laws of calls. They lie in no portion of ids or runs.';
