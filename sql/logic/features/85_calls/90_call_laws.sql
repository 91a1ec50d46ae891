-- The laws of calls as queries, for durable.check(), over portions: spans of execution keys and value keys, of pins by scope and
-- node, and of steps by id. Each row that lies beside them is looked up by key. Laws that are CHECKs of the tables are queries
-- here too, so that they are seen where a constraint was dropped. The plan of the executor numbers its invariants; their laws:
--
--   I1   I1 object_id_is_the_hash_of_its_content
--   I2   I2 attempt_exec_is_of_its_outcome
--   I3   I3 attempt_records_nothing_while_live
--   I4   I4 attempt_agrees_with_its_promise
--   I5   I5 pin_is_of_its_node
--   I6   I6 pinned_result_is_here
--   I7   I7 result_is_pinned_for_all_waiters
--   I8   I8 one_live_attempt_of_a_call
--   I9   I9 generations_have_no_gap
--   I10  I10 execution_key_is_derived, I10 value_key_is_derived
--   I11  I11 attempt_waits_for_time_only
--   I12  I12 attempt_knows_where_to_resume
--   I13  I13 attempt_within_budget
--   I14  I14 live_promise_has_its_attempt
--   I15  I15 pins_are_a_chain
--   I16  I16 pin_is_the_last_of_its_history
--   I17  object_refs_are_of_their_kind (the first ref of an exec is a call or builtin)
--   I18  I18 exec_status_agrees_with_the_outcome
--   I19  I19 claim_job_is_recorded_whole, I19 claim_has_its_promise
--   I20  I20 claim_outcome_is_in_its_promise, I20 claim_outcome_names_a_dag
--   I21  acquired_task_no_lease, well_formed_task_acquired_iff_has_pid (of all tasks)
--   I22  I22 recorded_call_names_its_exec
--   I23  I23 object_is_canonical
--   I24  I24 object_refs_exist
--
-- I25, no token in an object, is no law about rows: users choose values, and one may be that of a token.

create or replace function durable._no_key_reaches()
returns bytea language sql immutable parallel safe
as $$ select decode(repeat('ff', 33), 'hex') $$;
comment on function durable._no_key_reaches() is 'The end of a span of ids or keys that has no other end: they have 32 bytes.';

create or replace function durable._no_name_reaches()
returns text language sql immutable parallel safe
as $$ select repeat(chr(1114111), 257) $$;
comment on function durable._no_name_reaches() is 'The end of a span of names or steps that has no other end: they have 1024 bytes at most.';

create or replace function durable._attempts_within(p_from bytea[], p_to bytea[])
returns setof durable._call_attempts language sql stable
as $$
  select x.* from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (
    select a.* from durable._call_attempts a where a.execution_key >= s.first and a.execution_key < s.beyond offset 0) x
$$;
comment on function durable._attempts_within(bytea[], bytea[]) is 'Attempts whose execution keys lie in the spans.';

create or replace function durable._check_attempts(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._call_promise(a.execution_key), format('phase %s, promise %s, task %s, ended %s, exec %s', a.phase,
                                                               p.state, t.state, a.ended_at, durable._hex(a.exec_id))
  from durable._attempts_within(p_from, p_to) a
  cross join (select durable._now_ms() as now_ms, durable._readable_setting('call_results_days') as days) n
  left join durable._calls c on c.value_key = any (array[a.value_key])
  left join durable._promises p on p.id = any (array[durable._call_promise(a.execution_key)])
  left join durable._tasks t on t.id = any (array[p.id])
  left join durable._objects e on e.id = any (array[a.exec_id]) and e.kind = 'exec'
  left join durable._objects o on o.id = any (array[a.node_id]) and o.kind = 'node'
  cross join lateral (values
    ('I2 attempt_exec_is_of_its_outcome',
      a.exec_id is not null
      and case when e.id is null then n.days = 0  -- or collected since
               else e.excised_at is null and e.refs is distinct from array[a.node_id, a.outcome_dag] end),
    ('I3 attempt_records_nothing_while_live', (a.phase = 'poll_adapter') <> (a.outcome_dag is null)
      or (a.exec_id is not null and a.ended_at is null)),
    ('I4 attempt_agrees_with_its_promise',
      case when a.exec_id is not null then p.state <> 'resolved'
           else p.state = 'resolved' and a.ended_at is not null
                and durable._json(a.error) #>> '{data,code}' is distinct from 'settled_by_hand' end
      or (a.ended_at is not null and p.state = 'pending')),
    ('I10 execution_key_is_derived', a.execution_key <> durable._execution_key(a.value_key, a.generation)),
    ('I11 attempt_waits_for_time_only', t.state = 'suspended'),
    ('I12 attempt_knows_where_to_resume', a.phase not in ('poll_adapter', 'integrate_ok', 'integrate_error')),
    ('I13 attempt_within_budget', a.failures > a.budget + 1),
    ('I18 exec_status_agrees_with_the_outcome', e.sub <> substr(a.phase, 11)),
    ('attempt_outcome_is_in_its_promise', p.state = 'resolved' and a.exec_id is not null and durable._json(p.value_data)
      @> jsonb_build_object('exec', encode(a.exec_id, 'hex'), 'dag', encode(a.outcome_dag, 'hex')) is not true),
    ('attempt_node_is_here', o.id is null),
    ('attempt_step_is_recorded', a.ended_at is null and a.step_id is not null and not exists (
      select from durable._call_steps s where s.step_id = any (array[a.step_id]) and s.execution_key = a.execution_key)),
    ('attempt_belongs_to_a_call', c.value_key is null or a.generation > c.generation),
    ('attempt_deadline_is_that_of_its_promise',
      p.id is not null and a.deadline is distinct from nullif(p.timeout_at, durable._never())),
    ('attempt_is_in_the_queue_of_its_adapter',
      a.served_as <> durable._served_as(c.function, a.adapter) or t.queue <> 'adapter:' || a.served_as),
    ('attempt_has_an_error_iff_given_up', (a.error is not null) <> (a.ended_at is not null and a.exec_id is null)),
    ('attempt_times_are_past', greatest(a.created_at, a.ended_at) > durable._latest(n.now_ms) or a.ended_at < a.created_at),
    ('attempt_times_are_those_of_its_promise',
      a.created_at <> p.created_at or (p.settled_at < p.timeout_at and a.ended_at <> p.settled_at))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_attempts(bytea[], bytea[]) is
  'Laws of single attempts. The promise of one that ended may be removed, and its result collected; one that people resolve by hand gives the attempt up.';

create or replace function durable._check_call_generations(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  with call as (
    select x.* from unnest(p_from, p_to) as s (first, beyond)
    cross join lateral (
      select c.* from durable._calls c where c.value_key >= s.first and c.value_key < s.beyond offset 0) x
  )
  select 'I9 generations_have_no_gap', durable._hex(c.value_key),
         format('latest %s, %s attempts, %s removed', c.generation, a.attempts, c.removed)
  from call c
  cross join lateral (
    select count(*) as attempts, max(x.generation) as latest
    from durable._call_attempts x where x.value_key = any (array[c.value_key])) a
  where a.attempts + c.removed <> c.generation + 1 or a.latest > c.generation
  union all
  select 'call_function_is_that_of_its_key', durable._hex(c.value_key), c.function
  from call c
  where c.function_id <> durable._object_id('datum', 'uri', convert_to(c.function, 'UTF8'), '{}', '{}')
  union all
  select 'I10 value_key_is_derived', durable._hex(c.value_key), c.function
  from call c where c.value_key <> durable._value_key(c.salt, c.scope, c.function_id, c.inputs)
  union all
  select 'I8 one_live_attempt_of_a_call', durable._hex(c.value_key), format('generations %s', a.generations)
  from call c
  cross join lateral (
    select array_agg(x.generation) as generations
    from durable._call_attempts x
    where x.value_key = any (array[c.value_key]) and durable._is_open(x) and x.share and x.step_id is null
      and x.generation >= c.results_from and durable._is_live(x.execution_key, durable._now_ms())) a
  where cardinality(a.generations) > 1
$$;
comment on function durable._check_call_generations(bytea[], bytea[]) is
  'Laws of value keys and their attempts. Calls that are not shared may run side by side.';

create or replace function durable._check_call_promises(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select 'I14 live_promise_has_its_attempt', x.id, x.state
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (
    select p.id, p.state from durable._promises p
    where p.id >= durable._call_promise(s.first) and p.id < durable._call_promise(s.beyond) and p.state = 'pending'
    offset 0) x
  where durable._call_key(x.id) is not null
    and not exists (select from durable._call_attempts a where a.execution_key = any (array[durable._call_key(x.id)]))
$$;
comment on function durable._check_call_promises(bytea[], bytea[]) is 'The law of promises with the ids of attempts.';

create or replace function durable._check_call_waiters(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(w.node_id), format('scope %s', w.scope)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (
    select x.* from durable._call_waiters x where x.execution_key >= s.first and x.execution_key < s.beyond offset 0) w
  left join durable._call_attempts a on a.execution_key = any (array[w.execution_key])
  left join durable._refs r on r.name = any (array[w.scope])
  cross join lateral (values
    ('I7 result_is_pinned_for_all_waiters',
      a.exec_id is not null and r.created_at <= a.created_at
      and not exists (select from durable._pins p
                      where p.scope = any (array[w.scope]) and p.node_id = any (array[w.node_id]))),
    ('waiter_has_its_attempt', a.execution_key is null),
    ('running_call_has_its_scope', a.execution_key is not null and a.ended_at is null and r.kind is distinct from 'index')
  ) as v (law, broken)
  where v.broken
  union all
  select 'waiter_node_is_here', durable._hex(w.node_id), format('scope %s', w.scope)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (
    select x.* from durable._call_waiters x where x.execution_key >= s.first and x.execution_key < s.beyond offset 0) w
  left join durable._objects o on o.id = any (array[w.node_id]) and o.kind = 'node'
  where o.id is null
  union all
  select 'live_attempt_has_a_waiter', durable._call_promise(a.execution_key), a.adapter
  from durable._attempts_within(p_from, p_to) a
  where a.ended_at is null
    and not exists (select from durable._call_waiters w where w.execution_key = any (array[a.execution_key]))
$$;
comment on function durable._check_call_waiters(bytea[], bytea[]) is 'Laws of waiters. A scope that is younger than the attempt had not waited for it.';

create or replace function durable._check_polls(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(l.execution_key), format('%s of %s polls, number %s, from %s to %s', l.count, a.polls, l.last,
                                                      l.started_at, l.ended_at)
  from (
    select x.execution_key, count(*) as count, count(*) filter (where x.class <> 'integration') as polls, max(x.seq) as last,
           min(x.seq) as first, bool_or(x.started_at > x.ended_at) as is_odd, max(x.started_at) as started_at,
           max(x.ended_at) as ended_at
    from unnest(p_from, p_to) as s (first, beyond)
    cross join lateral (
      select y.* from durable._call_polls y where y.execution_key >= s.first and y.execution_key < s.beyond offset 0) x
    group by x.execution_key) l
  left join durable._call_attempts a on a.execution_key = any (array[l.execution_key])
  cross join lateral (values
    ('poll_is_of_an_attempt', a.execution_key is null),
    ('polls_are_counted', l.polls > a.polls or (l.first = 1 and l.count = l.last and l.polls <> a.polls)),
    ('poll_ended_in_the_past', l.is_odd or l.ended_at > durable._latest(durable._now_ms()))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_polls(bytea[], bytea[]) is
  'Laws of the answers of adapters: of an attempt that is there, and no more than it has counted. Of the older ones only the last hundred are kept.';

create or replace function durable._check_claims(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._claim_promise(c.execution_key), format('promise %s, job %s, outcome %s', p.state, c.job_id, c.outcome)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (
    select x.* from durable._claims x where x.execution_key >= s.first and x.execution_key < s.beyond offset 0) c
  left join durable._promises p on p.id = any (array[durable._claim_promise(c.execution_key)])
  cross join lateral (values
    ('I19 claim_job_is_recorded_whole', (c.backend is null) <> (c.job_id is null)),
    -- one that people settle by hand has no outcome, and may be removed before its claim
    ('I19 claim_has_its_promise', p.id is null and c.outcome is null and not exists (
      select from durable._removed r where r.id = any (array[durable._claim_promise(c.execution_key)]))),
    ('I20 claim_outcome_is_in_its_promise', c.outcome is not null and p.state is not null and (p.state <> 'resolved'
      or p.value_data is distinct from jsonb_build_object('outcome', c.outcome, 'dag', encode(c.dag_id, 'hex'))::text)),
    ('claim_was_made_in_the_past', c.created_at > durable._latest(durable._now_ms())),
    ('I20 claim_outcome_names_a_dag', (c.outcome is null) <> (c.dag_id is null))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_claims(bytea[], bytea[]) is 'Laws of claims of orchestrators.';

create or replace function durable._check_calls(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select x.* from durable._check_attempts(p_from, p_to) x
  union all select x.* from durable._check_call_waiters(p_from, p_to) x
  union all select x.* from durable._check_call_promises(p_from, p_to) x
  union all select x.* from durable._check_polls(p_from, p_to) x
  union all select x.* from durable._check_claims(p_from, p_to) x
$$;
comment on function durable._check_calls(bytea[], bytea[]) is 'All laws of execution keys in the spans: attempts, waiters, promises, polls, claims.';

create or replace function durable._check_pins(p_scopes text[], p_nodes bytea[], p_to_scopes text[], p_to_nodes bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(p.node_id), format('scope %s, exec %s, version %s', p.scope, durable._hex(p.exec_id), p.version)
  from unnest(p_scopes, p_nodes, p_to_scopes, p_to_nodes) as s (scope, node, to_scope, to_node)
  cross join lateral (
    select x.* from durable._pins x
    where (x.scope, x.node_id) >= (s.scope, s.node) and (x.scope, x.node_id) < (s.to_scope, s.to_node) offset 0) p
  left join durable._objects e on e.id = any (array[p.exec_id]) and e.kind = 'exec'
  left join durable._objects r on r.id = any (array[e.refs[2]])
  left join durable._refs i on i.name = any (array[p.scope])
  cross join lateral (values
    ('I5 pin_is_of_its_node', e.refs[1] <> p.node_id),
    ('I6 pinned_result_is_here', e.id is null or (e.excised_at is null and r.id is null)),
    ('I16 pin_is_the_last_of_its_history', not exists (
      select from durable._pin_log l
      where l.scope = any (array[p.scope]) and l.node_id = any (array[p.node_id]) and l.version = any (array[p.version])
        and l.exec_id = p.exec_id and l.pinned_at = p.pinned_at)),
    ('pin_was_set_in_the_past', p.pinned_at > durable._latest(durable._now_ms())),
    ('pin_belongs_to_a_scope', i.kind is distinct from 'index')
  ) as v (law, broken)
  where v.broken
  union all
  select 'I15 pins_are_a_chain', durable._hex(b.node_id), format('scope %s, version %s', b.scope, b.version)
  from unnest(p_scopes, p_nodes, p_to_scopes, p_to_nodes) as s (scope, node, to_scope, to_node)
  cross join lateral (
    select x.* from durable._pin_log x
    where (x.scope, x.node_id) >= (s.scope, s.node) and (x.scope, x.node_id) < (s.to_scope, s.to_node) offset 0) b
  where b.prev_exec is not null and not exists (
    select from durable._pin_log a
    where a.scope = any (array[b.scope]) and a.node_id = any (array[b.node_id]) and a.version = any (array[b.version - 1])
      and a.exec_id = b.prev_exec)
    and exists (select from durable._pin_log o
                where o.scope = any (array[b.scope]) and o.node_id = any (array[b.node_id]) and o.id < b.id)
$$;
comment on function durable._check_pins(text[], bytea[], text[], bytea[]) is
  'Laws of pins and their history, whose beginning retention may have removed, in spans from a scope and node to another. A result that was excised stays pinned, and is refused to whoever asks.';

create or replace function durable._check_steps(p_from text, p_to text)
returns table (law text, id text, detail text) language sql stable
as $$
  select 'step_was_given_something_that_is_there', s.step_id, durable._hex(s.node_id)
  from (select x.* from durable._call_steps x where x.step_id >= p_from and x.step_id < p_to offset 0) s
  left join durable._call_attempts a on a.execution_key = any (array[s.execution_key])
  left join durable._objects e on e.id = any (array[s.exec_id])
  where (s.execution_key is not null and a.execution_key is null)
     or (s.exec_id is not null and e.refs[1] is distinct from s.node_id)
     or s.created_at > durable._latest(durable._now_ms())
$$;
comment on function durable._check_steps(text, text) is 'The law of steps: the attempt or execution that one was given exists, and it was given before now.';

create or replace function durable._keys_to(p_from bytea)
returns bytea language sql stable
as $$
  select least(
    (select a.execution_key from durable._call_attempts a where a.execution_key > p_from
     order by a.execution_key offset 1999 limit 1),
    (select c.value_key from durable._calls c where c.value_key > p_from order by c.value_key offset 1999 limit 1),
    (select w.execution_key from durable._call_waiters w where w.execution_key > p_from
     order by w.execution_key offset 1999 limit 1),
    (select c.execution_key from durable._claims c where c.execution_key > p_from order by c.execution_key offset 1999 limit 1))
$$;
comment on function durable._keys_to(bytea) is
  'Where a portion of keys that begins here ends: after 2000 rows of any table, and behind the rows of its first key; null: it is the last.';

create or replace function durable._pins_to(p_scope text, p_node bytea, out scope text, out node bytea)
language sql stable
as $$
  select x.scope, x.node from (
    (select p.scope, p.node_id as node from durable._pins p where (p.scope, p.node_id) > (p_scope, p_node)
     order by p.scope, p.node_id offset 1999 limit 1)
    union all
    (select l.scope, l.node_id from durable._pin_log l where (l.scope, l.node_id) > (p_scope, p_node)
     order by l.scope, l.node_id offset 1999 limit 1)
    union all
    (select r.name, '' from durable._refs r where r.name > p_scope order by r.name offset 1999 limit 1)) x
  order by x.scope collate "C", x.node limit 1
$$;
comment on function durable._pins_to(text, bytea) is 'Where a portion of pins and names that begins here ends; null: it is the last.';
